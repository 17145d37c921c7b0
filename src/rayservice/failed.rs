//! Upgrades in steps that fail: traffic and capacity go back, and what failed is not tried again until something else is asked for.
//!
//! What failed is noted on the service before anything goes back: else the next process would go on with it.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::family::Child;
use super::incremental;
use super::upgrade::{Reason, Step};
use super::{Goal, Scene};
use crate::api::condition;
use crate::api::ray::step_choices::{DEADLINE_ANNOTATION, FAILED_ANNOTATION, deadline};
use crate::api::ray::{RayService, names};
use crate::engine::plan::{Note, Plan, Write};
use crate::jobframework::report::ADMITTED;

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
        return Trouble::Failed(format!("application {name} is {DEPLOY_FAILED}: {}", application.message.trim()));
    }
    let Ok(Some(deadline)) = deadline(&scene.view.service.metadata) else { return Trouble::None };
    let Some(ill) = super::serve::waits_for(scene, child, &goal.config) else { return Trouble::None };
    let Some(since) = begun(scene, child) else { return Trouble::None };
    let due = since.saturating_add(deadline).unwrap_or(Timestamp::MAX);
    if due > scene.view.now {
        return Trouble::Until(due);
    }
    Trouble::Failed(format!("it was not healthy {}; {ill}", within(deadline)))
}

fn within(deadline: SignedDuration) -> String {
    format!("within {deadline:#} (annotation {DEADLINE_ANNOTATION})")
}

/// Since when a cluster could have got healthy: since its gate was opened, or traffic moved to it last. Time that is spent waiting for
/// quota doesn't count.
fn begun(scene: &Scene<'_>, child: &Child<'_>) -> Option<Timestamp> {
    let conditions = |status: Option<&Vec<_>>, kind: &str| {
        let found = condition::get(status.map(Vec::as_slice).unwrap_or_default(), kind)?;
        Some((found.status == "True", found.last_transition_time.0))
    };
    let service = scene.view.service.status.as_ref();
    let admitted = conditions(service.map(|status| &status.conditions), ADMITTED);
    if child.is_suspended() || (scene.view.gated && !admitted.is_some_and(|(admitted, _)| admitted)) {
        return None;
    }
    let cluster = child.cluster.status.as_ref().map(|status| &status.conditions);
    let opened = conditions(cluster, names::CLUSTER_SUSPENDED).map(|(_, since)| since);
    let made = child.cluster.creation_timestamp().map(|time| time.0);
    let moved = incremental::moved_at(scene.view.service);
    let admitted = admitted.filter(|_| scene.view.gated).map(|(_, since)| since);
    [made, opened, moved, admitted].into_iter().flatten().max()
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
