//! `sluice explain` for jobs on a real control plane, and for the same objects in files.

use std::path::Path;

use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams};
use serde_json::{Value, json};
use sluice_api::condition;
use tokio::process::Command;

use sluice_testkit::env::{Manager, TestEnv, eventually_or_err, next_second, sluice_binary};
use sluice_testkit::objects::{QUEUE, QUEUE_SAMPLE, SERVICE_SAMPLE};

/// Runs the command. Returns whether it succeeded, and stdout or else stderr.
async fn run_explain(env: &TestEnv, arguments: &[&str]) -> (bool, String) {
    let output =
        Command::new(sluice_binary()).arg("explain").args(arguments).env("KUBECONFIG", &env.kubeconfig).output();
    let output = output.await.expect("an answer");
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(text).expect("text"))
}

/// Returns the explanation of an object as JSON.
pub(crate) async fn explain_json(env: &TestEnv, subject: &str) -> Value {
    let (_, text) = run_explain(env, &[subject, "--output=json"]).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns the pending slice of an explanation, if any.
fn pending_slice(explanation: &Value) -> Option<&Value> {
    explanation["slices"].as_array()?.iter().find(|slice| slice["state"] == "pending")
}

/// Sets the quotas of the queue to those of a remediation.
pub(crate) async fn apply_quotas(env: &TestEnv, quota: &Value) {
    let changes = quota.as_array().cloned().unwrap_or_default();
    let queue = env.cluster_queues().get(QUEUE).await.expect("the queue");
    let mut groups = serde_json::to_value(&queue.spec.resource_groups).expect("JSON");
    for change in changes {
        assert_eq!(change["clusterQueue"], QUEUE);
        let flavors = groups[0]["flavors"].as_array_mut().expect("flavors");
        let flavor = flavors.iter_mut().find(|flavor| flavor["name"] == change["flavor"]).expect("the flavor");
        let resources = flavor["resources"].as_array_mut().expect("resources");
        let quota = resources.iter_mut().find(|quota| quota["name"] == change["resource"]).expect("the resource");
        quota["nominalQuota"] = change["to"].clone();
    }
    env.patch_queue(QUEUE, json!({"resourceGroups": groups})).await;
}

/// Writes all objects to a directory, one file per kind, like `kubectl get --output=yaml`.
pub(crate) async fn dump_objects(env: &TestEnv, folder: &Path) {
    std::fs::create_dir_all(folder).expect("a folder");
    let kueue =
        ["ClusterQueue", "LocalQueue", "ResourceFlavor", "Workload"].map(|kind| ("kueue.x-k8s.io", "v1beta2", kind));
    let ray = ["RayService", "RayCluster"].map(|kind| ("ray.io", "v1", kind));
    let core = ["Namespace", "Pod", "Service"].map(|kind| ("", "v1", kind));
    for (group, version, kind) in kueue.into_iter().chain(ray).chain(core) {
        let resource = ApiResource::from_gvk(&kube::core::GroupVersionKind::gvk(group, version, kind));
        let all: Api<DynamicObject> = Api::all_with(env.client.clone(), &resource);
        let items = all.list(&ListParams::default()).await.expect("a list").items;
        let items: Vec<Value> = items
            .into_iter()
            .map(|item| {
                let mut item = serde_json::to_value(item).expect("JSON");
                item["apiVersion"] = resource.api_version.clone().into();
                item["kind"] = kind.into();
                item
            })
            .collect();
        let text = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
        std::fs::write(folder.join(format!("{kind}.json")), text).expect("a file");
    }
}

/// Starts two services in a queue that fits one of them.
async fn two_competing_services() -> (TestEnv, Manager) {
    let env = TestEnv::start().await;
    let manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.apply(SERVICE_SAMPLE).await.expect("a service");
    eventually_or_err("the first is ready", async || {
        let explanation = explain_json(&env, "rayservice/fruit").await;
        if explanation["members"][0]["ungatedPods"] == 2 { Ok(()) } else { Err(explanation.to_string()) }
    })
    .await;
    env.apply(&SERVICE_SAMPLE.replace("name: fruit\n  namespace", "name: chat\n  namespace")).await.expect("another");
    // The condition of the job follows the pending slice a second later.
    eventually_or_err("the second is pending, and says so", async || {
        let explanation = explain_json(&env, "rayservice/chat").await;
        let is_reported = explanation["conditions"].as_array().is_some_and(|reported| !reported.is_empty());
        if is_reported && pending_slice(&explanation).is_some() { Ok(()) } else { Err(explanation.to_string()) }
    })
    .await;
    (env, manager)
}

#[tokio::test]
async fn explain_remediation_unblocks_the_job() {
    let (env, _manager) = two_competing_services().await;

    // Given a service that waits for another, then the explanation has the shortfall, its limit and
    // the holders,
    let explanation = explain_json(&env, "rayservice/chat").await;
    let slice = pending_slice(&explanation).expect("a pending slice");
    let short = &slice["pending"]["shortfalls"][0];
    assert_eq!(short["boundBy"], format!("the nominalQuota of ClusterQueue {QUEUE}"), "{explanation}");
    assert_eq!(short["holders"]["RayService default/fruit"], "1", "{explanation}");
    let (_, text) = run_explain(&env, &["rayservice/chat"]).await;
    assert!(text.contains("RayService default/fruit holds 1"), "{text}");
    assert!(text.contains("unblocked once nominalQuota of cpu in flavor default-flavor of ClusterQueue"), "{text}");

    // and it is the same for its cluster, its slice, and its objects in files;
    let cluster = format!("raycluster/{}", explanation["members"][0]["name"].as_str().expect("a name"));
    let workload = format!("workload/{}", slice["name"].as_str().expect("a name"));
    for part in [cluster, workload] {
        assert_eq!(explain_json(&env, &part).await, explanation, "{part}");
    }
    let folder = env.dir.join("objects");
    dump_objects(&env, &folder).await;
    let (_, from_files) =
        run_explain(&env, &["rayservice/chat", "--output=json", "--from", folder.to_str().expect("a path")]).await;
    assert_eq!(serde_json::from_str::<Value>(&from_files).expect("JSON"), explanation);

    // and the proposed quota is sufficient.
    let remedies = slice["pending"]["remediations"].as_array().expect("remedies");
    let quota = remedies.iter().find(|remedy| remedy["quota"].is_array()).expect("quota would help");
    apply_quotas(&env, &quota["quota"]).await;
    eventually_or_err("the second runs", async || {
        let explanation = explain_json(&env, "rayservice/chat").await;
        if explanation["slices"][0]["state"] == "admitted" { Ok(()) } else { Err(explanation.to_string()) }
    })
    .await;
    assert_eq!(quota["quota"].as_array().map(Vec::len), Some(2), "cpu and memory: {quota}");
}

/// A ClusterQueue without nominal quota that borrows from its cohort, and its LocalQueue.
const BORROWER: &str = r#"
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: borrower}
spec:
  cohortName: shared
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [cpu, memory]
    flavors:
    - name: default-flavor
      resources: [{name: cpu, nominalQuota: 0}, {name: memory, nominalQuota: 0}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: borrower, namespace: default}
spec: {clusterQueue: borrower}
"#;

#[tokio::test]
async fn explain_reports_quota_reserved_for_another_workload() {
    // Given a StrictFIFO queue with half of its quota in use, whose next service requests all of
    // it,
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.patch_queue(QUEUE, json!({"cohortName": "shared", "queueingStrategy": "StrictFIFO"})).await;
    env.set_quota("2", "4Gi").await;
    env.apply(SERVICE_SAMPLE).await.expect("a service");
    eventually_or_err("the first holds its quota", async || {
        let explanation = explain_json(&env, "rayservice/fruit").await;
        if explanation["slices"][0]["state"] == "admitted" { Ok(()) } else { Err(explanation.to_string()) }
    })
    .await;
    let named = |name: &str| SERVICE_SAMPLE.replace("name: fruit\n  namespace", &format!("name: {name}\n  namespace"));
    env.apply(&named("large").replace("\n      replicas: 1\n", "\n      replicas: 3\n"))
        .await
        .expect("one for all of the quota");
    eventually_or_err("the next is pending", async || {
        let explanation = explain_json(&env, "rayservice/large").await;
        if pending_slice(&explanation).is_some() { Ok(()) } else { Err(explanation.to_string()) }
    })
    .await;

    // when a service that would borrow the rest is created later,
    next_second().await;
    env.apply(BORROWER).await.expect("a queue");
    env.apply(&named("small").replace("user-queue", "borrower")).await.expect("one that borrows");

    // then it is pending, and the condition and both output formats name the workload that quota is
    // reserved for.
    let explanation = eventually_or_err("the explanation has the reservation", async || {
        let explanation = explain_json(&env, "rayservice/small").await;
        let reserved_for =
            pending_slice(&explanation).map(|slice| slice["pending"]["shortfalls"][0]["reservedFor"].clone());
        if reserved_for == Some(json!({"amount": "2", "largest": "RayService default/large", "others": 0})) {
            Ok(explanation)
        } else {
            Err(explanation.to_string())
        }
    })
    .await;
    let (_, text) = run_explain(&env, &["rayservice/small"]).await;
    assert!(text.contains(", 2 is reserved for RayService default/large"), "{text}");
    let slice = pending_slice(&explanation).expect("a pending slice")["name"].as_str().expect("a name").to_owned();
    eventually_or_err("its condition reports it", async || {
        let slice = env.workloads().get(&slice).await.expect("its slice");
        let conditions = slice.status.unwrap_or_default().conditions;
        let why = condition::get(&conditions, "QuotaReserved").map(|found| found.message.clone()).unwrap_or_default();
        if why.contains(", 2 is reserved for default/rayservice-large-") { Ok(()) } else { Err(why) }
    })
    .await;
}

#[tokio::test]
async fn explain_reports_admission_of_running_jobs_and_missing_objects() {
    let (env, _manager) = two_competing_services().await;

    let (_, text) = run_explain(&env, &["rayservice/fruit"]).await;

    assert!(text.contains("sluice.dev/Admitted=True (Admitted)"), "{text}");
    assert!(text.contains(": admitted, LocalQueue user-queue > ClusterQueue"), "{text}");
    assert!(text.contains("pod set head: 1 pod: cpu 500m in default-flavor, memory 1Gi in default-flavor"), "{text}");
    for (subject, problem) in [
        ("rayservice/none", "RayService default/none not found"),
        ("service/fruit", "unknown kind \"service\": expected rayservice"),
        ("fruit", "expected KIND/NAME"),
    ] {
        let (succeeded, text) = run_explain(&env, &[subject]).await;
        assert!(!succeeded && text.contains(problem), "{text}");
    }
}
