//! Upgrades that waited for quota for too long: the cluster that was to serve next is taken back, and not made again until
//! another is wanted.
//!
//! What was given up is noted on the service before the cluster goes: else the next process would make it anew.

use jiff::{SignedDuration, Timestamp};
use kube_core::ResourceExt;

use super::Scene;
use super::family::Child;
use super::upgrade::{Reason, Step};
use sluice_api::condition;
use sluice_api::ray::names;
use sluice_api::ray::upgrade_choices::{GIVEN_UP_ANNOTATION, TIMEOUT_ANNOTATION, admission_timeout, given_up};
use sluice_plan::{Note, Plan, Write};
use sluice_api::sluice::ADMITTED;

/// What is to be done once it is seen which cluster was given up: that one is neither made nor kept, as long as another serves.
pub(super) fn decide(step: Step, given_up: Option<&str>, wanted: &str, serves: bool) -> Step {
    let upgrades = matches!(step, Step::Create | Step::Continue(_) | Step::UpdatePending(_));
    if serves && upgrades && given_up == Some(wanted) { Step::Hold(Reason::GivenUp, None) } else { step }
}

/// Notes on the service that its upgrade is given up, and takes the note away once something else is wanted.
pub(super) fn plan(scene: &Scene<'_>, plan: &mut Plan) {
    let (service, Ok(goal)) = (scene.view.service, scene.goal) else { return };
    let noted = given_up(&service.metadata);
    let is_settled = matches!(scene.step, Step::Keep | Step::UpdateActive);
    if noted.is_some_and(|noted| is_settled || noted != goal.hash) {
        let mut forgotten = service.clone();
        forgotten.annotations_mut().remove(GIVEN_UP_ANNOTATION);
        return plan.write(Write::patch(service, &forgotten));
    }
    let Some((child, since)) = waiting(scene) else { return };
    let Ok(Some(timeout)) = admission_timeout(&service.metadata) else { return };
    let due = since.saturating_add(timeout).unwrap_or(Timestamp::MAX);
    if due > scene.view.now {
        return plan.wake(due);
    }
    let mut noted = service.clone();
    noted.annotations_mut().insert(GIVEN_UP_ANNOTATION.to_owned(), goal.hash.clone());
    plan.write(Write::patch(service, &noted));
    plan.notes.push(Note::warning(service, "UpgradeAdmissionTimedOut", why(scene, child, timeout)));
}

/// The cluster that is to serve next and has no quota, and since when. One that may start as soon as the old one has stopped has
/// quota.
fn waiting<'s>(scene: &'s Scene<'_>) -> Option<(&'s Child<'s>, Timestamp)> {
    let child = scene.pending().filter(|_| matches!(scene.step, Step::Continue(_) | Step::UpdatePending(_)))?;
    let serves = scene.family.active.as_ref().is_some_and(|active| !active.is_suspended());
    let conditions = child.cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let stops = child.head.is_some() || condition::is_true(conditions, names::CLUSTER_SUSPENDING);
    if !scene.view.gated || !serves || !child.is_suspended() || stops {
        return None;
    }
    // One that had quota before waits since it lost that.
    let suspended = condition::get(conditions, names::CLUSTER_SUSPENDED).filter(|found| found.status == "True");
    let made = child.cluster.creation_timestamp()?.0;
    Some((child, suspended.map_or(made, |suspended| made.max(suspended.last_transition_time.0))))
}

fn why(scene: &Scene<'_>, child: &Child<'_>, timeout: SignedDuration) -> String {
    let status = scene.view.service.status.as_ref();
    let admitted = status.and_then(|status| condition::get(&status.conditions, ADMITTED));
    let last = admitted.filter(|said| said.status == "False").map(|said| format!(". {}", said.message));
    format!(
        "RayCluster {} was not admitted within {timeout:#} (annotation {TIMEOUT_ANNOTATION}), and is taken back{}",
        child.name(),
        last.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GIVEN_UP: Step = Step::Hold(Reason::GivenUp, None);

    #[rstest]
    #[case::is_not_made_again(Step::Create, Some("new"), true, GIVEN_UP)]
    #[case::is_taken_back(Step::Continue(0), Some("new"), true, GIVEN_UP)]
    #[case::is_taken_back_before_it_gets_more_groups(Step::UpdatePending(0), Some("new"), true, GIVEN_UP)]
    #[case::another_is_made(Step::Create, Some("other"), true, Step::Create)]
    #[case::nothing_was_given_up(Step::Create, None, true, Step::Create)]
    #[case::nothing_serves(Step::Create, Some("new"), false, Step::Create)]
    #[case::what_serves_is_wanted(Step::Keep, Some("new"), true, Step::Keep)]
    #[case::what_serves_gets_more_groups(Step::UpdateActive, Some("new"), true, Step::UpdateActive)]
    fn what_was_given_up(
        #[case] step: Step,
        #[case] given_up: Option<&str>,
        #[case] serves: bool,
        #[case] expected: Step,
    ) {
        assert_eq!(decide(step, given_up, "new", serves), expected);
    }
}
