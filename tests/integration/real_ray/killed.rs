//! Sluice or the head of the active cluster is killed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;

use super::in_place::{PRICE, costs, priced};
use super::{RealRayFixture, SAMPLE_SIZE, START_TIMEOUT, print_summary};
use sluice_testkit::load::{LoadGenerator, assert_all_answered};
use sluice_testkit::{TestEnv, eventually_or_err, poll_until};

pub(super) async fn an_upgrade_goes_on_where_a_killed_manager_left_it(fixture: &mut RealRayFixture) {
    // Given an upgrade in progress, under load,
    let load = fixture.start_load().await;
    fixture.apply(&priced("3")).await;
    let second = fixture.env.wait_for_pending_cluster().await;
    poll_until(START_TIMEOUT, "the head of the next cluster starts", async || {
        fixture.env.pods_of(&second).await.first().map(drop).ok_or_else(String::new)
    })
    .await;

    // when Sluice is killed, and again as soon as the new version answers, then restarted managers
    // complete it,
    fixture.kill_manager().await;
    fixture.wait_for_version("3", &load).await;
    fixture.kill_manager().await;
    fixture.env.wait_for_only_cluster(&second).await;

    // and no request fails.
    assert_eq!(load.count_next(SAMPLE_SIZE).await, BTreeMap::from([("3".to_owned(), SAMPLE_SIZE)]));
    let requests = load.stop().await;
    print_summary("Sluice killed twice in an upgrade", &requests);
    assert_all_answered(&requests);
}

/// Reports whether a pod is ready.
pub(super) fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns the pod of this node type in a cluster that has one of each.
async fn pod(env: &TestEnv, cluster: &str, kind: &str) -> Option<Pod> {
    let pods = env.pods_of(cluster).await;
    pods.into_iter().find(|pod| pod.labels().get("ray.io/node-type").is_some_and(|node_type| node_type == kind))
}

/// Returns the number of container restarts of a pod.
fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    statuses.map(|status| status.restart_count).sum()
}

/// Without GCS fault tolerance, a service only recovers by itself, on the same cluster and with the
/// same configuration: KubeRay's `TestRedeployRayServe` expects the applications to be redeployed
/// on another head, and by
/// <https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/kuberay-gcs-ft.html> the cluster
/// loses its state, and workers stop because the new head does not know them. Requests fail until
/// then.
pub(super) async fn a_service_whose_head_is_killed_comes_back_by_itself(fixture: &RealRayFixture) {
    // Given a service with one worker, configured in place,
    let env = &fixture.env;
    let load = fixture.start_load().await;
    load.count_next(SAMPLE_SIZE).await;
    let cluster = env.wait_until_serving("2.52.0").await;
    let head = pod(env, &cluster, "head").await.expect("a head");
    let worker = pod(env, &cluster, "worker").await.expect("a worker");

    // when its head is killed, then it is replaced and the worker joins the new one,
    env.pods().delete(&head.name_any(), &DeleteParams::default().grace_period(0)).await.expect("the head is killed");
    poll_until(START_TIMEOUT, "there is another head, and the worker was ended", async || {
        let (head_now, worker_now) = (pod(env, &cluster, "head").await, pod(env, &cluster, "worker").await);
        let is_back = head_now.is_some_and(|pod| pod.uid() != head.uid() && is_ready(&pod));
        let was_ended = worker_now.is_some_and(|pod| pod.uid() != worker.uid() || restarts(&pod) > restarts(&worker));
        if is_back && was_ended { Ok(()) } else { Err(format!("but {is_back} and {was_ended}")) }
    })
    .await;

    // and the same cluster answers with the same configuration.
    costs(PRICE).await;
    env.wait_for_only_cluster(&cluster).await;
    assert_eq!(env.wait_until_serving("2.52.0").await, cluster);
    answers_all(fixture).await;
    print_summary("Head killed, without fault tolerance", &load.stop().await);
}

/// Waits until the next requests are all answered.
async fn answers_all(fixture: &RealRayFixture) {
    let load: LoadGenerator = fixture.start_load().await;
    eventually_or_err("all requests are answered again", async || {
        let requests = load.requests();
        let last = requests.iter().rev().take(SAMPLE_SIZE);
        let answered = last.filter(|request| request.outcome.is_ok()).count();
        if answered == SAMPLE_SIZE { Ok(()) } else { Err(format!("but {answered} of {SAMPLE_SIZE}")) }
    })
    .await;
}
