//! Suspends a RayService by deleting all of its RayClusters. A suspension that has started is
//! completed even if `spec.suspend` is reverted. The Services are kept, so that the RayService
//! resumes under the same addresses.

use kube_core::ResourceExt;

use super::{View, children, status};
use sluice_api::condition;
use sluice_api::ray::RayService;
use sluice_plan::{Note, Plan};

/// Phase of a RayService between running and suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is running.
    Running,
    /// Suspension was requested. It must be recorded in the status before anything is deleted.
    Asked,
    /// Its RayClusters are being deleted, even if `spec.suspend` was reverted meanwhile.
    Taking,
    /// Its last RayCluster is gone.
    Taken,
    /// It is suspended.
    Suspended,
    /// It is being resumed.
    Resuming,
}

impl Phase {
    pub(super) fn of(service: &RayService, has_children: bool) -> Self {
        let conditions = service.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let requested = service.spec.suspend == Some(true);
        let suspending = condition::is_true(conditions, status::SUSPENDING);
        let suspended = condition::is_true(conditions, status::SUSPENDED);
        match (suspending, suspended, requested) {
            (true, _, _) if has_children => Self::Taking,
            (true, _, _) => Self::Taken,
            (false, true, true) if has_children => Self::Asked,
            (false, true, true) => Self::Suspended,
            (false, true, false) => Self::Resuming,
            (false, false, true) => Self::Asked,
            (false, false, false) => Self::Running,
        }
    }
}

/// Plans a RayService that is being suspended or is suspended.
pub(super) fn plan(observed: &View<'_>, phase: Phase) -> Plan {
    let mut plan = Plan::default();
    if phase == Phase::Taking {
        children::delete_all(observed.service, &observed.children, &mut plan);
    }
    if phase == Phase::Taken {
        let text = format!("RayService {} is suspended; its RayClusters are deleted", observed.service.name_any());
        plan.notes.push(Note::normal(observed.service, "Suspended", text));
    }
    plan.write(status::of_suspended(observed, phase));
    plan
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::running(false, None, false, Phase::Running)]
    #[case::requested(true, None, true, Phase::Asked)]
    #[case::requested_before_any_cluster_exists(true, None, false, Phase::Asked)]
    #[case::deleting_clusters(true, Some("Suspending"), true, Phase::Taking)]
    #[case::reverted_after_deletion_started(false, Some("Suspending"), true, Phase::Taking)]
    #[case::all_clusters_gone(true, Some("Suspending"), false, Phase::Taken)]
    #[case::suspended(true, Some("Suspended"), false, Phase::Suspended)]
    #[case::requested_again_while_resuming(true, Some("Suspended"), true, Phase::Asked)]
    #[case::resuming(false, Some("Suspended"), false, Phase::Resuming)]
    fn started_suspension_is_completed(
        #[case] suspend: bool,
        #[case] condition: Option<&str>,
        #[case] has_children: bool,
        #[case] expected: Phase,
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
        assert_eq!(Phase::of(&service, has_children), expected);
    }
}
