//! The manager is killed at the worst moment, and a fresh one comes to the same end (I7).

use std::collections::BTreeSet;

use kube::api::ListParams;
use sluice::api::condition;
use tokio::sync::mpsc;

use crate::support::history::{Change, Object, Recorder};
use crate::support::{TestEnv, eventually, invariants};

/// A moment, and how it shows.
type Phase = (&'static str, fn(&Change) -> bool);

/// The moments at which the manager is killed: just after the first change that shows the phase.
const PHASES: [Phase; 8] = [
    ("the first cluster was created", |change| matches!(&change.object, Object::RayCluster(_))),
    ("the first slice was created", |change| matches!(&change.object, Object::Workload(_))),
    ("a slice was admitted", |change| match &change.object {
        Object::Workload(slice) => {
            slice.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Admitted"))
        }
        _ => false,
    }),
    (
        "a gate was opened",
        |change| matches!(&change.object, Object::RayCluster(cluster) if cluster.spec.suspend == Some(false)),
    ),
    ("the first pod was created", |change| matches!(&change.object, Object::Pod(_))),
    ("the upgrade's slice was created", |change| match &change.object {
        Object::Workload(slice) => {
            slice.metadata.annotations.iter().flatten().any(|(key, _)| key.ends_with("workload-slice-replacement-for"))
        }
        _ => false,
    }),
    ("the first slice was finished", |change| match &change.object {
        Object::Workload(slice) => {
            slice.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Finished"))
        }
        _ => false,
    }),
    (
        "a cluster was being deleted",
        |change| matches!(&change.object, Object::RayCluster(cluster) if cluster.metadata.deletion_timestamp.is_some()),
    ),
];

#[tokio::test]
async fn a_manager_killed_in_any_phase_of_an_upgrade_changes_nothing_in_the_end() {
    let env = TestEnv::start().await;
    let (live, mut changes) = mpsc::unbounded_channel();
    let recorder = Recorder::start(env.client.clone(), Some(live)).await;
    let log = env.dir.join("decisions.jsonl");
    let flags = [&*format!("--decision-log={}", log.display())];
    let mut manager = env.manager_with(&flags).await;
    env.apply_samples().await;

    let mut killed = BTreeSet::new();
    let scenario = async {
        env.serves_from("2.52.0").await;
        env.set_ray_version("2.53.0").await;
        env.waits_for_quota().await;
        env.set_quota("2", "4Gi").await;
        let second = env.serves_from("2.53.0").await;
        env.only_cluster(&second).await;
        env.reserves_cpu("1").await;
    };
    tokio::pin!(scenario);
    loop {
        tokio::select! {
            () = &mut scenario => break,
            change = changes.recv() => {
                let change = change.expect("the recorder goes on");
                for (phase, is_reached) in PHASES {
                    if is_reached(&change) && killed.insert(phase) {
                        manager.kill().await;
                        manager = env.manager_with(&flags).await;
                    }
                }
            }
        }
    }

    assert_eq!(killed.len(), PHASES.len(), "the manager was killed in every phase: {killed:?}");
    eventually("one slice is left", async || {
        let slices = env.workloads().list(&ListParams::default()).await.expect("the slices").items;
        (slices.len() == 1).then_some(())
    })
    .await;
    let breaches = invariants::breaches(&recorder.history().await);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));

    assert!(manager.terminate().await.success());
    let replayed = env.replay(&log).await;
    assert!(replayed["sections"] > 1 && replayed["decisions"] > 0, "{replayed:?}");
}
