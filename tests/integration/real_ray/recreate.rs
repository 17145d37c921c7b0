//! A standalone RayCluster whose pods are recreated.

use std::collections::BTreeSet;

use kube::ResourceExt;

use super::killed::is_ready;
use super::{RealRayFixture, START_TIMEOUT};
use crate::rayclusters::{CLUSTER, cluster_manifest};
use sluice_testkit::history::{Change, Object, State};
use sluice_testkit::poll_until;

/// Returns the cluster with this version of the image.
fn cluster(version: &str) -> String {
    let cluster = cluster_manifest().replace("rayproject/ray:2.52.0", &format!("fruit:{version}"));
    cluster.replace("spec:\n  rayVersion", "spec:\n  upgradeStrategy:\n    type: Recreate\n  rayVersion")
}

/// Waits until two pods other than `old` are ready. Returns their uids.
async fn ready_pods(fixture: &RealRayFixture, old: &BTreeSet<String>) -> BTreeSet<String> {
    poll_until(START_TIMEOUT, "the pods are ready", async || {
        let pods = fixture.env.pods_of(CLUSTER).await;
        let ready: BTreeSet<String> = pods.iter().filter(|pod| is_ready(pod)).filter_map(ResourceExt::uid).collect();
        if ready.len() == 2 && ready.is_disjoint(old) { Ok(ready) } else { Err(format!("but {}", ready.len())) }
    })
    .await
}

/// Returns the maximum number of simultaneous pods, and the number of old pods that existed when
/// the first new one was created.
fn overlap(history: &[Change], old: &BTreeSet<String>) -> (usize, usize) {
    let mut state = State::default();
    let (mut most, mut left) = (0, 0);
    for change in history {
        state.apply(change);
        let is_pod = matches!(&change.object, Object::Pod(_));
        if is_pod {
            let uids: BTreeSet<String> = state.pods.values().filter_map(ResourceExt::uid).collect();
            most = most.max(uids.len());
            if !uids.is_subset(old) {
                left = left.max(uids.intersection(old).count());
            }
        }
    }
    (most, left)
}

pub(super) async fn all_old_pods_are_gone_before_the_first_new_one(fixture: &RealRayFixture) {
    // Given a running cluster with exactly its quota,
    let env = &fixture.env;
    env.apply(&cluster("1")).await.expect("the cluster");
    let old = ready_pods(fixture, &BTreeSet::new()).await;

    // when its image changes,
    env.apply(&cluster("2")).await.expect("the cluster");
    let new = ready_pods(fixture, &old).await;

    // then no new pod existed at the same time as an old one.
    let (most, left) = overlap(&fixture.history().await, &old);
    println!(
        "Recreate: {} old pods, {} new ones, {most} at most simultaneously, {left} old next to a new one",
        old.len(),
        new.len()
    );
    assert_eq!((most, left), (2, 0));
}
