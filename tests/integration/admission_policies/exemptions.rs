//! Operations that the policies must not block: deletion, finalizers, garbage collection, and
//! KubeRay's operator.

use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::fixtures::{
    api_of, cluster, create, create_fixtures, pod, queue_label, service, service_cluster, set_status,
};
use sluice_testkit::{TestEnv, eventually, eventually_or_err};

const KUBERAY: &str = "ray-system:kuberay-operator";

fn unsuspend_patch() -> Value {
    json!({"spec": {"suspend": false}})
}

/// Patches an object (no dry run).
async fn patch(client: &kube::Client, kind: &str, name: &str, patch: Value) -> Result<(), kube::Error> {
    api_of(client, kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

/// Waits until the policies are in force.
async fn wait_until_enforced(env: &TestEnv) {
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    let relabeled = json!({"metadata": {"labels": {"ray.io/cluster": "x", "ray.io/originated-from-cr-name": "x"}}});
    let service = json!({"spec": {"rayClusterConfig": {"suspend": false}}});
    let moved = json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "b"}}});
    let refused = [
        ("RayCluster", "waiting", unsuspend_patch()),
        ("RayCluster", "running", moved),
        ("RayCluster", "child", relabeled.clone()),
        ("RayService", "serving", service),
        ("Pod", "counted", relabeled),
    ];
    for (kind, name, change) in refused {
        eventually_or_err(&format!("a policy for {kind} {name} is in force"), async || {
            let answer = api_of(&env.client, kind).patch(name, &params, &Patch::Merge(&change)).await;
            answer.err().ok_or_else(String::new)
        })
        .await;
    }
}

#[tokio::test]
async fn jobs_in_system_namespaces_are_exempt_from_policies() {
    let env = TestEnv::start().await;
    create_fixtures(&env).await;
    wait_until_enforced(&env).await;
    let kind = GroupVersionKind::gvk("ray.io", "v1", "RayCluster");
    let resource = ApiResource::from_gvk(&kind);
    let clusters: Api<DynamicObject> = Api::namespaced_with(env.client.clone(), "kube-system", &resource);
    let waiting: DynamicObject = serde_json::from_value(cluster("waiting", queue_label("a"), true)).expect("a cluster");
    clusters.create(&PostParams::default(), &waiting).await.expect("a cluster");

    let answer = clusters.patch("waiting", &PatchParams::default(), &Patch::Merge(unsuspend_patch())).await;

    assert!(answer.is_ok(), "{answer:?}");
}

#[tokio::test]
async fn terminating_objects_are_exempt_from_policies() {
    let env = TestEnv::start().await;
    create_fixtures(&env).await;
    wait_until_enforced(&env).await;
    let kept = json!({"metadata": {"finalizers": ["test.sluice.dev/keep"]}});
    // Owned objects come before their owners, which would delete them.
    let objects = [("Pod", "gated"), ("RayCluster", "waiting"), ("RayCluster", "child"), ("RayService", "serving")];

    for (kind, name) in objects {
        // Given an object with a third-party finalizer,
        patch(&env.client, kind, name, kept.clone()).await.expect("a finalizer is put on");
        let objects = api_of(&env.client, kind);
        objects.delete(name, &DeleteParams::default().grace_period(0)).await.expect("a deletion");

        // then no policy applies to it, and it can be deleted.
        let stripped = json!({"metadata": {"labels": null, "ownerReferences": []}});
        patch(&env.client, kind, name, stripped).await.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
        let free = json!({"metadata": {"finalizers": null}});
        patch(&env.client, kind, name, free).await.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
        eventually("it is deleted", async || objects.get_opt(name).await.expect("an answer").is_none().then_some(()))
            .await;
    }
}

#[tokio::test]
async fn orphaning_deletion_of_a_service_keeps_its_clusters_and_pods() {
    let env = TestEnv::start().await;
    create_fixtures(&env).await;
    wait_until_enforced(&env).await;

    // When owners are deleted with orphaning, the garbage collector removes the owner references.
    for (kind, name) in [("RayService", "serving"), ("RayCluster", "running")] {
        let objects = api_of(&env.client, kind);
        objects.delete(name, &DeleteParams::orphan()).await.expect("a deletion");
        eventually("it is deleted", async || objects.get_opt(name).await.expect("an answer").is_none().then_some(()))
            .await;
    }
    for (kind, name) in [("RayCluster", "child"), ("Pod", "counted")] {
        let left = api_of(&env.client, kind).get(name).await.expect("the owned object");
        assert!(left.metadata.owner_references.unwrap_or_default().is_empty(), "{kind} {name}");
    }

    // When an owner is deleted in the foreground, its dependents are deleted.
    let other = create(&env.client, service("other", queue_label("a"))).await.expect("a service");
    let own = create(&env.client, service_cluster("own", &other, "a")).await.expect("a cluster");
    create(&env.client, pod("last", &own, true)).await.expect("a pod");
    api_of(&env.client, "RayService").delete("other", &DeleteParams::foreground()).await.expect("a deletion");
    for (kind, name) in [("Pod", "last"), ("RayCluster", "own"), ("RayService", "other")] {
        let objects = api_of(&env.client, kind);
        eventually("it is deleted", async || objects.get_opt(name).await.expect("an answer").is_none().then_some(()))
            .await;
    }
}

#[tokio::test]
async fn external_operator_may_create_clusters_and_write_statuses() {
    let env = TestEnv::start().await;
    create_fixtures(&env).await;
    wait_until_enforced(&env).await;
    let kuberay = env.impersonate(KUBERAY).await;
    let serving = api_of(&kuberay, "RayService").get("serving").await.expect("the service");

    // Given KubeRay's operator, which creates a cluster and pods and writes statuses,
    let made = create(&kuberay, service_cluster("second", &serving, "a")).await.expect("a child");
    create(&kuberay, pod("head", &made, true)).await.expect("a pod");
    create(&kuberay, cluster("plain", json!({}), false)).await.expect("a cluster in no queue");
    set_status(&kuberay, "RayCluster", "second", json!({"state": "suspended"})).await.expect("a status");
    set_status(&kuberay, "RayService", "serving", json!({"serviceStatus": "Running"})).await.expect("a status");
    let kept = json!({"metadata": {"finalizers": ["ray.io/gcs-ft-redis-cleanup-finalizer"]}});
    patch(&kuberay, "RayCluster", "second", kept).await.expect("a finalizer");
    // and updates the cluster in place to its service's spec,
    let grown =
        json!({"metadata": {"annotations": {"ray.io/num-worker-groups": "0"}}, "spec": {"rayVersion": "2.53.0"}});
    patch(&kuberay, "RayCluster", "second", grown).await.expect("a change in place");
    patch(&kuberay, "Pod", "head", json!({"metadata": {"labels": {"ray.io/serve": "true"}}})).await.expect("a label");

    // then all of that is allowed, but opening the gate is not.
    let refusal = patch(&kuberay, "RayCluster", "second", unsuspend_patch()).await.expect_err("refused").to_string();
    assert!(refusal.contains("spec.suspend of a queued RayCluster cannot be set to false by hand"), "{refusal}");
    api_of(&kuberay, "RayCluster").delete("second", &DeleteParams::default()).await.expect("a deletion");
}
