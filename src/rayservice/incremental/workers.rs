//! Scales worker groups with the capacity of their cluster, where the Ray autoscaler does not.
//!
//! The replicas of each group at full capacity are recorded on the RayCluster in the same write
//! that reduces them.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use kube_core::ResourceExt;

use super::capacity;
use super::state_machine::{FULL, Percent};
use sluice_api::ray::{RayCluster, WorkerGroupSpec};
use sluice_raycluster::groups::desired_replicas;

/// Annotation of a RayCluster: replicas of each worker group at full capacity, as JSON, while some
/// are reduced.
pub const FULL_REPLICAS_ANNOTATION: &str = "sluice.dev/full-replicas";

/// Time that the Ray autoscaler may take to remove a worker after its idle timeout.
const AUTOSCALER_GRACE_PERIOD: SignedDuration = SignedDuration::from_secs(30);
/// Default idle timeout of the Ray autoscaler, in seconds.
const DEFAULT_IDLE_TIMEOUT_SECONDS: i32 = 60;

/// Returns true if the Ray autoscaler sets the number of workers.
pub fn is_autoscaled(cluster: &RayCluster) -> bool {
    cluster.spec.enable_in_tree_autoscaling == Some(true)
}

/// Returns how long after its last request a worker that the Ray autoscaler removes counts as
/// present.
pub fn removal_delay(cluster: &RayCluster) -> SignedDuration {
    let idle = cluster.spec.autoscaler_options.as_ref().and_then(|options| options.idle_timeout_seconds);
    SignedDuration::from_secs(idle.unwrap_or(DEFAULT_IDLE_TIMEOUT_SECONDS).max(0).into()) + AUTOSCALER_GRACE_PERIOD
}

/// Returns the replicas of each worker group at this capacity, in percent. `deployments` are the
/// replicas of each Serve deployment at full capacity. The result is never below the group's
/// minimum.
pub fn replicas_by_group(cluster: &RayCluster, deployments: &[u32], percent: Percent) -> BTreeMap<String, i32> {
    let full = recorded_full_replicas(cluster);
    let groups = cluster.spec.worker_group_specs.iter();
    groups
        .map(|group| {
            let full = full.get(&group.group_name).copied().unwrap_or_else(|| desired_replicas(group));
            let needed = capacity::workers_at_capacity(u32::try_from(full).unwrap_or(0), deployments, percent);
            let needed = i32::try_from(needed).unwrap_or(i32::MAX).max(min_replicas(group).min(full));
            (group.group_name.clone(), needed)
        })
        .collect()
}

/// Sets the replicas of each worker group for this capacity, in percent.
pub fn scale_to_capacity(cluster: &mut RayCluster, deployments: &[u32], percent: Percent) {
    let wanted = replicas_by_group(cluster, deployments, percent);
    let full = replicas_by_group(cluster, deployments, FULL);
    set_replicas(cluster, &full, &wanted);
}

/// Sets the replicas of each worker group, and records those at full capacity as long as they
/// differ.
pub(super) fn set_replicas(cluster: &mut RayCluster, full: &BTreeMap<String, i32>, wanted: &BTreeMap<String, i32>) {
    for group in &mut cluster.spec.worker_group_specs {
        let wanted = wanted.get(&group.group_name).copied();
        // An equivalent value is left as it was written.
        if wanted.is_some_and(|wanted| wanted != desired_replicas(group)) {
            group.replicas = wanted;
        }
    }
    if wanted == full {
        cluster.annotations_mut().remove(FULL_REPLICAS_ANNOTATION);
    } else {
        // Names and numbers: serialization cannot fail.
        let full = serde_json::to_string(full).unwrap_or_default();
        cluster.annotations_mut().insert(FULL_REPLICAS_ANNOTATION.to_owned(), full);
    }
}

fn min_replicas(group: &WorkerGroupSpec) -> i32 {
    group.min_replicas.unwrap_or(0)
}

/// Returns the recorded replicas at full capacity. A value that cannot be parsed was tampered with
/// and counts as empty.
fn recorded_full_replicas(cluster: &RayCluster) -> BTreeMap<String, i32> {
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
    fn workers_are_scaled_with_the_capacity() {
        let mut scaled = cluster();
        let fixed = WorkerGroupSpec { min_replicas: Some(3), ..worker("fixed", 3) };
        scaled.spec.worker_group_specs = vec![worker("small", 4), fixed];
        let full = scaled.clone();

        scale_to_capacity(&mut scaled, &[4], 50);
        assert_eq!(counts(&scaled), [Some(2), Some(3)]);
        assert_eq!(scaled.annotations()[FULL_REPLICAS_ANNOTATION], r#"{"fixed":3,"small":4}"#);
        scale_to_capacity(&mut scaled, &[4], 25);
        assert_eq!(counts(&scaled), [Some(1), Some(3)]);
        scale_to_capacity(&mut scaled, &[4], 100);
        assert_eq!(scaled.spec, full.spec);
        assert!(!scaled.annotations().contains_key(FULL_REPLICAS_ANNOTATION));
    }

    #[test]
    fn unreadable_annotation_is_ignored() {
        let mut scaled = cluster();
        scaled.spec.worker_group_specs = vec![worker("small", 4)];
        scaled.annotations_mut().insert(FULL_REPLICAS_ANNOTATION.to_owned(), "{".to_owned());
        scale_to_capacity(&mut scaled, &[], 50);
        assert_eq!(counts(&scaled), [Some(2)]);
    }
}
