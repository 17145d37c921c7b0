//! Runs `sluice manager` as a process that is killed and restarted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice_api::quantity::Quantity;
use sluice_cli::options::ManagerOptions;
use sluice_engine::tokens::TokenKey;
use sluice_manager as manager;
use sluice_manager::ManagerConfig;
use sluice_manager::http::Readiness;
use sluice_metrics::Metrics;
use sluice_queue::settings::{Transformation, TransformationStrategy};
use sluice_testkit::invariants::charges::{CREDITS, CREDITS_MULTIPLIER, CREDITS_PER_CPU_MILLI};
use tokio_util::sync::CancellationToken;

use crate::faults::FaultInjector;
use crate::rng::SeededRandom;
use crate::transport::FaultyConnection;
use crate::wire_log::WireLog;
use crate::world::SharedWorld;

/// Restarts the manager whenever it ends.
#[derive(Clone)]
pub struct ProcessRunner {
    /// The simulated environment.
    pub world: SharedWorld,
    /// Faults of its requests.
    pub faults: Arc<Mutex<FaultInjector>>,
    /// Log of its wire.
    pub wire_log: Arc<Mutex<WireLog>>,
    /// Random source of latencies.
    pub random: SeededRandom,
    /// Kills the running process.
    pub kill_switch: KillSwitch,
    /// Configures it to charge credits for CPUs.
    pub charges_credits: bool,
}

/// Switch that kills the running process.
#[derive(Clone, Default)]
pub struct KillSwitch(Arc<Mutex<CancellationToken>>);

impl KillSwitch {
    /// Kills the running process.
    pub fn kill(&self) {
        self.0.lock().expect("one thread").cancel();
    }

    fn renew(&self) -> CancellationToken {
        let token = CancellationToken::new();
        *self.0.lock().expect("one thread") = token.clone();
        token
    }
}

impl ProcessRunner {
    /// Runs one process after another and never returns. A process that ends by itself is restarted
    /// too.
    pub async fn run(self) {
        let settings = manager_config(self.charges_credits);
        for start in 0.. {
            let killed = self.kill_switch.renew();
            self.remark(&format!("process {start} starts"));
            let ended = self.run_process(&settings, killed.clone());
            tokio::select! {
                biased;
                () = killed.cancelled() => self.remark(&format!("process {start} is killed")),
                () = ended => self.remark(&format!("process {start} ends")),
            }
            killed.cancel();
            let down = self.random.rng_for("down", start).u64(10..4_000);
            tokio::time::sleep(Duration::from_millis(down)).await;
        }
    }

    async fn run_process(&self, settings: &ManagerConfig, killed: CancellationToken) {
        let wire = FaultyConnection {
            world: self.world.clone(),
            faults: self.faults.clone(),
            wire_log: self.wire_log.clone(),
            random: self.random,
            killed,
            received_lists: Arc::default(),
        };
        let client = wire.client();
        let never = CancellationToken::new();
        let clock = self.world.time.clock();
        let ended = manager::run_with_client(
            client,
            clock,
            TokenKey::insecure(),
            settings,
            Metrics::default(),
            Readiness::default(),
            never,
        )
        .await;
        if let Err(error) = ended {
            self.remark(&error.to_string());
        }
    }

    fn remark(&self, remark: &str) {
        self.wire_log.lock().expect("one thread").remark(self.world.time.elapsed(), remark);
    }
}

/// Configuration of a manager outside the cluster.
fn manager_config(charges_credits: bool) -> ManagerConfig {
    let options = ManagerOptions { use_kubernetes_proxy: Some(true), ..ManagerOptions::default() };
    let mut config = options.resolve().expect("the defaults are valid").manager;
    if charges_credits {
        config.scheduler.resources.transformations.push(credits_of_cpus());
    }
    config
}

/// Returns the transformation that [`charges`](sluice_testkit::invariants::charges) checks.
fn credits_of_cpus() -> Transformation {
    Transformation {
        input: "cpu".to_owned(),
        strategy: TransformationStrategy::Retain,
        multiply_by: Some(CREDITS_MULTIPLIER.to_owned()),
        outputs: [(CREDITS.to_owned(), Quantity(format!("{CREDITS_PER_CPU_MILLI}m")))].into(),
    }
}
