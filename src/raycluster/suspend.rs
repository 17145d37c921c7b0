//! Suspending and resuming a cluster (KubeRay 1.7 `ray-operator/controllers/ray/raycluster_controller.go`).
//!
//! That a cluster is to be suspended is written down before the first pod goes. From then on all pods go, even if
//! the spec changes its mind, so nobody ever finds half a cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use sluice_api::condition;
use sluice_api::ray::{RayCluster, names};

/// How far a cluster is with suspending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It may have pods.
    Open,
    /// It is to be suspended; that has to be written down before anything is done about it.
    Asked,
    /// All pods go.
    Suspending,
    /// It has no pods, and gets none.
    Suspended,
    /// It may have pods again, once that is written down.
    Resuming,
}

impl Phase {
    /// The phase that a cluster is in.
    pub(super) fn of(cluster: &RayCluster, has_pods: bool) -> Self {
        let conditions = conditions(cluster);
        let asked = cluster.spec.suspend == Some(true);
        if condition::is_true(conditions, names::CLUSTER_SUSPENDING) {
            return if has_pods { Self::Suspending } else { Self::Suspended };
        }
        match (condition::is_true(conditions, names::CLUSTER_SUSPENDED), asked) {
            (true, false) => Self::Resuming,
            (true, true) if !has_pods => Self::Suspended,
            (_, false) => Self::Open,
            // One that never was anything else has nothing to lose that would have to be announced.
            (_, true) if conditions.is_empty() && !has_pods => Self::Suspended,
            (_, true) => Self::Asked,
        }
    }

    /// What the conditions `RayClusterSuspending` and `RayClusterSuspended` say in this phase.
    pub(super) fn conditions(self) -> (bool, bool) {
        match self {
            Self::Open | Self::Resuming => (false, false),
            Self::Asked | Self::Suspending => (true, false),
            Self::Suspended => (false, true),
        }
    }
}

fn conditions(cluster: &RayCluster) -> &[Condition] {
    cluster.status.as_ref().map_or(&[], |status| &status.conditions)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures::cluster;

    #[rstest]
    #[case::never_asked(false, None, false, Phase::Open)]
    #[case::born_suspended(true, None, false, Phase::Suspended)]
    #[case::asked_while_it_runs(true, Some((false, false)), true, Phase::Asked)]
    #[case::asked_before_the_first_status(true, None, true, Phase::Asked)]
    #[case::asked_while_its_first_pods_are_on_their_way(true, Some((false, false)), false, Phase::Asked)]
    #[case::written_down(true, Some((true, false)), true, Phase::Suspending)]
    #[case::a_change_of_mind_is_too_late(false, Some((true, false)), true, Phase::Suspending)]
    #[case::the_last_pod_is_gone(true, Some((true, false)), false, Phase::Suspended)]
    #[case::done(true, Some((false, true)), false, Phase::Suspended)]
    #[case::a_pod_turned_up(true, Some((false, true)), true, Phase::Asked)]
    #[case::resumed(false, Some((false, true)), false, Phase::Resuming)]
    #[case::resumed_and_written_down(false, Some((false, false)), false, Phase::Open)]
    fn the_phase_follows_from_spec_conditions_and_pods(
        #[case] suspend: bool,
        #[case] written: Option<(bool, bool)>,
        #[case] has_pods: bool,
        #[case] expected: Phase,
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
        assert_eq!(Phase::of(&cluster, has_pods), expected);
    }
}
