//! Generates scripts with incremental upgrades, from a seed.

use fastrand::Rng;

use super::generate::size;
use super::scene::{Priority, Quota, Scene, Size, Within};
use super::step::{Act, Cluster, Group, Pause, Pods, Script, Service, Step, Steps};
use super::wishes::Wishes;
use crate::chance::Chance;

/// Queue of all services.
const QUEUE: &str = "team-a";
/// Maximum delay during an upgrade, in milliseconds.
const LONGEST_PAUSE: u32 = 60_000;

impl Script {
    /// Returns a script with one or two services that are upgraded incrementally, with insufficient
    /// or sufficient quota, and with other actions during the upgrade.
    pub(crate) fn in_steps(chance: &Chance) -> Self {
        let rng = &mut chance.of("script").about("steps", 0);
        let services: Vec<Service> =
            ["fruit", "chat"].iter().take(rng.usize(1..=2)).map(|name| service(rng, name)).collect();
        let demand = services.iter().fold(Size::default(), |sum, service| sum.plus(service.pods.total()));
        let mut author = Author { script: Script { scene: scene(demand), steps: Vec::new() } };
        for service in &services {
            author.push(Pause::Rest, Act::PutService(service.clone()));
        }
        let surges = services.iter().fold(Size::default(), |sum, service| sum.plus(surge(service)));
        let quota = match rng.u32(0..4) {
            0 => demand,
            1 => demand.plus(surge(&services[0])),
            2 => demand.plus(surges),
            _ => demand.plus(surges).plus(demand),
        };
        author.set_quota(Pause::Rest, quota);
        for service in &services {
            let pause = if rng.bool() { Pause::Rest } else { Pause::Millis(rng.u32(0..5_000)) };
            author.push(pause, upgrade(rng, service, 1));
        }
        for _ in 0..rng.u32(0..=2) {
            let service = &services[rng.usize(0..services.len())];
            meanwhile(&mut author, rng, service, quota);
        }
        author.set_quota(Pause::Rest, demand.plus(surges).plus(demand));
        author.script
    }
}

impl Script {
    /// Returns a script with one incremental upgrade and quota for exactly its surge.
    pub(crate) fn one_in_steps() -> Self {
        let (cpu, memory) = (500, 256);
        let group = Group { name: "small".into(), replicas: 4, hosts: 1, size: Size { cpu, memory, gpu: 1 } };
        let service = Service {
            name: "fruit".into(),
            queue: Some(QUEUE.to_owned()),
            pods: Pods { version: 52, head: Size { cpu, memory, gpu: 0 }, groups: vec![group] },
            steps: Some(Steps { surge: 50, step: 25, interval: 2, adopts: false }),
            ..Service::default()
        };
        let mut next = service.clone();
        next.pods.version += 1;
        let step = |service| Step { after: Pause::Rest, act: Act::PutService(service) };
        let scene = scene(service.pods.total().plus(surge(&service)));
        // The last step changes nothing: it only waits for the end of the upgrade.
        Self { scene, steps: vec![step(service), step(next.clone()), step(next)] }
    }
}

impl Script {
    /// Returns a script with a service, insufficient or sufficient quota and sometimes another
    /// cluster that uses quota, and the service after an incremental upgrade to `version`.
    pub(crate) fn planned_in_steps(rng: &mut Rng, version: u32) -> (Self, Service) {
        let service = service(rng, "fruit");
        let mut next = service.clone();
        next.pods.version = version;
        if rng.bool() {
            next.pods.head = size(rng, 0);
            next.pods.groups.iter_mut().for_each(|group| group.size = size(rng, 0));
        }
        let demand = service.pods.total();
        let quota = match rng.u32(0..3) {
            0 => demand,
            1 => demand.plus(surge(&next)),
            _ => demand.plus(next.pods.total()),
        };
        let mut author = Author { script: Self { scene: scene(demand), steps: Vec::new() } };
        author.push(Pause::Rest, Act::PutService(service));
        author.set_quota(Pause::Rest, quota);
        if rng.bool() {
            author.push(Pause::Rest, Act::PutCluster(other_cluster(rng)));
        }
        (author.script, next)
    }
}

struct Author {
    script: Script,
}

impl Author {
    fn push(&mut self, after: Pause, act: Act) {
        self.script.steps.push(Step { after, act });
    }

    fn set_quota(&mut self, after: Pause, nominal: Size) {
        self.push(after, Act::SetQuota { queue: QUEUE.into(), quotas: vec![Quota::of(nominal)] });
    }

    fn service(&self, name: &str) -> Option<Service> {
        Wishes::of(&self.script).services.remove(name)
    }
}

/// Appends an action during an upgrade.
fn meanwhile(author: &mut Author, rng: &mut Rng, before: &Service, quota: Size) {
    let pause = Pause::Millis(rng.u32(0..LONGEST_PAUSE));
    let name = before.name.clone();
    let act = match rng.u32(0..8) {
        0..3 => Act::PutService(before.clone()),
        3 => upgrade(rng, before, 2),
        4 => {
            let less = Size { cpu: quota.cpu.saturating_sub(rng.u32(0..1_000)), ..quota };
            return author.set_quota(pause, less);
        }
        5 => Act::PutCluster(other_cluster(rng)),
        6 => Act::Suspend { service: name, suspend: true },
        _ => return,
    };
    let suspends = matches!(act, Act::Suspend { .. });
    author.push(pause, act);
    if suspends {
        author.push(Pause::Millis(rng.u32(0..10_000)), Act::Suspend { service: before.name.clone(), suspend: false });
    } else if let Some(now) = author.service(&before.name).filter(|_| rng.u32(0..3) == 0) {
        author.push(Pause::Millis(rng.u32(0..LONGEST_PAUSE)), upgrade(rng, &now, 1));
    }
}

/// Returns a standalone cluster that uses quota too.
fn other_cluster(rng: &mut Rng) -> Cluster {
    Cluster {
        name: "basket".into(),
        queue: Some(QUEUE.into()),
        priority: rng.bool().then(|| "high".to_owned()),
        recreate: false,
        pods: Pods { version: 52, head: size(rng, 0), groups: Vec::new() },
    }
}

/// Returns an upgrade by `versions` versions, sometimes with other worker requests.
fn upgrade(rng: &mut Rng, service: &Service, versions: u32) -> Act {
    let mut next = service.clone();
    next.pods.version += versions;
    if rng.u32(0..4) == 0 {
        next.pods.groups.iter_mut().for_each(|group| group.size = size(rng, 0));
    }
    Act::PutService(next)
}

fn service(rng: &mut Rng, name: &str) -> Service {
    let surge = rng.choice([100, 50, 50, 34, 25, 20]).unwrap_or(100);
    let (step, interval) = (rng.u32(1..=surge).max(surge / 4), rng.u32(1..=4));
    let steps = Steps { surge, step, interval, adopts: rng.u32(0..4) == 0 };
    let group = Group { name: "small".into(), replicas: rng.u32(1..=5), hosts: 1, size: size(rng, 0) };
    Service {
        name: name.to_owned(),
        queue: Some(QUEUE.to_owned()),
        pods: Pods { version: 52, head: size(rng, 0), groups: vec![group] },
        linger: rng.u32(0..=2),
        steps: Some(steps),
        ..Service::default()
    }
}

/// Returns the quota that an upgrade needs in addition.
fn surge(service: &Service) -> Size {
    let percent = service.steps.map_or(100, |steps| steps.surge);
    let workers = service.pods.groups.iter().map(|group| group.size.times((group.replicas * percent).div_ceil(100)));
    workers.fold(service.pods.head, Size::plus)
}

fn scene(demand: Size) -> Scene {
    let mut scene = Scene::of_one_queue(QUEUE, demand);
    scene.queues[0].within = Some(Within::LowerPriority);
    scene.priorities = vec![Priority { name: "high".into(), value: 100 }];
    scene.gateways = true;
    scene
}
