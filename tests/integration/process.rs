//! The manager as a process: probes, graceful shutdown and leader election.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use sluice_testkit::env::free_port;
use sluice_testkit::{TestEnv, eventually};

/// Returns the raw response to a GET request, or `None` if there is none.
async fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

#[tokio::test]
async fn manager_serves_probes_and_metrics_and_stops_on_sigterm() {
    let env = TestEnv::start().await;
    let (health, metrics) = (free_port(), free_port());
    let manager = env
        .manager_with(&[
            &format!("--health-probe-bind-address=127.0.0.1:{health}"),
            &format!("--metrics-bind-address=127.0.0.1:{metrics}"),
        ])
        .await;
    env.apply_samples().await;
    env.wait_until_serving("2.52.0").await;

    for path in ["/healthz", "/readyz"] {
        let answer = get(health, path).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    eventually("the metrics show the admitted workload", async || {
        let exposition = get(metrics, "/metrics").await?;
        exposition.contains("kueue_admitted_active_workloads{cluster_queue=\"team-a\"} 1").then_some(())
    })
    .await;

    let status = manager.terminate().await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn second_replica_takes_over_after_the_leader_dies() {
    let env = TestEnv::start().await;
    let flags = ["--leader-elect", "--leader-election-namespace=sluice-system"];
    let first = env.manager_with(&flags).await;
    let leases: Api<Lease> = Api::namespaced(env.client.clone(), "sluice-system");
    let holder = async || {
        let lease = leases.get_opt("sluice-leader").await.expect("the lease")?;
        lease.spec?.holder_identity.filter(|holder| !holder.is_empty())
    };
    let leader = eventually("the first replica leads", &holder).await;
    let health = free_port();
    let second =
        env.manager_with(&[flags[0], flags[1], &format!("--health-probe-bind-address=127.0.0.1:{health}")]).await;
    eventually("the second replica waits", async || {
        let answer = get(health, "/readyz").await?;
        answer.starts_with("HTTP/1.1 503").then_some(())
    })
    .await;

    first.kill().await;
    eventually("the second replica leads", async || (holder().await? != leader).then_some(())).await;
    env.apply_samples().await;
    env.wait_until_serving("2.52.0").await;
    assert!(
        tokio::time::timeout(Duration::from_secs(60), second.terminate()).await.is_ok_and(|status| status.success())
    );
}
