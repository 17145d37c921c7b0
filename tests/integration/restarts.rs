//! A manager killed at any phase is replaced by one that converges to the same state (I7).

use std::collections::BTreeSet;

use sluice_api::condition;
use tokio::sync::mpsc;

use sluice_testkit::history::{Change, Object, Recorder};
use sluice_testkit::{Manager, TestEnv, invariants};

/// A named phase, and the predicate that recognizes the change that starts it.
pub(crate) type KillPhase = (&'static str, fn(&Change) -> bool);

/// Runs a scenario with a manager that is killed and restarted right after the first change of each
/// of these phases. Returns the last manager.
///
/// # Panics
/// Panics if a phase was not reached.
pub(crate) async fn run_with_kills(
    moments: &[KillPhase],
    (env, flags): (&TestEnv, &[&str]),
    mut changes: mpsc::UnboundedReceiver<Change>,
    scenario: impl Future<Output = ()>,
) -> Manager {
    let mut manager = env.manager_with(flags).await;
    let mut killed = BTreeSet::new();
    tokio::pin!(scenario);
    loop {
        tokio::select! {
            () = &mut scenario => break,
            change = changes.recv() => {
                let change = change.expect("the recorder keeps running");
                for (moment, is_reached) in moments {
                    if is_reached(&change) && killed.insert(*moment) {
                        manager.kill().await;
                        manager = env.manager_with(flags).await;
                    }
                }
            }
        }
    }
    assert_eq!(killed.len(), moments.len(), "the manager was killed in every phase: {killed:?}");
    manager
}

/// Phases of an upgrade after which the manager is killed.
const KILL_PHASES: [KillPhase; 8] = [
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
        "a cluster was terminating",
        |change| matches!(&change.object, Object::RayCluster(cluster) if cluster.metadata.deletion_timestamp.is_some()),
    ),
];

/// A watch that continues from a version of before a restore is silent until that version is there again.
#[tokio::test]
async fn manager_starts_again_when_etcd_is_restored_from_a_backup() {
    // Given a backup of a service that serves, and an upgrade since,
    let env = TestEnv::start().await;
    let manager = env.manager().await;
    env.apply_samples().await;
    let first = env.wait_until_serving("2.52.0").await;
    env.wait_for_reserved_cpu("1").await;
    env.back_up_etcd().await;
    env.set_quota("2", "4Gi").await;
    env.set_ray_version("2.53.0").await;
    let second = env.wait_until_serving("2.53.0").await;
    env.wait_for_only_cluster(&second).await;

    // when etcd is restored, then the manager ends, and says why;
    env.restore_etcd().await;
    let (status, log) = manager.wait().await;
    assert_eq!(status.code(), Some(1), "{log}");
    let cause = log.lines().last().unwrap_or_default();
    assert!(
        cause.contains("after it had reported version") && cause.ends_with("starting again from what it has now"),
        "{log}"
    );

    // and the next one continues from the backup: with its quota, and with upgrades.
    let _manager = env.manager().await;
    env.wait_until_serving("2.52.0").await;
    env.wait_for_only_cluster(&first).await;
    env.wait_for_reserved_cpu("1").await;
    env.set_quota("2", "4Gi").await;
    env.set_ray_version("2.53.0").await;
    let third = env.wait_until_serving("2.53.0").await;
    env.wait_for_only_cluster(&third).await;
    env.wait_for_reserved_cpu("1").await;
    env.wait_for_single_slice().await;
}

#[tokio::test]
async fn manager_killed_in_any_phase_of_an_upgrade_converges_to_the_same_state() {
    let env = TestEnv::start().await;
    let (live, changes) = mpsc::unbounded_channel();
    let recorder = Recorder::start(env.client.clone(), Some(live)).await;
    let log = env.dir.join("decisions.jsonl");
    let flags = [&*format!("--decision-log={}", log.display())];

    let scenario = async {
        env.apply_samples().await;
        env.wait_until_serving("2.52.0").await;
        env.set_ray_version("2.53.0").await;
        env.wait_for_pending_upgrade().await;
        env.set_quota("2", "4Gi").await;
        let second = env.wait_until_serving("2.53.0").await;
        env.wait_for_only_cluster(&second).await;
        env.wait_for_reserved_cpu("1").await;
    };
    let manager = run_with_kills(&KILL_PHASES, (&env, &flags), changes, scenario).await;

    env.wait_for_single_slice().await;
    let breaches = invariants::violations(&recorder.history().await);
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));

    assert!(manager.terminate().await.success());
    let replayed = env.replay(&log).await;
    assert!(replayed["sections"] > 1 && replayed["decisions"] > 0, "{replayed:?}");
}
