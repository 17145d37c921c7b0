//! A simulation case: a seed, the script of user actions, and the faults to inject.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::cluster::{FaultList, FaultOdds, PodFaultInjector};
use crate::faults::{Fault, FaultInjector};
use crate::rng::SeededRandom;
use crate::script::generate::ScriptOptions;
use crate::script::step::Script;

/// One simulation run. Equal cases produce equal histories.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Seed of every draw that the case does not list, such as latencies.
    pub seed: u64,
    /// Actions of the users.
    pub script: Script,
    /// The admission policies are not installed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_policies: bool,
    /// Faults to inject. None draws them from the seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<FaultSchedule>,
}

/// The faults of one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FaultSchedule {
    /// Faults of requests, by request number.
    pub requests: BTreeMap<u64, Fault>,
    /// Faults of pods and Ray dashboards.
    pub cluster: FaultList,
}

impl Case {
    /// Returns the case of a seed.
    pub fn from_seed(seed: u64) -> Self {
        Self {
            seed,
            script: Script::random(&SeededRandom::new(seed), ScriptOptions::FULL),
            without_policies: false,
            faults: None,
        }
    }

    /// Returns the case of a seed with incremental upgrades.
    pub fn incremental(seed: u64) -> Self {
        Self { seed, script: Script::incremental(&SeededRandom::new(seed)), without_policies: false, faults: None }
    }

    /// Returns the case of a seed that upgrades one service `upgrades` times.
    pub fn repeated_upgrades(seed: u64, upgrades: u32) -> Self {
        Self {
            seed,
            script: Script::repeated_upgrades(&SeededRandom::new(seed), upgrades),
            without_policies: false,
            faults: None,
        }
    }

    /// Returns the case of a seed with batch/v1 Jobs. The admission policies are not installed in one
    /// case out of four: then users resume queued Jobs and move running ones.
    pub fn jobs(seed: u64) -> Self {
        let without_policies = SeededRandom::new(seed).rng_for("policies", 0).u32(0..4) == 0;
        Self { seed, script: Script::jobs(&SeededRandom::new(seed)), without_policies, faults: None }
    }

    /// Returns the case of a seed with RayClusters whose users write arbitrary labels, owners and
    /// gates. The admission policies are not installed in one case out of four.
    pub fn clusters(seed: u64) -> Self {
        let without_policies = SeededRandom::new(seed).rng_for("policies", 0).u32(0..4) == 0;
        Self { seed, script: Script::clusters(&SeededRandom::new(seed)), without_policies, faults: None }
    }

    /// Returns a fault-free case that creates the service of a repeated-upgrade case with its final
    /// spec.
    pub fn with_final_spec(&self) -> Self {
        Self { script: self.script.with_final_spec(), faults: Some(FaultSchedule::default()), ..self.clone() }
    }

    /// Reads a case from a YAML file.
    ///
    /// # Panics
    /// When the file cannot be read or is not a case.
    pub fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    }

    /// Returns the random source of the case.
    pub fn random(&self) -> SeededRandom {
        SeededRandom::new(self.seed)
    }

    /// Returns the injector of request faults.
    pub fn request_faults(&self) -> FaultInjector {
        match &self.faults {
            Some(trouble) => FaultInjector::listed(trouble.requests.clone()),
            None => FaultInjector::drawn(&self.random()),
        }
    }

    /// Returns the faults of pods and Ray dashboards.
    pub fn cluster_faults(&self) -> PodFaultInjector {
        let chance = self.random().subject("fates");
        let mut draw = chance.rng_for("odds", 0);
        let mut odds = || [0, 0, 20, 80, 200][draw.usize(0..5)];
        match &self.faults {
            Some(trouble) => PodFaultInjector::listed(trouble.cluster.clone()),
            None => PodFaultInjector::random(chance, FaultOdds { pods: odds(), dashboards: odds() }),
        }
    }
}
