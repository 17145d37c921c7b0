//! Suspending and resuming a cluster (KubeRay 1.7
//! `ray-operator/controllers/ray/raycluster_controller.go`).
//!
//! The condition `RayClusterSuspending` is written before the first pod is deleted. From then on
//! all pods are deleted, even if the spec is changed back, so that no partly deleted cluster
//! remains.

use sluice_api::condition;
use sluice_api::ray::{RayCluster, names};

/// Progress of suspending and resuming a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SuspendState {
    /// The cluster may have pods.
    Active,
    /// Suspension is requested; the condition has to be written before pods are deleted.
    Requested,
    /// All pods are deleted.
    Suspending,
    /// The cluster has no pods, and none are created.
    Suspended,
    /// The cluster may have pods again, once the conditions are written.
    Resuming,
}

impl SuspendState {
    /// Returns the state of a cluster, from its spec, conditions and pods.
    pub(super) fn of(cluster: &RayCluster, has_pods: bool) -> Self {
        let conditions = cluster.conditions();
        let requested = cluster.spec.suspend == Some(true);
        if condition::is_true(conditions, names::CLUSTER_SUSPENDING) {
            return if has_pods { Self::Suspending } else { Self::Suspended };
        }
        match (condition::is_true(conditions, names::CLUSTER_SUSPENDED), requested) {
            (true, false) => Self::Resuming,
            (true, true) if !has_pods => Self::Suspended,
            (_, false) => Self::Active,
            // A cluster created suspended has no pods, so `RayClusterSuspending` is skipped.
            (_, true) if condition::get(conditions, names::CLUSTER_SUSPENDED).is_none() && !has_pods => Self::Suspended,
            (_, true) => Self::Requested,
        }
    }

    /// Returns the status of the conditions `RayClusterSuspending` and `RayClusterSuspended`.
    pub(super) fn condition_statuses(self) -> (bool, bool) {
        match self {
            Self::Active | Self::Resuming => (false, false),
            Self::Requested | Self::Suspending => (true, false),
            Self::Suspended => (false, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures::cluster;

    #[rstest]
    #[case::never_suspended(false, None, false, SuspendState::Active)]
    #[case::created_suspended(true, None, false, SuspendState::Suspended)]
    #[case::requested_while_running(true, Some((false, false)), true, SuspendState::Requested)]
    #[case::requested_before_the_first_status(true, None, true, SuspendState::Requested)]
    #[case::requested_while_its_first_pods_are_in_flight(true, Some((false, false)), false, SuspendState::Requested)]
    #[case::condition_written(true, Some((true, false)), true, SuspendState::Suspending)]
    #[case::resume_while_suspending_has_to_wait(false, Some((true, false)), true, SuspendState::Suspending)]
    #[case::last_pod_is_gone(true, Some((true, false)), false, SuspendState::Suspended)]
    #[case::suspended(true, Some((false, true)), false, SuspendState::Suspended)]
    #[case::pod_appeared_while_suspended(true, Some((false, true)), true, SuspendState::Requested)]
    #[case::resuming(false, Some((false, true)), false, SuspendState::Resuming)]
    #[case::resumed_and_conditions_written(false, Some((false, false)), false, SuspendState::Active)]
    fn suspend_state_follows_from_spec_conditions_and_pods(
        #[case] suspend: bool,
        #[case] written: Option<(bool, bool)>,
        #[case] has_pods: bool,
        #[case] expected: SuspendState,
    ) {
        let mut cluster = cluster();
        cluster.spec.suspend = Some(suspend);
        cluster.status = written.map(|(suspending, suspended)| {
            let condition = |type_: &str, status: bool| {
                json!({
                    "type": type_, "status": if status { "True" } else { "False" },
                    "reason": type_, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            };
            serde_json::from_value(json!({"conditions": [
                condition("RayClusterSuspending", suspending),
                condition("RayClusterSuspended", suspended),
            ]}))
            .expect("a status")
        });
        assert_eq!(SuspendState::of(&cluster, has_pods), expected);
    }
}
