//! Sluice's Ray operator runs the clusters that the real Kueue admits; and Sluice replaces Kueue.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use sluice_api::condition;
use sluice_api::kueue::Workload;

use crate::rayclusters::{CLUSTER, cluster_manifest, wait_until_ready};
use sluice_testkit::objects::{QUEUE, QUEUE_SAMPLE, SERVICE_SAMPLE};
use sluice_testkit::real_kueue::{RealKueue, start_control_plane};
use sluice_testkit::{Manager, TestEnv, eventually, eventually_or_err};

/// Annotation that only Workloads of Sluice have.
const SLICE_ANNOTATION: &str = "sluice.dev/slice";

/// A control plane where Kueue manages quota and Sluice runs the clusters.
struct Fixture {
    env: TestEnv,
    kueue: RealKueue,
    operator: Manager,
}

impl Fixture {
    async fn new() -> Self {
        let env = start_control_plane().await;
        let kueue = RealKueue::start(&env).await;
        let operator = env.manager_with(&["--queue-manager=false"]).await;
        env.apply(QUEUE_SAMPLE).await.expect("the queue");
        Self { env, kueue, operator }
    }

    /// Returns the only Workload, once there is one.
    async fn workload(&self) -> Workload {
        eventually("there is one Workload", async || {
            let mut all = self.env.workloads().list(&ListParams::default()).await.expect("the Workloads").items;
            if all.len() == 1 { all.pop() } else { None }
        })
        .await
    }

    /// Sets `spec.active` of the only Workload.
    async fn set_active(&self, active: bool) {
        let patch = Patch::Merge(json!({"spec": {"active": active}}));
        let name = self.workload().await.name_any();
        self.env.workloads().patch(&name, &PatchParams::default(), &patch).await.expect("the Workload is patched");
    }

    async fn wait_for_pods(&self, count: usize) {
        eventually_or_err(&format!("{CLUSTER} has {count} pods"), async || {
            let actual = self.env.pods_of(CLUSTER).await.len();
            if actual == count { Ok(()) } else { Err(format!("it has {actual}")) }
        })
        .await;
    }
}

#[tokio::test]
async fn cluster_runs_while_kueue_admits_it() {
    // Given a cluster in a queue without quota, it has no pods,
    let fixture = Fixture::new().await;
    fixture.env.set_quota("0", "0").await;
    fixture.env.apply(&cluster_manifest()).await.expect("the cluster");
    let waiting = fixture.workload().await;
    eventually("the cluster is suspended", async || {
        let status = fixture.env.ray_clusters().get(CLUSTER).await.expect("the cluster").status?;
        condition::is_true(&status.conditions, "RayClusterSuspended").then_some(())
    })
    .await;
    assert!(fixture.env.pods_of(CLUSTER).await.is_empty());

    // and when there is quota, then it runs;
    fixture.env.set_quota("1", "2Gi").await;
    fixture.wait_for_pods(2).await;
    fixture.env.wait_for_reserved_cpu_in(QUEUE, "1").await;

    // and when Kueue evicts it, then it stops and its quota is free;
    fixture.set_active(false).await;
    fixture.wait_for_pods(0).await;
    fixture.env.wait_for_reserved_cpu_in(QUEUE, "0").await;

    // and it runs again once it is admitted again, with the same Workload.
    fixture.set_active(true).await;
    fixture.wait_for_pods(2).await;
    assert_eq!(fixture.workload().await.uid(), waiting.uid());
}

/// The templates in a Workload have the defaults of Kueue's CRD. If those of a RayService lacked
/// them, Kueue would take them for a change, delete the Workload and create it again, without end.
#[tokio::test]
async fn service_that_waits_keeps_its_workload_and_serves_once_kueue_admits_it() {
    // Given a service with container ports without a protocol, in a queue without quota,
    let fixture = Fixture::new().await;
    fixture.env.set_quota("0", "0").await;
    fixture.env.apply(SERVICE_SAMPLE).await.expect("the service");
    let waiting = fixture.workload().await;
    eventually("Kueue reports that the Workload waits", async || {
        let status = fixture.workload().await.status.unwrap_or_default();
        condition::get(&status.conditions, "QuotaReserved").map(drop)
    })
    .await;
    assert!(fixture.env.pods().list(&ListParams::default()).await.expect("the pods").items.is_empty());

    // when there is quota, then it serves, and Kueue has kept its Workload.
    fixture.env.set_quota("1", "2Gi").await;
    fixture.env.wait_until_serving("2.52.0").await;
    assert_eq!(fixture.workload().await.uid(), waiting.uid());
    fixture.env.wait_for_reserved_cpu_in(QUEUE, "1").await;
}

/// Follows "Replacing Kueue" in docs/guides/adopt-from-kuberay.md.
#[tokio::test]
async fn clusters_run_on_when_sluice_replaces_kueue() {
    // Given a Job, a cluster and a service that run on quota of Kueue,
    let Fixture { env, kueue, operator } = Fixture::new().await;
    env.set_quota("4", "8Gi").await;
    let container = json!({"name": "work", "image": "work", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}});
    let job = json!({
        "metadata": {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": "user-queue"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
    });
    env.jobs().create(&PostParams::default(), &serde_json::from_value(job).expect("a Job")).await.expect("the Job");
    env.apply(&cluster_manifest()).await.expect("the cluster");
    env.apply(SERVICE_SAMPLE).await.expect("the service");
    env.wait_until_serving("2.52.0").await;
    wait_until_ready(&env).await;
    eventually("the Job runs", async || (env.jobs().get("train").await.ok()?.status?.ready? == 1).then_some(())).await;
    let before = cluster_pods(&env).await;
    assert_eq!(before.len(), 4, "{before:?}");

    // when Kueue is stopped and uninstalled, and Sluice is installed and started,
    operator.kill().await;
    kueue.uninstall(&env).await;
    env.apply_kustomization("crd").await;
    env.apply_kustomization("policy").await;
    let _manager = env.manager().await;

    // then a slice of Sluice takes the place of each Workload, in which the pods of the cluster and of
    // the service run on; and the Job, whose pods have no scheduling gate, starts again.
    eventually_or_err("three slices hold quota, and there is no other Workload", async || {
        let workloads = env.workloads().list(&ListParams::default()).await.expect("the Workloads").items;
        let is_slice = |workload: &&Workload| {
            workload.annotations().contains_key(SLICE_ANNOTATION)
                && condition::is_true(workload.conditions(), "Admitted")
        };
        let slices = workloads.iter().filter(is_slice).count();
        if (slices, workloads.len()) == (3, 3) { Ok(()) } else { Err(format!("{slices} of {}", workloads.len())) }
    })
    .await;
    eventually("the Job runs again", async || (env.jobs().get("train").await.ok()?.status?.ready? == 1).then_some(()))
        .await;
    assert_eq!(cluster_pods(&env).await, before);
    env.wait_for_reserved_cpu_in(QUEUE, "3").await;
}

/// Returns the names and uids of the pods of all clusters that are not being deleted.
async fn cluster_pods(env: &TestEnv) -> BTreeSet<String> {
    let of_clusters = ListParams::default().labels("ray.io/cluster");
    let pods = env.pods().list(&of_clusters).await.expect("the pods").items;
    let live = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    live.map(|pod| format!("{} {:?}", pod.name_any(), pod.uid())).collect()
}
