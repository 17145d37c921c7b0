//! The steps of an incremental upgrade: whose turn it is, capacity or traffic, and how far it goes. The same steps, with the sides
//! changed, take an upgrade back (KubeRay 1.7 `ray-operator/controllers/ray/rayservice_controller.go`,
//! `reconcileServeTargetCapacity` and `calculateTrafficRoutedPercent`).

use jiff::{SignedDuration, Timestamp};

/// A share of capacity or of traffic, in percent.
pub type Percent = u8;
/// All of it, in percent.
pub const WHOLE: Percent = 100;

/// How much one of the two clusters has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Side {
    /// How much of its replicas it is to have, in percent.
    pub capacity: Percent,
    /// How much of the traffic it gets, in percent.
    pub traffic: Percent,
}

/// Where an upgrade stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The side that gains: the pending cluster, or the active one while the upgrade is taken back.
    pub to: Side,
    /// The side that gives.
    pub from: Side,
}

impl Position {
    /// Where an upgrade begins.
    pub const START: Self =
        Self { to: Side { capacity: 0, traffic: 0 }, from: Side { capacity: WHOLE, traffic: WHOLE } };

    /// Where it stands after a move.
    #[must_use]
    pub fn after(mut self, step: Move) -> Self {
        match step {
            Move::Traffic(share) => (self.to.traffic, self.from.traffic) = (share, WHOLE - share),
            Move::Raise(capacity) => self.to.capacity = capacity,
            Move::Lower(capacity) => self.from.capacity = capacity,
            Move::Wait(_) | Move::Done => {}
        }
        self
    }
}

/// How fast an upgrade is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// How much capacity there may be above 100 percent, in percent; above 0.
    pub surge: Percent,
    /// How much traffic moves in a step, in percent; above 0.
    pub step: Percent,
    /// The time between two steps.
    pub interval: SignedDuration,
    /// For how long the side that gives stays able to take all back, once it has no traffic.
    pub bake: SignedDuration,
    /// Whether traffic moves as far and as soon as there are replicas for it, instead of in steps.
    pub at_once: bool,
    /// Whether it is over as soon as the side that gains has everything; the other one may keep its capacity then.
    pub leaves_capacity: bool,
}

/// What is seen of the two clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The largest share of the traffic that the side that gains has running replicas and endpoints for, in percent.
    pub carries: Percent,
    /// The same of the side that gives.
    pub from_carries: Percent,
    /// Whether anybody answers on the side that gains.
    pub to_serves: bool,
    /// Whether anybody answers on the side that gives.
    pub from_serves: bool,
    /// Whether the pods that the side that gives is not to have any more are gone.
    pub room: bool,
    /// When traffic moved last, if it has.
    pub moved_at: Option<Timestamp>,
    /// The present.
    pub now: Timestamp,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Move {
    /// The side that gains gets this share of the traffic, and the other one the rest.
    Traffic(Percent),
    /// The side that gains is to have this capacity.
    Raise(Percent),
    /// The side that gives is to have this capacity.
    Lower(Percent),
    /// Nothing, until this has happened.
    Wait(Wait),
    /// It is over.
    Done,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// The time until the next step.
    Until(Timestamp),
    /// Replicas for this share of the traffic.
    Replicas(Percent),
    /// Pods that are not needed any more, and not gone yet.
    Pods,
    /// The last step, which isn't on record yet.
    Record,
}

/// Decides the next step.
pub fn next(position: Position, pace: &Pace, facts: &Facts) -> Move {
    let Position { to, from } = position;
    if let Some(share) = redress(position, facts).filter(|share| *share != to.traffic) {
        return Move::Traffic(share);
    }
    if to.traffic < to.capacity {
        return traffic(to, pace, facts);
    }
    let is_over = to.capacity == WHOLE && (pace.leaves_capacity || from.capacity == 0);
    if is_over {
        Move::Done
    } else if u16::from(to.capacity) + u16::from(from.capacity) > u16::from(WHOLE) {
        lower(position, pace, facts)
    } else if facts.room {
        Move::Raise(to.capacity.saturating_add(pace.surge).min(WHOLE))
    } else {
        Move::Wait(Wait::Pods)
    }
}

fn traffic(to: Side, pace: &Pace, facts: &Facts) -> Move {
    if pace.at_once {
        let reach = to.capacity.min(facts.carries);
        return if reach > to.traffic { Move::Traffic(reach) } else { Move::Wait(Wait::Replicas(to.capacity)) };
    }
    let due = facts.moved_at.map(|moved_at| moved_at.saturating_add(pace.interval).unwrap_or(Timestamp::MAX));
    let share = to.traffic.saturating_add(pace.step).min(to.capacity);
    match due {
        Some(due) if due > facts.now => Move::Wait(Wait::Until(due)),
        _ if facts.carries < share => Move::Wait(Wait::Replicas(share)),
        _ => Move::Traffic(share),
    }
}

fn lower(Position { to, from }: Position, pace: &Pace, facts: &Facts) -> Move {
    let needed = to.traffic.min(to.capacity);
    if facts.carries < needed {
        // Replicas that ran when the traffic came are lost: the other side may have to take it back.
        return Move::Wait(Wait::Replicas(needed));
    }
    // On the way back from a last step that was smaller than the surge, KubeRay's rule would take more than the traffic leaves.
    let capacity = from.capacity.saturating_sub(pace.surge).max(from.traffic);
    let since = facts.moved_at.unwrap_or(Timestamp::MIN);
    let due = since.saturating_add(pace.bake).unwrap_or(Timestamp::MAX);
    if capacity == 0 && due > facts.now { Move::Wait(Wait::Until(due)) } else { Move::Lower(capacity) }
}

/// The share that the side that gains has to have at once, out of turn. What goes to a side where nobody answers is lost, so all of it
/// goes to the other one; and once both answer again, each gets no more than its capacity, as far as their replicas carry that.
fn redress(Position { to, from }: Position, facts: &Facts) -> Option<Percent> {
    let (to_answers, from_answers) = (facts.to_serves, facts.from_serves && from.capacity > 0);
    match (to_answers, from_answers) {
        (true, false) => (from.traffic > 0 && facts.carries > 0).then_some(WHOLE),
        (false, true) => (to.traffic > 0).then_some(0),
        (true, true) if to.traffic > to.capacity => {
            let taken = (WHOLE - to.capacity).min(from.capacity).min(facts.from_carries);
            Some(to.traffic.min(WHOLE - taken))
        }
        (true, true) if from.traffic > from.capacity => {
            let taken = (WHOLE - from.capacity).min(to.capacity).min(facts.carries);
            Some(to.traffic.max(taken))
        }
        _ => None,
    }
}

/// The fastest way from a position: each that it goes through, and the time since the beginning. Replicas come as soon as they are asked
/// for, and pods are gone so long after the traffic that they had.
pub fn fastest(start: Position, pace: &Pace, until_gone: SignedDuration) -> Vec<(SignedDuration, Position)> {
    let (mut position, mut moved_at) = (start, None);
    let mut now = Timestamp::UNIX_EPOCH;
    let mut course = vec![(SignedDuration::ZERO, start)];
    loop {
        let gone_at = moved_at.map_or(now, |moved_at: Timestamp| moved_at.saturating_add(until_gone).unwrap_or(now));
        let room = gone_at <= now;
        let facts =
            Facts { carries: WHOLE, from_carries: WHOLE, to_serves: true, from_serves: true, room, moved_at, now };
        match next(position, pace, &facts) {
            Move::Wait(Wait::Until(time)) if time > now => now = time,
            Move::Wait(Wait::Pods) if gone_at > now => now = gone_at,
            Move::Wait(_) | Move::Done => return course,
            step => {
                position = position.after(step);
                moved_at = if matches!(step, Move::Traffic(_)) { Some(now) } else { moved_at };
                course.push((now.duration_since(Timestamp::UNIX_EPOCH), position));
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

    /// A line for each change: the second, and traffic and capacity of the side that gives and of the one that gains.
    fn trace(pace: &Pace) -> String {
        let course = fastest(Position::START, pace, SignedDuration::ZERO);
        let lines = course.into_iter().skip(1).map(|(after, Position { to, from })| {
            let after = after.as_secs();
            let (given, gained) = (from.traffic, to.traffic);
            format!(
                "{after:>4} s: {given:>3} % of the traffic on {:>3} %, {gained:>3} % on {:>3} %\n",
                from.capacity, to.capacity
            )
        });
        lines.collect()
    }

    #[test]
    fn b27_capacity_and_traffic_move_in_turn() {
        let paces = [(100, 100, 1), (50, 25, 5), (25, 5, 10), (20, 5, 10), (10, 10, 30), (30, 20, 10)];
        let traces = paces.map(|(surge, step, interval)| {
            let trace = trace(&pace(surge, step, interval));
            format!("surge {surge} %, step {step} %, every {interval} s\n{trace}")
        });
        assert_eq!(traces.join("\n"), include_str!("traces.txt"));
    }

    #[rstest]
    #[case::it_gains_a_surge((10, 10), (70, 90), Move::Raise(30))]
    #[case::it_gives_a_surge((30, 30), (80, 60), Move::Lower(60))]
    #[case::it_gives_nothing_that_the_traffic_needs((30, 30), (80, 70), Move::Lower(70))]
    #[case::no_more_than_all_is_gained((90, 90), (10, 10), Move::Raise(100))]
    #[case::no_more_than_all_is_given((100, 100), (10, 0), Move::Lower(0))]
    #[case::over((100, 100), (0, 0), Move::Done)]
    fn b30_capacity_goes_from_side_to_side(
        #[case] to: (Percent, Percent),
        #[case] from: (Percent, Percent),
        #[case] expected: Move,
    ) {
        let side = |(capacity, traffic)| Side { capacity, traffic };
        let position = Position { to: side(to), from: side(from) };
        assert_eq!(next(position, &pace(20, 5, 10), &facts(0, None)), expected);
    }

    #[rstest]
    #[case::first_step(0, None, 100, Move::Traffic(5))]
    #[case::too_early(5, Some(91), 100, Move::Wait(Wait::Until(Timestamp::from_second(101).expect("a time"))))]
    #[case::in_time(5, Some(90), 100, Move::Traffic(10))]
    #[case::no_replicas(5, Some(0), 9, Move::Wait(Wait::Replicas(10)))]
    #[case::as_far_as_there_is_capacity(18, Some(0), 100, Move::Traffic(20))]
    fn b29_traffic_moves_in_steps_as_replicas_come(
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
    fn capacity_is_gained_when_the_pods_that_gave_it_are_gone() {
        let half = Side { capacity: 50, traffic: 50 };
        let facts = Facts { room: false, ..facts(0, None) };
        assert_eq!(next(Position { to: half, from: half }, &pace(50, 25, 5), &facts), Move::Wait(Wait::Pods));
    }

    #[test]
    fn the_last_of_the_old_capacity_is_kept_while_the_new_one_bakes() {
        let position = Position { to: Side { capacity: 100, traffic: 100 }, from: Side { capacity: 50, traffic: 0 } };
        let pace = Pace { bake: SignedDuration::from_secs(60), ..pace(50, 25, 5) };
        let until = Timestamp::from_second(70).expect("a time");
        assert_eq!(next(position, &pace, &facts(69, Some(10))), Move::Wait(Wait::Until(until)));
        assert_eq!(next(position, &pace, &facts(70, Some(10))), Move::Lower(0));
    }

    #[test]
    fn who_takes_nothing_any_more_is_left_at_once_and_given_up_by_steps() {
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

    /// Traffic and capacity of the side that gains and of the one that gives, what they carry (`None` if nobody answers there), and the
    /// share that is to move out of turn.
    #[rstest]
    #[case::nobody_answers_where_it_went((25, 50), None, (75, 100), Some(100), Some(0))]
    #[case::who_gives_has_nothing_any_more((100, 100), None, (0, 0), Some(0), None)]
    #[case::nobody_answers_anywhere((25, 50), None, (75, 100), None, None)]
    #[case::nobody_answers_where_it_came_from((25, 50), Some(50), (75, 100), None, Some(100))]
    #[case::who_is_left_carries_nothing((25, 50), Some(0), (75, 100), None, None)]
    #[case::who_gave_all_answers_again((100, 50), Some(50), (0, 100), Some(100), Some(50))]
    #[case::in_part((100, 50), Some(50), (0, 100), Some(20), Some(80))]
    #[case::with_nothing_that_runs_yet((100, 50), Some(50), (0, 100), Some(0), None)]
    #[case::who_had_got_it_answers_again((0, 50), Some(50), (100, 50), Some(50), Some(50))]
    #[case::in_part_too((0, 50), Some(30), (100, 50), Some(50), Some(30))]
    #[case::all_is_well((25, 50), Some(50), (75, 100), Some(100), None)]
    fn traffic_is_with_who_answers(
        #[case] to: (Percent, Percent),
        #[case] to_carries: Option<Percent>,
        #[case] from: (Percent, Percent),
        #[case] from_carries: Option<Percent>,
        #[case] expected: Option<Percent>,
    ) {
        let side = |(traffic, capacity)| Side { capacity, traffic };
        let position = Position { to: side(to), from: side(from) };
        let facts = Facts {
            carries: to_carries.unwrap_or(0),
            to_serves: to_carries.is_some(),
            from_carries: from_carries.unwrap_or(0),
            from_serves: from_carries.is_some(),
            ..facts(0, Some(0))
        };
        let moved = redress(position, &facts).filter(|share| *share != to.0);
        assert_eq!(moved, expected);
        if let Some(share) = expected {
            assert_eq!(next(position, &pace(50, 25, 10), &facts), Move::Traffic(share));
        }
    }

    #[test]
    fn nothing_is_given_up_while_replicas_that_took_its_traffic_are_lost() {
        let position = Position { to: Side { capacity: 50, traffic: 50 }, from: Side { capacity: 100, traffic: 50 } };
        let lost = Facts { carries: 25, ..facts(100, Some(0)) };
        assert_eq!(next(position, &pace(50, 25, 10), &lost), Move::Wait(Wait::Replicas(50)));
        assert_eq!(next(position, &pace(50, 25, 10), &Facts { carries: 50, ..lost }), Move::Lower(50));
    }

    #[test]
    fn at_once_is_as_far_as_there_are_replicas() {
        let position = Position { to: Side { capacity: 50, traffic: 20 }, from: Side { capacity: 100, traffic: 80 } };
        let pace = Pace { at_once: true, ..pace(50, 5, 10) };
        let carries = |carries| next(position, &pace, &Facts { carries, ..facts(0, Some(0)) });
        assert_eq!(carries(100), Move::Traffic(50));
        assert_eq!(carries(30), Move::Traffic(30));
        assert_eq!(carries(20), Move::Wait(Wait::Replicas(50)));
    }

    proptest! {
        /// However far an upgrade has come when it is taken back, at every point of both ways what is there carries the traffic, no more
        /// is there than the surge allows, and the way back ends where the upgrade began.
        #[test]
        fn there_and_back_the_traffic_is_carried(
            (surge, step) in (1u8..=100).prop_flat_map(|surge| (Just(surge), 1..=surge)),
            turns_after in 0usize..200,
            at_once: bool,
        ) {
            let there = pace(surge, step, 0);
            let back = Pace { at_once, leaves_capacity: true, ..there };
            let mut position = Position::START;
            let play = |position: &mut Position, pace: &Pace, most: usize| {
                for _ in 0..most {
                    let step = next(*position, pace, &facts(0, None));
                    if step == Move::Done {
                        return true;
                    }
                    let before = *position;
                    *position = position.after(step);
                    for side in [position.to, position.from] {
                        assert!(side.traffic <= side.capacity, "{position:?}");
                    }
                    assert!(position.to.capacity + position.from.capacity <= 100 + surge, "{position:?}");
                    assert!(position.to.traffic >= before.to.traffic && position.to.capacity >= before.to.capacity);
                    assert!(position.from.capacity <= before.from.capacity);
                }
                false
            };
            play(&mut position, &there, turns_after);
            position = Position { to: position.from, from: position.to };
            prop_assert!(play(&mut position, &back, 1_000));
            prop_assert_eq!(position.to, Position::START.from);
        }
    }
}
