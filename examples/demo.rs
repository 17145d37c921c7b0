//! The scenario of POC-TESTING.md on a real control plane: a RayService that fills its queue is upgraded, the upgrade waits
//! for quota, quota is raised, and the upgrade goes through.
//!
//! `make demo` runs it. It ends with an error if anything came out differently, or if any invariant of the design was
//! broken at any moment. With `KEEP=1` it leaves everything running.

use std::path::PathBuf;
use std::process::ExitCode;

use kube::api::ListParams;
use tokio::sync::mpsc;

use sluice_testkit::history::{Change, Recorder};
use sluice_testkit::timeline::{HELD_BACK, Teller};
use sluice_testkit::{TestEnv, eventually, invariants};

#[tokio::main]
async fn main() -> ExitCode {
    let keep = std::env::var("KEEP").is_ok_and(|keep| !keep.is_empty() && keep != "0");
    if keep && kept_dir().exists() {
        println!("A demo was left running, or was ended halfway, in {}. To end it:", kept_dir().display());
        println!("  make demo-stop");
        return ExitCode::FAILURE;
    }
    title(
        "Starting a control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, four pretended nodes",
    )
    .await;
    let env = if keep { TestEnv::start_in(kept_dir(), true).await } else { TestEnv::start().await };
    let (live, changes) = mpsc::unbounded_channel();
    let recorder = Recorder::start(env.client.clone(), Some(live)).await;
    let printer = tokio::spawn(print(changes));
    let manager = env.manager().await;

    scenario(&env).await;

    let history = recorder.history().await;
    let breaches = invariants::breaches(&history);
    title(&format!(
        "Checked the invariants I1 (quota), I2 (gate) and I3 (pods) after each of {} changes",
        history.len()
    ))
    .await;
    printer.abort();
    for breach in &breaches {
        println!("BROKEN  {breach}");
    }
    if keep {
        println!("\nEverything is still running. To look around:\n  export KUBECONFIG={}", env.kubeconfig.display());
        println!("  kubectl get rayservices,rayclusters,workloads,clusterqueues,pods");
        println!("To end it:\n  make demo-stop");
        manager.detach();
    }
    if breaches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Each step waits for what POC-TESTING.md says that one sees, and panics if that doesn't come.
async fn scenario(env: &TestEnv) {
    title("1. A queue of 1 CPU and 2 GiB, and a RayService that fills it").await;
    env.apply_samples().await;
    let first = env.serves_from("2.52.0").await;
    env.reserves_cpu("1").await;

    title("2. An upgrade: its cluster would need as much again, so it waits, and what serves is left alone").await;
    env.set_ray_version("2.53.0").await;
    let (pending, _) = env.waits_for_quota().await;
    let cluster = env.ray_clusters().get(&pending).await.expect("the pending cluster");
    assert_eq!(cluster.spec.suspend, Some(true), "the pending cluster is suspended");
    assert!(env.pods_of(&pending).await.is_empty(), "the pending cluster has no pod");
    assert_eq!(env.pods_of(&first).await.len(), 2, "the serving cluster has its pods");

    title("3. Quota is raised to 2 CPU and 4 GiB: the gate opens, and the upgrade goes through").await;
    env.set_quota("2", "4Gi").await;
    let second = env.serves_from("2.53.0").await;
    assert_eq!(second, pending, "the cluster that waited is the one that serves");

    title("4. The old cluster goes after its delay, and its quota is released").await;
    env.only_cluster(&second).await;
    env.reserves_cpu("1").await;
    eventually("one slice is left", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        (slices.len() == 1).then_some(())
    })
    .await;
}

/// Prints a line for each change that a person would want to know of.
async fn print(mut changes: mpsc::UnboundedReceiver<Change>) {
    let mut teller = Teller::new();
    let mut tick = tokio::time::interval(HELD_BACK / 5);
    loop {
        tokio::select! {
            change = changes.recv() => match change {
                Some(change) => teller.hears(change),
                None => return,
            },
            _ = tick.tick() => {}
        }
        teller.tells().iter().for_each(|line| println!("{line}"));
    }
}

/// Says what comes next, once everything before it has been told.
async fn title(text: &str) {
    tokio::time::sleep(2 * HELD_BACK).await;
    println!("\n{text}");
}

fn kept_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".cache/demo")
}
