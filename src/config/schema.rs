//! Fields of Kueue's configuration (kueue v0.19.2 `apis/config/v1beta2/configuration_types.go`),
//! and the subset that Sluice supports.

use serde_json::Value;

use super::field_error::{FieldError, child_path, item_path};

/// Schema of a field.
enum FieldSchema {
    /// Value that Sluice supports. Its type is validated where it is read.
    Supported,
    /// Value that Sluice does not support.
    Unsupported,
    /// Mapping with exactly these fields.
    Fields(&'static [(&'static str, Self)]),
    /// List of mappings with exactly these fields.
    List(&'static [(&'static str, Self)]),
    /// Mapping with arbitrary keys, of which these are supported.
    AnyKey(&'static [&'static str]),
}

use FieldSchema::{AnyKey, Fields, List, Supported, Unsupported};

const CONFIGURATION: FieldSchema = Fields(&[
    ("apiVersion", Supported),
    ("kind", Supported),
    ("namespace", Supported),
    ("webhook", Fields(&[("port", Supported), ("host", Supported), ("certDir", Unsupported)])),
    (
        "leaderElection",
        Fields(&[
            ("leaderElect", Supported),
            ("resourceNamespace", Supported),
            ("leaseDuration", Unsupported),
            ("renewDeadline", Unsupported),
            ("retryPeriod", Unsupported),
            ("resourceLock", Unsupported),
            ("resourceName", Unsupported),
        ]),
    ),
    (
        "metrics",
        Fields(&[
            ("bindAddress", Supported),
            ("enableClusterQueueResources", Unsupported),
            (
                "customLabels",
                List(&[
                    ("name", Unsupported),
                    ("sourceLabelKey", Unsupported),
                    ("sourceAnnotationKey", Unsupported),
                    ("sourceKind", Unsupported),
                    ("trackedValues", Unsupported),
                ]),
            ),
            ("localQueueMetrics", Fields(&[("enable", Unsupported), ("localQueueSelector", Unsupported)])),
        ]),
    ),
    (
        "health",
        Fields(&[
            ("healthProbeBindAddress", Supported),
            ("readinessEndpointName", Unsupported),
            ("livenessEndpointName", Unsupported),
        ]),
    ),
    ("pprofBindAddress", Unsupported),
    ("controller", Fields(&[("groupKindConcurrency", Unsupported), ("cacheSyncTimeout", Unsupported)])),
    ("tls", Fields(&[("minVersion", Unsupported), ("cipherSuites", Unsupported), ("curvePreferences", Unsupported)])),
    ("manageJobsWithoutQueueName", Supported),
    (
        "managedJobsNamespaceSelector",
        Fields(&[
            ("matchLabels", Supported),
            ("matchExpressions", List(&[("key", Supported), ("operator", Supported), ("values", Supported)])),
        ]),
    ),
    (
        "internalCertManagement",
        Fields(&[("enable", Supported), ("webhookServiceName", Unsupported), ("webhookSecretName", Unsupported)]),
    ),
    (
        "waitForPodsReady",
        Fields(&[
            ("timeout", Supported),
            ("blockAdmission", Supported),
            ("recoveryTimeout", Supported),
            ("unscheduledTimeout", Supported),
            (
                "requeuingStrategy",
                Fields(&[
                    ("timestamp", Supported),
                    ("backoffLimitCount", Supported),
                    ("backoffBaseSeconds", Supported),
                    ("backoffMaxSeconds", Supported),
                ]),
            ),
        ]),
    ),
    ("clientConnection", Fields(&[("qps", Unsupported), ("burst", Unsupported)])),
    (
        "integrations",
        Fields(&[("frameworks", Supported), ("externalFrameworks", Unsupported), ("labelKeysToCopy", Unsupported)]),
    ),
    (
        "multiKueue",
        Fields(&[
            ("gcInterval", Unsupported),
            ("origin", Unsupported),
            ("workerLostTimeout", Unsupported),
            ("dispatcherName", Unsupported),
            ("externalFrameworks", List(&[("name", Unsupported)])),
            (
                "clusterProfile",
                Fields(&[
                    ("accessProviders", List(&[("name", Unsupported), ("execConfig", Unsupported)])),
                    ("credentialsProviders", List(&[("name", Unsupported), ("execConfig", Unsupported)])),
                ]),
            ),
            ("incrementalDispatcherConfig", Fields(&[("stepSize", Unsupported)])),
        ]),
    ),
    ("fairSharing", Fields(&[("preemptionStrategies", Supported)])),
    (
        "admissionFairSharing",
        Fields(&[
            ("usageHalfLifeTime", Unsupported),
            ("usageSamplingInterval", Unsupported),
            ("resourceWeights", Unsupported),
        ]),
    ),
    (
        "resources",
        Fields(&[
            ("quotaCheckStrategy", Supported),
            ("excludeResourcePrefixes", Supported),
            (
                "transformations",
                List(&[
                    ("input", Supported),
                    ("strategy", Supported),
                    ("multiplyBy", Supported),
                    ("outputs", Supported),
                ]),
            ),
            (
                "deviceClassMappings",
                List(&[
                    ("name", Unsupported),
                    ("deviceClassNames", Unsupported),
                    (
                        "sources",
                        List(&[
                            (
                                "counter",
                                Fields(&[
                                    ("name", Unsupported),
                                    ("driver", Unsupported),
                                    ("deviceSelector", Unsupported),
                                ]),
                            ),
                            (
                                "capacity",
                                Fields(&[
                                    ("name", Unsupported),
                                    ("driver", Unsupported),
                                    ("deviceSelector", Unsupported),
                                ]),
                            ),
                        ]),
                    ),
                ]),
            ),
        ]),
    ),
    ("featureGates", AnyKey(&["DisableWaitForPodsReady", "WaitForPodsReadyUnscheduledTimeout"])),
    (
        "objectRetentionPolicies",
        Fields(&[("workloads", Fields(&[("afterFinished", Supported), ("afterDeactivatedByKueue", Supported)]))]),
    ),
    ("visibilityServer", Fields(&[("bindAddress", Unsupported), ("bindPort", Unsupported)])),
]);

/// Validates the structure of a file. Unknown fields and wrong types are added to `problems`.
/// Returns the paths of fields that are set but not supported.
pub(super) fn validate(file: &Value, problems: &mut Vec<FieldError>) -> Vec<String> {
    let mut idle = Vec::new();
    validate_field(&CONFIGURATION, "", file, problems, &mut idle);
    idle
}

/// Validates one field and those below it. `null` counts as absent, as in Kueue.
fn validate_field(
    node: &FieldSchema,
    path: &str,
    value: &Value,
    problems: &mut Vec<FieldError>,
    idle: &mut Vec<String>,
) {
    match (node, value) {
        (_, Value::Null) | (Supported, _) => {}
        (Unsupported, _) => idle.push(path.to_owned()),
        (Fields(fields), Value::Object(members)) => {
            for (name, member) in members {
                match fields.iter().find(|(known, _)| known == name) {
                    Some((_, node)) => validate_field(node, &child_path(path, name), member, problems, idle),
                    None => problems
                        .push(FieldError::unknown(child_path(path, name), fields.iter().map(|(known, _)| *known))),
                }
            }
        }
        (List(fields), Value::Array(items)) => {
            for (index, value) in items.iter().enumerate() {
                validate_field(&Fields(fields), &item_path(path, index), value, problems, idle);
            }
        }
        (AnyKey(acted), Value::Object(members)) => {
            let others = members.keys().filter(|name| !acted.contains(&name.as_str()));
            idle.extend(others.map(|name| child_path(path, name)));
        }
        (Fields(_) | AnyKey(_), _) => problems.push(FieldError::new(path, value, "a mapping")),
        (List(_), _) => problems.push(FieldError::new(path, value, "a list of mappings")),
    }
}
