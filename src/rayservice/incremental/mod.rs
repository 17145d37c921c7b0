//! Incremental upgrades: capacity and traffic move from the active to the pending cluster step by
//! step.
//!
//! Every decision is persisted before it is acted on: capacity in the status of the RayService,
//! traffic in the weights of its route. A restarted process resumes from there.

mod capacity;
mod idle;
pub mod machine;
pub mod options;
mod plan;
pub mod routes;
mod tell;
#[cfg(test)]
mod tests;
pub mod ways;
pub mod workers;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::ResourceExt;

use super::family::{Child, active_name, pending_name};
use super::upgrade::Step;
use super::{Scene, View, failed, kept};
use idle::Places;
use machine::{Facts, Move, Pace, Percent, Position, Side, WHOLE, Wait};
use options::Options;
pub(super) use plan::{plan, release};
use sluice_api::condition;
use sluice_api::ray::step_choices::{self, Rollback, UPGRADE_ANNOTATION, Wish};
use sluice_api::ray::{RayCluster, RayService, RayServiceStatus};
pub(super) use tell::{progress, rollback};

/// Returns the options of incremental upgrades; None if the RayService is not upgraded
/// incrementally. An upgrade in progress is finished immediately if the strategy was changed, and
/// is frozen while the options are invalid.
pub(super) fn options(service: &RayService) -> Option<Options> {
    match Options::of(service) {
        Ok(Some(options)) => Some(options),
        Ok(None) => is_under_way(service).then_some(Options::AT_ONCE),
        Err(_) => has_shares(service).then_some(Options::HELD),
    }
}

/// Returns true if the status records the active cluster's capacity, as it does for incremental
/// upgrades only.
fn has_shares(service: &RayService) -> bool {
    let entry = service.status.as_ref().and_then(|status| status.active_service_status.as_ref());
    entry.is_some_and(|entry| entry.target_capacity.is_some())
}

/// Returns true if the status records an incremental upgrade in progress.
pub fn is_under_way(service: &RayService) -> bool {
    let status = service.status.as_ref();
    let [active, pending] = [active_name(service), pending_name(service)];
    let entry = status.and_then(|status| status.pending_service_status.as_ref());
    active.is_some() && pending.is_some() && entry.is_some_and(|entry| entry.target_capacity.is_some())
}

/// Returns the status entry of a cluster; None if the status does not name it.
fn recorded<'a>(service: &'a RayService, cluster: &RayCluster) -> Option<&'a RayServiceStatus> {
    let status = service.status.as_ref()?;
    let entries = [&status.active_service_status, &status.pending_service_status].into_iter().flatten();
    let name = cluster.name_any();
    entries.into_iter().find(|entry| entry.ray_cluster_name.as_deref() == Some(name.as_str()))
}

/// Returns the capacity of a cluster according to the status, and its traffic according to the
/// route, or to the status if the route has no weights. `without_record` is the default of both, in
/// percent.
fn side(observed: &View<'_>, cluster: &RayCluster, without_record: Percent) -> Side {
    let entry = recorded(observed.service, cluster);
    let percent = |recorded: i32| Percent::try_from(recorded.clamp(0, 100)).ok();
    let capacity = entry.and_then(|entry| entry.target_capacity).and_then(percent);
    // A route that was deleted or overwritten by its owner does not reflect the progress of the
    // upgrade.
    let traffic = || entry.and_then(|entry| entry.traffic_routed_percent).and_then(percent);
    Side {
        capacity: capacity.unwrap_or(without_record),
        traffic: observed.ways.share(cluster).or_else(traffic).unwrap_or(without_record),
    }
}

/// Returns the index of the active cluster according to the status and the route. The serve Service
/// follows the traffic and is not decisive. The pending cluster becomes active once the other one
/// has nothing left.
pub(super) fn find_active(observed: &View<'_>, children: &[Child<'_>]) -> Option<usize> {
    let index_of = |name: Option<&str>| children.iter().position(|child| Some(child.name().as_str()) == name);
    let (active, pending) = (index_of(active_name(observed.service)), index_of(pending_name(observed.service)));
    if let (Some(active), Some(pending)) = (active, pending) {
        let is_released = side(observed, children[active].cluster, WHOLE).capacity == 0;
        let gaining = side(observed, children[pending].cluster, 0);
        let is_complete = is_released && gaining == Side { capacity: WHOLE, traffic: WHOLE };
        return Some(if is_complete { pending } else { active });
    }
    let by_traffic = || {
        let share = |index: &usize| observed.ways.share(children[*index].cluster).unwrap_or(0);
        (0..children.len()).max_by_key(share).filter(|index| share(index) > 0)
    };
    active.or_else(by_traffic)
}

/// Replaces an action that would drop a pending cluster with capacity or traffic by a rollback to
/// the active cluster.
pub(super) fn decide(observed: &View<'_>, active: Option<&Child<'_>>, others: &[Child<'_>], action: Step) -> Step {
    let Some(active) = active else { return action };
    let pending = others.iter().position(|child| Some(child.name().as_str()) == pending_name(observed.service));
    let Some(pending) = pending.filter(|pending| action.pending() != Some(*pending)) else { return action };
    let child = &others[pending];
    let has_served =
        recorded(observed.service, child.cluster).is_some_and(|entry| entry.last_traffic_migrated_time.is_some());
    let is_restored = side(observed, active.cluster, WHOLE) == Side { capacity: WHOLE, traffic: WHOLE };
    let is_drained = side(observed, child.cluster, 0).traffic == 0 && (!has_served || child.delete_after().is_some());
    if is_restored && is_drained { action } else { Step::Return(pending) }
}

/// Incremental upgrade in progress, forward or rolling back.
#[derive(Debug)]
pub(super) struct Transition {
    options: Options,
    /// True if the upgrade is rolled back.
    returning: bool,
    active: Side,
    pending: Side,
    /// Next action, or the reason why none is possible.
    next: Result<Move, String>,
}

impl Transition {
    pub(super) fn of(
        observed: &View<'_>,
        active: Option<&Child<'_>>,
        others: &[Child<'_>],
        action: Step,
    ) -> Option<Self> {
        let options = options(observed.service)?;
        let active = active?;
        let returning = matches!(action, Step::Return(_));
        let is_in_progress = returning || matches!(action, Step::Continue(_) | Step::UpdatePending(_) | Step::Hold(..));
        let pending = others.get(action.pending().filter(|_| is_in_progress)?)?;
        let sides = (side(observed, active.cluster, WHOLE), side(observed, pending.cluster, 0));
        let position = match returning {
            true => Position { to: sides.0, from: sides.1 },
            false => Position { to: sides.1, from: sides.0 },
        };
        let (gaining, losing) = if returning { (active, pending) } else { (pending, active) };
        let obstacle = match action {
            Step::Hold(..) => Some("the upgrade is blocked".to_owned()),
            _ => observed.ways.obstacle(
                observed.service,
                options.gateway_class.as_deref(),
                [active.cluster, pending.cluster],
            ),
        };
        let next = match obstacle {
            Some(obstacle) => Err(obstacle),
            None if !returning && wish(observed.service) == Wish::Paused => {
                Err(format!("it is paused by annotation {UPGRADE_ANNOTATION}"))
            }
            // Acting on an unrecorded position would leave a restarted process with an inconsistent
            // one.
            None if !is_recorded(observed, [(active, sides.0), (pending, sides.1)]) => Ok(Move::Wait(Wait::Record)),
            None => Ok(machine::next(
                position,
                &pace(observed, &options, returning, position),
                &facts(observed, gaining, losing, position),
            )),
        };
        Some(Self { options, returning, active: sides.0, pending: sides.1, next })
    }

    /// Returns the shares after the next action: first of the active cluster, then of the pending
    /// one.
    fn after(&self) -> (Side, Side) {
        let (gaining, losing) = if self.returning { (self.active, self.pending) } else { (self.pending, self.active) };
        let position = Position { to: gaining, from: losing };
        let Position { to: gaining, from: losing } =
            self.next.as_ref().map_or(position, |action| position.after(*action));
        if self.returning { (gaining, losing) } else { (losing, gaining) }
    }

    /// Returns true if the pending cluster receives most of the traffic.
    pub(super) fn prefers_pending(&self) -> bool {
        self.pending.traffic > self.active.traffic
    }

    /// Returns true if the rollback is complete, so that the pending cluster can be deleted.
    pub(super) fn is_back(&self) -> bool {
        self.returning && self.next == Ok(Move::Done)
    }
}

fn pace(observed: &View<'_>, options: &Options, returning: bool, position: Position) -> Pace {
    let service = observed.service;
    let is_promoted = wish(service) == Wish::Promote;
    let immediate = match Rollback::of(&service.metadata).unwrap_or_default() {
        _ if !returning => is_promoted,
        // A failed cluster serves no request correctly, so traffic leaves it immediately.
        _ if observed.goal.as_ref().is_ok_and(|desired| failed::reason(service, desired).is_some()) => true,
        Rollback::AsCapacityAllows => position.to.capacity == WHOLE,
        Rollback::Stepped => false,
        Rollback::Immediate => true,
    };
    let bake = step_choices::bake(&service.metadata).unwrap_or(SignedDuration::ZERO);
    Pace {
        surge: options.surge,
        step: options.step,
        interval: options.interval,
        bake: if is_promoted || returning { SignedDuration::ZERO } else { bake },
        at_once: immediate || options.interval.is_zero(),
        leaves_capacity: returning,
    }
}

fn wish(service: &RayService) -> Wish {
    Wish::of(&service.metadata).unwrap_or_default()
}

fn facts(observed: &View<'_>, gaining: &Child<'_>, losing: &Child<'_>, position: Position) -> Facts {
    Facts {
        carries: carried(observed, gaining, position.to.capacity),
        from_carries: carried(observed, losing, position.from.capacity),
        to_serves: observed.ways.has_endpoints(gaining.cluster),
        from_serves: observed.ways.has_endpoints(losing.cluster),
        room: has_room(observed, losing, position.from.capacity),
        moved_at: moved_at(observed.service),
        now: observed.now,
    }
}

/// Returns the share of the traffic that a cluster can serve, in percent: only replicas that run
/// since Serve was given the capacity, and pods that are endpoints of its Service, count.
fn carried(observed: &View<'_>, child: &Child<'_>, capacity: Percent) -> Percent {
    let Some(status) = child.current_status().filter(|_| !child.is_suspended()) else { return 0 };
    let is_configured =
        observed.goal.as_ref().is_ok_and(|desired| child.applied_config() == Some(desired.config.hash()));
    if !observed.ways.has_endpoints(child.cluster) || (is_pending(observed, child) && !is_configured) {
        return 0;
    }
    let reported = status.target_capacity.unwrap_or(WHOLE.into());
    // The capacity that Serve reports, rounded down to whole percent and limited to the recorded
    // one.
    let reported = (0..=capacity).rev().find(|percent| f64::from(*percent) <= reported).unwrap_or(0);
    capacity::carried(status, reported)
}

fn is_pending(observed: &View<'_>, child: &Child<'_>) -> bool {
    active_name(observed.service) != Some(child.name().as_str())
}

/// Returns true if the surplus pods of a cluster at this capacity are gone.
fn has_room(observed: &View<'_>, child: &Child<'_>, capacity: Percent) -> bool {
    if workers::is_autoscaled(child.cluster) {
        return !observed.gated || is_idle_gone(observed, child, capacity);
    }
    let wanted = workers::at_capacity(child.cluster, &deployments(observed, child), capacity);
    let counts = idle::count(worker_pods(observed, child));
    child.cluster.spec.worker_group_specs.iter().all(|group| {
        let hosts = group.num_of_hosts.unwrap_or(1).max(1);
        let max = wanted.get(&group.group_name).copied().unwrap_or(0).saturating_mul(hosts);
        let count = counts.get(&group.group_name).copied().unwrap_or(0);
        count <= u32::try_from(max).unwrap_or(0)
    })
}

/// Returns true if the Ray autoscaler has removed the workers that a cluster does not need at this
/// capacity. Where Serve does not report replica locations, only the elapsed time tells.
fn is_idle_gone(observed: &View<'_>, child: &Child<'_>, capacity: Percent) -> bool {
    let by_time = || {
        let moved =
            recorded(observed.service, child.cluster).and_then(|entry| entry.last_traffic_migrated_time.as_ref());
        let due = moved.and_then(|moved| moved.0.checked_add(workers::until_gone(child.cluster)).ok());
        due.is_none_or(|due| due <= observed.now)
    };
    let Places::At(occupied) = places(observed, child, capacity) else { return by_time() };
    let is_settled = child.current_status().is_some_and(|status| capacity::is_settled(status, capacity));
    let all_hold = idle::all_hold(child.cluster, worker_pods(observed, child), &occupied);
    all_hold.map_or_else(by_time, |all_hold| is_settled && all_hold)
}

/// Returns where the replicas of a cluster run, provided that Serve reports this capacity.
fn places(observed: &View<'_>, child: &Child<'_>, percent: Percent) -> Places {
    let is_unlimited = percent == WHOLE && !is_pending(observed, child);
    let limit = (!is_unlimited).then(|| f64::from(percent));
    match child.current_status() {
        Some(status) if status.target_capacity == limit => Places::of(status),
        None if is_left(observed, child) => Places::Untold,
        _ => Places::Unknown,
    }
}

/// Returns true if removing workers of a cluster that does not respond loses no requests: it
/// receives none, or its upgrade has failed.
fn is_left(observed: &View<'_>, child: &Child<'_>) -> bool {
    let has_failed = observed.goal.as_ref().is_ok_and(|desired| failed::reason(observed.service, desired).is_some());
    let is_failed = has_failed && is_pending(observed, child) && child.is_mute();
    let has_share = observed.ways.route.is_none() || observed.ways.share(child.cluster).is_some_and(|share| share > 0);
    is_failed || !(has_share || observed.ways.has_endpoints(child.cluster))
}

fn worker_pods<'v>(observed: &'v View<'_>, child: &Child<'_>) -> &'v [&'v Pod] {
    observed.worker_pods.get(&child.name()).map(Vec::as_slice).unwrap_or_default()
}

/// Returns the number of replicas of each deployment at full capacity, according to the
/// configuration of the cluster.
fn deployments(observed: &View<'_>, child: &Child<'_>) -> Vec<u32> {
    let from_spec = || {
        let config = &observed.goal.as_ref().ok()?.config;
        (is_pending(observed, child) || child.applied_config() == Some(config.hash())).then_some(config)
    };
    kept::applied(observed, child).or_else(from_spec).map(|config| config.replicas()).unwrap_or_default()
}

/// Returns true if the status records the current shares of both clusters.
fn is_recorded(observed: &View<'_>, sides: [(&Child<'_>, Side); 2]) -> bool {
    sides.iter().all(|(child, side)| {
        let entry = recorded(observed.service, child.cluster);
        let as_recorded =
            (entry.and_then(|entry| entry.target_capacity), entry.and_then(|entry| entry.traffic_routed_percent));
        as_recorded == (Some(side.capacity.into()), Some(side.traffic.into()))
    })
}

/// Returns when traffic moved last in the current upgrade; None if it has not.
fn moved_at(service: &RayService) -> Option<Timestamp> {
    let pending = service.status.as_ref()?.pending_service_status.as_ref()?;
    Some(pending.last_traffic_migrated_time.as_ref()?.0)
}

/// Sets capacity and traffic in a cluster's status entry. `before` is its entry in the current
/// status.
pub(super) fn record(
    context: &Scene<'_>,
    child: &Child<'_>,
    before: Option<&RayServiceStatus>,
    entry: &mut RayServiceStatus,
) {
    if options(context.view.service).is_none() {
        return;
    }
    let is_active = context.family.active.as_ref().is_some_and(|active| active.name() == child.name());
    let (capacity, traffic) = match &context.transition {
        Some(transition) => {
            let (active, pending) = transition.after();
            let now = if is_active { transition.active } else { transition.pending };
            (if is_active { active } else { pending }.capacity, now.traffic)
        }
        None if is_active => (WHOLE, WHOLE),
        // The first cluster has full capacity from the start.
        None if context.family.active.is_none() => (WHOLE, 0),
        None => (0, 0),
    };
    let previous = before.and_then(|before| before.traffic_routed_percent);
    let moved = previous.map_or(traffic > 0 && !is_active, |previous| previous != i32::from(traffic));
    entry.target_capacity = Some(capacity.into());
    entry.traffic_routed_percent = Some(traffic.into());
    let before = before.and_then(|before| before.last_traffic_migrated_time.clone());
    entry.last_traffic_migrated_time =
        if moved { Some(Time(condition::whole_seconds(context.view.now))) } else { before };
}

/// Returns the capacity to set in the Serve configuration of a cluster. A cluster that is about to
/// be deleted keeps its current one for connections that still use it.
pub(super) fn capacity(context: &Scene<'_>, child: &Child<'_>) -> Told {
    let Some(transition) = &context.transition else { return Told::Whole };
    let is_active = context.family.active.as_ref().is_some_and(|active| active.name() == child.name());
    match (is_active, transition.active.capacity, transition.pending.capacity) {
        (true, 0, _) => Told::Nothing,
        (true, WHOLE.., _) => Told::Whole,
        (true, percent, _) | (false, _, percent) => Told::Share(percent),
    }
}

/// Target capacity to set in Serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// The current capacity is left unchanged.
    Nothing,
    /// No limit.
    Whole,
    /// Limit in percent.
    Share(Percent),
}

/// Sets the replicas of the worker groups. Serve learns of a lower capacity first: workers are
/// removed only once they hold no replica.
pub(super) fn scale(context: &Scene<'_>, child: &Child<'_>, cluster: &mut RayCluster) {
    if workers::is_autoscaled(cluster) {
        return;
    }
    let is_active = context.family.active.as_ref().is_some_and(|active| active.name() == child.name());
    let percent = match &context.transition {
        None => WHOLE,
        // An invalid spec does not determine the number of workers.
        Some(_) if context.goal.is_err() => return,
        Some(transition) if is_active && transition.active.capacity == 0 => return,
        Some(transition) if is_active => transition.active.capacity,
        Some(transition) if transition.returning => transition.pending.capacity,
        // The full surge is requested from the start.
        Some(transition) => transition.pending.capacity.max(transition.options.surge),
    };
    let recorded = context.transition.as_ref().map(|transition| match is_active {
        true => transition.active.capacity,
        false => transition.pending.capacity,
    });
    let locations = recorded.map_or(Places::Unknown, |recorded| places(context.view, child, recorded));
    let deployments = deployments(context.view, child);
    idle::scale(cluster, (&deployments, percent), worker_pods(context.view, child), &locations);
}

/// Returns true if the cluster is pending and receives traffic: a deletion time recorded earlier no
/// longer applies then.
pub(super) fn is_gaining(context: &Scene<'_>, child: &Child<'_>) -> bool {
    let gains = |transition: &&Transition| !transition.returning && transition.pending.traffic > 0;
    let is_pending = context.pending().is_some_and(|pending| pending.name() == child.name());
    is_pending && context.transition.as_ref().filter(gains).is_some()
}

/// Reduces the workers of a new cluster to what its first step needs.
pub(super) fn shrink(context: &Scene<'_>, cluster: &mut RayCluster) {
    let service = context.view.service;
    let (Some(options), Some(_), Ok(desired)) = (options(service), &context.family.active, context.goal) else {
        return;
    };
    if !step_choices::scales_workers(&service.metadata).unwrap_or(true) {
        return;
    }
    let is_autoscaled = workers::is_autoscaled(cluster);
    workers::scale(cluster, &desired.config.replicas(), options.surge);
    if is_autoscaled {
        cluster.annotations_mut().remove(workers::FULL_REPLICAS_ANNOTATION);
    }
}
