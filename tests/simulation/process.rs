//! Runs `sluice manager` as a process that is killed and restarted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice_cli::options::ManagerOptions;
use sluice_engine::tokens::TokenKey;
use sluice_manager as manager;
use sluice_manager::ManagerConfig;
use sluice_manager::http::Readiness;
use sluice_metrics::Metrics;
use tokio_util::sync::CancellationToken;

use crate::chance::Chance;
use crate::faults::Faults;
use crate::trace::Trace;
use crate::transport::Wire;
use crate::world::Shared;

/// Restarts the manager whenever it ends.
#[derive(Clone)]
pub struct Machine {
    /// The simulated environment.
    pub world: Shared,
    /// Faults of its requests.
    pub faults: Arc<Mutex<Faults>>,
    /// Log of its wire.
    pub trace: Arc<Mutex<Trace>>,
    /// Random source of latencies.
    pub chance: Chance,
    /// Kills the running process.
    pub plug: Plug,
}

/// Switch that kills the running process.
#[derive(Clone, Default)]
pub struct Plug(Arc<Mutex<CancellationToken>>);

impl Plug {
    /// Kills the running process.
    pub fn pull(&self) {
        self.0.lock().expect("one thread").cancel();
    }

    fn fresh(&self) -> CancellationToken {
        let token = CancellationToken::new();
        *self.0.lock().expect("one thread") = token.clone();
        token
    }
}

impl Machine {
    /// Runs one process after another and never returns. A process that ends by itself is restarted
    /// too.
    pub async fn run(self) {
        let settings = settings();
        for start in 0.. {
            let killed = self.plug.fresh();
            self.remark(&format!("process {start} starts"));
            let ended = self.process(&settings, killed.clone());
            tokio::select! {
                biased;
                () = killed.cancelled() => self.remark(&format!("process {start} is killed")),
                () = ended => self.remark(&format!("process {start} ends")),
            }
            killed.cancel();
            let down = self.chance.about("down", start).u64(10..4_000);
            tokio::time::sleep(Duration::from_millis(down)).await;
        }
    }

    async fn process(&self, settings: &ManagerConfig, killed: CancellationToken) {
        let wire = Wire {
            world: self.world.clone(),
            faults: self.faults.clone(),
            trace: self.trace.clone(),
            chance: self.chance,
            killed,
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
        self.trace.lock().expect("one thread").remark(self.world.time.elapsed(), remark);
    }
}

/// Configuration of a manager outside the cluster.
fn settings() -> ManagerConfig {
    let options = ManagerOptions { use_kubernetes_proxy: Some(true), ..ManagerOptions::default() };
    options.resolve().expect("the defaults are valid").manager
}
