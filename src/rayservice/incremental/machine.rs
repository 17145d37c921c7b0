//! State machine of an incremental upgrade: decides whether capacity or traffic moves next, and how
//! far. The same steps with the clusters swapped roll an upgrade back (KubeRay 1.7
//! `ray-operator/controllers/ray/rayservice_controller.go`, `reconcileServeTargetCapacity` and
//! `calculateTrafficRoutedPercent`).

use jiff::{SignedDuration, Timestamp};

/// Share of capacity or traffic, in percent.
pub type Percent = u8;
/// Full capacity or all traffic, in percent.
pub const WHOLE: Percent = 100;

/// Capacity and traffic of one of the two clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// Share of its Serve replicas that it should run, in percent.
    pub capacity: Percent,
    /// Share of the traffic that it receives, in percent.
    pub traffic: Percent,
}

/// Progress of an incremental upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Cluster that gains: the pending one, or the active one during a rollback.
    pub to: Side,
    /// Cluster that loses.
    pub from: Side,
}

impl Position {
    /// Position at the start of an upgrade.
    pub const START: Self =
        Self { to: Side { capacity: 0, traffic: 0 }, from: Side { capacity: WHOLE, traffic: WHOLE } };

    /// Returns the position after an action.
    #[must_use]
    pub fn after(mut self, action: Move) -> Self {
        match action {
            Move::Traffic(share) => (self.to.traffic, self.from.traffic) = (share, WHOLE - share),
            Move::Raise(capacity) => self.to.capacity = capacity,
            Move::Lower(capacity) => self.from.capacity = capacity,
            Move::Wait(_) | Move::Done => {}
        }
        self
    }
}

/// Pace of an incremental upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// Maximum capacity of both clusters above 100 percent, in percent; greater than 0.
    pub surge: Percent,
    /// Traffic moved per step, in percent; greater than 0.
    pub step: Percent,
    /// Minimum time between two steps.
    pub interval: SignedDuration,
    /// Time for which the losing cluster keeps its last capacity after it has no traffic, so that
    /// it can take it back.
    pub bake: SignedDuration,
    /// True if traffic moves as soon and as far as replicas allow, instead of step by step.
    pub at_once: bool,
    /// True if the upgrade is done once the gaining cluster has everything; the losing one may keep
    /// its capacity.
    pub leaves_capacity: bool,
}

/// Observed state of the two clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Largest share of the traffic for which the gaining cluster has running replicas and
    /// endpoints, in percent.
    pub carries: Percent,
    /// The same of the losing cluster, in percent.
    pub from_carries: Percent,
    /// True if the gaining cluster has ready endpoints.
    pub to_serves: bool,
    /// True if the losing cluster has ready endpoints.
    pub from_serves: bool,
    /// True if the surplus pods of the losing cluster are gone.
    pub room: bool,
    /// Time of the last traffic move; None if there was none.
    pub moved_at: Option<Timestamp>,
    /// Current time.
    pub now: Timestamp,
}

/// Next action of an incremental upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// Route this share of the traffic to the gaining cluster and the rest to the losing one, in
    /// percent.
    Traffic(Percent),
    /// Raise the gaining cluster to this capacity, in percent.
    Raise(Percent),
    /// Lower the losing cluster to this capacity, in percent.
    Lower(Percent),
    /// Nothing until this has happened.
    Wait(Wait),
    /// Nothing: the upgrade is complete.
    Done,
}

/// Reason why the next step cannot be taken yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The next step is due at this time.
    Until(Timestamp),
    /// Replicas for this share of the traffic, in percent, are not running yet.
    Replicas(Percent),
    /// Surplus pods are not gone yet.
    Pods,
    /// The last step is not recorded in the status yet.
    Record,
}

/// Returns the next action: correct an imbalance first, then move traffic up to the capacity, then
/// move capacity within the surge.
pub fn next(position: Position, pace: &Pace, facts: &Facts) -> Move {
    let Position { to: gaining, from: losing } = position;
    if let Some(share) = redress(position, facts).filter(|share| *share != gaining.traffic) {
        return Move::Traffic(share);
    }
    if gaining.traffic < gaining.capacity {
        return traffic(gaining, pace, facts);
    }
    let is_complete = gaining.capacity == WHOLE && (pace.leaves_capacity || losing.capacity == 0);
    if is_complete {
        Move::Done
    } else if u16::from(gaining.capacity) + u16::from(losing.capacity) > u16::from(WHOLE) {
        lower(position, pace, facts)
    } else if facts.room {
        Move::Raise(gaining.capacity.saturating_add(pace.surge).min(WHOLE))
    } else {
        Move::Wait(Wait::Pods)
    }
}

fn traffic(gaining: Side, pace: &Pace, facts: &Facts) -> Move {
    if pace.at_once {
        let servable = gaining.capacity.min(facts.carries);
        return if servable > gaining.traffic {
            Move::Traffic(servable)
        } else {
            Move::Wait(Wait::Replicas(gaining.capacity))
        };
    }
    let due = facts.moved_at.map(|moved_at| moved_at.saturating_add(pace.interval).unwrap_or(Timestamp::MAX));
    let share = gaining.traffic.saturating_add(pace.step).min(gaining.capacity);
    match due {
        Some(due) if due > facts.now => Move::Wait(Wait::Until(due)),
        _ if facts.carries < share => Move::Wait(Wait::Replicas(share)),
        _ => Move::Traffic(share),
    }
}

fn lower(Position { to: gaining, from: losing }: Position, pace: &Pace, facts: &Facts) -> Move {
    let needed = gaining.traffic.min(gaining.capacity);
    if facts.carries < needed {
        // Replicas that received the traffic are lost: the losing cluster may have to take it back.
        return Move::Wait(Wait::Replicas(needed));
    }
    // When rolling back a last step that was smaller than the surge, KubeRay's rule would remove
    // capacity that the traffic still needs.
    let capacity = losing.capacity.saturating_sub(pace.surge).max(losing.traffic);
    let since = facts.moved_at.unwrap_or(Timestamp::MIN);
    let due = since.saturating_add(pace.bake).unwrap_or(Timestamp::MAX);
    if capacity == 0 && due > facts.now { Move::Wait(Wait::Until(due)) } else { Move::Lower(capacity) }
}

/// Returns the share that the gaining cluster must receive immediately, regardless of the step
/// interval; None if no correction applies. A cluster without ready endpoints loses the requests
/// routed to it, so the other one receives all of them. Once both have endpoints, neither receives
/// more than its capacity, as far as the other's replicas allow.
fn redress(Position { to: gaining, from: losing }: Position, facts: &Facts) -> Option<Percent> {
    let (gaining_serves, losing_serves) = (facts.to_serves, facts.from_serves && losing.capacity > 0);
    match (gaining_serves, losing_serves) {
        (true, false) => (losing.traffic > 0 && facts.carries > 0).then_some(WHOLE),
        (false, true) => (gaining.traffic > 0).then_some(0),
        (true, true) if gaining.traffic > gaining.capacity => {
            let taken_over = (WHOLE - gaining.capacity).min(losing.capacity).min(facts.from_carries);
            Some(gaining.traffic.min(WHOLE - taken_over))
        }
        (true, true) if losing.traffic > losing.capacity => {
            let taken_over = (WHOLE - losing.capacity).min(gaining.capacity).min(facts.carries);
            Some(gaining.traffic.max(taken_over))
        }
        _ => None,
    }
}

/// Simulates the fastest upgrade from a position: returns each position with the time since the
/// start. Replicas run as soon as they are requested, and pods are gone `until_gone` after their
/// traffic moved.
pub fn fastest(start: Position, pace: &Pace, until_gone: SignedDuration) -> Vec<(SignedDuration, Position)> {
    let (mut position, mut moved_at) = (start, None);
    let mut now = Timestamp::UNIX_EPOCH;
    let mut schedule = vec![(SignedDuration::ZERO, start)];
    loop {
        let gone_at = moved_at.map_or(now, |moved_at: Timestamp| moved_at.saturating_add(until_gone).unwrap_or(now));
        let pods_released = gone_at <= now;
        let facts = Facts {
            carries: WHOLE,
            from_carries: WHOLE,
            to_serves: true,
            from_serves: true,
            room: pods_released,
            moved_at,
            now,
        };
        match next(position, pace, &facts) {
            Move::Wait(Wait::Until(time)) if time > now => now = time,
            Move::Wait(Wait::Pods) if gone_at > now => now = gone_at,
            Move::Wait(_) | Move::Done => return schedule,
            action => {
                position = position.after(action);
                moved_at = if matches!(action, Move::Traffic(_)) { Some(now) } else { moved_at };
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

    fn pace(surge: Percent, step: Percent, interval: i64) -> Pace {
        Pace {
            surge,
            step,
            interval: SignedDuration::from_secs(interval),
            bake: SignedDuration::ZERO,
            at_once: false,
            leaves_capacity: false,
        }
    }

    fn facts(now: i64, moved_at: Option<i64>) -> Facts {
        let at = |second| Timestamp::from_second(second).expect("a time");
        let (to_serves, from_serves) = (true, true);
        let moved_at = moved_at.map(at);
        Facts { carries: 100, from_carries: 100, to_serves, from_serves, room: true, moved_at, now: at(now) }
    }

    /// Formats one line per change: the second, then traffic and capacity of the losing and of the
    /// gaining cluster.
    fn trace(pace: &Pace) -> String {
        let schedule = fastest(Position::START, pace, SignedDuration::ZERO);
        let lines = schedule.into_iter().skip(1).map(|(after, Position { to: gaining, from: losing })| {
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
    #[case::raise_by_surge((10, 10), (70, 90), Move::Raise(30))]
    #[case::lower_by_surge((30, 30), (80, 60), Move::Lower(60))]
    #[case::never_lower_below_traffic((30, 30), (80, 70), Move::Lower(70))]
    #[case::raise_at_most_to_full((90, 90), (10, 10), Move::Raise(100))]
    #[case::lower_at_most_to_zero((100, 100), (10, 0), Move::Lower(0))]
    #[case::complete((100, 100), (0, 0), Move::Done)]
    fn b30_capacity_moves_within_the_surge(
        #[case] gaining: (Percent, Percent),
        #[case] losing: (Percent, Percent),
        #[case] expected: Move,
    ) {
        let side = |(capacity, traffic)| Side { capacity, traffic };
        let position = Position { to: side(gaining), from: side(losing) };
        assert_eq!(next(position, &pace(20, 5, 10), &facts(0, None)), expected);
    }

    #[rstest]
    #[case::first_step(0, None, 100, Move::Traffic(5))]
    #[case::before_interval(5, Some(91), 100, Move::Wait(Wait::Until(Timestamp::from_second(101).expect("a time"))))]
    #[case::after_interval(5, Some(90), 100, Move::Traffic(10))]
    #[case::replicas_not_running(5, Some(0), 9, Move::Wait(Wait::Replicas(10)))]
    #[case::limited_by_capacity(18, Some(0), 100, Move::Traffic(20))]
    fn b29_traffic_moves_step_by_step_as_replicas_run(
        #[case] traffic: Percent,
        #[case] moved_at: Option<i64>,
        #[case] carries: Percent,
        #[case] expected: Move,
    ) {
        let position =
            Position { to: Side { capacity: 20, traffic }, from: Side { capacity: 100, traffic: 100 - traffic } };
        assert_eq!(next(position, &pace(20, 5, 10), &Facts { carries, ..facts(100, moved_at) }), expected);
    }

    #[test]
    fn capacity_is_raised_once_surplus_pods_are_gone() {
        let half = Side { capacity: 50, traffic: 50 };
        let facts = Facts { room: false, ..facts(0, None) };
        assert_eq!(next(Position { to: half, from: half }, &pace(50, 25, 5), &facts), Move::Wait(Wait::Pods));
    }

    #[test]
    fn last_capacity_is_kept_during_the_bake_time() {
        let position = Position { to: Side { capacity: 100, traffic: 100 }, from: Side { capacity: 50, traffic: 0 } };
        let pace = Pace { bake: SignedDuration::from_secs(60), ..pace(50, 25, 5) };
        let until = Timestamp::from_second(70).expect("a time");
        assert_eq!(next(position, &pace, &facts(69, Some(10))), Move::Wait(Wait::Until(until)));
        assert_eq!(next(position, &pace, &facts(70, Some(10))), Move::Lower(0));
    }

    #[test]
    fn cluster_without_endpoints_loses_traffic_immediately_and_capacity_stepwise() {
        let position = Position { to: Side { capacity: 25, traffic: 5 }, from: Side { capacity: 100, traffic: 95 } };
        let pace = pace(25, 5, 10);
        let dead = Facts { from_serves: false, from_carries: 0, ..facts(0, Some(0)) };
        assert_eq!(next(position, &pace, &dead), Move::Traffic(100));
        assert_eq!(
            next(position, &pace, &Facts { carries: 0, ..dead }),
            Move::Wait(Wait::Until(dead.now + pace.interval))
        );

        let left = position.after(Move::Traffic(100));
        assert_eq!(next(left, &pace, &dead), Move::Lower(75));
        assert_eq!(next(left.after(Move::Lower(75)), &pace, &dead), Move::Raise(50));
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
        let side = |(traffic, capacity)| Side { capacity, traffic };
        let position = Position { to: side(gaining), from: side(losing) };
        let facts = Facts {
            carries: gaining_servable.unwrap_or(0),
            to_serves: gaining_servable.is_some(),
            from_carries: losing_servable.unwrap_or(0),
            from_serves: losing_servable.is_some(),
            ..facts(0, Some(0))
        };
        let moved = redress(position, &facts).filter(|share| *share != gaining.0);
        assert_eq!(moved, expected);
        if let Some(share) = expected {
            assert_eq!(next(position, &pace(50, 25, 10), &facts), Move::Traffic(share));
        }
    }

    #[test]
    fn capacity_is_not_lowered_while_replicas_that_took_its_traffic_are_lost() {
        let position = Position { to: Side { capacity: 50, traffic: 50 }, from: Side { capacity: 100, traffic: 50 } };
        let lost = Facts { carries: 25, ..facts(100, Some(0)) };
        assert_eq!(next(position, &pace(50, 25, 10), &lost), Move::Wait(Wait::Replicas(50)));
        assert_eq!(next(position, &pace(50, 25, 10), &Facts { carries: 50, ..lost }), Move::Lower(50));
    }

    #[test]
    fn immediate_traffic_is_limited_by_replicas() {
        let position = Position { to: Side { capacity: 50, traffic: 20 }, from: Side { capacity: 100, traffic: 80 } };
        let pace = Pace { at_once: true, ..pace(50, 5, 10) };
        let carries = |carries| next(position, &pace, &Facts { carries, ..facts(0, Some(0)) });
        assert_eq!(carries(100), Move::Traffic(50));
        assert_eq!(carries(30), Move::Traffic(30));
        assert_eq!(carries(20), Move::Wait(Wait::Replicas(50)));
    }

    proptest! {
        /// Wherever an upgrade is rolled back, at every point of both directions the capacity
        /// covers the traffic, the total capacity stays within the surge, and the rollback ends at
        /// the start.
        #[test]
        fn capacity_covers_the_traffic_forward_and_back(
            (surge, step) in (1u8..=100).prop_flat_map(|surge| (Just(surge), 1..=surge)),
            rollback_after in 0usize..200,
            at_once: bool,
        ) {
            let forward = pace(surge, step, 0);
            let back = Pace { at_once, leaves_capacity: true, ..forward };
            let mut position = Position::START;
            let run = |position: &mut Position, pace: &Pace, max_steps: usize| {
                for _ in 0..max_steps {
                    let action = next(*position, pace, &facts(0, None));
                    if action == Move::Done {
                        return true;
                    }
                    let before = *position;
                    *position = position.after(action);
                    for side in [position.to, position.from] {
                        assert!(side.traffic <= side.capacity, "{position:?}");
                    }
                    assert!(position.to.capacity + position.from.capacity <= 100 + surge, "{position:?}");
                    assert!(position.to.traffic >= before.to.traffic && position.to.capacity >= before.to.capacity);
                    assert!(position.from.capacity <= before.from.capacity);
                }
                false
            };
            run(&mut position, &forward, rollback_after);
            position = Position { to: position.from, from: position.to };
            prop_assert!(run(&mut position, &back, 1_000));
            prop_assert_eq!(position.to, Position::START.from);
        }
    }
}
