//! Upgrades whose pods get other flavors than before: each pod runs on the nodes of its flavor.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use rstest::rstest;
use serde_json::{Value, json};

use crate::stage::{Operator, Stage, pod_sets, service, workers};
use sluice_testkit::eventually_or_tell;
use sluice_testkit::objects::QUEUE;

/// CPU and memory quota of a flavor.
type Quota<'a> = (&'a str, &'a str);

/// Returns a fixture with nodes in the pools `a` and `b`, each with a flavor.
async fn with_pools(operator: Operator, a: Quota<'_>, b: Quota<'_>) -> Stage {
    let stage = Stage::with(operator).await;
    let nodes: Api<Node> = Api::all(stage.env.client.clone());
    for (number, node) in nodes.list(&ListParams::default()).await.expect("the nodes").into_iter().enumerate() {
        let labels = Patch::Merge(json!({"metadata": {"labels": {"pool": if number % 2 == 0 { "a" } else { "b" }}}}));
        nodes.patch(&node.name_any(), &PatchParams::default(), &labels).await.expect("the node has a pool");
    }
    for pool in ["a", "b"] {
        let metadata = json!({"name": pool});
        let spec = json!({"nodeLabels": {"pool": pool}});
        let api = "kueue.x-k8s.io/v1beta2";
        stage.env.put(json!({"apiVersion": api, "kind": "ResourceFlavor", "metadata": metadata, "spec": spec})).await;
    }
    set_quotas(&stage, a, b).await;
    stage
}

async fn set_quotas(stage: &Stage, a: Quota<'_>, b: Quota<'_>) {
    let flavor = |pool: &str, (cpu, memory): Quota<'_>| {
        let resources =
            [("cpu", cpu), ("memory", memory)].map(|(name, quota)| json!({"name": name, "nominalQuota": quota}));
        json!({"name": pool, "resources": resources})
    };
    let groups = json!([{"coveredResources": ["cpu", "memory"], "flavors": [flavor("a", a), flavor("b", b)]}]);
    stage.env.change_queue(QUEUE, json!({"resourceGroups": groups})).await;
}

/// Waits until this much CPU of each pool is reserved.
async fn reserves(stage: &Stage, expected: [&str; 2]) {
    eventually_or_tell(&format!("the flavors are used as {expected:?}"), async || {
        let status = stage.env.cluster_queues().get(QUEUE).await.expect("the queue").status.unwrap_or_default();
        let flavors = status.flavors_reservation.iter().map(|flavor| {
            let cpu = flavor.resources.iter().find(|usage| usage.name == "cpu").and_then(|usage| usage.total.clone());
            cpu.map(|cpu| cpu.0).unwrap_or_default()
        });
        let used: Vec<String> = flavors.collect();
        if used == expected { Ok(()) } else { Err(format!("but {used:?}")) }
    })
    .await;
}

/// Returns the pools in which the pods of a cluster run, by node type.
async fn pools(stage: &Stage, cluster: &str) -> BTreeSet<(String, String)> {
    let pool = |pod: &Pod| {
        let selector = pod.spec.clone().and_then(|spec| spec.node_selector).unwrap_or_default();
        let role = pod.labels().get("ray.io/node-type").cloned().unwrap_or_default();
        (role, selector.get("pool").cloned().unwrap_or_default())
    };
    stage.env.pods_of(cluster).await.iter().map(pool).collect()
}

fn in_pools(head: &str, worker: &str) -> BTreeSet<(String, String)> {
    [("head", head), ("worker", worker)].map(|(role, pool)| (role.to_owned(), pool.to_owned())).into()
}

#[rstest]
#[case::our_operator(Operator::Ours)]
#[case::another_operator(Operator::Another)]
#[tokio::test]
async fn changed_node_selector_uses_quota_of_the_new_flavor(#[case] operator: Operator) {
    // Quota for two heads and a worker in one pool, and for another worker in the other.
    let stage = with_pools(operator, ("1500m", "3Gi"), ("500m", "1Gi")).await;
    let in_pool = |pool: &str| -> Value {
        let mut group = workers("small", 1, 500);
        group["template"]["spec"]["nodeSelector"] = json!({"pool": pool});
        group
    };

    for (version, pool, expected) in [("2.52.0", "a", ["1", "0"]), ("2.53.0", "b", ["500m", "500m"])] {
        stage.env.put(service(version, &[in_pool(pool)])).await;
        let serving = stage.env.serves_from(version).await;
        stage.env.only_cluster(&serving).await;
        reserves(&stage, expected).await;
        // The head selects no pool; its flavor determines where it runs.
        assert_eq!(pools(&stage, &serving).await, in_pools("a", pool));
    }
    stage.ends().await;
}

#[rstest]
#[case::our_operator(Operator::Ours)]
#[case::another_operator(Operator::Another)]
#[tokio::test]
async fn upgrade_uses_a_flavor_with_capacity_and_active_cluster_stays(#[case] operator: Operator) {
    // Quota for one cluster in each pool.
    let stage = with_pools(operator, ("1", "2Gi"), ("1", "2Gi")).await;
    let groups = [workers("small", 1, 500)];
    stage.env.put(service("2.52.0", &groups)).await;
    let first = stage.env.serves_from("2.52.0").await;
    reserves(&stage, ["1", "0"]).await;
    let before = pools_of_all(&stage, &first).await;

    // Given a service that uses all of one pool, when it is upgraded, then the new pods use the
    // other,
    stage.env.put(service("2.53.0", &groups)).await;
    let second = stage.env.serves_from("2.53.0").await;
    assert_eq!(pools(&stage, &second).await, in_pools("b", "b"));
    // and the old pods stay where they are until they are deleted.
    let still = pools_of_all(&stage, &first).await;
    assert!(still.iter().all(|(pod, pool)| before.get(pod) == Some(pool)), "{before:?} {still:?}");
    stage.env.only_cluster(&second).await;
    reserves(&stage, ["0", "1"]).await;

    // The next one goes back to the first.
    stage.env.put(service("2.54.0", &groups)).await;
    let third = stage.env.serves_from("2.54.0").await;
    assert_eq!(pools(&stage, &third).await, in_pools("a", "a"));
    stage.env.only_cluster(&third).await;
    reserves(&stage, ["1", "0"]).await;
    stage.ends().await;
}

/// Returns the pool of each pod of a cluster, by uid.
async fn pools_of_all(stage: &Stage, cluster: &str) -> BTreeMap<String, Option<String>> {
    let pods = stage.env.pods_of(cluster).await.into_iter().map(|pod| {
        let selector = pod.spec.clone().and_then(|spec| spec.node_selector).unwrap_or_default();
        (pod.uid().unwrap_or_default(), selector.get("pool").cloned())
    });
    pods.collect()
}

#[rstest]
#[case::our_operator(Operator::Ours)]
#[case::another_operator(Operator::Another)]
#[tokio::test]
async fn only_pods_without_capacity_move_to_another_flavor(#[case] operator: Operator) {
    // Quota for two heads and a worker in one pool, and for a worker in the other.
    let stage = with_pools(operator, ("1500m", "3Gi"), ("500m", "1Gi")).await;
    let groups = [workers("small", 1, 500)];
    stage.env.put(service("2.52.0", &groups)).await;
    stage.env.serves_from("2.52.0").await;
    reserves(&stage, ["1", "0"]).await;

    stage.env.put(service("2.53.0", &groups)).await;
    let second = stage.env.serves_from("2.53.0").await;
    assert_eq!(pools(&stage, &second).await, in_pools("a", "b"));
    stage.env.only_cluster(&second).await;
    reserves(&stage, ["500m", "500m"]).await;

    let names = pod_sets(&stage.ends().await);
    assert_eq!(names, ["head", "small", "small-2"].map(str::to_owned).into());
}

#[tokio::test]
async fn pending_upgrade_uses_the_first_flavor_that_gets_capacity() {
    let stage = with_pools(Operator::Ours, ("1", "2Gi"), ("500m", "1Gi")).await;
    let groups = [workers("small", 1, 500)];
    stage.env.put(service("2.52.0", &groups)).await;
    let first = stage.env.serves_from("2.52.0").await;

    stage.env.put(service("2.53.0", &groups)).await;
    let (pending, _) = stage.env.waits_for_quota().await;
    assert!(stage.env.pods_of(&pending).await.is_empty());
    assert_eq!(pools(&stage, &first).await, in_pools("a", "a"));

    set_quotas(&stage, ("1500m", "3Gi"), ("500m", "1Gi")).await;
    assert_eq!(stage.env.serves_from("2.53.0").await, pending);
    stage.env.only_cluster(&pending).await;
    // Either the head or the worker moved: one pod is in each pool.
    reserves(&stage, ["500m", "500m"]).await;
    stage.ends().await;
}
