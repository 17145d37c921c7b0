//! Upgrades of a RayService, gated by quota.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::Value;
use sluice_api::condition;

use sluice_testkit::history::{Change, Object, Recorder};
use sluice_testkit::objects::{NAMESPACE, QUEUE, SERVICE, SERVICE_SAMPLE, cluster_name, reserved_amount};
use sluice_testkit::{TestEnv, eventually, eventually_or_err, invariants};

/// Checks that no invariant was violated at any point. Returns the history.
async fn check_invariants(recorder: &Recorder) -> Vec<Change> {
    let history = recorder.history().await;
    let breaches = invariants::violations(&history);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
    history
}

#[tokio::test]
async fn upgrade_waits_for_quota_and_completes_once_quota_is_raised() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;

    // Given a service that uses all of its queue's quota,
    let first = env.wait_until_serving("2.52.0").await;
    env.wait_for_reserved_cpu("1").await;
    let serving_pods = names(&env.pods_of(&first).await);

    // when it is upgraded, then the new cluster is suspended without pods, and the service reports
    // the shortfall;
    env.set_ray_version("2.53.0").await;
    let (pending, message) = env.wait_for_pending_upgrade().await;
    let cluster = env.ray_clusters().get(&pending).await.expect("the pending cluster");
    assert_eq!(cluster.spec.suspend, Some(true));
    assert!(env.pods_of(&pending).await.is_empty());
    assert!(
        message.contains("cpu") && message.contains("default-flavor") && message.contains("LocalQueue user-queue"),
        "{message}"
    );
    // and the active cluster is unchanged.
    assert_eq!(names(&env.pods_of(&first).await), serving_pods);
    assert_eq!(serve_selector(&env).await, first);

    // When the quota is raised, then the gate opens, traffic moves, and the old cluster is deleted
    // and its quota released.
    env.set_quota("2", "4Gi").await;
    assert_eq!(env.wait_until_serving("2.53.0").await, pending);
    assert_eq!(serve_selector(&env).await, pending);
    env.wait_for_only_cluster(&pending).await;
    env.wait_for_reserved_cpu("1").await;

    let history = check_invariants(&recorder).await;
    assert!(!ever_had_version(&history, &first, "2.53.0"), "the old cluster was never changed to the new version");
}

#[tokio::test]
async fn upgrade_waits_while_quota_is_one_unit_short() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    env.wait_until_serving("2.52.0").await;
    env.set_ray_version("2.53.0").await;
    let (pending, before) = env.wait_for_pending_upgrade().await;

    // Given one milli-CPU too little, the upgrade stays pending and reports the quota it needs.
    env.set_quota("1999m", "4Gi").await;
    let after = eventually("the message has the new quota", async || {
        let (_, message) = env.wait_for_pending_upgrade().await;
        (message != before).then_some(message)
    })
    .await;
    assert!(after.contains("1999m") && after.contains("nominalQuota is 2"), "{after}");
    let cluster = env.ray_clusters().get(&pending).await.expect("the pending cluster");
    assert_eq!(cluster.spec.suspend, Some(true));

    // The same with one byte too little.
    env.set_quota("2", "4294967295").await;
    eventually("the message has the new quota", async || {
        let (_, message) = env.wait_for_pending_upgrade().await;
        (message.contains("memory") && message.contains("nominalQuota is 4Gi")).then_some(())
    })
    .await;

    env.set_quota("2", "4Gi").await;
    assert_eq!(env.wait_until_serving("2.53.0").await, pending);
    check_invariants(&recorder).await;
}

#[tokio::test]
async fn second_spec_change_replaces_the_pending_cluster() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    let first = env.wait_until_serving("2.52.0").await;
    env.set_ray_version("2.53.0").await;
    let (replaced, _) = env.wait_for_pending_upgrade().await;

    env.set_ray_version("2.54.0").await;
    let pending = eventually("another cluster is pending", async || {
        let (pending, _) = env.wait_for_pending_upgrade().await;
        (pending != replaced).then_some(pending)
    })
    .await;
    eventually("the replaced cluster is deleted", async || {
        env.ray_clusters().get_opt(&replaced).await.expect("the cluster").is_none().then_some(())
    })
    .await;
    assert_eq!(serve_selector(&env).await, first);

    env.set_quota("2", "4Gi").await;
    assert_eq!(env.wait_until_serving("2.54.0").await, pending);
    env.wait_for_only_cluster(&pending).await;
    let history = check_invariants(&recorder).await;
    assert!(all_pod_names(&history, &replaced).is_empty(), "the replaced cluster never had a pod");
}

#[tokio::test]
async fn reverted_spec_change_deletes_the_pending_cluster() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    let first = env.wait_until_serving("2.52.0").await;
    let pods = names(&env.pods_of(&first).await);
    env.set_ray_version("2.53.0").await;
    let (pending, _) = env.wait_for_pending_upgrade().await;

    env.set_ray_version("2.52.0").await;
    env.wait_for_only_cluster(&first).await;
    eventually("no cluster is pending", async || {
        let status = env.get_service().await.status.unwrap_or_default();
        let admitted = condition::is_true(&status.conditions, "sluice.dev/Admitted");
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        let none_pending = cluster_name(status.pending_service_status.as_ref()).is_none();
        (admitted && none_pending && slices.len() == 1).then_some(())
    })
    .await;
    assert_eq!(names(&env.pods_of(&first).await), pods);
    env.wait_for_reserved_cpu("1").await;
    let history = check_invariants(&recorder).await;
    assert!(all_pod_names(&history, &pending).is_empty());
}

#[tokio::test]
async fn upgrade_to_larger_pods_requests_their_actual_size() {
    let env = TestEnv::start().await;
    let recorder = Recorder::start(env.client.clone(), None).await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    env.wait_until_serving("2.52.0").await;

    // Given workers of twice the size, the upgrade needs 1 + 1.5 CPU; with 2 it is pending.
    env.set_quota("2", "8Gi").await;
    let bigger = SERVICE_SAMPLE
        .replace("2.52.0", "2.53.0")
        .replacen("limits: {cpu: 500m, memory: 1Gi}", "limits: {cpu: 500m}", 1)
        .rsplit_once("requests: {cpu: 500m, memory: 1Gi}")
        .map(|(start, end)| format!("{start}requests: {{cpu: 1000m, memory: 1Gi}}{end}"))
        .expect("the worker's requests");
    let bigger = bigger.rsplit_once("limits: {cpu: 500m, memory: 1Gi}").expect("the worker's limits").0.to_owned();
    env.apply(&bigger).await.expect("the bigger service");
    let (_, message) = env.wait_for_pending_upgrade().await;
    assert!(message.contains("nominalQuota is 2500m"), "{message}");

    env.set_quota("2500m", "8Gi").await;
    let second = env.wait_until_serving("2.53.0").await;
    env.wait_for_only_cluster(&second).await;
    env.wait_for_reserved_cpu("1500m").await;
    check_invariants(&recorder).await;
}

fn names<K: kube::Resource>(objects: &[K]) -> Vec<String> {
    objects.iter().map(ResourceExt::name_any).collect()
}

/// Returns the cluster that the serve Service selects.
async fn serve_selector(env: &TestEnv) -> String {
    let service = env.services().get("fruit-serve-svc").await.expect("the serve Service");
    let selector = service.spec.and_then(|spec| spec.selector).unwrap_or_default();
    selector.get("ray.io/cluster").cloned().unwrap_or_default()
}

/// Returns the names of all pods that a cluster had in a history.
pub(crate) fn all_pod_names(history: &[Change], cluster: &str) -> Vec<String> {
    let pods = history.iter().filter_map(|change| match &change.object {
        Object::Pod(pod) if pod.labels().get("ray.io/cluster").is_some_and(|name| name == cluster) => {
            Some(pod.name_any())
        }
        _ => None,
    });
    pods.collect()
}

/// Reports whether a cluster had this Ray version at any point of a history.
fn ever_had_version(history: &[Change], name: &str, version: &str) -> bool {
    history.iter().any(|change| match &change.object {
        Object::RayCluster(cluster) => {
            cluster.name_any() == name && cluster.spec.ray_version.as_deref() == Some(version)
        }
        _ => false,
    })
}

#[tokio::test]
async fn queue_status_shows_reserved_quota() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    env.wait_until_serving("2.52.0").await;
    env.wait_for_reserved_cpu("1").await;
    let queue = env.cluster_queues().get(QUEUE).await.expect("the queue");
    let status = queue.status.clone().unwrap_or_default();
    assert_eq!((status.pending_workloads, status.reserving_workloads, status.admitted_workloads), (0, 1, 1));
    assert_eq!(reserved_amount(&queue, "memory"), "2Gi");
}

#[tokio::test]
async fn service_without_queue_name_upgrades_without_quota() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    let free = SERVICE_SAMPLE.replace("kueue.x-k8s.io/queue-name: user-queue", "team: a");
    env.apply(&free).await.expect("the service");
    env.wait_until_serving("2.52.0").await;

    env.set_ray_version("2.53.0").await;
    let second = env.wait_until_serving("2.53.0").await;
    env.wait_for_only_cluster(&second).await;
    assert!(env.workloads().list(&ListParams::default()).await.expect("the slices").items.is_empty());
}

/// Returns the row that `kubectl get` prints for an object, by column, as rendered by the API
/// server.
async fn printed_row(env: &TestEnv, plural: &str, name: &str) -> BTreeMap<String, String> {
    let path = format!("/apis/ray.io/v1/namespaces/{NAMESPACE}/{plural}/{name}");
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let request = http::Request::get(path).header("Accept", accept).body(Vec::new()).expect("a request");
    let table: Value = env.client.request(request).await.expect("a table");
    let names = table["columnDefinitions"].as_array().expect("columns").iter().map(|column| &column["name"]);
    let cells = table["rows"][0]["cells"].as_array().expect("cells");
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    names.zip(cells).map(|(name, cell)| (text(name), text(cell))).collect()
}

#[tokio::test]
async fn kubectl_get_columns_show_the_state_of_an_upgrade() {
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    let shows = async |status: &str, upgrading: &str, quota: &str| {
        let wanted = [("service status", status), ("upgrading", upgrading), ("quota", quota)];
        eventually_or_err("kubectl get shows the state of the service", async || {
            let line = printed_row(&env, "rayservices", SERVICE).await;
            let shows = |(column, value): &(&str, &str)| line.get(*column).is_some_and(|cell| cell == value);
            if wanted.iter().all(shows) { Ok(()) } else { Err(format!("{line:?}")) }
        })
        .await;
    };

    let first = env.wait_until_serving("2.52.0").await;
    shows("Running", "False", "Admitted").await;
    assert_eq!(printed_row(&env, "rayclusters", &first).await["status"], "ready");
    env.set_ray_version("2.53.0").await;
    // Its ClusterQueue does not have that quota yet.
    shows("Running", "True", "ExceedsMaxQuota").await;
    env.set_quota("2", "4Gi").await;
    env.wait_until_serving("2.53.0").await;
    shows("Running", "False", "Admitted").await;
}
