//! What a share of capacity is in replicas and in pods.

use super::machine::{Percent, WHOLE};
use sluice_plan::{Deployment, ServeStatus};

/// How many replicas Serve runs of a deployment that has so many at full capacity
/// (ray-project/ray `python/ray/serve/_private/utils.py`, `get_capacity_adjusted_num_replicas`, as of Ray 2.53).
pub(super) fn replicas(full: u32, capacity: Percent) -> u32 {
    if full == 0 || capacity == 0 {
        return 0;
    }
    let rounded = (u64::from(full) * u64::from(capacity) + 50) / 100;
    u32::try_from(rounded).unwrap_or(u32::MAX).max(1)
}

/// How many replicas of a worker group of `full` replicas Serve needs for this capacity, when `deployments` have so many replicas
/// each at full capacity, spread evenly over the group. A replica of Serve needs its part of the group whole: two halves of
/// it are of no use.
pub(super) fn workers(full: u32, deployments: &[u32], capacity: Percent) -> u32 {
    if capacity >= WHOLE {
        return full;
    }
    let share = |deployment: &u32| {
        let needed = u64::from(full) * u64::from(replicas(*deployment, capacity));
        u32::try_from(needed.div_ceil(u64::from(*deployment))).unwrap_or(u32::MAX)
    };
    let needed = deployments.iter().filter(|deployment| **deployment > 0).map(share).max();
    let even = || u64::from(full) * u64::from(capacity);
    needed.unwrap_or_else(|| u32::try_from(even().div_ceil(100)).unwrap_or(u32::MAX))
}

/// The largest share of the traffic, up to `capacity`, that what runs can carry: all of it when each deployment has the replicas that
/// Serve runs at that capacity, and else what the weakest one has of its full number. Nothing is carried while an application
/// doesn't run.
pub(super) fn carried(status: &ServeStatus, capacity: Percent) -> Percent {
    if !status.is_running() {
        return 0;
    }
    let deployments = status.applications.values().flat_map(|application| application.deployments.values());
    deployments.map(|deployment| carried_by(deployment, capacity)).min().unwrap_or(capacity)
}

/// Whether Serve runs no more replicas than it is to run at this capacity.
pub(super) fn is_settled(status: &ServeStatus, capacity: Percent) -> bool {
    let mut deployments = status.applications.values().flat_map(|application| application.deployments.values());
    deployments.all(|deployment| {
        let wanted = match deployment.is_autoscaled() {
            true => deployment.target_num_replicas,
            false => Some(replicas(deployment.full_replicas(), capacity)),
        };
        let there = deployment.replicas.as_ref().map(Vec::len).and_then(|there| u32::try_from(there).ok());
        there.zip(wanted).is_none_or(|(there, wanted)| there <= wanted)
    })
}

fn carried_by(deployment: &Deployment, capacity: Percent) -> Percent {
    let Some(running) = deployment.running() else {
        // A Ray that doesn't tell of replicas: that the application runs is all that there is to know.
        return capacity;
    };
    let full = deployment.full_replicas();
    let is_settled = deployment.target_num_replicas.is_none_or(|target| running >= target);
    if running >= replicas(full, capacity) && (is_settled || !deployment.is_autoscaled()) {
        return capacity;
    }
    // Serve knows how many an autoscaled deployment needs at this capacity; of another one, how many are all of it.
    let (all, share) = match deployment.target_num_replicas.filter(|_| deployment.is_autoscaled()) {
        Some(target) => (target, capacity),
        None => (full, WHOLE),
    };
    let part = u64::from(running) * u64::from(share) / u64::from(all.max(1));
    Percent::try_from(part).unwrap_or(WHOLE).min(capacity)
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
    #[case::never_none(10, 1, 1)]
    #[case::none_of_none(0, 50, 0)]
    #[case::nothing(10, 0, 0)]
    #[case::all(7, 100, 7)]
    fn replicas_are_rounded_as_serve_rounds_them(#[case] full: u32, #[case] capacity: Percent, #[case] expected: u32) {
        assert_eq!(replicas(full, capacity), expected);
    }

    #[rstest]
    #[case::a_worker_a_replica(4, &[4], 25, 1)]
    #[case::two_replicas_a_worker(2, &[4], 65, 2)]
    #[case::four_workers_a_replica(4, &[1], 25, 4)]
    #[case::the_deployment_that_needs_most(4, &[4, 2], 25, 2)]
    #[case::nothing_known(4, &[], 30, 2)]
    #[case::nothing_known_that_runs(4, &[0], 30, 2)]
    #[case::nothing(4, &[4], 0, 0)]
    #[case::all(4, &[3], 100, 4)]
    fn workers_are_there_for_whole_replicas(
        #[case] full: u32,
        #[case] deployments: &[u32],
        #[case] capacity: Percent,
        #[case] expected: u32,
    ) {
        assert_eq!(workers(full, deployments, capacity), expected);
    }

    proptest! {
        /// Where a worker is a replica, both sides together never need more than the group and a surge of it.
        #[test]
        fn a_surge_of_workers_is_enough_for_both_sides(full in 1u32..60, surge in 1u8..=100) {
            let spare = (full * u32::from(surge)).div_ceil(100);
            let (mut to, mut from) = (0, WHOLE);
            while from > 0 {
                to = (to + surge.min(WHOLE - to)).min(WHOLE);
                prop_assert!(workers(full, &[full], to) + workers(full, &[full], from) <= full + spare);
                from = from.saturating_sub(surge);
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
    #[case::all_of_it(json!({"a": deployment(4, 4, 0)}), 100, 100)]
    #[case::no_more_than_the_capacity(json!({"a": deployment(4, 4, 0)}), 50, 50)]
    #[case::those_that_start_carry_nothing(json!({"a": deployment(4, 1, 1)}), 50, 25)]
    #[case::the_weakest_decides(json!({"a": deployment(4, 2, 0), "b": deployment(2, 2, 0)}), 100, 50)]
    #[case::all_that_serve_runs(json!({"a": deployment(2, 1, 0)}), 60, 60)]
    #[case::none_runs(json!({"a": deployment(4, 0, 2)}), 50, 0)]
    #[case::one_that_wants_none(json!({"a": deployment(2, 1, 0), "b": deployment(0, 0, 0)}), 50, 50)]
    #[case::replicas_are_not_told(json!({"a": {"status": "HEALTHY"}}), 50, 50)]
    fn what_runs_carries_its_share(#[case] deployments: Value, #[case] capacity: Percent, #[case] expected: Percent) {
        assert_eq!(carried(&status(deployments), capacity), expected);
    }

    #[rstest]
    #[case::at_its_minimum(1, 1, 50)]
    #[case::above_its_minimum(3, 3, 50)]
    #[case::on_its_way_up(2, 3, 33)]
    #[case::none_runs(0, 3, 0)]
    fn an_autoscaled_deployment_carries_its_share_as_far_as_it_has_what_serve_wants(
        #[case] running: usize,
        #[case] target: u32,
        #[case] expected: Percent,
    ) {
        let mut autoscaled = deployment(1, running, 0);
        let bounds = json!({"min_replicas": 2, "max_replicas": 9});
        autoscaled["deployment_config"] = json!({"num_replicas": 1, "autoscaling_config": bounds});
        autoscaled["target_num_replicas"] = json!(target);
        assert_eq!(carried(&status(json!({"a": autoscaled})), 50), expected);
    }

    #[rstest]
    #[case::as_many_as_are_wanted(2, 0, true)]
    #[case::one_has_yet_to_go(2, 1, false)]
    #[case::fewer(1, 0, true)]
    fn serve_has_settled_when_it_runs_no_more_than_it_is_to(
        #[case] running: usize,
        #[case] starting: usize,
        #[case] expected: bool,
    ) {
        assert_eq!(is_settled(&status(json!({"a": deployment(4, running, starting)})), 50), expected);
    }

    #[test]
    fn nothing_is_carried_while_an_application_does_not_run() {
        let mut status = status(json!({"a": deployment(1, 1, 0)}));
        status.applications.get_mut("chat").expect("it is there").status = "DEPLOYING".into();
        assert_eq!(carried(&status, 100), 0);
    }
}
