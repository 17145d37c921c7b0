//! A job that has to give back a part of what it holds.

use super::*;
use sluice_queue::parts::{PARTLY_PREEMPTED, Part};

/// A service that serves from `a`, and whose upgrade to `b` runs on the same slice.
fn upgrading() -> (Member, Member, Workload) {
    let (active, held) = serving();
    let pending = Member { surge: true, ..cluster("b", 3, "1") };
    let both = created(&planned(&job(vec![active.clone(), pending.clone()]), &[&held])).expect("a slice for both");
    (active, running(pending), admitted(both))
}

fn preempted(slice: Workload) -> Workload {
    let mut slice = with(slice, PARTLY_PREEMPTED);
    let told = slice.status.iter_mut().flat_map(|status| &mut status.conditions).last().expect("a condition");
    told.reason = Part::Surge.as_str().to_owned();
    told.message = "For workload team/urgent: Preempted".to_owned();
    slice
}

/// Of which parts it is made up, and how many pods each has.
fn parts(slice: &Workload) -> Vec<(Part, u32)> {
    let record = Record::of(slice).expect("a record");
    record.parts.iter().map(|part| (part.part, part.pods.values().sum())).collect()
}

#[test]
fn a_slice_says_what_of_it_serves_nobody() {
    let (active, pending, both) = upgrading();
    assert_eq!(parts(&both), [(Part::Surge, 4)]);

    let switched = [Member { surge: true, ..active }, Member { surge: false, ..pending }];
    let plan = planned(&job(switched.to_vec()), &[&both]);
    assert_eq!(parts(&patched(&plan, &both).expect("another part")), [(Part::Surge, 3)], "now it is the old one");
}

#[test]
fn what_is_left_of_a_slice_is_no_surge() {
    let (active, pending, both) = upgrading();

    let plan = planned(&job(vec![going(left(active, &[])), pending]), &[&both]);

    let slice = patched(&plan, &both).expect("a smaller slice");
    assert_eq!((counts(&slice), parts(&slice)), (vec![("head".to_owned(), 1), ("small".to_owned(), 3)], vec![]));
}

#[test]
fn a_surge_that_is_taken_stops_and_what_serves_goes_on() {
    let (active, pending, both) = upgrading();
    let both = preempted(both);

    let stopping = job(vec![active, pending]);
    let plan = planned(&stopping, &[&both]);

    assert_eq!(gates(&stopping), [("b".to_owned(), false)]);
    assert!(created(&plan).is_none() && patched(&plan, &both).is_none(), "its pods run still: {plan:?}");
    assert!(plan.writes.iter().all(|write| write.quiet.iter().any(|other| other.kind == "Service")), "{plan:?}");
    let why = "For workload team/urgent: Preempted";
    assert_eq!(says(&stopping), format!("PartiallyPreempted: a runs on; b stops. {why}"));
    let notes: Vec<_> = plan.notes.iter().map(|note| (note.warning, note.reason.as_str())).collect();
    assert_eq!(notes, [(true, "GateClosed")]);
}

#[test]
fn a_slice_gives_back_what_its_surge_held_as_its_pods_go_and_then_waits_for_it_anew() {
    let (active, pending, both) = upgrading();
    let both = preempted(both);

    let closed = left(Member { open: false, ..pending.clone() }, &[("small", 1)]);
    let one_left = planned(&job(vec![active.clone(), closed]), &[&both]);
    let one_left = patched(&one_left, &both).expect("a smaller slice");
    assert_eq!(counts(&one_left), [("head".to_owned(), 1), ("small".to_owned(), 3)]);
    assert_eq!(parts(&one_left), [(Part::Surge, 1)]);

    let stopped = Member { open: false, live_pods: BTreeMap::new(), ..pending };
    let plan = planned(&job(vec![active.clone(), stopped.clone()]), &[&one_left]);
    let given_back = patched(&plan, &one_left).expect("a smaller slice");
    assert!(created(&plan).is_none(), "not before the queue has seen it");
    assert_eq!(
        (counts(&given_back), parts(&given_back)),
        (vec![("head".to_owned(), 1), ("small".to_owned(), 2)], vec![])
    );

    let mut given_back = admitted(given_back);
    condition::remove(&mut given_back.status.get_or_insert_default().conditions, PARTLY_PREEMPTED);
    let waiting = job(vec![active, stopped]);
    let again = created(&planned(&waiting, &[&given_back])).expect("the upgrade is asked for again");
    assert_eq!(counts(&again), [("head".to_owned(), 2), ("small".to_owned(), 5)]);
    assert_eq!(gates(&waiting), []);
}
