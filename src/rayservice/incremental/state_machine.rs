//! State machine of an incremental upgrade: decides whether capacity or traffic moves next, and how
//! far. The same steps with the clusters swapped roll an upgrade back (KubeRay 1.7
//! `ray-operator/controllers/ray/rayservice_controller.go`, `reconcileServeTargetCapacity` and
//! `calculateTrafficRoutedPercent`).

use jiff::{SignedDuration, Timestamp};

/// Share of capacity or traffic, in percent.
pub type Percent = u8;
/// Full capacity or all traffic, in percent.
pub const FULL: Percent = 100;

/// Capacity and traffic of one of the two clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterShare {
    /// Share of its Serve replicas that it should run, in percent.
    pub capacity: Percent,
    /// Share of the traffic that it receives, in percent.
    pub traffic: Percent,
}

/// Progress of an incremental upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolloutPosition {
    /// Cluster that gains: the pending one, or the active one during a rollback.
    pub gaining: ClusterShare,
    /// Cluster that loses.
    pub losing: ClusterShare,
}

impl RolloutPosition {
    /// Position at the start of an upgrade.
    pub const START: Self = Self {
        gaining: ClusterShare { capacity: 0, traffic: 0 },
        losing: ClusterShare { capacity: FULL, traffic: FULL },
    };

    /// Returns the position after an action.
    #[must_use]
    pub fn after(mut self, action: RolloutAction) -> Self {
        match action {
            RolloutAction::MoveTraffic(share) => (self.gaining.traffic, self.losing.traffic) = (share, FULL - share),
            RolloutAction::RaiseCapacity(capacity) => self.gaining.capacity = capacity,
            RolloutAction::LowerCapacity(capacity) => self.losing.capacity = capacity,
            RolloutAction::Wait(_) | RolloutAction::Done => {}
        }
        self
    }
}

/// Pace of an incremental upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolloutConfig {
    /// Maximum capacity of both clusters above 100 percent, in percent; greater than 0.
    pub max_surge: Percent,
    /// Traffic moved per step, in percent; greater than 0.
    pub step_size: Percent,
    /// Minimum time between two steps.
    pub interval: SignedDuration,
    /// Time for which the losing cluster keeps its last capacity after it has no traffic, so that
    /// it can take it back.
    pub bake: SignedDuration,
    /// True if traffic moves as soon and as far as replicas allow, instead of step by step.
    pub is_immediate: bool,
    /// True if the upgrade is done once the gaining cluster has everything; the losing one may keep
    /// its capacity.
    pub keeps_losing_capacity: bool,
}

/// Observed state of the two clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RolloutObservation {
    /// Largest share of the traffic for which the gaining cluster has running replicas and
    /// endpoints, in percent.
    pub servable_percent: Percent,
    /// The same of the losing cluster, in percent.
    pub losing_servable_percent: Percent,
    /// True if the gaining cluster has ready endpoints.
    pub gaining_serves: bool,
    /// True if the losing cluster has ready endpoints.
    pub losing_serves: bool,
    /// True if the surplus pods of the losing cluster are gone.
    pub pods_released: bool,
    /// Time of the last traffic move; None if there was none.
    pub moved_at: Option<Timestamp>,
    /// Current time.
    pub now: Timestamp,
}

/// Next action of an incremental upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RolloutAction {
    /// Route this share of the traffic to the gaining cluster and the rest to the losing one, in
    /// percent.
    MoveTraffic(Percent),
    /// Raise the gaining cluster to this capacity, in percent.
    RaiseCapacity(Percent),
    /// Lower the losing cluster to this capacity, in percent.
    LowerCapacity(Percent),
    /// Nothing until this has happened.
    Wait(WaitReason),
    /// Nothing: the upgrade is complete.
    Done,
}

/// Reason why the next step cannot be taken yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// The next step is due at this time.
    Until(Timestamp),
    /// Replicas for this share of the traffic, in percent, are not running yet.
    Replicas(Percent),
    /// Surplus pods are not gone yet.
    PodTermination,
    /// The last step is not recorded in the status yet.
    StatusUpdate,
}

/// Returns the next action: correct an imbalance first, then move traffic up to the capacity, then
/// move capacity within the surge.
pub fn next_action(position: RolloutPosition, pace: &RolloutConfig, facts: &RolloutObservation) -> RolloutAction {
    let RolloutPosition { gaining, losing } = position;
    if let Some(share) = correct_imbalance(position, facts).filter(|share| *share != gaining.traffic) {
        return RolloutAction::MoveTraffic(share);
    }
    if gaining.traffic < gaining.capacity {
        return move_traffic(gaining, pace, facts);
    }
    let is_complete = gaining.capacity == FULL && (pace.keeps_losing_capacity || losing.capacity == 0);
    if is_complete {
        RolloutAction::Done
    } else if u16::from(gaining.capacity) + u16::from(losing.capacity) > u16::from(FULL) {
        lower_capacity(position, pace, facts)
    } else if facts.pods_released {
        RolloutAction::RaiseCapacity(gaining.capacity.saturating_add(pace.max_surge).min(FULL))
    } else {
        RolloutAction::Wait(WaitReason::PodTermination)
    }
}

fn move_traffic(gaining: ClusterShare, pace: &RolloutConfig, facts: &RolloutObservation) -> RolloutAction {
    if pace.is_immediate {
        let servable = gaining.capacity.min(facts.servable_percent);
        return if servable > gaining.traffic {
            RolloutAction::MoveTraffic(servable)
        } else {
            RolloutAction::Wait(WaitReason::Replicas(gaining.capacity))
        };
    }
    let due = facts.moved_at.map(|moved_at| moved_at.saturating_add(pace.interval).unwrap_or(Timestamp::MAX));
    let share = gaining.traffic.saturating_add(pace.step_size).min(gaining.capacity);
    match due {
        Some(due) if due > facts.now => RolloutAction::Wait(WaitReason::Until(due)),
        _ if facts.servable_percent < share => RolloutAction::Wait(WaitReason::Replicas(share)),
        _ => RolloutAction::MoveTraffic(share),
    }
}

fn lower_capacity(
    RolloutPosition { gaining, losing }: RolloutPosition,
    pace: &RolloutConfig,
    facts: &RolloutObservation,
) -> RolloutAction {
    let needed = gaining.traffic.min(gaining.capacity);
    if facts.servable_percent < needed {
        // Replicas that received the traffic are lost: the losing cluster may have to take it back.
        return RolloutAction::Wait(WaitReason::Replicas(needed));
    }
    // When rolling back a last step that was smaller than the surge, KubeRay's rule would remove
    // capacity that the traffic still needs.
    let capacity = losing.capacity.saturating_sub(pace.max_surge).max(losing.traffic);
    let since = facts.moved_at.unwrap_or(Timestamp::MIN);
    let due = since.saturating_add(pace.bake).unwrap_or(Timestamp::MAX);
    if capacity == 0 && due > facts.now {
        RolloutAction::Wait(WaitReason::Until(due))
    } else {
        RolloutAction::LowerCapacity(capacity)
    }
}

/// Returns the share that the gaining cluster must receive immediately, regardless of the step
/// interval; None if no correction applies. A cluster without ready endpoints loses the requests
/// routed to it, so the other one receives all of them. Once both have endpoints, neither receives
/// more than its capacity, as far as the other's replicas allow.
fn correct_imbalance(
    RolloutPosition { gaining, losing }: RolloutPosition,
    facts: &RolloutObservation,
) -> Option<Percent> {
    let (gaining_serves, losing_serves) = (facts.gaining_serves, facts.losing_serves && losing.capacity > 0);
    match (gaining_serves, losing_serves) {
        (true, false) => (losing.traffic > 0 && facts.servable_percent > 0).then_some(FULL),
        (false, true) => (gaining.traffic > 0).then_some(0),
        (true, true) if gaining.traffic > gaining.capacity => {
            let taken_over = (FULL - gaining.capacity).min(losing.capacity).min(facts.losing_servable_percent);
            Some(gaining.traffic.min(FULL - taken_over))
        }
        (true, true) if losing.traffic > losing.capacity => {
            let taken_over = (FULL - losing.capacity).min(gaining.capacity).min(facts.servable_percent);
            Some(gaining.traffic.max(taken_over))
        }
        _ => None,
    }
}

/// Simulates the fastest upgrade from a position: returns each position with the time since the
/// start. Replicas run as soon as they are requested, and pods are gone `until_gone` after their
/// traffic moved.
pub fn fastest_schedule(
    start: RolloutPosition,
    pace: &RolloutConfig,
    until_gone: SignedDuration,
) -> Vec<(SignedDuration, RolloutPosition)> {
    let (mut position, mut moved_at) = (start, None);
    let mut now = Timestamp::UNIX_EPOCH;
    let mut schedule = vec![(SignedDuration::ZERO, start)];
    loop {
        let gone_at = moved_at.map_or(now, |moved_at: Timestamp| moved_at.saturating_add(until_gone).unwrap_or(now));
        let pods_released = gone_at <= now;
        let facts = RolloutObservation {
            servable_percent: FULL,
            losing_servable_percent: FULL,
            gaining_serves: true,
            losing_serves: true,
            pods_released,
            moved_at,
            now,
        };
        match next_action(position, pace, &facts) {
            RolloutAction::Wait(WaitReason::Until(time)) if time > now => now = time,
            RolloutAction::Wait(WaitReason::PodTermination) if gone_at > now => now = gone_at,
            RolloutAction::Wait(_) | RolloutAction::Done => return schedule,
            action => {
                position = position.after(action);
                moved_at = if matches!(action, RolloutAction::MoveTraffic(_)) { Some(now) } else { moved_at };
                schedule.push((now.duration_since(Timestamp::UNIX_EPOCH), position));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn pace(surge: Percent, step: Percent, interval: i64) -> RolloutConfig {
        RolloutConfig {
            max_surge: surge,
            step_size: step,
            interval: SignedDuration::from_secs(interval),
            bake: SignedDuration::ZERO,
            is_immediate: false,
            keeps_losing_capacity: false,
        }
    }

    fn facts(now: i64, moved_at: Option<i64>) -> RolloutObservation {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let (to_serves, from_serves) = (true, true);
        let moved_at = moved_at.map(at);
        RolloutObservation {
            servable_percent: 100,
            losing_servable_percent: 100,
            gaining_serves: to_serves,
            losing_serves: from_serves,
            pods_released: true,
            moved_at,
            now: at(now),
        }
    }

    /// Formats one line per change: the second, then traffic and capacity of the losing and of the
    /// gaining cluster.
    fn trace(pace: &RolloutConfig) -> String {
        let schedule = fastest_schedule(RolloutPosition::START, pace, SignedDuration::ZERO);
        let lines = schedule.into_iter().skip(1).map(|(after, RolloutPosition { gaining, losing })| {
            let after = after.as_secs();
            let (losing_traffic, gaining_traffic) = (losing.traffic, gaining.traffic);
            format!(
                "{after:>4} s: {losing_traffic:>3} % of the traffic at {:>3} % capacity, {gaining_traffic:>3} % at {:>3} %\n",
                losing.capacity, gaining.capacity
            )
        });
        lines.collect()
    }

    #[test]
    fn b27_capacity_and_traffic_move_alternately() {
        let paces = [(100, 100, 1), (50, 25, 5), (25, 5, 10), (20, 5, 10), (10, 10, 30), (30, 20, 10)];
        let traces = paces.map(|(surge, step, interval)| {
            let trace = trace(&pace(surge, step, interval));
            format!("surge {surge} %, step {step} %, every {interval} s\n{trace}")
        });
        assert_eq!(traces.join("\n"), include_str!("traces.txt"));
    }

    #[rstest]
    #[case::raise_by_surge((10, 10), (70, 90), RolloutAction::RaiseCapacity(30))]
    #[case::lower_by_surge((30, 30), (80, 60), RolloutAction::LowerCapacity(60))]
    #[case::never_lower_below_traffic((30, 30), (80, 70), RolloutAction::LowerCapacity(70))]
    #[case::raise_at_most_to_full((90, 90), (10, 10), RolloutAction::RaiseCapacity(100))]
    #[case::lower_at_most_to_zero((100, 100), (10, 0), RolloutAction::LowerCapacity(0))]
    #[case::complete((100, 100), (0, 0), RolloutAction::Done)]
    fn b30_capacity_moves_within_the_surge(
        #[case] gaining: (Percent, Percent),
        #[case] losing: (Percent, Percent),
        #[case] expected: RolloutAction,
    ) {
        let side = |(capacity, traffic)| ClusterShare { capacity, traffic };
        let position = RolloutPosition { gaining: side(gaining), losing: side(losing) };
        assert_eq!(next_action(position, &pace(20, 5, 10), &facts(0, None)), expected);
    }

    #[rstest]
    #[case::first_step(0, None, 100, RolloutAction::MoveTraffic(5))]
    #[case::before_interval(5, Some(91), 100, RolloutAction::Wait(WaitReason::Until(Timestamp::from_second(101).expect("a time"))))]
    #[case::after_interval(5, Some(90), 100, RolloutAction::MoveTraffic(10))]
    #[case::replicas_not_running(5, Some(0), 9, RolloutAction::Wait(WaitReason::Replicas(10)))]
    #[case::limited_by_capacity(18, Some(0), 100, RolloutAction::MoveTraffic(20))]
    fn b29_traffic_moves_step_by_step_as_replicas_run(
        #[case] traffic: Percent,
        #[case] moved_at: Option<i64>,
        #[case] carries: Percent,
        #[case] expected: RolloutAction,
    ) {
        let position = RolloutPosition {
            gaining: ClusterShare { capacity: 20, traffic },
            losing: ClusterShare { capacity: 100, traffic: 100 - traffic },
        };
        assert_eq!(
            next_action(
                position,
                &pace(20, 5, 10),
                &RolloutObservation { servable_percent: carries, ..facts(100, moved_at) }
            ),
            expected
        );
    }

    #[test]
    fn capacity_is_raised_once_surplus_pods_are_gone() {
        let half = ClusterShare { capacity: 50, traffic: 50 };
        let facts = RolloutObservation { pods_released: false, ..facts(0, None) };
        assert_eq!(
            next_action(RolloutPosition { gaining: half, losing: half }, &pace(50, 25, 5), &facts),
            RolloutAction::Wait(WaitReason::PodTermination)
        );
    }

    #[test]
    fn last_capacity_is_kept_during_the_bake_time() {
        let position = RolloutPosition {
            gaining: ClusterShare { capacity: 100, traffic: 100 },
            losing: ClusterShare { capacity: 50, traffic: 0 },
        };
        let pace = RolloutConfig { bake: SignedDuration::from_secs(60), ..pace(50, 25, 5) };
        let until = Timestamp::from_second(70).expect("a time");
        assert_eq!(next_action(position, &pace, &facts(69, Some(10))), RolloutAction::Wait(WaitReason::Until(until)));
        assert_eq!(next_action(position, &pace, &facts(70, Some(10))), RolloutAction::LowerCapacity(0));
    }

    #[test]
    fn cluster_without_endpoints_loses_traffic_immediately_and_capacity_stepwise() {
        let position = RolloutPosition {
            gaining: ClusterShare { capacity: 25, traffic: 5 },
            losing: ClusterShare { capacity: 100, traffic: 95 },
        };
        let pace = pace(25, 5, 10);
        let dead = RolloutObservation { losing_serves: false, losing_servable_percent: 0, ..facts(0, Some(0)) };
        assert_eq!(next_action(position, &pace, &dead), RolloutAction::MoveTraffic(100));
        assert_eq!(
            next_action(position, &pace, &RolloutObservation { servable_percent: 0, ..dead }),
            RolloutAction::Wait(WaitReason::Until(dead.now + pace.interval))
        );

        let left = position.after(RolloutAction::MoveTraffic(100));
        assert_eq!(next_action(left, &pace, &dead), RolloutAction::LowerCapacity(75));
        assert_eq!(
            next_action(left.after(RolloutAction::LowerCapacity(75)), &pace, &dead),
            RolloutAction::RaiseCapacity(50)
        );
    }

    /// Traffic and capacity of the gaining and of the losing cluster, the share each can serve
    /// (None without endpoints), and the expected immediate correction.
    #[rstest]
    #[case::gaining_without_endpoints((25, 50), None, (75, 100), Some(100), Some(0))]
    #[case::gaining_without_endpoints_and_losing_empty((100, 100), None, (0, 0), Some(0), None)]
    #[case::both_without_endpoints((25, 50), None, (75, 100), None, None)]
    #[case::losing_without_endpoints((25, 50), Some(50), (75, 100), None, Some(100))]
    #[case::losing_without_endpoints_and_gaining_without_replicas((25, 50), Some(0), (75, 100), None, None)]
    #[case::losing_recovers((100, 50), Some(50), (0, 100), Some(100), Some(50))]
    #[case::losing_recovers_partly((100, 50), Some(50), (0, 100), Some(20), Some(80))]
    #[case::losing_recovers_without_replicas((100, 50), Some(50), (0, 100), Some(0), None)]
    #[case::gaining_recovers((0, 50), Some(50), (100, 50), Some(50), Some(50))]
    #[case::gaining_recovers_partly((0, 50), Some(30), (100, 50), Some(50), Some(30))]
    #[case::balanced((25, 50), Some(50), (75, 100), Some(100), None)]
    fn traffic_is_routed_to_clusters_with_endpoints(
        #[case] gaining: (Percent, Percent),
        #[case] gaining_servable: Option<Percent>,
        #[case] losing: (Percent, Percent),
        #[case] losing_servable: Option<Percent>,
        #[case] expected: Option<Percent>,
    ) {
        let side = |(traffic, capacity)| ClusterShare { capacity, traffic };
        let position = RolloutPosition { gaining: side(gaining), losing: side(losing) };
        let facts = RolloutObservation {
            servable_percent: gaining_servable.unwrap_or(0),
            gaining_serves: gaining_servable.is_some(),
            losing_servable_percent: losing_servable.unwrap_or(0),
            losing_serves: losing_servable.is_some(),
            ..facts(0, Some(0))
        };
        let moved = correct_imbalance(position, &facts).filter(|share| *share != gaining.0);
        assert_eq!(moved, expected);
        if let Some(share) = expected {
            assert_eq!(next_action(position, &pace(50, 25, 10), &facts), RolloutAction::MoveTraffic(share));
        }
    }

    #[test]
    fn capacity_is_not_lowered_while_replicas_that_took_its_traffic_are_lost() {
        let position = RolloutPosition {
            gaining: ClusterShare { capacity: 50, traffic: 50 },
            losing: ClusterShare { capacity: 100, traffic: 50 },
        };
        let lost = RolloutObservation { servable_percent: 25, ..facts(100, Some(0)) };
        assert_eq!(next_action(position, &pace(50, 25, 10), &lost), RolloutAction::Wait(WaitReason::Replicas(50)));
        assert_eq!(
            next_action(position, &pace(50, 25, 10), &RolloutObservation { servable_percent: 50, ..lost }),
            RolloutAction::LowerCapacity(50)
        );
    }

    #[test]
    fn immediate_traffic_is_limited_by_replicas() {
        let position = RolloutPosition {
            gaining: ClusterShare { capacity: 50, traffic: 20 },
            losing: ClusterShare { capacity: 100, traffic: 80 },
        };
        let pace = RolloutConfig { is_immediate: true, ..pace(50, 5, 10) };
        let carries = |carries| {
            next_action(position, &pace, &RolloutObservation { servable_percent: carries, ..facts(0, Some(0)) })
        };
        assert_eq!(carries(100), RolloutAction::MoveTraffic(50));
        assert_eq!(carries(30), RolloutAction::MoveTraffic(30));
        assert_eq!(carries(20), RolloutAction::Wait(WaitReason::Replicas(50)));
    }

    proptest! {
        /// Wherever an upgrade is rolled back, at every point of both directions the capacity
        /// covers the traffic, the total capacity stays within the surge, and the rollback ends at
        /// the start.
        #[test]
        fn capacity_covers_the_traffic_forward_and_back(
            (surge, step) in (1u8..=100).prop_flat_map(|surge| (Just(surge), 1..=surge)),
            rollback_after in 0usize..200,
            immediately: bool,
        ) {
            let forward = pace(surge, step, 0);
            let back = RolloutConfig { is_immediate: immediately, keeps_losing_capacity: true, ..forward };
            let mut position = RolloutPosition::START;
            let run = |position: &mut RolloutPosition, pace: &RolloutConfig, max_steps: usize| {
                for _ in 0..max_steps {
                    let action = next_action(*position, pace, &facts(0, None));
                    if action == RolloutAction::Done {
                        return true;
                    }
                    let before = *position;
                    *position = position.after(action);
                    for side in [position.gaining, position.losing] {
                        assert!(side.traffic <= side.capacity, "{position:?}");
                    }
                    assert!(position.gaining.capacity + position.losing.capacity <= 100 + surge, "{position:?}");
                    assert!(position.gaining.traffic >= before.gaining.traffic && position.gaining.capacity >= before.gaining.capacity);
                    assert!(position.losing.capacity <= before.losing.capacity);
                }
                false
            };
            run(&mut position, &forward, rollback_after);
            position = RolloutPosition { gaining: position.losing, losing: position.gaining };
            prop_assert!(run(&mut position, &back, 1_000));
            prop_assert_eq!(position.gaining, RolloutPosition::START.losing);
        }
    }
}
