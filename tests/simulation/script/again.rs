//! Generates scripts that upgrade one service many times, from a seed.

use fastrand::Rng;

use super::generate::service;
use super::scene::{Quota, Scene};
use super::step::{Act, Pause, Script, Service, Step};
use crate::chance::Chance;

/// The queue of the service.
const QUEUE: &str = "team-a";
/// Maximum delay during an upgrade, in milliseconds.
const LONGEST_PAUSE: u32 = 30_000;

impl Script {
    /// Returns a script that upgrades one service `upgrades` times, in a queue with quota for two
    /// of its clusters. Most upgrades start when the one before has completed, some interrupt it,
    /// and some lack quota at first.
    pub(crate) fn again_and_again(chance: &Chance, upgrades: u32) -> Self {
        let rng = &mut chance.of("script").about("again", 0);
        let service = of_a_life(rng);
        let (one, two) = (service.pods.total(), service.pods.total().times(2));
        let mut steps = vec![Step { after: Pause::Rest, act: Act::PutService(service.clone()) }];
        for version in service.pods.version + 1..=service.pods.version + upgrades {
            let after = if rng.u32(0..4) == 0 { Pause::Millis(rng.u32(0..LONGEST_PAUSE)) } else { Pause::Rest };
            let upgrade = Step { after, act: Act::SetVersion { service: service.name.clone(), version } };
            if rng.u32(0..5) == 0 {
                let quota = |nominal| Step {
                    after: Pause::Rest,
                    act: Act::SetQuota { queue: QUEUE.into(), quotas: vec![Quota::of(nominal)] },
                };
                steps.extend([quota(one), upgrade, quota(two)]);
            } else {
                steps.push(upgrade);
            }
        }
        Self { scene: Scene::of_one_queue(QUEUE, two), steps }
    }

    /// Returns a script that creates the service with the final version of this script.
    pub(crate) fn as_in_the_end(&self) -> Self {
        let version = self.steps.iter().rev().find_map(|step| match &step.act {
            Act::SetVersion { version, .. } => Some(*version),
            _ => None,
        });
        let mut steps = self.steps[..1].to_vec();
        if let (Some(version), Act::PutService(service)) = (version, &mut steps[0].act) {
            service.pods.version = version;
        }
        Self { scene: self.scene.clone(), steps }
    }
}

/// Returns a service without an admission timeout.
fn of_a_life(rng: &mut Rng) -> Service {
    Service { queue: Some(QUEUE.to_owned()), recreate: false, patience: None, ..service(rng, "fruit") }
}
