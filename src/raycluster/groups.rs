//! Pod groups of a cluster: the queue accounts for them, and the operator creates them.

use std::fmt;

use k8s_openapi::api::core::v1::PodTemplateSpec;

use super::field_error::FieldError;
use super::template;
use sluice_api::ray::{PodTemplate, RayCluster, WorkerGroupSpec, names};

/// Type of a Ray node, which is one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RayNodeType {
    /// Runs the GCS, the dashboard and the driver.
    Head,
    /// Runs tasks and actors.
    Worker,
}

impl fmt::Display for RayNodeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Head => "head",
            Self::Worker => "worker",
        })
    }
}

/// Pods of one group as they will be created: the queue accounts for exactly these.
#[derive(Debug, Clone, PartialEq)]
pub struct PodGroup {
    /// `headgroup` for the head, else the name of the worker group.
    pub name: String,
    /// Number of desired pods; zero while the group is suspended. `spec.suspend` of the cluster
    /// does not affect it.
    pub count: u32,
    /// Minimum number of pods: the autoscaler's minimum if autoscaling is enabled, else `count`.
    pub min_count: u32,
    /// Number of pods per replica; `count` is a multiple of it.
    pub hosts_per_replica: u32,
    /// Complete template of each pod, with init container, autoscaler sidecar and environment.
    pub template: PodTemplateSpec,
}

impl PodGroup {
    /// Returns the node type of the group's pods.
    pub fn node_type(&self) -> RayNodeType {
        if self.name == names::HEAD_GROUP { RayNodeType::Head } else { RayNodeType::Worker }
    }
}

/// Returns the groups of a cluster: the head, then the worker groups in the order of the spec.
///
/// # Errors
/// Fails when a pod template or a quantity can't be parsed; the error names the field and the
/// value.
pub fn pod_groups(cluster: &RayCluster) -> Result<Vec<PodGroup>, FieldError> {
    let template = template::head_template(cluster)?;
    let head = PodGroup { name: names::HEAD_GROUP.into(), count: 1, min_count: 1, hosts_per_replica: 1, template };
    let workers = cluster.spec.worker_group_specs.iter().enumerate().map(|(index, group)| {
        Ok(PodGroup {
            name: group.group_name.clone(),
            count: desired_pods(group),
            min_count: min_pods(cluster, group),
            hosts_per_replica: hosts_per_replica(group),
            template: template::worker_template(cluster, index, group)?,
        })
    });
    std::iter::once(Ok(head)).chain(workers).collect()
}

/// Returns the pod template of a group as the user wrote it; `None` if there is no such group.
pub(super) fn user_template<'a>(cluster: &'a RayCluster, group: &str) -> Option<&'a PodTemplate> {
    if group == names::HEAD_GROUP {
        return Some(&cluster.spec.head_group_spec.template);
    }
    worker_group(cluster, group).map(|spec| &spec.template)
}

/// Returns the worker group with this name.
pub(super) fn worker_group<'a>(cluster: &'a RayCluster, name: &str) -> Option<&'a WorkerGroupSpec> {
    cluster.spec.worker_group_specs.iter().find(|group| group.group_name == name)
}

/// Returns the desired pods of a worker group: replicas times hosts per replica, zero while it is
/// suspended.
pub(super) fn desired_pods(group: &WorkerGroupSpec) -> u32 {
    if group.suspend == Some(true) { 0 } else { pods_in_replicas(desired_replicas(group), group) }
}

/// Returns the desired replicas of a worker group, clamped to its minimum and maximum.
pub fn desired_replicas(group: &WorkerGroupSpec) -> i32 {
    let most = group.max_replicas.unwrap_or(i32::MAX);
    let least = group.min_replicas.unwrap_or(0);
    group.replicas.unwrap_or(least).min(most).max(least)
}

/// Returns the minimum pods of a worker group. Only a group with autoscaling accepts fewer than the
/// desired pods: its owner lets the autoscaler delete the others.
fn min_pods(cluster: &RayCluster, group: &WorkerGroupSpec) -> u32 {
    let most = desired_pods(group);
    if cluster.spec.enable_in_tree_autoscaling != Some(true) {
        return most;
    }
    pods_in_replicas(group.min_replicas.unwrap_or(0), group).min(most)
}

/// Returns the number of pods in `replicas` replicas of a group.
pub(super) fn pods_in_replicas(replicas: i32, group: &WorkerGroupSpec) -> u32 {
    u32::try_from(replicas).unwrap_or(0).saturating_mul(hosts_per_replica(group))
}

fn hosts_per_replica(group: &WorkerGroupSpec) -> u32 {
    group.num_of_hosts.and_then(|hosts| u32::try_from(hosts).ok()).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::fixtures::{cluster, worker};

    #[rstest]
    #[case::within_bounds(Some(3), Some(0), Some(10), 1, 3)]
    #[case::below_the_minimum(Some(1), Some(2), Some(10), 1, 2)]
    #[case::above_the_maximum(Some(11), Some(2), Some(10), 1, 10)]
    #[case::unset_is_the_minimum(None, Some(2), None, 1, 2)]
    #[case::nothing_set(None, None, None, 1, 0)]
    #[case::several_hosts(Some(3), Some(0), Some(10), 4, 12)]
    #[case::zero_hosts_is_one(Some(3), Some(0), Some(10), 0, 3)]
    #[case::negative(Some(-3), None, None, 1, 0)]
    fn desired_pods_are_clamped_replicas_times_hosts(
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
        assert_eq!(desired_pods(&group), expected);
    }

    #[rstest]
    #[case::autoscaled(Some(true), Some(2), 1, 2)]
    #[case::autoscaled_down_to_nothing(Some(true), None, 1, 0)]
    #[case::several_hosts(Some(true), Some(2), 2, 4)]
    #[case::minimum_above_replicas(Some(true), Some(9), 1, 9)]
    #[case::without_autoscaling(None, Some(2), 1, 5)]
    fn minimum_pods_are_the_autoscaler_minimum(
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
        assert_eq!(groups[1].min_count, expected);
    }

    #[test]
    fn suspended_group_has_no_desired_pods() {
        let mut cluster = cluster();
        cluster.spec.worker_group_specs = vec![WorkerGroupSpec { suspend: Some(true), ..worker("small", 3) }];
        let groups = pod_groups(&cluster).expect("the spec is valid");
        let counts: Vec<_> = groups.iter().map(|group| (group.name.as_str(), group.count)).collect();
        assert_eq!(counts, [("headgroup", 1), ("small", 0)]);
    }
}
