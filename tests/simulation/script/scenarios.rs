//! Scenarios: short sequences of actions, each with one purpose.

use fastrand::Rng;

use super::generate::{ScriptBuilder, random_group, random_pods, random_requests, random_service};
use super::manifests::MAX_WORKERS;
use super::setup::ResourceAmounts;
use super::step::{Cluster, Service, StopPolicy, UserAction};

/// Name of the service with high priority.
const URGENT_SERVICE: &str = "rush";
/// Name of the standalone RayCluster.
const STANDALONE_CLUSTER: &str = "basket";

/// Appends a random scenario.
pub(super) fn append_scenario(author: &mut ScriptBuilder, rng: &mut Rng) {
    let Some(service) = author.any_service(rng) else { return create_service(author, rng) };
    match rng.u32(0..11) {
        0..4 => pending_upgrade(author, rng, &service),
        4..6 => fitting_upgrade(author, rng, &service),
        6..8 => change_without_upgrade(author, rng, &service),
        8..10 => standalone_cluster(author, rng),
        _ => disturb_queue(author, rng, &service),
    }
}

/// Creates a service when none exists.
fn create_service(author: &mut ScriptBuilder, rng: &mut Rng) {
    let mut service = random_service(rng, "fruit");
    service.queue = author.any_queue(rng);
    author.push_action(rng, UserAction::PutService(service));
}

/// Upgrades a service in a full queue, acts while the upgrade is pending, and sometimes raises the
/// quota later.
fn pending_upgrade(author: &mut ScriptBuilder, rng: &mut Rng, service: &Service) {
    set_quota(author, rng, service, QuotaLevel::JustShort);
    upgrade(author, rng, service);
    if let Some(service) = author.desired_state.services.get(&service.name).cloned() {
        act_during_upgrade(author, rng, &service);
    }
    if rng.u32(0..3) > 0 {
        set_quota(author, rng, service, QuotaLevel::Sufficient);
        if rng.u32(0..3) == 0 {
            act_during_upgrade(author, rng, service);
        }
    }
}

/// Upgrades a service with sufficient quota. Actions during the upgrade meet both of its clusters.
fn fitting_upgrade(author: &mut ScriptBuilder, rng: &mut Rng, service: &Service) {
    set_quota(author, rng, service, QuotaLevel::Sufficient);
    upgrade(author, rng, service);
    // Both clusters are unsuspended only briefly, so this needs more attempts than other scenarios.
    match author.mid_flight().then(|| rng.u32(0..8)) {
        Some(0) => revert_upgrade(author, rng, service),
        Some(1) => preempt(author, rng, service),
        _ if rng.bool() => act_during_upgrade(author, rng, service),
        _ => {}
    }
}

/// Free quota of a queue, compared with what the upgrade of a service needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QuotaLevel {
    /// At least one unit less than the next cluster requests.
    JustShort,
    /// As much as the next cluster requests.
    Sufficient,
    /// Negative: less quota than is in use.
    BelowUsage,
}

fn set_quota(author: &mut ScriptBuilder, rng: &mut Rng, service: &Service, room: QuotaLevel) {
    let Some(queue) = &service.queue else { return };
    let demand = author.desired_state.demand(queue);
    let both = demand.plus(service.pods.total_requests());
    let nominal = match room {
        QuotaLevel::Sufficient => both,
        QuotaLevel::JustShort => match rng.u32(0..4) {
            0 => ResourceAmounts { cpu: both.cpu - 1, ..both },
            1 => ResourceAmounts { memory: both.memory - 1, ..both },
            _ => demand,
        },
        QuotaLevel::BelowUsage => {
            ResourceAmounts { cpu: demand.cpu.saturating_sub(1), memory: demand.memory / 2, gpu: demand.gpu }
        }
    };
    let quotas = author.quota_of(queue, nominal);
    if author.desired_state.quotas.get(queue) != Some(&quotas) {
        author.push_action(rng, UserAction::SetQuota { queue: queue.clone(), quotas });
    }
}

/// Appends a change that requires another cluster.
fn upgrade(author: &mut ScriptBuilder, rng: &mut Rng, service: &Service) {
    let name = service.name.clone();
    let groups = service.pods.groups.len();
    let act = match rng.u32(0..8) {
        0 if groups > 0 => {
            let group = rng.usize(0..groups);
            let gpu = service.pods.groups[group].size.gpu;
            UserAction::Resize { service: name, group, size: random_requests(rng, gpu) }
        }
        1 => {
            let mut other = service.clone();
            other.pods = random_pods(rng);
            other.pods.version = service.pods.version;
            UserAction::PutService(other)
        }
        2 => {
            let mut other = service.clone();
            other.pods.version += 1;
            UserAction::PutService(other)
        }
        _ => UserAction::SetVersion { service: name, version: service.pods.version + 1 },
    };
    author.push_action(rng, act);
}

/// Appends an action during an upgrade, pending or not. `before` is the service before the upgrade.
fn act_during_upgrade(author: &mut ScriptBuilder, rng: &mut Rng, before: &Service) {
    let name = before.name.clone();
    let Some(now) = author.desired_state.services.get(&name).cloned() else { return };
    match rng.u32(0..11) {
        0 | 1 => revert_upgrade(author, rng, before),
        2 => author.push_action_soon(rng, UserAction::SetVersion { service: name, version: now.pods.version + 1 }),
        3 => delete_and_recreate(author, rng, &now),
        4 => suspend_and_resume(author, rng, &name),
        5 | 6 => preempt(author, rng, &now),
        7 => stop_and_start_queue(author, rng, &now),
        8 => scale(author, rng, &now),
        9 => author.push_action_soon(rng, UserAction::EditServeConfig { service: name, edition: now.edition + 1 }),
        _ => set_quota(author, rng, &now, QuotaLevel::BelowUsage),
    }
}

fn revert_upgrade(author: &mut ScriptBuilder, rng: &mut Rng, before: &Service) {
    let back = if rng.bool() {
        UserAction::SetVersion { service: before.name.clone(), version: before.pods.version.saturating_sub(1).max(52) }
    } else {
        UserAction::PutService(before.clone())
    };
    author.push_action_soon(rng, back);
}

fn delete_and_recreate(author: &mut ScriptBuilder, rng: &mut Rng, service: &Service) {
    let foreground = rng.bool();
    author.push_action_soon(rng, UserAction::DeleteService { service: service.name.clone(), foreground });
    if rng.u32(0..4) > 0 {
        author.push_action(rng, UserAction::PutService(service.clone()));
    }
}

fn suspend_and_resume(author: &mut ScriptBuilder, rng: &mut Rng, name: &str) {
    author.push_action_soon(rng, UserAction::Suspend { service: name.to_owned(), suspend: true });
    if rng.u32(0..4) > 0 {
        author.push_action(rng, UserAction::Suspend { service: name.to_owned(), suspend: false });
    }
}

/// Appends a service of higher priority in the same queue, which is sometimes deleted soon.
fn preempt(author: &mut ScriptBuilder, rng: &mut Rng, service: &Service) {
    let mut urgent = super::generate::random_service(rng, URGENT_SERVICE);
    // A service is not moved out of its queue: the admission policies deny that while it holds
    // quota.
    let existing = author.desired_state.services.get(URGENT_SERVICE);
    urgent.queue = existing.unwrap_or(service).queue.clone();
    urgent.priority = author.script.setup.priorities.last().map(|class| class.name.clone());
    if rng.bool() {
        urgent.pods = service.pods.clone();
    }
    author.push_action_soon(rng, UserAction::PutService(urgent));
    if rng.bool() {
        author.push_action(rng, UserAction::DeleteService { service: URGENT_SERVICE.to_owned(), foreground: false });
    }
}

fn stop_and_start_queue(author: &mut ScriptBuilder, rng: &mut Rng, service: &Service) {
    let Some(queue) = service.queue.clone() else { return };
    let policy = if rng.bool() { StopPolicy::Hold } else { StopPolicy::HoldAndDrain };
    let stop = |queue, policy, local| {
        if local { UserAction::StopLocalQueue { queue, policy } } else { UserAction::StopQueue { queue, policy } }
    };
    let local = rng.u32(0..3) == 0;
    author.push_action_soon(rng, stop(queue.clone(), policy, local));
    if rng.u32(0..4) > 0 {
        author.push_action(rng, stop(queue, StopPolicy::None, local));
    }
}

fn scale(author: &mut ScriptBuilder, rng: &mut Rng, service: &Service) {
    let groups = service.pods.groups.len();
    if groups > 0 {
        let (group, replicas) = (rng.usize(0..groups), rng.u32(0..=3).min(MAX_WORKERS));
        author.push_action_soon(rng, UserAction::Scale { service: service.name.clone(), group, replicas });
    }
}

/// Appends a change that requires no other cluster.
fn change_without_upgrade(author: &mut ScriptBuilder, rng: &mut Rng, service: &Service) {
    let name = service.name.clone();
    match rng.u32(0..7) {
        0 | 1 => scale(author, rng, service),
        2 => author.push_action(rng, UserAction::EditServeConfig { service: name, edition: service.edition + 1 }),
        3 => suspend_and_resume(author, rng, &name),
        4 => delete_and_recreate(author, rng, service),
        5 => {
            let priority = author.any_priority(rng);
            author.push_action(rng, UserAction::SetPriority { service: name, priority });
        }
        _ => {
            let mut more = service.clone();
            let free = ["small", "large", "huge"].iter();
            let mut free = free.filter(|name| more.pods.groups.iter().all(|group| group.name != **name));
            if let Some(name) = free.next() {
                more.pods.groups.push(random_group(rng, name));
                author.push_action(rng, UserAction::PutService(more));
            }
        }
    }
}

/// Creates, changes and deletes a standalone RayCluster.
fn standalone_cluster(author: &mut ScriptBuilder, rng: &mut Rng) {
    let cluster = Cluster {
        name: STANDALONE_CLUSTER.to_owned(),
        queue: author.any_queue(rng),
        priority: author.any_priority(rng),
        recreate: rng.bool(),
        owned: false,
        pods: random_pods(rng),
    };
    let cluster = Cluster { owned: cluster.queue.is_some() && rng.u32(0..3) == 0, ..cluster };
    // A pending cluster cannot be moved to another queue.
    let cluster = author.desired_state.clusters.get(STANDALONE_CLUSTER).cloned().unwrap_or(cluster);
    let groups = cluster.pods.groups.len();
    author.push_action(rng, UserAction::PutCluster(cluster.clone()));
    if cluster.recreate {
        for _ in 0..rng.u32(0..=3) {
            edit_cluster(author, rng, &cluster);
        }
    } else if groups > 0 && rng.u32(0..3) == 0 {
        // Existing pods stay unchanged; later pods are larger.
        let larger = with_larger_workers(rng, &cluster);
        author.push_action(rng, UserAction::PutCluster(larger));
    }
    if groups > 0 && rng.bool() {
        let (group, replicas) = (rng.usize(0..groups), rng.u32(0..=3));
        author.push_action_soon(
            rng,
            UserAction::ScaleCluster { cluster: STANDALONE_CLUSTER.to_owned(), group, replicas },
        );
    }
    if rng.bool() {
        delete_cluster(author, rng);
    }
}

/// Deletes the standalone RayCluster, sometimes without its pods, which are deleted later.
fn delete_cluster(author: &mut ScriptBuilder, rng: &mut Rng) {
    let (cluster, orphan) = (STANDALONE_CLUSTER.to_owned(), rng.u32(0..3) == 0);
    author.push_action(rng, UserAction::DeleteCluster { cluster: cluster.clone(), orphan, foreground: false });
    if orphan {
        author.push_at_rest(UserAction::DeleteOrphans { cluster });
    }
}

/// Changes the pods of a cluster, or reverts them, possibly while earlier changes are in progress.
fn edit_cluster(author: &mut ScriptBuilder, rng: &mut Rng, first: &Cluster) {
    let edited = match rng.u32(0..3) {
        0 if !first.pods.groups.is_empty() => with_larger_workers(rng, first),
        1 => first.clone(),
        _ => {
            let mut edited = first.clone();
            edited.pods.version += rng.u32(1..=2);
            edited
        }
    };
    if rng.bool() {
        author.push_action(rng, UserAction::PutCluster(edited));
    } else {
        author.push_action_soon(rng, UserAction::PutCluster(edited));
    }
}

/// Returns the cluster with larger workers in one group.
fn with_larger_workers(rng: &mut Rng, cluster: &Cluster) -> Cluster {
    let mut larger = cluster.clone();
    let group = rng.usize(0..larger.pods.groups.len());
    let size = &mut larger.pods.groups[group].size;
    *size = size.plus(ResourceAmounts { cpu: 50, memory: 64, gpu: 0 });
    larger
}

/// Stops the queue, or reduces its quota below the usage.
fn disturb_queue(author: &mut ScriptBuilder, rng: &mut Rng, service: &Service) {
    if rng.bool() {
        stop_and_start_queue(author, rng, service);
    } else {
        set_quota(author, rng, service, QuotaLevel::BelowUsage);
        if rng.bool() {
            set_quota(author, rng, service, QuotaLevel::Sufficient);
        }
    }
}
