//! The groups of pods that a cluster is made of: what the queue charges, and what the operator creates.

use std::fmt;

use k8s_openapi::api::core::v1::PodTemplateSpec;

use super::problem::Problem;
use super::template;
use sluice_api::ray::{PodTemplate, RayCluster, WorkerGroupSpec, names};

/// What a pod is to its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Runs the control store, the dashboard and the driver.
    Head,
    /// Runs tasks and actors.
    Worker,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Head => "head",
            Self::Worker => "worker",
        })
    }
}

/// One group's pods as they will be made: what the queue charges and the operator creates.
#[derive(Debug, Clone, PartialEq)]
pub struct PodGroup {
    /// `headgroup` for the head, else the name of the worker group.
    pub name: String,
    /// How many pods are wanted; zero while the group is suspended. The cluster's own `suspend` changes nothing here.
    pub count: u32,
    /// How many of them it can do with: as many as Ray's autoscaler may leave it, where that is on, and else all.
    pub fewest: u32,
    /// How many pods make a replica; `count` is a multiple of it.
    pub hosts: u32,
    /// What each pod looks like, complete: with init container, autoscaler and environment.
    pub template: PodTemplateSpec,
}

impl PodGroup {
    /// What the pods of the group are to the cluster.
    pub fn role(&self) -> Role {
        if self.name == names::HEAD_GROUP { Role::Head } else { Role::Worker }
    }
}

/// The groups of a cluster, the head first and the workers in the order of the spec.
///
/// # Errors
/// When a template is not that of a pod, or holds a quantity that is none; the error names the field and the value.
pub fn pod_groups(cluster: &RayCluster) -> Result<Vec<PodGroup>, Problem> {
    let template = template::head(cluster)?;
    let head = PodGroup { name: names::HEAD_GROUP.into(), count: 1, fewest: 1, hosts: 1, template };
    let workers = cluster.spec.worker_group_specs.iter().enumerate().map(|(index, group)| {
        Ok(PodGroup {
            name: group.group_name.clone(),
            count: wanted(group),
            fewest: fewest(cluster, group),
            hosts: hosts(group),
            template: template::worker(cluster, index, group)?,
        })
    });
    std::iter::once(Ok(head)).chain(workers).collect()
}

/// The template of a group as its author wrote it.
pub(super) fn authored<'a>(cluster: &'a RayCluster, group: &str) -> Option<&'a PodTemplate> {
    if group == names::HEAD_GROUP {
        return Some(&cluster.spec.head_group_spec.template);
    }
    worker_group(cluster, group).map(|spec| &spec.template)
}

/// The worker group with this name.
pub(super) fn worker_group<'a>(cluster: &'a RayCluster, name: &str) -> Option<&'a WorkerGroupSpec> {
    cluster.spec.worker_group_specs.iter().find(|group| group.group_name == name)
}

/// Pods that a worker group wants: its replicas times the hosts of each.
pub(super) fn wanted(group: &WorkerGroupSpec) -> u32 {
    if group.suspend == Some(true) { 0 } else { pods(replicas(group), group) }
}

/// Replicas that a worker group is to have, held between minimum and maximum.
pub fn replicas(group: &WorkerGroupSpec) -> i32 {
    let most = group.max_replicas.unwrap_or(i32::MAX);
    let least = group.min_replicas.unwrap_or(0);
    group.replicas.unwrap_or(least).min(most).max(least)
}

/// Pods that a worker group can do with. That is up to its owner, who says so by letting the autoscaler take the others.
fn fewest(cluster: &RayCluster, group: &WorkerGroupSpec) -> u32 {
    let most = wanted(group);
    if cluster.spec.enable_in_tree_autoscaling != Some(true) {
        return most;
    }
    pods(group.min_replicas.unwrap_or(0), group).min(most)
}

/// Pods in a number of replicas of a group.
pub(super) fn pods(replicas: i32, group: &WorkerGroupSpec) -> u32 {
    u32::try_from(replicas).unwrap_or(0).saturating_mul(hosts(group))
}

fn hosts(group: &WorkerGroupSpec) -> u32 {
    group.num_of_hosts.and_then(|hosts| u32::try_from(hosts).ok()).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::fixtures::{cluster, worker};

    #[rstest]
    #[case::as_asked(Some(3), Some(0), Some(10), 1, 3)]
    #[case::below_the_minimum(Some(1), Some(2), Some(10), 1, 2)]
    #[case::above_the_maximum(Some(11), Some(2), Some(10), 1, 10)]
    #[case::unset_is_the_minimum(None, Some(2), None, 1, 2)]
    #[case::nothing_set(None, None, None, 1, 0)]
    #[case::several_hosts(Some(3), Some(0), Some(10), 4, 12)]
    #[case::no_hosts_is_one(Some(3), Some(0), Some(10), 0, 3)]
    #[case::negative(Some(-3), None, None, 1, 0)]
    fn a_worker_group_wants_its_replicas_within_bounds_times_its_hosts(
        #[case] replicas: Option<i32>,
        #[case] min_replicas: Option<i32>,
        #[case] max_replicas: Option<i32>,
        #[case] hosts: i32,
        #[case] expected: u32,
    ) {
        let group = WorkerGroupSpec {
            replicas,
            min_replicas,
            max_replicas,
            num_of_hosts: Some(hosts),
            ..WorkerGroupSpec::default()
        };
        assert_eq!(wanted(&group), expected);
    }

    #[rstest]
    #[case::autoscaled(Some(true), Some(2), 1, 2)]
    #[case::autoscaled_down_to_nothing(Some(true), None, 1, 0)]
    #[case::several_hosts(Some(true), Some(2), 2, 4)]
    #[case::minimum_above_what_is_asked_for(Some(true), Some(9), 1, 9)]
    #[case::of_a_fixed_size(None, Some(2), 1, 5)]
    fn a_group_can_do_with_what_the_autoscaler_may_leave_it(
        #[case] autoscaling: Option<bool>,
        #[case] min_replicas: Option<i32>,
        #[case] hosts: i32,
        #[case] expected: u32,
    ) {
        let mut cluster = cluster();
        cluster.spec.enable_in_tree_autoscaling = autoscaling;
        let group = WorkerGroupSpec { min_replicas, num_of_hosts: Some(hosts), ..worker("small", 5) };
        cluster.spec.worker_group_specs = vec![group];
        let groups = pod_groups(&cluster).expect("the spec is valid");
        assert_eq!(groups[1].fewest, expected);
    }

    #[test]
    fn a_suspended_group_wants_no_pods() {
        let mut cluster = cluster();
        cluster.spec.worker_group_specs = vec![WorkerGroupSpec { suspend: Some(true), ..worker("small", 3) }];
        let groups = pod_groups(&cluster).expect("the spec is valid");
        let counts: Vec<_> = groups.iter().map(|group| (group.name.as_str(), group.count)).collect();
        assert_eq!(counts, [("headgroup", 1), ("small", 0)]);
    }
}
