//! Condition PodsReady of slices, and the maximum execution time.

use rstest::rstest;

use super::*;

/// Plans a job whose queue acts on PodsReady.
fn plan_with_readiness(job: &FakeJob, slices: &[&Workload]) -> Plan {
    plan(&ReconcileContext { pods_ready_reports: PodsReadyReports::Readiness, ..context(job, slices) })
}

/// A member that runs all its pods, with its head and this number of workers ready.
fn ready(member: Member, workers: u32) -> Member {
    let ready_pods = [("headgroup".to_owned(), 1), ("small".to_owned(), workers)].into();
    Member { ready_pods, ..running(member) }
}

/// Returns the slice with all patches of the plan applied.
fn patched_by(plan: &Plan, slice: &Workload) -> Workload {
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

fn pods_ready(slice: &Workload) -> Option<(String, String)> {
    let conditions = &slice.status.as_ref()?.conditions;
    let condition = condition::get(conditions, names::PODS_READY)?;
    Some((condition.status.clone(), condition.reason.clone()))
}

fn pods_ready_with(status: &str, reason: &str) -> Option<(String, String)> {
    Some((status.to_owned(), reason.to_owned()))
}

fn starting(slice: &Workload) -> Vec<u32> {
    let members = SliceRecord::from_workload(slice).expect("a record").members;
    members.iter().flat_map(|member| &member.pods).map(|share| share.starting).collect()
}

#[test]
fn pods_ready_follows_start_failure_and_recovery() {
    let (active, held) = serving();
    let steps = [
        (0, pods_ready_with("False", "WaitForStart")),
        (1, pods_ready_with("False", "WaitForStart")),
        (2, pods_ready_with("True", "Started")),
        (1, pods_ready_with("False", "WaitForRecovery")),
        (0, pods_ready_with("False", "WaitForRecovery")),
        (2, pods_ready_with("True", "Recovered")),
        (1, pods_ready_with("False", "WaitForRecovery")),
        (2, pods_ready_with("True", "Recovered")),
    ];
    let mut slice = held;
    for (workers, expected) in steps {
        let job = job(vec![ready(active.clone(), workers)]);
        slice = patched_by(&plan_with_readiness(&job, &[&slice]), &slice);
        assert_eq!(pods_ready(&slice), expected, "{workers} of 2 workers are ready");
        assert!(plan_with_readiness(&job, &[&slice]).writes.is_empty(), "the condition is written once");
    }
}

#[test]
fn pods_without_nodes_are_reported_if_the_queue_limits_their_time() {
    let (active, held) = serving();
    let steps = [
        (0, 0, pods_ready_with("False", "WaitForScheduling")),
        (1, 1, pods_ready_with("False", "WaitForScheduling")),
        (2, 1, pods_ready_with("False", "WaitForStart")),
        (2, 2, pods_ready_with("True", "Started")),
        (1, 1, pods_ready_with("False", "WaitForRecovery")),
        (2, 1, pods_ready_with("False", "WaitForRecovery")),
        (2, 2, pods_ready_with("True", "Recovered")),
    ];
    let mut slice = held;
    for (scheduled, workers, expected) in steps {
        let scheduled_pods = [("headgroup".to_owned(), 1), ("small".to_owned(), scheduled)].into();
        let job = job(vec![Member { scheduled_pods, ..ready(active.clone(), workers) }]);
        let reports = PodsReadyReports::SchedulingAndReadiness;
        let plan_step =
            |slice: &Workload| plan(&ReconcileContext { pods_ready_reports: reports, ..context(&job, &[slice]) });
        slice = patched_by(&plan_step(&slice), &slice);
        assert_eq!(pods_ready(&slice), expected, "{scheduled} of 2 workers have nodes, {workers} are ready");
        assert!(plan_step(&slice).writes.is_empty(), "the condition is written once");
    }
}

#[test]
fn pods_ready_is_not_set_without_a_watching_queue_or_on_a_pending_slice() {
    let (active, held) = serving();
    let running = job(vec![ready(active.clone(), 2)]);
    assert!(plan_for(&running, &[&held]).writes.is_empty());

    let waits = job(vec![cluster("a", 2, "1")]);
    let waiting = created_slice(&plan_with_readiness(&waits, &[])).expect("a slice");
    assert!(plan_with_readiness(&waits, &[&waiting]).writes.is_empty());
}

#[test]
fn released_slice_waits_for_start_again() {
    let (active, held) = serving();
    let held = patched_by(&plan_with_readiness(&job(vec![ready(active.clone(), 2)]), &[&held]), &held);
    assert_eq!(pods_ready(&held), pods_ready_with("True", "Started"));
    let evicted = with_condition(held, names::EVICTED);

    // While it stops the condition stays; it is reset when the quota is released.
    let stopping = job(vec![Member { ready_pods: BTreeMap::new(), is_open: false, ..active.clone() }]);
    assert!(plan_with_readiness(&stopping, &[&evicted]).writes.is_empty());
    let stopped = job(vec![Member { is_open: false, live_pods: BTreeMap::new(), ..active }]);
    let released = patched_by(&plan_with_readiness(&stopped, &[&evicted]), &evicted);
    assert_eq!(pods_ready(&released), pods_ready_with("False", "WaitForStart"));
}

#[test]
fn upgrade_that_never_starts_leaves_the_slice_as_ready_as_the_active_cluster() {
    // Given an upgrade that was admitted,
    let (active, held) = serving();
    let held = patched_by(&plan_with_readiness(&job(vec![ready(active.clone(), 2)]), &[&held]), &held);
    let serves = ready(active, 2);
    let pending = cluster("b", 2, "1");
    let successor = created_slice(&plan_with_readiness(&job(vec![serves.clone(), pending.clone()]), &[&held]))
        .expect("a successor");
    assert_eq!(starting(&successor), [0, 0, 1, 2], "the pods of the new cluster are starting");
    let both = admitted(successor);

    // when none of the new pods is ready, then the slice is still ready;
    let open = Member { is_open: true, ..pending.clone() };
    let plan = plan_with_readiness(&job(vec![serves.clone(), open.clone()]), &[&both]);
    let both = patched_by(&plan, &both);
    assert_eq!(pods_ready(&both), pods_ready_with("True", "Started"));

    // and when a pod of the active cluster is lost, it is not.
    let lost = job(vec![ready(serves.clone(), 1), open]);
    assert_eq!(
        pods_ready(&patched_by(&plan_with_readiness(&lost, &[&both]), &both)),
        pods_ready_with("False", "WaitForRecovery")
    );

    // It may become ready and fail again while the old one serves; once it is alone, its pods
    // count.
    let up = ready(pending, 2);
    let both = patched_by(&plan_with_readiness(&job(vec![serves.clone(), up.clone()]), &[&both]), &both);
    let failing = job(vec![serves.clone(), ready(up.clone(), 0)]);
    assert_eq!(
        pods_ready(&patched_by(&plan_with_readiness(&failing, &[&both]), &both)),
        pods_ready_with("True", "Started")
    );
    let ending = job(vec![terminating(serves.clone()), up.clone()]);
    let both = patched_by(&plan_with_readiness(&ending, &[&both]), &both);
    assert_eq!((pods_ready(&both), starting(&both)), (pods_ready_with("True", "Started"), vec![0, 0, 0, 0]));
    let left = job(vec![terminating(serves), ready(up, 1)]);
    assert_eq!(
        pods_ready(&patched_by(&plan_with_readiness(&left, &[&both]), &both)),
        pods_ready_with("False", "WaitForRecovery")
    );
}

#[test]
fn added_workers_and_removed_workers_need_not_be_ready() {
    let (active, held) = serving();
    let held = patched_by(&plan_with_readiness(&job(vec![ready(active.clone(), 2)]), &[&held]), &held);
    let grown = Member { is_open: true, live_pods: active.live_pods.clone(), ..cluster("a", 4, "1") };
    let grown = Member { ready_pods: [("headgroup".to_owned(), 1), ("small".to_owned(), 2)].into(), ..grown };

    let successor = created_slice(&plan_with_readiness(&job(vec![grown.clone()]), &[&held])).expect("a successor");
    assert_eq!(starting(&successor), [0, 2]);
    let larger =
        patched_by(&plan_with_readiness(&job(vec![grown]), &[&admitted(successor.clone())]), &admitted(successor));
    assert_eq!(pods_ready(&larger), pods_ready_with("True", "Started"));

    // When three of the four are removed again, the remaining one is enough.
    let shrunk = Member { is_open: true, ..ready(cluster("a", 1, "1"), 1) };
    let smaller = patched_by(&plan_with_readiness(&job(vec![shrunk]), &[&larger]), &larger);
    assert_eq!(pods_ready(&smaller), pods_ready_with("True", "Started"));
    assert_eq!(counts(&smaller), [("head".to_owned(), 1), ("small".to_owned(), 1)]);
    assert_eq!(starting(&smaller), [0, 0]);
}

#[test]
fn all_pods_have_to_start_after_an_eviction() {
    let (active, held) = serving();
    let held = patched_by(&plan_with_readiness(&job(vec![ready(active.clone(), 2)]), &[&held]), &held);
    let both = job(vec![ready(active.clone(), 2), cluster("b", 2, "1")]);
    let successor = created_slice(&plan_with_readiness(&both, &[&held])).expect("a successor");

    let stopped = Member { is_open: false, live_pods: BTreeMap::new(), ready_pods: BTreeMap::new(), ..active };
    let idle = job(vec![stopped, cluster("b", 2, "1")]);
    let again = patched_by(&plan_with_readiness(&idle, &[&successor]), &successor);
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

    let slice = created_slice(&plan_for(&job, &[]));

    match expected {
        Ok(limit) => assert_eq!(slice.expect("a slice").spec.maximum_execution_time_seconds, limit),
        Err(value) => {
            assert!(slice.is_none());
            let shown = job.last_condition(sluice_api::job_conditions::ADMITTED).expect("a condition");
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
    assert!(plan_for(&limited, &[&held]).writes.is_empty(), "an admitted slice keeps its limit");

    let waiting = Workload { status: None, ..held };
    let waiting = patched_by(&plan_for(&limited, &[&waiting]), &waiting);
    assert_eq!(waiting.spec.maximum_execution_time_seconds, Some(60));
}
