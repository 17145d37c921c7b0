//! Upgrades whose pods get other flavors than before: each pod runs on the nodes of its flavor.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use rstest::rstest;
use serde_json::{Value, json};

use crate::resource_change_fixture::{Fixture, RayOperatorKind, pod_sets, sample_service, worker_group_of_cpu};
use sluice_testkit::eventually_or_err;
use sluice_testkit::objects::QUEUE;

/// CPU and memory quota of a flavor.
type Quota<'a> = (&'a str, &'a str);

/// Returns a fixture with nodes in the pools `a` and `b`, each with a flavor.
async fn start_with_pools(operator: RayOperatorKind, a: Quota<'_>, b: Quota<'_>) -> Fixture {
    let fixture = Fixture::start(operator).await;
    let nodes: Api<Node> = Api::all(fixture.env.client.clone());
    for (number, node) in nodes.list(&ListParams::default()).await.expect("the nodes").into_iter().enumerate() {
        let labels = Patch::Merge(json!({"metadata": {"labels": {"pool": if number % 2 == 0 { "a" } else { "b" }}}}));
        nodes.patch(&node.name_any(), &PatchParams::default(), &labels).await.expect("the node has a pool");
    }
    for pool in ["a", "b"] {
        let metadata = json!({"name": pool});
        let spec = json!({"nodeLabels": {"pool": pool}});
        let api = "kueue.x-k8s.io/v1beta2";
        fixture
            .env
            .apply_object(json!({"apiVersion": api, "kind": "ResourceFlavor", "metadata": metadata, "spec": spec}))
            .await;
    }
    set_quotas(&fixture, a, b).await;
    fixture
}

async fn set_quotas(fixture: &Fixture, a: Quota<'_>, b: Quota<'_>) {
    let flavor = |pool: &str, (cpu, memory): Quota<'_>| {
        let resources =
            [("cpu", cpu), ("memory", memory)].map(|(name, quota)| json!({"name": name, "nominalQuota": quota}));
        json!({"name": pool, "resources": resources})
    };
    let groups = json!([{"coveredResources": ["cpu", "memory"], "flavors": [flavor("a", a), flavor("b", b)]}]);
    fixture.env.patch_queue(QUEUE, json!({"resourceGroups": groups})).await;
}

/// Waits until this much CPU of each pool is reserved.
async fn wait_for_pool_reservations(fixture: &Fixture, expected: [&str; 2]) {
    eventually_or_err(&format!("the flavors are used as {expected:?}"), async || {
        let status = fixture.env.cluster_queues().get(QUEUE).await.expect("the queue").status.unwrap_or_default();
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
async fn pools_by_node_type(fixture: &Fixture, cluster: &str) -> BTreeSet<(String, String)> {
    let pool = |pod: &Pod| {
        let selector = pod.spec.clone().and_then(|spec| spec.node_selector).unwrap_or_default();
        let role = pod.labels().get("ray.io/node-type").cloned().unwrap_or_default();
        (role, selector.get("pool").cloned().unwrap_or_default())
    };
    fixture.env.pods_of(cluster).await.iter().map(pool).collect()
}

fn expected_pools(head: &str, worker: &str) -> BTreeSet<(String, String)> {
    [("head", head), ("worker", worker)].map(|(role, pool)| (role.to_owned(), pool.to_owned())).into()
}

#[rstest]
#[case::our_operator(RayOperatorKind::Ours)]
#[case::another_operator(RayOperatorKind::Another)]
#[tokio::test]
async fn changed_node_selector_uses_quota_of_the_new_flavor(#[case] operator: RayOperatorKind) {
    // Quota for two heads and a worker in one pool, and for another worker in the other.
    let fixture = start_with_pools(operator, ("1500m", "3Gi"), ("500m", "1Gi")).await;
    let in_pool = |pool: &str| -> Value {
        let mut group = worker_group_of_cpu("small", 1, 500);
        group["template"]["spec"]["nodeSelector"] = json!({"pool": pool});
        group
    };

    for (version, pool, expected) in [("2.52.0", "a", ["1", "0"]), ("2.53.0", "b", ["500m", "500m"])] {
        fixture.env.apply_object(sample_service(version, &[in_pool(pool)])).await;
        let serving = fixture.env.wait_until_serving(version).await;
        fixture.env.wait_for_only_cluster(&serving).await;
        wait_for_pool_reservations(&fixture, expected).await;
        // The head selects no pool; its flavor determines where it runs.
        assert_eq!(pools_by_node_type(&fixture, &serving).await, expected_pools("a", pool));
    }
    fixture.check_history().await;
}

#[rstest]
#[case::our_operator(RayOperatorKind::Ours)]
#[case::another_operator(RayOperatorKind::Another)]
#[tokio::test]
async fn upgrade_uses_a_flavor_with_capacity_and_active_cluster_stays(#[case] operator: RayOperatorKind) {
    // Quota for one cluster in each pool.
    let fixture = start_with_pools(operator, ("1", "2Gi"), ("1", "2Gi")).await;
    let groups = [worker_group_of_cpu("small", 1, 500)];
    fixture.env.apply_object(sample_service("2.52.0", &groups)).await;
    let first = fixture.env.wait_until_serving("2.52.0").await;
    wait_for_pool_reservations(&fixture, ["1", "0"]).await;
    let before = pools_by_pod(&fixture, &first).await;

    // Given a service that uses all of one pool, when it is upgraded, then the new pods use the
    // other,
    fixture.env.apply_object(sample_service("2.53.0", &groups)).await;
    let second = fixture.env.wait_until_serving("2.53.0").await;
    assert_eq!(pools_by_node_type(&fixture, &second).await, expected_pools("b", "b"));
    // and the old pods stay where they are until they are deleted.
    let still = pools_by_pod(&fixture, &first).await;
    assert!(still.iter().all(|(pod, pool)| before.get(pod) == Some(pool)), "{before:?} {still:?}");
    fixture.env.wait_for_only_cluster(&second).await;
    wait_for_pool_reservations(&fixture, ["0", "1"]).await;

    // The next one goes back to the first.
    fixture.env.apply_object(sample_service("2.54.0", &groups)).await;
    let third = fixture.env.wait_until_serving("2.54.0").await;
    assert_eq!(pools_by_node_type(&fixture, &third).await, expected_pools("a", "a"));
    fixture.env.wait_for_only_cluster(&third).await;
    wait_for_pool_reservations(&fixture, ["1", "0"]).await;
    fixture.check_history().await;
}

/// Returns the pool of each pod of a cluster, by uid.
async fn pools_by_pod(fixture: &Fixture, cluster: &str) -> BTreeMap<String, Option<String>> {
    let pods = fixture.env.pods_of(cluster).await.into_iter().map(|pod| {
        let selector = pod.spec.clone().and_then(|spec| spec.node_selector).unwrap_or_default();
        (pod.uid().unwrap_or_default(), selector.get("pool").cloned())
    });
    pods.collect()
}

#[rstest]
#[case::our_operator(RayOperatorKind::Ours)]
#[case::another_operator(RayOperatorKind::Another)]
#[tokio::test]
async fn only_pods_without_capacity_move_to_another_flavor(#[case] operator: RayOperatorKind) {
    // Quota for two heads and a worker in one pool, and for a worker in the other.
    let fixture = start_with_pools(operator, ("1500m", "3Gi"), ("500m", "1Gi")).await;
    let groups = [worker_group_of_cpu("small", 1, 500)];
    fixture.env.apply_object(sample_service("2.52.0", &groups)).await;
    fixture.env.wait_until_serving("2.52.0").await;
    wait_for_pool_reservations(&fixture, ["1", "0"]).await;

    fixture.env.apply_object(sample_service("2.53.0", &groups)).await;
    let second = fixture.env.wait_until_serving("2.53.0").await;
    assert_eq!(pools_by_node_type(&fixture, &second).await, expected_pools("a", "b"));
    fixture.env.wait_for_only_cluster(&second).await;
    wait_for_pool_reservations(&fixture, ["500m", "500m"]).await;

    let names = pod_sets(&fixture.check_history().await);
    assert_eq!(names, ["head", "small", "small-2"].map(str::to_owned).into());
}

#[tokio::test]
async fn pending_upgrade_uses_the_first_flavor_that_gets_capacity() {
    let fixture = start_with_pools(RayOperatorKind::Ours, ("1", "2Gi"), ("500m", "1Gi")).await;
    let groups = [worker_group_of_cpu("small", 1, 500)];
    fixture.env.apply_object(sample_service("2.52.0", &groups)).await;
    let first = fixture.env.wait_until_serving("2.52.0").await;

    fixture.env.apply_object(sample_service("2.53.0", &groups)).await;
    let (pending, _) = fixture.env.wait_for_pending_upgrade().await;
    assert!(fixture.env.pods_of(&pending).await.is_empty());
    assert_eq!(pools_by_node_type(&fixture, &first).await, expected_pools("a", "a"));

    set_quotas(&fixture, ("1500m", "3Gi"), ("500m", "1Gi")).await;
    assert_eq!(fixture.env.wait_until_serving("2.53.0").await, pending);
    fixture.env.wait_for_only_cluster(&pending).await;
    // Either the head or the worker moved: one pod is in each pool.
    wait_for_pool_reservations(&fixture, ["500m", "500m"]).await;
    fixture.check_history().await;
}
