//! A RayCluster of its own whose pods are made anew.

use std::collections::BTreeSet;

use kube::ResourceExt;

use super::killed::is_ready;
use super::{START, Stage};
use crate::rayclusters::{CLUSTER, manifest};
use sluice_testkit::history::{Change, Object, State};
use sluice_testkit::within;

/// The cluster with this version of the image.
fn cluster(version: &str) -> String {
    let cluster = manifest().replace("rayproject/ray:2.52.0", &format!("fruit:{version}"));
    cluster.replace("spec:\n  rayVersion", "spec:\n  upgradeStrategy:\n    type: Recreate\n  rayVersion")
}

/// Waits until both pods are ready, and none of these; returns them.
async fn ready_pods(stage: &Stage, old: &BTreeSet<String>) -> BTreeSet<String> {
    within(START, "the pods are ready", async || {
        let pods = stage.env.pods_of(CLUSTER).await;
        let ready: BTreeSet<String> = pods.iter().filter(|pod| is_ready(pod)).filter_map(ResourceExt::uid).collect();
        if ready.len() == 2 && ready.is_disjoint(old) { Ok(ready) } else { Err(format!("but {}", ready.len())) }
    })
    .await
}

/// The most pods that there were at once, and how many of the old ones there still were when there was a new one.
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

pub(super) async fn all_old_pods_are_gone_before_the_first_new_one(stage: &Stage) {
    // Given a cluster that runs, and as much quota as it takes,
    let env = &stage.env;
    env.apply(&cluster("1")).await.expect("the cluster");
    let old = ready_pods(stage, &BTreeSet::new()).await;

    // when it asks for another image,
    env.apply(&cluster("2")).await.expect("the cluster");
    let new = ready_pods(stage, &old).await;

    // then there was no new pod as long as there was an old one.
    let (most, left) = overlap(&stage.history().await, &old);
    println!(
        "Recreate: {} old pods, {} new ones, {most} at most at once, {left} old beside a new one",
        old.len(),
        new.len()
    );
    assert_eq!((most, left), (2, 0));
}
