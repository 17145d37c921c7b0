//! In-memory cluster: applies the scheduler's decisions and feeds the results back to it.

use std::collections::BTreeMap;

use sluice_api::kueue::{ClusterQueue, Cohort, LocalQueue, Workload};
use sluice_queue::{Decision, Input, ObjectKey, Scheduler, status};

use super::BenchError;
use super::objects::{self, timestamp};
use super::scenario::{Job, Scenario};
use super::scheduler_clock::{Operation, SchedulerClock};
use super::usage_audit::UsageAudit;

/// Limit on cycles without progress of time, for detecting non-convergence.
const MAX_ROUNDS: usize = 1000;
/// Limit on the average number of evictions per workload, for detecting endless preemption.
const MAX_EVICTIONS_PER_WORKLOAD: u64 = 50;

/// Progress of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkloadProgress {
    Pending,
    /// Running since this virtual time, in milliseconds.
    Running(i64),
    Finished,
}

/// A submitted workload.
#[derive(Debug)]
pub(super) struct SubmittedWorkload {
    pub(super) job: Job,
    pub(super) object: Workload,
    pub(super) progress: WorkloadProgress,
    /// Number of its admissions.
    pub(super) admissions: u32,
}

/// Totals of the run so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RunTotals {
    pub(super) admissions: u64,
    pub(super) evictions: u64,
    pub(super) finished: usize,
    /// Work lost to evictions, in units × milliseconds.
    pub(super) wasted: i64,
    pub(super) work: i64,
}

/// In-memory cluster with the scheduler under test.
#[derive(Debug)]
pub(super) struct SimulatedCluster {
    scheduler: Scheduler,
    pub(super) clock: SchedulerClock,
    pub(super) totals: RunTotals,
    /// Virtual time in milliseconds.
    pub(super) now: i64,
    /// Indices of newly admitted workloads, until the caller takes them.
    pub(super) newly_admitted: Vec<usize>,
    pub(super) workloads: Vec<SubmittedWorkload>,
    indices: BTreeMap<ObjectKey, usize>,
    usage_audit: UsageAudit,
    namespaces: Vec<String>,
    cluster_queues: BTreeMap<String, ClusterQueue>,
    cohorts: BTreeMap<String, Cohort>,
    local_queues: BTreeMap<ObjectKey, LocalQueue>,
}

impl SimulatedCluster {
    /// Creates the queues of a scenario, without its workloads.
    pub(super) fn new(scenario: &Scenario) -> Result<Self, BenchError> {
        let mut world = Self {
            scheduler: Scheduler::new(scenario.settings.clone()),
            clock: SchedulerClock::new()?,
            totals: RunTotals::default(),
            now: 0,
            newly_admitted: Vec::new(),
            workloads: Vec::new(),
            indices: BTreeMap::new(),
            usage_audit: UsageAudit::new(&scenario.queues),
            namespaces: scenario.queues.iter().map(|queue| queue.name().to_owned()).collect(),
            cluster_queues: BTreeMap::new(),
            cohorts: BTreeMap::new(),
            local_queues: BTreeMap::new(),
        };
        world.observe(Operation::QueueStatus, &Input::ResourceFlavor(&objects::flavor()));
        for cohort in &scenario.cohorts {
            world.observe(Operation::QueueStatus, &Input::Cohort(cohort));
            world.cohorts.insert(cohort.metadata.name.clone().unwrap_or_default(), cohort.clone());
        }
        for queue in &scenario.queues {
            world.observe(Operation::QueueStatus, &Input::ClusterQueue(&queue.object));
            world.cluster_queues.insert(queue.name().to_owned(), queue.object.clone());
            let local_queue = objects::local_queue(queue)?;
            world.observe(Operation::QueueStatus, &Input::LocalQueue(&local_queue));
            world.local_queues.insert(ObjectKey::of(&local_queue), local_queue);
        }
        world.run_to_fixpoint()?;
        // The setup is not measured.
        (world.clock, world.totals) = (SchedulerClock::new()?, RunTotals::default());
        Ok(world)
    }

    /// Returns the scheduler and drops everything else.
    pub(super) fn into_scheduler(self) -> Scheduler {
        self.scheduler
    }

    /// Returns the next timer of the scheduler, in milliseconds of virtual time; `None` if there is
    /// none.
    pub(super) fn wake_at(&self) -> Option<i64> {
        // Rounded up, so that the timer is not fired too early.
        self.scheduler
            .next_deadline()
            .map(|time| time.as_millisecond() + i64::from(time.subsec_nanosecond() % 1_000_000 != 0))
    }

    fn observe(&mut self, part: Operation, event: &Input<'_>) {
        self.clock.step(part, &mut self.scheduler, timestamp(self.now), event);
    }

    fn observe_workload(&mut self, index: usize, object: Workload) {
        self.observe(Operation::Progress, &Input::Workload(&object));
        self.workloads[index].object = object;
    }

    /// Submits a workload. Returns its index.
    pub(super) fn submit(&mut self, job: Job) -> Result<usize, BenchError> {
        let object = objects::workload(&job, &self.namespaces[job.queue], timestamp(self.now))?;
        let index = self.workloads.len();
        self.indices.insert(ObjectKey::of(&object), index);
        self.observe(Operation::Arrival, &Input::Workload(&object));
        self.totals.work += job.requests.iter().map(|(_, units)| units * job.run).sum::<i64>();
        self.workloads.push(SubmittedWorkload { job, object, progress: WorkloadProgress::Pending, admissions: 0 });
        Ok(index)
    }

    /// Finishes a running workload.
    pub(super) fn finish(&mut self, index: usize) -> Result<(), BenchError> {
        let object = objects::finished(&self.workloads[index].object, timestamp(self.now));
        self.observe_workload(index, object);
        let life = &mut self.workloads[index];
        life.progress = WorkloadProgress::Finished;
        self.totals.finished += 1;
        self.usage_audit.release(life.job.queue, &life.job.requests, self.now)
    }

    /// Runs cycles and applies their decisions until there are no more.
    pub(super) fn run_to_fixpoint(&mut self) -> Result<(), BenchError> {
        for _ in 0..MAX_ROUNDS {
            let effects = self.clock.cycle(&mut self.scheduler, timestamp(self.now))?;
            if effects.is_empty() {
                return Ok(());
            }
            for effect in &effects {
                self.apply(effect)?;
            }
        }
        Err(BenchError::DidNotConverge { at: self.now })
    }

    fn apply(&mut self, effect: &Decision) -> Result<(), BenchError> {
        let now = timestamp(self.now);
        let unexpected = || BenchError::UnexpectedDecision { at: now.as_millisecond(), effect: format!("{effect:?}") };
        match effect {
            Decision::Admit { workload, .. } => self.admit(self.index(workload).ok_or_else(unexpected)?, effect),
            Decision::Evict { workload, .. } => self.evict(self.index(workload).ok_or_else(unexpected)?, effect),
            Decision::Pending { workload, .. } => {
                let index = self.index(workload).ok_or_else(unexpected)?;
                let object = status::with_decision(&self.workloads[index].object, effect, now);
                self.observe_workload(index, object);
                Ok(())
            }
            Decision::ClusterQueueStatus { cluster_queue, report } => {
                let mut object = self.cluster_queues.remove(cluster_queue).ok_or_else(unexpected)?;
                object.status = Some(status::cluster_queue(&object.status.unwrap_or_default(), report, now));
                self.observe(Operation::QueueStatus, &Input::ClusterQueue(&object));
                self.cluster_queues.insert(cluster_queue.clone(), object);
                Ok(())
            }
            Decision::CohortStatus { cohort, report } => {
                let mut object = self.cohorts.remove(cohort).ok_or_else(unexpected)?;
                object.status = Some(status::cohort(report));
                self.observe(Operation::QueueStatus, &Input::Cohort(&object));
                self.cohorts.insert(cohort.clone(), object);
                Ok(())
            }
            Decision::LocalQueueStatus { local_queue, report } => {
                let mut object = self.local_queues.remove(local_queue).ok_or_else(unexpected)?;
                object.status = Some(status::local_queue(&object.status.unwrap_or_default(), report, now));
                self.observe(Operation::QueueStatus, &Input::LocalQueue(&object));
                self.local_queues.insert(local_queue.clone(), object);
                Ok(())
            }
            _ => Err(unexpected()),
        }
    }

    fn index(&self, workload: &ObjectKey) -> Option<usize> {
        self.indices.get(workload).copied()
    }

    fn admit(&mut self, index: usize, effect: &Decision) -> Result<(), BenchError> {
        let object = status::with_decision(&self.workloads[index].object, effect, timestamp(self.now));
        self.observe_workload(index, object);
        let life = &mut self.workloads[index];
        if life.progress != WorkloadProgress::Pending {
            return Err(BenchError::UnexpectedDecision { at: self.now, effect: format!("{effect:?}") });
        }
        (life.progress, life.admissions) = (WorkloadProgress::Running(self.now), life.admissions + 1);
        self.totals.admissions += 1;
        self.newly_admitted.push(index);
        self.usage_audit.add(life.job.queue, &life.job.requests, self.now)
    }

    /// Evicts a workload; its job stops immediately.
    fn evict(&mut self, index: usize, effect: &Decision) -> Result<(), BenchError> {
        let come = self.workloads.len() as u64;
        let now = timestamp(self.now);
        let object = status::with_decision(&self.workloads[index].object, effect, now);
        self.observe_workload(index, object);
        let released = status::released(&self.workloads[index].object, now);
        let object = Workload { status: Some(released), ..self.workloads[index].object.clone() };
        self.observe_workload(index, object);
        let life = &mut self.workloads[index];
        let WorkloadProgress::Running(since) = life.progress else {
            return Err(BenchError::UnexpectedDecision { at: self.now, effect: format!("{effect:?}") });
        };
        life.progress = WorkloadProgress::Pending;
        self.totals.evictions += 1;
        if self.totals.evictions > MAX_EVICTIONS_PER_WORKLOAD * come {
            return Err(BenchError::Flapping { at: self.now, evictions: self.totals.evictions });
        }
        self.totals.wasted += life.job.requests.iter().map(|(_, units)| units * (self.now - since)).sum::<i64>();
        self.usage_audit.release(life.job.queue, &life.job.requests, self.now)
    }
}
