//! Objects that Kueue rejects are rejected with the field and the rule (kueue v0.19.2
//! `pkg/webhooks` and the validation markers of `apis/kueue/v1beta2`). Every rule has a valid and
//! an invalid case; all run against one API server.

mod changes;
mod creations;
mod fixtures;

use changes::UpdateCase;
use fixtures::{default_object, merge};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use sluice_testkit::objects::NAMESPACE;
use sluice_testkit::{TestEnv, eventually};

fn api(env: &TestEnv, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind));
    match kind {
        "LocalQueue" | "Workload" => Api::namespaced_with(env.client.clone(), NAMESPACE, &resource),
        _ => Api::all_with(env.client.clone(), &resource),
    }
}

/// Creates an object as a dry run. Returns the rejection, if any.
async fn dry_run_create(env: &TestEnv, kind: &str, change: &Value) -> Result<(), String> {
    let mut object = default_object(kind);
    merge(&mut object, change);
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    let params = PostParams { dry_run: true, ..PostParams::default() };
    api(env, kind).create(&params, &object).await.map(drop).map_err(|error| error.to_string())
}

/// Returns the difference between the actual and the expected outcome, if any.
fn mismatch(what: &str, outcome: &Result<(), String>, refusal: &[&str]) -> Option<String> {
    match outcome {
        Ok(()) if refusal.is_empty() => None,
        Ok(()) => Some(format!("{what}: accepted, not rejected with {refusal:?}")),
        Err(message) if refusal.is_empty() => Some(format!("{what}: rejected: {message}")),
        Err(message) if refusal.iter().all(|words| message.contains(words)) => None,
        Err(message) => Some(format!("{what}: rejected without {refusal:?}: {message}")),
    }
}

/// Waits until the policies are enforced, which takes the API server a moment.
async fn wait_until_enforced(env: &TestEnv) {
    let broken = [
        ("ClusterQueue", json!({"spec": {"namespaceSelector": {"matchLabels": {"te am": "a"}}}})),
        ("ResourceFlavor", json!({"spec": {"nodeLabels": {"po ol": "a"}}})),
        ("Workload", json!({"metadata": {"annotations": {"kueue.x-k8s.io/admission-gated-by": "budget"}}})),
    ];
    for (kind, change) in broken {
        eventually(&format!("the policy for {kind} is enforced"), async || {
            dry_run_create(env, kind, &change).await.err()
        })
        .await;
    }
}

#[tokio::test]
async fn objects_invalid_in_kueue_are_rejected_with_field_and_rule() {
    let env = TestEnv::start().await;
    wait_until_enforced(&env).await;
    let mut problems = Vec::new();

    for case in creations::all() {
        let outcome = dry_run_create(&env, case.kind, &case.change).await;
        problems.extend(mismatch(&format!("{}: {}", case.kind, case.rule), &outcome, case.refusal));
    }
    run_update_cases(&env, &mut problems).await;
    assert!(problems.is_empty(), "{} cases failed:\n{}", problems.len(), problems.join("\n"));
}

/// Runs the update cases.
async fn run_update_cases(env: &TestEnv, problems: &mut Vec<String>) {
    for kind in ["ClusterQueue", "ResourceFlavor", "LocalQueue", "Workload"] {
        let object: DynamicObject = serde_json::from_value(default_object(kind)).expect("an object");
        api(env, kind).create(&PostParams::default(), &object).await.expect("the default object");
    }
    run_updates(env, changes::of_new_objects(), problems).await;

    let topology = Patch::Merge(json!({"spec": {"topologyName": "racks"}}));
    api(env, "ResourceFlavor").patch("usual", &PatchParams::default(), &topology).await.expect("a topology");
    run_updates(env, changes::with_a_topology(), problems).await;

    let reserved = json!({"status": {"conditions": changes::conditions(&["QuotaReserved", "Admitted"]), "admission": changes::admission("team", 3, "3")}});
    let classed = json!({"spec": {"priority": 1, "priorityClassRef": {"group": "scheduling.k8s.io", "kind": "PriorityClass", "name": "high"}}});
    let reclaimed = json!({"status": {"reclaimablePods": [{"name": "main", "count": 1}]}});
    let gated = json!({"metadata": {"annotations": {"example.com/any": "x"}}});
    let workloads = api(env, "Workload");
    workloads.patch("usual", &PatchParams::default(), &Patch::Merge(&classed)).await.expect("a class");
    workloads.patch("usual", &PatchParams::default(), &Patch::Merge(&gated)).await.expect("an annotation");
    for status in [reserved, reclaimed] {
        workloads.patch_status("usual", &PatchParams::default(), &Patch::Merge(&status)).await.expect("quota");
    }
    run_updates(env, changes::with_reserved_quota(), problems).await;
}

async fn run_updates(env: &TestEnv, table: Vec<UpdateCase>, problems: &mut Vec<String>) {
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    for UpdateCase { kind, rule, status, change, refusal } in table {
        let api = api(env, kind);
        let change = Patch::Merge(change);
        let answer = if status {
            api.patch_status("usual", &params, &change).await
        } else {
            api.patch("usual", &params, &change).await
        };
        let outcome = answer.map(drop).map_err(|error| error.to_string());
        problems.extend(mismatch(&format!("a {kind} changes: {rule}"), &outcome, refusal));
    }
}
