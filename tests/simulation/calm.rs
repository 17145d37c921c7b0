//! A world in which nothing goes wrong.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::api::Api;
use crate::chance::Chance;
use crate::cluster::{Cluster, Fates, Nodes, Pace};
use crate::faults::Faults;
use crate::observer::Observer;
use crate::process::{Machine, Plug};
use crate::time::Time;
use crate::world::Shared;

/// Time costs nothing there, so rest is when nothing has changed for longer than Sluice ever waits before it tries again.
const QUIET: Duration = Duration::from_secs(15);
/// How long one waits for rest: the limit is for what never comes.
const PATIENCE: Duration = Duration::from_secs(600);

/// Does something in a world of its own, in which Sluice runs.
pub fn in_world<T>(seed: u64, act: impl AsyncFnOnce(&Shared) -> T) -> T {
    in_world_with(seed, Setting::default(), act)
}

/// What a world has of its own.
pub struct Setting {
    /// How many nodes.
    pub nodes: usize,
    /// What becomes of pods and dashboards.
    pub fates: Fates,
    /// What the order of uids is drawn from; they ascend if there is nothing.
    pub uids: Option<Chance>,
}

impl Default for Setting {
    /// Four nodes, on which all goes well.
    fn default() -> Self {
        Self { nodes: 4, fates: Fates::kind(), uids: None }
    }
}

/// The same, in such a world.
pub fn in_world_with<T>(seed: u64, setting: Setting, act: impl AsyncFnOnce(&Shared) -> T) -> T {
    // kube-rs draws the jitter of its pauses from here.
    fastrand::seed(seed);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let machine = machine(&Chance::new(seed), setting);
        let world = machine.world.clone();
        tokio::select! {
            biased;
            () = world.clone().live() => panic!("the world ends"),
            () = machine.run() => panic!("the machine ends"),
            outcome = act(&world) => outcome,
        }
    })
}

fn machine(chance: &Chance, setting: Setting) -> Machine {
    let time = Time::start();
    let cluster = Cluster::new(Nodes::alike(setting.nodes), Pace::steady(chance.of("pace")), setting.fates);
    Machine {
        world: Shared::new(time, Api::new(time.now()).with_uids_of(setting.uids), cluster, Observer::new()),
        faults: Arc::new(Mutex::new(Faults::listed([].into()))),
        trace: Arc::default(),
        chance: chance.of("wire"),
        plug: Plug::default(),
    }
}

/// Waits until nothing more happens.
///
/// # Errors
/// When there is no end of it.
pub async fn rest(world: &Shared) -> Result<(), String> {
    let begun = world.time.elapsed();
    loop {
        tokio::time::sleep(QUIET).await;
        if world.changed_at() + QUIET <= world.time.now() {
            return Ok(());
        }
        if world.time.elapsed() > begun + PATIENCE {
            return Err(format!("there is no rest in {PATIENCE:?}"));
        }
    }
}
