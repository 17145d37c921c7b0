//! Partial preemption of a job.

use super::*;
use sluice_queue::partial_preemption::{PARTIALLY_PREEMPTED, PreemptiblePart};

/// Active member `a`, running pending member `b`, and the slice that covers both.
fn upgrading() -> (Member, Member, Workload) {
    let (active, held) = serving();
    let pending = Member { is_surge: true, ..cluster("b", 3, "1") };
    let both =
        created_slice(&plan_for(&job(vec![active.clone(), pending.clone()]), &[&held])).expect("a slice for both");
    (active, running(pending), admitted(both))
}

fn preempted(slice: Workload) -> Workload {
    let mut slice = with_condition(slice, PARTIALLY_PREEMPTED);
    let condition = slice.status.iter_mut().flat_map(|status| &mut status.conditions).last().expect("a condition");
    condition.reason = PreemptiblePart::Surge.as_str().to_owned();
    condition.message = "For workload team/urgent: Preempted".to_owned();
    slice
}

/// Returns the preemptible parts of a slice, with the number of pods of each.
fn part_sizes(slice: &Workload) -> Vec<(PreemptiblePart, u32)> {
    let record = SliceRecord::from_workload(slice).expect("a record");
    record.parts.iter().map(|part| (part.part, part.pods.values().sum())).collect()
}

#[test]
fn slice_marks_the_surge_as_preemptible() {
    let (active, pending, both) = upgrading();
    assert_eq!(part_sizes(&both), [(PreemptiblePart::Surge, 4)]);

    let switched = [Member { is_surge: true, ..active }, Member { is_surge: false, ..pending }];
    let plan = plan_for(&job(switched.to_vec()), &[&both]);
    assert_eq!(
        part_sizes(&patched_slice(&plan, &both).expect("a changed part")),
        [(PreemptiblePart::Surge, 3)],
        "the old cluster is the surge after the switch"
    );
}

#[test]
fn last_member_of_a_slice_is_not_a_surge() {
    let (active, pending, both) = upgrading();

    let plan = plan_for(&job(vec![terminating(with_remaining_pods(active, &[])), pending]), &[&both]);

    let slice = patched_slice(&plan, &both).expect("a smaller slice");
    assert_eq!((counts(&slice), part_sizes(&slice)), (vec![("head".to_owned(), 1), ("small".to_owned(), 3)], vec![]));
}

#[test]
fn preempted_surge_stops_and_the_active_cluster_keeps_running() {
    let (active, pending, both) = upgrading();
    let both = preempted(both);

    let stopping = job(vec![active, pending]);
    let plan = plan_for(&stopping, &[&both]);

    assert_eq!(gate_writes(&stopping), [("b".to_owned(), false)]);
    assert!(created_slice(&plan).is_none() && patched_slice(&plan, &both).is_none(), "its pods still run: {plan:?}");
    assert!(plan.writes.iter().all(|write| write.blocked_by.iter().any(|other| other.kind == "Service")), "{plan:?}");
    let why = "For workload team/urgent: Preempted";
    assert_eq!(not_admitted_message(&stopping), format!("PartiallyPreempted: b is stopping (a keeps running). {why}"));
    let notes: Vec<_> = plan.events.iter().map(|note| (note.warning, note.reason.as_str())).collect();
    assert_eq!(notes, [(true, "GateClosed")]);
}

#[test]
fn slice_releases_the_surge_as_its_pods_terminate_and_then_requests_it_again() {
    let (active, pending, both) = upgrading();
    let both = preempted(both);

    let closed = with_remaining_pods(Member { is_open: false, ..pending.clone() }, &[("small", 1)]);
    let one_left = plan_for(&job(vec![active.clone(), closed]), &[&both]);
    let one_left = patched_slice(&one_left, &both).expect("a smaller slice");
    assert_eq!(counts(&one_left), [("head".to_owned(), 1), ("small".to_owned(), 3)]);
    assert_eq!(part_sizes(&one_left), [(PreemptiblePart::Surge, 1)]);

    let stopped = Member { is_open: false, live_pods: BTreeMap::new(), ..pending };
    let plan = plan_for(&job(vec![active.clone(), stopped.clone()]), &[&one_left]);
    let released = patched_slice(&plan, &one_left).expect("a smaller slice");
    assert!(created_slice(&plan).is_none(), "no request before the queue has observed the release");
    assert_eq!(
        (counts(&released), part_sizes(&released)),
        (vec![("head".to_owned(), 1), ("small".to_owned(), 2)], vec![])
    );

    let mut released = admitted(released);
    condition::remove(&mut released.status.get_or_insert_default().conditions, PARTIALLY_PREEMPTED);
    let waiting = job(vec![active, stopped]);
    let again = created_slice(&plan_for(&waiting, &[&released])).expect("the upgrade is requested again");
    assert_eq!(counts(&again), [("head".to_owned(), 2), ("small".to_owned(), 5)]);
    assert_eq!(gate_writes(&waiting), []);
}
