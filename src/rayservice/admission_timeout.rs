//! Upgrades that are not admitted in time: the pending cluster is deleted and not created again
//! until the spec requires a different one.
//!
//! The hash of the timed-out cluster is recorded on the RayService before that cluster is deleted;
//! otherwise a restarted process would recreate it.

use jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

use super::ServiceContext;
use super::clusters::ServiceCluster;
use super::upgrade::{BlockReason, UpgradeAction};
use sluice_api::condition;
use sluice_api::job_conditions::ADMITTED;
use sluice_api::ray::admission_annotations::{
    ADMISSION_TIMEOUT_ANNOTATION, TIMED_OUT_ANNOTATION, admission_timeout, timed_out_cluster_hash,
};
use sluice_api::ray::names;
use sluice_plan::{EventRecord, Plan, Write};

/// Replaces an upgrade to the timed-out cluster by a hold while another cluster is active: the
/// timed-out one is neither created nor kept.
pub(super) fn apply_admission_timeout(
    action: UpgradeAction,
    given_up: Option<&str>,
    wanted: &str,
    has_active: bool,
) -> UpgradeAction {
    let is_upgrade =
        matches!(action, UpgradeAction::Create | UpgradeAction::UsePending(_) | UpgradeAction::UpdatePending(_));
    if has_active && is_upgrade && given_up == Some(wanted) {
        UpgradeAction::Block { reason: BlockReason::AdmissionTimedOut, pending: None }
    } else {
        action
    }
}

/// Records a timed-out upgrade on the RayService, and removes the record once the spec requires a
/// different cluster or the active one matches.
pub(super) fn plan(context: &ServiceContext<'_>, plan: &mut Plan) {
    let (service, Ok(desired)) = (context.observed.service, context.desired) else { return };
    let recorded = timed_out_cluster_hash(&service.metadata);
    let is_up_to_date = matches!(context.action, UpgradeAction::Keep | UpgradeAction::UpdateActive);
    if recorded.is_some_and(|recorded| is_up_to_date || recorded != desired.cluster_spec_hash) {
        let mut next = service.clone();
        next.annotations_mut().remove(TIMED_OUT_ANNOTATION);
        return plan.write(Write::patch(service, &next));
    }
    let Some((child, since)) = pending_without_quota(context) else { return };
    let Ok(Some(timeout)) = admission_timeout(&service.metadata) else { return };
    let due = since.saturating_add(timeout).unwrap_or(Timestamp::MAX);
    if due > context.observed.now {
        return plan.wake_by(due);
    }
    let mut next = service.clone();
    next.annotations_mut().insert(TIMED_OUT_ANNOTATION.to_owned(), desired.cluster_spec_hash.clone());
    plan.write(Write::patch(service, &next));
    plan.events.push(EventRecord::warning(
        service,
        "UpgradeAdmissionTimedOut",
        timeout_message(context, child, timeout),
    ));
}

/// Returns the pending cluster that has no quota, and since when it has been without. A cluster
/// that only waits for the active one to stop holds quota already and does not count.
fn pending_without_quota<'s>(context: &'s ServiceContext<'_>) -> Option<(&'s ServiceCluster<'s>, Timestamp)> {
    let child = context
        .pending_cluster()
        .filter(|_| matches!(context.action, UpgradeAction::UsePending(_) | UpgradeAction::UpdatePending(_)))?;
    let is_active_running = context.clusters.active.as_ref().is_some_and(|active| !active.is_suspended());
    let conditions = child.cluster.conditions();
    let is_stopping = child.head_pod.is_some() || condition::is_true(conditions, names::CLUSTER_SUSPENDING);
    if !context.observed.is_queued || !is_active_running || !child.is_suspended() || is_stopping {
        return None;
    }
    // A cluster that lost its quota waits since it was suspended.
    let suspended = condition::get_true(conditions, names::CLUSTER_SUSPENDED);
    let created = child.cluster.creation_timestamp()?.0;
    Some((child, suspended.map_or(created, |suspended| created.max(suspended.last_transition_time.0))))
}

fn timeout_message(context: &ServiceContext<'_>, child: &ServiceCluster<'_>, timeout: SignedDuration) -> String {
    let status = context.observed.service.status.as_ref();
    let admitted = status.and_then(|status| condition::get(&status.conditions, ADMITTED));
    let cause =
        admitted.filter(|admitted| admitted.status == "False").map(|admitted| format!(". {}", admitted.message));
    format!(
        "RayCluster {} was not admitted within {timeout:#} (annotation {ADMISSION_TIMEOUT_ANNOTATION}) and is deleted{}",
        child.name(),
        cause.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const TIMED_OUT: UpgradeAction = UpgradeAction::Block { reason: BlockReason::AdmissionTimedOut, pending: None };

    #[rstest]
    #[case::timed_out_cluster_is_not_recreated(UpgradeAction::Create, Some("new"), true, TIMED_OUT)]
    #[case::pending_cluster_is_dropped(UpgradeAction::UsePending(0), Some("new"), true, TIMED_OUT)]
    #[case::pending_cluster_is_dropped_before_groups_are_appended(
        UpgradeAction::UpdatePending(0),
        Some("new"),
        true,
        TIMED_OUT
    )]
    #[case::different_cluster_is_created(UpgradeAction::Create, Some("other"), true, UpgradeAction::Create)]
    #[case::nothing_timed_out(UpgradeAction::Create, None, true, UpgradeAction::Create)]
    #[case::no_active_cluster(UpgradeAction::Create, Some("new"), false, UpgradeAction::Create)]
    #[case::active_cluster_matches(UpgradeAction::Keep, Some("new"), true, UpgradeAction::Keep)]
    #[case::groups_are_appended_to_active(UpgradeAction::UpdateActive, Some("new"), true, UpgradeAction::UpdateActive)]
    fn timed_out_upgrade_is_held_while_a_cluster_is_active(
        #[case] action: UpgradeAction,
        #[case] given_up: Option<&str>,
        #[case] has_active: bool,
        #[case] expected: UpgradeAction,
    ) {
        assert_eq!(apply_admission_timeout(action, given_up, "new", has_active), expected);
    }
}
