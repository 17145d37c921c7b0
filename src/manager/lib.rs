//! Manager process around the engine: feeds it watch events, and executes the writes, Events and
//! dashboard calls that it returns.

mod config;
mod decision_log;
mod error;
mod event_recorder;
pub mod http;
mod in_flight_limit;
mod leader;
mod list_watch;
mod listing;
mod pod_dry_runner;
mod watches;
mod write_queue;
mod writer;
mod written_versions;

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::Ingress;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::{Client, Config};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

pub use config::ManagerConfig;
use decision_log::DecisionLog;
pub use error::Error;
use event_recorder::EventRecorder;
use http::Readiness;
pub use list_watch::HistoryLost;
pub use listing::{ListError, list_objects};
use pod_dry_runner::PodDryRunner;
use sluice_api::gateway_api::{Gateway, GatewayClass, HTTPRoute};
use sluice_api::kueue::{ClusterQueue, Cohort, LocalQueue, ResourceFlavor, Workload, WorkloadPriorityClass};
use sluice_api::ray::{RayCluster, RayJob, RayService, names};
use sluice_clock::Clock;
use sluice_dashboard::{DashboardAccess, DashboardClient};
use sluice_engine::cluster_state::{Object, SecretMeta};
use sluice_engine::tokens::TokenKey;
use sluice_engine::{Command, Components, Engine, EngineInput};
use sluice_jobframework::batch_job::JOB_NAME_LABEL;
use sluice_metrics::Metrics;
use sluice_webhook as webhook;
use watches::Watches;
use writer::Writer;
use written_versions::WrittenVersions;

/// Capacity of the channel to the engine. When it is full, the watches block.
const EVENT_CHANNEL_CAPACITY: usize = 4096;
/// Maximum number of events that the engine handles in one step. One decision for many events is
/// cheaper and just as good.
const MAX_BATCH: usize = 1024;
/// Maximum time that a shutdown waits for the writes in flight.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the manager until SIGTERM or SIGINT.
///
/// # Errors
/// If the API server can't be reached at the start, an address can't be bound, or leadership is
/// lost.
pub async fn run(config: ManagerConfig) -> Result<(), Error> {
    let stop = stop_signal()?;
    let client = connect().await?;
    let tokens = TokenKey::random().map_err(|_| Error::TokenKey)?;
    let (metrics, readiness) = (Metrics::default(), Readiness::default());
    if let Some(address) = config.health_address {
        http::serve(address, http::health_routes(readiness.clone())).await?;
    }
    if let Some(address) = config.metrics_address {
        http::serve(address, http::metrics_routes(metrics.clone())).await?;
    }
    if let Some(address) = config.webhook_address {
        let namespace = client.default_namespace().to_owned();
        let external_ray_operator = config.queue_manager && !config.ray_operator;
        webhook::start(
            client.clone(),
            Clock::system(),
            address,
            &namespace,
            config.managed_jobs.clone(),
            external_ray_operator,
        )?;
    }
    let leadership = if config.leader_elect {
        let namespace = config.leader_election_namespace.clone();
        match leader::acquire(client.clone(), namespace, &stop).await? {
            Some(leadership) => Some(leadership),
            None => return Ok(()),
        }
    } else {
        None
    };
    let lost = async {
        match leadership {
            Some(leadership) => leadership.lost().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        reason = lost => Err(reason),
        result = run_with_client(client, Clock::system(), tokens, &config, metrics, readiness, stop) => result,
    }
}

/// Watches, decides and writes through `client` until `stop` is canceled. This is the whole manager
/// except for the connection, leader election and the HTTP endpoints.
///
/// # Errors
/// If the thread that writes the decision log can't be started.
pub async fn run_with_client(
    client: Client,
    clock: Clock,
    tokens: TokenKey,
    config: &ManagerConfig,
    metrics: Metrics,
    readiness: Readiness,
    stop: CancellationToken,
) -> Result<(), Error> {
    Manager::start(client, clock, tokens, config, metrics, readiness)?.run(stop).await
}

/// Connects to the cluster of `KUBECONFIG`, `~/.kube/config` or the in-cluster configuration.
///
/// # Errors
/// If none of them exists, or the API server can't be reached.
pub async fn connect() -> Result<Client, Error> {
    let mut config = Config::infer().await?;
    // The engine plans again from fresh state after a failure; a client that retries would hide the
    // failure for minutes.
    config.default_retry = false;
    let client = Client::try_from(config).map_err(Error::BuildClient)?;
    let version = client.apiserver_version().await.map_err(Error::ServerVersion)?;
    info!(version = version.git_version, "connected");
    Ok(client)
}

fn stop_signal() -> Result<CancellationToken, Error> {
    let stop = CancellationToken::new();
    let mut terminate =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).map_err(Error::Signal)?;
    let stopped = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        stopped.cancel();
    });
    Ok(stop)
}

struct Manager {
    clock: Clock,
    engine: Engine,
    events: mpsc::Receiver<EngineInput>,
    event_sender: mpsc::Sender<EngineInput>,
    writer: Writer,
    pod_dry_runner: PodDryRunner,
    event_recorder: EventRecorder,
    decision_log: Option<DecisionLog>,
    dashboards: DashboardClient,
    metrics: Metrics,
    readiness: Readiness,
    /// Watch tasks, which are aborted on drop.
    watches: JoinSet<Result<(), Error>>,
}

impl Manager {
    fn start(
        client: Client,
        clock: Clock,
        tokens: TokenKey,
        config: &ManagerConfig,
        metrics: Metrics,
        readiness: Readiness,
    ) -> Result<Self, Error> {
        let (own_events, events) = mpsc::channel(EVENT_CHANNEL_CAPACITY);
        let components = Components { queue_manager: config.queue_manager, ray_operator: config.ray_operator };
        let written = WrittenVersions::default();
        let mut watches = Watches::new(client.clone(), own_events.clone(), config.namespaces.clone(), written.clone());
        watch_kinds(&mut watches, components);
        let (scopes, tasks) = watches.finish();
        let engine = Engine::new(components, config.scheduler.clone(), scopes, tokens);
        let mut engine = engine
            .with_managed_jobs(config.managed_jobs.clone())
            .with_retention(config.retention)
            .with_operator_config(config.operator_config)
            .with_pod_dry_runs();
        let start_log = |path: &PathBuf| {
            DecisionLog::start(path.clone(), metrics.clone())
                .map_err(|source| Error::DecisionLog { path: path.clone(), source })
        };
        let decision_log = config.decision_log.as_ref().map(start_log).transpose()?;
        if decision_log.is_some() {
            engine = engine.with_decision_log();
        }
        Ok(Self {
            engine,
            decision_log,
            events,
            pod_dry_runner: PodDryRunner::new(client.clone(), own_events.clone()),
            writer: Writer::new(client.clone(), own_events.clone(), written, metrics.clone()),
            event_recorder: EventRecorder::start(client.clone(), clock.clone(), reporting_instance()),
            dashboards: DashboardClient::new(client, clock.clone(), dashboard_access(config)),
            clock,
            event_sender: own_events,
            metrics,
            readiness,
            watches: tasks,
        })
    }

    async fn run(mut self, stop: CancellationToken) -> Result<(), Error> {
        let mut batch = Vec::with_capacity(MAX_BATCH);
        loop {
            let wake = self.engine.next_deadline().map(|at| self.instant_of(at));
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                error = failed_watch(&mut self.watches) => return Err(error),
                received = self.events.recv_many(&mut batch, MAX_BATCH) => if received == 0 { break },
                () = sleep_until(wake) => {}
            }
            self.step(&mut batch);
        }
        info!("stopping");
        self.drain_writes().await;
        Ok(())
    }

    fn step(&mut self, batch: &mut Vec<EngineInput>) {
        for event in batch.iter() {
            if let EngineInput::Deleted(Object::ClusterQueue(queue)) = event {
                self.metrics.remove_cluster_queue(queue.metadata.name.as_deref().unwrap_or_default());
            }
        }
        let was_synced = self.engine.is_synced();
        let started = Instant::now();
        let effects = self.engine.step(self.clock.now(), batch.drain(..));
        self.metrics.record_step(started.elapsed());
        // The status of a queue says the same, but is written later while the API server is busy.
        for (queue, counts) in self.engine.take_changed_counts() {
            self.metrics.set_cluster_queue(&queue, counts);
        }
        self.log_decisions();
        if self.engine.is_synced() && !was_synced {
            info!("initial lists are complete; starting to decide");
            self.readiness.set();
        }
        for effect in effects {
            match effect {
                Command::Write(id, write) => self.writer.send(id, write),
                Command::DryRunPod(dry_run) => self.pod_dry_runner.send(dry_run),
                Command::EmitEvent(note) => self.event_recorder.record(note),
                Command::CallServe(call) => {
                    let (dashboards, answers) = (self.dashboards.clone(), self.event_sender.clone());
                    tokio::spawn(async move {
                        let reply = dashboards.call(&call).await;
                        // The receiver is dropped only on shutdown.
                        let _ = answers.send(EngineInput::ServeReplied(reply)).await;
                    });
                }
            }
        }
    }

    fn instant_of(&self, at: Timestamp) -> Instant {
        let wait = self.clock.now().duration_until(at);
        Instant::now() + Duration::try_from(wait).unwrap_or(Duration::ZERO)
    }

    fn log_decisions(&mut self) {
        let Some(log) = &self.decision_log else { return };
        if log.write(self.engine.take_decision_log()).is_err() {
            error!("closing the decision log: its backlog exceeds the limit");
            self.engine.stop_decision_log();
            self.decision_log = None;
        }
    }

    /// Waits for the writes in flight, so that a planned shutdown interrupts none. (Nothing is lost
    /// if this is cut short: the next process plans from the state that it finds.)
    async fn drain_writes(mut self) {
        self.engine.drain();
        let deadline = Instant::now() + SHUTDOWN_TIMEOUT;
        let mut batch = Vec::new();
        while !self.engine.is_idle() {
            match tokio::time::timeout_at(deadline, self.events.recv_many(&mut batch, MAX_BATCH)).await {
                Ok(received) if received > 0 => drop(self.engine.step(self.clock.now(), batch.drain(..))),
                _ => break,
            }
            self.log_decisions();
        }
        if let Some(log) = self.decision_log {
            log.finish().await;
        }
    }
}

fn watch_kinds(watches: &mut Watches, components: Components) {
    watches.optional_namespaced::<RayCluster>();
    watches.optional_namespaced::<RayService>();
    watches.namespaced::<Pod>(Some(names::CLUSTER_LABEL));
    if components.queue_manager {
        watches.cluster_scoped::<ClusterQueue>();
        watches.cluster_scoped::<Cohort>();
        watches.cluster_scoped::<ResourceFlavor>();
        watches.cluster_scoped::<WorkloadPriorityClass>();
        watches.cluster_scoped::<PriorityClass>();
        watches.cluster_scoped::<Namespace>();
        watches.cluster_scoped::<RuntimeClass>();
        watches.namespaced::<LimitRange>(None);
        watches.namespaced::<LocalQueue>(None);
        watches.namespaced::<Workload>(None);
        watches.namespaced::<BatchJob>(None);
        watches.namespaced::<Pod>(Some(JOB_NAME_LABEL));
    }
    if components.queue_manager && !components.ray_operator {
        // KubeRay runs RayJobs and installs their CRD.
        watches.optional_namespaced::<RayJob>();
    }
    if components.ray_operator && !components.queue_manager {
        // Jobs that delete the GCS data of RayClusters from Redis.
        watches.namespaced::<BatchJob>(Some(names::CLUSTER_LABEL));
    }
    if components.ray_operator {
        watches.namespaced::<Service>(None);
        watches.namespaced::<EndpointSlice>(None);
        watches.namespaced::<Ingress>(None);
        watches.namespaced::<ControllerRevision>(Some(names::CLUSTER_LABEL));
        watches.namespaced::<ServiceAccount>(None);
        // Only the metadata of Secrets is requested, so no secret data is received.
        watches.namespaced::<SecretMeta>(None);
        watches.optional_namespaced::<Gateway>();
        watches.optional_namespaced::<HTTPRoute>();
        watches.optional_cluster_scoped::<GatewayClass>();
        watches.namespaced::<Role>(None);
        watches.namespaced::<RoleBinding>(None);
    }
}

/// Returns the way to reach the Ray dashboard. KubeRay 1.7 reads the cluster domain from the same
/// environment variable.
fn dashboard_access(config: &ManagerConfig) -> DashboardAccess {
    if config.use_kubernetes_proxy {
        return DashboardAccess::ApiServer;
    }
    let cluster_domain = std::env::var("CLUSTER_DOMAIN").unwrap_or_else(|_| "cluster.local".into());
    DashboardAccess::Network { cluster_domain }
}

/// Returns the `reportingInstance` of Events.
fn reporting_instance() -> String {
    std::env::var("HOSTNAME").map_or_else(|_| "sluice".into(), |host| format!("sluice-{host}"))
}

/// Waits until a watch fails for good.
async fn failed_watch(watches: &mut JoinSet<Result<(), Error>>) -> Error {
    loop {
        match watches.join_next().await {
            Some(Ok(Err(error))) => return error,
            Some(Ok(Ok(()))) => {}
            Some(Err(error)) => return Error::WatchPanicked(error),
            None => std::future::pending().await,
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
