//! Suspends a RayService by deleting all of its RayClusters. A suspension that has started is
//! completed even if `spec.suspend` is reverted. The Services are kept, so that the RayService
//! resumes under the same addresses.

use kube_core::ResourceExt;

use super::{ObservedService, ray_clusters, status};
use sluice_api::condition;
use sluice_api::ray::RayService;
use sluice_plan::{EventRecord, Plan};

/// Phase of a RayService between running and suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SuspendPhase {
    /// It is running.
    Running,
    /// Suspension was requested. It must be recorded in the status before anything is deleted.
    Requested,
    /// Its RayClusters are being deleted, even if `spec.suspend` was reverted meanwhile.
    DeletingClusters,
    /// Its last RayCluster is gone.
    ClustersDeleted,
    /// It is suspended.
    Suspended,
    /// It is being resumed.
    Resuming,
}

impl SuspendPhase {
    pub(super) fn from_service(service: &RayService, has_children: bool) -> Self {
        let conditions = service.conditions();
        let requested = service.spec.suspend == Some(true);
        let suspending = condition::is_true(conditions, status::SUSPENDING);
        let suspended = condition::is_true(conditions, status::SUSPENDED);
        match (suspending, suspended, requested) {
            (true, _, _) if has_children => Self::DeletingClusters,
            (true, _, _) => Self::ClustersDeleted,
            (false, true, true) if has_children => Self::Requested,
            (false, true, true) => Self::Suspended,
            (false, true, false) => Self::Resuming,
            (false, false, true) => Self::Requested,
            (false, false, false) => Self::Running,
        }
    }
}

/// Plans a RayService that is being suspended or is suspended.
pub(super) fn plan(observed: &ObservedService<'_>, phase: SuspendPhase) -> Plan {
    let mut plan = Plan::default();
    if phase == SuspendPhase::DeletingClusters {
        ray_clusters::delete_all_clusters(observed.service, &observed.clusters, &mut plan);
    }
    if phase == SuspendPhase::ClustersDeleted {
        let text = format!("RayService {} is suspended; its RayClusters are deleted", observed.service.name_any());
        plan.events.push(EventRecord::normal(observed.service, "Suspended", text));
    }
    plan.write(status::suspended_status_write(observed, phase));
    plan
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::running(false, None, false, SuspendPhase::Running)]
    #[case::requested(true, None, true, SuspendPhase::Requested)]
    #[case::requested_before_any_cluster_exists(true, None, false, SuspendPhase::Requested)]
    #[case::deleting_clusters(true, Some("Suspending"), true, SuspendPhase::DeletingClusters)]
    #[case::reverted_after_deletion_started(false, Some("Suspending"), true, SuspendPhase::DeletingClusters)]
    #[case::all_clusters_gone(true, Some("Suspending"), false, SuspendPhase::ClustersDeleted)]
    #[case::suspended(true, Some("Suspended"), false, SuspendPhase::Suspended)]
    #[case::requested_again_while_resuming(true, Some("Suspended"), true, SuspendPhase::Requested)]
    #[case::resuming(false, Some("Suspended"), false, SuspendPhase::Resuming)]
    fn started_suspension_is_completed(
        #[case] suspend: bool,
        #[case] condition: Option<&str>,
        #[case] has_children: bool,
        #[case] expected: SuspendPhase,
    ) {
        let conditions: Vec<_> = condition
            .iter()
            .map(|type_| json!({"type": type_, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}))
            .collect();
        let service: RayService = serde_json::from_value(json!({
            "metadata": {"name": "chat"},
            "spec": {"suspend": suspend, "rayClusterConfig": {"headGroupSpec": {"template": {}}}},
            "status": {"conditions": conditions},
        }))
        .expect("a service");
        assert_eq!(SuspendPhase::from_service(&service, has_children), expected);
    }
}
