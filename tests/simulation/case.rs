//! A simulation case: a seed, the script of user actions, and the faults to inject.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::chance::Chance;
use crate::cluster::{FateList, Fates, Odds};
use crate::faults::{Fault, Faults};
use crate::script::generate::Shape;
use crate::script::step::Script;

/// One simulation run. Equal cases produce equal histories.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Seed of every draw that the case does not list, such as latencies.
    pub seed: u64,
    /// Actions of the users.
    pub script: Script,
    /// Faults to inject. None draws them from the seed.
    #[serde(rename = "trouble", default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Trouble>,
}

/// The faults of one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trouble {
    /// Faults of requests, by request number.
    #[serde(rename = "faults")]
    pub faults: BTreeMap<u64, Fault>,
    /// Faults of pods and Ray dashboards.
    #[serde(rename = "fates")]
    pub fates: FateList,
}

impl Case {
    /// Returns the case of a seed.
    pub fn of(seed: u64) -> Self {
        Self { seed, script: Script::random(&Chance::new(seed), Shape::FULL), trouble: None }
    }

    /// Returns the case of a seed with incremental upgrades.
    pub fn in_steps(seed: u64) -> Self {
        Self { seed, script: Script::in_steps(&Chance::new(seed)), trouble: None }
    }

    /// Returns the case of a seed that upgrades one service `upgrades` times.
    pub fn again_and_again(seed: u64, upgrades: u32) -> Self {
        Self { seed, script: Script::again_and_again(&Chance::new(seed), upgrades), trouble: None }
    }

    /// Returns a fault-free case that creates the service of a repeated-upgrade case with its final
    /// spec.
    pub fn as_in_the_end(&self) -> Self {
        Self { seed: self.seed, script: self.script.as_in_the_end(), trouble: Some(Trouble::default()) }
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
    pub fn chance(&self) -> Chance {
        Chance::new(self.seed)
    }

    /// Returns the injector of request faults.
    pub fn faults(&self) -> Faults {
        match &self.trouble {
            Some(trouble) => Faults::listed(trouble.faults.clone()),
            None => Faults::drawn(&self.chance()),
        }
    }

    /// Returns the faults of pods and Ray dashboards.
    pub fn fates(&self) -> Fates {
        let chance = self.chance().of("fates");
        let mut draw = chance.about("odds", 0);
        let mut odds = || [0, 0, 20, 80, 200][draw.usize(0..5)];
        match &self.trouble {
            Some(trouble) => Fates::listed(trouble.fates.clone()),
            None => Fates::drawn(chance, Odds { pods: odds(), boards: odds() }),
        }
    }
}
