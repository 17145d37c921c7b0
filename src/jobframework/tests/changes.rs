//! A job that changes while its slices wait, and slices of which somebody took some away: what went wrong in Kueue, by the
//! number of its issue.

use super::*;

fn name(slice: &Workload) -> String {
    slice.metadata.name.clone().expect("a name")
}

/// B55: what holds nothing yet asks for something else under the same name.
#[test]
fn a_first_slice_that_waits_is_changed_in_place() {
    let slice = created(&planned(&job(vec![cluster("a", 2, "1")]), &[])).expect("a slice");

    for workers in [5, 1] {
        let plan = planned(&job(vec![cluster("a", workers, "1")]), &[&slice]);

        assert_eq!(plan.writes.len(), 1, "{plan:?}");
        let changed = patched(&plan, &slice).expect("the same slice");
        assert_eq!(counts(&changed)[1], ("small".to_owned(), i32::try_from(workers).expect("a few")));
    }
}

/// kubernetes-sigs/kueue#11327: a job that grew again before its successor was admitted got a second one.
#[test]
fn a_job_that_grows_again_while_its_successor_waits_has_one_successor() {
    let (active, held) = serving();
    let grown = |workers: u32| Member { live_pods: active.live_pods.clone(), open: true, ..cluster("a", workers, "1") };
    let successor = created(&planned(&job(vec![grown(3)]), &[&held])).expect("a successor");

    let plan = planned(&job(vec![grown(6)]), &[&held, &successor]);

    assert_eq!(plan.writes.len(), 1, "{plan:?}");
    let larger = patched(&plan, &successor).expect("the successor asks for more");
    assert_eq!(counts(&larger)[1], ("small".to_owned(), 6));
    assert_eq!(slices::Slice::of(&held).grant(&grown(6))["small"], 2, "and nothing is granted meanwhile");
}

/// kubernetes-sigs/kueue#12931: slices of the same second came in the order of their names.
#[test]
fn of_two_successors_the_one_that_was_asked_for_first_waits_on_whatever_their_names_and_ages_say() {
    let (active, held) = serving();
    let both = job(vec![active, cluster("b", 2, "1")]);
    let first = created(&planned(&both, &[&held])).expect("a successor");
    let mut second = created(&planned(&both, &[&held])).expect("a successor");
    let record = Record::of(&second).expect("a record");
    let later = Record { sequence: record.sequence + 1, ..record };
    second.metadata.annotations.get_or_insert_default().insert(SLICE_ANNOTATION.into(), later.to_annotation());
    second.metadata.name = Some("a-name-that-comes-first".into());

    for slices in [[&held, &first, &second], [&second, &first, &held]] {
        let plan = planned(&both, &slices);

        assert_eq!(deleted(&plan), [name(&second)]);
        assert_eq!(plan.writes.len(), 1, "{plan:?}");
    }
}

/// kubernetes-sigs/kueue#14129: pods stayed gated for ever once the first slice of their chain was deleted.
#[test]
fn a_slice_whose_predecessor_is_gone_opens_what_it_pays_for() {
    let (active, held) = serving();
    let both = job(vec![active, cluster("b", 2, "1")]);
    let successor = admitted(created(&planned(&both, &[&held])).expect("a successor"));

    let plan = planned(&both, &[&successor]);

    assert!(created(&plan).is_none(), "{plan:?}");
    assert_eq!(gates(&both), [("b".to_owned(), true)]);
}

/// The same of a successor that still waits: it asks on, and what runs is not paid for by it.
#[test]
fn a_successor_whose_predecessor_was_deleted_while_it_waited_is_asked_for_as_a_whole() {
    let (active, held) = serving();
    let both = job(vec![active, cluster("b", 2, "1")]);
    let successor = created(&planned(&both, &[&held])).expect("a successor");

    let plan = planned(&both, &[&successor]);

    assert!(created(&plan).is_none() && deleted(&plan).is_empty(), "{plan:?}");
    assert!(!gates(&both).contains(&("b".to_owned(), true)));
    planned(&both, &[&admitted(successor)]);
    assert!(gates(&both).contains(&("b".to_owned(), true)));
}

/// Like a job that was moved to the LocalQueue of another ClusterQueue while it runs.
#[test]
fn what_an_older_slice_holds_is_given_back_once_a_newer_one_holds_all_that_is_wanted() {
    let (active, held) = serving();
    let both = job(vec![active, cluster("b", 2, "1")]);
    let successor = created(&planned(&both, &[&held])).expect("a successor");
    let is_over = |plan: &Plan| {
        let of_held = plan.writes.iter().filter(|write| Some(&write.target.name) == held.metadata.name.as_ref());
        of_held.map(|write| format!("{:?}", write.op)).any(|op| op.contains("WorkloadSliceReplaced"))
    };
    assert!(!is_over(&planned(&both, &[&held, &successor])), "the successor still waits");

    let plan = planned(&both, &[&held, &admitted(successor)]);

    assert!(is_over(&plan), "{plan:?}");
}

/// Its successor would count beside the oldest, if who was between them were gone.
#[test]
fn a_slice_that_is_over_stays_while_the_one_that_it_replaced_is_not() {
    let (active, oldest) = serving();
    let two = job(vec![active.clone(), cluster("b", 2, "1")]);
    let between = with(admitted(created(&planned(&two, &[&oldest])).expect("a second slice")), names::FINISHED);
    let three = job(vec![active, cluster("b", 2, "1"), cluster("c", 2, "1")]);
    let newest = admitted(created(&planned(&three, &[&oldest, &between])).expect("a third slice"));

    assert_eq!(deleted(&planned(&three, &[&oldest, &between, &newest])), Vec::<String>::new());
    let over = with(oldest.clone(), names::FINISHED);
    assert_eq!(deleted(&planned(&three, &[&over, &between, &newest])), [name(&oldest), name(&between)]);
}

#[test]
fn nothing_runs_on_a_slice_that_was_replaced_by_one_that_has_to_give_its_quota_back() {
    let (active, oldest) = serving();
    let waiting = job(vec![active.clone(), cluster("b", 2, "1")]);
    let evicted = with(admitted(created(&planned(&waiting, &[&oldest])).expect("a successor")), names::EVICTED);
    let job = job(vec![active, running(cluster("b", 2, "1"))]);

    let plan = planned(&job, &[&oldest, &evicted]);

    assert_eq!(gates(&job), [("a".to_owned(), false), ("b".to_owned(), false)]);
    assert_eq!(created(&plan), None, "nothing is asked for until that is done");
}
