//! Sluice's operator adopts the objects of KubeRay without stopping or recreating any.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use sluice_api::condition;

use crate::rayclusters::{CLUSTER, cluster_manifest};
use sluice_testkit::history::{Object, Recorder};
use sluice_testkit::objects::{QUEUE_SAMPLE, SERVICE, SERVICE_SAMPLE, cluster_name};
use sluice_testkit::real_kuberay::{RealKubeRay, start_control_plane};
use sluice_testkit::{TestEnv, eventually, eventually_or_err};

/// Returns a standalone RayCluster with an autoscaler, an Ingress and a multi-host group.
fn cluster() -> String {
    let hosts = "    - groupName: hosts\n      replicas: 2\n      minReplicas: 0\n      maxReplicas: 2\n      numOfHosts: 2\n      \
                 rayStartParams: {}\n      template:\n        spec:\n          containers:\n          - name: ray-worker\n            \
                 image: rayproject/ray:2.52.0\n";
    let hosts: String = hosts.lines().map(|line| format!("{}\n", line.strip_prefix("  ").unwrap_or(line))).collect();
    cluster_manifest()
        .replace("spec:\n  rayVersion", "spec:\n  enableInTreeAutoscaling: true\n  rayVersion")
        .replace("headGroupSpec:\n", "headGroupSpec:\n    enableIngress: true\n")
        + &hosts
}

/// Returns the uids of all objects that operators create, by kind and name.
async fn created_objects(env: &TestEnv) -> BTreeMap<String, String> {
    let all = ListParams::default();
    let mut made = BTreeMap::new();
    let mut note = |kind: &str, name: String, uid: Option<String>| {
        made.insert(format!("{kind} {name}"), uid.expect("a uid"));
    };
    for pod in env.pods().list(&all).await.expect("the pods") {
        note("Pod", pod.name_any(), pod.uid());
    }
    for service in env.services().list(&all).await.expect("the Services") {
        note("Service", service.name_any(), service.uid());
    }
    for cluster in env.ray_clusters().list(&all).await.expect("the clusters") {
        note("RayCluster", cluster.name_any(), cluster.uid());
    }
    made
}

/// Runs KubeRay until a service and a cluster are ready, then stops it. Returns the active cluster
/// of the service and the created objects.
async fn run_with_kuberay(env: &TestEnv) -> (String, BTreeMap<String, String>) {
    let _kuberay = RealKubeRay::start(env);
    env.apply(SERVICE_SAMPLE).await.expect("the service");
    env.apply(&cluster()).await.expect("the cluster");
    let serving = eventually("KubeRay's service is ready", async || {
        let status = env.get_service().await.status.unwrap_or_default();
        let name = cluster_name(status.active_service_status.as_ref())?;
        condition::is_true(&status.conditions, "Ready").then_some(name)
    })
    .await;
    eventually_or_err("KubeRay's cluster runs", async || {
        let pods = env.pods_of(CLUSTER).await;
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        if ready == 6 { Ok(()) } else { Err(format!("{ready} of {} pods are ready", pods.len())) }
    })
    .await;
    (serving, created_objects(env).await)
}

fn is_ready(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

#[tokio::test]
async fn b17_objects_created_by_kuberay_are_admitted_and_keep_running() {
    let env = start_control_plane().await;
    let (serving, before) = run_with_kuberay(&env).await;

    // When Sluice replaces KubeRay, with quota for everything that runs,
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("9", "18Gi").await;
    let _manager = env.manager().await;

    // then everything is admitted and managed,
    for (kind, name) in [("RayService", SERVICE), ("RayCluster", CLUSTER)] {
        eventually_or_err(&format!("{kind} {name} is admitted"), async || {
            let conditions = match kind {
                "RayService" => env.get_service().await.status.unwrap_or_default().conditions,
                _ => env.ray_clusters().get(CLUSTER).await.expect("the cluster").status.unwrap_or_default().conditions,
            };
            let admitted = condition::is_true(&conditions, "sluice.dev/Admitted");
            if admitted { Ok(()) } else { Err(format!("{conditions:?}")) }
        })
        .await;
    }
    eventually("the service is ready with the same cluster", async || {
        let status = env.get_service().await.status.unwrap_or_default();
        let same = cluster_name(status.active_service_status.as_ref()) == Some(serving.clone());
        (same && condition::is_true(&status.conditions, "Ready")).then_some(())
    })
    .await;
    let config = SERVICE_SAMPLE.replace("num_replicas: 1", "num_replicas: 2");
    env.apply(&config).await.expect("another Serve configuration");
    eventually("it gets its Serve configuration from Sluice", async || {
        let cluster = env.ray_clusters().get(&serving).await.expect("the cluster");
        let hash = cluster.annotations().get("sluice.dev/serve-config-hash").cloned();
        hash.map(drop)
    })
    .await;

    // and nothing was stopped, recreated or added.
    let after = created_objects(&env).await;
    let gone: Vec<_> = before.iter().filter(|(name, uid)| after.get(*name) != Some(uid)).collect();
    let new: Vec<_> = after.iter().filter(|(name, _)| !before.contains_key(*name)).collect();
    assert!(gone.is_empty() && new.is_empty(), "deleted: {gone:?}, new: {new:?}");

    // It can be upgraded and deleted as if Sluice had created it.
    env.set_ray_version("2.53.0").await;
    env.wait_until_serving("2.53.0").await;
    eventually("KubeRay's cluster is deleted", async || {
        env.ray_clusters().get_opt(&serving).await.expect("an answer").is_none().then_some(())
    })
    .await;
    env.ray_clusters().delete(CLUSTER, &DeleteParams::default()).await.expect("the cluster is deleted");
    env.delete_service().await;
    env.wait_until_empty().await;
}

#[tokio::test]
async fn upgrade_started_by_kuberay_is_completed() {
    // Given a service that KubeRay is just upgrading,
    let env = start_control_plane().await;
    let kuberay = RealKubeRay::start(&env);
    env.apply(SERVICE_SAMPLE).await.expect("the service");
    let first = env.wait_until_serving("2.52.0").await;
    env.set_ray_version("2.53.0").await;
    let pending = eventually("KubeRay has created the pending cluster", async || {
        let clusters = env.ray_clusters().list(&ListParams::default()).await.expect("the clusters").items;
        let next = clusters.iter().map(ResourceExt::name_any).find(|name| *name != first)?;
        (!env.pods_of(&next).await.is_empty()).then_some(next)
    })
    .await;
    drop(kuberay);

    // when Sluice replaces it, then the pending cluster becomes active, and no third one is
    // created.
    let recorder = Recorder::start(env.client.clone(), None).await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("2", "4Gi").await;
    let _manager = env.manager().await;
    assert_eq!(env.wait_until_serving("2.53.0").await, pending);
    env.wait_for_only_cluster(&pending).await;
    env.wait_for_reserved_cpu("1").await;
    let clusters = recorder.history().await.into_iter().filter_map(|change| match change.object {
        Object::RayCluster(cluster) => Some(cluster.name_any()),
        _ => None,
    });
    assert_eq!(clusters.collect::<BTreeSet<_>>(), BTreeSet::from([first, pending]));
}
