//! Worker groups that follow the capacity of their cluster, where no autoscaler of Ray does that.
//!
//! How many replicas a group has at full capacity is noted on the cluster in the write that takes some of them away.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use kube_core::ResourceExt;

use super::capacity;
use super::machine::{Percent, WHOLE};
use sluice_api::ray::{RayCluster, WorkerGroupSpec};
use sluice_raycluster::groups::replicas;

/// On a RayCluster: how many replicas each of its worker groups has at full capacity, while some of them are taken away.
pub const FULL_REPLICAS_ANNOTATION: &str = "sluice.dev/full-replicas";

/// How long Ray's autoscaler may take, beyond the time that it leaves a worker idle, to have it removed.
const AUTOSCALER_PATIENCE: SignedDuration = SignedDuration::from_secs(30);
/// After how many idle seconds Ray's autoscaler has a worker removed, unless it is told otherwise.
const IDLE_TIMEOUT: i32 = 60;

/// Whether Ray's autoscaler decides how many workers there are.
pub fn is_autoscaled(cluster: &RayCluster) -> bool {
    cluster.spec.enable_in_tree_autoscaling == Some(true)
}

/// How long after its last request a worker that Ray's autoscaler may remove counts as there.
pub fn until_gone(cluster: &RayCluster) -> SignedDuration {
    let idle = cluster.spec.autoscaler_options.as_ref().and_then(|options| options.idle_timeout_seconds);
    SignedDuration::from_secs(idle.unwrap_or(IDLE_TIMEOUT).max(0).into()) + AUTOSCALER_PATIENCE
}

/// How many replicas of each worker group a cluster has at this capacity, when the deployments on it have so many replicas each at
/// full capacity; never fewer than its minimum.
pub fn at_capacity(cluster: &RayCluster, deployments: &[u32], percent: Percent) -> BTreeMap<String, i32> {
    let full = noted(cluster);
    let groups = cluster.spec.worker_group_specs.iter();
    groups
        .map(|group| {
            let full = full.get(&group.group_name).copied().unwrap_or_else(|| replicas(group));
            let needed = capacity::workers(u32::try_from(full).unwrap_or(0), deployments, percent);
            let needed = i32::try_from(needed).unwrap_or(i32::MAX).max(least(group).min(full));
            (group.group_name.clone(), needed)
        })
        .collect()
}

/// Gives each worker group of a cluster the replicas that it has at this capacity.
pub fn scale(cluster: &mut RayCluster, deployments: &[u32], percent: Percent) {
    let wanted = at_capacity(cluster, deployments, percent);
    let full = at_capacity(cluster, deployments, WHOLE);
    set(cluster, &full, &wanted);
}

/// Gives each worker group of a cluster so many replicas, and notes how many it has at full capacity as long as those are more.
pub(super) fn set(cluster: &mut RayCluster, full: &BTreeMap<String, i32>, wanted: &BTreeMap<String, i32>) {
    for group in &mut cluster.spec.worker_group_specs {
        let wanted = wanted.get(&group.group_name).copied();
        // What says the same in other words is left as it was written.
        if wanted.is_some_and(|wanted| wanted != replicas(group)) {
            group.replicas = wanted;
        }
    }
    if wanted == full {
        cluster.annotations_mut().remove(FULL_REPLICAS_ANNOTATION);
    } else {
        // Names and numbers: serialisation can't fail.
        let full = serde_json::to_string(full).unwrap_or_default();
        cluster.annotations_mut().insert(FULL_REPLICAS_ANNOTATION.to_owned(), full);
    }
}

fn least(group: &WorkerGroupSpec) -> i32 {
    group.min_replicas.unwrap_or(0)
}

/// What is noted on a cluster. What can't be read has been tampered with, and says nothing.
fn noted(cluster: &RayCluster) -> BTreeMap<String, i32> {
    let text = cluster.annotations().get(FULL_REPLICAS_ANNOTATION);
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{cluster, worker};

    fn counts(cluster: &RayCluster) -> Vec<Option<i32>> {
        cluster.spec.worker_group_specs.iter().map(|group| group.replicas).collect()
    }

    #[test]
    fn workers_go_and_come_back_with_the_capacity() {
        let mut scaled = cluster();
        let fixed = WorkerGroupSpec { min_replicas: Some(3), ..worker("fixed", 3) };
        scaled.spec.worker_group_specs = vec![worker("small", 4), fixed];
        let whole = scaled.clone();

        scale(&mut scaled, &[4], 50);
        assert_eq!(counts(&scaled), [Some(2), Some(3)]);
        assert_eq!(scaled.annotations()[FULL_REPLICAS_ANNOTATION], r#"{"fixed":3,"small":4}"#);
        scale(&mut scaled, &[4], 25);
        assert_eq!(counts(&scaled), [Some(1), Some(3)]);
        scale(&mut scaled, &[4], 100);
        assert_eq!(scaled.spec, whole.spec);
        assert!(!scaled.annotations().contains_key(FULL_REPLICAS_ANNOTATION));
    }

    #[test]
    fn a_note_that_can_not_be_read_says_nothing() {
        let mut scaled = cluster();
        scaled.spec.worker_group_specs = vec![worker("small", 4)];
        scaled.annotations_mut().insert(FULL_REPLICAS_ANNOTATION.to_owned(), "{".to_owned());
        scale(&mut scaled, &[], 50);
        assert_eq!(counts(&scaled), [Some(2)]);
    }
}
