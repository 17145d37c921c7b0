//! What is wanted of each object, and why a workload waits.

use super::assign::{Assignment, Attempt, Findings, Ground, Means, Mode, Predecessor};
use super::engine::{ClusterQueueState, Engine, LocalQueueId, Promise, Slot, Standing, WorkloadId};
use super::entry::{Entry, Stage};
use super::ledger::clamped;
use super::pending::{Obstacle, PendingReason, Shortfall, Waiting};
use super::report::{Activity, ClusterQueueReport, CohortReport, LocalQueueReport, local_queue_usage, weighted_share};
use super::settings::{Requeuing, WaitForPodsReady};
use super::status;
use super::tree::{Fr, NodeId, Tree, View};
use super::{DeactivationCause, Effect, EvictReason, Key, PodsReadyTimeout, Subject, Successor};
use crate::api::kueue::{Admission, StopPolicy};
use crate::api::quantity::Amount;

/// How many holders or evicted workloads an explanation names.
const NAMED: usize = 3;

/// How many ClusterQueues are searched for those that hold the most.
const MOST_QUEUES: usize = 64;

/// Looks without trying whom could be made to go.
struct Onlooker<'a> {
    tree: &'a Tree,
    node: NodeId,
}

impl Ground for Onlooker<'_> {
    fn tree(&self) -> &Tree {
        self.tree
    }

    fn make_room(&mut self, fr: Fr, amount: i128) -> Means {
        Means { mode: Mode::NoCandidates, level: self.tree.lowest_fit(self.node, fr, amount, View::Planned, 0).height }
    }
}

impl Engine {
    /// What is wanted of an object and is not so yet, as far as was observed.
    pub fn effect(&self, subject: &Subject) -> Option<Effect> {
        match subject {
            Subject::Workload(key) => self.workload_effect(self.workloads.named(key)?),
            Subject::ClusterQueue(name) => self.cluster_queue_effect(self.tree.known_cluster_queue(name)?),
            Subject::Cohort(name) => self.cohort_effect(self.tree.known_cohort(name)?),
            Subject::LocalQueue(key) => self.local_queue_effect(self.local_queues.id(key)?),
        }
    }

    /// What a workload waits for, with the numbers of this moment; `None` when it does not wait.
    pub fn explain(&self, workload: &Key) -> Option<Waiting> {
        let id = self.workloads.id(workload)?;
        self.waiting(id, self.workloads.get(id)?)
    }

    /// Who is in the line of any ClusterQueue, in order.
    #[cfg(test)]
    pub(super) fn in_line(&self) -> Vec<Key> {
        self.cluster_queues
            .iter()
            .flat_map(|state| state.line.iter())
            .filter_map(|rank| self.key(rank.workload))
            .collect()
    }

    /// Whether a workload in line would be admitted now.
    #[cfg(test)]
    pub(super) fn would_fit(&self, key: &Key) -> bool {
        let look = self.workloads.id(key).and_then(|id| self.look(id));
        matches!(look, Some(Ok(assignment)) if assignment.means.mode == Mode::Fit)
    }

    pub(super) fn workload_effect(&self, slot: &Slot) -> Option<Effect> {
        let (entry, workload) = (&slot.entry, slot.entry.key.clone());
        match &slot.standing {
            Standing::Out => {
                let stop = !entry.active && !entry.evicted && !entry.deleting && entry.stage == Stage::Unreserved;
                stop.then_some(Effect::Evict { workload, reason: EvictReason::Deactivated })
            }
            Standing::Superseded(by) => {
                let by = &self.workloads.get(*by)?.entry;
                matches!(by.stage, Stage::Reserved(_)).then(|| Effect::FinishReplaced {
                    workload,
                    by: Successor { workload: by.key.clone(), uid: by.uid.to_string(), job_uid: by.job_uid.clone() },
                })
            }
            Standing::Holds(admission) if slot.assumed.is_some() => {
                let replaces = self.replaced(slot).first().map(|replaced| replaced.entry.key.clone());
                Some(Effect::Admit { workload, admission: admission.as_ref().clone(), replaces })
            }
            Standing::Holds(admission) => self.holder_effect(slot, admission),
            Standing::InLine(_) | Standing::Held(..) => {
                let why = self.waiting(self.workloads.id(&entry.key)?, slot)?;
                let told = if slot.refresh || !why.is_in_line() { entry.says(&why) } else { entry.says_reason(&why) };
                (!told).then_some(Effect::Pending { workload, why })
            }
        }
    }

    fn holder_effect(&self, slot: &Slot, admission: &Admission) -> Option<Effect> {
        let (entry, workload) = (&slot.entry, slot.entry.key.clone());
        if entry.evicted {
            return None;
        }
        if let Some(reason) = self.must_stop(slot, &admission.cluster_queue) {
            return Some(Effect::Evict { workload, reason });
        }
        if let Some(effect) = self.out_of_time(entry) {
            return Some(effect);
        }
        if let Some(admission) = entry.shrunk(admission) {
            return Some(Effect::ShrinkAdmission { workload, admission });
        }
        let node = self.tree.known_cluster_queue(&admission.cluster_queue);
        let active = node.is_none_or(|node| self.cluster_queue_problem(node).is_none());
        (!entry.admitted && active && !entry.deleting).then(|| Effect::Admit {
            workload,
            admission: admission.clone(),
            replaces: None,
        })
    }

    fn must_stop(&self, slot: &Slot, cluster_queue: &str) -> Option<EvictReason> {
        let drained = |stop: StopPolicy| stop == StopPolicy::HoldAndDrain;
        let local_queue = slot.local_queue.and_then(|id| self.local_queues.get(id)?.rules.as_ref());
        let quota = self.cluster_queues.named(cluster_queue).and_then(|state| state.quota.as_ref());
        if !slot.entry.active {
            Some(EvictReason::Deactivated)
        } else if quota.is_some_and(|quota| drained(quota.stop)) {
            Some(EvictReason::ClusterQueueStopped)
        } else if local_queue.is_some_and(|rules| drained(rules.stop)) {
            Some(EvictReason::LocalQueueStopped)
        } else {
            slot.preempted.clone().map(EvictReason::Preempted)
        }
    }

    /// What becomes of one that was admitted for as long as it may be, or whose pods were not ready in time.
    fn out_of_time(&self, entry: &Entry) -> Option<Effect> {
        let workload = entry.key.clone();
        if entry.deactivation_target {
            return Some(Effect::SetInactive { workload });
        }
        if entry.done_by().is_some_and(|at| at <= self.now) {
            return Some(Effect::Deactivate { workload, cause: DeactivationCause::MaximumExecutionTimeExceeded });
        }
        let rules = self.settings.wait_for_pods_ready.as_ref()?;
        entry.ready_by(rules).filter(|at| *at <= self.now)?;
        let count = entry.requeue_count.saturating_add(1);
        if rules.requeuing.backoff_limit_count.is_some_and(|limit| count > limit) {
            return Some(Effect::Deactivate { workload, cause: DeactivationCause::RequeuingLimitExceeded });
        }
        Some(Effect::Evict {
            workload,
            reason: EvictReason::PodsReadyTimeout(Box::new(self.timeout(entry, rules, count))),
        })
    }

    fn timeout(&self, entry: &Entry, rules: &WaitForPodsReady, count: u32) -> PodsReadyTimeout {
        let recovering = entry.readiness.is_some_and(|readiness| readiness.recovering);
        let after = if recovering { rules.recovery_timeout.unwrap_or_default() } else { rules.timeout };
        let wait = jiff::SignedDuration::from_secs(backoff_seconds(&rules.requeuing, count).into());
        PodsReadyTimeout {
            after_seconds: after.as_secs(),
            recovering,
            count,
            requeue_at: self.now.saturating_add(wait).unwrap_or(self.now),
        }
    }

    fn waiting(&self, id: WorkloadId, slot: &Slot) -> Option<Waiting> {
        match &slot.standing {
            Standing::Held(why, _) => Some(why.clone()),
            Standing::InLine(node) => self.waiting_in_line(id, slot, *node),
            Standing::Out | Standing::Holds(_) | Standing::Superseded(_) => None,
        }
    }

    fn waiting_in_line(&self, id: WorkloadId, slot: &Slot, node: NodeId) -> Option<Waiting> {
        let state = self.cluster_queues.get(node)?;
        if let Some(room) = self.room(id, state) {
            return Some(room);
        }
        let strict = state.quota.as_ref()?.strict;
        let ahead = state.line.head().map(|rank| rank.workload).filter(|head| strict && *head != id);
        let behind = ahead
            .and_then(|head| self.key(head))
            .map(|head| Waiting::Behind { head, cluster_queue: state.name.clone() });
        match (self.look(id)?, behind) {
            (Err(mut obstacles), behind) => {
                obstacles.iter_mut().for_each(|obstacle| self.name_holders(obstacle, slot));
                let why = Waiting::Quota(obstacles);
                // Who waits for quota that comes and goes waits for its turn first.
                Some(behind.filter(|_| why.reason() == PendingReason::WaitingForQuota).unwrap_or(why))
            }
            (Ok(_), Some(behind)) => Some(behind),
            (Ok(_), None) => match self.first_unready().filter(|_| self.admission_blocked()) {
                Some(unready) => Some(Waiting::Unready(unready)),
                None => Some(Waiting::Turn),
            },
        }
    }

    /// Whose quota one waits for that room is being made for.
    fn room(&self, id: WorkloadId, state: &ClusterQueueState) -> Option<Waiting> {
        let node = state.node;
        let promise = self.promise_to(node, id).filter(|promise| promise.place.is_some())?;
        let queues = self.tree.cluster_queues_below(self.tree.root(node)).into_iter();
        let states = queues.filter_map(|node| self.cluster_queue(node));
        let going = states
            .flat_map(|state| &state.ledger.going)
            .filter(|(_, charge)| charge.keys().any(|fr| promise.usage.contains_key(fr)));
        let mut going: Vec<Key> = going.filter_map(|(id, _)| self.key(*id)).collect();
        going.sort();
        let more = going.len().saturating_sub(NAMED);
        going.truncate(NAMED);
        Some(Waiting::Room { going, more })
    }

    fn promise_to(&self, node: NodeId, id: WorkloadId) -> Option<&Promise> {
        self.promises.get(&self.tree.root(node))?.iter().find(|promise| promise.workload == id)
    }

    /// Of those that are not ready yet, the first by name.
    fn first_unready(&self) -> Option<Key> {
        self.unready.iter().filter_map(|id| self.key(*id)).min()
    }

    fn key(&self, id: WorkloadId) -> Option<Key> {
        Some(self.workloads.get(id)?.entry.key.clone())
    }

    /// What a workload in line would get now without anyone's going, or what stands in its way.
    fn look(&self, id: WorkloadId) -> Option<Result<Assignment, Vec<Obstacle>>> {
        let slot = self.workloads.get(id)?;
        let Standing::InLine(node) = slot.standing else { return None };
        let state = self.cluster_queues.get(node)?;
        let demand = slot.entry.demand.as_ref().ok()?;
        let attempt = Attempt {
            cluster_queue: &state.name,
            node,
            quota: state.quota.as_ref()?,
            flavors: &self.flavors,
            undeclared: self.settings.resources.undeclared,
            fair_sharing: self.settings.fair_sharing.is_some(),
            predecessor: self.predecessor(slot, node).and_then(predecessor_of),
            kept_back: self.promise_to(node, id).map(|promise| &promise.usage),
            demand,
        };
        let counts: Vec<i32> = demand.pod_sets.iter().map(|set| set.count).collect();
        let mut found = Findings { obstacles: Some(Vec::new()), ..Findings::default() };
        let assignment = attempt.assign(&counts, &mut Onlooker { tree: &self.tree, node }, &mut found);
        let fits = assignment.filter(|assignment| assignment.means.mode > Mode::NoCandidates);
        Some(fits.ok_or(found.obstacles.unwrap_or_default()))
    }

    /// Adds to a shortfall who holds the most of what is short.
    fn name_holders(&self, obstacle: &mut Obstacle, slot: &Slot) {
        let (Obstacle::Short(shortfall) | Obstacle::Exceeds(shortfall)) = obstacle else { return };
        let Some((within, fr)) = shortfall.within else { return };
        let own = slot.entry.replaces.as_ref().and_then(|key| self.workloads.id(key));
        let queues = self.tree.cluster_queues_below(within);
        let states = || queues.iter().take(MOST_QUEUES).filter_map(|node| self.cluster_queue(*node));
        let largest =
            states().flat_map(|state| state.ledger.holders(fr).filter(|(id, _)| Some(*id) != own).take(NAMED));
        let mut largest: Vec<(Key, i128)> = largest.filter_map(|(id, amount)| Some((self.key(id)?, amount))).collect();
        largest.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| b.0.cmp(&a.0)));
        largest.truncate(NAMED);
        let all: usize = states().map(|state| state.ledger.holder_count(fr)).sum();
        let all = all - usize::from(shortfall.held != Amount::ZERO).min(all);
        fill(shortfall, largest, all);
    }

    pub(super) fn cluster_queue_problem(&self, node: NodeId) -> Option<(&'static str, String)> {
        let state = self.cluster_queues.get(node)?;
        state.quota.as_ref()?.inactive(&self.flavors, state.cohort_cycle.clone())
    }

    pub(super) fn cluster_queue_effect(&self, node: NodeId) -> Option<Effect> {
        let state = self.cluster_queues.get(node)?;
        let quota = state.quota.as_ref()?;
        let mut report = ClusterQueueReport {
            generation: state.generation,
            activity: Activity::of_cluster_queue(self.cluster_queue_problem(node).as_ref()),
            unsupported: quota.unsupported.clone(),
            counts: state.counts,
            weighted_share: self.settings.fair_sharing.as_ref().map(|_| weighted_share(&self.tree, node)),
            reservation: Vec::new(),
            usage: Vec::new(),
        };
        report.usage_of(quota, &self.tree, node, &state.ledger.sums);
        let topologies = quota
            .flavors()
            .filter(|(flavor, _)| self.flavors.get(*flavor).is_some_and(|spec| spec.topology_name.is_some()));
        report
            .unsupported
            .extend(topologies.map(|(flavor, _)| format!("spec.topologyName of ResourceFlavor {flavor}")));
        let changed = !status::cluster_queue_says(&state.observed, &report);
        changed.then(|| Effect::ClusterQueueStatus { cluster_queue: state.name.clone(), report })
    }

    pub(super) fn cohort_effect(&self, node: NodeId) -> Option<Effect> {
        let name = self.tree.name(node);
        let observed = self.cohorts.get(name)?;
        let weighted_share = self.settings.fair_sharing.as_ref().map(|_| weighted_share(&self.tree, node));
        let report = CohortReport { weighted_share };
        let changed = status::cohort(&report) != *observed;
        changed.then(|| Effect::CohortStatus { cohort: name.to_owned(), report })
    }

    pub(super) fn local_queue_effect(&self, id: LocalQueueId) -> Option<Effect> {
        let state = self.local_queues.get(id)?;
        let rules = state.rules.as_ref()?;
        let behind = rules.cluster_queue.and_then(|node| self.cluster_queues.get(node));
        let quota = behind.and_then(|state| state.quota.as_ref());
        let active = behind.filter(|_| quota.is_some()).map(|state| self.cluster_queue_problem(state.node).is_none());
        let report = LocalQueueReport {
            generation: state.generation,
            activity: Activity::of_local_queue(rules.stop, active),
            counts: state.counts,
            reservation: quota
                .map(|quota| local_queue_usage(quota, &self.tree, |fr| state.sums.reserved(fr)))
                .unwrap_or_default(),
            usage: quota
                .map(|quota| local_queue_usage(quota, &self.tree, |fr| state.sums.admitted(fr)))
                .unwrap_or_default(),
        };
        let changed = !status::local_queue_says(&state.observed, &report);
        changed.then(|| Effect::LocalQueueStatus { local_queue: state.key.clone(), report })
    }
}

/// How long a workload stays away that was sent back for the `count`th time: twice as long each time (kueue v0.19.2
/// `pkg/workload/workload.go`, `UpdateRequeueState`).
fn backoff_seconds(rules: &Requeuing, count: u32) -> u32 {
    let doublings = count.saturating_sub(1);
    let seconds = 2_u32.checked_pow(doublings).and_then(|factor| rules.backoff_base_seconds.checked_mul(factor));
    seconds.unwrap_or(u32::MAX).min(rules.backoff_max_seconds)
}

fn fill(shortfall: &mut Shortfall, largest: Vec<(Key, i128)>, all: usize) {
    shortfall.more_holders = all.saturating_sub(largest.len());
    shortfall.holders = largest.into_iter().map(|(key, amount)| (key, clamped(amount))).collect();
}

pub(super) fn predecessor_of(slot: &Slot) -> Option<Predecessor<'_>> {
    let Standing::Holds(admission) = &slot.standing else { return None };
    Some(Predecessor { charge: &slot.booked.charge, demand: slot.entry.demand.as_deref().ok(), admission })
}
