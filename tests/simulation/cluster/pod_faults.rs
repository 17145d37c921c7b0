//! Injected faults of pods and Ray dashboards: random from a seed, or listed to replay a failure.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::rng::SeededRandom;

/// Fault of a pod. `after_ms` counts virtual milliseconds since the pod was bound to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodFault {
    /// The pod becomes ready only after this time.
    SlowStart {
        /// Milliseconds from binding until ready.
        after_ms: u64,
    },
    /// The pod runs but never becomes ready.
    NeverReady,
    /// The pod never runs: its image cannot be pulled.
    NeverStarts,
    /// The pod reaches phase Failed and its containers are terminated.
    Fails {
        /// Milliseconds from binding.
        after_ms: u64,
    },
    /// The pod is evicted: it gets the condition DisruptionTarget and is deleted.
    Evicted {
        /// Milliseconds from binding.
        after_ms: u64,
    },
    /// The node of the pod is drained: all its pods are evicted.
    NodeDrained {
        /// Milliseconds from binding.
        after_ms: u64,
    },
    /// The containers fail and restart later.
    Restarts {
        /// Milliseconds from binding.
        after_ms: u64,
        /// Milliseconds until the containers run again.
        for_ms: u64,
    },
    /// The pod terminates slowly after it is deleted.
    SlowTermination {
        /// Milliseconds from deletion until it ends.
        for_ms: u64,
    },
    /// The pod is ready, but its Serve proxy port refuses connections.
    ProxyUnreachable {
        /// Start in milliseconds.
        after_ms: u64,
        /// Duration in milliseconds.
        for_ms: u64,
    },
}

impl PodFault {
    /// Returns the time from binding until the fault triggers; `None` for faults that are not a
    /// single event.
    pub(super) fn triggers_after(self) -> Option<Duration> {
        match self {
            Self::Fails { after_ms }
            | Self::Evicted { after_ms }
            | Self::NodeDrained { after_ms }
            | Self::Restarts { after_ms, .. } => Some(Duration::from_millis(after_ms)),
            Self::SlowStart { .. }
            | Self::NeverReady
            | Self::NeverStarts
            | Self::SlowTermination { .. }
            | Self::ProxyUnreachable { .. } => None,
        }
    }
}

/// Fault of a Ray dashboard during one run of its head. `after_ms` counts virtual milliseconds
/// since it was first reached, unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DashboardFault {
    /// Returns this HTTP status for all requests.
    ReturnsError {
        /// HTTP status code.
        code: u16,
        /// Start in milliseconds.
        after_ms: u64,
        /// Duration in milliseconds.
        for_ms: u64,
    },
    /// Accepts requests and never responds.
    Hangs,
    /// Returns an HTML page for all requests.
    ReturnsHtml,
    /// Deployments fail at first and recover by themselves.
    DeployFails {
        /// Milliseconds for which a deployment shows DEPLOY_FAILED.
        for_ms: u64,
    },
    /// Running applications are unhealthy temporarily.
    Unhealthy {
        /// Start, in milliseconds after the deployment runs.
        after_ms: u64,
        /// Duration in milliseconds.
        for_ms: u64,
    },
}

/// Faults by ordinal: the order in which pods were created and Ray dashboards first reached, from
/// 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultList {
    /// Faults of pods.
    pub pods: BTreeMap<u64, PodFault>,
    /// Faults of Ray dashboards.
    pub dashboards: BTreeMap<u64, DashboardFault>,
}

/// Fault probabilities in permille.
#[derive(Debug, Clone, Copy)]
pub struct FaultOdds {
    /// Probability for a pod.
    pub pods: u32,
    /// Probability for a Ray dashboard.
    pub dashboards: u32,
}

/// Decides which faults to inject and records those that triggered.
#[derive(Debug, Clone)]
pub struct PodFaultInjector {
    source: FaultSource,
    triggered: FaultList,
    disabled: bool,
}

#[derive(Debug, Clone)]
enum FaultSource {
    Random(SeededRandom, FaultOdds),
    Listed(FaultList),
}

impl PodFaultInjector {
    /// Injects no faults.
    pub fn none() -> Self {
        Self::listed(FaultList::default())
    }

    /// Injects random faults from a seed.
    pub fn random(chance: SeededRandom, odds: FaultOdds) -> Self {
        Self::from_source(FaultSource::Random(chance, odds))
    }

    /// Injects exactly the listed faults.
    pub fn listed(faults: FaultList) -> Self {
        Self::from_source(FaultSource::Listed(faults))
    }

    fn from_source(source: FaultSource) -> Self {
        Self { source, triggered: FaultList::default(), disabled: false }
    }

    /// Returns the faults triggered so far. Listed, they reproduce the run.
    pub fn triggered(&self) -> &FaultList {
        &self.triggered
    }

    /// Returns true if faults are disabled.
    pub(super) fn is_disabled(&self) -> bool {
        self.disabled
    }

    /// Disables faults from now on.
    pub(super) fn disable(&mut self) {
        self.disabled = true;
    }

    /// Returns the fault of the pod with an ordinal; `None` if it has none.
    pub(super) fn pod_fault(&self, ordinal: u64) -> Option<PodFault> {
        match &self.source {
            FaultSource::Random(chance, odds) => {
                let mut rng = chance.rng_for("pod", ordinal);
                (rng.u32(0..1000) < odds.pods).then(|| random_pod_fault(&mut rng))
            }
            FaultSource::Listed(faults) => faults.pods.get(&ordinal).copied(),
        }
    }

    /// Returns the fault of the Ray dashboard with an ordinal; `None` if it has none.
    pub(super) fn dashboard_fault(&self, ordinal: u64) -> Option<DashboardFault> {
        match &self.source {
            FaultSource::Random(chance, odds) => {
                let mut rng = chance.rng_for("dashboard", ordinal);
                (rng.u32(0..1000) < odds.dashboards).then(|| random_dashboard_fault(&mut rng))
            }
            FaultSource::Listed(faults) => faults.dashboards.get(&ordinal).copied(),
        }
    }

    /// Records that the fault of a pod triggered.
    pub(super) fn record_pod_fault(&mut self, ordinal: u64, fault: PodFault) {
        self.triggered.pods.insert(ordinal, fault);
    }

    /// Records that the fault of a Ray dashboard triggered.
    pub(super) fn record_dashboard_fault(&mut self, ordinal: u64, fault: DashboardFault) {
        self.triggered.dashboards.insert(ordinal, fault);
    }
}

fn random_pod_fault(rng: &mut Rng) -> PodFault {
    match rng.u32(0..11) {
        0 | 1 => PodFault::SlowStart { after_ms: random_millis(rng) },
        2 => PodFault::NeverReady,
        3 | 4 => PodFault::Fails { after_ms: random_millis(rng) },
        5 => PodFault::Evicted { after_ms: random_millis(rng) },
        6 => PodFault::Restarts { after_ms: random_millis(rng), for_ms: random_millis(rng) },
        7 => PodFault::SlowTermination { for_ms: random_millis(rng) },
        8 => PodFault::NodeDrained { after_ms: random_millis(rng) },
        9 => PodFault::NeverStarts,
        _ => PodFault::ProxyUnreachable { after_ms: random_millis(rng), for_ms: random_millis(rng) },
    }
}

fn random_dashboard_fault(rng: &mut Rng) -> DashboardFault {
    match rng.u32(0..3) {
        0 => {
            let code = if rng.bool() { 500 } else { 503 };
            DashboardFault::ReturnsError { code, after_ms: random_millis(rng), for_ms: random_millis(rng) }
        }
        1 => DashboardFault::DeployFails { for_ms: random_millis(rng) },
        _ => DashboardFault::Unhealthy { after_ms: random_millis(rng), for_ms: random_millis(rng) },
    }
}

/// Returns a random time in milliseconds, with equal weight for startup and later phases.
fn random_millis(rng: &mut Rng) -> u64 {
    match rng.u32(0..3) {
        0 => rng.u64(0..500),
        1 => rng.u64(500..5_000),
        _ => rng.u64(5_000..60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODDS: FaultOdds = FaultOdds { pods: 100, dashboards: 200 };

    #[test]
    fn share_of_faulty_pods_and_dashboards_matches_the_probabilities() {
        let faults = PodFaultInjector::random(SeededRandom::new(1), ODDS);

        let pods = (0..10_000).filter(|&pod| faults.pod_fault(pod).is_some()).count();
        let boards = (0..10_000).filter(|&board| faults.dashboard_fault(board).is_some()).count();

        assert!((900..1_100).contains(&pods), "{pods} of 10000");
        assert!((1_850..2_150).contains(&boards), "{boards} of 10000");
    }

    #[test]
    fn fault_list_survives_serialization_and_replays_the_same_faults() {
        let drawn = PodFaultInjector::random(SeededRandom::new(1), FaultOdds { pods: 1000, dashboards: 1000 });
        let list = FaultList {
            pods: (0..20).filter_map(|pod| Some((pod, drawn.pod_fault(pod)?))).collect(),
            dashboards: (0..20).filter_map(|board| Some((board, drawn.dashboard_fault(board)?))).collect(),
        };

        let written = serde_json::to_string(&list).expect("JSON");
        let listed = PodFaultInjector::listed(serde_json::from_str(&written).expect("a list"));

        for ordinal in 0..20 {
            assert_eq!(listed.pod_fault(ordinal), drawn.pod_fault(ordinal));
            assert_eq!(listed.dashboard_fault(ordinal), drawn.dashboard_fault(ordinal));
        }
        assert_eq!(listed.pod_fault(20), None);
    }
}
