//! Progress of a run as a function of what is observed: who was created, admitted and finished
//! when, what has to be written next, and whether an invariant is broken.
//!
//! It has no client and no clock. Times are those since the start of the run.

mod classes;
mod invariants;
mod quota_use;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

pub use classes::{ClassLatency, LatencyError, latencies};
pub use invariants::{Holding, QuotaInvariants, Standing, Violation};
use quota_use::QuotaUse;

use crate::observed::{ObservedMeta, ObservedWorkload};
use crate::plan::LoadPlan;
use crate::scenario::{Kind, Stage};

/// Write that completes an eviction, as a stopped job does.
#[derive(Debug, Clone, PartialEq)]
pub struct Release {
    /// Namespace of the Workload.
    pub namespace: String,
    /// Name of the Workload.
    pub name: String,
    /// Version that was evicted.
    pub version: String,
    /// Conditions of that version.
    pub conditions: Vec<Condition>,
}

/// The run at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snapshot {
    /// Fraction of the whole quota that is used.
    pub quota_used: f64,
    /// Number of pending Workloads.
    pub pending: usize,
    /// Number of objects that are admitted and have not finished.
    pub running: usize,
    /// Number of objects that were created.
    pub created: usize,
    /// Number of Workloads that exist.
    pub workloads: usize,
}

/// Numbers at the end of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Totals {
    /// Number of admissions, repeated ones included.
    pub admissions: usize,
    /// Number of Workloads that lost their quota before they finished.
    pub evictions: usize,
    /// Number of finished Workloads.
    pub finished: usize,
    /// Time of the last object that was done.
    pub last_done: Duration,
    /// Mean fraction of the quota in use while Workloads were pending. `None` if none was.
    pub quota_use: Option<f64>,
}

/// Progress of a run.
#[derive(Debug)]
pub struct Progress {
    plan: Arc<LoadPlan>,
    items: Vec<ItemProgress>,
    /// Place of each object in the plan, by kind, namespace and name.
    index: HashMap<(Kind, String), usize>,
    queue_named: HashMap<String, usize>,
    classes: Vec<ClassProgress>,
    invariants: QuotaInvariants,
    quota_use: QuotaUse,
    /// Times at which Workloads have run long enough.
    deadlines: BTreeSet<(Duration, usize)>,
    /// Workloads that have been admitted, and finish only after all of a class are created.
    held: Vec<usize>,
    running: usize,
    created: usize,
    done: usize,
    admissions: usize,
    evictions: usize,
    finished: usize,
    last_done: Duration,
}

/// Progress of one object.
#[derive(Debug, Clone, Default)]
pub struct ItemProgress {
    /// Time of the answer to its creation. `None`: not answered yet.
    created_at: Option<Duration>,
    /// Time at which its first admission was seen. `None`: not admitted yet.
    admitted_at: Option<Duration>,
    is_admitted: bool,
    is_finished: bool,
    deadline: Option<Duration>,
}

#[derive(Debug, Clone, Default)]
struct ClassProgress {
    is_started: bool,
    created: usize,
    admitted: usize,
}

impl Progress {
    /// Creates the progress of a run in which nothing has happened.
    pub fn new(plan: Arc<LoadPlan>, invariants: QuotaInvariants) -> Self {
        let index = plan.items.iter().enumerate().map(|(place, item)| {
            let key = format!("{}/{}", plan.namespace_of(item), item.name);
            ((plan.class_of(item).kind, key), place)
        });
        let index = index.collect();
        let queue_named = plan.queues.iter().enumerate().map(|(number, queue)| (queue.name.clone(), number)).collect();
        Self {
            items: vec![ItemProgress::default(); plan.items.len()],
            index,
            queue_named,
            classes: vec![ClassProgress::default(); plan.classes.len()],
            invariants,
            quota_use: QuotaUse::new(&plan),
            plan,
            deadlines: BTreeSet::new(),
            held: Vec::new(),
            running: 0,
            created: 0,
            done: 0,
            admissions: 0,
            evictions: 0,
            finished: 0,
            last_done: Duration::ZERO,
        }
    }

    /// Returns the classes that can start, each once.
    pub fn start_classes(&mut self) -> Vec<usize> {
        let ready = |class: &usize| {
            let Some((other, stage)) = self.plan.classes[*class].after else { return true };
            self.is_complete(other, stage)
        };
        let is_idle = |class: &usize| !self.classes[*class].is_started;
        let started: Vec<usize> = (0..self.classes.len()).filter(is_idle).filter(ready).collect();
        for class in &started {
            self.classes[*class].is_started = true;
        }
        started
    }

    /// Records the answer to the creation of an object.
    pub fn created(&mut self, now: Duration, item: usize) {
        self.items[item].created_at = Some(now);
        self.created += 1;
        let class = self.plan.items[item].class;
        self.classes[class].created += 1;
        if self.plan.finish_after_created == Some(class) && self.is_complete(class, Stage::Created) {
            for held in std::mem::take(&mut self.held) {
                self.schedule_finish(now, held);
            }
        }
    }

    /// Records a change of a Workload. Returns the write that completes its eviction, if it has to
    /// be made.
    ///
    /// # Errors
    /// If an invariant is broken.
    pub fn workload_changed(
        &mut self,
        now: Duration,
        workload: &ObservedWorkload,
    ) -> Result<Option<Release>, Violation> {
        let standing = workload.standing();
        if let (Standing::Holding(_), Some(replaced)) = (&standing, workload.replaces()) {
            self.invariants.replace(replaced)?;
        }
        let Some(item) = self.record_standing(now, &workload.metadata, Some(standing.clone()))? else {
            return Ok(None);
        };
        let is_evicted = workload.is_evicted();
        let is_admitted = matches!(&standing, Standing::Holding(holding) if holding.admitted_at.is_some());
        self.set_admitted(now, item, is_admitted && !is_evicted, standing == Standing::Finished);
        Ok(is_evicted.then(|| Release {
            namespace: workload.metadata.namespace.clone(),
            name: workload.metadata.name.clone(),
            version: workload.metadata.resource_version.clone(),
            conditions: workload.status.conditions.clone(),
        }))
    }

    /// Records that a Workload was deleted.
    ///
    /// # Errors
    /// If an invariant is broken.
    pub fn workload_deleted(&mut self, now: Duration, metadata: &ObservedMeta) -> Result<(), Violation> {
        if let Some(item) = self.record_standing(now, metadata, None)? {
            self.set_admitted(now, item, false, false);
        }
        Ok(())
    }

    /// Records that a Job or RayCluster was seen with its gate open, or closed.
    pub fn gate_changed(&mut self, now: Duration, kind: Kind, metadata: &ObservedMeta, is_open: bool) {
        if let Some(item) = self.index.get(&(kind, metadata.key())).copied() {
            self.set_admitted(now, item, is_open, false);
        }
    }

    /// Returns the Workloads that have run long enough, each once.
    pub fn take_due(&mut self, now: Duration) -> Vec<usize> {
        let mut due = Vec::new();
        while let Some((_, item)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.cancel_finish(item);
            due.push(item);
        }
        due
    }

    /// Returns the time of the next Workload that has run long enough. `None` if none runs for a
    /// given time.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Returns whether the run has come to its end.
    pub fn is_done(&self) -> bool {
        match self.plan.stop_after_finished {
            Some(stop) => self.finished >= stop,
            None => self.created == self.items.len() && self.done == self.items.len(),
        }
    }

    /// Returns the run at present.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            quota_used: self.quota_use.present(),
            pending: self.quota_use.pending(),
            running: self.running,
            created: self.created,
            workloads: self.invariants.workloads(),
        }
    }

    /// Returns the numbers at the end of the run.
    pub fn totals(&mut self, now: Duration) -> Totals {
        Totals {
            admissions: self.admissions,
            evictions: self.evictions,
            finished: self.finished,
            last_done: self.last_done,
            quota_use: self.quota_use.mean(now),
        }
    }

    /// Returns the progress of each object, in the order of the plan.
    pub fn items(&self) -> &[ItemProgress] {
        &self.items
    }

    /// Describes what is missing, for a run that takes too long.
    pub fn missing(&self) -> String {
        let first = (0..self.items.len()).find(|item| !self.is_item_done(*item));
        let first = first.map_or_else(String::new, |item| {
            let item = &self.plan.items[item];
            format!("; the first is {}/{}", self.plan.namespace_of(item), item.name)
        });
        let (total, left) = (self.items.len(), self.items.len() - self.done);
        format!("{} of {total} objects are created, {left} are not done{first}", self.created)
    }

    /// Updates invariants and use of quota. Returns the object of the plan, if the Workload is one.
    fn record_standing(
        &mut self,
        now: Duration,
        metadata: &ObservedMeta,
        standing: Option<Standing>,
    ) -> Result<Option<usize>, Violation> {
        let Some(queue) = self.queue_named.get(&metadata.namespace).copied() else { return Ok(None) };
        let key = metadata.key();
        let is_pending = |standing: &Option<Standing>| usize::from(*standing == Some(Standing::Pending));
        let pending_now = is_pending(&standing);
        let before = self.invariants.change(&key, standing)?;
        let cohort = self.plan.queues[queue].cohort;
        let pending = self.quota_use.pending_in(cohort) + pending_now - is_pending(&before);
        self.quota_use.change(now, cohort, pending, self.invariants.usage_of_cohort(cohort));
        Ok(self.index.get(&(Kind::Workload, key)).copied())
    }

    fn set_admitted(&mut self, now: Duration, item: usize, is_admitted: bool, is_finished: bool) {
        let was_done = self.is_item_done(item);
        let class = self.plan.items[item].class;
        let progress = &mut self.items[item];
        let was_admitted = std::mem::replace(&mut progress.is_admitted, is_admitted);
        self.finished += usize::from(is_finished && !progress.is_finished);
        progress.is_finished |= is_finished;
        if is_admitted && progress.admitted_at.is_none() {
            progress.admitted_at = Some(now);
            self.classes[class].admitted += 1;
        }
        match (was_admitted, is_admitted) {
            (false, true) => {
                self.admissions += 1;
                self.running += 1;
                self.schedule_finish(now, item);
            }
            (true, false) => {
                self.running -= 1;
                self.evictions += usize::from(!is_finished);
                self.cancel_finish(item);
            }
            _ => {}
        }
        self.count_done(now, item, was_done);
    }

    fn count_done(&mut self, now: Duration, item: usize, was_done: bool) {
        match (was_done, self.is_item_done(item)) {
            (false, true) => {
                self.done += 1;
                self.last_done = now;
            }
            (true, false) => self.done -= 1,
            _ => {}
        }
    }

    fn is_item_done(&self, item: usize) -> bool {
        let progress = &self.items[item];
        progress.is_finished || (self.plan.items[item].run.is_none() && progress.is_admitted)
    }

    fn is_complete(&self, class: usize, stage: Stage) -> bool {
        let progress = &self.classes[class];
        let reached = match stage {
            Stage::Created => progress.created,
            Stage::Admitted => progress.admitted,
        };
        reached == self.plan.classes[class].items.len()
    }

    fn schedule_finish(&mut self, now: Duration, item: usize) {
        let (Some(run), true) = (self.plan.items[item].run, self.items[item].is_admitted) else { return };
        let is_held = self.plan.finish_after_created.is_some_and(|class| !self.is_complete(class, Stage::Created));
        if is_held {
            self.held.push(item);
            return;
        }
        let deadline = now.saturating_add(run);
        self.items[item].deadline = Some(deadline);
        self.deadlines.insert((deadline, item));
    }

    fn cancel_finish(&mut self, item: usize) {
        if let Some(deadline) = self.items[item].deadline.take() {
            self.deadlines.remove(&(deadline, item));
        }
    }
}

#[cfg(test)]
mod tests;
