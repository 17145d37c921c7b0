//! Partial preemption of a job.

use super::*;
use sluice_queue::parts::{PARTLY_PREEMPTED, Part};

/// Active member `a`, running pending member `b`, and the slice that covers both.
fn upgrading() -> (Member, Member, Workload) {
    let (active, held) = serving();
    let pending = Member { surge: true, ..cluster("b", 3, "1") };
    let both = created(&planned(&job(vec![active.clone(), pending.clone()]), &[&held])).expect("a slice for both");
    (active, running(pending), admitted(both))
}

fn preempted(slice: Workload) -> Workload {
    let mut slice = with(slice, PARTLY_PREEMPTED);
    let condition = slice.status.iter_mut().flat_map(|status| &mut status.conditions).last().expect("a condition");
    condition.reason = Part::Surge.as_str().to_owned();
    condition.message = "For workload team/urgent: Preempted".to_owned();
    slice
}

/// Returns the preemptible parts of a slice, with the number of pods of each.
fn parts(slice: &Workload) -> Vec<(Part, u32)> {
    let record = Record::of(slice).expect("a record");
    record.parts.iter().map(|part| (part.part, part.pods.values().sum())).collect()
}

#[test]
fn slice_marks_the_surge_as_preemptible() {
    let (active, pending, both) = upgrading();
    assert_eq!(parts(&both), [(Part::Surge, 4)]);

    let switched = [Member { surge: true, ..active }, Member { surge: false, ..pending }];
    let plan = planned(&job(switched.to_vec()), &[&both]);
    assert_eq!(
        parts(&patched(&plan, &both).expect("a changed part")),
        [(Part::Surge, 3)],
        "the old cluster is the surge after the switch"
    );
}

#[test]
fn last_member_of_a_slice_is_not_a_surge() {
    let (active, pending, both) = upgrading();

    let plan = planned(&job(vec![going(left(active, &[])), pending]), &[&both]);

    let slice = patched(&plan, &both).expect("a smaller slice");
    assert_eq!((counts(&slice), parts(&slice)), (vec![("head".to_owned(), 1), ("small".to_owned(), 3)], vec![]));
}

#[test]
fn preempted_surge_stops_and_the_active_cluster_keeps_running() {
    let (active, pending, both) = upgrading();
    let both = preempted(both);

    let stopping = job(vec![active, pending]);
    let plan = planned(&stopping, &[&both]);

    assert_eq!(gates(&stopping), [("b".to_owned(), false)]);
    assert!(created(&plan).is_none() && patched(&plan, &both).is_none(), "its pods still run: {plan:?}");
    assert!(plan.writes.iter().all(|write| write.quiet.iter().any(|other| other.kind == "Service")), "{plan:?}");
    let why = "For workload team/urgent: Preempted";
    assert_eq!(says(&stopping), format!("PartiallyPreempted: b is stopping (a keeps running). {why}"));
    let notes: Vec<_> = plan.notes.iter().map(|note| (note.warning, note.reason.as_str())).collect();
    assert_eq!(notes, [(true, "GateClosed")]);
}

#[test]
fn slice_releases_the_surge_as_its_pods_terminate_and_then_requests_it_again() {
    let (active, pending, both) = upgrading();
    let both = preempted(both);

    let closed = left(Member { open: false, ..pending.clone() }, &[("small", 1)]);
    let one_left = planned(&job(vec![active.clone(), closed]), &[&both]);
    let one_left = patched(&one_left, &both).expect("a smaller slice");
    assert_eq!(counts(&one_left), [("head".to_owned(), 1), ("small".to_owned(), 3)]);
    assert_eq!(parts(&one_left), [(Part::Surge, 1)]);

    let stopped = Member { open: false, live_pods: BTreeMap::new(), ..pending };
    let plan = planned(&job(vec![active.clone(), stopped.clone()]), &[&one_left]);
    let released = patched(&plan, &one_left).expect("a smaller slice");
    assert!(created(&plan).is_none(), "no request before the queue has observed the release");
    assert_eq!((counts(&released), parts(&released)), (vec![("head".to_owned(), 1), ("small".to_owned(), 2)], vec![]));

    let mut released = admitted(released);
    condition::remove(&mut released.status.get_or_insert_default().conditions, PARTLY_PREEMPTED);
    let waiting = job(vec![active, stopped]);
    let again = created(&planned(&waiting, &[&released])).expect("the upgrade is requested again");
    assert_eq!(counts(&again), [("head".to_owned(), 2), ("small".to_owned(), 5)]);
    assert_eq!(gates(&waiting), []);
}
