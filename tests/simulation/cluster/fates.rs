//! Injected faults of pods and Ray dashboards: random from a seed, or listed to replay a failure.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::chance::Chance;

/// Fault of a pod. `after_ms` counts virtual milliseconds since the pod was bound to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// The pod becomes ready only after this time.
    #[serde(rename = "Slow")]
    Slow {
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
    #[serde(rename = "Drained")]
    Drained {
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
    #[serde(rename = "Lingers")]
    Lingers {
        /// Milliseconds from deletion until it ends.
        for_ms: u64,
    },
    /// The pod is ready, but its Serve proxy port refuses connections.
    #[serde(rename = "Deaf")]
    Deaf {
        /// Start in milliseconds.
        after_ms: u64,
        /// Duration in milliseconds.
        for_ms: u64,
    },
}

impl Fate {
    /// Returns the time from binding until the fault triggers; `None` for faults that are not a
    /// single event.
    pub(super) fn strikes_after(self) -> Option<Duration> {
        match self {
            Self::Fails { after_ms }
            | Self::Evicted { after_ms }
            | Self::Drained { after_ms }
            | Self::Restarts { after_ms, .. } => Some(Duration::from_millis(after_ms)),
            Self::Slow { .. } | Self::NeverReady | Self::NeverStarts | Self::Lingers { .. } | Self::Deaf { .. } => None,
        }
    }
}

/// Fault of a Ray dashboard during one run of its head. `after_ms` counts virtual milliseconds
/// since it was first reached, unless stated otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BoardFate {
    /// Returns this HTTP status for all requests.
    #[serde(rename = "Refuses")]
    Refuses {
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
    #[serde(rename = "Babbles")]
    Babbles,
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
#[serde(default)]
pub struct FateList {
    /// Faults of pods.
    pub pods: BTreeMap<u64, Fate>,
    /// Faults of Ray dashboards.
    #[serde(rename = "boards")]
    pub boards: BTreeMap<u64, BoardFate>,
}

/// Fault probabilities in permille.
#[derive(Debug, Clone, Copy)]
pub struct Odds {
    /// Probability for a pod.
    pub pods: u32,
    /// Probability for a Ray dashboard.
    pub boards: u32,
}

/// Decides which faults to inject and records those that triggered.
#[derive(Debug, Clone)]
pub struct Fates {
    source: Source,
    struck: FateList,
    healed: bool,
}

#[derive(Debug, Clone)]
enum Source {
    Drawn(Chance, Odds),
    Listed(FateList),
}

impl Fates {
    /// Injects no faults.
    pub fn kind() -> Self {
        Self::listed(FateList::default())
    }

    /// Injects random faults from a seed.
    pub fn drawn(chance: Chance, odds: Odds) -> Self {
        Self::from(Source::Drawn(chance, odds))
    }

    /// Injects exactly the listed faults.
    pub fn listed(faults: FateList) -> Self {
        Self::from(Source::Listed(faults))
    }

    fn from(source: Source) -> Self {
        Self { source, struck: FateList::default(), healed: false }
    }

    /// Returns the faults triggered so far. Listed, they reproduce the run.
    pub fn struck(&self) -> &FateList {
        &self.struck
    }

    /// Returns true if faults are disabled.
    pub(super) fn are_healed(&self) -> bool {
        self.healed
    }

    /// Disables faults from now on.
    pub(super) fn heal(&mut self) {
        self.healed = true;
    }

    /// Returns the fault of the pod with an ordinal; `None` if it has none.
    pub(super) fn of_pod(&self, ordinal: u64) -> Option<Fate> {
        match &self.source {
            Source::Drawn(chance, odds) => {
                let mut rng = chance.about("pod", ordinal);
                (rng.u32(0..1000) < odds.pods).then(|| pod_fate(&mut rng))
            }
            Source::Listed(faults) => faults.pods.get(&ordinal).copied(),
        }
    }

    /// Returns the fault of the Ray dashboard with an ordinal; `None` if it has none.
    pub(super) fn of_board(&self, ordinal: u64) -> Option<BoardFate> {
        match &self.source {
            Source::Drawn(chance, odds) => {
                let mut rng = chance.about("dashboard", ordinal);
                (rng.u32(0..1000) < odds.boards).then(|| board_fate(&mut rng))
            }
            Source::Listed(faults) => faults.boards.get(&ordinal).copied(),
        }
    }

    /// Records that the fault of a pod triggered.
    pub(super) fn strike_pod(&mut self, ordinal: u64, fault: Fate) {
        self.struck.pods.insert(ordinal, fault);
    }

    /// Records that the fault of a Ray dashboard triggered.
    pub(super) fn strike_board(&mut self, ordinal: u64, fault: BoardFate) {
        self.struck.boards.insert(ordinal, fault);
    }
}

fn pod_fate(rng: &mut Rng) -> Fate {
    match rng.u32(0..11) {
        0 | 1 => Fate::Slow { after_ms: moment(rng) },
        2 => Fate::NeverReady,
        3 | 4 => Fate::Fails { after_ms: moment(rng) },
        5 => Fate::Evicted { after_ms: moment(rng) },
        6 => Fate::Restarts { after_ms: moment(rng), for_ms: moment(rng) },
        7 => Fate::Lingers { for_ms: moment(rng) },
        8 => Fate::Drained { after_ms: moment(rng) },
        9 => Fate::NeverStarts,
        _ => Fate::Deaf { after_ms: moment(rng), for_ms: moment(rng) },
    }
}

fn board_fate(rng: &mut Rng) -> BoardFate {
    match rng.u32(0..3) {
        0 => {
            let code = if rng.bool() { 500 } else { 503 };
            BoardFate::Refuses { code, after_ms: moment(rng), for_ms: moment(rng) }
        }
        1 => BoardFate::DeployFails { for_ms: moment(rng) },
        _ => BoardFate::Unhealthy { after_ms: moment(rng), for_ms: moment(rng) },
    }
}

/// Returns a random time in milliseconds, with equal weight for startup and later phases.
fn moment(rng: &mut Rng) -> u64 {
    match rng.u32(0..3) {
        0 => rng.u64(0..500),
        1 => rng.u64(500..5_000),
        _ => rng.u64(5_000..60_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODDS: Odds = Odds { pods: 100, boards: 200 };

    #[test]
    fn share_of_faulty_pods_and_dashboards_matches_the_probabilities() {
        let faults = Fates::drawn(Chance::new(1), ODDS);

        let pods = (0..10_000).filter(|&pod| faults.of_pod(pod).is_some()).count();
        let boards = (0..10_000).filter(|&board| faults.of_board(board).is_some()).count();

        assert!((900..1_100).contains(&pods), "{pods} of 10000");
        assert!((1_850..2_150).contains(&boards), "{boards} of 10000");
    }

    #[test]
    fn fault_list_survives_serialization_and_replays_the_same_faults() {
        let drawn = Fates::drawn(Chance::new(1), Odds { pods: 1000, boards: 1000 });
        let list = FateList {
            pods: (0..20).filter_map(|pod| Some((pod, drawn.of_pod(pod)?))).collect(),
            boards: (0..20).filter_map(|board| Some((board, drawn.of_board(board)?))).collect(),
        };

        let written = serde_json::to_string(&list).expect("JSON");
        let listed = Fates::listed(serde_json::from_str(&written).expect("a list"));

        for ordinal in 0..20 {
            assert_eq!(listed.of_pod(ordinal), drawn.of_pod(ordinal));
            assert_eq!(listed.of_board(ordinal), drawn.of_board(ordinal));
        }
        assert_eq!(listed.of_pod(20), None);
    }
}
