//! Executes scripts in the simulator, without faults.

use super::dump::{Dump, dump, event_reasons};
use super::quiescence::pending_work;
use super::{REMOVED_POLICY, ScriptOutcome};
use crate::api::InstalledPolicies;
use crate::fault_free::{self, WorldOptions};
use crate::rng::SeededRandom;
use crate::script::executor::Executor;
use crate::script::manifests::ScriptNamespace;
use crate::script::step::Script;
use crate::transport::reliable_client;
use crate::world::SharedWorld;

/// Executes a script with ascending uids, or with uids drawn from `uids`, and returns its outcome.
///
/// # Errors
/// When a request is rejected, or the system does not become quiescent.
pub(super) fn execute(
    script: &Script,
    place: &ScriptNamespace,
    seed: u64,
    uids: Option<SeededRandom>,
) -> Result<ScriptOutcome, String> {
    let setting = WorldOptions { uids, policies: InstalledPolicies::AllBut(REMOVED_POLICY), ..WorldOptions::default() };
    fault_free::in_world_with(seed, setting, async |world| execute_in(world, script, place).await)
}

async fn execute_in(world: &SharedWorld, script: &Script, place: &ScriptNamespace) -> Result<ScriptOutcome, String> {
    let client = reliable_client(world);
    let performer = Executor::new(&client, place);
    performer.set_up(&script.setup).await.map_err(|error| error.to_string())?;
    let mut between = Vec::new();
    for step in &script.steps {
        between.push(wait_until_quiescent(world, &client, place).await?);
        performer.execute(&step.act).await.map_err(|error| format!("{:?}: {error}", step.act))?;
    }
    let blocked = wait_until_quiescent(world, &client, place).await?;
    for act in script.unblocking_actions() {
        performer.execute(&act).await.map_err(|error| format!("{act:?}: {error}"))?;
    }
    let unblocked = wait_until_quiescent(world, &client, place).await?;
    let reasons = event_reasons(&client, place).await.map_err(|error| error.to_string())?;
    Ok(ScriptOutcome { before_steps: between, blocked, unblocked, reasons })
}

async fn wait_until_quiescent(
    world: &SharedWorld,
    client: &kube::Client,
    place: &ScriptNamespace,
) -> Result<Dump, String> {
    fault_free::wait_until_quiescent(world).await?;
    let dump = dump(client, place).await.map_err(|error| error.to_string())?;
    match pending_work(dump.values()) {
        None => Ok(dump),
        Some(promised) => Err(format!("nothing changes any more, but {promised}")),
    }
}
