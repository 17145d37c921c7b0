//! One run against an API server: what is observed goes into [`Progress`], and what it asks for is
//! written.

mod feeds;
mod setup;
mod writers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};

use crate::api::{ApiClient, ServerMetrics, requests_since};
use crate::error::LoadError;
use crate::plan::LoadPlan;
use crate::process::ProcessUsage;
use crate::progress::{Progress, QuotaInvariants, latencies};
use crate::report::{ClassReport, Form, ManagerReport, Report, Sample};
use feeds::{Feeds, Observation};
use writers::Writers;

/// Interval of the samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of observations that the run has not processed.
const QUEUED_OBSERVATIONS: usize = 65_536;

/// Limits of a run.
#[derive(Debug, Clone, Copy)]
pub struct SessionOptions {
    /// Maximum number of creations in flight, and of other writes.
    pub concurrency: usize,
    /// Maximum time of the run.
    pub timeout: Duration,
    /// Fraction of the scenario that the plan is, for the report.
    pub scale: f64,
}

/// Runs a plan against a manager with this process id.
///
/// # Errors
/// If an invariant is broken, the run takes too long, or a request fails.
pub async fn run(
    plan: LoadPlan,
    client: ApiClient,
    manager: u32,
    options: SessionOptions,
) -> Result<Report, LoadError> {
    setup::create_queues(&plan, &client, options.concurrency).await?;
    setup::wait_until_active(&plan, &client).await?;
    let invariants = QuotaInvariants::new(&plan);
    let session = Session::start(plan, client, invariants, options).await?;
    session.measure(Writes::OfManager(manager)).await
}

/// Makes the writes of a run without a manager: those of the tool as `user`, those of a manager as
/// `manager`.
///
/// # Errors
/// If the run takes too long, or a request fails.
pub async fn floor(
    plan: LoadPlan,
    user: ApiClient,
    manager: ApiClient,
    options: SessionOptions,
) -> Result<Report, LoadError> {
    setup::create_queues(&plan, &user, options.concurrency).await?;
    let invariants = QuotaInvariants::new(&plan).without_limits();
    let session = Session::start(plan, user, invariants, options).await?;
    session.measure(Writes::OfTool(manager)).await
}

/// Source of the writes of a manager.
enum Writes {
    /// The manager with this process id.
    OfManager(u32),
    /// The tool, with this client.
    OfTool(ApiClient),
}

impl Writes {
    fn form(&self) -> Form {
        match self {
            Self::OfManager(_) => Form::Run,
            Self::OfTool(_) => Form::Floor,
        }
    }

    fn manager_usage(&self) -> Result<Option<ProcessUsage>, LoadError> {
        match self {
            Self::OfManager(process) => Ok(Some(ProcessUsage::read(*process)?)),
            Self::OfTool(_) => Ok(None),
        }
    }
}

struct Session {
    plan: Arc<LoadPlan>,
    client: ApiClient,
    options: SessionOptions,
    progress: Progress,
    writers: Writers,
    observations: mpsc::Receiver<Result<Observation, LoadError>>,
    /// Runs the watches until the session ends.
    _feeds: Feeds,
    started: Instant,
    /// Time at which the first creation was sent.
    first_sent: Option<Duration>,
    /// Time of the last answer to a creation.
    last_created: Duration,
    all_written: bool,
    samples: Vec<Sample>,
}

/// Counters at the start or the end of a run.
struct Counters {
    server: ServerMetrics,
    sent: BTreeMap<String, u64>,
    manager: Option<ProcessUsage>,
}

impl Session {
    async fn start(
        plan: LoadPlan,
        client: ApiClient,
        invariants: QuotaInvariants,
        options: SessionOptions,
    ) -> Result<Self, LoadError> {
        let plan = Arc::new(plan);
        let (sender, observations) = mpsc::channel(QUEUED_OBSERVATIONS);
        let started = Instant::now();
        let feeds = Feeds::start(&plan, &client, &sender, started).await?;
        let writers = Writers::new(plan.clone(), client.clone(), sender, started, options.concurrency);
        Ok(Self {
            progress: Progress::new(plan.clone(), invariants),
            plan,
            client,
            options,
            writers,
            observations,
            _feeds: feeds,
            started,
            first_sent: None,
            last_created: Duration::ZERO,
            all_written: false,
            samples: Vec::new(),
        })
    }

    async fn measure(mut self, writes: Writes) -> Result<Report, LoadError> {
        let before = self.counters(&writes).await?;
        if let Writes::OfTool(manager) = &writes {
            self.writers.write_everything(manager.clone());
        }
        self.follow(&writes).await?;
        let end = self.started.elapsed();
        let after = self.counters(&writes).await?;
        self.report(writes.form(), end, &before, &after)
    }

    async fn counters(&self, writes: &Writes) -> Result<Counters, LoadError> {
        let server = ServerMetrics::parse(&self.client.metrics().await?)?;
        Ok(Counters { server, sent: self.client.sent(), manager: writes.manager_usage()? })
    }

    /// Follows the run to its end.
    async fn follow(&mut self, writes: &Writes) -> Result<(), LoadError> {
        let mut ticks = tokio::time::interval(SAMPLE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let end = Instant::now() + self.options.timeout;
        let is_run = writes.form() == Form::Run;
        loop {
            if is_run {
                self.progress.start_classes().into_iter().for_each(|class| self.writers.submit_class(class));
            }
            if self.progress.is_done() && (is_run || self.all_written) {
                return self.sample(writes);
            }
            let deadline = self.progress.next_deadline().filter(|_| is_run);
            tokio::select! {
                Some(observation) = self.observations.recv() => self.record(observation?)?,
                () = tokio::time::sleep_until(self.started + deadline.unwrap_or_default()), if deadline.is_some() => {
                    let due = self.progress.take_due(self.started.elapsed());
                    due.into_iter().for_each(|item| self.writers.finish(item));
                }
                _ = ticks.tick() => self.sample(writes)?,
                () = tokio::time::sleep_until(end) => {
                    let (timeout, missing) = (self.options.timeout, self.progress.missing());
                    return Err(LoadError::TimedOut { timeout, missing });
                }
            }
        }
    }

    fn sample(&mut self, writes: &Writes) -> Result<(), LoadError> {
        let memory = writes.manager_usage()?.map(|usage| usage.resident_bytes);
        let second = self.started.elapsed().as_secs_f64();
        self.samples.push(Sample::new(second, self.progress.snapshot(), memory));
        Ok(())
    }

    fn record(&mut self, observation: Observation) -> Result<(), LoadError> {
        match observation {
            Observation::Created { item, sent, at } => {
                self.first_sent = Some(self.first_sent.map_or(sent, |first| first.min(sent)));
                self.last_created = self.last_created.max(at);
                self.progress.created(at, item);
            }
            Observation::Workload(workload, at) => {
                let changed = self.progress.workload_changed(at, &workload);
                let release =
                    changed.map_err(|violation| LoadError::Violation { seconds: at.as_secs_f64(), violation })?;
                if let Some(release) = release {
                    self.writers.release(release);
                }
            }
            Observation::WorkloadDeleted(metadata, at) => {
                let deleted = self.progress.workload_deleted(at, &metadata);
                deleted.map_err(|violation| LoadError::Violation { seconds: at.as_secs_f64(), violation })?;
            }
            Observation::Gate { kind, metadata, is_open, at } => {
                self.progress.gate_changed(at, kind, &metadata, is_open);
            }
            Observation::AllWritten => self.all_written = true,
        }
        Ok(())
    }

    fn report(mut self, form: Form, end: Duration, before: &Counters, after: &Counters) -> Result<Report, LoadError> {
        let totals = self.progress.totals(end);
        let classes = latencies(&self.plan, &self.progress)?;
        let last = totals.last_done.max(self.last_created);
        let wall = last.saturating_sub(self.first_sent.unwrap_or_default()).as_secs_f64();
        let own_requests = requests_since(&before.sent, &after.sent);
        let all_requests = requests_since(&before.server.requests, &after.server.requests);
        let server_cpu = before.server.cpu_seconds.zip(after.server.cpu_seconds);
        let manager = before.manager.zip(after.manager).map(|(before, after)| ManagerReport {
            cpu_seconds: after.cpu_seconds - before.cpu_seconds,
            peak_bytes: after.peak_bytes,
        });
        Ok(Report {
            scenario: self.plan.name.clone(),
            form,
            scale: self.options.scale,
            objects: self.plan.items.len(),
            wall_seconds: wall,
            admissions: totals.admissions,
            admissions_per_second: totals.admissions as f64 / wall.max(f64::MIN_POSITIVE),
            evictions: totals.evictions,
            finished: totals.finished,
            time_to_admission: classes.iter().map(ClassReport::from).collect(),
            quota_use_while_pending: totals.quota_use.filter(|_| form == Form::Run),
            requests: requests_since(&own_requests, &all_requests),
            own_requests,
            api_server_cpu_seconds: server_cpu.map(|(before, after)| after - before),
            manager,
            samples: self.samples,
        })
    }
}
