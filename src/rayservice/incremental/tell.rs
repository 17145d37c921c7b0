//! What is told of an upgrade in steps.

use super::Transition;
use super::machine::{Move, Side, Wait};
use crate::serve::is_made_from_spec;
use crate::{Scene, failed};

/// How far an upgrade is, and what its next step waits for.
pub(crate) fn progress(scene: &Scene<'_>) -> Option<String> {
    let transition = scene.transition.as_ref()?;
    let (active, pending) = (scene.family.active.as_ref()?, scene.pending()?);
    let share = |side: Side| format!("{} % of the traffic on {} % capacity", side.traffic, side.capacity);
    let text = format!(
        "RayCluster {} has {}, RayCluster {} has {}",
        active.name(),
        share(transition.active),
        pending.name(),
        share(transition.pending)
    );
    Some(waits_for(transition).map_or_else(|| text.clone(), |waits| format!("{text}; {waits}")))
}

fn waits_for(transition: &Transition) -> Option<String> {
    let (to, from) = if transition.returning { ("active", "pending") } else { ("pending", "active") };
    match &transition.next {
        Err(obstacle) => Some(format!("nothing moves: {obstacle}")),
        Ok(Move::Wait(Wait::Until(due))) => Some(format!("the next step is due at {due}")),
        Ok(Move::Wait(Wait::Replicas(share))) => {
            Some(format!("the next step waits for replicas of the {to} cluster that can take {share} % of the traffic"))
        }
        Ok(Move::Wait(Wait::Pods)) => {
            Some(format!("the next step waits until pods that the {from} cluster does not need any more are gone"))
        }
        Ok(Move::Wait(Wait::Record) | Move::Traffic(_) | Move::Raise(_) | Move::Lower(_) | Move::Done) => None,
    }
}

/// Why an upgrade is taken back, if it is.
pub(crate) fn rollback(scene: &Scene<'_>) -> Option<&'static str> {
    scene.transition.as_ref().filter(|transition| transition.returning)?;
    let active = scene.family.active.as_ref()?;
    if scene.goal.as_ref().is_ok_and(|goal| failed::reason(scene.view.service, goal).is_some()) {
        return Some("the upgrade has failed: traffic and capacity go back to the active cluster");
    }
    Some(match is_made_from_spec(scene, active) {
        true => "the spec is that of the active cluster again: traffic and capacity go back to it",
        false => "the spec asks for another cluster: traffic and capacity go back to the active one first",
    })
}
