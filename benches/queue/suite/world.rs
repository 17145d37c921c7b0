//! In-memory cluster: applies the scheduler's decisions and feeds the results back to it.

use std::collections::BTreeMap;

use sluice_api::kueue::{ClusterQueue, Cohort, LocalQueue, Workload};
use sluice_queue::{Effect, Engine, Event, ObjectKey, status};

use super::Broken;
use super::book::Book;
use super::clock::{Clock, Part};
use super::objects::{self, at};
use super::scenario::{Job, Scenario};

/// Limit on cycles without progress of time, for detecting non-convergence.
const MANY_ROUNDS: usize = 1000;
/// Limit on the average number of evictions per workload, for detecting endless preemption.
const EVICTIONS_TOO_MANY: u64 = 50;

/// Progress of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Waiting,
    /// Running since this virtual time, in milliseconds.
    Running(i64),
    Finished,
}

/// A submitted workload.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) job: Job,
    pub(super) object: Workload,
    pub(super) progress: Progress,
    /// Number of its admissions.
    pub(super) admissions: u32,
}

/// Totals of the run so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) admissions: u64,
    pub(super) evictions: u64,
    pub(super) finished: usize,
    /// Work lost to evictions, in units × milliseconds.
    pub(super) wasted: i64,
    pub(super) work: i64,
}

/// In-memory cluster with the scheduler under test.
#[derive(Debug)]
pub(super) struct World {
    engine: Engine,
    pub(super) clock: Clock,
    pub(super) tally: Tally,
    /// Virtual time in milliseconds.
    pub(super) now: i64,
    /// Indices of newly admitted workloads, until the caller takes them.
    pub(super) started: Vec<usize>,
    pub(super) lives: Vec<Life>,
    indices: BTreeMap<ObjectKey, usize>,
    book: Book,
    namespaces: Vec<String>,
    cluster_queues: BTreeMap<String, ClusterQueue>,
    cohorts: BTreeMap<String, Cohort>,
    local_queues: BTreeMap<ObjectKey, LocalQueue>,
}

impl World {
    /// Creates the queues of a scenario, without its workloads.
    pub(super) fn of(scenario: &Scenario) -> Result<Self, Broken> {
        let mut world = Self {
            engine: Engine::new(scenario.settings.clone()),
            clock: Clock::new()?,
            tally: Tally::default(),
            now: 0,
            started: Vec::new(),
            lives: Vec::new(),
            indices: BTreeMap::new(),
            book: Book::of(&scenario.queues),
            namespaces: scenario.queues.iter().map(|queue| queue.name().to_owned()).collect(),
            cluster_queues: BTreeMap::new(),
            cohorts: BTreeMap::new(),
            local_queues: BTreeMap::new(),
        };
        world.tell(Part::QueueStatus, &Event::ResourceFlavor(&objects::flavor()));
        for cohort in &scenario.cohorts {
            world.tell(Part::QueueStatus, &Event::Cohort(cohort));
            world.cohorts.insert(cohort.metadata.name.clone().unwrap_or_default(), cohort.clone());
        }
        for queue in &scenario.queues {
            world.tell(Part::QueueStatus, &Event::ClusterQueue(&queue.object));
            world.cluster_queues.insert(queue.name().to_owned(), queue.object.clone());
            let local_queue = objects::local_queue(queue)?;
            world.tell(Part::QueueStatus, &Event::LocalQueue(&local_queue));
            world.local_queues.insert(ObjectKey::of(&local_queue), local_queue);
        }
        world.settle()?;
        // The setup is not measured.
        (world.clock, world.tally) = (Clock::new()?, Tally::default());
        Ok(world)
    }

    /// Returns the scheduler and drops everything else.
    pub(super) fn into_engine(self) -> Engine {
        self.engine
    }

    /// Returns the next timer of the scheduler, in milliseconds of virtual time; `None` if there is
    /// none.
    pub(super) fn wake_at(&self) -> Option<i64> {
        // Rounded up, so that the timer is not fired too early.
        self.engine.wake_at().map(|time| time.as_millisecond() + i64::from(time.subsec_nanosecond() % 1_000_000 != 0))
    }

    fn tell(&mut self, part: Part, event: &Event<'_>) {
        self.clock.step(part, &mut self.engine, at(self.now), event);
    }

    fn tell_workload(&mut self, index: usize, object: Workload) {
        self.tell(Part::Progress, &Event::Workload(&object));
        self.lives[index].object = object;
    }

    /// Submits a workload. Returns its index.
    pub(super) fn submit(&mut self, job: Job) -> Result<usize, Broken> {
        let object = objects::workload(&job, &self.namespaces[job.queue], at(self.now))?;
        let index = self.lives.len();
        self.indices.insert(ObjectKey::of(&object), index);
        self.tell(Part::Arrival, &Event::Workload(&object));
        self.tally.work += job.requests.iter().map(|(_, units)| units * job.run).sum::<i64>();
        self.lives.push(Life { job, object, progress: Progress::Waiting, admissions: 0 });
        Ok(index)
    }

    /// Finishes a running workload.
    pub(super) fn finish(&mut self, index: usize) -> Result<(), Broken> {
        let object = objects::finished(&self.lives[index].object, at(self.now));
        self.tell_workload(index, object);
        let life = &mut self.lives[index];
        life.progress = Progress::Finished;
        self.tally.finished += 1;
        self.book.release(life.job.queue, &life.job.requests, self.now)
    }

    /// Runs cycles and applies their decisions until there are no more.
    pub(super) fn settle(&mut self) -> Result<(), Broken> {
        for _ in 0..MANY_ROUNDS {
            let effects = self.clock.cycle(&mut self.engine, at(self.now))?;
            if effects.is_empty() {
                return Ok(());
            }
            for effect in &effects {
                self.carry_out(effect)?;
            }
        }
        Err(Broken::Restless { at: self.now })
    }

    fn carry_out(&mut self, effect: &Effect) -> Result<(), Broken> {
        let now = at(self.now);
        let unexpected = || Broken::Unexpected { at: now.as_millisecond(), effect: format!("{effect:?}") };
        match effect {
            Effect::Admit { workload, .. } => self.admit(self.index(workload).ok_or_else(unexpected)?, effect),
            Effect::Evict { workload, .. } => self.evict(self.index(workload).ok_or_else(unexpected)?, effect),
            Effect::Pending { workload, .. } => {
                let index = self.index(workload).ok_or_else(unexpected)?;
                let object = status::workload(&self.lives[index].object, effect, now);
                self.tell_workload(index, object);
                Ok(())
            }
            Effect::ClusterQueueStatus { cluster_queue, report } => {
                let mut object = self.cluster_queues.remove(cluster_queue).ok_or_else(unexpected)?;
                object.status = Some(status::cluster_queue(&object.status.unwrap_or_default(), report, now));
                self.tell(Part::QueueStatus, &Event::ClusterQueue(&object));
                self.cluster_queues.insert(cluster_queue.clone(), object);
                Ok(())
            }
            Effect::CohortStatus { cohort, report } => {
                let mut object = self.cohorts.remove(cohort).ok_or_else(unexpected)?;
                object.status = Some(status::cohort(report));
                self.tell(Part::QueueStatus, &Event::Cohort(&object));
                self.cohorts.insert(cohort.clone(), object);
                Ok(())
            }
            Effect::LocalQueueStatus { local_queue, report } => {
                let mut object = self.local_queues.remove(local_queue).ok_or_else(unexpected)?;
                object.status = Some(status::local_queue(&object.status.unwrap_or_default(), report, now));
                self.tell(Part::QueueStatus, &Event::LocalQueue(&object));
                self.local_queues.insert(local_queue.clone(), object);
                Ok(())
            }
            _ => Err(unexpected()),
        }
    }

    fn index(&self, workload: &ObjectKey) -> Option<usize> {
        self.indices.get(workload).copied()
    }

    fn admit(&mut self, index: usize, effect: &Effect) -> Result<(), Broken> {
        let object = status::workload(&self.lives[index].object, effect, at(self.now));
        self.tell_workload(index, object);
        let life = &mut self.lives[index];
        if life.progress != Progress::Waiting {
            return Err(Broken::Unexpected { at: self.now, effect: format!("{effect:?}") });
        }
        (life.progress, life.admissions) = (Progress::Running(self.now), life.admissions + 1);
        self.tally.admissions += 1;
        self.started.push(index);
        self.book.hold(life.job.queue, &life.job.requests, self.now)
    }

    /// Evicts a workload; its job stops immediately.
    fn evict(&mut self, index: usize, effect: &Effect) -> Result<(), Broken> {
        let come = self.lives.len() as u64;
        let now = at(self.now);
        let object = status::workload(&self.lives[index].object, effect, now);
        self.tell_workload(index, object);
        let released = status::released(&self.lives[index].object, now);
        let object = Workload { status: Some(released), ..self.lives[index].object.clone() };
        self.tell_workload(index, object);
        let life = &mut self.lives[index];
        let Progress::Running(since) = life.progress else {
            return Err(Broken::Unexpected { at: self.now, effect: format!("{effect:?}") });
        };
        life.progress = Progress::Waiting;
        self.tally.evictions += 1;
        if self.tally.evictions > EVICTIONS_TOO_MANY * come {
            return Err(Broken::Flapping { at: self.now, evictions: self.tally.evictions });
        }
        self.tally.wasted += life.job.requests.iter().map(|(_, units)| units * (self.now - since)).sum::<i64>();
        self.book.release(life.job.queue, &life.job.requests, self.now)
    }
}
