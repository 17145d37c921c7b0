//! Performs scripts on a real control plane, many at a time.

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

/// Sluice refreshes the numbers that it tells those who wait after 10 seconds; of that nothing shows in an object.
const UNTIL_TOLD: Duration = Duration::from_secs(11);
/// How long one waits for rest: the limit is for what never comes.
const PATIENCE: Duration = Duration::from_secs(180);

/// How long one waits for Events that are to come.
const UNTIL_PUBLISHED: Duration = Duration::from_secs(30);

/// A control plane with a manager.
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
    /// Starts it, with room for many scripts.
    pub(super) async fn start() -> Self {
        let dir = std::env::temp_dir().join(format!("sluice-fidelity-{}", std::process::id()));
        let env = TestEnv::start_with(dir, false, &["--nodes", "40"]).await;
        // No policy is evaluated in the simulator, where scripts move services that hold quota to other queues.
        env.delete_policy("sluice-queue-names").await;
        let manager = env.manager().await;
        let observer = Arc::new(Observer::start(&env.client));
        let (sender, rounds) = watch::channel(None);
        let canary = tokio::spawn(canary::go_round(env.client.clone(), observer.clone(), sender));
        Self { env, _manager: manager, observer, rounds, canary }
    }

    /// Performs a script, and returns what it leaves behind. Events may come a while after what they tell of: those that are
    /// `expected` are waited for.
    ///
    /// # Errors
    /// When something is refused, or there is no rest.
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
            let told = reasons(&self.env.client, place).await.map_err(|error| error.to_string())?;
            if expected.is_subset(&told) || since.elapsed() > UNTIL_PUBLISHED {
                return Ok(told);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn act(&self, performer: &Performer<'_>, act: &Act) -> Result<(), String> {
        performer.perform(act).await.map_err(|error| format!("{act:?}: {error}"))
    }

    /// Waits until all that has been done in a place has come to rest, and nothing has changed for some time; returns what is
    /// there then.
    async fn rest(&self, place: &Place, quiet: Duration) -> Result<Dump, String> {
        let since = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let promised = self.observer.ask(place, |objects| unrest(objects.values()));
            let waited = since.elapsed();
            if waited > PATIENCE {
                let there = self.observer.ask(place, |objects| format!("{:#?}", objects.keys()));
                return Err(format!("there is no rest: {promised:?}; there are {there}"));
            }
            let changed = self.observer.changed(place).map_or(since, |changed| changed.max(since));
            let round = self.rounds.borrow().is_some_and(|started| started >= changed);
            if promised.is_some() || !round || changed.elapsed() < quiet {
                continue;
            }
            // What is there must be what was judged.
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
