//! Generates scripts with incremental upgrades, from a seed.

use fastrand::Rng;

use super::desired_state::DesiredState;
use super::generate::random_requests;
use super::setup::{Priority, Quota, ResourceAmounts, Setup, WithinClusterQueue};
use super::step::{Cluster, Delay, Group, IncrementalOptions, Pods, Script, ScriptStep, Service, UserAction};
use crate::rng::SeededRandom;

/// Queue of all services.
const QUEUE: &str = "team-a";
/// Maximum delay during an upgrade, in milliseconds.
const MAX_DELAY_MS: u32 = 60_000;

impl Script {
    /// Returns a script with one or two services that are upgraded incrementally, with insufficient
    /// or sufficient quota, and with other actions during the upgrade.
    pub(crate) fn incremental(chance: &SeededRandom) -> Self {
        let rng = &mut chance.subject("script").rng_for("steps", 0);
        let services: Vec<Service> =
            ["fruit", "chat"].iter().take(rng.usize(1..=2)).map(|name| service(rng, name)).collect();
        let demand =
            services.iter().fold(ResourceAmounts::default(), |sum, service| sum.plus(service.pods.total_requests()));
        let mut author = IncrementalScriptBuilder { script: Self { setup: setup(demand), steps: Vec::new() } };
        for service in &services {
            author.push(Delay::UntilQuiescent, UserAction::PutService(service.clone()));
        }
        let surges = services.iter().fold(ResourceAmounts::default(), |sum, service| sum.plus(surge_requests(service)));
        let quota = match rng.u32(0..4) {
            0 => demand,
            1 => demand.plus(surge_requests(&services[0])),
            2 => demand.plus(surges),
            _ => demand.plus(surges).plus(demand),
        };
        author.set_quota(Delay::UntilQuiescent, quota);
        for service in &services {
            let pause = if rng.bool() { Delay::UntilQuiescent } else { Delay::Millis(rng.u32(0..5_000)) };
            author.push(pause, upgrade_action(rng, service, 1));
        }
        for _ in 0..rng.u32(0..=2) {
            let service = &services[rng.usize(0..services.len())];
            act_during_upgrade(&mut author, rng, service, quota);
        }
        author.set_quota(Delay::UntilQuiescent, demand.plus(surges).plus(demand));
        author.script
    }
}

impl Script {
    /// Returns a script with one incremental upgrade and quota for exactly its surge.
    pub(crate) fn single_incremental() -> Self {
        let (cpu, memory) = (500, 256);
        let group =
            Group { name: "small".into(), replicas: 4, hosts: 1, size: ResourceAmounts { cpu, memory, gpu: 1 } };
        let service = Service {
            name: "fruit".into(),
            queue: Some(QUEUE.to_owned()),
            pods: Pods { version: 52, head: ResourceAmounts { cpu, memory, gpu: 0 }, groups: vec![group] },
            incremental: Some(IncrementalOptions { surge: 50, step_size: 25, interval: 2, user_provided_route: false }),
            ..Service::default()
        };
        let mut next = service.clone();
        next.pods.version += 1;
        let step = |service| ScriptStep { after: Delay::UntilQuiescent, act: UserAction::PutService(service) };
        let scene = setup(service.pods.total_requests().plus(surge_requests(&service)));
        // The last step changes nothing: it only waits for the end of the upgrade.
        Self { setup: scene, steps: vec![step(service), step(next.clone()), step(next)] }
    }
}

impl Script {
    /// Returns a script with a service, insufficient or sufficient quota and sometimes another
    /// cluster that uses quota, and the service after an incremental upgrade to `version`.
    pub(crate) fn planned_incremental(rng: &mut Rng, version: u32) -> (Self, Service) {
        let service = service(rng, "fruit");
        let mut next = service.clone();
        next.pods.version = version;
        if rng.bool() {
            next.pods.head = random_requests(rng, 0);
            next.pods.groups.iter_mut().for_each(|group| group.size = random_requests(rng, 0));
        }
        let demand = service.pods.total_requests();
        let quota = match rng.u32(0..3) {
            0 => demand,
            1 => demand.plus(surge_requests(&next)),
            _ => demand.plus(next.pods.total_requests()),
        };
        let mut author = IncrementalScriptBuilder { script: Self { setup: setup(demand), steps: Vec::new() } };
        author.push(Delay::UntilQuiescent, UserAction::PutService(service));
        author.set_quota(Delay::UntilQuiescent, quota);
        if rng.bool() {
            author.push(Delay::UntilQuiescent, UserAction::PutCluster(other_cluster(rng)));
        }
        (author.script, next)
    }
}

struct IncrementalScriptBuilder {
    script: Script,
}

impl IncrementalScriptBuilder {
    fn push(&mut self, after: Delay, act: UserAction) {
        self.script.steps.push(ScriptStep { after, act });
    }

    fn set_quota(&mut self, after: Delay, nominal: ResourceAmounts) {
        self.push(after, UserAction::SetQuota { queue: QUEUE.into(), quotas: vec![Quota::with_nominal(nominal)] });
    }

    fn service(&self, name: &str) -> Option<Service> {
        DesiredState::after_script(&self.script).services.remove(name)
    }
}

/// Appends an action during an upgrade.
fn act_during_upgrade(author: &mut IncrementalScriptBuilder, rng: &mut Rng, before: &Service, quota: ResourceAmounts) {
    let pause = Delay::Millis(rng.u32(0..MAX_DELAY_MS));
    let name = before.name.clone();
    let act = match rng.u32(0..8) {
        0..3 => UserAction::PutService(before.clone()),
        3 => upgrade_action(rng, before, 2),
        4 => {
            let less = ResourceAmounts { cpu: quota.cpu.saturating_sub(rng.u32(0..1_000)), ..quota };
            return author.set_quota(pause, less);
        }
        5 => UserAction::PutCluster(other_cluster(rng)),
        6 => UserAction::Suspend { service: name, suspend: true },
        _ => return,
    };
    let suspends = matches!(act, UserAction::Suspend { .. });
    author.push(pause, act);
    if suspends {
        author.push(
            Delay::Millis(rng.u32(0..10_000)),
            UserAction::Suspend { service: before.name.clone(), suspend: false },
        );
    } else if let Some(now) = author.service(&before.name).filter(|_| rng.u32(0..3) == 0) {
        author.push(Delay::Millis(rng.u32(0..MAX_DELAY_MS)), upgrade_action(rng, &now, 1));
    }
}

/// Returns a standalone cluster that uses quota too.
fn other_cluster(rng: &mut Rng) -> Cluster {
    Cluster {
        name: "basket".into(),
        queue: Some(QUEUE.into()),
        priority: rng.bool().then(|| "high".to_owned()),
        recreate: false,
        owned: false,
        pods: Pods { version: 52, head: random_requests(rng, 0), groups: Vec::new() },
    }
}

/// Returns an upgrade by `versions` versions, sometimes with other worker requests.
fn upgrade_action(rng: &mut Rng, service: &Service, versions: u32) -> UserAction {
    let mut next = service.clone();
    next.pods.version += versions;
    if rng.u32(0..4) == 0 {
        next.pods.groups.iter_mut().for_each(|group| group.size = random_requests(rng, 0));
    }
    UserAction::PutService(next)
}

fn service(rng: &mut Rng, name: &str) -> Service {
    let surge = rng.choice([100, 50, 50, 34, 25, 20]).unwrap_or(100);
    let (step, interval) = (rng.u32(1..=surge).max(surge / 4), rng.u32(1..=4));
    let steps = IncrementalOptions { surge, step_size: step, interval, user_provided_route: rng.u32(0..4) == 0 };
    let group = Group { name: "small".into(), replicas: rng.u32(1..=5), hosts: 1, size: random_requests(rng, 0) };
    Service {
        name: name.to_owned(),
        queue: Some(QUEUE.to_owned()),
        pods: Pods { version: 52, head: random_requests(rng, 0), groups: vec![group] },
        deletion_delay: rng.u32(0..=2),
        incremental: Some(steps),
        ..Service::default()
    }
}

/// Returns the quota that an upgrade needs in addition.
fn surge_requests(service: &Service) -> ResourceAmounts {
    let percent = service.incremental.map_or(100, |steps| steps.surge);
    let workers = service.pods.groups.iter().map(|group| group.size.times((group.replicas * percent).div_ceil(100)));
    workers.fold(service.pods.head, ResourceAmounts::plus)
}

fn setup(demand: ResourceAmounts) -> Setup {
    let mut scene = Setup::with_one_queue(QUEUE, demand);
    scene.queues[0].within_cluster_queue = Some(WithinClusterQueue::LowerPriority);
    scene.priorities = vec![Priority { name: "high".into(), value: 100 }];
    scene.gateways = true;
    scene
}
