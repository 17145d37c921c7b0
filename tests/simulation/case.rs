//! One world to be run: what people do in it, and what goes wrong.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::chance::Chance;
use crate::cluster::{FateList, Fates, Odds};
use crate::faults::{Fault, Faults};
use crate::script::generate::Shape;
use crate::script::step::Script;

/// A world to be run. The same case is the same history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// What all is drawn from that isn't listed: how long things take, at least.
    pub seed: u64,
    /// What people do.
    pub script: Script,
    /// What goes wrong, if that isn't drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<Trouble>,
}

/// What goes wrong.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trouble {
    /// On the wire, by the number of the request.
    pub faults: BTreeMap<u64, Fault>,
    /// With pods and dashboards.
    pub fates: FateList,
}

impl Case {
    /// The world of a seed.
    pub fn of(seed: u64) -> Self {
        Self { seed, script: Script::random(&Chance::new(seed), Shape::FULL), trouble: None }
    }

    /// The world of a seed in which services are upgraded in steps.
    pub fn in_steps(seed: u64) -> Self {
        Self { seed, script: Script::in_steps(&Chance::new(seed)), trouble: None }
    }

    /// The world of a seed in which one service is upgraded again and again, so many times.
    pub fn again_and_again(seed: u64, upgrades: u32) -> Self {
        Self { seed, script: Script::again_and_again(&Chance::new(seed), upgrades), trouble: None }
    }

    /// The world of a service that is put there at once as it is in the end of such a case, and in which nothing goes wrong.
    pub fn as_in_the_end(&self) -> Self {
        Self { seed: self.seed, script: self.script.as_in_the_end(), trouble: Some(Trouble::default()) }
    }

    /// The world that a file describes.
    ///
    /// # Panics
    /// When it can't be read.
    pub fn read(file: &Path) -> Self {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    }

    /// Where its chances come from.
    pub fn chance(&self) -> Chance {
        Chance::new(self.seed)
    }

    /// What goes wrong on the wire.
    pub fn faults(&self) -> Faults {
        match &self.trouble {
            Some(trouble) => Faults::listed(trouble.faults.clone()),
            None => Faults::drawn(&self.chance()),
        }
    }

    /// What becomes of pods and dashboards.
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
