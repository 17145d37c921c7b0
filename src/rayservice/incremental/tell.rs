//! Condition messages of an incremental upgrade.

use super::Transition;
use super::machine::{Move, Side, Wait};
use crate::serve::is_made_from_spec;
use crate::{Scene, failed};

/// Returns the traffic and capacity of both clusters and what the next step waits for; None if no
/// incremental upgrade is in progress.
pub(crate) fn progress(context: &Scene<'_>) -> Option<String> {
    let transition = context.transition.as_ref()?;
    let (active, pending) = (context.family.active.as_ref()?, context.pending()?);
    let share = |side: Side| format!("{}% of the traffic at {}% capacity", side.traffic, side.capacity);
    let text = format!(
        "RayCluster {} receives {}, RayCluster {} receives {}",
        active.name(),
        share(transition.active),
        pending.name(),
        share(transition.pending)
    );
    Some(waits_for(transition).map_or_else(|| text.clone(), |waits| format!("{text}; {waits}")))
}

fn waits_for(transition: &Transition) -> Option<String> {
    let (gaining, losing) = if transition.returning { ("active", "pending") } else { ("pending", "active") };
    match &transition.next {
        Err(obstacle) => Some(format!("no progress: {obstacle}")),
        Ok(Move::Wait(Wait::Until(due))) => Some(format!("next step at {due}")),
        Ok(Move::Wait(Wait::Replicas(share))) => {
            Some(format!("waiting for replicas of the {gaining} cluster that can serve {share}% of the traffic"))
        }
        Ok(Move::Wait(Wait::Pods)) => Some(format!("waiting for surplus pods of the {losing} cluster to terminate")),
        Ok(Move::Wait(Wait::Record) | Move::Traffic(_) | Move::Raise(_) | Move::Lower(_) | Move::Done) => None,
    }
}

/// Returns why an incremental upgrade is rolled back; None if it is not.
pub(crate) fn rollback(context: &Scene<'_>) -> Option<&'static str> {
    context.transition.as_ref().filter(|transition| transition.returning)?;
    let active = context.family.active.as_ref()?;
    if context.goal.as_ref().is_ok_and(|desired| failed::reason(context.view.service, desired).is_some()) {
        return Some("the upgrade failed: traffic and capacity return to the active cluster");
    }
    Some(match is_made_from_spec(context, active) {
        true => "the spec matches the active cluster again: traffic and capacity return to it",
        false => "the spec requires a different cluster: traffic and capacity return to the active cluster first",
    })
}
