//! Jobs that change while their slices are pending, and slices deleted by a user: regressions of
//! Kueue, by issue number.

use super::*;

fn name(slice: &Workload) -> String {
    slice.metadata.name.clone().expect("a name")
}

/// B55: a slice without quota changes its request under the same name.
#[test]
fn first_pending_slice_is_changed_in_place() {
    let slice = created_slice(&plan_for(&job(vec![cluster("a", 2, "1")]), &[])).expect("a slice");

    for workers in [5, 1] {
        let plan = plan_for(&job(vec![cluster("a", workers, "1")]), &[&slice]);

        assert_eq!(plan.writes.len(), 1, "{plan:?}");
        let changed = patched_slice(&plan, &slice).expect("the same slice");
        assert_eq!(counts(&changed)[1], ("small".to_owned(), i32::try_from(workers).expect("a few")));
    }
}

/// kubernetes-sigs/kueue#11327: a job that grew again before its successor was admitted got a
/// second successor.
#[test]
fn job_that_grows_again_while_its_successor_is_pending_has_one_successor() {
    let (active, held) = serving();
    let grown =
        |workers: u32| Member { live_pods: active.live_pods.clone(), is_open: true, ..cluster("a", workers, "1") };
    let successor = created_slice(&plan_for(&job(vec![grown(3)]), &[&held])).expect("a successor");

    let plan = plan_for(&job(vec![grown(6)]), &[&held, &successor]);

    assert_eq!(plan.writes.len(), 1, "{plan:?}");
    let larger = patched_slice(&plan, &successor).expect("the successor requests more");
    assert_eq!(counts(&larger)[1], ("small".to_owned(), 6));
    assert_eq!(slices::Slice::from_workload(&held).granted_pods(&grown(6))["small"], 2, "nothing is granted meanwhile");
}

/// kubernetes-sigs/kueue#12931: slices created in the same second were ordered by name.
#[test]
fn first_of_two_successors_stays_pending_regardless_of_names_and_ages() {
    let (active, held) = serving();
    let both = job(vec![active, cluster("b", 2, "1")]);
    let first = created_slice(&plan_for(&both, &[&held])).expect("a successor");
    let mut second = created_slice(&plan_for(&both, &[&held])).expect("a successor");
    let record = SliceRecord::from_workload(&second).expect("a record");
    let later = SliceRecord { sequence: record.sequence + 1, ..record };
    second.metadata.annotations.get_or_insert_default().insert(SLICE_ANNOTATION.into(), later.to_annotation());
    second.metadata.name = Some("a-name-that-comes-first".into());

    for slices in [[&held, &first, &second], [&second, &first, &held]] {
        let plan = plan_for(&both, &slices);

        assert_eq!(deleted_names(&plan), [name(&second)]);
        assert_eq!(plan.writes.len(), 1, "{plan:?}");
    }
}

/// kubernetes-sigs/kueue#14129: pods stayed gated forever once the first slice of their chain was
/// deleted.
#[test]
fn slice_whose_predecessor_is_gone_opens_the_members_that_it_covers() {
    let (active, held) = serving();
    let both = job(vec![active, cluster("b", 2, "1")]);
    let successor = admitted(created_slice(&plan_for(&both, &[&held])).expect("a successor"));

    let plan = plan_for(&both, &[&successor]);

    assert!(created_slice(&plan).is_none(), "{plan:?}");
    assert_eq!(gate_writes(&both), [("b".to_owned(), true)]);
}

/// A pending successor stays pending, and running members are not covered by it.
#[test]
fn successor_whose_predecessor_was_deleted_while_pending_is_requested_as_a_whole() {
    let (active, held) = serving();
    let both = job(vec![active, cluster("b", 2, "1")]);
    let successor = created_slice(&plan_for(&both, &[&held])).expect("a successor");

    let plan = plan_for(&both, &[&successor]);

    assert!(created_slice(&plan).is_none() && deleted_names(&plan).is_empty(), "{plan:?}");
    assert!(!gate_writes(&both).contains(&("b".to_owned(), true)));
    plan_for(&both, &[&admitted(successor)]);
    assert!(gate_writes(&both).contains(&("b".to_owned(), true)));
}

/// For example, a running job that moved to the LocalQueue of another ClusterQueue.
#[test]
fn older_slice_is_released_once_a_newer_one_covers_the_whole_job() {
    let (active, held) = serving();
    let both = job(vec![active, cluster("b", 2, "1")]);
    let successor = created_slice(&plan_for(&both, &[&held])).expect("a successor");
    let is_finished = |plan: &Plan| {
        let of_held = plan.writes.iter().filter(|write| Some(&write.target.name) == held.metadata.name.as_ref());
        of_held.map(|write| format!("{:?}", write.op)).any(|op| op.contains("WorkloadSliceReplaced"))
    };
    assert!(!is_finished(&plan_for(&both, &[&held, &successor])), "the successor is still pending");

    let plan = plan_for(&both, &[&held, &admitted(successor)]);

    assert!(is_finished(&plan), "{plan:?}");
}

/// Without it, its successor would count in addition to the oldest slice.
#[test]
fn finished_slice_stays_until_the_slice_that_it_replaced_is_finished() {
    let (active, oldest) = serving();
    let two = job(vec![active.clone(), cluster("b", 2, "1")]);
    let between =
        with_condition(admitted(created_slice(&plan_for(&two, &[&oldest])).expect("a second slice")), names::FINISHED);
    let three = job(vec![active, cluster("b", 2, "1"), cluster("c", 2, "1")]);
    let newest = admitted(created_slice(&plan_for(&three, &[&oldest, &between])).expect("a third slice"));

    assert_eq!(deleted_names(&plan_for(&three, &[&oldest, &between, &newest])), Vec::<String>::new());
    let finished = with_condition(oldest.clone(), names::FINISHED);
    assert_eq!(deleted_names(&plan_for(&three, &[&finished, &between, &newest])), [name(&oldest), name(&between)]);
}

#[test]
fn no_member_runs_on_a_slice_whose_successor_is_evicted() {
    let (active, oldest) = serving();
    let waiting = job(vec![active.clone(), cluster("b", 2, "1")]);
    let evicted =
        with_condition(admitted(created_slice(&plan_for(&waiting, &[&oldest])).expect("a successor")), names::EVICTED);
    let job = job(vec![active, running(cluster("b", 2, "1"))]);

    let plan = plan_for(&job, &[&oldest, &evicted]);

    assert_eq!(gate_writes(&job), [("a".to_owned(), false), ("b".to_owned(), false)]);
    assert_eq!(created_slice(&plan), None, "nothing is requested until the quota is released");
}
