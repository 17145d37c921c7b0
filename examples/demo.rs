//! The scenario of POC-TESTING.md on a real control plane: a RayService that uses all of its
//! queue's quota is upgraded, the upgrade waits for quota, the quota is raised, and the upgrade
//! completes.
//!
//! `make demo` runs it. It fails if a step has another outcome or an invariant of the design was violated. With
//! `KEEP=1` it leaves everything running.

use std::path::PathBuf;
use std::process::ExitCode;

use kube::api::ListParams;
use tokio::sync::mpsc;

use sluice_testkit::history::{Change, Recorder};
use sluice_testkit::timeline::{REORDER_WINDOW, TimelinePrinter};
use sluice_testkit::{TestEnv, TestEnvOptions, eventually, invariants};

#[tokio::main]
async fn main() -> ExitCode {
    let keep = std::env::var("KEEP").is_ok_and(|keep| !keep.is_empty() && keep != "0");
    if keep && demo_dir().exists() {
        println!("A demo is still running, or was interrupted, in {}. To stop it:", demo_dir().display());
        println!("  make demo-stop");
        return ExitCode::FAILURE;
    }
    print_title(
        "Starting a control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, four fake nodes",
    )
    .await;
    let kept_in = keep.then(demo_dir);
    let env = TestEnv::start_with(TestEnvOptions { kept_in, ..TestEnvOptions::default() }).await;
    let (live, changes) = mpsc::unbounded_channel();
    let recorder = Recorder::start(env.client.clone(), Some(live)).await;
    let print_task = tokio::spawn(print_changes(changes));
    let manager = env.manager().await;

    scenario(&env).await;

    let history = recorder.history().await;
    let breaches = invariants::violations(&history);
    print_title(&format!(
        "Checked the invariants I1 (quota), I2 (gate) and I3 (pods) after each of {} changes",
        history.len()
    ))
    .await;
    print_task.abort();
    for breach in &breaches {
        println!("VIOLATION  {breach}");
    }
    if keep {
        println!("\nEverything is still running. To look around:\n  export KUBECONFIG={}", env.kubeconfig.display());
        println!("  kubectl get rayservices,rayclusters,workloads,clusterqueues,pods");
        println!("To stop it:\n  make demo-stop");
        manager.detach();
    }
    if breaches.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the steps of POC-TESTING.md. Each waits for the documented outcome, and panics without it.
async fn scenario(env: &TestEnv) {
    print_title("1. A queue of 1 CPU and 2 GiB, and a RayService that uses all of it").await;
    env.apply_samples().await;
    let first = env.wait_until_serving("2.52.0").await;
    env.wait_for_reserved_cpu("1").await;

    print_title(
        "2. An upgrade: its cluster needs the same again, so it is pending, and the active cluster is unchanged",
    )
    .await;
    env.set_ray_version("2.53.0").await;
    let (pending, _) = env.wait_for_pending_upgrade().await;
    let cluster = env.ray_clusters().get(&pending).await.expect("the pending cluster");
    assert_eq!(cluster.spec.suspend, Some(true), "the pending cluster is suspended");
    assert!(env.pods_of(&pending).await.is_empty(), "the pending cluster has no pod");
    assert_eq!(env.pods_of(&first).await.len(), 2, "the active cluster has its pods");

    print_title("3. Quota is raised to 2 CPU and 4 GiB: the gate opens, and the upgrade completes").await;
    env.set_quota("2", "4Gi").await;
    let second = env.wait_until_serving("2.53.0").await;
    assert_eq!(second, pending, "the pending cluster becomes active");

    print_title("4. The old cluster is deleted after its delay, and its quota is released").await;
    env.wait_for_only_cluster(&second).await;
    env.wait_for_reserved_cpu("1").await;
    eventually("one slice is left", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        (slices.len() == 1).then_some(())
    })
    .await;
}

/// Prints a line for each change of interest.
async fn print_changes(mut changes: mpsc::UnboundedReceiver<Change>) {
    let mut printer = TimelinePrinter::new();
    let mut tick = tokio::time::interval(REORDER_WINDOW / 5);
    loop {
        tokio::select! {
            change = changes.recv() => match change {
                Some(change) => printer.push(change),
                None => return,
            },
            _ = tick.tick() => {}
        }
        for line in printer.take_lines() {
            println!("{line}");
        }
    }
}

/// Prints the title of the next step, after all changes before it were printed.
async fn print_title(text: &str) {
    tokio::time::sleep(2 * REORDER_WINDOW).await;
    println!("\n{text}");
}

fn demo_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(".cache/demo")
}
