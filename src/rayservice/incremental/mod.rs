//! Incremental upgrades: capacity and traffic go from one cluster to the other a step at a time.
//!
//! What was decided stands in the API server before it is acted on: capacity in the status of the service, traffic in the weights of
//! its route. A process that starts in between goes on from there.

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
use sluice_api::condition;
use sluice_api::ray::step_choices::{self, Rollback, UPGRADE_ANNOTATION, Wish};
use sluice_api::ray::{RayCluster, RayService, RayServiceStatus};
use idle::Places;
use machine::{Facts, Move, Pace, Percent, Position, Side, WHOLE, Wait};
use options::Options;
pub(super) use plan::{plan, release};
pub(super) use tell::{progress, rollback};

/// How a service is upgraded in steps; `None` if it isn't. One that is to be upgraded otherwise by now finishes what was begun, and one
/// whose options make no sense stays as it is.
pub(super) fn options(service: &RayService) -> Option<Options> {
    match Options::of(service) {
        Ok(Some(options)) => Some(options),
        Ok(None) => is_under_way(service).then_some(Options::AT_ONCE),
        Err(_) => has_shares(service).then_some(Options::HELD),
    }
}

/// Whether the status tells how much of the capacity the active cluster has, as it does of a service that is upgraded in steps.
fn has_shares(service: &RayService) -> bool {
    let entry = service.status.as_ref().and_then(|status| status.active_service_status.as_ref());
    entry.is_some_and(|entry| entry.target_capacity.is_some())
}

/// Whether the status tells of an upgrade in steps that was begun.
pub fn is_under_way(service: &RayService) -> bool {
    let status = service.status.as_ref();
    let [active, pending] = [active_name(service), pending_name(service)];
    let entry = status.and_then(|status| status.pending_service_status.as_ref());
    active.is_some() && pending.is_some() && entry.is_some_and(|entry| entry.target_capacity.is_some())
}

/// What the status says of a cluster.
fn recorded<'a>(service: &'a RayService, cluster: &RayCluster) -> Option<&'a RayServiceStatus> {
    let status = service.status.as_ref()?;
    let entries = [&status.active_service_status, &status.pending_service_status].into_iter().flatten();
    let name = cluster.name_any();
    entries.into_iter().find(|entry| entry.ray_cluster_name.as_deref() == Some(name.as_str()))
}

/// How much a cluster has: its capacity as the status has it; its traffic as the route has it, or else the status.
fn side(view: &View<'_>, cluster: &RayCluster, without_record: Percent) -> Side {
    let known = recorded(view.service, cluster);
    let percent = |recorded: i32| Percent::try_from(recorded.clamp(0, 100)).ok();
    let capacity = known.and_then(|entry| entry.target_capacity).and_then(percent);
    // A route that was lost, or that its owner has written anew, doesn't say where the upgrade stands.
    let traffic = || known.and_then(|entry| entry.traffic_routed_percent).and_then(percent);
    Side {
        capacity: capacity.unwrap_or(without_record),
        traffic: view.ways.share(cluster).or_else(traffic).unwrap_or(without_record),
    }
}

/// The child that serves, as far as the status and the route tell: not the one that the serve Service leads to, which follows the
/// traffic. The pending one serves once nothing is left to the other.
pub(super) fn find_active(view: &View<'_>, children: &[Child<'_>]) -> Option<usize> {
    let named = |name: Option<&str>| children.iter().position(|child| Some(child.name().as_str()) == name);
    let (active, pending) = (named(active_name(view.service)), named(pending_name(view.service)));
    if let (Some(active), Some(pending)) = (active, pending) {
        let given = side(view, children[active].cluster, WHOLE).capacity == 0;
        let gained = side(view, children[pending].cluster, 0);
        let is_over = given && gained == Side { capacity: WHOLE, traffic: WHOLE };
        return Some(if is_over { pending } else { active });
    }
    let by_traffic = || {
        let share = |index: &usize| view.ways.share(children[*index].cluster).unwrap_or(0);
        (0..children.len()).max_by_key(share).filter(|index| share(index) > 0)
    };
    active.or_else(by_traffic)
}

/// What is to be done once it is seen that a cluster has a part of what the active one is to have: it isn't just dropped.
pub(super) fn decide(view: &View<'_>, active: Option<&Child<'_>>, others: &[Child<'_>], step: Step) -> Step {
    let Some(active) = active else { return step };
    let pending = others.iter().position(|child| Some(child.name().as_str()) == pending_name(view.service));
    let Some(pending) = pending.filter(|pending| step.pending() != Some(*pending)) else { return step };
    let child = &others[pending];
    let has_taken =
        recorded(view.service, child.cluster).is_some_and(|entry| entry.last_traffic_migrated_time.is_some());
    let is_whole = side(view, active.cluster, WHOLE) == Side { capacity: WHOLE, traffic: WHOLE };
    let is_left = side(view, child.cluster, 0).traffic == 0 && (!has_taken || child.delete_after().is_some());
    if is_whole && is_left { step } else { Step::Return(pending) }
}

/// An upgrade in steps that is under way, in one direction or the other.
#[derive(Debug)]
pub(super) struct Transition {
    options: Options,
    /// Whether what was begun is taken back.
    returning: bool,
    active: Side,
    pending: Side,
    /// What is to be done next, or why nothing can be.
    next: Result<Move, String>,
}

impl Transition {
    pub(super) fn of(view: &View<'_>, active: Option<&Child<'_>>, others: &[Child<'_>], step: Step) -> Option<Self> {
        let options = options(view.service)?;
        let active = active?;
        let returning = matches!(step, Step::Return(_));
        let goes_on = returning || matches!(step, Step::Continue(_) | Step::UpdatePending(_) | Step::Hold(..));
        let pending = others.get(step.pending().filter(|_| goes_on)?)?;
        let sides = (side(view, active.cluster, WHOLE), side(view, pending.cluster, 0));
        let position = match returning {
            true => Position { to: sides.0, from: sides.1 },
            false => Position { to: sides.1, from: sides.0 },
        };
        let (to, from) = if returning { (active, pending) } else { (pending, active) };
        let obstacle = match step {
            Step::Hold(..) => Some("the upgrade is held".to_owned()),
            _ => view.ways.obstacle(view.service, options.gateway_class.as_deref(), [active.cluster, pending.cluster]),
        };
        let next = match obstacle {
            Some(obstacle) => Err(obstacle),
            None if !returning && wish(view.service) == Wish::Paused => {
                Err(format!("it is paused by annotation {UPGRADE_ANNOTATION}"))
            }
            // No step is taken from where nobody would know how it was come to.
            None if !is_recorded(view, [(active, sides.0), (pending, sides.1)]) => Ok(Move::Wait(Wait::Record)),
            None => Ok(machine::next(
                position,
                &pace(view, &options, returning, position),
                &facts(view, to, from, position),
            )),
        };
        Some(Self { options, returning, active: sides.0, pending: sides.1, next })
    }

    /// What both are to have once the next step is taken: first the active cluster, then the pending one.
    fn after(&self) -> (Side, Side) {
        let (to, from) = if self.returning { (self.active, self.pending) } else { (self.pending, self.active) };
        let position = Position { to, from };
        let Position { to, from } = self.next.as_ref().map_or(position, |step| position.after(*step));
        if self.returning { (to, from) } else { (from, to) }
    }

    /// Whether the pending cluster gets most of the traffic.
    pub(super) fn prefers_pending(&self) -> bool {
        self.pending.traffic > self.active.traffic
    }

    /// Whether the active cluster has everything back, so that the pending one can be given up.
    pub(super) fn is_back(&self) -> bool {
        self.returning && self.next == Ok(Move::Done)
    }
}

fn pace(view: &View<'_>, options: &Options, returning: bool, position: Position) -> Pace {
    let service = view.service;
    let promoted = wish(service) == Wish::Promote;
    let at_once = match Rollback::of(&service.metadata).unwrap_or_default() {
        _ if !returning => promoted,
        // What has failed answers nobody as it should.
        _ if view.goal.as_ref().is_ok_and(|goal| failed::reason(service, goal).is_some()) => true,
        Rollback::AsCapacityAllows => position.to.capacity == WHOLE,
        Rollback::Stepped => false,
        Rollback::Immediate => true,
    };
    let bake = step_choices::bake(&service.metadata).unwrap_or(SignedDuration::ZERO);
    Pace {
        surge: options.surge,
        step: options.step,
        interval: options.interval,
        bake: if promoted || returning { SignedDuration::ZERO } else { bake },
        at_once: at_once || options.interval.is_zero(),
        leaves_capacity: returning,
    }
}

fn wish(service: &RayService) -> Wish {
    Wish::of(&service.metadata).unwrap_or_default()
}

fn facts(view: &View<'_>, to: &Child<'_>, from: &Child<'_>, position: Position) -> Facts {
    Facts {
        carries: carried(view, to, position.to.capacity),
        from_carries: carried(view, from, position.from.capacity),
        to_serves: view.ways.has_endpoints(to.cluster),
        from_serves: view.ways.has_endpoints(from.cluster),
        room: has_room(view, from, position.from.capacity),
        moved_at: moved_at(view.service),
        now: view.now,
    }
}

/// The share of the traffic that a cluster can take: with replicas that run after it was told of its capacity, and pods that its
/// Service leads to.
fn carried(view: &View<'_>, child: &Child<'_>, capacity: Percent) -> Percent {
    let Some(status) = child.current_status().filter(|_| !child.is_suspended()) else { return 0 };
    let is_configured = view.goal.as_ref().is_ok_and(|goal| child.applied_config() == Some(goal.config.hash()));
    if !view.ways.has_endpoints(child.cluster) || (is_pending(view, child) && !is_configured) {
        return 0;
    }
    let told = status.target_capacity.unwrap_or(WHOLE.into());
    // The highest of the percents that it was told of, or more.
    let told = (0..=capacity).rev().find(|percent| f64::from(*percent) <= told).unwrap_or(0);
    capacity::carried(status, told)
}

fn is_pending(view: &View<'_>, child: &Child<'_>) -> bool {
    active_name(view.service) != Some(child.name().as_str())
}

/// Whether the pods that a cluster is not to have any more are gone.
fn has_room(view: &View<'_>, child: &Child<'_>, capacity: Percent) -> bool {
    if workers::is_autoscaled(child.cluster) {
        return !view.gated || is_idle_gone(view, child, capacity);
    }
    let wanted = workers::at_capacity(child.cluster, &deployments(view, child), capacity);
    let there = idle::count(worker_pods(view, child));
    child.cluster.spec.worker_group_specs.iter().all(|group| {
        let hosts = group.num_of_hosts.unwrap_or(1).max(1);
        let most = wanted.get(&group.group_name).copied().unwrap_or(0).saturating_mul(hosts);
        let there = there.get(&group.group_name).copied().unwrap_or(0);
        there <= u32::try_from(most).unwrap_or(0)
    })
}

/// Whether Ray's autoscaler has removed the workers that a cluster doesn't need at this capacity. It takes its time, which is all that there
/// is to go by where Serve doesn't tell who holds a replica.
fn is_idle_gone(view: &View<'_>, child: &Child<'_>, capacity: Percent) -> bool {
    let by_time = || {
        let moved = recorded(view.service, child.cluster).and_then(|entry| entry.last_traffic_migrated_time.as_ref());
        let due = moved.and_then(|moved| moved.0.checked_add(workers::until_gone(child.cluster)).ok());
        due.is_none_or(|due| due <= view.now)
    };
    let Places::At(occupied) = places(view, child, capacity) else { return by_time() };
    let is_settled = child.current_status().is_some_and(|status| capacity::is_settled(status, capacity));
    let all_hold = idle::all_hold(child.cluster, worker_pods(view, child), &occupied);
    all_hold.map_or_else(by_time, |all_hold| is_settled && all_hold)
}

/// What is known of where the replicas of a child are, since Serve on it has this capacity.
fn places(view: &View<'_>, child: &Child<'_>, percent: Percent) -> Places {
    let is_unlimited = percent == WHOLE && !is_pending(view, child);
    let limit = (!is_unlimited).then(|| f64::from(percent));
    match child.current_status() {
        Some(status) if status.target_capacity == limit => Places::of(status),
        None if is_left(view, child) => Places::Untold,
        _ => Places::Unknown,
    }
}

/// Whether nothing is lost with the workers of a child that doesn't answer: it gets no requests, or its upgrade has failed.
fn is_left(view: &View<'_>, child: &Child<'_>) -> bool {
    let has_failed = view.goal.as_ref().is_ok_and(|goal| failed::reason(view.service, goal).is_some());
    let is_given_up = has_failed && is_pending(view, child) && child.is_mute();
    let has_share = view.ways.route.is_none() || view.ways.share(child.cluster).is_some_and(|share| share > 0);
    is_given_up || !(has_share || view.ways.has_endpoints(child.cluster))
}

fn worker_pods<'v>(view: &'v View<'_>, child: &Child<'_>) -> &'v [&'v Pod] {
    view.worker_pods.get(&child.name()).map(Vec::as_slice).unwrap_or_default()
}

/// How many replicas each deployment of a cluster has at full capacity, as far as its configuration says.
fn deployments(view: &View<'_>, child: &Child<'_>) -> Vec<u32> {
    let of_goal = || {
        let config = &view.goal.as_ref().ok()?.config;
        (is_pending(view, child) || child.applied_config() == Some(config.hash())).then_some(config)
    };
    kept::applied(view, child).or_else(of_goal).map(|config| config.replicas()).unwrap_or_default()
}

/// Whether the status tells where both clusters stand.
fn is_recorded(view: &View<'_>, sides: [(&Child<'_>, Side); 2]) -> bool {
    sides.iter().all(|(child, side)| {
        let known = recorded(view.service, child.cluster);
        let as_recorded =
            (known.and_then(|known| known.target_capacity), known.and_then(|known| known.traffic_routed_percent));
        as_recorded == (Some(side.capacity.into()), Some(side.traffic.into()))
    })
}

/// When traffic moved last in the upgrade that is under way.
fn moved_at(service: &RayService) -> Option<Timestamp> {
    let pending = service.status.as_ref()?.pending_service_status.as_ref()?;
    Some(pending.last_traffic_migrated_time.as_ref()?.0)
}

/// Fills in what the status says of a cluster's capacity and traffic, beside what it `was` to say.
pub(super) fn record(
    scene: &Scene<'_>,
    child: &Child<'_>,
    before: Option<&RayServiceStatus>,
    entry: &mut RayServiceStatus,
) {
    if options(scene.view.service).is_none() {
        return;
    }
    let is_active = scene.family.active.as_ref().is_some_and(|active| active.name() == child.name());
    let (capacity, traffic) = match &scene.transition {
        Some(transition) => {
            let (active, pending) = transition.after();
            let now = if is_active { transition.active } else { transition.pending };
            (if is_active { active } else { pending }.capacity, now.traffic)
        }
        None if is_active => (WHOLE, WHOLE),
        // The first cluster of a service is whole from the start.
        None if scene.family.active.is_none() => (WHOLE, 0),
        None => (0, 0),
    };
    let known = before.and_then(|before| before.traffic_routed_percent);
    let moved = known.map_or(traffic > 0 && !is_active, |known| known != i32::from(traffic));
    entry.target_capacity = Some(capacity.into());
    entry.traffic_routed_percent = Some(traffic.into());
    let before = before.and_then(|before| before.last_traffic_migrated_time.clone());
    entry.last_traffic_migrated_time =
        if moved { Some(Time(condition::whole_seconds(scene.view.now))) } else { before };
}

/// What Serve on a child is to be told of its capacity, in percent; `None` if nothing. A cluster that is to be given up keeps what
/// it has for those who still talk to it.
pub(super) fn capacity(scene: &Scene<'_>, child: &Child<'_>) -> Told {
    let Some(transition) = &scene.transition else { return Told::Whole };
    let is_active = scene.family.active.as_ref().is_some_and(|active| active.name() == child.name());
    match (is_active, transition.active.capacity, transition.pending.capacity) {
        (true, 0, _) => Told::Nothing,
        (true, WHOLE.., _) => Told::Whole,
        (true, percent, _) | (false, _, percent) => Told::Share(percent),
    }
}

/// What Serve is to be told of its capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    /// What it was told before stands.
    Nothing,
    /// There is no limit.
    Whole,
    /// As much as this, in percent.
    Share(Percent),
}

/// Gives the worker groups of a child the replicas that it is to have. Serve hears of less capacity first: workers go once they hold
/// nothing.
pub(super) fn scale(scene: &Scene<'_>, child: &Child<'_>, cluster: &mut RayCluster) {
    if workers::is_autoscaled(cluster) {
        return;
    }
    let is_active = scene.family.active.as_ref().is_some_and(|active| active.name() == child.name());
    let percent = match &scene.transition {
        None => WHOLE,
        // How many there are to be can't be told from a spec that makes no sense.
        Some(_) if scene.goal.is_err() => return,
        Some(transition) if is_active && transition.active.capacity == 0 => return,
        Some(transition) if is_active => transition.active.capacity,
        Some(transition) if transition.returning => transition.pending.capacity,
        // The surge is reserved whole from the start.
        Some(transition) => transition.pending.capacity.max(transition.options.surge),
    };
    let on_record = scene.transition.as_ref().map(|transition| match is_active {
        true => transition.active.capacity,
        false => transition.pending.capacity,
    });
    let places = on_record.map_or(Places::Unknown, |on_record| places(scene.view, child, on_record));
    let deployments = deployments(scene.view, child);
    idle::scale(cluster, (&deployments, percent), worker_pods(scene.view, child), &places);
}

/// Whether a child is pending and has got traffic: what was noted when it was given up before holds no more.
pub(super) fn is_gaining(scene: &Scene<'_>, child: &Child<'_>) -> bool {
    let gains = |transition: &&Transition| !transition.returning && transition.pending.traffic > 0;
    let is_pending = scene.pending().is_some_and(|pending| pending.name() == child.name());
    is_pending && scene.transition.as_ref().filter(gains).is_some()
}

/// Makes a cluster that is to take the place of another as large as its first step needs.
pub(super) fn shrink(scene: &Scene<'_>, cluster: &mut RayCluster) {
    let service = scene.view.service;
    let (Some(options), Some(_), Ok(goal)) = (options(service), &scene.family.active, scene.goal) else { return };
    if !step_choices::scales_workers(&service.metadata).unwrap_or(true) {
        return;
    }
    let autoscaled = workers::is_autoscaled(cluster);
    workers::scale(cluster, &goal.config.replicas(), options.surge);
    if autoscaled {
        cluster.annotations_mut().remove(workers::FULL_REPLICAS_ANNOTATION);
    }
}
