//! Failed incremental upgrades: traffic and capacity return to the active cluster, and the same
//! upgrade is not retried until the spec changes.
//!
//! The failed revision is recorded on the RayService before anything is rolled back; otherwise a
//! restarted process would continue the upgrade.

use jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

use super::family::Child;
use super::incremental;
use super::upgrade::{Reason, Step};
use super::{Goal, Scene};
use sluice_api::condition;
use sluice_api::ray::step_choices::{DEADLINE_ANNOTATION, FAILED_ANNOTATION, UNHEALTHY_SINCE_ANNOTATION, deadline};
use sluice_api::ray::{RayCluster, RayService};
use sluice_api::sluice::ADMITTED;
use sluice_plan::{Note, Plan, Write};

/// Status of an application whose deployment Serve no longer retries.
const DEPLOY_FAILED: &str = "DEPLOY_FAILED";

/// Identifies one upgrade attempt by its RayCluster hash and Serve configuration hash.
fn revision(desired: &Goal) -> String {
    format!("{}/{}", desired.hash, desired.config.hash())
}

/// Returns the failed revision and the reason recorded on the RayService; None if there is no
/// record.
fn recorded(service: &RayService) -> Option<(&str, &str)> {
    service.annotations().get(FAILED_ANNOTATION)?.split_once(": ")
}

/// Returns why the upgrade to the desired revision failed; None if it did not fail.
pub(super) fn reason<'a>(service: &'a RayService, desired: &Goal) -> Option<&'a str> {
    recorded(service).filter(|(failed, _)| *failed == revision(desired)).map(|(_, why)| why)
}

/// Replaces an upgrade that has failed by a hold while another cluster is active: the failed
/// cluster is neither created nor kept.
pub(super) fn decide(action: Step, has_failed: bool, has_active: bool) -> Step {
    let is_upgrade = matches!(action, Step::Create | Step::Continue(_) | Step::UpdatePending(_));
    if has_active && is_upgrade && has_failed { Step::Hold(Reason::Failed, None) } else { action }
}

/// Records a failed upgrade on the RayService, and removes the record once the spec changes or the
/// active cluster matches.
pub(super) fn plan(context: &Scene<'_>, plan: &mut Plan) {
    let (service, Ok(desired)) = (context.view.service, context.goal) else { return };
    let is_up_to_date = matches!(context.step, Step::Keep | Step::UpdateActive);
    let mut next = service.clone();
    if recorded(service).is_some_and(|(failed, _)| is_up_to_date || failed != revision(desired)) {
        next.annotations_mut().remove(FAILED_ANNOTATION);
        return plan.write(Write::patch(service, &next));
    }
    let Some(child) = upgrading(context) else { return };
    match trouble(context, child, desired) {
        Trouble::None => {}
        Trouble::Until(due) => plan.wake(due),
        Trouble::Failed(why) => {
            let text = format!("Upgrade to RayCluster {} failed: {why}", child.name());
            next.annotations_mut().insert(FAILED_ANNOTATION.to_owned(), format!("{}: {why}", revision(desired)));
            plan.write(Write::patch(service, &next));
            plan.notes.push(Note::warning(service, "UpgradeFailed", text));
        }
    }
}

/// Returns the pending cluster of an incremental upgrade; None if none is in progress.
fn upgrading<'s>(context: &'s Scene<'_>) -> Option<&'s Child<'s>> {
    context.family.active.as_ref()?;
    incremental::options(context.view.service)?;
    context.pending().filter(|_| matches!(context.step, Step::Continue(_) | Step::UpdatePending(_)))
}

/// Result of checking the pending cluster for failure.
enum Trouble {
    /// It has not failed, or no deadline applies.
    None,
    /// It is unhealthy and fails at this time unless it recovers.
    Until(Timestamp),
    /// It failed for this reason.
    Failed(String),
}

fn trouble(context: &Scene<'_>, child: &Child<'_>, desired: &Goal) -> Trouble {
    let status = child.current_status().filter(|_| child.applied_config() == Some(desired.config.hash()));
    let failed = status
        .and_then(|status| status.applications.iter().find(|(_, application)| application.status == DEPLOY_FAILED));
    if let Some((name, application)) = failed {
        return Trouble::Failed(format!("application {name} is {DEPLOY_FAILED}: {}", application.told()));
    }
    let Ok(Some(deadline)) = deadline(&context.view.service.metadata) else { return Trouble::None };
    let (Some(since), Health::Ill(reason)) = (ill_since(child.cluster), health(context, child, desired)) else {
        return Trouble::None;
    };
    let due = since.saturating_add(deadline).unwrap_or(Timestamp::MAX);
    if due > context.view.now {
        return Trouble::Until(due);
    }
    Trouble::Failed(format!("the cluster was not healthy {}; {reason}", within(deadline)))
}

fn within(deadline: SignedDuration) -> String {
    format!("within {deadline:#} (annotation {DEADLINE_ANNOTATION})")
}

/// Health of a RayCluster that is being upgraded to.
enum Health {
    /// It is healthy, or pending for quota, which does not count as unhealthy.
    Well,
    /// It is unhealthy for this reason.
    Ill(String),
    /// Not observed yet.
    Unknown,
}

fn health(context: &Scene<'_>, child: &Child<'_>, desired: &Goal) -> Health {
    match super::serve::waits_for(context, child, &desired.config).filter(|_| may_run(context, child)) {
        None => Health::Well,
        Some(reason) if is_known(child, desired) => Health::Ill(reason),
        Some(_) => Health::Unknown,
    }
}

/// Returns true if the reason why the cluster cannot serve yet was observed, rather than Serve not
/// having been queried.
fn is_known(child: &Child<'_>, desired: &Goal) -> bool {
    if child.is_mute() {
        return true;
    }
    let config = desired.config.hash();
    let is_applied = child.applied_config() == Some(config) || child.serve.refusal(config).is_some();
    child.current_status().is_some() && is_applied
}

/// Records on the cluster since when it has been continuously unhealthy, if a deadline is set.
pub(super) fn note(context: &Scene<'_>, child: &Child<'_>, cluster: &mut RayCluster) {
    let Ok(desired) = context.goal else { return };
    let is_limited = matches!(deadline(&context.view.service.metadata), Ok(Some(_)));
    let is_upgraded = upgrading(context).is_some_and(|upgrading| upgrading.name() == child.name());
    match if is_limited && is_upgraded { health(context, child, desired) } else { Health::Well } {
        Health::Unknown => {}
        Health::Well => {
            cluster.annotations_mut().remove(UNHEALTHY_SINCE_ANNOTATION);
        }
        Health::Ill(_) => {
            let since = ill_since(cluster).unwrap_or_else(|| condition::whole_seconds(context.view.now));
            cluster.annotations_mut().insert(UNHEALTHY_SINCE_ANNOTATION.to_owned(), since.to_string());
        }
    }
}

/// Returns the recorded start of the unhealthy period. A value that cannot be parsed was tampered
/// with and counts as None.
fn ill_since(cluster: &RayCluster) -> Option<Timestamp> {
    cluster.annotations().get(UNHEALTHY_SINCE_ANNOTATION)?.parse().ok()
}

/// Returns true if the cluster has its quota or needs none.
fn may_run(context: &Scene<'_>, child: &Child<'_>) -> bool {
    let status = context.view.service.status.as_ref();
    let is_admitted = status.is_some_and(|status| condition::is_true(&status.conditions, ADMITTED));
    !child.is_suspended() && (!context.view.gated || is_admitted)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const FAILED: Step = Step::Hold(Reason::Failed, None);

    #[rstest]
    #[case::failed_cluster_is_not_recreated(Step::Create, true, true, FAILED)]
    #[case::pending_cluster_is_dropped(Step::Continue(0), true, true, FAILED)]
    #[case::different_revision_is_created(Step::Create, false, true, Step::Create)]
    #[case::no_active_cluster(Step::Create, true, false, Step::Create)]
    #[case::active_cluster_matches(Step::Keep, true, true, Step::Keep)]
    fn failed_upgrade_is_held_while_a_cluster_is_active(
        #[case] action: Step,
        #[case] failed: bool,
        #[case] has_active: bool,
        #[case] expected: Step,
    ) {
        assert_eq!(decide(action, failed, has_active), expected);
    }
}
