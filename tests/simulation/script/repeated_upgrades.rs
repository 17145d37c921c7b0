//! Generates scripts that upgrade one service many times, from a seed.

use fastrand::Rng;

use super::generate::random_service;
use super::setup::{Quota, Setup};
use super::step::{Delay, Script, ScriptStep, Service, UserAction};
use crate::rng::SeededRandom;

/// The queue of the service.
const QUEUE: &str = "team-a";
/// Maximum delay during an upgrade, in milliseconds.
const MAX_DELAY_MS: u32 = 30_000;

impl Script {
    /// Returns a script that upgrades one service `upgrades` times, in a queue with quota for two
    /// of its clusters. Most upgrades start when the one before has completed, some interrupt it,
    /// and some lack quota at first.
    pub(crate) fn repeated_upgrades(chance: &SeededRandom, upgrades: u32) -> Self {
        let rng = &mut chance.subject("script").rng_for("again", 0);
        let service = upgraded_service(rng);
        let (one, two) = (service.pods.total_requests(), service.pods.total_requests().times(2));
        let mut steps = vec![ScriptStep { after: Delay::UntilQuiescent, act: UserAction::PutService(service.clone()) }];
        for version in service.pods.version + 1..=service.pods.version + upgrades {
            let after =
                if rng.u32(0..4) == 0 { Delay::Millis(rng.u32(0..MAX_DELAY_MS)) } else { Delay::UntilQuiescent };
            let upgrade = ScriptStep { after, act: UserAction::SetVersion { service: service.name.clone(), version } };
            if rng.u32(0..5) == 0 {
                let quota = |nominal| ScriptStep {
                    after: Delay::UntilQuiescent,
                    act: UserAction::SetQuota { queue: QUEUE.into(), quotas: vec![Quota::with_nominal(nominal)] },
                };
                steps.extend([quota(one), upgrade, quota(two)]);
            } else {
                steps.push(upgrade);
            }
        }
        Self { setup: Setup::with_one_queue(QUEUE, two), steps }
    }

    /// Returns a script that creates the service with the final version of this script.
    pub(crate) fn with_final_spec(&self) -> Self {
        let version = self.steps.iter().rev().find_map(|step| match &step.act {
            UserAction::SetVersion { version, .. } => Some(*version),
            _ => None,
        });
        let mut steps = self.steps[..1].to_vec();
        if let (Some(version), UserAction::PutService(service)) = (version, &mut steps[0].act) {
            service.pods.version = version;
        }
        Self { setup: self.setup.clone(), steps }
    }
}

/// Returns a service without an admission timeout.
fn upgraded_service(rng: &mut Rng) -> Service {
    Service { queue: Some(QUEUE.to_owned()), recreate: false, admission_timeout: None, ..random_service(rng, "fruit") }
}
