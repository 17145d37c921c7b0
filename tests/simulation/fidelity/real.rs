//! Executes scripts on a real control plane, many in parallel.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Outcome;
use super::canary;
use super::dump::{Dump, dump, reasons};
use super::observer::Observer;
use super::rest::unrest;
use crate::script::manifests::Place;
use crate::script::perform::Performer;
use crate::script::step::{Act, Script};
use sluice_testkit::{Manager, TestEnv};

/// Sluice refreshes the numbers in pending conditions after 10 seconds; until then no object shows
/// that a refresh is due.
const UNTIL_TOLD: Duration = Duration::from_secs(11);
/// Timeout of waiting for quiescence.
const PATIENCE: Duration = Duration::from_secs(180);

/// Timeout of waiting for expected Events.
const UNTIL_PUBLISHED: Duration = Duration::from_secs(30);

/// A real control plane with a manager.
pub(super) struct Real {
    env: TestEnv,
    _manager: Manager,
    observer: Arc<Observer>,
    rounds: watch::Receiver<Option<Instant>>,
    canary: JoinHandle<()>,
}

impl Drop for Real {
    fn drop(&mut self) {
        self.canary.abort();
    }
}

impl Real {
    /// Starts a control plane with nodes for many scripts.
    pub(super) async fn start() -> Self {
        let dir = std::env::temp_dir().join(format!("sluice-conformance-{}", std::process::id()));
        let env = TestEnv::start_with(dir, false, &["--nodes", "40"]).await;
        // The simulator evaluates no admission policies, and scripts move services that hold quota
        // to other queues.
        env.delete_policy("sluice-queue-names").await;
        let manager = env.manager().await;
        let observer = Arc::new(Observer::start(&env.client));
        let (sender, rounds) = watch::channel(None);
        let canary = tokio::spawn(canary::go_round(env.client.clone(), observer.clone(), sender));
        Self { env, _manager: manager, observer, rounds, canary }
    }

    /// Executes a script and returns its outcome. Waits for the `expected` Events, which may be
    /// published later than the writes that they report.
    ///
    /// # Errors
    /// When a request is rejected, or the system does not become quiescent.
    pub(super) async fn perform(
        &self,
        script: &Script,
        place: &Place,
        expected: &BTreeSet<String>,
    ) -> Result<Outcome, String> {
        let performer = Performer::new(&self.env.client, place);
        performer.set_up(&script.scene).await.map_err(|error| error.to_string())?;
        let mut between = Vec::new();
        for step in &script.steps {
            between.push(self.rest(place, Duration::ZERO).await?);
            self.act(&performer, &step.act).await?;
        }
        let blocked = self.rest(place, UNTIL_TOLD).await?;
        for act in script.unblock() {
            self.act(&performer, &act).await?;
        }
        let unblocked = self.rest(place, UNTIL_TOLD).await?;
        let reasons = self.told(place, expected).await?;
        for name in unblocked.keys().filter(|(kind, _)| *kind == "RayService").map(|(_, name)| name) {
            self.act(&performer, &Act::DeleteService { service: name.clone(), foreground: false }).await?;
        }
        Ok(Outcome { between, blocked, unblocked, reasons })
    }

    async fn told(&self, place: &Place, expected: &BTreeSet<String>) -> Result<BTreeSet<String>, String> {
        let since = Instant::now();
        loop {
            let reasons = reasons(&self.env.client, place).await.map_err(|error| error.to_string())?;
            if expected.is_subset(&reasons) || since.elapsed() > UNTIL_PUBLISHED {
                return Ok(reasons);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn act(&self, performer: &Performer<'_>, act: &Act) -> Result<(), String> {
        performer.perform(act).await.map_err(|error| format!("{act:?}: {error}"))
    }

    /// Waits until a namespace is quiescent and has not changed for `quiet`. Returns its objects.
    async fn rest(&self, place: &Place, quiet: Duration) -> Result<Dump, String> {
        let since = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let promised = self.observer.ask(place, |objects| unrest(objects.values()));
            let waited = since.elapsed();
            if waited > PATIENCE {
                let there = self.observer.ask(place, |objects| format!("{:#?}", objects.keys()));
                return Err(format!("not quiescent: {promised:?}; the objects are {there}"));
            }
            let changed = self.observer.changed(place).map_or(since, |changed| changed.max(since));
            let round = self.rounds.borrow().is_some_and(|started| started >= changed);
            if promised.is_some() || !round || changed.elapsed() < quiet {
                continue;
            }
            // The listed objects must be those that were found quiescent.
            let dump = dump(&self.env.client, place).await.map_err(|error| error.to_string())?;
            if self.observer.ask(place, |objects| versions(objects) == versions(&dump)) {
                return Ok(dump);
            }
        }
    }
}

fn versions(objects: &Dump) -> Vec<&str> {
    objects.values().map(|object| object["metadata"]["resourceVersion"].as_str().unwrap_or_default()).collect()
}
