//! Suspending a service takes all of its clusters, and once begun it is carried through. Its Services stay, so that it comes
//! back under the address that it had.

use kube_core::ResourceExt;

use super::{View, children, status};
use sluice_api::condition;
use sluice_api::ray::RayService;
use sluice_plan::{Note, Plan};

/// Where a service stands between running and being suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It runs.
    Running,
    /// It is to be suspended. That has to be on record before anything is deleted.
    Asked,
    /// Its clusters are being deleted, whatever becomes of the wish meanwhile.
    Taking,
    /// The last of its clusters is gone.
    Taken,
    /// It is suspended.
    Suspended,
    /// It is to run again.
    Resuming,
}

impl Phase {
    pub(super) fn of(service: &RayService, has_children: bool) -> Self {
        let conditions = service.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let wanted = service.spec.suspend == Some(true);
        let suspending = condition::is_true(conditions, status::SUSPENDING);
        let suspended = condition::is_true(conditions, status::SUSPENDED);
        match (suspending, suspended, wanted) {
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

/// Plans a service that is on its way to being suspended, or is.
pub(super) fn plan(view: &View<'_>, phase: Phase) -> Plan {
    let mut plan = Plan::default();
    if phase == Phase::Taking {
        children::delete_all(view.service, &view.children, &mut plan);
    }
    if phase == Phase::Taken {
        let text = format!("RayService {} is suspended; its clusters are gone", view.service.name_any());
        plan.notes.push(Note::normal(view.service, "Suspended", text));
    }
    plan.write(status::of_suspended(view, phase));
    plan
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::running(false, None, false, Phase::Running)]
    #[case::asked(true, None, true, Phase::Asked)]
    #[case::asked_before_there_was_anything(true, None, false, Phase::Asked)]
    #[case::taking(true, Some("Suspending"), true, Phase::Taking)]
    #[case::wish_taken_back_too_late(false, Some("Suspending"), true, Phase::Taking)]
    #[case::all_gone(true, Some("Suspending"), false, Phase::Taken)]
    #[case::suspended(true, Some("Suspended"), false, Phase::Suspended)]
    #[case::asked_again_while_it_resumed(true, Some("Suspended"), true, Phase::Asked)]
    #[case::resuming(false, Some("Suspended"), false, Phase::Resuming)]
    fn suspending_is_carried_through(
        #[case] wanted: bool,
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
            "spec": {"suspend": wanted, "rayClusterConfig": {"headGroupSpec": {"template": {}}}},
            "status": {"conditions": conditions},
        }))
        .expect("a service");
        assert_eq!(Phase::of(&service, has_children), expected);
    }
}
