//! What the policies must not stand in the way of: deletion, finalizers, the garbage collector, and KubeRay's own operator.

use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::objects::{api, child, cluster, create, make, pod, queue, service, set_status};
use sluice_testkit::{TestEnv, eventually, eventually_or_tell};

const KUBERAY: &str = "ray-system:kuberay-operator";

fn opened() -> Value {
    json!({"spec": {"suspend": false}})
}

/// Changes an object, for good.
async fn patch(client: &kube::Client, kind: &str, name: &str, patch: Value) -> Result<(), kube::Error> {
    api(client, kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
}

/// Waits until the policies are in force.
async fn in_force(env: &TestEnv) {
    let params = PatchParams { dry_run: true, ..PatchParams::default() };
    let relabelled = json!({"metadata": {"labels": {"ray.io/cluster": "x", "ray.io/originated-from-cr-name": "x"}}});
    let service = json!({"spec": {"rayClusterConfig": {"suspend": false}}});
    let moved = json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "b"}}});
    let refused = [
        ("RayCluster", "waiting", opened()),
        ("RayCluster", "running", moved),
        ("RayCluster", "child", relabelled.clone()),
        ("RayService", "serving", service),
        ("Pod", "counted", relabelled),
    ];
    for (kind, name, change) in refused {
        eventually_or_tell(&format!("a policy for {kind} {name} is in force"), async || {
            let answer = api(&env.client, kind).patch(name, &params, &Patch::Merge(&change)).await;
            answer.err().ok_or_else(String::new)
        })
        .await;
    }
}

#[tokio::test]
async fn jobs_in_a_namespace_of_the_cluster_itself_are_not_judged() {
    let env = TestEnv::start().await;
    make(&env).await;
    in_force(&env).await;
    let kind = GroupVersionKind::gvk("ray.io", "v1", "RayCluster");
    let resource = ApiResource::from_gvk(&kind);
    let clusters: Api<DynamicObject> = Api::namespaced_with(env.client.clone(), "kube-system", &resource);
    let waiting: DynamicObject = serde_json::from_value(cluster("waiting", queue("a"), true)).expect("a cluster");
    clusters.create(&PostParams::default(), &waiting).await.expect("a cluster");

    let answer = clusters.patch("waiting", &PatchParams::default(), &Patch::Merge(opened())).await;

    assert!(answer.is_ok(), "{answer:?}");
}

#[tokio::test]
async fn what_is_being_deleted_can_lose_its_finalizers_and_anything_else() {
    let env = TestEnv::start().await;
    make(&env).await;
    in_force(&env).await;
    let kept = json!({"metadata": {"finalizers": ["test.sluice.dev/keep"]}});
    // What is owned before its owner, with which it would go.
    let objects = [("Pod", "gated"), ("RayCluster", "waiting"), ("RayCluster", "child"), ("RayService", "serving")];

    for (kind, name) in objects {
        // Given an object that somebody keeps with a finalizer of theirs,
        patch(&env.client, kind, name, kept.clone()).await.expect("a finalizer is put on");
        let objects = api(&env.client, kind);
        objects.delete(name, &DeleteParams::default().grace_period(0)).await.expect("a deletion");

        // then nothing about it is judged, and it goes.
        let stripped = json!({"metadata": {"labels": null, "ownerReferences": []}});
        patch(&env.client, kind, name, stripped).await.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
        let free = json!({"metadata": {"finalizers": null}});
        patch(&env.client, kind, name, free).await.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
        eventually("it is gone", async || objects.get_opt(name).await.expect("an answer").is_none().then_some(()))
            .await;
    }
}

#[tokio::test]
async fn a_service_that_is_deleted_alone_leaves_its_clusters_and_their_pods_behind() {
    let env = TestEnv::start().await;
    make(&env).await;
    in_force(&env).await;

    // When the owners go and what they own is to stay, the garbage collector takes the references to them away.
    for (kind, name) in [("RayService", "serving"), ("RayCluster", "running")] {
        let objects = api(&env.client, kind);
        objects.delete(name, &DeleteParams::orphan()).await.expect("a deletion");
        eventually("it is gone", async || objects.get_opt(name).await.expect("an answer").is_none().then_some(()))
            .await;
    }
    for (kind, name) in [("RayCluster", "child"), ("Pod", "counted")] {
        let left = api(&env.client, kind).get(name).await.expect("what was owned");
        assert!(left.metadata.owner_references.unwrap_or_default().is_empty(), "{kind} {name}");
    }

    // When an owner goes with what it owns, that goes as well.
    let other = create(&env.client, service("other", queue("a"))).await.expect("a service");
    let own = create(&env.client, child("own", &other, "a")).await.expect("a cluster");
    create(&env.client, pod("last", &own, true)).await.expect("a pod");
    api(&env.client, "RayService").delete("other", &DeleteParams::foreground()).await.expect("a deletion");
    for (kind, name) in [("Pod", "last"), ("RayCluster", "own"), ("RayService", "other")] {
        let objects = api(&env.client, kind);
        eventually("it is gone", async || objects.get_opt(name).await.expect("an answer").is_none().then_some(()))
            .await;
    }
}

#[tokio::test]
async fn an_operator_of_another_name_makes_clusters_and_tells_how_they_are() {
    let env = TestEnv::start().await;
    make(&env).await;
    in_force(&env).await;
    let kuberay = env.client_as(KUBERAY).await;
    let serving = api(&kuberay, "RayService").get("serving").await.expect("the service");

    // Given KubeRay's operator, which makes a cluster, its pods, and says how they are,
    let made = create(&kuberay, child("second", &serving, "a")).await.expect("a child");
    create(&kuberay, pod("head", &made, true)).await.expect("a pod");
    create(&kuberay, cluster("plain", json!({}), false)).await.expect("a cluster in no queue");
    set_status(&kuberay, "RayCluster", "second", json!({"state": "suspended"})).await.expect("a status");
    set_status(&kuberay, "RayService", "serving", json!({"serviceStatus": "Running"})).await.expect("a status");
    let kept = json!({"metadata": {"finalizers": ["ray.io/gcs-ft-redis-cleanup-finalizer"]}});
    patch(&kuberay, "RayCluster", "second", kept).await.expect("a finalizer");
    // brings it up to its service's spec, as far as that goes without another cluster,
    let grown =
        json!({"metadata": {"annotations": {"ray.io/num-worker-groups": "0"}}, "spec": {"rayVersion": "2.53.0"}});
    patch(&kuberay, "RayCluster", "second", grown).await.expect("a change in place");
    patch(&kuberay, "Pod", "head", json!({"metadata": {"labels": {"ray.io/serve": "true"}}})).await.expect("a label");

    // then all of that passes, and the gate isn't its to open.
    let refusal = patch(&kuberay, "RayCluster", "second", opened()).await.expect_err("refused").to_string();
    assert!(refusal.contains("spec.suspend of a queued RayCluster cannot be set to false by hand"), "{refusal}");
    api(&kuberay, "RayCluster").delete("second", &DeleteParams::default()).await.expect("a deletion");
}
