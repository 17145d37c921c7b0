//! Which workers go when a cluster is to have fewer of them: those that hold no replica of Serve, as Serve itself says.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;

use super::machine::{Percent, WHOLE};
use super::workers;
use sluice_api::ray::{RayCluster, ScaleStrategy, WorkerGroupSpec, names};
use sluice_plan::{Replica, ServeStatus};
use sluice_raycluster::groups::replicas;
use crate::family::{is_going_pod, is_ready};

/// What is known of where Serve's replicas are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Places {
    /// Serve hasn't answered since it has its present capacity: any worker may hold one.
    Unknown,
    /// Serve doesn't tell (an older Ray), or there is nobody to ask and nothing to spare.
    Untold,
    /// The addresses of the pods that hold one, in whatever state that is.
    At(BTreeSet<String>),
}

impl Places {
    /// What an answer tells. A replica that has no place yet takes none from anybody.
    pub(super) fn of(status: &ServeStatus) -> Self {
        let mut deployments =
            status.applications.values().flat_map(|application| application.deployments.values()).peekable();
        if deployments.peek().is_none() {
            return Self::Untold;
        }
        let told: Option<Vec<&[Replica]>> = deployments.map(|deployment| deployment.replicas.as_deref()).collect();
        let Some(told) = told.map(|told| told.concat()) else { return Self::Untold };
        let places: BTreeSet<String> = told.iter().filter_map(|replica| replica.node_ip.clone()).collect();
        if places.is_empty() && !told.is_empty() { Self::Untold } else { Self::At(places) }
    }
}

/// A replica of a worker group: the pods that live and die together.
type Unit<'a> = Vec<&'a Pod>;

/// Gives each worker group of a cluster the replicas that it has at this capacity; of those that are too many, as many go as hold nothing.
pub(super) fn scale(cluster: &mut RayCluster, wanted: (&[u32], Percent), pods: &[&Pod], places: &Places) {
    let (deployments, percent) = wanted;
    let full = workers::at_capacity(cluster, deployments, WHOLE);
    let mut counts = workers::at_capacity(cluster, deployments, percent);
    let is_scaled = cluster.annotations().contains_key(workers::FULL_REPLICAS_ANNOTATION);
    for group in &mut cluster.spec.worker_group_specs {
        let there = replicas(group);
        let Some(count) = counts.get_mut(&group.group_name) else { continue };
        let of_group = of_group(group, pods);
        let shrunk = match places {
            _ if *count >= there => None,
            Places::Unknown => {
                *count = there;
                None
            }
            Places::Untold => None,
            Places::At(occupied) => shrink(group, *count, &of_group, occupied),
        };
        if let Some((left, names)) = shrunk {
            *count = left;
            name(group, names);
        } else if *count > there {
            // What was to go may stay.
            name(group, Vec::new());
        } else if is_scaled {
            let left = named(group).iter().filter(|name| is_there(name, &of_group)).cloned().collect();
            name(group, left);
        }
    }
    workers::set(cluster, &full, &counts);
}

/// How many replicas of a group are left when so many are wanted, and the names of the pods that go; `None` if it can't be told which of
/// its pods belong together.
fn shrink(
    group: &WorkerGroupSpec,
    wanted: i32,
    pods: &[&Pod],
    occupied: &BTreeSet<String>,
) -> Option<(i32, Vec<String>)> {
    let wanted = usize::try_from(wanted).unwrap_or(0);
    let is_leaving = |pod: &&Pod| is_going_pod(pod) || named(group).contains(&pod.name_any());
    let mut staying = units(group, pods)?;
    staying.retain(|unit| !unit.iter().any(is_leaving));
    let surplus = staying.len().saturating_sub(wanted);
    let mut free: Vec<&Unit<'_>> = staying.iter().filter(|unit| !holds(unit, occupied)).collect();
    free.sort_by_key(|unit| (unit.iter().all(|pod| is_ready(pod)), unit.iter().map(|pod| pod.name_any()).max()));
    free.truncate(surplus);
    let left = staying.len() - free.len();
    let going = free.into_iter().flatten().map(|pod| pod.name_any());
    let names = named(group).iter().filter(|name| is_there(name, pods)).cloned().chain(going).collect();
    let left = i32::try_from(left.max(wanted)).unwrap_or(i32::MAX).min(replicas(group));
    Some((left, names))
}

/// Whether each worker that is there holds a replica of Serve, but for those that its group has at least; `None` if it can't be told.
pub(super) fn all_hold(cluster: &RayCluster, pods: &[&Pod], occupied: &BTreeSet<String>) -> Option<bool> {
    let mut all = true;
    for group in &cluster.spec.worker_group_specs {
        let units = units(group, &of_group(group, pods))?;
        let holding = units.iter().filter(|unit| holds(unit, occupied)).count();
        let least = usize::try_from(group.min_replicas.unwrap_or(0)).unwrap_or(0);
        all &= units.len() <= holding.max(least);
    }
    Some(all)
}

/// How many pods each worker group has.
pub(super) fn count(pods: &[&Pod]) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for pod in pods {
        *counts.entry(group_of(pod).to_owned()).or_default() += 1;
    }
    counts
}

/// The replicas that the pods of a group make up. Where several hosts are one, their labels say which.
fn units<'a>(group: &WorkerGroupSpec, pods: &[&'a Pod]) -> Option<Vec<Unit<'a>>> {
    if group.num_of_hosts.unwrap_or(1) <= 1 {
        return Some(pods.iter().map(|pod| vec![*pod]).collect());
    }
    let mut units: BTreeMap<&str, Unit<'a>> = BTreeMap::new();
    for pod in pods {
        units.entry(pod.labels().get(names::REPLICA_INDEX_LABEL)?).or_default().push(pod);
    }
    Some(units.into_values().collect())
}

fn holds(unit: &Unit<'_>, occupied: &BTreeSet<String>) -> bool {
    let address = |pod: &&Pod| pod.status.as_ref().and_then(|status| status.pod_ip.clone());
    unit.iter().filter_map(address).any(|address| occupied.contains(&address))
}

fn of_group<'a>(group: &WorkerGroupSpec, pods: &[&'a Pod]) -> Vec<&'a Pod> {
    pods.iter().copied().filter(|pod| group_of(pod) == group.group_name).collect()
}

fn group_of(pod: &Pod) -> &str {
    pod.labels().get(names::GROUP_LABEL).map_or("", String::as_str)
}

fn is_there(name: &str, pods: &[&Pod]) -> bool {
    pods.iter().any(|pod| pod.metadata.name.as_deref() == Some(name))
}

/// The pods that a group is to lose first.
fn named(group: &WorkerGroupSpec) -> &[String] {
    group.scale_strategy.as_ref().map_or(&[], |strategy| &strategy.workers_to_delete)
}

fn name(group: &mut WorkerGroupSpec, names: Vec<String>) {
    if named(group) != names {
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

    /// Four workers of one host each.
    fn four() -> Vec<Pod> {
        ["a", "b", "c", "d"].map(|name| pod(name, name, None)).into()
    }

    fn small(replicas: i32) -> RayCluster {
        let mut cluster = cluster();
        cluster.spec.worker_group_specs = vec![worker("small", replicas)];
        cluster
    }

    fn at(places: &[&str]) -> Places {
        Places::At(places.iter().map(|place| (*place).to_owned()).collect())
    }

    /// Replicas of the group, and who of it is named, after it was scaled to this capacity.
    fn scaled(cluster: &mut RayCluster, percent: Percent, pods: &[Pod], places: &Places) -> (Option<i32>, Vec<String>) {
        scale(cluster, (&[4], percent), &pods.iter().collect::<Vec<_>>(), places);
        let group = &cluster.spec.worker_group_specs[0];
        (group.replicas, named(group).to_vec())
    }

    #[rstest]
    #[case::those_that_hold_nothing(at(&["a", "d"]), 2, &["b", "c"])]
    #[case::no_more_than_are_free(at(&["a", "b", "d"]), 3, &["c"])]
    #[case::none_is_free(at(&["a", "b", "c", "d"]), 4, &[])]
    #[case::no_more_than_are_too_many(at(&[]), 2, &["a", "b"])]
    #[case::nobody_answers(Places::Unknown, 4, &[])]
    #[case::serve_does_not_tell(Places::Untold, 2, &[])]
    fn workers_go_that_hold_no_replica(#[case] places: Places, #[case] left: i32, #[case] going: &[&str]) {
        let mut cluster = small(4);
        let (replicas, names) = scaled(&mut cluster, 50, &four(), &places);
        assert_eq!((replicas, names), (Some(left), going.iter().map(|name| (*name).to_owned()).collect()));
        assert_eq!(cluster.annotations().contains_key(workers::FULL_REPLICAS_ANNOTATION), left < 4);
    }

    #[test]
    fn more_go_as_they_get_free_and_names_vanish_with_their_pods() {
        let (mut cluster, mut pods) = (small(4), four());
        scaled(&mut cluster, 50, &pods, &at(&["a", "b", "d"]));
        assert_eq!(
            scaled(&mut cluster, 50, &pods, &at(&["a", "b", "d"])),
            (Some(3), vec!["c".to_owned()]),
            "the same again says the same"
        );
        pods.remove(2);
        assert_eq!(scaled(&mut cluster, 50, &pods, &at(&["a", "b", "d"])), (Some(3), vec![]));
        assert_eq!(scaled(&mut cluster, 50, &pods, &at(&["a", "d"])), (Some(2), vec!["b".to_owned()]));
        pods.remove(1);
        assert_eq!(scaled(&mut cluster, 50, &pods, &at(&["a", "d"])), (Some(2), vec![]));
    }

    #[test]
    fn what_was_to_go_may_stay_when_the_capacity_comes_back() {
        let mut cluster = small(4);
        let whole = cluster.spec.clone();
        scaled(&mut cluster, 50, &four(), &at(&["a", "d"]));
        scaled(&mut cluster, 100, &four(), &Places::Unknown);
        assert_eq!(cluster.spec, whole);
        assert!(!cluster.annotations().contains_key(workers::FULL_REPLICAS_ANNOTATION));
    }

    #[test]
    fn a_worker_that_never_came_goes_before_those_that_hold_something() {
        let pods = &four()[..3];
        assert_eq!(scaled(&mut small(4), 50, pods, &at(&["a", "b", "c"])), (Some(3), vec![]));
    }

    #[test]
    fn a_name_that_somebody_else_wrote_stays() {
        let mut cluster = small(4);
        let strategy = ScaleStrategy { workers_to_delete: vec!["gone".to_owned()] };
        cluster.spec.worker_group_specs[0].scale_strategy = Some(strategy);
        assert_eq!(scaled(&mut cluster, 100, &four(), &Places::Unknown), (Some(4), vec!["gone".to_owned()]));
    }

    #[rstest]
    #[case::no_host_of_one_is_occupied(true, at(&["1-1"]), 1, &["0-0", "0-1"])]
    #[case::a_host_of_each_is_occupied(true, at(&["0-1", "1-0"]), 2, &[])]
    #[case::nobody_knows_which_hosts_are_one(false, at(&["1-1"]), 1, &[])]
    fn hosts_that_are_one_replica_go_together(
        #[case] labelled: bool,
        #[case] places: Places,
        #[case] left: i32,
        #[case] going: &[&str],
    ) {
        let mut cluster = small(2);
        cluster.spec.worker_group_specs[0].num_of_hosts = Some(2);
        let hosts = [("0-0", 0), ("0-1", 0), ("1-0", 1), ("1-1", 1)];
        let pods = hosts.map(|(name, replica)| pod(name, name, labelled.then_some(replica)));
        let expected: Vec<String> = going.iter().map(|name| (*name).to_owned()).collect();
        assert_eq!(scaled(&mut cluster, 50, &pods, &places), (Some(left), expected));
    }

    #[rstest]
    #[case::all(&["a", "b", "c", "d"], 0, true)]
    #[case::one_is_idle(&["a", "b", "c"], 0, false)]
    #[case::as_many_as_it_has_at_least(&["a", "b", "c"], 4, true)]
    fn workers_that_hold_nothing_are_seen(#[case] occupied: &[&str], #[case] least: i32, #[case] expected: bool) {
        let mut cluster = small(4);
        cluster.spec.worker_group_specs[0].min_replicas = Some(least);
        let occupied = occupied.iter().map(|place| (*place).to_owned()).collect();
        assert_eq!(all_hold(&cluster, &four().iter().collect::<Vec<_>>(), &occupied), Some(expected));
    }

    fn replica(state: &str, place: Option<&str>) -> Value {
        json!({"state": state, "node_ip": place})
    }

    #[rstest]
    #[case::all_states_count(
        json!([replica("RUNNING", Some("a")), replica("STOPPING", Some("b")), replica("STARTING", Some("c"))]),
        at(&["a", "b", "c"]))]
    #[case::one_has_no_place_yet(json!([replica("RUNNING", Some("a")), replica("STARTING", None)]), at(&["a"]))]
    #[case::there_are_none(json!([]), at(&[]))]
    #[case::an_older_ray(json!([{"state": "RUNNING"}]), Places::Untold)]
    #[case::one_that_tells_of_no_replicas(Value::Null, Places::Untold)]
    fn places_are_those_that_serve_tells(#[case] replicas: Value, #[case] expected: Places) {
        let deployments = json!({"model": {"replicas": replicas}});
        let status = json!({"applications": {"one": {"status": "RUNNING", "deployments": deployments}}});
        assert_eq!(Places::of(&serde_json::from_value(status).expect("a status")), expected);
    }
}
