//! A simulated environment without faults.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::api::{ApiServer, InstalledPolicies};
use crate::cluster::{Latencies, Nodes, PodFaultInjector, SimulatedCluster};
use crate::faults::FaultInjector;
use crate::observer::Observer;
use crate::process::{KillSwitch, ProcessRunner};
use crate::rng::SeededRandom;
use crate::time::VirtualTime;
use crate::world::SharedWorld;

/// Time without a change after which the system counts as quiescent: longer than any retry interval
/// without faults.
const QUIESCENCE_PERIOD: Duration = Duration::from_secs(15);
/// Timeout of waiting for quiescence.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Runs `act` in a new environment in which Sluice runs.
pub fn in_world<T>(seed: u64, act: impl AsyncFnOnce(&SharedWorld) -> T) -> T {
    in_world_with(seed, WorldOptions::default(), act)
}

/// Options of an environment.
pub struct WorldOptions {
    /// Number of nodes.
    pub nodes: usize,
    /// Faults of pods and Ray dashboards.
    pub cluster_faults: PodFaultInjector,
    /// Random source of uids. None makes them ascend.
    pub uids: Option<SeededRandom>,
    /// Admission policies that are installed.
    pub policies: InstalledPolicies,
}

impl Default for WorldOptions {
    /// Four nodes without faults, and all policies.
    fn default() -> Self {
        Self { nodes: 4, cluster_faults: PodFaultInjector::none(), uids: None, policies: InstalledPolicies::All }
    }
}

/// Runs `act` in a new environment with these options.
pub fn in_world_with<T>(seed: u64, setting: WorldOptions, act: impl AsyncFnOnce(&SharedWorld) -> T) -> T {
    // kube-rs draws its backoff jitter from this generator.
    fastrand::seed(seed);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let machine = process_runner(&SeededRandom::new(seed), setting);
        let world = machine.world.clone();
        tokio::select! {
            biased;
            () = world.clone().run_cluster() => panic!("the cluster stopped"),
            () = machine.run() => panic!("the process runner stopped"),
            outcome = act(&world) => outcome,
        }
    })
}

fn process_runner(chance: &SeededRandom, setting: WorldOptions) -> ProcessRunner {
    let time = VirtualTime::start();
    let cluster = SimulatedCluster::new(
        Nodes::uniform(setting.nodes),
        Latencies::fixed(chance.subject("pace")),
        setting.cluster_faults,
    );
    ProcessRunner {
        world: SharedWorld::new(
            time,
            ApiServer::new(time.now()).with_uid_order(setting.uids).with_policies(setting.policies),
            cluster,
            Observer::new(),
        ),
        faults: Arc::new(Mutex::new(FaultInjector::listed([].into()))),
        wire_log: Arc::default(),
        random: chance.subject("wire"),
        kill_switch: KillSwitch::default(),
        charges_credits: false,
    }
}

/// Waits until the system is quiescent.
///
/// # Errors
/// Fails if it is not quiescent within [`TIMEOUT`].
pub async fn wait_until_quiescent(world: &SharedWorld) -> Result<(), String> {
    let started = world.time.elapsed();
    loop {
        tokio::time::sleep(QUIESCENCE_PERIOD).await;
        if world.last_change() + QUIESCENCE_PERIOD <= world.time.now() {
            return Ok(());
        }
        if world.time.elapsed() > started + TIMEOUT {
            return Err(format!("not quiescent within {TIMEOUT:?}"));
        }
    }
}
