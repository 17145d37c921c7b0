//! Generates scripts with standalone RayClusters and a RayService whose users write arbitrary queue
//! labels, owners, counts and gates, from a seed.

use fastrand::Rng;

use super::cluster_step::{RayAction, RayKind};
use super::desired_state::DesiredState;
use super::generate::{random_pods, random_service};
use super::jobs::{JOB_QUEUES, any_queue, charge_credits, insert_limits, insert_restore, less, two_queues};
use super::setup::{Quota, ResourceAmounts};
use super::step::{Cluster, Delay, Script, ScriptStep, Service, StopPolicy, UserAction};
use crate::rng::SeededRandom;

/// Names of clusters, in order of creation.
const CLUSTERS: [&str; 3] = ["probe", "train", "tune"];
/// Name of the service, if there is one.
const SERVICE: &str = "serve";
/// Maximum delay between actions in a busy system, in milliseconds.
const MAX_DELAY_MS: u32 = 15_000;
/// Maximum number of workers of a group.
const MAX_WORKERS: u32 = 3;

impl Script {
    /// Returns a script with a few RayClusters and perhaps a RayService, more or less quota than they
    /// need, and changes of labels, owners, counts, gates, pods, Workloads and quota in any order.
    pub(crate) fn clusters(chance: &SeededRandom) -> Self {
        let chance = chance.subject("script");
        let rng = &mut chance.rng_for("clusters", 0);
        let clusters: Vec<Cluster> =
            CLUSTERS.iter().take(rng.usize(1..=CLUSTERS.len())).map(|name| random_cluster(rng, name)).collect();
        let service = (rng.u32(0..3) == 0).then(|| queued_service(rng));
        let pods = clusters.iter().map(|cluster| &cluster.pods).chain(service.iter().map(|service| &service.pods));
        let demand = pods.fold(ResourceAmounts::default(), |sum, pods| sum.plus(pods.total_requests()));
        let mut script = Self { setup: two_queues(rng, demand), steps: Vec::new() };
        for act in clusters.into_iter().map(UserAction::PutCluster).chain(service.map(UserAction::PutService)) {
            push(&mut script, rng, act);
        }
        for number in 0..chance.rng_for("length", 0).u64(2..=12) {
            let rng = &mut chance.rng_for("act", number);
            let act = random_action(&DesiredState::after_script(&script), rng, demand);
            push(&mut script, rng, act);
        }
        charge_credits(&mut script, &chance);
        insert_limits(&mut script, &chance);
        insert_restore(&mut script, &chance);
        delete_orphans(&mut script);
        script
    }
}

fn push(script: &mut Script, rng: &mut Rng, act: UserAction) {
    let after = match rng.u32(0..5) {
        0 => Delay::UntilQuiescent,
        1 | 2 => Delay::Millis(rng.u32(0..=800)),
        _ => Delay::Millis(rng.u32(0..=MAX_DELAY_MS)),
    };
    script.steps.push(ScriptStep { after, act });
}

/// Deletes at the end what deletions of clusters have left without an owner.
fn delete_orphans(script: &mut Script) {
    let orphaned = |step: &ScriptStep| match &step.act {
        UserAction::DeleteCluster { cluster, orphan: true, .. } => Some(cluster.clone()),
        _ => None,
    };
    let clusters: Vec<String> = script.steps.iter().filter_map(orphaned).collect();
    let deletions = clusters.into_iter().map(|cluster| UserAction::DeleteOrphans { cluster });
    script.steps.extend(deletions.map(|act| ScriptStep { after: Delay::UntilQuiescent, act }));
}

/// Returns a random action: most are on a cluster that was not deleted.
fn random_action(desired: &DesiredState, rng: &mut Rng, demand: ResourceAmounts) -> UserAction {
    match rng.u32(0..20) {
        0 | 1 => {
            // The API server refuses another queue for a running cluster, with all other changes.
            let is_free = |name: &&&str| !desired.clusters.contains_key(**name);
            if let Some(name) = CLUSTERS.iter().find(is_free) {
                return UserAction::PutCluster(random_cluster(rng, name));
            }
        }
        2 | 3 => {
            let nominal = [demand.times(2), demand, less(rng, demand), ResourceAmounts::default()][rng.usize(0..4)];
            return UserAction::SetQuota { queue: any_queue(rng), quotas: vec![Quota::with_nominal(nominal)] };
        }
        4 => {
            let policy = [StopPolicy::None, StopPolicy::Hold, StopPolicy::HoldAndDrain][rng.usize(0..3)];
            let queue = any_queue(rng);
            return if rng.bool() {
                UserAction::StopLocalQueue { queue, policy }
            } else {
                UserAction::StopQueue { queue, policy }
            };
        }
        5..8 => {
            if let Some(service) = desired.services.get(SERVICE) {
                return random_service_action(rng, service);
            }
        }
        _ => {}
    }
    match rng.choice(desired.clusters.values()) {
        Some(cluster) => random_cluster_action(rng, cluster),
        None => UserAction::PutCluster(random_cluster(rng, CLUSTERS[0])),
    }
}

fn random_cluster_action(rng: &mut Rng, cluster: &Cluster) -> UserAction {
    let name = cluster.name.clone();
    match rng.u32(0..20) {
        0..5 if !cluster.pods.groups.is_empty() => {
            let group = rng.usize(0..cluster.pods.groups.len());
            UserAction::ScaleCluster { cluster: name, group, replicas: rng.u32(0..=MAX_WORKERS) }
        }
        0..8 => UserAction::Ray(RayAction::Suspend { cluster: name, suspend: rng.bool() }),
        8..12 => {
            let queue = if cluster.queue.is_none() || rng.u32(0..3) == 0 { Some(any_queue(rng)) } else { None };
            UserAction::Ray(RayAction::SetQueue { kind: RayKind::RayCluster, name, queue, suspend: rng.u32(0..3) > 0 })
        }
        12 | 13 => UserAction::Ray(RayAction::SetOwner { cluster: name, owned: !cluster.owned }),
        14 | 15 => {
            let (orphan, foreground) = [(false, false), (false, true), (true, false)][rng.usize(0..3)];
            UserAction::DeleteCluster { cluster: name, orphan, foreground }
        }
        16 | 17 => UserAction::Ray(RayAction::DeletePods { cluster: name, count: rng.usize(1..=3) }),
        _ => UserAction::DeleteWorkloads { job: name },
    }
}

fn random_service_action(rng: &mut Rng, service: &Service) -> UserAction {
    let name = service.name.clone();
    match rng.u32(0..10) {
        0 | 1 => UserAction::SetVersion { service: name, version: service.pods.version + 1 },
        2 | 3 => UserAction::Suspend { service: name, suspend: !service.suspend },
        4..7 => {
            let queue = if service.queue.is_none() || rng.bool() { Some(any_queue(rng)) } else { None };
            UserAction::Ray(RayAction::SetQueue { kind: RayKind::RayService, name, queue, suspend: rng.bool() })
        }
        7 => UserAction::DeleteService { service: name, foreground: rng.bool() },
        _ => UserAction::DeleteWorkloads { job: name },
    }
}

fn random_cluster(rng: &mut Rng, name: &str) -> Cluster {
    Cluster {
        name: name.to_owned(),
        queue: (rng.u32(0..5) > 0).then(|| any_queue(rng)),
        priority: (rng.u32(0..3) == 0).then(|| "high".to_owned()),
        recreate: rng.u32(0..4) == 0,
        owned: rng.u32(0..4) == 0,
        pods: random_pods(rng),
    }
}

fn queued_service(rng: &mut Rng) -> Service {
    Service { queue: Some(JOB_QUEUES[0].to_owned()), admission_timeout: None, ..random_service(rng, SERVICE) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::script::generate::assert_round_trips;

    #[test]
    fn a_script_round_trips_through_yaml() {
        (0..200).for_each(|seed| assert_round_trips(&Script::clusters(&SeededRandom::new(seed))));
    }

    #[test]
    fn every_action_on_ray_objects_occurs_in_some_script() {
        let mut done = BTreeSet::new();

        for seed in 0..200 {
            for step in Script::clusters(&SeededRandom::new(seed)).steps {
                let act = match &step.act {
                    UserAction::Ray(act) => serde_json::to_value(act),
                    act => serde_json::to_value(act),
                };
                let act = act.expect("an act is plain data");
                let without_fields = act.as_str().map(str::to_owned);
                done.extend(without_fields.or_else(|| act.as_object().and_then(|act| act.keys().next().cloned())));
            }
        }

        let all = [
            "backUp",
            "deleteCluster",
            "deleteOrphans",
            "deletePods",
            "deleteService",
            "deleteWorkloads",
            "limitPods",
            "putCluster",
            "putService",
            "restore",
            "scaleCluster",
            "setOwner",
            "setQueue",
            "setQuota",
            "setVersion",
            "stopLocalQueue",
            "stopQueue",
            "suspend",
        ];
        assert_eq!(done, all.map(str::to_owned).into());
    }
}
