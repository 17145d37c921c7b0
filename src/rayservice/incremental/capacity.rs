//! Converts a share of capacity into Serve replicas and worker pods, and running replicas into a
//! share of the traffic.

use super::state_machine::{FULL, Percent};
use sluice_plan::{Deployment, ServeStatus};

/// Returns how many replicas Serve runs at this capacity, in percent, of a deployment with `full`
/// replicas at full capacity
/// (ray-project/ray `python/ray/serve/_private/utils.py`, `get_capacity_adjusted_num_replicas`, as
/// of Ray 2.53).
pub(super) fn replicas_at_capacity(full: u32, capacity: Percent) -> u32 {
    if full == 0 || capacity == 0 {
        return 0;
    }
    let rounded = (u64::from(full) * u64::from(capacity) + 50) / 100;
    u32::try_from(rounded).unwrap_or(u32::MAX).max(1)
}

/// Returns how many replicas of a worker group of `full` replicas Serve needs at this capacity, in
/// percent. `deployments` are the replicas of each deployment at full capacity, assumed to be
/// spread evenly over the group. A Serve replica needs its part of the group whole, so counts are
/// rounded up.
pub(super) fn workers_at_capacity(full: u32, deployments: &[u32], capacity: Percent) -> u32 {
    if capacity >= FULL {
        return full;
    }
    let share = |deployment: &u32| {
        let needed = u64::from(full) * u64::from(replicas_at_capacity(*deployment, capacity));
        u32::try_from(needed.div_ceil(u64::from(*deployment))).unwrap_or(u32::MAX)
    };
    let needed = deployments.iter().filter(|deployment| **deployment > 0).map(share).max();
    let proportional = || u64::from(full) * u64::from(capacity);
    needed.unwrap_or_else(|| u32::try_from(proportional().div_ceil(100)).unwrap_or(u32::MAX))
}

/// Returns the largest share of the traffic, up to `capacity`, that the running replicas can serve,
/// in percent: all of it if each deployment has the replicas that Serve runs at that capacity,
/// otherwise the share of the weakest deployment. It is 0 while an application is not running.
pub(super) fn servable_percent(status: &ServeStatus, capacity: Percent) -> Percent {
    if !status.is_running() {
        return 0;
    }
    let deployments = status.applications.values().flat_map(|application| application.deployments.values());
    deployments.map(|deployment| deployment_servable_percent(deployment, capacity)).min().unwrap_or(capacity)
}

/// Returns true if Serve runs no more replicas than it should at this capacity.
pub(super) fn has_no_surplus_replicas(status: &ServeStatus, capacity: Percent) -> bool {
    let mut deployments = status.applications.values().flat_map(|application| application.deployments.values());
    deployments.all(|deployment| {
        let wanted = match deployment.is_autoscaled() {
            true => deployment.target_num_replicas,
            false => Some(replicas_at_capacity(deployment.replicas_at_full_capacity(), capacity)),
        };
        let count = deployment.replicas.as_ref().map(Vec::len).and_then(|count| u32::try_from(count).ok());
        count.zip(wanted).is_none_or(|(count, wanted)| count <= wanted)
    })
}

fn deployment_servable_percent(deployment: &Deployment, capacity: Percent) -> Percent {
    let Some(running) = deployment.running_replicas() else {
        // Older Ray versions do not report replicas: all that is known is that the application is
        // running.
        return capacity;
    };
    let full = deployment.replicas_at_full_capacity();
    let is_settled = deployment.target_num_replicas.is_none_or(|target| running >= target);
    if running >= replicas_at_capacity(full, capacity) && (is_settled || !deployment.is_autoscaled()) {
        return capacity;
    }
    // For an autoscaled deployment Serve reports the target at this capacity; for any other, the
    // full number is known.
    let (total, share) = match deployment.target_num_replicas.filter(|_| deployment.is_autoscaled()) {
        Some(target) => (target, capacity),
        None => (full, FULL),
    };
    let percent = u64::from(running) * u64::from(share) / u64::from(total.max(1));
    Percent::try_from(percent).unwrap_or(FULL).min(capacity)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::half(4, 50, 2)]
    #[case::half_is_rounded_up(1, 50, 1)]
    #[case::two_and_a_half(5, 50, 3)]
    #[case::less_than_half_is_rounded_down(3, 40, 1)]
    #[case::at_least_one(10, 1, 1)]
    #[case::no_replicas(0, 50, 0)]
    #[case::nothing(10, 0, 0)]
    #[case::all(7, 100, 7)]
    fn replicas_are_rounded_like_serve_does(#[case] full: u32, #[case] capacity: Percent, #[case] expected: u32) {
        assert_eq!(replicas_at_capacity(full, capacity), expected);
    }

    #[rstest]
    #[case::one_worker_per_replica(4, &[4], 25, 1)]
    #[case::two_replicas_per_worker(2, &[4], 65, 2)]
    #[case::four_workers_per_replica(4, &[1], 25, 4)]
    #[case::largest_deployment_decides(4, &[4, 2], 25, 2)]
    #[case::deployments_unknown(4, &[], 30, 2)]
    #[case::deployment_without_replicas(4, &[0], 30, 2)]
    #[case::nothing(4, &[4], 0, 0)]
    #[case::all(4, &[3], 100, 4)]
    fn workers_are_counted_for_whole_replicas(
        #[case] full: u32,
        #[case] deployments: &[u32],
        #[case] capacity: Percent,
        #[case] expected: u32,
    ) {
        assert_eq!(workers_at_capacity(full, deployments, capacity), expected);
    }

    proptest! {
        /// With one Serve replica per worker, both clusters together never need more than the group
        /// plus the surge.
        #[test]
        fn surge_of_workers_is_enough_for_both_clusters(full in 1u32..60, surge in 1u8..=100) {
            let spare = (full * u32::from(surge)).div_ceil(100);
            let (mut gaining, mut losing) = (0, FULL);
            while losing > 0 {
                gaining = (gaining + surge.min(FULL - gaining)).min(FULL);
                prop_assert!(workers_at_capacity(full, &[full], gaining) + workers_at_capacity(full, &[full], losing) <= full + spare);
                losing = losing.saturating_sub(surge);
            }
        }
    }

    fn status(deployments: Value) -> ServeStatus {
        let application = json!({"status": "RUNNING", "deployments": deployments});
        serde_json::from_value(json!({"applications": {"chat": application}})).expect("a status")
    }

    fn deployment(full: u32, running: usize, starting: usize) -> Value {
        let replicas = [vec!["RUNNING"; running], vec!["STARTING"; starting]].concat();
        let replicas: Vec<Value> = replicas.into_iter().map(|state| json!({"state": state})).collect();
        json!({"status": "HEALTHY", "deployment_config": {"num_replicas": full}, "replicas": replicas})
    }

    #[rstest]
    #[case::all_replicas(json!({"a": deployment(4, 4, 0)}), 100, 100)]
    #[case::limited_by_capacity(json!({"a": deployment(4, 4, 0)}), 50, 50)]
    #[case::starting_replicas_do_not_count(json!({"a": deployment(4, 1, 1)}), 50, 25)]
    #[case::weakest_deployment_decides(json!({"a": deployment(4, 2, 0), "b": deployment(2, 2, 0)}), 100, 50)]
    #[case::all_replicas_at_this_capacity(json!({"a": deployment(2, 1, 0)}), 60, 60)]
    #[case::none_runs(json!({"a": deployment(4, 0, 2)}), 50, 0)]
    #[case::deployment_without_replicas_is_ignored(json!({"a": deployment(2, 1, 0), "b": deployment(0, 0, 0)}), 50, 50)]
    #[case::replicas_not_reported(json!({"a": {"status": "HEALTHY"}}), 50, 50)]
    fn running_replicas_serve_their_share(
        #[case] deployments: Value,
        #[case] capacity: Percent,
        #[case] expected: Percent,
    ) {
        assert_eq!(servable_percent(&status(deployments), capacity), expected);
    }

    #[rstest]
    #[case::at_its_minimum(1, 1, 50)]
    #[case::above_its_minimum(3, 3, 50)]
    #[case::scaling_up(2, 3, 33)]
    #[case::none_runs(0, 3, 0)]
    fn autoscaled_deployment_serves_its_share_relative_to_its_target(
        #[case] running: usize,
        #[case] target: u32,
        #[case] expected: Percent,
    ) {
        let mut autoscaled = deployment(1, running, 0);
        let bounds = json!({"min_replicas": 2, "max_replicas": 9});
        autoscaled["deployment_config"] = json!({"num_replicas": 1, "autoscaling_config": bounds});
        autoscaled["target_num_replicas"] = json!(target);
        assert_eq!(servable_percent(&status(json!({"a": autoscaled})), 50), expected);
    }

    #[rstest]
    #[case::at_target(2, 0, true)]
    #[case::one_surplus(2, 1, false)]
    #[case::below_target(1, 0, true)]
    fn serve_has_settled_without_surplus_replicas(
        #[case] running: usize,
        #[case] starting: usize,
        #[case] expected: bool,
    ) {
        assert_eq!(has_no_surplus_replicas(&status(json!({"a": deployment(4, running, starting)})), 50), expected);
    }

    #[test]
    fn no_traffic_is_servable_while_an_application_is_not_running() {
        let mut status = status(json!({"a": deployment(1, 1, 0)}));
        status.applications.get_mut("chat").expect("it is there").status = "DEPLOYING".into();
        assert_eq!(servable_percent(&status, 100), 0);
    }
}
