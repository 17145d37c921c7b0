//! One write that each validation denies, and one that it allows.

mod quotas;
mod workloads;

use serde_json::{Value, json};

const QUEUE: &str = "kueue.x-k8s.io/queue-name";
const GATE: &str = "kueue.x-k8s.io/elastic-job";
const GATED_BY: &str = "kueue.x-k8s.io/admission-gated-by";

/// Write of an administrator that one validation of a policy denies, and one that all allow.
pub(super) struct PolicyCase {
    pub policy: &'static str,
    pub kind: &'static str,
    pub subresource: &'static str,
    /// Merge patch of [`base`] that yields the old object; `None` on create.
    pub old: Option<Value>,
    /// Merge patch of the old object, or of [`base`].
    pub denied: Value,
    pub allowed: Value,
    /// Subresource of the allowed write. It differs if the policy allows none of the subresource.
    pub allowed_subresource: &'static str,
    /// Part of the message that belongs to the validation.
    pub expected: &'static str,
}

/// Policy, kind and subresource of cases.
type Target = (&'static str, &'static str, &'static str);

fn create((policy, kind, subresource): Target, denied: Value, allowed: Value, expected: &'static str) -> PolicyCase {
    PolicyCase { policy, kind, subresource, old: None, denied, allowed, allowed_subresource: subresource, expected }
}

fn update(target: Target, old: Value, denied: Value, allowed: Value, expected: &'static str) -> PolicyCase {
    PolicyCase { old: Some(old), ..create(target, denied, allowed, expected) }
}

/// Returns the object that the patches of a kind's cases apply to.
pub(super) fn base(kind: &str) -> Value {
    let spec = match kind {
        "ClusterQueue" | "Cohort" => json!({"resourceGroups": groups(&[("cpu", "f")])}),
        "ResourceFlavor" => json!({"nodeLabels": {"pool": "a"}}),
        "Workload" => {
            json!({"podSets": [{"name": "main", "count": 2, "template": {"spec": {"containers": [{"name": "c"}]}}}]})
        }
        "Job" => json!({"template": {"spec": {"containers": [{"name": "c"}]}}}),
        "Pod" => json!({"containers": [{"name": "c"}]}),
        "RayJob" => json!({"shutdownAfterJobFinishes": true}),
        _ => json!({"headGroupSpec": {}}),
    };
    json!({"metadata": {"name": "a", "namespace": "team"}, "spec": spec})
}

fn spec(fields: Value) -> Value {
    json!({"spec": fields})
}

fn status(fields: Value) -> Value {
    json!({"status": fields})
}

fn labels(labels: Value) -> Value {
    json!({"metadata": {"labels": labels}})
}

fn annotations(annotations: Value) -> Value {
    json!({"metadata": {"annotations": annotations}})
}

fn owned_by(kind: &str, uid: &str) -> Value {
    let owner = json!({"apiVersion": "ray.io/v1", "kind": kind, "name": "x", "uid": uid, "controller": true});
    json!({"metadata": {"ownerReferences": [owner]}})
}

/// Combines two patches.
fn and(mut one: Value, other: Value) -> Value {
    let (Some(fields), Value::Object(more)) = (one.as_object_mut(), other) else { panic!("patches are objects") };
    for (name, value) in more {
        let combined = match fields.remove(&name) {
            Some(held) if held.is_object() && value.is_object() => and(held, value),
            _ => value,
        };
        fields.insert(name, combined);
    }
    one
}

fn queued(fields: Value) -> Value {
    and(labels(json!({QUEUE: "a"})), spec(fields))
}

fn suspend(suspend: bool) -> Value {
    spec(json!({"suspend": suspend}))
}

/// Returns resource groups of one resource and one flavor each.
fn groups(of: &[(&str, &str)]) -> Value {
    let group = |(resource, flavor): &(&str, &str)| {
        let quota = json!({"name": resource, "nominalQuota": "4"});
        json!({"coveredResources": [resource], "flavors": [{"name": flavor, "resources": [quota]}]})
    };
    of.iter().map(group).collect()
}

/// Returns all cases.
pub(super) fn all() -> Vec<PolicyCase> {
    let parts = [
        flavors(),
        gates(),
        incremental_upgrades(),
        jobs(),
        ownership(),
        pods(),
        queue_names(),
        default_queue(),
        quotas::resource_groups(),
        quotas::quota_values(),
        quotas::namespaces_and_checks(),
        ray_jobs(),
        workloads::workload_specs(),
        workloads::workload_updates(),
        workloads::admissions(),
        workloads::reclaimable_pods(),
        workloads::admission_checks(),
        workloads::topology_assignments(),
    ];
    parts.into_iter().flatten().collect()
}

fn flavors() -> Vec<PolicyCase> {
    let target = ("sluice-flavors", "ResourceFlavor", "");
    let taints = |taints: Value| spec(json!({"nodeTaints": taints}));
    let taint = |key: &str, value: &str| json!({"key": key, "value": value, "effect": "NoSchedule"});
    let tolerations = |fields: Value| spec(json!({"tolerations": [fields]}));
    let rack = || spec(json!({"topologyName": "rack"}));
    vec![
        create(
            target,
            spec(json!({"nodeLabels": {"a b": "x"}})),
            spec(json!({"nodeLabels": {"example.com/pool": "x"}})),
            "spec.nodeLabels: a key must be a label name, such as pool or example.com/pool",
        ),
        create(
            target,
            taints(json!([taint("a b", "")])),
            taints(json!([taint("example.com/spot", "")])),
            "spec.nodeTaints[*].key: must be a taint key, such as spot or example.com/spot",
        ),
        create(
            target,
            taints(json!([taint("spot", "a b")])),
            taints(json!([taint("spot", "a")])),
            "spec.nodeTaints[*].value: must have at most 63 letters, digits, '-', '_' and '.'",
        ),
        create(
            target,
            taints(json!([taint("spot", "a"), taint("spot", "b")])),
            taints(json!([taint("spot", "a"), taint("old", "a")])),
            "spec.nodeTaints: Duplicate value: taints must be unique by key and effect pair",
        ),
        create(
            target,
            tolerations(json!({"key": "a b"})),
            tolerations(json!({"operator": "Exists"})),
            "spec.tolerations[*].key: must be a taint key, such as spot or example.com/spot",
        ),
        update(
            target,
            rack(),
            spec(json!({"nodeLabels": {"pool": "b"}})),
            taints(json!([taint("spot", "")])),
            "spec.nodeLabels: nodeLabels are immutable when topologyName is set",
        ),
        update(
            target,
            rack(),
            tolerations(json!({"key": "spot"})),
            taints(json!([])),
            "spec.tolerations: tolerations are immutable when topologyName is set",
        ),
    ]
}

fn gates() -> Vec<PolicyCase> {
    let cluster = ("sluice-gate", "RayCluster", "");
    let service = ("sluice-template-gate", "RayService", "");
    let template = |suspend: bool| json!({"rayClusterConfig": {"suspend": suspend}});
    let strategy = |kind: &str| spec(json!({"upgradeStrategy": {"type": kind}}));
    let of_service = || labels(json!({"ray.io/originated-from-crd": "RayService"}));
    vec![
        update(
            cluster,
            queued(json!({"suspend": true})),
            suspend(false),
            spec(json!({"rayVersion": "2.52.0"})),
            "spec.suspend of a queued RayCluster cannot be set to false by hand",
        ),
        update(
            cluster,
            and(queued(json!({"suspend": false})), owned_by("RayService", "1")),
            suspend(true),
            spec(json!({"rayVersion": "2.52.0"})),
            "spec.suspend of a RayCluster of a queued RayService cannot be set to true by hand",
        ),
        update(
            service,
            queued(template(true)),
            spec(template(false)),
            suspend(true),
            "spec.rayClusterConfig.suspend of a queued RayService cannot be set to false",
        ),
        create(
            ("sluice-upgrade-strategy", "RayCluster", ""),
            and(of_service(), strategy("Recreate")),
            of_service(),
            "spec.upgradeStrategy.type cannot be set on a RayCluster of a RayService, which upgrades the cluster itself.",
        ),
    ]
}

/// Returns a spec for incremental upgrades with these changes of valid options.
fn incremental(options: Value) -> Value {
    let mut valid =
        json!({"maxSurgePercent": 50, "stepSizePercent": 10, "intervalSeconds": 5, "gatewayClassName": "istio"});
    json_patch::merge(&mut valid, &options);
    spec(json!({"upgradeStrategy": {"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": valid}}))
}

fn incremental_upgrades() -> Vec<PolicyCase> {
    let target = ("sluice-incremental-upgrade", "RayService", "");
    let annotated = |key: &str, value: &str| and(incremental(json!({})), annotations(json!({key: value})));
    let without = spec(json!({"upgradeStrategy": {"type": "NewClusterWithIncrementalUpgrade"}}));
    let scaling = spec(json!({"rayClusterConfig": {"enableInTreeAutoscaling": true}}));
    vec![
        create(
            target,
            without,
            incremental(json!({})),
            "spec.upgradeStrategy.clusterUpgradeOptions is required for NewClusterWithIncrementalUpgrade",
        ),
        create(
            target,
            incremental(json!({"maxSurgePercent": 101})),
            incremental(json!({"maxSurgePercent": 100})),
            "spec.upgradeStrategy.clusterUpgradeOptions.maxSurgePercent is 101, must be from 1 to 100",
        ),
        create(
            target,
            incremental(json!({"stepSizePercent": 51})),
            incremental(json!({"stepSizePercent": 50})),
            "spec.upgradeStrategy.clusterUpgradeOptions.stepSizePercent is 51, must be from 1 to 50 (maxSurgePercent)",
        ),
        create(
            target,
            incremental(json!({"intervalSeconds": 0})),
            incremental(json!({"intervalSeconds": 1})),
            "spec.upgradeStrategy.clusterUpgradeOptions.intervalSeconds is 0, must be greater than 0",
        ),
        create(
            target,
            incremental(json!({"gatewayClassName": " "})),
            incremental(json!({"gatewayClassName": "x"})),
            "gatewayClassName",
        ),
        create(
            target,
            annotated("sluice.dev/scale-workers", "false"),
            and(annotated("sluice.dev/scale-workers", "false"), scaling),
            "annotation sluice.dev/scale-workers is false, but spec.rayClusterConfig.enableInTreeAutoscaling is not true",
        ),
        create(
            target,
            annotated("sluice.dev/gateway", "A b"),
            annotated("sluice.dev/gateway", "infra/main"),
            "annotation sluice.dev/gateway is 'A b', must be NAME or NAMESPACE/NAME of a Gateway",
        ),
        create(
            target,
            annotated("sluice.dev/http-route", "a/b"),
            annotated("sluice.dev/http-route", "chat"),
            "annotation sluice.dev/http-route is 'a/b', must be the name of an HTTPRoute in the namespace of the RayService",
        ),
    ]
}

fn scheduling_gates(of: &[&str]) -> Value {
    let gates: Vec<Value> = of.iter().map(|name| json!({"name": name})).collect();
    json!({"schedulingGates": gates})
}

fn jobs() -> Vec<PolicyCase> {
    let job = ("sluice-job-gate", "Job", "");
    let pod = ("sluice-job-pods", "Pod", "");
    let in_template = |of: &[&str]| json!({"template": {"spec": scheduling_gates(of)}});
    let of_job = || labels(json!({"batch.kubernetes.io/job-name": "train"}));
    let gated = || and(of_job(), spec(scheduling_gates(&[GATE])));
    let counted = || and(of_job(), labels(json!({"kueue.x-k8s.io/podset": "main"})));
    let serving = || labels(json!({"x": "y"}));
    vec![
        update(
            job,
            queued(json!({"suspend": true})),
            suspend(false),
            spec(json!({"parallelism": 3})),
            "spec.suspend of a queued Job cannot be set to false by hand",
        ),
        update(
            job,
            queued(in_template(&[GATE])),
            spec(in_template(&[])),
            spec(in_template(&[GATE, "other"])),
            "spec.template.spec.schedulingGates of a queued Job must keep the gate kueue.x-k8s.io/elastic-job",
        ),
        update(
            pod,
            gated(),
            spec(scheduling_gates(&[])),
            spec(scheduling_gates(&[GATE, "other"])),
            "spec.schedulingGates: the gate kueue.x-k8s.io/elastic-job cannot be removed by hand",
        ),
        update(
            pod,
            counted(),
            labels(json!({"kueue.x-k8s.io/podset": "x"})),
            serving(),
            "metadata.labels: batch.kubernetes.io/job-name, kueue.x-k8s.io/podset, kueue.x-k8s.io/job-uid and sluice.dev/shape",
        ),
        PolicyCase {
            allowed_subresource: "",
            ..update(
                ("sluice-job-pods", "Pod", "resize"),
                counted(),
                spec(json!({"containers": []})),
                spec(json!({"containers": []})),
                "spec.containers: a pod of a queued Job cannot be resized",
            )
        },
        update(
            pod,
            and(counted(), owned_by("Job", "1")),
            owned_by("Job", "2"),
            owned_by("Job", "1"),
            "metadata.ownerReferences: the controller of a pod of a queued Job is immutable",
        ),
    ]
}

fn ownership() -> Vec<PolicyCase> {
    let target = ("sluice-ownership", "RayCluster", "");
    let origin = |name: &str| labels(json!({"ray.io/originated-from-cr-name": name}));
    vec![
        update(
            target,
            origin("chat"),
            origin("rank"),
            labels(json!({"x": "y"})),
            "metadata.labels[ray.io/originated-from-cr-name] and [ray.io/originated-from-crd] of a RayCluster are immutable",
        ),
        update(
            target,
            and(queued(json!({})), owned_by("RayService", "1")),
            owned_by("RayService", "2"),
            labels(json!({"x": "y"})),
            "metadata.ownerReferences: the controller of a queued RayCluster is immutable",
        ),
    ]
}

fn pods() -> Vec<PolicyCase> {
    let target = ("sluice-pods", "Pod", "");
    let of_cluster = || labels(json!({"ray.io/cluster": "a", "ray.io/group": "small"}));
    let counted = || and(of_cluster(), owned_by("RayCluster", "1"));
    let shaped = || and(of_cluster(), labels(json!({"sluice.dev/shape": "1234567890"})));
    vec![
        update(
            target,
            and(of_cluster(), spec(scheduling_gates(&[GATE]))),
            spec(scheduling_gates(&[])),
            spec(json!({"nodeSelector": {"pool": "a"}})),
            "spec.schedulingGates: the gate kueue.x-k8s.io/elastic-job cannot be removed by hand",
        ),
        update(
            target,
            counted(),
            labels(json!({"ray.io/group": "large"})),
            labels(json!({"ray.io/serve": "true"})),
            "metadata.labels: ray.io/cluster, ray.io/group, ray.io/node-type, kueue.x-k8s.io/podset",
        ),
        PolicyCase {
            allowed_subresource: "",
            ..update(
                ("sluice-pods", "Pod", "resize"),
                shaped(),
                spec(json!({"containers": []})),
                spec(json!({"containers": []})),
                "spec.containers: a pod of a queued RayCluster cannot be resized",
            )
        },
        update(
            target,
            counted(),
            owned_by("RayCluster", "2"),
            spec(json!({"nodeName": "n"})),
            "metadata.ownerReferences: the controller of a pod of a RayCluster is immutable",
        ),
    ]
}

fn queue_names() -> Vec<PolicyCase> {
    let of = |kind: &'static str| ("sluice-queue-names", kind, "");
    let move_to = |queue: &str| labels(json!({QUEUE: queue}));
    let reserved = |truth: &str| {
        let condition = json!({"type": "sluice.dev/QuotaReserved", "status": truth, "message": "Slice s holds quota"});
        status(json!({"conditions": [condition]}))
    };
    let serving = status(json!({"activeServiceStatus": {"rayClusterName": "chat-1"}}));
    vec![
        update(
            of("Job"),
            queued(json!({})),
            move_to("b"),
            and(move_to("b"), suspend(true)),
            "metadata.labels[kueue.x-k8s.io/queue-name] of a Job can change only while spec.suspend is true: running pods",
        ),
        update(
            of("RayCluster"),
            queued(json!({})),
            move_to("b"),
            and(move_to("b"), suspend(true)),
            "metadata.labels[kueue.x-k8s.io/queue-name] of a RayCluster can change only while spec.suspend is true",
        ),
        update(
            of("RayCluster"),
            and(queued(json!({"suspend": true})), owned_by("RayJob", "1")),
            move_to(""),
            move_to("b"),
            "metadata.labels[kueue.x-k8s.io/queue-name] of a RayCluster of a RayService or RayJob is set by its owner",
        ),
        update(
            of("RayService"),
            and(queued(json!({})), reserved("True")),
            move_to("b"),
            suspend(true),
            "of a RayService cannot change from a while the service holds quota (Slice s holds quota). Set spec.suspend to true",
        ),
        update(
            of("RayService"),
            serving,
            move_to("b"),
            and(move_to("b"), suspend(true)),
            "cannot be added to a RayService that has RayClusters (chat-1): they would have to stop",
        ),
    ]
}

fn default_queue() -> Vec<PolicyCase> {
    let of = |kind: &'static str| ("sluice-default-queue", kind, "");
    let move_to = |queue: &str| and(labels(json!({QUEUE: queue})), suspend(true));
    let case = |kind, expected| update(of(kind), queued(json!({"suspend": true})), move_to(""), move_to("b"), expected);
    vec![
        case("Job", "of a Job cannot be removed: the namespace has the LocalQueue default"),
        case("RayCluster", "of a RayCluster cannot be removed: the namespace has the LocalQueue default"),
        case("RayService", "of a RayService cannot be removed: the namespace has the LocalQueue default"),
    ]
}

fn ray_jobs() -> Vec<PolicyCase> {
    let target = ("sluice-ray-jobs", "RayJob", "");
    let selecting = json!({"clusterSelector": {"ray.io/cluster": "a"}});
    vec![
        update(
            ("sluice-ray-job-gate", "RayJob", ""),
            queued(json!({"suspend": true})),
            suspend(false),
            annotations(json!({"x": "y"})),
            "spec.suspend of a queued RayJob cannot be set to false by hand",
        ),
        create(
            target,
            queued(json!({"shutdownAfterJobFinishes": false})),
            queued(json!({})),
            "spec.shutdownAfterJobFinishes of a queued RayJob must be true",
        ),
        create(
            target,
            and(queued(selecting.clone()), spec(json!({"rayClusterSpec": {}}))),
            queued(selecting),
            "spec.clusterSelector and spec.rayClusterSpec of a queued RayJob are mutually exclusive",
        ),
    ]
}
