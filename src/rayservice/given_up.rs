//! Upgrades that are not admitted in time: the pending cluster is deleted and not created again
//! until the spec requires a different one.
//!
//! The hash of the timed-out cluster is recorded on the RayService before that cluster is deleted;
//! otherwise a restarted process would recreate it.

use jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

use super::Scene;
use super::family::Child;
use super::upgrade::{Reason, Step};
use sluice_api::condition;
use sluice_api::ray::names;
use sluice_api::ray::upgrade_choices::{GIVEN_UP_ANNOTATION, TIMEOUT_ANNOTATION, admission_timeout, given_up};
use sluice_api::sluice::ADMITTED;
use sluice_plan::{Note, Plan, Write};

/// Replaces an upgrade to the timed-out cluster by a hold while another cluster is active: the
/// timed-out one is neither created nor kept.
pub(super) fn decide(action: Step, given_up: Option<&str>, wanted: &str, has_active: bool) -> Step {
    let is_upgrade = matches!(action, Step::Create | Step::Continue(_) | Step::UpdatePending(_));
    if has_active && is_upgrade && given_up == Some(wanted) { Step::Hold(Reason::GivenUp, None) } else { action }
}

/// Records a timed-out upgrade on the RayService, and removes the record once the spec requires a
/// different cluster or the active one matches.
pub(super) fn plan(context: &Scene<'_>, plan: &mut Plan) {
    let (service, Ok(desired)) = (context.view.service, context.goal) else { return };
    let recorded = given_up(&service.metadata);
    let is_up_to_date = matches!(context.step, Step::Keep | Step::UpdateActive);
    if recorded.is_some_and(|recorded| is_up_to_date || recorded != desired.hash) {
        let mut next = service.clone();
        next.annotations_mut().remove(GIVEN_UP_ANNOTATION);
        return plan.write(Write::patch(service, &next));
    }
    let Some((child, since)) = waiting(context) else { return };
    let Ok(Some(timeout)) = admission_timeout(&service.metadata) else { return };
    let due = since.saturating_add(timeout).unwrap_or(Timestamp::MAX);
    if due > context.view.now {
        return plan.wake(due);
    }
    let mut next = service.clone();
    next.annotations_mut().insert(GIVEN_UP_ANNOTATION.to_owned(), desired.hash.clone());
    plan.write(Write::patch(service, &next));
    plan.notes.push(Note::warning(service, "UpgradeAdmissionTimedOut", why(context, child, timeout)));
}

/// Returns the pending cluster that has no quota, and since when it has been without. A cluster
/// that only waits for the active one to stop holds quota already and does not count.
fn waiting<'s>(context: &'s Scene<'_>) -> Option<(&'s Child<'s>, Timestamp)> {
    let child = context.pending().filter(|_| matches!(context.step, Step::Continue(_) | Step::UpdatePending(_)))?;
    let is_active_running = context.family.active.as_ref().is_some_and(|active| !active.is_suspended());
    let conditions = child.cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is_stopping = child.head.is_some() || condition::is_true(conditions, names::CLUSTER_SUSPENDING);
    if !context.view.gated || !is_active_running || !child.is_suspended() || is_stopping {
        return None;
    }
    // A cluster that lost its quota waits since it was suspended.
    let suspended = condition::get(conditions, names::CLUSTER_SUSPENDED).filter(|found| found.status == "True");
    let created = child.cluster.creation_timestamp()?.0;
    Some((child, suspended.map_or(created, |suspended| created.max(suspended.last_transition_time.0))))
}

fn why(context: &Scene<'_>, child: &Child<'_>, timeout: SignedDuration) -> String {
    let status = context.view.service.status.as_ref();
    let admitted = status.and_then(|status| condition::get(&status.conditions, ADMITTED));
    let cause =
        admitted.filter(|admitted| admitted.status == "False").map(|admitted| format!(". {}", admitted.message));
    format!(
        "RayCluster {} was not admitted within {timeout:#} (annotation {TIMEOUT_ANNOTATION}) and is deleted{}",
        child.name(),
        cause.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GIVEN_UP: Step = Step::Hold(Reason::GivenUp, None);

    #[rstest]
    #[case::timed_out_cluster_is_not_recreated(Step::Create, Some("new"), true, GIVEN_UP)]
    #[case::pending_cluster_is_dropped(Step::Continue(0), Some("new"), true, GIVEN_UP)]
    #[case::pending_cluster_is_dropped_before_groups_are_appended(Step::UpdatePending(0), Some("new"), true, GIVEN_UP)]
    #[case::different_cluster_is_created(Step::Create, Some("other"), true, Step::Create)]
    #[case::nothing_timed_out(Step::Create, None, true, Step::Create)]
    #[case::no_active_cluster(Step::Create, Some("new"), false, Step::Create)]
    #[case::active_cluster_matches(Step::Keep, Some("new"), true, Step::Keep)]
    #[case::groups_are_appended_to_active(Step::UpdateActive, Some("new"), true, Step::UpdateActive)]
    fn timed_out_upgrade_is_held_while_a_cluster_is_active(
        #[case] action: Step,
        #[case] given_up: Option<&str>,
        #[case] has_active: bool,
        #[case] expected: Step,
    ) {
        assert_eq!(decide(action, given_up, "new", has_active), expected);
    }
}
