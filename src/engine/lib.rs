//! The engine owns all observed state and turns inputs into commands.
//!
//! Every decision of Sluice is made in [`Engine::step`], from values alone: no client, no clock, no
//! randomness. The `manager` feeds it watch events and write results and executes its commands; a
//! simulator can do the same.

mod ancestors;
pub mod cluster_state;
pub mod event_dedup;
mod finalizers;
mod ignored_queue_name;
mod inputs;
mod job_context;
mod managed;
mod operator_config;
mod orphaned_workloads;
mod owners;
mod planner_key;
mod planners;
mod pod_dry_runs;
mod priorities;
mod queue_adapter;
mod ray_jobs;
mod recreate;
mod retention;
mod slice_changes;
mod spec_cache;
pub mod store;
mod terminating_workloads;
pub mod tokens;
mod triggers;
pub mod unused_fields;
mod work_queue;
mod workload_events;
mod writes;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use cluster_state::{Change, ClusterState, Object, PodOwnerId};
use event_dedup::EventDeduplicator;
pub use inputs::{ApiServerLoad, EngineInput, Scope, WriteError, WriteOutcome};
pub use job_context::JobSnapshot;
pub use operator_config::OperatorConfig;
use planner_key::PlannerKey;
use pod_dry_runs::PodDryRuns;
use queue_adapter::QueueAdapter;
use slice_changes::PlannedSliceChanges;
use sluice_jobframework::managed::ManagedJobsPolicy;
use sluice_jobframework::retention::RetentionPolicy;
use sluice_plan::ObjectKey;
use sluice_plan::ServeReply;
use sluice_plan::{EventRecord, Plan, PodDryRun, ServeCall, Write};
use sluice_queue as queue;
use sluice_rayservice::ServeObservation;
use spec_cache::SpecCache;
use tokens::TokenKey;
use work_queue::WorkQueue;
pub use writes::WriteId;
use writes::{Released, WriteTracker};

/// A command that the manager executes for the engine.
#[derive(Debug)]
pub enum Command {
    /// Send a write and report its result under this id.
    Write(WriteId, Write),
    /// Emit a Kubernetes Event.
    EmitEvent(EventRecord),
    /// Call the Serve REST API of a Ray cluster.
    CallServe(ServeCall),
    /// Create a pod with `dryRun=All`.
    DryRunPod(PodDryRun),
}

/// The enabled components of Sluice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Components {
    /// Run the queue manager: quota, Workloads, and suspension of jobs.
    pub queue_manager: bool,
    /// Run the operator for RayClusters and RayServices.
    pub ray_operator: bool,
}

impl Components {
    /// Enables all components.
    pub const ALL: Self = Self { queue_manager: true, ray_operator: true };
}

/// Holds the observed state and plans writes, Events and Serve calls from it.
#[derive(Debug, Clone)]
pub struct Engine {
    components: Components,
    /// Selects the jobs to manage.
    managed_jobs_policy: ManagedJobsPolicy,
    /// Times after which finished Workloads and deactivated jobs are deleted.
    retention: RetentionPolicy,
    operator_config: OperatorConfig,
    cluster_state: ClusterState,
    spec_cache: SpecCache,
    /// Scopes that still have to be listed before the first decision.
    unsynced_scopes: BTreeSet<Scope>,
    /// Scopes whose watch broke, until the version of the API server is checked.
    broken_scopes: BTreeSet<Scope>,
    queue_adapter: QueueAdapter,
    serve_observations: BTreeMap<ObjectKey, ServeObservation>,
    serve_calls_in_flight: BTreeSet<(ObjectKey, &'static str)>,
    pod_dry_runs: PodDryRuns,
    /// Time since which the job of a Workload is known to be gone.
    jobs_gone_since: BTreeMap<ObjectKey, Timestamp>,
    work_queue: WorkQueue<PlannerKey>,
    writes: WriteTracker,
    slice_changes: PlannedSliceChanges,
    event_deduplicator: EventDeduplicator,
    token_key: TokenKey,
    is_draining: bool,
}

impl Engine {
    /// Creates an engine that decides nothing until each of `scopes` has been listed. `tokens`
    /// derives the auth tokens of Ray clusters.
    pub fn new(
        components: Components,
        settings: queue::Settings,
        scopes: impl IntoIterator<Item = Scope>,
        tokens: TokenKey,
    ) -> Self {
        Self {
            components,
            managed_jobs_policy: ManagedJobsPolicy::default(),
            retention: RetentionPolicy::default(),
            operator_config: OperatorConfig::default(),
            cluster_state: ClusterState::default(),
            spec_cache: SpecCache::default(),
            unsynced_scopes: scopes.into_iter().collect(),
            broken_scopes: BTreeSet::new(),
            queue_adapter: QueueAdapter::new(settings),
            serve_observations: BTreeMap::new(),
            serve_calls_in_flight: BTreeSet::new(),
            pod_dry_runs: PodDryRuns::default(),
            jobs_gone_since: BTreeMap::new(),
            work_queue: WorkQueue::default(),
            writes: WriteTracker::default(),
            slice_changes: PlannedSliceChanges::default(),
            event_deduplicator: EventDeduplicator::default(),
            token_key: tokens,
            is_draining: false,
        }
    }

    /// Replaces the managed-jobs policy, [`ManagedJobsPolicy::default`].
    #[must_use]
    pub fn with_managed_jobs(mut self, rules: ManagedJobsPolicy) -> Self {
        self.managed_jobs_policy = rules;
        self
    }

    /// Replaces the retention policy, [`RetentionPolicy::default`].
    #[must_use]
    pub fn with_retention(mut self, retention: RetentionPolicy) -> Self {
        self.retention = retention;
        self
    }

    /// Replaces the operator configuration, [`OperatorConfig::default`].
    #[must_use]
    pub fn with_operator_config(mut self, config: OperatorConfig) -> Self {
        self.operator_config = config;
        self
    }

    /// Requests quota for pods only after a dry run in which the API server has accepted them.
    #[must_use]
    pub fn with_pod_dry_runs(mut self) -> Self {
        self.pod_dry_runs.enable();
        self
    }

    /// Sends reports immediately, without waiting for what happens to the object next. For a dry
    /// run, in which no time passes.
    #[must_use]
    pub fn with_immediate_reports(mut self) -> Self {
        self.writes.report_without_delay();
        self
    }

    /// Creates an engine for queries: it has observed these objects and emits no commands. The
    /// scheduler has run one cycle, so its pending decisions can be inspected.
    pub fn read_only(components: Components, settings: queue::Settings, objects: Vec<Object>, now: Timestamp) -> Self {
        let mut engine = Self::new(components, settings, [], TokenKey::insecure());
        engine.drain();
        engine.step(now, objects.into_iter().map(EngineInput::Applied));
        engine.queue_adapter.cycle(now);
        engine
    }

    /// Returns the observed objects.
    pub fn cluster_state(&self) -> &ClusterState {
        &self.cluster_state
    }

    /// Returns the scheduler, which knows admitted and pending workloads and their quota.
    pub fn scheduler(&self) -> &queue::Scheduler {
        self.queue_adapter.scheduler()
    }

    /// Records the decision log of the scheduler, read by
    /// [`take_decision_log`](Self::take_decision_log).
    #[must_use]
    pub fn with_decision_log(mut self) -> Self {
        self.queue_adapter.set_decision_log(true);
        self
    }

    /// Returns the lines recorded since the last call, each ending in a newline; empty if the log
    /// is not recorded.
    pub fn take_decision_log(&mut self) -> Vec<u8> {
        self.queue_adapter.take_decision_log()
    }

    /// Stops recording the decision log.
    pub fn stop_decision_log(&mut self) {
        self.queue_adapter.set_decision_log(false);
    }

    /// Processes the inputs in order and returns the resulting commands.
    pub fn step(&mut self, now: Timestamp, events: impl IntoIterator<Item = EngineInput>) -> Vec<Command> {
        let mut effects = Vec::new();
        for event in events {
            self.handle_event(now, event, &mut effects);
        }
        if !self.may_decide() || self.is_draining {
            return effects;
        }
        // The scheduler decides first: planners write its decisions in the same step.
        if self.components.queue_manager {
            for planner in self.queue_adapter.cycle(now) {
                self.work_queue.enqueue(planner);
            }
        }
        let released = self.writes.expire(now);
        self.enqueue_released(released);
        for planner in self.work_queue.drain_due(now, |planner| self.writes.backoff_end(planner)) {
            let plan = self.plan(&planner, now);
            self.dispatch(now, planner, plan, &mut effects);
        }
        effects
    }

    /// Returns the ClusterQueues whose numbers of workloads may have changed since the last call,
    /// with these numbers as of the last step.
    pub fn take_changed_counts(&mut self) -> Vec<(String, queue::WorkloadCounts)> {
        self.queue_adapter.take_changed_counts()
    }

    /// Reports whether every scope has been listed once, so that the engine makes decisions.
    pub fn is_synced(&self) -> bool {
        self.unsynced_scopes.is_empty()
    }

    /// Reports whether decisions rest on the state that the API server has: it does not if that state was
    /// restored from a backup, of which a broken watch is the first sign.
    fn may_decide(&self) -> bool {
        self.is_synced() && self.broken_scopes.is_empty()
    }

    /// Stops planning, so that no write is in flight once the results of all sent writes arrive.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Reports whether no write awaits its result.
    pub fn is_idle(&self) -> bool {
        self.writes.is_idle()
    }

    /// Returns the earliest time at which [`step`](Self::step) has work without new inputs; `None`
    /// if there is none, or before the engine is synced.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let wakes = [
            self.work_queue.next_deadline(|planner| self.writes.backoff_end(planner)),
            self.queue_adapter.next_deadline(),
            self.writes.next_deadline(),
        ];
        if !self.may_decide() {
            return None;
        }
        wakes.into_iter().flatten().min()
    }

    fn handle_event(&mut self, now: Timestamp, event: EngineInput, effects: &mut Vec<Command>) {
        match event {
            EngineInput::Listed { scope, objects, version } => {
                let changes = self.cluster_state.relist(objects, &scope, version);
                self.unsynced_scopes.remove(&scope);
                self.broken_scopes.remove(&scope);
                changes.into_iter().for_each(|change| self.on_changed(now, &change));
            }
            EngineInput::WatchBroken(scope) => drop(self.broken_scopes.insert(scope)),
            EngineInput::HistoryVerified(scope) => drop(self.broken_scopes.remove(&scope)),
            EngineInput::Applied(object) => self.on_applied(now, object),
            EngineInput::Deleted(object) => self.on_deleted(now, &object),
            EngineInput::Written { id, write, result, load } => {
                self.writes.on_response(load);
                self.on_write_result(now, id, &write, result, effects);
            }
            EngineInput::ServeReplied(reply) => self.on_serve_reply(reply),
            EngineInput::PodDryRunAnswered(id, result) => self.on_pod_dry_run_answered(now, &id, &result),
        }
    }

    fn on_applied(&mut self, now: Timestamp, object: Object) {
        if let Some(change) = self.cluster_state.apply(object) {
            self.on_changed(now, &change);
        }
    }

    fn on_deleted(&mut self, now: Timestamp, object: &Object) {
        if let Some(change) = self.cluster_state.remove(object) {
            self.on_changed(now, &change);
        }
    }

    /// Updates all derived state from a change and enqueues the planners that it triggers.
    fn on_changed(&mut self, now: Timestamp, change: &Change) {
        let released = self.writes.on_observed(change, now);
        self.enqueue_released(released);
        if let (Some(Object::RayCluster(gone)), None) = (&change.before, &change.after) {
            self.serve_observations.remove(&ObjectKey::of(gone.as_ref()));
        }
        self.spec_cache.observe(change, self.components);
        if self.components.queue_manager {
            self.queue_adapter.observe(now, change);
        }
        self.retry_rejected_pods(now, change);
        for planner in triggers::triggered(&self.cluster_state, self.components, change) {
            self.work_queue.enqueue(planner);
        }
    }

    fn on_write_result(
        &mut self,
        now: Timestamp,
        id: WriteId,
        write: &Write,
        result: Result<WriteOutcome, WriteError>,
        effects: &mut Vec<Command>,
    ) {
        // The tracker first: it has to know the outcome before any planner runs again.
        let settled = self.writes.on_result(id, write, &result, &self.cluster_state, now);
        self.enqueue_released(settled.released);
        match result {
            Ok(outcome) => {
                settled.events.into_iter().for_each(|event| self.emit(now, event, effects));
                match outcome {
                    WriteOutcome::Object(object) if object.is_deleted() => self.on_deleted(now, &object),
                    WriteOutcome::Object(object) => self.on_applied(now, object),
                    WriteOutcome::Deleted | WriteOutcome::Untracked => {}
                }
            }
            Err(error) => {
                if error.target_not_found
                    && let Some(change) = self.cluster_state.on_not_found(write)
                {
                    self.on_changed(now, &change);
                }
                self.queue_adapter.on_write_failed(now, write, &error);
                for planner in settled.reporters {
                    if let Some(event) = self.write_failure_event(&planner, write, &error) {
                        self.emit(now, event, effects);
                    }
                }
            }
        }
    }

    /// Enqueues the planners that run again because of what happened to a write.
    fn enqueue_released(&mut self, released: Released) {
        for owner in &released.pod_owners {
            self.enqueue_dependents_of_pods(owner);
        }
        for planner in released.planners {
            self.work_queue.enqueue(planner);
        }
    }

    /// Enqueues the planners that depend on the pods of `cluster`.
    fn enqueue_dependents_of_pods(&mut self, cluster: &PodOwnerId) {
        for planner in triggers::triggered_by_pods(&self.cluster_state, self.components, cluster) {
            self.work_queue.enqueue(planner);
        }
    }

    fn on_serve_reply(&mut self, reply: ServeReply) {
        let cluster = ObjectKey::new(reply.namespace.clone(), reply.cluster.clone());
        self.serve_calls_in_flight.remove(&(cluster.clone(), reply.kind()));
        if let Some(service) = owners::service_of_cluster(&self.cluster_state, &cluster) {
            self.serve_observations.entry(cluster).or_default().observe(reply);
            self.work_queue.enqueue(PlannerKey::RayService(service));
        }
    }

    /// Turns a plan into commands. The planner of a write that is blocked or in backoff runs again
    /// later.
    fn dispatch(&mut self, now: Timestamp, planner: PlannerKey, plan: Plan, effects: &mut Vec<Command>) {
        let Plan { writes, events, serve_calls, pod_dry_runs, wake_at } = plan;
        let mut overdue_at = None;
        if let PlannerKey::Job(job) = &planner {
            for slice in self.slice_changes.record(job, &writes) {
                self.work_queue.enqueue(PlannerKey::Workload(slice));
            }
            overdue_at = self.begin_dry_runs(now, job, pod_dry_runs, effects);
        }
        let begun = self.writes.begin(&planner, writes, events, &self.cluster_state, now);
        effects.extend(begun.sent.into_iter().map(|(id, write)| Command::Write(id, write)));
        for call in serve_calls {
            let cluster = ObjectKey::new(call.namespace.clone(), call.cluster.clone());
            if self.serve_calls_in_flight.insert((cluster, call.request.kind())) {
                effects.push(Command::CallServe(call));
            }
        }
        begun.events.into_iter().for_each(|event| self.emit(now, event, effects));
        if begun.changes_failures {
            self.work_queue.enqueue(planner.clone());
        }
        let wakes = [wake_at, begun.retry_at, overdue_at];
        self.work_queue.enqueue_at(planner, wakes.into_iter().flatten().min());
    }

    /// Emits an Event unless an equal one was emitted recently.
    fn emit(&mut self, now: Timestamp, note: EventRecord, effects: &mut Vec<Command>) {
        if self.event_deduplicator.is_new(now, &note) {
            effects.push(Command::EmitEvent(note));
        }
    }
}

#[cfg(test)]
mod tests;
