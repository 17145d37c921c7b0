//! Performs scripts in the simulator, where nothing goes wrong.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Outcome;
use super::dump::{Dump, dump, reasons};
use super::rest::unrest;
use crate::api::Api;
use crate::chance::Chance;
use crate::cluster::{Cluster, Fates, Nodes, Pace};
use crate::faults::Faults;
use crate::observer::Observer;
use crate::process::{Machine, Plug};
use crate::script::manifests::Place;
use crate::script::perform::Performer;
use crate::script::step::Script;
use crate::time::Time;
use crate::transport::reliable;
use crate::world::Shared;

/// Time costs nothing there, so rest is when nothing has changed for longer than Sluice ever waits before it tries again.
const QUIET: Duration = Duration::from_secs(15);
/// How long one waits for rest: the limit is for what never comes.
const PATIENCE: Duration = Duration::from_secs(600);

/// Performs a script, and returns what it leaves behind.
///
/// # Errors
/// When something is refused, or there is no rest.
pub(super) fn perform(script: &Script, place: &Place, seed: u64) -> Result<Outcome, String> {
    // kube-rs draws the jitter of its pauses from here.
    fastrand::seed(seed);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let machine = machine(&Chance::new(seed));
        let world = machine.world.clone();
        tokio::select! {
            biased;
            () = world.clone().live() => Err("the world ends".to_owned()),
            () = machine.run() => Err("the machine ends".to_owned()),
            outcome = play(&world, script, place) => outcome,
        }
    })
}

fn machine(chance: &Chance) -> Machine {
    let time = Time::start();
    let cluster = Cluster::new(Nodes::alike(4), Pace::steady(chance.of("pace")), Fates::kind());
    Machine {
        world: Shared::new(time, Api::new(time.now()), cluster, Observer::new()),
        faults: Arc::new(Mutex::new(Faults::listed([].into()))),
        trace: Arc::default(),
        chance: chance.of("wire"),
        plug: Plug::default(),
    }
}

async fn play(world: &Shared, script: &Script, place: &Place) -> Result<Outcome, String> {
    let client = reliable(world);
    let performer = Performer::new(&client, place);
    performer.set_up(&script.scene).await.map_err(|error| error.to_string())?;
    let mut between = Vec::new();
    for step in &script.steps {
        between.push(rest(world, &client, place).await?);
        performer.perform(&step.act).await.map_err(|error| format!("{:?}: {error}", step.act))?;
    }
    let blocked = rest(world, &client, place).await?;
    for act in script.unblock() {
        performer.perform(&act).await.map_err(|error| format!("{act:?}: {error}"))?;
    }
    let unblocked = rest(world, &client, place).await?;
    let reasons = reasons(&client, place).await.map_err(|error| error.to_string())?;
    Ok(Outcome { between, blocked, unblocked, reasons })
}

async fn rest(world: &Shared, client: &kube::Client, place: &Place) -> Result<Dump, String> {
    let begun = world.time.elapsed();
    loop {
        tokio::time::sleep(QUIET).await;
        if world.changed_at() + QUIET <= world.time.now() {
            let dump = dump(client, place).await.map_err(|error| error.to_string())?;
            return match unrest(dump.values()) {
                None => Ok(dump),
                Some(promised) => Err(format!("nothing more happens, but {promised}")),
            };
        }
        if world.time.elapsed() > begun + PATIENCE {
            return Err(format!("there is no rest in {PATIENCE:?}"));
        }
    }
}
