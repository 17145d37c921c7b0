//! Each policy rejects an administrator with its message, allows Sluice, and blocks nothing else.

use kube::Client;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::fixtures::{api_of, cluster, create_fixtures, queue_label, service_cluster};
use sluice_testkit::{TestEnv, eventually_or_err};

/// A change of an object, and the text required in its rejection; empty if it must be allowed.
struct PolicyCase {
    what: &'static str,
    kind: &'static str,
    name: &'static str,
    patch: Value,
    refusal: &'static str,
}

fn rejected(
    what: &'static str,
    (kind, name): (&'static str, &'static str),
    patch: Value,
    refusal: &'static str,
) -> PolicyCase {
    PolicyCase { what, kind, name, patch, refusal }
}

fn allowed(what: &'static str, object: (&'static str, &'static str), patch: Value) -> PolicyCase {
    rejected(what, object, patch, "")
}

const CHILD: (&str, &str) = ("RayCluster", "child");
const OPEN_CHILD: (&str, &str) = ("RayCluster", "open-child");
const WAITING: (&str, &str) = ("RayCluster", "waiting");
const RUNNING: (&str, &str) = ("RayCluster", "running");
const FREE: (&str, &str) = ("RayCluster", "free");
const SERVING: (&str, &str) = ("RayService", "serving");
const NEW: (&str, &str) = ("RayService", "new");
const UNBORN: (&str, &str) = ("RayService", "unborn");
const UNQUEUED: (&str, &str) = ("RayService", "unqueued");
const GATED: (&str, &str) = ("Pod", "gated");
const COUNTED: (&str, &str) = ("Pod", "counted");
const WAITING_JOB: (&str, &str) = ("Job", "waiting-job");
const RUNNING_JOB: (&str, &str) = ("Job", "running-job");
const FREE_JOB: (&str, &str) = ("Job", "free-job");
const GATED_OF_JOB: (&str, &str) = ("Pod", "gated-of-job");
const COUNTED_OF_JOB: (&str, &str) = ("Pod", "counted-of-job");

fn suspend(suspend: impl Into<Value>) -> Value {
    json!({"spec": {"suspend": suspend.into()}})
}

fn template(suspend: impl Into<Value>) -> Value {
    json!({"spec": {"rayClusterConfig": {"suspend": suspend.into()}}})
}

fn label(key: &str, value: impl Into<Value>) -> Value {
    json!({"metadata": {"labels": {key: value.into()}}})
}

fn queue_name_patch(to: impl Into<Value>) -> Value {
    label("kueue.x-k8s.io/queue-name", to)
}

/// Merges two patches. Unlike applying a merge patch, it keeps null values.
fn merge_patches(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Object(mut one), Value::Object(other)) => {
            for (name, value) in other {
                let merged = match one.remove(&name) {
                    Some(held) => merge_patches(held, value),
                    None => value,
                };
                one.insert(name, merged);
            }
            Value::Object(one)
        }
        (_, other) => other,
    }
}

fn gates() -> Vec<PolicyCase> {
    let gate = "spec.suspend of a queued RayCluster cannot be set to false by hand: Sluice does so once an admitted Workload covers";
    let in_use = "spec.suspend of a RayCluster of a queued RayService cannot be set to true by hand";
    let in_template =
        "spec.rayClusterConfig.suspend of a queued RayService cannot be set to false: its RayClusters are created";
    let of_pod = "spec.schedulingGates: the gate kueue.x-k8s.io/elastic-job cannot be removed by hand: Sluice does so once an admitted";
    vec![
        rejected("the gate of a child is opened", CHILD, suspend(false), gate),
        rejected("the gate of a child is removed", CHILD, suspend(Value::Null), gate),
        rejected("the gate of a child is closed", OPEN_CHILD, suspend(true), in_use),
        rejected("the gate of a cluster is opened", WAITING, suspend(false), gate),
        // Two policies reject this, and the API server reports either.
        rejected(
            "a cluster leaves its queue and opens",
            WAITING,
            merge_patches(suspend(false), queue_name_patch(Value::Null)),
            "spec.suspend",
        ),
        allowed("the gate of a cluster without a service is closed", RUNNING, suspend(true)),
        allowed("a cluster in no queue is suspended", FREE, suspend(true)),
        rejected("a template is opened", SERVING, template(false), in_template),
        rejected("the gate of a template is removed", SERVING, template(Value::Null), in_template),
        allowed("a service is suspended", SERVING, suspend(true)),
        allowed(
            "a service that holds nothing leaves its queue",
            NEW,
            merge_patches(template(false), queue_name_patch(Value::Null)),
        ),
        allowed("the template of a service in no queue is opened", UNBORN, template(false)),
        rejected("a pod is ungated", GATED, json!({"spec": {"schedulingGates": []}}), of_pod),
    ]
}

fn queue_names() -> Vec<PolicyCase> {
    let runs = "metadata.labels[kueue.x-k8s.io/queue-name] of a RayCluster can change only while spec.suspend is true";
    let owned =
        "metadata.labels[kueue.x-k8s.io/queue-name] of a RayCluster of a RayService or RayJob is set by its owner";
    let held = "of a RayService cannot change from a while the service holds quota (Slice s-1 holds quota in ClusterQueue team-a for c)";
    let has = "cannot be added to a RayService that has RayClusters (unqueued-x): they would have to stop";
    vec![
        rejected("a running cluster is moved", RUNNING, queue_name_patch("b"), runs),
        rejected("a running cluster leaves its queue", RUNNING, queue_name_patch(Value::Null), runs),
        rejected("a running cluster joins a queue", FREE, queue_name_patch("a"), runs),
        allowed("a pending cluster is moved", WAITING, queue_name_patch("b")),
        allowed("a pending cluster leaves its queue", WAITING, queue_name_patch(Value::Null)),
        allowed("a cluster is suspended and moved", RUNNING, merge_patches(suspend(true), queue_name_patch("b"))),
        allowed("a cluster is suspended and joins a queue", FREE, merge_patches(suspend(true), queue_name_patch("a"))),
        rejected("a child leaves its queue", CHILD, queue_name_patch(Value::Null), owned),
        allowed("a pending child follows its service", CHILD, queue_name_patch("b")),
        rejected("a service that holds quota is moved", SERVING, queue_name_patch("b"), held),
        rejected("a service that holds quota leaves its queue", SERVING, queue_name_patch(Value::Null), held),
        rejected(
            "a service is suspended and moved in one write",
            SERVING,
            merge_patches(suspend(true), queue_name_patch("b")),
            held,
        ),
        allowed("a service that holds nothing is moved", NEW, queue_name_patch("b")),
        allowed("a service without clusters joins a queue", UNBORN, queue_name_patch("a")),
        rejected("a running service joins a queue", UNQUEUED, queue_name_patch("a"), has),
        allowed(
            "a service is suspended and joins a queue",
            UNQUEUED,
            merge_patches(suspend(true), queue_name_patch("a")),
        ),
    ]
}

fn ownership() -> Vec<PolicyCase> {
    let labels = "[ray.io/originated-from-crd] of a RayCluster are immutable, because they identify its owner";
    let owner = "metadata.ownerReferences: the controller of a queued RayCluster is immutable";
    let counted = "metadata.labels: ray.io/cluster, ray.io/group, ray.io/node-type, kueue.x-k8s.io/podset, kueue.x-k8s.io/job-uid, ";
    let of_pod = "metadata.ownerReferences: the controller of a pod of a RayCluster is immutable";
    let orphaned = json!({"metadata": {"ownerReferences": []}});
    let adopted = json!({"metadata": {"ownerReferences": [{
        "apiVersion": "ray.io/v1", "kind": "RayJob", "name": "no-one", "uid": "1", "controller": true,
    }]}});
    vec![
        rejected("a child gets another service", CHILD, label("ray.io/originated-from-cr-name", "x"), labels),
        rejected("a child loses its service", CHILD, label("ray.io/originated-from-cr-name", Value::Null), labels),
        rejected("a child gets another kind of owner", CHILD, label("ray.io/originated-from-crd", "RayJob"), labels),
        rejected("a child loses its controller", CHILD, orphaned.clone(), owner),
        rejected("a queued cluster gets a controller", WAITING, adopted.clone(), owner),
        allowed("a cluster in no queue gets a controller", FREE, adopted),
        rejected("a gated pod changes its group", GATED, label("ray.io/group", "x"), counted),
        rejected("a pod changes its cluster", COUNTED, label("ray.io/cluster", "x"), counted),
        rejected("a pod loses its cluster", COUNTED, label("ray.io/cluster", Value::Null), counted),
        rejected("a pod changes its type", COUNTED, label("ray.io/node-type", "worker"), counted),
        rejected("a pod loses its PodSet", COUNTED, label("kueue.x-k8s.io/podset", Value::Null), counted),
        rejected("a pod changes its shape", COUNTED, label("sluice.dev/shape", "9876543210"), counted),
        rejected("a gated pod loses its shape", GATED, label("sluice.dev/shape", Value::Null), counted),
        rejected("a pod changes its revision", COUNTED, label("sluice.dev/revision", "v1-0"), counted),
        rejected("a pod changes the uid of its cluster", COUNTED, label("sluice.dev/cluster-uid", "other"), counted),
        rejected("a pod loses its controller", COUNTED, orphaned, of_pod),
        allowed("a pod serves requests", COUNTED, label("ray.io/serve", "true")),
        allowed("a gated pod is moved to other nodes", GATED, json!({"spec": {"nodeSelector": {"pool": "a"}}})),
    ]
}

fn jobs() -> Vec<PolicyCase> {
    let gate =
        "spec.suspend of a queued Job cannot be set to false by hand: Sluice does so once an admitted Workload covers";
    let in_template =
        "spec.template.spec.schedulingGates of a queued Job must keep the gate kueue.x-k8s.io/elastic-job";
    let runs = "metadata.labels[kueue.x-k8s.io/queue-name] of a Job can change only while spec.suspend is true";
    let of_pod = "spec.schedulingGates: the gate kueue.x-k8s.io/elastic-job cannot be removed by hand: Sluice does so once an admitted";
    let counted = "metadata.labels: batch.kubernetes.io/job-name, kueue.x-k8s.io/podset, kueue.x-k8s.io/job-uid and sluice.dev/shape";
    let owner = "metadata.ownerReferences: the controller of a pod of a queued Job is immutable";
    let ungated = json!({"spec": {"template": {"spec": {"schedulingGates": []}}}});
    vec![
        rejected("the gate of a Job is opened", WAITING_JOB, suspend(false), gate),
        rejected("the gate of a Job is removed", WAITING_JOB, suspend(Value::Null), gate),
        rejected("the pods of a Job would be created ungated", WAITING_JOB, ungated.clone(), in_template),
        allowed("a running Job is suspended", RUNNING_JOB, suspend(true)),
        allowed("a running Job gets more parallelism", RUNNING_JOB, json!({"spec": {"parallelism": 3}})),
        allowed("a Job in no queue is suspended", FREE_JOB, suspend(true)),
        rejected("a running Job is moved", RUNNING_JOB, queue_name_patch("b"), runs),
        rejected("a running Job leaves its queue", RUNNING_JOB, queue_name_patch(Value::Null), runs),
        rejected("a running Job joins a queue", FREE_JOB, queue_name_patch("a"), runs),
        allowed("a pending Job is moved", WAITING_JOB, queue_name_patch("b")),
        allowed("a pending Job leaves its queue", WAITING_JOB, queue_name_patch(Value::Null)),
        allowed("a Job is suspended and moved", RUNNING_JOB, merge_patches(suspend(true), queue_name_patch("b"))),
        rejected("a pod of a Job is ungated", GATED_OF_JOB, json!({"spec": {"schedulingGates": []}}), of_pod),
        rejected("a pod leaves its Job", COUNTED_OF_JOB, label("batch.kubernetes.io/job-name", "x"), counted),
        rejected(
            "a pod of a Job loses its PodSet",
            COUNTED_OF_JOB,
            label("kueue.x-k8s.io/podset", Value::Null),
            counted,
        ),
        rejected("a gated pod changes its shape", GATED_OF_JOB, label("sluice.dev/shape", "1"), counted),
        rejected("a pod of a Job loses its owner", COUNTED_OF_JOB, json!({"metadata": {"ownerReferences": []}}), owner),
    ]
}

/// Returns changes of every object that no policy restricts.
fn harmless() -> Vec<PolicyCase> {
    let objects = [CHILD, WAITING, RUNNING, FREE, SERVING, NEW, UNQUEUED, GATED, COUNTED];
    let of_jobs = [WAITING_JOB, RUNNING_JOB, FREE_JOB, GATED_OF_JOB, COUNTED_OF_JOB];
    let finalizers = json!({"metadata": {"finalizers": ["test.sluice.dev/keep"]}});
    let annotated = json!({"metadata": {"annotations": {"team": "a"}}});
    let changed = |object| {
        [allowed("finalizers", object, finalizers.clone()), allowed("an annotation", object, annotated.clone())]
    };
    objects.into_iter().chain(of_jobs).flat_map(changed).collect()
}

async fn dry_run(client: &Client, change: &PolicyCase) -> Result<(), String> {
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    let patch = Patch::Merge(&change.patch);
    let answer = api_of(client, change.kind).patch(change.name, &params, &patch).await;
    answer.map(drop).map_err(|error| error.to_string())
}

fn mismatch(user: &str, what: &str, outcome: &Result<(), String>, refusal: &str) -> Option<String> {
    match outcome {
        Ok(()) if refusal.is_empty() => None,
        Ok(()) => Some(format!("{user}: {what}: allowed, not rejected with {refusal:?}")),
        Err(message) if refusal.is_empty() => Some(format!("{user}: {what}: rejected: {message}")),
        Err(message) if message.contains(refusal) => None,
        Err(message) => Some(format!("{user}: {what}: rejected without {refusal:?}: {message}")),
    }
}

/// Waits until the API server has compiled the policies and enforces them.
async fn wait_until_enforced(env: &TestEnv, refused: &[&PolicyCase]) {
    for change in refused {
        eventually_or_err(&format!("the policy is enforced: {}", change.what), async || {
            dry_run(&env.client, change).await.err().ok_or_else(String::new)
        })
        .await;
    }
}

#[tokio::test]
async fn each_policy_rejects_an_administrator_with_its_message_and_allows_sluice() {
    let env = TestEnv::start().await;
    create_fixtures(&env).await;
    let sluice = env.manager_client().await;
    let changes: Vec<PolicyCase> =
        [gates(), queue_names(), ownership(), jobs(), harmless()].into_iter().flatten().collect();
    wait_until_enforced(&env, &changes.iter().filter(|change| !change.refusal.is_empty()).collect::<Vec<_>>()).await;

    let mut problems = Vec::new();
    for change in &changes {
        let by_admin = dry_run(&env.client, change).await;
        problems.extend(mismatch("an administrator", change.what, &by_admin, change.refusal));
        let by_sluice = dry_run(&sluice, change).await;
        problems.extend(mismatch("Sluice", change.what, &by_sluice, ""));
    }
    // The labels of a pod can also be changed through its status subresource.
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    let relabeled = Patch::Merge(label("ray.io/cluster", "x"));
    let by_status = api_of(&env.client, "Pod").patch_status("counted", &params, &relabeled).await;
    let by_status = by_status.map(drop).map_err(|error| error.to_string());
    problems.extend(mismatch(
        "an administrator",
        "a pod changes its cluster by its status",
        &by_status,
        "ray.io/cluster",
    ));
    // The requests of a pod are changed through its resize subresource.
    let containers = json!([{"name": "ray", "resources": {"requests": {"cpu": "50m"}}}]);
    let resized = Patch::Strategic(json!({"spec": {"containers": containers}}));
    for pod in ["gated", "gated-of-job"] {
        let by_resize = api_of(&env.client, "Pod").patch_subresource("resize", pod, &params, &resized).await;
        let by_resize = by_resize.map(drop).map_err(|error| error.to_string());
        problems.extend(mismatch(
            "an administrator",
            "the requests of a pod are reduced",
            &by_resize,
            "cannot be resized, because quota is reserved for its current requests",
        ));
    }
    assert!(problems.is_empty(), "{} of {} failed:\n{}", problems.len(), changes.len(), problems.join("\n"));
}

/// Returns options of incremental upgrades, each with the text required in its rejection; empty if
/// it is valid.
fn incremental_options() -> Vec<(&'static str, Value)> {
    let options = |changes: Value| {
        let usual =
            json!({"maxSurgePercent": 50, "stepSizePercent": 5, "intervalSeconds": 10, "gatewayClassName": "traefik"});
        merge_patches(usual, changes)
    };
    vec![
        ("", options(json!({}))),
        ("", options(json!({"maxSurgePercent": 100, "stepSizePercent": 100, "intervalSeconds": 1}))),
        ("clusterUpgradeOptions is required for NewClusterWithIncrementalUpgrade. Set stepSizePercent", Value::Null),
        ("maxSurgePercent is 0, must be from 1 to 100", options(json!({"maxSurgePercent": 0, "stepSizePercent": 0}))),
        ("maxSurgePercent is 101, must be from 1 to 100", options(json!({"maxSurgePercent": 101}))),
        ("stepSizePercent is 0, must be from 1 to 50 (maxSurgePercent)", options(json!({"stepSizePercent": 0}))),
        ("stepSizePercent is 51, must be from 1 to 50 (maxSurgePercent)", options(json!({"stepSizePercent": 51}))),
        ("intervalSeconds is 0, must be greater than 0", options(json!({"intervalSeconds": 0}))),
        ("gatewayClassName is empty, must be the name of a GatewayClass", options(json!({"gatewayClassName": " "}))),
    ]
}

#[tokio::test]
async fn invalid_incremental_options_are_rejected_with_allowed_values() {
    let env = TestEnv::start().await;
    create_fixtures(&env).await;
    let strategy = |options: Value| {
        let kind = "NewClusterWithIncrementalUpgrade";
        json!({"spec": {"upgradeStrategy": {"type": kind, "clusterUpgradeOptions": options}}})
    };
    let with = |name: &str, value: &str| {
        merge_patches(
            strategy(incremental_options().swap_remove(0).1),
            json!({"metadata": {"annotations": {name: value}}}),
        )
    };
    let changes = incremental_options().into_iter().map(|(refusal, options)| (refusal, strategy(options)));
    let changes = changes.chain([
        ("the worker groups would not follow the capacity", with("sluice.dev/scale-workers", "false")),
        ("", with("sluice.dev/gateway", "infra/public.v1")),
        ("", with("sluice.dev/http-route", "shop")),
        (
            "annotation sluice.dev/gateway is 'a/b/c', must be NAME or NAMESPACE/NAME of a Gateway",
            with("sluice.dev/gateway", "a/b/c"),
        ),
        ("annotation sluice.dev/gateway is '', must be NAME", with("sluice.dev/gateway", "")),
        (
            "annotation sluice.dev/http-route is 'infra/shop', must be the name of an HTTPRoute",
            with("sluice.dev/http-route", "infra/shop"),
        ),
    ]);
    let changes: Vec<PolicyCase> =
        changes.map(|(refusal, patch)| rejected("its incremental options", UNQUEUED, patch, refusal)).collect();
    wait_until_enforced(&env, &changes.iter().filter(|change| !change.refusal.is_empty()).collect::<Vec<_>>()).await;

    let mut problems = Vec::new();
    for change in &changes {
        problems.extend(mismatch("an administrator", change.what, &dry_run(&env.client, change).await, change.refusal));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[tokio::test]
async fn upgrade_strategy_is_rejected_on_clusters_of_services_and_jobs() {
    let env = TestEnv::start().await;
    create_fixtures(&env).await;
    let sluice = env.manager_client().await;
    let serving = api_of(&env.client, "RayService").get("serving").await.expect("the service");
    let refusal = |owner: &str| format!("spec.upgradeStrategy.type cannot be set on a RayCluster of a {owner}");
    let strategy = |kind: Value| json!({"spec": {"upgradeStrategy": {"type": kind}}});
    let created = async |client: &Client, object: Value| {
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        let params = PostParams { dry_run: true, ..PostParams::default() };
        api_of(client, "RayCluster").create(&params, &object).await.map(drop).map_err(|error| error.to_string())
    };
    let recreated = merge_patches(service_cluster("second", &serving, "a"), strategy("Recreate".into()));
    let of_job =
        merge_patches(cluster("third", json!({"ray.io/originated-from-crd": "RayJob"}), true), strategy("None".into()));
    eventually_or_err("the policy is in force", async || {
        created(&env.client, recreated.clone()).await.err().ok_or_else(String::new)
    })
    .await;

    let mut problems = Vec::new();
    for (user, client) in [("an administrator", &env.client), ("Sluice", &sluice)] {
        let outcome = created(client, recreated.clone()).await;
        problems.extend(mismatch(user, "a child is created", &outcome, &refusal("RayService")));
        let outcome = created(client, of_job.clone()).await;
        problems.extend(mismatch(user, "a cluster of a job is created", &outcome, &refusal("RayJob")));
        let update =
            PolicyCase { patch: strategy("Recreate".into()), ..allowed("a child is changed", CHILD, Value::Null) };
        problems.extend(mismatch(user, update.what, &dry_run(client, &update).await, &refusal("RayService")));
        let own = merge_patches(cluster("fourth", queue_label("a"), true), strategy("Recreate".into()));
        problems.extend(mismatch(user, "a standalone cluster is created", &created(client, own).await, ""));
        let none = service_cluster("fifth", &serving, "a");
        problems.extend(mismatch(user, "a child without a strategy is created", &created(client, none).await, ""));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
