//! Upgrades in steps that fail: traffic and capacity go back, and what failed is not tried again until something else is asked for.
//!
//! What failed is noted on the service before anything goes back: else the next process would go on with it.

use jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

use super::family::Child;
use super::incremental;
use super::upgrade::{Reason, Step};
use super::{Goal, Scene};
use sluice_api::condition;
use sluice_api::ray::step_choices::{DEADLINE_ANNOTATION, FAILED_ANNOTATION, UNHEALTHY_SINCE_ANNOTATION, deadline};
use sluice_api::ray::{RayCluster, RayService};
use sluice_plan::{Note, Plan, Write};
use sluice_api::sluice::ADMITTED;

/// The state of an application that Serve doesn't deploy by itself any more.
const DEPLOY_FAILED: &str = "DEPLOY_FAILED";

/// What tells one try from another: the cluster, and what it was to serve.
fn revision(goal: &Goal) -> String {
    format!("{}/{}", goal.hash, goal.config.hash())
}

/// What is noted on a service as failed: the revision, and why.
fn noted(service: &RayService) -> Option<(&str, &str)> {
    service.annotations().get(FAILED_ANNOTATION)?.split_once(": ")
}

/// Why what is wanted isn't tried, if it has failed.
pub(super) fn reason<'a>(service: &'a RayService, goal: &Goal) -> Option<&'a str> {
    noted(service).filter(|(failed, _)| *failed == revision(goal)).map(|(_, why)| why)
}

/// What is to be done once it is seen that this has failed: it is neither made nor kept, as long as another serves.
pub(super) fn decide(step: Step, has_failed: bool, serves: bool) -> Step {
    let upgrades = matches!(step, Step::Create | Step::Continue(_) | Step::UpdatePending(_));
    if serves && upgrades && has_failed { Step::Hold(Reason::Failed, None) } else { step }
}

/// Notes on the service that its upgrade has failed, and takes the note away once something else is wanted.
pub(super) fn plan(scene: &Scene<'_>, plan: &mut Plan) {
    let (service, Ok(goal)) = (scene.view.service, scene.goal) else { return };
    let is_settled = matches!(scene.step, Step::Keep | Step::UpdateActive);
    let mut next = service.clone();
    if noted(service).is_some_and(|(failed, _)| is_settled || failed != revision(goal)) {
        next.annotations_mut().remove(FAILED_ANNOTATION);
        return plan.write(Write::patch(service, &next));
    }
    let Some(child) = upgrading(scene) else { return };
    match trouble(scene, child, goal) {
        Trouble::None => {}
        Trouble::Until(due) => plan.wake(due),
        Trouble::Failed(why) => {
            let text = format!("RayCluster {} is given up: {why}", child.name());
            next.annotations_mut().insert(FAILED_ANNOTATION.to_owned(), format!("{}: {why}", revision(goal)));
            plan.write(Write::patch(service, &next));
            plan.notes.push(Note::warning(service, "UpgradeFailed", text));
        }
    }
}

/// The cluster that is to take over step by step.
fn upgrading<'s>(scene: &'s Scene<'_>) -> Option<&'s Child<'s>> {
    scene.family.active.as_ref()?;
    incremental::options(scene.view.service)?;
    scene.pending().filter(|_| matches!(scene.step, Step::Continue(_) | Step::UpdatePending(_)))
}

/// What is wrong with a cluster.
enum Trouble {
    None,
    /// Something is, and has failed if it lasts so long.
    Until(Timestamp),
    /// This has failed.
    Failed(String),
}

fn trouble(scene: &Scene<'_>, child: &Child<'_>, goal: &Goal) -> Trouble {
    let status = child.current_status().filter(|_| child.applied_config() == Some(goal.config.hash()));
    let failed = status.and_then(|status| status.applications.iter().find(|(_, it)| it.status == DEPLOY_FAILED));
    if let Some((name, application)) = failed {
        return Trouble::Failed(format!("application {name} is {DEPLOY_FAILED}: {}", application.told()));
    }
    let Ok(Some(deadline)) = deadline(&scene.view.service.metadata) else { return Trouble::None };
    let (Some(since), Health::Ill(ill)) = (ill_since(child.cluster), health(scene, child, goal)) else {
        return Trouble::None;
    };
    let due = since.saturating_add(deadline).unwrap_or(Timestamp::MAX);
    if due > scene.view.now {
        return Trouble::Until(due);
    }
    Trouble::Failed(format!("it was not healthy {}; {ill}", within(deadline)))
}

fn within(deadline: SignedDuration) -> String {
    format!("within {deadline:#} (annotation {DEADLINE_ANNOTATION})")
}

/// What is known of the health of a cluster.
enum Health {
    /// It is well, or waits for quota, which doesn't count.
    Well,
    /// It isn't, because of this.
    Ill(String),
    /// Nobody has been asked yet, or it was too little to tell.
    Unknown,
}

fn health(scene: &Scene<'_>, child: &Child<'_>, goal: &Goal) -> Health {
    match super::serve::waits_for(scene, child, &goal.config).filter(|_| may_run(scene, child)) {
        None => Health::Well,
        Some(ill) if is_known(child, goal) => Health::Ill(ill),
        Some(_) => Health::Unknown,
    }
}

/// Whether what a cluster is said to wait for was seen, and not only not asked for yet.
fn is_known(child: &Child<'_>, goal: &Goal) -> bool {
    if child.is_mute() {
        return true;
    }
    let config = goal.config.hash();
    let is_applied = child.applied_config() == Some(config) || child.serve.refusal(config).is_some();
    child.current_status().is_some() && is_applied
}

/// Notes on a cluster since when it has been ill without a break, where there is a limit to that.
pub(super) fn note(scene: &Scene<'_>, child: &Child<'_>, cluster: &mut RayCluster) {
    let Ok(goal) = scene.goal else { return };
    let is_limited = matches!(deadline(&scene.view.service.metadata), Ok(Some(_)));
    let is_upgraded = upgrading(scene).is_some_and(|upgrading| upgrading.name() == child.name());
    match if is_limited && is_upgraded { health(scene, child, goal) } else { Health::Well } {
        Health::Unknown => {}
        Health::Well => {
            cluster.annotations_mut().remove(UNHEALTHY_SINCE_ANNOTATION);
        }
        Health::Ill(_) => {
            let since = ill_since(cluster).unwrap_or_else(|| condition::whole_seconds(scene.view.now));
            cluster.annotations_mut().insert(UNHEALTHY_SINCE_ANNOTATION.to_owned(), since.to_string());
        }
    }
}

/// Since when a cluster is noted as ill. What can't be read has been tampered with, and says nothing.
fn ill_since(cluster: &RayCluster) -> Option<Timestamp> {
    cluster.annotations().get(UNHEALTHY_SINCE_ANNOTATION)?.parse().ok()
}

/// Whether a cluster has the quota that it needs, if it needs any.
fn may_run(scene: &Scene<'_>, child: &Child<'_>) -> bool {
    let status = scene.view.service.status.as_ref();
    let is_admitted = status.is_some_and(|status| condition::is_true(&status.conditions, ADMITTED));
    !child.is_suspended() && (!scene.view.gated || is_admitted)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const FAILED: Step = Step::Hold(Reason::Failed, None);

    #[rstest]
    #[case::is_not_made_again(Step::Create, true, true, FAILED)]
    #[case::is_taken_back(Step::Continue(0), true, true, FAILED)]
    #[case::another_is_made(Step::Create, false, true, Step::Create)]
    #[case::nothing_serves(Step::Create, true, false, Step::Create)]
    #[case::what_serves_is_wanted(Step::Keep, true, true, Step::Keep)]
    fn what_has_failed(#[case] step: Step, #[case] failed: bool, #[case] serves: bool, #[case] expected: Step) {
        assert_eq!(decide(step, failed, serves), expected);
    }
}
