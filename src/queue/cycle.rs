//! One round of decisions, and what is wanted of each object after it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::assign::{Attempt, Predecessor};
use super::engine::{ClusterQueueState, Engine, Slot, Standing};
use super::entry::Stage;
use super::line::Rank;
use super::pending::Waiting;
use super::report::{Activity, ClusterQueueReport, LocalQueueReport, local_queue_usage};
use super::status;
use super::{Effect, EvictReason, Key, Subject, Successor};
use crate::api::kueue::{Admission, StopPolicy};

/// How many workloads at the front of a line are told new numbers while quota comes and goes. Those behind keep the numbers
/// that they were told when they lined up, or else every admission would write to every waiting workload.
const FRONT: usize = 32;

/// How long the front is left with its numbers before it is told new ones. A new reason is told at once, to all.
const REFRESH_AFTER: SignedDuration = SignedDuration::from_secs(10);

impl Engine {
    /// Decides on everything that changed, and returns what is wanted that is not so yet: evictions and ends first, then
    /// admissions in the order in which they were decided, then the rest.
    pub fn cycle(&mut self, now: Timestamp) -> Vec<Effect> {
        self.now = self.now.max(now);
        self.end_backoffs();
        let mut admitted = Vec::new();
        while let Some(name) = self.dirty.pop_first() {
            self.go_through(&name, &mut admitted);
        }
        self.refresh_numbers();
        let touched = std::mem::take(&mut self.touched);
        let admitted: BTreeMap<Key, usize> = admitted.into_iter().enumerate().map(|(turn, key)| (key, turn)).collect();
        let mut effects: Vec<((u8, usize), Effect)> = touched
            .iter()
            .filter_map(|subject| self.effect(subject))
            .map(|effect| (urgency(&effect, &admitted), effect))
            .collect();
        effects.sort_by_key(|(urgency, _)| *urgency);
        effects.into_iter().map(|(_, effect)| effect).collect()
    }

    /// When a cycle is due even if nothing happens: a workload comes back after an eviction, or numbers are to be told.
    pub fn wake_at(&self) -> Option<Timestamp> {
        self.timers.iter().next().map(|(at, _)| *at).into_iter().chain(self.refreshes.values().copied()).min()
    }

    fn end_backoffs(&mut self) {
        while let Some((at, key)) = self.timers.first().cloned().filter(|(at, _)| *at <= self.now) {
            self.timers.remove(&(at, key.clone()));
            self.settle(&key);
        }
    }

    /// Goes through the line of one ClusterQueue until nobody in it fits, or until the first does not fit if it is strict.
    fn go_through(&mut self, name: &str, admitted: &mut Vec<Key>) {
        let mut numbers_changed = false;
        loop {
            let Some(state) = self.cluster_queues.get_mut(name) else { return };
            if std::mem::take(&mut state.released) {
                state.line.retry_all();
                numbers_changed = true;
            }
            let strict = state.quota.as_ref().is_some_and(|quota| quota.strict);
            let next = if strict {
                state.line.head().filter(|(_, untried)| *untried).map(|(rank, _)| rank)
            } else {
                state.line.next_untried()
            };
            let Some(rank) = next.cloned() else { break };
            match self.attempt(&rank.workload) {
                Some(Ok(admission)) => {
                    self.assume(&rank.workload, admission);
                    admitted.push(rank.workload);
                    numbers_changed = true;
                }
                Some(Err(_)) | None => self.mark_tried(name, &rank),
            }
        }
        let Some(state) = self.cluster_queues.get_mut(name) else { return };
        let first = state.line.head().map(|(rank, _)| rank.workload.clone());
        if numbers_changed || first != state.first {
            let soon = self.now.saturating_add(REFRESH_AFTER).unwrap_or(self.now);
            state.first = first;
            self.refreshes.entry(name.to_owned()).or_insert(soon);
            self.touched.extend(front(state).map(Subject::Workload));
        }
    }

    fn refresh_numbers(&mut self) {
        let due: Vec<String> =
            self.refreshes.iter().filter(|(_, at)| **at <= self.now).map(|(name, _)| name.clone()).collect();
        for name in due {
            self.refreshes.remove(&name);
            let Some(state) = self.cluster_queues.get(&name) else { continue };
            for key in front(state) {
                if let Some(slot) = self.workloads.get_mut(&key) {
                    slot.refresh = true;
                }
                self.touched.insert(Subject::Workload(key));
            }
        }
    }

    fn mark_tried(&mut self, name: &str, rank: &Rank) {
        if let Some(state) = self.cluster_queues.get_mut(name) {
            state.line.mark_tried(rank);
        }
    }

    /// What a workload in line would get now, or what stands in its way.
    fn attempt(&self, key: &Key) -> Option<Result<Admission, Vec<super::Obstacle>>> {
        let slot = self.workloads.get(key)?;
        let Standing::InLine(cluster_queue) = &slot.standing else { return None };
        let state = self.cluster_queues.get(cluster_queue)?;
        let attempt = Attempt {
            cluster_queue,
            quota: state.quota.as_ref()?,
            flavors: &self.flavors,
            ledger: &state.ledger,
            predecessor: self.predecessor(slot, cluster_queue).and_then(predecessor_of),
        };
        Some(attempt.assign(slot.entry.demand.as_ref().ok()?))
    }

    /// Counts an admission as held from now on. If the workload takes over another's quota, that changes hands in the same
    /// step: the pair is charged once, before and after.
    fn assume(&mut self, key: &Key, admission: Admission) {
        let name = admission.cluster_queue.clone();
        let Some(slot) = self.workloads.get_mut(key) else { return };
        slot.assumed = Some(Arc::new(admission));
        let released = self.cluster_queues.get(&name).is_some_and(|state| state.released);
        self.settle_family(key);
        if let Some(state) = self.cluster_queues.get_mut(&name) {
            // What changed hands was not released.
            state.released = released;
        }
    }

    /// What is wanted of an object and is not so yet, as far as was observed.
    pub fn effect(&self, subject: &Subject) -> Option<Effect> {
        match subject {
            Subject::Workload(key) => self.workload_effect(self.workloads.get(key)?),
            Subject::ClusterQueue(name) => self.cluster_queue_effect(name),
            Subject::Cohort(_) => None,
            Subject::LocalQueue(key) => self.local_queue_effect(key),
        }
    }

    /// What a workload waits for, with the numbers of this moment; `None` when it does not wait.
    pub fn explain(&self, workload: &Key) -> Option<Waiting> {
        self.waiting(self.workloads.get(workload)?)
    }

    /// Who is in the line of any ClusterQueue, in order.
    #[cfg(test)]
    pub(super) fn in_line(&self) -> Vec<Key> {
        self.cluster_queues.values().flat_map(|state| state.line.iter()).map(|rank| rank.workload.clone()).collect()
    }

    /// Whether a workload in line would be admitted now.
    #[cfg(test)]
    pub(super) fn would_fit(&self, key: &Key) -> bool {
        matches!(self.attempt(key), Some(Ok(_)))
    }

    fn workload_effect(&self, slot: &Slot) -> Option<Effect> {
        let (entry, workload) = (&slot.entry, slot.entry.key.clone());
        match &slot.standing {
            Standing::Out => {
                let stop = !entry.active && !entry.evicted && !entry.deleting && entry.stage == Stage::Unreserved;
                stop.then_some(Effect::Evict { workload, reason: EvictReason::Deactivated })
            }
            Standing::Superseded(by) => {
                let by = &self.workloads.get(by)?.entry;
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
                let why = self.waiting(slot)?;
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
        if let Some(admission) = entry.shrunk(admission) {
            return Some(Effect::ShrinkAdmission { workload, admission });
        }
        let active = self.cluster_queue_problem(&admission.cluster_queue).is_none();
        (!entry.admitted && active && !entry.deleting).then(|| Effect::Admit {
            workload,
            admission: admission.clone(),
            replaces: None,
        })
    }

    fn must_stop(&self, slot: &Slot, cluster_queue: &str) -> Option<EvictReason> {
        let drained = |stop: StopPolicy| stop == StopPolicy::HoldAndDrain;
        let local_queue = slot.entry.local_queue().and_then(|key| self.local_queues.get(&key)?.rules.as_ref());
        let quota = self.cluster_queues.get(cluster_queue).and_then(|state| state.quota.as_ref());
        if !slot.entry.active {
            Some(EvictReason::Deactivated)
        } else if quota.is_some_and(|quota| drained(quota.stop)) {
            Some(EvictReason::ClusterQueueStopped)
        } else if local_queue.is_some_and(|rules| drained(rules.stop)) {
            Some(EvictReason::LocalQueueStopped)
        } else {
            None
        }
    }

    fn waiting(&self, slot: &Slot) -> Option<Waiting> {
        match &slot.standing {
            Standing::Held(why, _) => Some(why.clone()),
            Standing::InLine(cluster_queue) => match self.attempt(&slot.entry.key)? {
                Err(obstacles) => Some(Waiting::Quota(obstacles)),
                Ok(_) => {
                    let state = self.cluster_queues.get(cluster_queue)?;
                    let (head, _) = state.line.head()?;
                    let behind = state.quota.as_ref()?.strict && head.workload != slot.entry.key;
                    behind
                        .then(|| Waiting::Behind { head: head.workload.clone(), cluster_queue: cluster_queue.clone() })
                }
            },
            Standing::Out | Standing::Holds(_) | Standing::Superseded(_) => None,
        }
    }

    fn cluster_queue_problem(&self, name: &str) -> Option<(&'static str, String)> {
        self.cluster_queues.get(name)?.quota.as_ref()?.inactive(&self.flavors)
    }

    fn cluster_queue_effect(&self, name: &str) -> Option<Effect> {
        let state = self.cluster_queues.get(name)?;
        let quota = state.quota.as_ref()?;
        let activity = Activity::of_cluster_queue(quota.inactive(&self.flavors).as_ref());
        let mut report = ClusterQueueReport::of(quota, state.generation, activity, &state.ledger, state.counts);
        let topologies = quota
            .flavors()
            .filter(|(flavor, _)| self.flavors.get(*flavor).is_some_and(|spec| spec.topology_name.is_some()));
        report
            .unsupported
            .extend(topologies.map(|(flavor, _)| format!("spec.topologyName of ResourceFlavor {flavor}")));
        let changed = status::cluster_queue(&state.observed, &report, self.now) != state.observed;
        changed.then(|| Effect::ClusterQueueStatus { cluster_queue: name.to_owned(), report })
    }

    fn local_queue_effect(&self, key: &Key) -> Option<Effect> {
        let state = self.local_queues.get(key)?;
        let rules = state.rules.as_ref()?;
        let behind = rules.cluster_queue.as_ref().and_then(|name| self.cluster_queues.get(name));
        let quota = behind.and_then(|state| state.quota.as_ref());
        let active = quota.map(|quota| quota.inactive(&self.flavors).is_none());
        let report = LocalQueueReport {
            generation: state.generation,
            activity: Activity::of_local_queue(rules.stop, active),
            counts: state.counts,
            reservation: quota
                .map(|quota| local_queue_usage(quota, |at| state.ledger.reserved(at)))
                .unwrap_or_default(),
            usage: quota.map(|quota| local_queue_usage(quota, |at| state.ledger.admitted(at))).unwrap_or_default(),
        };
        let changed = status::local_queue(&state.observed, &report, self.now) != state.observed;
        changed.then(|| Effect::LocalQueueStatus { local_queue: key.clone(), report })
    }
}

/// The workloads at the front of a line.
fn front(state: &ClusterQueueState) -> impl Iterator<Item = Key> {
    state.line.iter().take(FRONT).map(|rank| rank.workload.clone())
}

fn predecessor_of(slot: &Slot) -> Option<Predecessor<'_>> {
    let Standing::Holds(admission) = &slot.standing else { return None };
    Some(Predecessor {
        key: &slot.entry.key,
        charge: &slot.booked.charge,
        demand: slot.entry.demand.as_deref().ok(),
        admission,
    })
}

/// Where an effect comes in the order of writing.
fn urgency(effect: &Effect, admitted: &BTreeMap<Key, usize>) -> (u8, usize) {
    match effect {
        Effect::Evict { .. }
        | Effect::Deactivate { .. }
        | Effect::SetInactive { .. }
        | Effect::FinishReplaced { .. }
        | Effect::ShrinkAdmission { .. } => (0, 0),
        Effect::Admit { workload, .. } => (1, admitted.get(workload).copied().unwrap_or(usize::MAX)),
        Effect::Pending { .. } => (2, 0),
        Effect::ClusterQueueStatus { .. } | Effect::CohortStatus { .. } | Effect::LocalQueueStatus { .. } => (3, 0),
    }
}
