//! Selects the workers to remove when a cluster is scaled down: those that hold no Serve replica
//! according to Serve.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;

use super::state_machine::{FULL, Percent};
use super::workers;
use sluice_api::pod;
use sluice_api::ray::{RayCluster, ScaleStrategy, WorkerGroupSpec, names};
use sluice_plan::{Replica, ServeStatus};
use sluice_raycluster::groups::desired_replicas;

/// Observed locations of Serve replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReplicaLocations {
    /// Serve has not responded since its capacity changed: any worker may hold a replica.
    Unknown,
    /// Serve does not report locations (older Ray versions), or it does not respond and no request
    /// can be lost.
    NotReported,
    /// IP addresses of the pods that hold a replica in any state.
    On(BTreeSet<String>),
}

impl ReplicaLocations {
    /// Reads the locations from a Serve status. A replica without a location yet occupies no
    /// worker.
    pub(super) fn from_status(status: &ServeStatus) -> Self {
        let mut deployments =
            status.applications.values().flat_map(|application| application.deployments.values()).peekable();
        if deployments.peek().is_none() {
            return Self::NotReported;
        }
        let replicas: Option<Vec<&[Replica]>> = deployments.map(|deployment| deployment.replicas.as_deref()).collect();
        let Some(replicas) = replicas.map(|replicas| replicas.concat()) else { return Self::NotReported };
        let addresses: BTreeSet<String> = replicas.iter().filter_map(|replica| replica.node_ip.clone()).collect();
        if addresses.is_empty() && !replicas.is_empty() { Self::NotReported } else { Self::On(addresses) }
    }
}

/// Replica of a worker group: its pods, which are created and deleted together.
type WorkerReplica<'a> = Vec<&'a Pod>;

/// Sets the replicas of each worker group for this capacity. Surplus replicas are removed only as
/// far as they hold no Serve replica.
pub(super) fn scale_workers(
    cluster: &mut RayCluster,
    wanted: (&[u32], Percent),
    pods: &[&Pod],
    locations: &ReplicaLocations,
) {
    let (deployments, percent) = wanted;
    let full = workers::replicas_by_group(cluster, deployments, FULL);
    let mut counts = workers::replicas_by_group(cluster, deployments, percent);
    let is_scaled = cluster.annotations().contains_key(workers::FULL_REPLICAS_ANNOTATION);
    for group in &mut cluster.spec.worker_group_specs {
        let current = desired_replicas(group);
        let Some(count) = counts.get_mut(&group.group_name) else { continue };
        let group_pods = pods_of_group(group, pods);
        let shrunk = match locations {
            _ if *count >= current => None,
            ReplicaLocations::Unknown => {
                *count = current;
                None
            }
            ReplicaLocations::NotReported => None,
            ReplicaLocations::On(occupied) => scale_down(group, *count, &group_pods, occupied),
        };
        if let Some((remaining, names)) = shrunk {
            *count = remaining;
            set_workers_to_delete(group, names);
        } else if *count > current {
            // Pods selected for deletion earlier may stay.
            set_workers_to_delete(group, Vec::new());
        } else if is_scaled {
            let remaining =
                workers_to_delete(group).iter().filter(|name| is_present(name, &group_pods)).cloned().collect();
            set_workers_to_delete(group, remaining);
        }
    }
    workers::set_replicas(cluster, &full, &counts);
}

/// Returns how many replicas of a group remain if `wanted` are needed, and the names of the pods to
/// delete. At most the surplus is removed; unready replicas go first. None if it is unknown which
/// pods form a replica.
fn scale_down(
    group: &WorkerGroupSpec,
    wanted: i32,
    pods: &[&Pod],
    occupied: &BTreeSet<String>,
) -> Option<(i32, Vec<String>)> {
    let wanted = usize::try_from(wanted).unwrap_or(0);
    let is_leaving = |pod: &&Pod| pod::is_terminating(pod) || workers_to_delete(group).contains(&pod.name_any());
    let mut candidates = worker_replicas(group, pods)?;
    candidates.retain(|unit| !unit.iter().any(is_leaving));
    let surplus = candidates.len().saturating_sub(wanted);
    let mut free: Vec<&WorkerReplica<'_>> = candidates.iter().filter(|unit| !is_occupied(unit, occupied)).collect();
    free.sort_by_key(|unit| (unit.iter().all(|pod| pod::is_ready(pod)), unit.iter().map(|pod| pod.name_any()).max()));
    free.truncate(surplus);
    let remaining = candidates.len() - free.len();
    let deleted = free.into_iter().flatten().map(|pod| pod.name_any());
    let names = workers_to_delete(group).iter().filter(|name| is_present(name, pods)).cloned().chain(deleted).collect();
    let remaining = i32::try_from(remaining.max(wanted)).unwrap_or(i32::MAX).min(desired_replicas(group));
    Some((remaining, names))
}

/// Returns true if every worker holds a Serve replica, apart from those needed for the minimum of
/// its group; None if it is unknown which pods form a replica.
pub(super) fn are_all_occupied(cluster: &RayCluster, pods: &[&Pod], occupied: &BTreeSet<String>) -> Option<bool> {
    let mut result = true;
    for group in &cluster.spec.worker_group_specs {
        let units = worker_replicas(group, &pods_of_group(group, pods))?;
        let holding = units.iter().filter(|unit| is_occupied(unit, occupied)).count();
        let min = usize::try_from(group.min_replicas.unwrap_or(0)).unwrap_or(0);
        result &= units.len() <= holding.max(min);
    }
    Some(result)
}

/// Returns the number of pods of each worker group.
pub(super) fn count_by_group(pods: &[&Pod]) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for pod in pods {
        *counts.entry(group_of(pod).to_owned()).or_default() += 1;
    }
    counts
}

/// Groups the pods of a worker group into replicas. Pods of multi-host replicas are matched by
/// their replica label; None if one lacks it.
fn worker_replicas<'a>(group: &WorkerGroupSpec, pods: &[&'a Pod]) -> Option<Vec<WorkerReplica<'a>>> {
    if group.num_of_hosts.unwrap_or(1) <= 1 {
        return Some(pods.iter().map(|pod| vec![*pod]).collect());
    }
    let mut units: BTreeMap<&str, WorkerReplica<'a>> = BTreeMap::new();
    for pod in pods {
        units.entry(pod.labels().get(names::REPLICA_INDEX_LABEL)?).or_default().push(pod);
    }
    Some(units.into_values().collect())
}

fn is_occupied(unit: &WorkerReplica<'_>, occupied: &BTreeSet<String>) -> bool {
    let address = |pod: &&Pod| pod.status.as_ref().and_then(|status| status.pod_ip.clone());
    unit.iter().filter_map(address).any(|address| occupied.contains(&address))
}

fn pods_of_group<'a>(group: &WorkerGroupSpec, pods: &[&'a Pod]) -> Vec<&'a Pod> {
    pods.iter().copied().filter(|pod| group_of(pod) == group.group_name).collect()
}

fn group_of(pod: &Pod) -> &str {
    pod.labels().get(names::GROUP_LABEL).map_or("", String::as_str)
}

fn is_present(name: &str, pods: &[&Pod]) -> bool {
    pods.iter().any(|pod| pod.metadata.name.as_deref() == Some(name))
}

/// Returns the pods in the group's `workersToDelete`.
fn workers_to_delete(group: &WorkerGroupSpec) -> &[String] {
    group.scale_strategy.as_ref().map_or(&[], |strategy| &strategy.workers_to_delete)
}

fn set_workers_to_delete(group: &mut WorkerGroupSpec, names: Vec<String>) {
    if workers_to_delete(group) != names {
        group.scale_strategy = if names.is_empty() { None } else { Some(ScaleStrategy { workers_to_delete: names }) };
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::{cluster, worker};

    fn pod(name: &str, ip: &str, replica: Option<u32>) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name, "labels": {(names::GROUP_LABEL): "small"}},
            "status": {"podIP": ip, "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
        });
        if let Some(replica) = replica {
            pod["metadata"]["labels"][names::REPLICA_INDEX_LABEL] = json!(replica.to_string());
        }
        serde_json::from_value(pod).expect("a pod")
    }

    /// Returns four single-host workers.
    fn four_workers() -> Vec<Pod> {
        ["a", "b", "c", "d"].map(|name| pod(name, name, None)).into()
    }

    fn small_cluster(replicas: i32) -> RayCluster {
        let mut cluster = cluster();
        cluster.spec.worker_group_specs = vec![worker("small", replicas)];
        cluster
    }

    fn on(locations: &[&str]) -> ReplicaLocations {
        ReplicaLocations::On(locations.iter().map(|address| (*address).to_owned()).collect())
    }

    /// Scales the group to this capacity, and returns its replicas and `workersToDelete`.
    fn scaled(
        cluster: &mut RayCluster,
        percent: Percent,
        pods: &[Pod],
        locations: &ReplicaLocations,
    ) -> (Option<i32>, Vec<String>) {
        scale_workers(cluster, (&[4], percent), &pods.iter().collect::<Vec<_>>(), locations);
        let group = &cluster.spec.worker_group_specs[0];
        (group.replicas, workers_to_delete(group).to_vec())
    }

    #[rstest]
    #[case::workers_without_replica(on(&["a", "d"]), 2, &["b", "c"])]
    #[case::only_free_workers(on(&["a", "b", "d"]), 3, &["c"])]
    #[case::no_free_worker(on(&["a", "b", "c", "d"]), 4, &[])]
    #[case::only_surplus_workers(on(&[]), 2, &["a", "b"])]
    #[case::no_response(ReplicaLocations::Unknown, 4, &[])]
    #[case::locations_not_reported(ReplicaLocations::NotReported, 2, &[])]
    fn workers_without_replica_are_removed(
        #[case] locations: ReplicaLocations,
        #[case] remaining: i32,
        #[case] deleted: &[&str],
    ) {
        let mut cluster = small_cluster(4);
        let (replicas, names) = scaled(&mut cluster, 50, &four_workers(), &locations);
        assert_eq!((replicas, names), (Some(remaining), deleted.iter().map(|name| (*name).to_owned()).collect()));
        assert_eq!(cluster.annotations().contains_key(workers::FULL_REPLICAS_ANNOTATION), remaining < 4);
    }

    #[test]
    fn workers_are_removed_as_they_become_free_and_names_are_dropped_with_their_pods() {
        let (mut cluster, mut pods) = (small_cluster(4), four_workers());
        scaled(&mut cluster, 50, &pods, &on(&["a", "b", "d"]));
        assert_eq!(
            scaled(&mut cluster, 50, &pods, &on(&["a", "b", "d"])),
            (Some(3), vec!["c".to_owned()]),
            "scaling again changes nothing"
        );
        pods.remove(2);
        assert_eq!(scaled(&mut cluster, 50, &pods, &on(&["a", "b", "d"])), (Some(3), vec![]));
        assert_eq!(scaled(&mut cluster, 50, &pods, &on(&["a", "d"])), (Some(2), vec!["b".to_owned()]));
        pods.remove(1);
        assert_eq!(scaled(&mut cluster, 50, &pods, &on(&["a", "d"])), (Some(2), vec![]));
    }

    #[test]
    fn workers_to_delete_are_cleared_when_the_capacity_is_restored() {
        let mut cluster = small_cluster(4);
        let whole = cluster.spec.clone();
        scaled(&mut cluster, 50, &four_workers(), &on(&["a", "d"]));
        scaled(&mut cluster, 100, &four_workers(), &ReplicaLocations::Unknown);
        assert_eq!(cluster.spec, whole);
        assert!(!cluster.annotations().contains_key(workers::FULL_REPLICAS_ANNOTATION));
    }

    #[test]
    fn missing_worker_is_removed_before_workers_with_a_replica() {
        let pods = &four_workers()[..3];
        assert_eq!(scaled(&mut small_cluster(4), 50, pods, &on(&["a", "b", "c"])), (Some(3), vec![]));
    }

    #[test]
    fn workers_to_delete_set_by_others_are_kept() {
        let mut cluster = small_cluster(4);
        let strategy = ScaleStrategy { workers_to_delete: vec!["gone".to_owned()] };
        cluster.spec.worker_group_specs[0].scale_strategy = Some(strategy);
        assert_eq!(
            scaled(&mut cluster, 100, &four_workers(), &ReplicaLocations::Unknown),
            (Some(4), vec!["gone".to_owned()])
        );
    }

    #[rstest]
    #[case::one_replica_free(true, on(&["1-1"]), 1, &["0-0", "0-1"])]
    #[case::each_replica_occupied_on_one_host(true, on(&["0-1", "1-0"]), 2, &[])]
    #[case::hosts_without_replica_label(false, on(&["1-1"]), 1, &[])]
    fn hosts_of_a_replica_are_removed_together(
        #[case] is_labeled: bool,
        #[case] locations: ReplicaLocations,
        #[case] remaining: i32,
        #[case] deleted: &[&str],
    ) {
        let mut cluster = small_cluster(2);
        cluster.spec.worker_group_specs[0].num_of_hosts = Some(2);
        let hosts = [("0-0", 0), ("0-1", 0), ("1-0", 1), ("1-1", 1)];
        let pods = hosts.map(|(name, replica)| pod(name, name, is_labeled.then_some(replica)));
        let expected: Vec<String> = deleted.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(scaled(&mut cluster, 50, &pods, &locations), (Some(remaining), expected));
    }

    #[rstest]
    #[case::all(&["a", "b", "c", "d"], 0, true)]
    #[case::one_is_idle(&["a", "b", "c"], 0, false)]
    #[case::at_the_minimum(&["a", "b", "c"], 4, true)]
    fn idle_workers_above_the_minimum_are_detected(
        #[case] occupied: &[&str],
        #[case] min: i32,
        #[case] expected: bool,
    ) {
        let mut cluster = small_cluster(4);
        cluster.spec.worker_group_specs[0].min_replicas = Some(min);
        let occupied = occupied.iter().map(|address| (*address).to_owned()).collect();
        assert_eq!(are_all_occupied(&cluster, &four_workers().iter().collect::<Vec<_>>(), &occupied), Some(expected));
    }

    fn replica(state: &str, address: Option<&str>) -> Value {
        json!({"state": state, "node_ip": address})
    }

    #[rstest]
    #[case::all_states_count(
        json!([replica("RUNNING", Some("a")), replica("STOPPING", Some("b")), replica("STARTING", Some("c"))]),
        on(&["a", "b", "c"]))]
    #[case::replica_without_location(json!([replica("RUNNING", Some("a")), replica("STARTING", None)]), on(&["a"]))]
    #[case::no_replicas(json!([]), on(&[]))]
    #[case::older_ray(json!([{"state": "RUNNING"}]), ReplicaLocations::NotReported)]
    #[case::replicas_not_reported(Value::Null, ReplicaLocations::NotReported)]
    fn locations_are_read_from_the_serve_status(#[case] replicas: Value, #[case] expected: ReplicaLocations) {
        let deployments = json!({"model": {"replicas": replicas}});
        let status = json!({"applications": {"one": {"status": "RUNNING", "deployments": deployments}}});
        assert_eq!(ReplicaLocations::from_status(&serde_json::from_value(status).expect("a status")), expected);
    }
}
