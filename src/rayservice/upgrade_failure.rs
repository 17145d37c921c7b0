//! Failed incremental upgrades: traffic and capacity return to the active cluster, and the same
//! upgrade is not retried until the spec changes.
//!
//! The failed revision is recorded on the RayService before anything is rolled back; otherwise a
//! restarted process would continue the upgrade.

use jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

use super::clusters::ServiceCluster;
use super::incremental;
use super::upgrade::{BlockReason, UpgradeAction};
use super::{DesiredService, ServiceContext};
use sluice_api::condition;
use sluice_api::job_conditions::ADMITTED;
use sluice_api::ray::incremental_annotations::{
    UNHEALTHY_DEADLINE_ANNOTATION, UNHEALTHY_SINCE_ANNOTATION, UPGRADE_FAILED_ANNOTATION, unhealthy_deadline,
};
use sluice_api::ray::{RayCluster, RayService};
use sluice_plan::{EventRecord, Plan, Write};

/// Status of an application whose deployment Serve no longer retries.
const DEPLOY_FAILED: &str = "DEPLOY_FAILED";

/// Identifies one upgrade attempt by its RayCluster hash and Serve configuration hash.
fn upgrade_revision(desired: &DesiredService) -> String {
    format!("{}/{}", desired.cluster_spec_hash, desired.serve_config.hash())
}

/// Returns the failed revision and the reason recorded on the RayService; None if there is no
/// record.
fn recorded_failure(service: &RayService) -> Option<(&str, &str)> {
    service.annotations().get(UPGRADE_FAILED_ANNOTATION)?.split_once(": ")
}

/// Returns why the upgrade to the desired revision failed; None if it did not fail.
pub(super) fn failure_reason<'a>(service: &'a RayService, desired: &DesiredService) -> Option<&'a str> {
    recorded_failure(service).filter(|(failed, _)| *failed == upgrade_revision(desired)).map(|(_, why)| why)
}

/// Replaces an upgrade that has failed by a hold while another cluster is active: the failed
/// cluster is neither created nor kept.
pub(super) fn apply_failure(action: UpgradeAction, has_failed: bool, has_active: bool) -> UpgradeAction {
    let is_upgrade =
        matches!(action, UpgradeAction::Create | UpgradeAction::UsePending(_) | UpgradeAction::UpdatePending(_));
    if has_active && is_upgrade && has_failed {
        UpgradeAction::Block { reason: BlockReason::UpgradeFailed, pending: None }
    } else {
        action
    }
}

/// Records a failed upgrade on the RayService, and removes the record once the spec changes or the
/// active cluster matches.
pub(super) fn plan(context: &ServiceContext<'_>, plan: &mut Plan) {
    let (service, Ok(desired)) = (context.observed.service, context.desired) else { return };
    let is_up_to_date = matches!(context.action, UpgradeAction::Keep | UpgradeAction::UpdateActive);
    let mut next = service.clone();
    if recorded_failure(service).is_some_and(|(failed, _)| is_up_to_date || failed != upgrade_revision(desired)) {
        next.annotations_mut().remove(UPGRADE_FAILED_ANNOTATION);
        return plan.write(Write::patch(service, &next));
    }
    let Some(child) = upgrading_cluster(context) else { return };
    match failure(context, child, desired) {
        FailureCheck::NotFailed => {}
        FailureCheck::FailsAt(due) => plan.wake_by(due),
        FailureCheck::Failed(why) => {
            let text = format!("Upgrade to RayCluster {} failed: {why}", child.name());
            next.annotations_mut()
                .insert(UPGRADE_FAILED_ANNOTATION.to_owned(), format!("{}: {why}", upgrade_revision(desired)));
            plan.write(Write::patch(service, &next));
            plan.events.push(EventRecord::warning(service, "UpgradeFailed", text));
        }
    }
}

/// Returns the pending cluster of an incremental upgrade; None if none is in progress.
fn upgrading_cluster<'s>(context: &'s ServiceContext<'_>) -> Option<&'s ServiceCluster<'s>> {
    context.clusters.active.as_ref()?;
    incremental::effective_options(context.observed.service)?;
    context
        .pending_cluster()
        .filter(|_| matches!(context.action, UpgradeAction::UsePending(_) | UpgradeAction::UpdatePending(_)))
}

/// Result of checking the pending cluster for failure.
enum FailureCheck {
    /// It has not failed, or no deadline applies.
    NotFailed,
    /// It is unhealthy and fails at this time unless it recovers.
    FailsAt(Timestamp),
    /// It failed for this reason.
    Failed(String),
}

fn failure(context: &ServiceContext<'_>, child: &ServiceCluster<'_>, desired: &DesiredService) -> FailureCheck {
    let status = child.current_status().filter(|_| child.applied_config_hash() == Some(desired.serve_config.hash()));
    let failed = status
        .and_then(|status| status.applications.iter().find(|(_, application)| application.status == DEPLOY_FAILED));
    if let Some((name, application)) = failed {
        return FailureCheck::Failed(format!("application {name} is {DEPLOY_FAILED}: {}", application.error_message()));
    }
    let Ok(Some(deadline)) = unhealthy_deadline(&context.observed.service.metadata) else {
        return FailureCheck::NotFailed;
    };
    let (Some(since), ClusterHealth::Unhealthy(reason)) =
        (unhealthy_since(child.cluster), cluster_health(context, child, desired))
    else {
        return FailureCheck::NotFailed;
    };
    let due = since.saturating_add(deadline).unwrap_or(Timestamp::MAX);
    if due > context.observed.now {
        return FailureCheck::FailsAt(due);
    }
    FailureCheck::Failed(format!("the cluster was not healthy {}; {reason}", deadline_text(deadline)))
}

fn deadline_text(deadline: SignedDuration) -> String {
    format!("within {deadline:#} (annotation {UNHEALTHY_DEADLINE_ANNOTATION})")
}

/// Health of a RayCluster that is being upgraded to.
enum ClusterHealth {
    /// It is healthy, or pending for quota, which does not count as unhealthy.
    Healthy,
    /// It is unhealthy for this reason.
    Unhealthy(String),
    /// Not observed yet.
    Unknown,
}

fn cluster_health(context: &ServiceContext<'_>, child: &ServiceCluster<'_>, desired: &DesiredService) -> ClusterHealth {
    match super::serve::not_serving_reason(context, child, &desired.serve_config).filter(|_| has_quota(context, child))
    {
        None => ClusterHealth::Healthy,
        Some(reason) if is_observed(child, desired) => ClusterHealth::Unhealthy(reason),
        Some(_) => ClusterHealth::Unknown,
    }
}

/// Returns true if the reason why the cluster cannot serve yet was observed, rather than Serve not
/// having been queried.
fn is_observed(child: &ServiceCluster<'_>, desired: &DesiredService) -> bool {
    if child.is_unreachable() {
        return true;
    }
    let config = desired.serve_config.hash();
    let is_applied = child.applied_config_hash() == Some(config) || child.serve.rejection(config).is_some();
    child.current_status().is_some() && is_applied
}

/// Records on the cluster since when it has been continuously unhealthy, if a deadline is set.
pub(super) fn record_health(context: &ServiceContext<'_>, child: &ServiceCluster<'_>, cluster: &mut RayCluster) {
    let Ok(desired) = context.desired else { return };
    let is_limited = matches!(unhealthy_deadline(&context.observed.service.metadata), Ok(Some(_)));
    let is_upgraded = upgrading_cluster(context).is_some_and(|upgrading| upgrading.name() == child.name());
    match if is_limited && is_upgraded { cluster_health(context, child, desired) } else { ClusterHealth::Healthy } {
        ClusterHealth::Unknown => {}
        ClusterHealth::Healthy => {
            cluster.annotations_mut().remove(UNHEALTHY_SINCE_ANNOTATION);
        }
        ClusterHealth::Unhealthy(_) => {
            let since = unhealthy_since(cluster).unwrap_or_else(|| condition::whole_seconds(context.observed.now));
            cluster.annotations_mut().insert(UNHEALTHY_SINCE_ANNOTATION.to_owned(), since.to_string());
        }
    }
}

/// Returns the recorded start of the unhealthy period. A value that cannot be parsed was tampered
/// with and counts as None.
fn unhealthy_since(cluster: &RayCluster) -> Option<Timestamp> {
    cluster.annotations().get(UNHEALTHY_SINCE_ANNOTATION)?.parse().ok()
}

/// Returns true if the cluster has its quota or needs none.
fn has_quota(context: &ServiceContext<'_>, child: &ServiceCluster<'_>) -> bool {
    let status = context.observed.service.status.as_ref();
    let is_admitted = status.is_some_and(|status| condition::is_true(&status.conditions, ADMITTED));
    !child.is_suspended() && (!context.observed.is_queued || is_admitted)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const FAILED: UpgradeAction = UpgradeAction::Block { reason: BlockReason::UpgradeFailed, pending: None };

    #[rstest]
    #[case::failed_cluster_is_not_recreated(UpgradeAction::Create, true, true, FAILED)]
    #[case::pending_cluster_is_dropped(UpgradeAction::UsePending(0), true, true, FAILED)]
    #[case::different_revision_is_created(UpgradeAction::Create, false, true, UpgradeAction::Create)]
    #[case::no_active_cluster(UpgradeAction::Create, true, false, UpgradeAction::Create)]
    #[case::active_cluster_matches(UpgradeAction::Keep, true, true, UpgradeAction::Keep)]
    fn failed_upgrade_is_held_while_a_cluster_is_active(
        #[case] action: UpgradeAction,
        #[case] failed: bool,
        #[case] has_active: bool,
        #[case] expected: UpgradeAction,
    ) {
        assert_eq!(apply_failure(action, failed, has_active), expected);
    }
}
