//! A simulated environment without faults.

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

/// Time without a change after which the system counts as quiescent: longer than any retry interval
/// without faults.
const QUIET: Duration = Duration::from_secs(15);
/// Timeout of waiting for quiescence.
const PATIENCE: Duration = Duration::from_secs(600);

/// Runs `act` in a new environment in which Sluice runs.
pub fn in_world<T>(seed: u64, act: impl AsyncFnOnce(&Shared) -> T) -> T {
    in_world_with(seed, Setting::default(), act)
}

/// Options of an environment.
pub struct Setting {
    /// Number of nodes.
    pub nodes: usize,
    /// Faults of pods and Ray dashboards.
    pub fates: Fates,
    /// Random source of uids. None makes them ascend.
    pub uids: Option<Chance>,
}

impl Default for Setting {
    /// Four nodes without faults.
    fn default() -> Self {
        Self { nodes: 4, fates: Fates::kind(), uids: None }
    }
}

/// Runs `act` in a new environment with these options.
pub fn in_world_with<T>(seed: u64, setting: Setting, act: impl AsyncFnOnce(&Shared) -> T) -> T {
    // kube-rs draws its backoff jitter from this generator.
    fastrand::seed(seed);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let machine = machine(&Chance::new(seed), setting);
        let world = machine.world.clone();
        tokio::select! {
            biased;
            () = world.clone().live() => panic!("the cluster stopped"),
            () = machine.run() => panic!("the process runner stopped"),
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

/// Waits until the system is quiescent.
///
/// # Errors
/// When it is not quiescent within `PATIENCE`.
pub async fn rest(world: &Shared) -> Result<(), String> {
    let started = world.time.elapsed();
    loop {
        tokio::time::sleep(QUIET).await;
        if world.changed_at() + QUIET <= world.time.now() {
            return Ok(());
        }
        if world.time.elapsed() > started + PATIENCE {
            return Err(format!("not quiescent within {PATIENCE:?}"));
        }
    }
}
