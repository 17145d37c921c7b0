//! Condition messages of an incremental upgrade.

use super::Rollout;
use super::state_machine::{ClusterShare, RolloutAction, WaitReason};
use crate::serve::matches_spec;
use crate::{ServiceContext, upgrade_failure};

/// Returns the traffic and capacity of both clusters and what the next step waits for; None if no
/// incremental upgrade is in progress.
pub(crate) fn progress_message(context: &ServiceContext<'_>) -> Option<String> {
    let transition = context.rollout.as_ref()?;
    let (active, pending) = (context.clusters.active.as_ref()?, context.pending_cluster()?);
    let share = |side: ClusterShare| format!("{}% of the traffic at {}% capacity", side.traffic, side.capacity);
    let text = format!(
        "RayCluster {} receives {}, RayCluster {} receives {}",
        active.name(),
        share(transition.active_share),
        pending.name(),
        share(transition.pending_share)
    );
    Some(wait_message(transition).map_or_else(|| text.clone(), |waits| format!("{text}; {waits}")))
}

fn wait_message(transition: &Rollout) -> Option<String> {
    let (gaining, losing) = if transition.is_rollback { ("active", "pending") } else { ("pending", "active") };
    match &transition.next_action {
        Err(obstacle) => Some(format!("no progress: {obstacle}")),
        Ok(RolloutAction::Wait(WaitReason::Until(due))) => Some(format!("next step at {due}")),
        Ok(RolloutAction::Wait(WaitReason::Replicas(share))) => {
            Some(format!("waiting for replicas of the {gaining} cluster that can serve {share}% of the traffic"))
        }
        Ok(RolloutAction::Wait(WaitReason::PodTermination)) => {
            Some(format!("waiting for surplus pods of the {losing} cluster to terminate"))
        }
        Ok(
            RolloutAction::Wait(WaitReason::StatusUpdate)
            | RolloutAction::MoveTraffic(_)
            | RolloutAction::RaiseCapacity(_)
            | RolloutAction::LowerCapacity(_)
            | RolloutAction::Done,
        ) => None,
    }
}

/// Returns why an incremental upgrade is rolled back; None if it is not.
pub(crate) fn rollback_message(context: &ServiceContext<'_>) -> Option<&'static str> {
    context.rollout.as_ref().filter(|transition| transition.is_rollback)?;
    let active = context.clusters.active.as_ref()?;
    if context
        .desired
        .as_ref()
        .is_ok_and(|desired| upgrade_failure::failure_reason(context.observed.service, desired).is_some())
    {
        return Some("the upgrade failed: traffic and capacity return to the active cluster");
    }
    Some(match matches_spec(context, active) {
        true => "the spec matches the active cluster again: traffic and capacity return to it",
        false => "the spec requires a different cluster: traffic and capacity return to the active cluster first",
    })
}
