//! Incremental upgrades: capacity and traffic move from the active to the pending cluster step by
//! step.
//!
//! Every decision is persisted before it is acted on: capacity in the status of the RayService,
//! traffic in the weights of its route. A restarted process resumes from there.

mod capacity;
mod conditions;
pub mod gateway;
pub mod http_route;
mod idle_workers;
pub mod options;
mod plan_routing;
pub mod state_machine;
#[cfg(test)]
mod tests;
pub mod workers;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::ResourceExt;

use super::clusters::{ServiceCluster, active_cluster_name, pending_cluster_name};
use super::upgrade::UpgradeAction;
use super::{ObservedService, ServiceContext, serve_config_history, upgrade_failure};
pub(super) use conditions::{progress_message, rollback_message};
use idle_workers::ReplicaLocations;
use options::IncrementalOptions;
pub(super) use plan_routing::{plan_routing, release_routes};
use sluice_api::condition;
use sluice_api::ray::incremental_annotations::{self, RollbackMode, UPGRADE_DIRECTIVE_ANNOTATION, UpgradeDirective};
use sluice_api::ray::{RayCluster, RayService, RayServiceStatus};
use state_machine::{
    ClusterShare, FULL, Percent, RolloutAction, RolloutConfig, RolloutObservation, RolloutPosition, WaitReason,
};

/// Returns the options of incremental upgrades; None if the RayService is not upgraded
/// incrementally. An upgrade in progress is finished immediately if the strategy was changed, and
/// is frozen while the options are invalid.
pub(super) fn effective_options(service: &RayService) -> Option<IncrementalOptions> {
    match IncrementalOptions::from_service(service) {
        Ok(Some(options)) => Some(options),
        Ok(None) => is_in_progress(service).then_some(IncrementalOptions::IMMEDIATE),
        Err(_) => has_recorded_capacity(service).then_some(IncrementalOptions::FROZEN),
    }
}

/// Returns true if the status records the active cluster's capacity, as it does for incremental
/// upgrades only.
fn has_recorded_capacity(service: &RayService) -> bool {
    let entry = service.status.as_ref().and_then(|status| status.active_service_status.as_ref());
    entry.is_some_and(|entry| entry.target_capacity.is_some())
}

/// Returns true if the status records an incremental upgrade in progress.
pub fn is_in_progress(service: &RayService) -> bool {
    let status = service.status.as_ref();
    let [active, pending] = [active_cluster_name(service), pending_cluster_name(service)];
    let entry = status.and_then(|status| status.pending_service_status.as_ref());
    active.is_some() && pending.is_some() && entry.is_some_and(|entry| entry.target_capacity.is_some())
}

/// Returns the status entry of a cluster; None if the status does not name it.
fn recorded_status<'a>(service: &'a RayService, cluster: &RayCluster) -> Option<&'a RayServiceStatus> {
    let status = service.status.as_ref()?;
    let entries = [&status.active_service_status, &status.pending_service_status].into_iter().flatten();
    let name = cluster.name_any();
    entries.into_iter().find(|entry| entry.ray_cluster_name.as_deref() == Some(name.as_str()))
}

/// Returns the capacity of a cluster according to the status, and its traffic according to the
/// route, or to the status if the route has no weights. `without_record` is the default of both, in
/// percent.
fn cluster_share(observed: &ObservedService<'_>, cluster: &RayCluster, without_record: Percent) -> ClusterShare {
    let entry = recorded_status(observed.service, cluster);
    let percent = |recorded: i32| Percent::try_from(recorded.clamp(0, 100)).ok();
    let capacity = entry.and_then(|entry| entry.target_capacity).and_then(percent);
    // A route that was deleted or overwritten by its owner does not reflect the progress of the
    // upgrade.
    let traffic = || entry.and_then(|entry| entry.traffic_routed_percent).and_then(percent);
    ClusterShare {
        capacity: capacity.unwrap_or(without_record),
        traffic: observed.routing.traffic_share(cluster).or_else(traffic).unwrap_or(without_record),
    }
}

/// Returns the index of the active cluster according to the status and the route. The serve Service
/// follows the traffic and is not decisive. The pending cluster becomes active once the other one
/// has nothing left.
pub(super) fn find_active_index(observed: &ObservedService<'_>, children: &[ServiceCluster<'_>]) -> Option<usize> {
    let index_of = |name: Option<&str>| children.iter().position(|child| Some(child.name().as_str()) == name);
    let (active, pending) =
        (index_of(active_cluster_name(observed.service)), index_of(pending_cluster_name(observed.service)));
    if let (Some(active), Some(pending)) = (active, pending) {
        let is_released = cluster_share(observed, children[active].cluster, FULL).capacity == 0;
        let gaining = cluster_share(observed, children[pending].cluster, 0);
        let is_complete = is_released && gaining == ClusterShare { capacity: FULL, traffic: FULL };
        return Some(if is_complete { pending } else { active });
    }
    let by_traffic = || {
        let share = |index: &usize| observed.routing.traffic_share(children[*index].cluster).unwrap_or(0);
        (0..children.len()).max_by_key(share).filter(|index| share(index) > 0)
    };
    active.or_else(by_traffic)
}

/// Replaces an action that would drop a pending cluster with capacity or traffic by a rollback to
/// the active cluster.
pub(super) fn roll_back_if_needed(
    observed: &ObservedService<'_>,
    active: Option<&ServiceCluster<'_>>,
    others: &[ServiceCluster<'_>],
    action: UpgradeAction,
) -> UpgradeAction {
    let Some(active) = active else { return action };
    let pending = others.iter().position(|child| Some(child.name().as_str()) == pending_cluster_name(observed.service));
    let Some(pending) = pending.filter(|pending| action.pending_index() != Some(*pending)) else { return action };
    let child = &others[pending];
    // A route that its owner overwrote no longer tells whether it had sent requests to a cluster with capacity.
    let is_route_overwritten = observed.routing.traffic_share(child.cluster).is_none();
    let may_have_served = recorded_status(observed.service, child.cluster).is_some_and(|entry| {
        let has_capacity = entry.target_capacity.is_some_and(|capacity| capacity > 0);
        entry.last_traffic_migrated_time.is_some() || is_route_overwritten && has_capacity
    });
    let is_restored = cluster_share(observed, active.cluster, FULL) == ClusterShare { capacity: FULL, traffic: FULL };
    let is_drained =
        cluster_share(observed, child.cluster, 0).traffic == 0 && (!may_have_served || child.delete_after().is_some());
    if is_restored && is_drained { action } else { UpgradeAction::RollBack(pending) }
}

/// Reason why no step of an incremental upgrade is possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RolloutObstacle {
    /// The whole upgrade is blocked.
    #[error("the upgrade is blocked")]
    UpgradeBlocked,
    /// Traffic can't be split, as described.
    #[error("{0}")]
    Routing(String),
    /// The owner paused it.
    #[error("it is paused by annotation {UPGRADE_DIRECTIVE_ANNOTATION}")]
    Paused,
}

/// Incremental upgrade in progress, forward or rolling back.
#[derive(Debug)]
pub(super) struct Rollout {
    options: IncrementalOptions,
    /// True if the upgrade is rolled back.
    is_rollback: bool,
    active_share: ClusterShare,
    pending_share: ClusterShare,
    /// Next action, or the reason why none is possible.
    next_action: Result<RolloutAction, RolloutObstacle>,
}

impl Rollout {
    pub(super) fn from_observed(
        observed: &ObservedService<'_>,
        active: Option<&ServiceCluster<'_>>,
        others: &[ServiceCluster<'_>],
        action: UpgradeAction,
    ) -> Option<Self> {
        let options = effective_options(observed.service)?;
        let active = active?;
        let returning = matches!(action, UpgradeAction::RollBack(_));
        let is_in_progress = returning
            || matches!(
                action,
                UpgradeAction::UsePending(_) | UpgradeAction::UpdatePending(_) | UpgradeAction::Block { .. }
            );
        let pending = others.get(action.pending_index().filter(|_| is_in_progress)?)?;
        let sides = (cluster_share(observed, active.cluster, FULL), cluster_share(observed, pending.cluster, 0));
        let position = match returning {
            true => RolloutPosition { gaining: sides.0, losing: sides.1 },
            false => RolloutPosition { gaining: sides.1, losing: sides.0 },
        };
        let (gaining, losing) = if returning { (active, pending) } else { (pending, active) };
        let obstacle = match action {
            UpgradeAction::Block { .. } => Some(RolloutObstacle::UpgradeBlocked),
            _ => {
                let (service, class) = (observed.service, options.gateway_class.as_deref());
                let obstacle = observed.routing.routing_obstacle(service, class, [active.cluster, pending.cluster]);
                obstacle.map(RolloutObstacle::Routing)
            }
        };
        let next = match obstacle {
            Some(obstacle) => Err(obstacle),
            None if !returning && directive(observed.service) == UpgradeDirective::Paused => {
                Err(RolloutObstacle::Paused)
            }
            // Acting on an unrecorded position would leave a restarted process with an inconsistent
            // one.
            None if !are_shares_recorded(observed, [(active, sides.0), (pending, sides.1)]) => {
                Ok(RolloutAction::Wait(WaitReason::StatusUpdate))
            }
            None => Ok(state_machine::next_action(
                position,
                &rollout_config(observed, &options, returning, position),
                &observe_rollout(observed, gaining, losing, position),
            )),
        };
        Some(Self { options, is_rollback: returning, active_share: sides.0, pending_share: sides.1, next_action: next })
    }

    /// Returns the shares after the next action: first of the active cluster, then of the pending
    /// one.
    fn shares_after_next_action(&self) -> (ClusterShare, ClusterShare) {
        let (gaining, losing) = if self.is_rollback {
            (self.active_share, self.pending_share)
        } else {
            (self.pending_share, self.active_share)
        };
        let position = RolloutPosition { gaining, losing };
        let RolloutPosition { gaining, losing } =
            self.next_action.as_ref().map_or(position, |action| position.after(*action));
        if self.is_rollback { (gaining, losing) } else { (losing, gaining) }
    }

    /// Returns true if the pending cluster receives most of the traffic.
    pub(super) fn is_pending_preferred(&self) -> bool {
        self.pending_share.traffic > self.active_share.traffic
    }

    /// Returns true if the rollback is complete, so that the pending cluster can be deleted.
    pub(super) fn is_rollback_complete(&self) -> bool {
        self.is_rollback && self.next_action == Ok(RolloutAction::Done)
    }
}

fn rollout_config(
    observed: &ObservedService<'_>,
    options: &IncrementalOptions,
    returning: bool,
    position: RolloutPosition,
) -> RolloutConfig {
    let service = observed.service;
    let is_promoted = directive(service) == UpgradeDirective::Promote;
    let immediate = match RollbackMode::from_annotations(&service.metadata).unwrap_or_default() {
        _ if !returning => is_promoted,
        // A failed cluster serves no request correctly, so traffic leaves it immediately.
        _ if observed
            .desired
            .as_ref()
            .is_ok_and(|desired| upgrade_failure::failure_reason(service, desired).is_some()) =>
        {
            true
        }
        RollbackMode::ImmediateAtFullCapacity => position.gaining.capacity == FULL,
        RollbackMode::Stepped => false,
        RollbackMode::Immediate => true,
    };
    let bake = incremental_annotations::bake_duration(&service.metadata).unwrap_or(SignedDuration::ZERO);
    RolloutConfig {
        max_surge: options.max_surge,
        step_size: options.step_size,
        interval: options.interval,
        bake: if is_promoted || returning { SignedDuration::ZERO } else { bake },
        is_immediate: immediate || options.interval.is_zero(),
        keeps_losing_capacity: returning,
    }
}

fn directive(service: &RayService) -> UpgradeDirective {
    UpgradeDirective::from_annotations(&service.metadata).unwrap_or_default()
}

fn observe_rollout(
    observed: &ObservedService<'_>,
    gaining: &ServiceCluster<'_>,
    losing: &ServiceCluster<'_>,
    position: RolloutPosition,
) -> RolloutObservation {
    RolloutObservation {
        servable_percent: servable_percent(observed, gaining, position.gaining.capacity),
        losing_servable_percent: servable_percent(observed, losing, position.losing.capacity),
        gaining_serves: observed.routing.has_ready_endpoints(gaining.cluster),
        losing_serves: observed.routing.has_ready_endpoints(losing.cluster),
        pods_released: are_surplus_pods_gone(observed, losing, position.losing.capacity),
        moved_at: last_traffic_move(observed.service),
        now: observed.now,
    }
}

/// Returns the share of the traffic that a cluster can serve, in percent: only replicas that run
/// since Serve was given the capacity, and pods that are endpoints of its Service, count.
fn servable_percent(observed: &ObservedService<'_>, child: &ServiceCluster<'_>, capacity: Percent) -> Percent {
    let Some(status) = child.current_status().filter(|_| !child.is_suspended()) else { return 0 };
    let is_configured =
        observed.desired.as_ref().is_ok_and(|desired| child.applied_config_hash() == Some(desired.serve_config.hash()));
    if !observed.routing.has_ready_endpoints(child.cluster) || (is_pending(observed, child) && !is_configured) {
        return 0;
    }
    let reported = status.target_capacity.unwrap_or(FULL.into());
    // The capacity that Serve reports, rounded down to whole percent and limited to the recorded
    // one.
    let reported = (0..=capacity).rev().find(|percent| f64::from(*percent) <= reported).unwrap_or(0);
    capacity::servable_percent(status, reported)
}

fn is_pending(observed: &ObservedService<'_>, child: &ServiceCluster<'_>) -> bool {
    active_cluster_name(observed.service) != Some(child.name().as_str())
}

/// Returns true if the surplus pods of a cluster at this capacity are gone.
fn are_surplus_pods_gone(observed: &ObservedService<'_>, child: &ServiceCluster<'_>, capacity: Percent) -> bool {
    if workers::is_autoscaled(child.cluster) {
        return !observed.is_queued || are_idle_workers_gone(observed, child, capacity);
    }
    let wanted = workers::replicas_by_group(child.cluster, &deployment_replicas(observed, child), capacity);
    let counts = idle_workers::count_by_group(worker_pods(observed, child));
    child.cluster.spec.worker_group_specs.iter().all(|group| {
        let hosts = group.num_of_hosts.unwrap_or(1).max(1);
        let max = wanted.get(&group.group_name).copied().unwrap_or(0).saturating_mul(hosts);
        let count = counts.get(&group.group_name).copied().unwrap_or(0);
        count <= u32::try_from(max).unwrap_or(0)
    })
}

/// Returns true if the Ray autoscaler has removed the workers that a cluster does not need at this
/// capacity. Where Serve does not report replica locations, only the elapsed time tells.
fn are_idle_workers_gone(observed: &ObservedService<'_>, child: &ServiceCluster<'_>, capacity: Percent) -> bool {
    let by_time = || {
        let moved = recorded_status(observed.service, child.cluster)
            .and_then(|entry| entry.last_traffic_migrated_time.as_ref());
        let due = moved.and_then(|moved| moved.0.checked_add(workers::removal_delay(child.cluster)).ok());
        due.is_none_or(|due| due <= observed.now)
    };
    let ReplicaLocations::On(occupied) = replica_locations(observed, child, capacity) else { return by_time() };
    let is_settled = child.current_status().is_some_and(|status| capacity::has_no_surplus_replicas(status, capacity));
    let all_hold = idle_workers::are_all_occupied(child.cluster, worker_pods(observed, child), &occupied);
    all_hold.map_or_else(by_time, |all_hold| is_settled && all_hold)
}

/// Returns where the replicas of a cluster run, provided that Serve reports this capacity.
fn replica_locations(observed: &ObservedService<'_>, child: &ServiceCluster<'_>, percent: Percent) -> ReplicaLocations {
    let is_unlimited = percent == FULL && !is_pending(observed, child);
    let limit = (!is_unlimited).then(|| f64::from(percent));
    match child.current_status() {
        Some(status) if status.target_capacity == limit => ReplicaLocations::from_status(status),
        None if is_safe_to_drain(observed, child) => ReplicaLocations::NotReported,
        _ => ReplicaLocations::Unknown,
    }
}

/// Returns true if removing workers of a cluster that does not respond loses no requests: it
/// receives none, or its upgrade has failed.
fn is_safe_to_drain(observed: &ObservedService<'_>, child: &ServiceCluster<'_>) -> bool {
    let has_failed = observed
        .desired
        .as_ref()
        .is_ok_and(|desired| upgrade_failure::failure_reason(observed.service, desired).is_some());
    let is_failed = has_failed && is_pending(observed, child) && child.is_unreachable();
    let has_share = observed.routing.route.is_none()
        || observed.routing.traffic_share(child.cluster).is_some_and(|share| share > 0);
    is_failed || !(has_share || observed.routing.has_ready_endpoints(child.cluster))
}

fn worker_pods<'v>(observed: &'v ObservedService<'_>, child: &ServiceCluster<'_>) -> &'v [&'v Pod] {
    observed.worker_pods.get(&child.name()).map(Vec::as_slice).unwrap_or_default()
}

/// Returns the number of replicas of each deployment at full capacity, according to the
/// configuration of the cluster.
fn deployment_replicas(observed: &ObservedService<'_>, child: &ServiceCluster<'_>) -> Vec<u32> {
    let from_spec = || {
        let config = &observed.desired.as_ref().ok()?.serve_config;
        (is_pending(observed, child) || child.applied_config_hash() == Some(config.hash())).then_some(config)
    };
    serve_config_history::last_applied(observed, child)
        .or_else(from_spec)
        .map(sluice_plan::ServeConfig::replicas)
        .unwrap_or_default()
}

/// Returns true if the status records the current shares of both clusters.
fn are_shares_recorded(observed: &ObservedService<'_>, sides: [(&ServiceCluster<'_>, ClusterShare); 2]) -> bool {
    sides.iter().all(|(child, side)| {
        let entry = recorded_status(observed.service, child.cluster);
        let as_recorded =
            (entry.and_then(|entry| entry.target_capacity), entry.and_then(|entry| entry.traffic_routed_percent));
        as_recorded == (Some(side.capacity.into()), Some(side.traffic.into()))
    })
}

/// Returns when traffic moved last in the current upgrade; None if it has not.
fn last_traffic_move(service: &RayService) -> Option<Timestamp> {
    let pending = service.status.as_ref()?.pending_service_status.as_ref()?;
    Some(pending.last_traffic_migrated_time.as_ref()?.0)
}

/// Sets capacity and traffic in a cluster's status entry. `before` is its entry in the current
/// status.
pub(super) fn record_shares(
    context: &ServiceContext<'_>,
    child: &ServiceCluster<'_>,
    before: Option<&RayServiceStatus>,
    entry: &mut RayServiceStatus,
) {
    if effective_options(context.observed.service).is_none() {
        return;
    }
    let is_active = context.clusters.active.as_ref().is_some_and(|active| active.name() == child.name());
    let (capacity, traffic) = match &context.rollout {
        Some(transition) => {
            let (active, pending) = transition.shares_after_next_action();
            let now = if is_active { transition.active_share } else { transition.pending_share };
            (if is_active { active } else { pending }.capacity, now.traffic)
        }
        None if is_active => (FULL, FULL),
        // The first cluster has full capacity from the start.
        None if context.clusters.active.is_none() => (FULL, 0),
        None => (0, 0),
    };
    let previous = before.and_then(|before| before.traffic_routed_percent);
    let moved = previous.map_or(traffic > 0 && !is_active, |previous| previous != i32::from(traffic));
    entry.target_capacity = Some(capacity.into());
    entry.traffic_routed_percent = Some(traffic.into());
    let before = before.and_then(|before| before.last_traffic_migrated_time.clone());
    entry.last_traffic_migrated_time =
        if moved { Some(Time(condition::whole_seconds(context.observed.now))) } else { before };
}

/// Returns the capacity to set in the Serve configuration of a cluster. A cluster that is about to
/// be deleted keeps its current one for connections that still use it.
pub(super) fn target_capacity(context: &ServiceContext<'_>, child: &ServiceCluster<'_>) -> TargetCapacity {
    let Some(transition) = &context.rollout else { return TargetCapacity::Unlimited };
    let is_active = context.clusters.active.as_ref().is_some_and(|active| active.name() == child.name());
    match (is_active, transition.active_share.capacity, transition.pending_share.capacity) {
        (true, 0, _) => TargetCapacity::Unchanged,
        (true, FULL.., _) => TargetCapacity::Unlimited,
        (true, percent, _) | (false, _, percent) => TargetCapacity::Limited(percent),
    }
}

/// Target capacity to set in Serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetCapacity {
    /// The current capacity is left unchanged.
    Unchanged,
    /// No limit.
    Unlimited,
    /// Limit in percent.
    Limited(Percent),
}

/// Sets the replicas of the worker groups. Serve learns of a lower capacity first: workers are
/// removed only once they hold no replica.
pub(super) fn scale_workers(context: &ServiceContext<'_>, child: &ServiceCluster<'_>, cluster: &mut RayCluster) {
    if workers::is_autoscaled(cluster) {
        return;
    }
    let is_active = context.clusters.active.as_ref().is_some_and(|active| active.name() == child.name());
    let percent = match &context.rollout {
        None => FULL,
        // An invalid spec does not determine the number of workers.
        Some(_) if context.desired.is_err() => return,
        Some(transition) if is_active && transition.active_share.capacity == 0 => return,
        Some(transition) if is_active => transition.active_share.capacity,
        Some(transition) if transition.is_rollback => transition.pending_share.capacity,
        // The full surge is requested from the start.
        Some(transition) => transition.pending_share.capacity.max(transition.options.max_surge),
    };
    let recorded = context.rollout.as_ref().map(|transition| match is_active {
        true => transition.active_share.capacity,
        false => transition.pending_share.capacity,
    });
    let locations =
        recorded.map_or(ReplicaLocations::Unknown, |recorded| replica_locations(context.observed, child, recorded));
    let deployments = deployment_replicas(context.observed, child);
    idle_workers::scale_workers(cluster, (&deployments, percent), worker_pods(context.observed, child), &locations);
}

/// Returns true if the cluster is pending and receives traffic: a deletion time recorded earlier no
/// longer applies then.
pub(super) fn is_gaining_traffic(context: &ServiceContext<'_>, child: &ServiceCluster<'_>) -> bool {
    let gains = |transition: &&Rollout| !transition.is_rollback && transition.pending_share.traffic > 0;
    let is_pending = context.pending_cluster().is_some_and(|pending| pending.name() == child.name());
    is_pending && context.rollout.as_ref().filter(gains).is_some()
}

/// Reduces the workers of a new cluster to what its first step needs.
pub(super) fn reduce_initial_workers(context: &ServiceContext<'_>, cluster: &mut RayCluster) {
    let service = context.observed.service;
    let (Some(options), Some(_), Ok(desired)) = (effective_options(service), &context.clusters.active, context.desired)
    else {
        return;
    };
    if !incremental_annotations::scale_workers_enabled(&service.metadata).unwrap_or(true) {
        return;
    }
    let is_autoscaled = workers::is_autoscaled(cluster);
    workers::scale_to_capacity(cluster, &desired.serve_config.replicas(), options.max_surge);
    if is_autoscaled {
        cluster.annotations_mut().remove(workers::FULL_REPLICAS_ANNOTATION);
    }
}
