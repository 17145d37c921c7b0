//! Condition PodsReady of slices, and the maximum execution time.

use rstest::rstest;

use super::*;

/// Plans a job whose queue acts on PodsReady.
fn watched(job: &FakeJob, slices: &[&Workload]) -> Plan {
    plan(&JobView { watches_readiness: true, ..view(job, slices) })
}

/// A member that runs all its pods, with its head and this number of workers ready.
fn ready(member: Member, workers: u32) -> Member {
    let ready_pods = [("headgroup".to_owned(), 1), ("small".to_owned(), workers)].into();
    Member { ready_pods, ..running(member) }
}

/// Returns the slice with all patches of the plan applied.
fn written(plan: &Plan, slice: &Workload) -> Workload {
    let mut object = serde_json::to_value(slice).expect("JSON");
    for write in &plan.writes {
        if write.target.kind != "Workload" || Some(&write.target.name) != slice.metadata.name.as_ref() {
            continue;
        }
        if let WriteOp::Patch(patch) | WriteOp::PatchStatus(patch) = &write.op {
            merge(&mut object, patch);
        }
    }
    serde_json::from_value(object).expect("a Workload")
}

fn said(slice: &Workload) -> Option<(String, String)> {
    let conditions = &slice.status.as_ref()?.conditions;
    let condition = condition::get(conditions, names::PODS_READY)?;
    Some((condition.status.clone(), condition.reason.clone()))
}

fn says(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

fn starting(slice: &Workload) -> Vec<u32> {
    let members = Record::of(slice).expect("a record").members;
    members.iter().flat_map(|member| &member.pods).map(|share| share.starting).collect()
}

#[test]
fn pods_ready_follows_start_failure_and_recovery() {
    let (active, held) = serving();
    let steps = [
        (0, says("False", "WaitForStart")),
        (1, says("False", "WaitForStart")),
        (2, says("True", "Started")),
        (1, says("False", "WaitForRecovery")),
        (0, says("False", "WaitForRecovery")),
        (2, says("True", "Recovered")),
        (1, says("False", "WaitForRecovery")),
        (2, says("True", "Recovered")),
    ];
    let mut slice = held;
    for (workers, expected) in steps {
        let job = job(vec![ready(active.clone(), workers)]);
        slice = written(&watched(&job, &[&slice]), &slice);
        assert_eq!(said(&slice), expected, "{workers} of 2 workers are ready");
        assert!(watched(&job, &[&slice]).writes.is_empty(), "the condition is written once");
    }
}

#[test]
fn pods_ready_is_not_set_without_a_watching_queue_or_on_a_pending_slice() {
    let (active, held) = serving();
    let running = job(vec![ready(active.clone(), 2)]);
    assert!(planned(&running, &[&held]).writes.is_empty());

    let waits = job(vec![cluster("a", 2, "1")]);
    let waiting = created(&watched(&waits, &[])).expect("a slice");
    assert!(watched(&waits, &[&waiting]).writes.is_empty());
}

#[test]
fn released_slice_waits_for_start_again() {
    let (active, held) = serving();
    let held = written(&watched(&job(vec![ready(active.clone(), 2)]), &[&held]), &held);
    assert_eq!(said(&held), says("True", "Started"));
    let evicted = with(held, names::EVICTED);

    // While it stops the condition stays; it is reset when the quota is released.
    let stopping = job(vec![Member { ready_pods: BTreeMap::new(), open: false, ..active.clone() }]);
    assert!(watched(&stopping, &[&evicted]).writes.is_empty());
    let stopped = job(vec![Member { open: false, live_pods: BTreeMap::new(), ..active }]);
    let released = written(&watched(&stopped, &[&evicted]), &evicted);
    assert_eq!(said(&released), says("False", "WaitForStart"));
}

#[test]
fn upgrade_that_never_starts_leaves_the_slice_as_ready_as_the_active_cluster() {
    // Given an upgrade that was admitted,
    let (active, held) = serving();
    let held = written(&watched(&job(vec![ready(active.clone(), 2)]), &[&held]), &held);
    let serves = ready(active, 2);
    let pending = cluster("b", 2, "1");
    let successor = created(&watched(&job(vec![serves.clone(), pending.clone()]), &[&held])).expect("a successor");
    assert_eq!(starting(&successor), [0, 0, 1, 2], "the pods of the new cluster are starting");
    let both = admitted(successor);

    // when none of the new pods is ready, then the slice is still ready;
    let open = Member { open: true, ..pending.clone() };
    let plan = watched(&job(vec![serves.clone(), open.clone()]), &[&both]);
    let both = written(&plan, &both);
    assert_eq!(said(&both), says("True", "Started"));

    // and when a pod of the active cluster is lost, it is not.
    let lost = job(vec![ready(serves.clone(), 1), open]);
    assert_eq!(said(&written(&watched(&lost, &[&both]), &both)), says("False", "WaitForRecovery"));

    // It may become ready and fail again while the old one serves; once it is alone, its pods
    // count.
    let up = ready(pending, 2);
    let both = written(&watched(&job(vec![serves.clone(), up.clone()]), &[&both]), &both);
    let failing = job(vec![serves.clone(), ready(up.clone(), 0)]);
    assert_eq!(said(&written(&watched(&failing, &[&both]), &both)), says("True", "Started"));
    let ending = job(vec![going(serves.clone()), up.clone()]);
    let both = written(&watched(&ending, &[&both]), &both);
    assert_eq!((said(&both), starting(&both)), (says("True", "Started"), vec![0, 0, 0, 0]));
    let left = job(vec![going(serves), ready(up, 1)]);
    assert_eq!(said(&written(&watched(&left, &[&both]), &both)), says("False", "WaitForRecovery"));
}

#[test]
fn added_workers_and_removed_workers_need_not_be_ready() {
    let (active, held) = serving();
    let held = written(&watched(&job(vec![ready(active.clone(), 2)]), &[&held]), &held);
    let grown = Member { open: true, live_pods: active.live_pods.clone(), ..cluster("a", 4, "1") };
    let grown = Member { ready_pods: [("headgroup".to_owned(), 1), ("small".to_owned(), 2)].into(), ..grown };

    let successor = created(&watched(&job(vec![grown.clone()]), &[&held])).expect("a successor");
    assert_eq!(starting(&successor), [0, 2]);
    let larger = written(&watched(&job(vec![grown]), &[&admitted(successor.clone())]), &admitted(successor));
    assert_eq!(said(&larger), says("True", "Started"));

    // When three of the four are removed again, the remaining one is enough.
    let shrunk = Member { open: true, ..ready(cluster("a", 1, "1"), 1) };
    let smaller = written(&watched(&job(vec![shrunk]), &[&larger]), &larger);
    assert_eq!(said(&smaller), says("True", "Started"));
    assert_eq!(counts(&smaller), [("head".to_owned(), 1), ("small".to_owned(), 1)]);
    assert_eq!(starting(&smaller), [0, 0]);
}

#[test]
fn all_pods_have_to_start_after_an_eviction() {
    let (active, held) = serving();
    let held = written(&watched(&job(vec![ready(active.clone(), 2)]), &[&held]), &held);
    let both = job(vec![ready(active.clone(), 2), cluster("b", 2, "1")]);
    let successor = created(&watched(&both, &[&held])).expect("a successor");

    let stopped = Member { open: false, live_pods: BTreeMap::new(), ready_pods: BTreeMap::new(), ..active };
    let idle = job(vec![stopped, cluster("b", 2, "1")]);
    let again = written(&watched(&idle, &[&successor]), &successor);
    assert_eq!(starting(&again), [0, 0, 0, 0]);
}

#[rstest]
#[case::none(None, Ok(None))]
#[case::an_hour(Some("3600"), Ok(Some(3600)))]
#[case::zero(Some("0"), Err("\"0\""))]
#[case::negative(Some("-5"), Err("\"-5\""))]
#[case::a_word(Some("1h"), Err("\"1h\""))]
#[case::more_than_an_i32(Some("2147483648"), Err("\"2147483648\""))]
fn label_limits_the_execution_time_of_a_job(#[case] label: Option<&str>, #[case] expected: Result<Option<i32>, &str>) {
    let mut job = job(vec![cluster("a", 2, "1")]);
    let labels = job.meta.labels.get_or_insert_default();
    labels.extend(label.map(|label| (names::MAX_EXEC_TIME_LABEL.to_owned(), label.to_owned())));

    let slice = created(&planned(&job, &[]));

    match expected {
        Ok(limit) => assert_eq!(slice.expect("a slice").spec.maximum_execution_time_seconds, limit),
        Err(value) => {
            assert!(slice.is_none());
            let shown = job.said(sluice_api::sluice::ADMITTED).expect("a condition");
            assert_eq!(shown.reason, "Misconfigured");
            assert!(shown.message.contains(names::MAX_EXEC_TIME_LABEL) && shown.message.contains(value), "{shown:?}");
        }
    }
}

#[test]
fn new_execution_time_limit_applies_from_the_next_admission() {
    let (active, held) = serving();
    let mut limited = job(vec![active]);
    limited.meta.labels.get_or_insert_default().insert(names::MAX_EXEC_TIME_LABEL.to_owned(), "60".to_owned());
    assert!(planned(&limited, &[&held]).writes.is_empty(), "an admitted slice keeps its limit");

    let waiting = Workload { status: None, ..held };
    let waiting = written(&planned(&limited, &[&waiting]), &waiting);
    assert_eq!(waiting.spec.maximum_execution_time_seconds, Some(60));
}
