//! Executes scripts on a real control plane, many in parallel.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::dump::{Dump, dump, event_reasons};
use super::latency_probe;
use super::observer::NamespaceWatcher;
use super::quiescence::pending_work;
use super::{REMOVED_POLICY, ScriptOutcome};
use crate::script::executor::Executor;
use crate::script::manifests::ScriptNamespace;
use crate::script::step::{Script, UserAction};
use sluice_testkit::{Manager, TestEnv, TestEnvOptions};

/// Sluice refreshes the numbers in pending conditions after 10 seconds; until then no object shows
/// that a refresh is due.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(11);
/// Timeout of waiting for quiescence.
const QUIESCENCE_TIMEOUT: Duration = Duration::from_secs(180);

/// Timeout of waiting for expected Events.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// A real control plane with a manager.
pub(super) struct RealControlPlane {
    env: TestEnv,
    _manager: Manager,
    observer: Arc<NamespaceWatcher>,
    rounds: watch::Receiver<Option<Instant>>,
    latency_probe: JoinHandle<()>,
}

impl Drop for RealControlPlane {
    fn drop(&mut self) {
        self.latency_probe.abort();
    }
}

impl RealControlPlane {
    /// Starts a control plane with nodes for many scripts.
    pub(super) async fn start() -> Self {
        let options = TestEnvOptions { gateway_api: true, flags: &["--nodes", "40"], ..TestEnvOptions::default() };
        let env = TestEnv::start_with(options).await;
        env.delete_policy(REMOVED_POLICY).await;
        let manager = env.manager().await;
        let observer = Arc::new(NamespaceWatcher::start(&env.client));
        let (sender, rounds) = watch::channel(None);
        let canary = tokio::spawn(latency_probe::run_rounds(env.client.clone(), observer.clone(), sender));
        Self { env, _manager: manager, observer, rounds, latency_probe: canary }
    }

    /// Executes a script and returns its outcome. Waits for the `expected` Events, which may be
    /// published later than the writes that they report.
    ///
    /// # Errors
    /// When a request is rejected, or the system does not become quiescent.
    pub(super) async fn execute(
        &self,
        script: &Script,
        place: &ScriptNamespace,
        expected: &BTreeSet<String>,
    ) -> Result<ScriptOutcome, String> {
        let performer = Executor::new(&self.env.client, place);
        performer.set_up(&script.setup).await.map_err(|error| error.to_string())?;
        let mut between = Vec::new();
        for step in &script.steps {
            between.push(self.wait_until_quiescent(place, Duration::ZERO).await?);
            self.execute_action(&performer, &step.act).await?;
        }
        let blocked = self.wait_until_quiescent(place, REFRESH_TIMEOUT).await?;
        for act in script.unblocking_actions() {
            self.execute_action(&performer, &act).await?;
        }
        let unblocked = self.wait_until_quiescent(place, REFRESH_TIMEOUT).await?;
        let reasons = self.wait_for_events(place, expected).await?;
        for name in unblocked.keys().filter(|(kind, _)| *kind == "RayService").map(|(_, name)| name) {
            self.execute_action(&performer, &UserAction::DeleteService { service: name.clone(), foreground: false })
                .await?;
        }
        Ok(ScriptOutcome { before_steps: between, blocked, unblocked, reasons })
    }

    async fn wait_for_events(
        &self,
        place: &ScriptNamespace,
        expected: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, String> {
        let since = Instant::now();
        loop {
            let reasons = event_reasons(&self.env.client, place).await.map_err(|error| error.to_string())?;
            if expected.is_subset(&reasons) || since.elapsed() > EVENT_TIMEOUT {
                return Ok(reasons);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn execute_action(&self, performer: &Executor<'_>, act: &UserAction) -> Result<(), String> {
        performer.execute(act).await.map_err(|error| format!("{act:?}: {error}"))
    }

    /// Waits until a namespace is quiescent and has not changed for `quiet`. Returns its objects.
    async fn wait_until_quiescent(&self, place: &ScriptNamespace, quiet: Duration) -> Result<Dump, String> {
        let since = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let promised = self.observer.with_objects(place, |objects| pending_work(objects.values()));
            let waited = since.elapsed();
            if waited > QUIESCENCE_TIMEOUT {
                let there = self.observer.with_objects(place, |objects| format!("{:#?}", objects.keys()));
                return Err(format!("not quiescent: {promised:?}; the objects are {there}"));
            }
            let changed = self.observer.last_change(place).map_or(since, |changed| changed.max(since));
            let round = self.rounds.borrow().is_some_and(|started| started >= changed);
            if promised.is_some() || !round || changed.elapsed() < quiet {
                continue;
            }
            // The listed objects must be those that were found quiescent.
            let dump = dump(&self.env.client, place).await.map_err(|error| error.to_string())?;
            if self.observer.with_objects(place, |objects| versions(objects) == versions(&dump)) {
                return Ok(dump);
            }
        }
    }
}

fn versions(objects: &Dump) -> Vec<&str> {
    objects.values().map(|object| object["metadata"]["resourceVersion"].as_str().unwrap_or_default()).collect()
}
