//! Scenarios: short sequences of actions, each with one purpose.

use fastrand::Rng;

use super::generate::{Author, group, pods, service, size};
use super::manifests::MOST_WORKERS;
use super::scene::Size;
use super::step::{Act, Cluster, Service, StopPolicy};

/// Name of the service with high priority.
const URGENT: &str = "rush";
/// Name of the standalone RayCluster.
const CLUSTER: &str = "basket";

/// Appends a random scenario.
pub(super) fn tell(author: &mut Author, rng: &mut Rng) {
    let Some(service) = author.any_service(rng) else { return begin_again(author, rng) };
    match rng.u32(0..11) {
        0..4 => upgrade_that_waits(author, rng, &service),
        4..6 => upgrade_that_goes_through(author, rng, &service),
        6..8 => everyday_change(author, rng, &service),
        8..10 => own_cluster(author, rng),
        _ => trouble_in_the_queue(author, rng, &service),
    }
}

/// Creates a service when none exists.
fn begin_again(author: &mut Author, rng: &mut Rng) {
    let mut service = service(rng, "fruit");
    service.queue = author.any_queue(rng);
    author.act(rng, Act::PutService(service));
}

/// Upgrades a service in a full queue, acts while the upgrade is pending, and sometimes raises the
/// quota later.
fn upgrade_that_waits(author: &mut Author, rng: &mut Rng, service: &Service) {
    set_room(author, rng, service, Room::JustShort);
    upgrade(author, rng, service);
    if let Some(service) = author.wishes.services.get(&service.name).cloned() {
        intervene(author, rng, &service);
    }
    if rng.u32(0..3) > 0 {
        set_room(author, rng, service, Room::Enough);
        if rng.u32(0..3) == 0 {
            intervene(author, rng, service);
        }
    }
}

/// Upgrades a service with sufficient quota. Actions during the upgrade meet both of its clusters.
fn upgrade_that_goes_through(author: &mut Author, rng: &mut Rng, service: &Service) {
    set_room(author, rng, service, Room::Enough);
    upgrade(author, rng, service);
    // Both clusters are unsuspended only briefly, so this needs more attempts than other scenarios.
    match author.mid_flight().then(|| rng.u32(0..8)) {
        Some(0) => take_back(author, rng, service),
        Some(1) => preempt(author, rng, service),
        _ if rng.bool() => intervene(author, rng, service),
        _ => {}
    }
}

/// Free quota of a queue, compared with what the upgrade of a service needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// At least one unit less than the next cluster requests.
    JustShort,
    /// As much as the next cluster requests.
    Enough,
    /// Negative: less quota than is in use.
    TooLittle,
}

fn set_room(author: &mut Author, rng: &mut Rng, service: &Service, room: Room) {
    let Some(queue) = &service.queue else { return };
    let demand = author.wishes.demand(queue);
    let both = demand.plus(service.pods.total());
    let nominal = match room {
        Room::Enough => both,
        Room::JustShort => match rng.u32(0..4) {
            0 => Size { cpu: both.cpu - 1, ..both },
            1 => Size { memory: both.memory - 1, ..both },
            _ => demand,
        },
        Room::TooLittle => Size { cpu: demand.cpu.saturating_sub(1), memory: demand.memory / 2, gpu: demand.gpu },
    };
    let quotas = author.quota_of(queue, nominal);
    if author.wishes.quotas.get(queue) != Some(&quotas) {
        author.act(rng, Act::SetQuota { queue: queue.clone(), quotas });
    }
}

/// Appends a change that requires another cluster.
fn upgrade(author: &mut Author, rng: &mut Rng, service: &Service) {
    let name = service.name.clone();
    let groups = service.pods.groups.len();
    let act = match rng.u32(0..8) {
        0 if groups > 0 => {
            let group = rng.usize(0..groups);
            let gpu = service.pods.groups[group].size.gpu;
            Act::Resize { service: name, group, size: size(rng, gpu) }
        }
        1 => {
            let mut other = service.clone();
            other.pods = pods(rng);
            other.pods.version = service.pods.version;
            Act::PutService(other)
        }
        2 => {
            let mut other = service.clone();
            other.pods.version += 1;
            Act::PutService(other)
        }
        _ => Act::SetVersion { service: name, version: service.pods.version + 1 },
    };
    author.act(rng, act);
}

/// Appends an action during an upgrade, pending or not. `before` is the service before the upgrade.
fn intervene(author: &mut Author, rng: &mut Rng, before: &Service) {
    let name = before.name.clone();
    let Some(now) = author.wishes.services.get(&name).cloned() else { return };
    match rng.u32(0..11) {
        0 | 1 => take_back(author, rng, before),
        2 => author.act_soon(rng, Act::SetVersion { service: name, version: now.pods.version + 1 }),
        3 => delete_and_make_again(author, rng, &now),
        4 => suspend_and_resume(author, rng, &name),
        5 | 6 => preempt(author, rng, &now),
        7 => stop_and_go_on(author, rng, &now),
        8 => scale(author, rng, &now),
        9 => author.act_soon(rng, Act::EditServeConfig { service: name, edition: now.edition + 1 }),
        _ => set_room(author, rng, &now, Room::TooLittle),
    }
}

fn take_back(author: &mut Author, rng: &mut Rng, before: &Service) {
    let back = if rng.bool() {
        Act::SetVersion { service: before.name.clone(), version: before.pods.version.saturating_sub(1).max(52) }
    } else {
        Act::PutService(before.clone())
    };
    author.act_soon(rng, back);
}

fn delete_and_make_again(author: &mut Author, rng: &mut Rng, service: &Service) {
    let foreground = rng.bool();
    author.act_soon(rng, Act::DeleteService { service: service.name.clone(), foreground });
    if rng.u32(0..4) > 0 {
        author.act(rng, Act::PutService(service.clone()));
    }
}

fn suspend_and_resume(author: &mut Author, rng: &mut Rng, name: &str) {
    author.act_soon(rng, Act::Suspend { service: name.to_owned(), suspend: true });
    if rng.u32(0..4) > 0 {
        author.act(rng, Act::Suspend { service: name.to_owned(), suspend: false });
    }
}

/// Appends a service of higher priority in the same queue, which is sometimes deleted soon.
fn preempt(author: &mut Author, rng: &mut Rng, service: &Service) {
    let mut urgent = super::generate::service(rng, URGENT);
    // A service is not moved out of its queue: the admission policies deny that while it holds
    // quota.
    let own = || author.wishes.services.get(URGENT)?.queue.clone();
    urgent.queue = service.queue.clone().or_else(own);
    urgent.priority = author.script.scene.priorities.last().map(|class| class.name.clone());
    if rng.bool() {
        urgent.pods = service.pods.clone();
    }
    author.act_soon(rng, Act::PutService(urgent));
    if rng.bool() {
        author.act(rng, Act::DeleteService { service: URGENT.to_owned(), foreground: false });
    }
}

fn stop_and_go_on(author: &mut Author, rng: &mut Rng, service: &Service) {
    let Some(queue) = service.queue.clone() else { return };
    let policy = if rng.bool() { StopPolicy::Hold } else { StopPolicy::HoldAndDrain };
    let stop = |queue, policy, local| {
        if local { Act::StopLocalQueue { queue, policy } } else { Act::StopQueue { queue, policy } }
    };
    let local = rng.u32(0..3) == 0;
    author.act_soon(rng, stop(queue.clone(), policy, local));
    if rng.u32(0..4) > 0 {
        author.act(rng, stop(queue, StopPolicy::None, local));
    }
}

fn scale(author: &mut Author, rng: &mut Rng, service: &Service) {
    let groups = service.pods.groups.len();
    if groups > 0 {
        let (group, replicas) = (rng.usize(0..groups), rng.u32(0..=3).min(MOST_WORKERS));
        author.act_soon(rng, Act::Scale { service: service.name.clone(), group, replicas });
    }
}

/// Appends a change that requires no other cluster.
fn everyday_change(author: &mut Author, rng: &mut Rng, service: &Service) {
    let name = service.name.clone();
    match rng.u32(0..7) {
        0 | 1 => scale(author, rng, service),
        2 => author.act(rng, Act::EditServeConfig { service: name, edition: service.edition + 1 }),
        3 => suspend_and_resume(author, rng, &name),
        4 => delete_and_make_again(author, rng, service),
        5 => {
            let priority = author.any_priority(rng);
            author.act(rng, Act::SetPriority { service: name, priority });
        }
        _ => {
            let mut more = service.clone();
            let free = ["small", "large", "huge"].iter();
            let mut free = free.filter(|name| more.pods.groups.iter().all(|group| group.name != **name));
            if let Some(name) = free.next() {
                more.pods.groups.push(group(rng, name));
                author.act(rng, Act::PutService(more));
            }
        }
    }
}

/// Creates, changes and deletes a standalone RayCluster.
fn own_cluster(author: &mut Author, rng: &mut Rng) {
    let cluster = Cluster {
        name: CLUSTER.to_owned(),
        queue: author.any_queue(rng),
        priority: author.any_priority(rng),
        recreate: rng.bool(),
        pods: pods(rng),
    };
    // A pending cluster cannot be moved to another queue.
    let cluster = author.wishes.clusters.get(CLUSTER).cloned().unwrap_or(cluster);
    let groups = cluster.pods.groups.len();
    author.act(rng, Act::PutCluster(cluster.clone()));
    if cluster.recreate {
        for _ in 0..rng.u32(0..=3) {
            edit_cluster(author, rng, &cluster);
        }
    } else if groups > 0 && rng.u32(0..3) == 0 {
        // Existing pods stay unchanged; later pods are larger.
        let larger = larger(rng, &cluster);
        author.act(rng, Act::PutCluster(larger));
    }
    if groups > 0 && rng.bool() {
        let (group, replicas) = (rng.usize(0..groups), rng.u32(0..=3));
        author.act_soon(rng, Act::ScaleCluster { cluster: CLUSTER.to_owned(), group, replicas });
    }
    if rng.bool() {
        author.act(rng, Act::DeleteCluster { cluster: CLUSTER.to_owned() });
    }
}

/// Changes the pods of a cluster, or reverts them, possibly while earlier changes are in progress.
fn edit_cluster(author: &mut Author, rng: &mut Rng, first: &Cluster) {
    let edited = match rng.u32(0..3) {
        0 if !first.pods.groups.is_empty() => larger(rng, first),
        1 => first.clone(),
        _ => {
            let mut edited = first.clone();
            edited.pods.version += rng.u32(1..=2);
            edited
        }
    };
    if rng.bool() {
        author.act(rng, Act::PutCluster(edited));
    } else {
        author.act_soon(rng, Act::PutCluster(edited));
    }
}

/// Returns the cluster with larger workers in one group.
fn larger(rng: &mut Rng, cluster: &Cluster) -> Cluster {
    let mut larger = cluster.clone();
    let group = rng.usize(0..larger.pods.groups.len());
    let size = &mut larger.pods.groups[group].size;
    *size = size.plus(Size { cpu: 50, memory: 64, gpu: 0 });
    larger
}

/// Stops the queue, or reduces its quota below the usage.
fn trouble_in_the_queue(author: &mut Author, rng: &mut Rng, service: &Service) {
    if rng.bool() {
        stop_and_go_on(author, rng, service);
    } else {
        set_room(author, rng, service, Room::TooLittle);
        if rng.bool() {
            set_room(author, rng, service, Room::Enough);
        }
    }
}
