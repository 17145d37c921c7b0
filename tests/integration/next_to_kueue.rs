//! Sluice's Ray operator runs the clusters that the real Kueue admits.

use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use sluice_api::condition;
use sluice_api::kueue::Workload;

use crate::rayclusters::{CLUSTER, cluster_manifest};
use sluice_testkit::objects::{QUEUE, QUEUE_SAMPLE, SERVICE_SAMPLE, reserved_amount};
use sluice_testkit::real_kueue::{RealKueue, start_control_plane};
use sluice_testkit::{Manager, TestEnv, eventually, eventually_or_err};

/// A control plane where Kueue manages quota and Sluice runs the clusters.
struct Fixture {
    env: TestEnv,
    _kueue: RealKueue,
    _operator: Manager,
}

impl Fixture {
    async fn new() -> Self {
        let env = start_control_plane().await;
        let kueue = RealKueue::start(&env).await;
        let operator = env.manager_with(&["--queue-manager=false"]).await;
        env.apply(QUEUE_SAMPLE).await.expect("the queue");
        Self { env, _kueue: kueue, _operator: operator }
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

    async fn wait_for_reserved_cpu(&self, amount: &str) {
        eventually_or_err(&format!("{amount} CPU is reserved"), async || {
            let actual = reserved_amount(&self.env.cluster_queues().get(QUEUE).await.expect("the queue"), "cpu");
            if actual == amount { Ok(()) } else { Err(format!("{actual} is")) }
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
    fixture.wait_for_reserved_cpu("1").await;

    // and when Kueue evicts it, then it stops and its quota is free;
    fixture.set_active(false).await;
    fixture.wait_for_pods(0).await;
    fixture.wait_for_reserved_cpu("0").await;

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
    fixture.wait_for_reserved_cpu("1").await;
}
