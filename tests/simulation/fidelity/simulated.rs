//! Executes scripts in the simulator, without faults.

use super::Outcome;
use super::dump::{Dump, dump, reasons};
use super::rest::unrest;
use crate::calm::{self, Setting};
use crate::chance::Chance;
use crate::script::manifests::Place;
use crate::script::perform::Performer;
use crate::script::step::Script;
use crate::transport::reliable;
use crate::world::Shared;

/// Executes a script with ascending uids, or with uids drawn from `uids`, and returns its outcome.
///
/// # Errors
/// When a request is rejected, or the system does not become quiescent.
pub(super) fn perform(script: &Script, place: &Place, seed: u64, uids: Option<Chance>) -> Result<Outcome, String> {
    let setting = Setting { uids, ..Setting::default() };
    calm::in_world_with(seed, setting, async |world| play(world, script, place).await)
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
    calm::rest(world).await?;
    let dump = dump(client, place).await.map_err(|error| error.to_string())?;
    match unrest(dump.values()) {
        None => Ok(dump),
        Some(promised) => Err(format!("nothing changes any more, but {promised}")),
    }
}
