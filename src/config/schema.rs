//! Fields of Kueue's configuration (kueue v0.19.2 `apis/config/v1beta2/configuration_types.go`),
//! and the subset that Sluice supports.

use serde_json::Value;

use super::problem::{Problem, child, item};

/// Schema of a field.
enum Node {
    /// Value that Sluice supports. Its type is validated where it is read.
    Acted,
    /// Value that Sluice does not support.
    Idle,
    /// Mapping with exactly these fields.
    Fields(&'static [(&'static str, Node)]),
    /// List of mappings with exactly these fields.
    List(&'static [(&'static str, Node)]),
    /// Mapping with arbitrary keys, of which these are supported.
    Open(&'static [&'static str]),
}

use Node::{Acted, Fields, Idle, List, Open};

const CONFIGURATION: Node = Fields(&[
    ("apiVersion", Acted),
    ("kind", Acted),
    ("namespace", Acted),
    ("webhook", Fields(&[("port", Acted), ("host", Acted), ("certDir", Idle)])),
    (
        "leaderElection",
        Fields(&[
            ("leaderElect", Acted),
            ("resourceNamespace", Acted),
            ("leaseDuration", Idle),
            ("renewDeadline", Idle),
            ("retryPeriod", Idle),
            ("resourceLock", Idle),
            ("resourceName", Idle),
        ]),
    ),
    (
        "metrics",
        Fields(&[
            ("bindAddress", Acted),
            ("enableClusterQueueResources", Idle),
            (
                "customLabels",
                List(&[
                    ("name", Idle),
                    ("sourceLabelKey", Idle),
                    ("sourceAnnotationKey", Idle),
                    ("sourceKind", Idle),
                    ("trackedValues", Idle),
                ]),
            ),
            ("localQueueMetrics", Fields(&[("enable", Idle), ("localQueueSelector", Idle)])),
        ]),
    ),
    (
        "health",
        Fields(&[("healthProbeBindAddress", Acted), ("readinessEndpointName", Idle), ("livenessEndpointName", Idle)]),
    ),
    ("pprofBindAddress", Idle),
    ("controller", Fields(&[("groupKindConcurrency", Idle), ("cacheSyncTimeout", Idle)])),
    ("tls", Fields(&[("minVersion", Idle), ("cipherSuites", Idle), ("curvePreferences", Idle)])),
    ("manageJobsWithoutQueueName", Acted),
    (
        "managedJobsNamespaceSelector",
        Fields(&[
            ("matchLabels", Acted),
            ("matchExpressions", List(&[("key", Acted), ("operator", Acted), ("values", Acted)])),
        ]),
    ),
    ("internalCertManagement", Fields(&[("enable", Acted), ("webhookServiceName", Idle), ("webhookSecretName", Idle)])),
    (
        "waitForPodsReady",
        Fields(&[
            ("timeout", Acted),
            ("blockAdmission", Acted),
            ("recoveryTimeout", Acted),
            (
                "requeuingStrategy",
                Fields(&[
                    ("timestamp", Acted),
                    ("backoffLimitCount", Acted),
                    ("backoffBaseSeconds", Acted),
                    ("backoffMaxSeconds", Acted),
                ]),
            ),
        ]),
    ),
    ("clientConnection", Fields(&[("qps", Idle), ("burst", Idle)])),
    ("integrations", Fields(&[("frameworks", Acted), ("externalFrameworks", Idle), ("labelKeysToCopy", Idle)])),
    (
        "multiKueue",
        Fields(&[
            ("gcInterval", Idle),
            ("origin", Idle),
            ("workerLostTimeout", Idle),
            ("dispatcherName", Idle),
            ("externalFrameworks", List(&[("name", Idle)])),
            (
                "clusterProfile",
                Fields(&[
                    ("accessProviders", List(&[("name", Idle), ("execConfig", Idle)])),
                    ("credentialsProviders", List(&[("name", Idle), ("execConfig", Idle)])),
                ]),
            ),
            ("incrementalDispatcherConfig", Fields(&[("stepSize", Idle)])),
        ]),
    ),
    ("fairSharing", Fields(&[("preemptionStrategies", Acted)])),
    (
        "admissionFairSharing",
        Fields(&[("usageHalfLifeTime", Idle), ("usageSamplingInterval", Idle), ("resourceWeights", Idle)]),
    ),
    (
        "resources",
        Fields(&[
            ("quotaCheckStrategy", Acted),
            ("excludeResourcePrefixes", Acted),
            (
                "transformations",
                List(&[("input", Acted), ("strategy", Acted), ("multiplyBy", Acted), ("outputs", Acted)]),
            ),
            (
                "deviceClassMappings",
                List(&[
                    ("name", Idle),
                    ("deviceClassNames", Idle),
                    (
                        "sources",
                        List(&[
                            ("counter", Fields(&[("name", Idle), ("driver", Idle), ("deviceSelector", Idle)])),
                            ("capacity", Fields(&[("name", Idle), ("driver", Idle), ("deviceSelector", Idle)])),
                        ]),
                    ),
                ]),
            ),
        ]),
    ),
    ("featureGates", Open(&["DisableWaitForPodsReady"])),
    (
        "objectRetentionPolicies",
        Fields(&[("workloads", Fields(&[("afterFinished", Idle), ("afterDeactivatedByKueue", Idle)]))]),
    ),
    ("visibilityServer", Fields(&[("bindAddress", Idle), ("bindPort", Idle)])),
]);

/// Validates the structure of a file. Unknown fields and wrong types are added to `problems`.
/// Returns the paths of fields that are set but not supported.
pub(super) fn check(file: &Value, problems: &mut Vec<Problem>) -> Vec<String> {
    let mut idle = Vec::new();
    visit(&CONFIGURATION, "", file, problems, &mut idle);
    idle
}

/// Validates one field and those below it. `null` counts as absent, as in Kueue.
fn visit(node: &Node, path: &str, value: &Value, problems: &mut Vec<Problem>, idle: &mut Vec<String>) {
    match (node, value) {
        (_, Value::Null) | (Acted, _) => {}
        (Idle, _) => idle.push(path.to_owned()),
        (Fields(fields), Value::Object(members)) => {
            for (name, member) in members {
                match fields.iter().find(|(known, _)| known == name) {
                    Some((_, node)) => visit(node, &child(path, name), member, problems, idle),
                    None => problems.push(Problem::unknown(child(path, name), fields.iter().map(|(known, _)| *known))),
                }
            }
        }
        (List(fields), Value::Array(items)) => {
            for (index, value) in items.iter().enumerate() {
                visit(&Fields(fields), &item(path, index), value, problems, idle);
            }
        }
        (Open(acted), Value::Object(members)) => {
            let others = members.keys().filter(|name| !acted.contains(&name.as_str()));
            idle.extend(others.map(|name| child(path, name)));
        }
        (Fields(_) | Open(_), _) => problems.push(Problem::new(path, value, "a mapping")),
        (List(_), _) => problems.push(Problem::new(path, value, "a list of mappings")),
    }
}
