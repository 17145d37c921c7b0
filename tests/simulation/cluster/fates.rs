//! What becomes of pods and dashboards: drawn from a seed, or listed when a failure is replayed.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use serde::{Deserialize, Serialize};

use crate::chance::Chance;

/// What becomes of a pod. Times are milliseconds of virtual time since it was bound to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// It takes this long to become ready.
    Slow {
        /// How long.
        after_ms: u64,
    },
    /// It runs but never gets ready.
    NeverReady,
    /// It never runs: its image can't be pulled.
    NeverStarts,
    /// It fails for good: its phase is Failed, its containers are terminated.
    Fails {
        /// When.
        after_ms: u64,
    },
    /// It is evicted from its node: deleted, with the condition DisruptionTarget.
    Evicted {
        /// When.
        after_ms: u64,
    },
    /// Its node is drained: all pods on it are evicted.
    Drained {
        /// When.
        after_ms: u64,
    },
    /// Its containers end, and are started again after a while.
    Restarts {
        /// When.
        after_ms: u64,
        /// For how long it isn't ready.
        for_ms: u64,
    },
    /// Once deleted, it takes long to end.
    Lingers {
        /// How long.
        for_ms: u64,
    },
    /// It is ready, but nobody answers on the port of the Serve proxy.
    Deaf {
        /// From when.
        after_ms: u64,
        /// For how long.
        for_ms: u64,
    },
}

impl Fate {
    /// How long after the binding of the pod something happens to it; `None` for what is just the way it is.
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

/// What becomes of a dashboard: that is, of a head, from its start to its restart or end. Times are milliseconds of virtual
/// time since it was reached for the first time, unless they say otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum BoardFate {
    /// It answers nothing but this HTTP status.
    Refuses {
        /// The HTTP status.
        code: u16,
        /// From when.
        after_ms: u64,
        /// For how long.
        for_ms: u64,
    },
    /// It takes calls, and answers none of them.
    Hangs,
    /// It answers everything with a page for people.
    Babbles,
    /// What is deployed fails to, and comes up by itself after a while.
    DeployFails {
        /// How long after the deployment.
        for_ms: u64,
    },
    /// What runs is unhealthy for a while.
    Unhealthy {
        /// From when, after the deployment.
        after_ms: u64,
        /// For how long.
        for_ms: u64,
    },
}

/// Fates by the order in which pods were made and dashboards were first reached, from 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FateList {
    /// Those of pods.
    pub pods: BTreeMap<u64, Fate>,
    /// Those of dashboards.
    pub boards: BTreeMap<u64, BoardFate>,
}

/// How many pods and dashboards meet with a fate, in thousandths.
#[derive(Debug, Clone, Copy)]
pub struct Odds {
    /// Of pods.
    pub pods: u32,
    /// Of dashboards.
    pub boards: u32,
}

/// Decides what becomes of whom, and remembers it.
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
    /// All goes well.
    pub fn kind() -> Self {
        Self::listed(FateList::default())
    }

    /// Fates from a seed.
    pub fn drawn(chance: Chance, odds: Odds) -> Self {
        Self::from(Source::Drawn(chance, odds))
    }

    /// These, and no others.
    pub fn listed(fates: FateList) -> Self {
        Self::from(Source::Listed(fates))
    }

    fn from(source: Source) -> Self {
        Self { source, struck: FateList::default(), healed: false }
    }

    /// Those that have struck so far. Listed, they give the same run again.
    pub fn struck(&self) -> &FateList {
        &self.struck
    }

    /// Whether from now on all goes well.
    pub(super) fn are_healed(&self) -> bool {
        self.healed
    }

    /// Lets all go well from now on.
    pub(super) fn heal(&mut self) {
        self.healed = true;
    }

    /// What is to become of the pod of this number.
    pub(super) fn of_pod(&self, ordinal: u64) -> Option<Fate> {
        match &self.source {
            Source::Drawn(chance, odds) => {
                let mut rng = chance.about("pod", ordinal);
                (rng.u32(0..1000) < odds.pods).then(|| pod_fate(&mut rng))
            }
            Source::Listed(fates) => fates.pods.get(&ordinal).copied(),
        }
    }

    /// What is to become of the dashboard of this number.
    pub(super) fn of_board(&self, ordinal: u64) -> Option<BoardFate> {
        match &self.source {
            Source::Drawn(chance, odds) => {
                let mut rng = chance.about("dashboard", ordinal);
                (rng.u32(0..1000) < odds.boards).then(|| board_fate(&mut rng))
            }
            Source::Listed(fates) => fates.boards.get(&ordinal).copied(),
        }
    }

    /// Notes that a pod met with its fate.
    pub(super) fn strike_pod(&mut self, ordinal: u64, fate: Fate) {
        self.struck.pods.insert(ordinal, fate);
    }

    /// Notes that a dashboard met with its fate.
    pub(super) fn strike_board(&mut self, ordinal: u64, fate: BoardFate) {
        self.struck.boards.insert(ordinal, fate);
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

/// A time in milliseconds: as likely in the bustle of a start as in the calm after it.
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
    fn as_many_meet_with_a_fate_as_the_odds_say() {
        let fates = Fates::drawn(Chance::new(1), ODDS);

        let pods = (0..10_000).filter(|&pod| fates.of_pod(pod).is_some()).count();
        let boards = (0..10_000).filter(|&board| fates.of_board(board).is_some()).count();

        assert!((900..1_100).contains(&pods), "{pods} of 10000");
        assert!((1_850..2_150).contains(&boards), "{boards} of 10000");
    }

    #[test]
    fn those_that_struck_can_be_listed_and_written_down() {
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
