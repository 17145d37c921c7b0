//! Jobs that ran before they were queued.

use rstest::rstest;
use serde_json::json;

use super::upgrade_feasibility::queue;
use super::*;
use sluice_api::condition::{self, ConditionUpdate};
use sluice_queue::Input;

/// Sets the condition of a Workload that has to wait for quota.
fn pending(mut slice: Workload) -> Workload {
    let verdict = ConditionUpdate {
        type_: names::QUOTA_RESERVED,
        status: false,
        reason: "Pending".to_owned(),
        message: "couldn't assign flavors to pod set small".to_owned(),
        observed_generation: None,
    };
    condition::set(&mut slice.status.get_or_insert_default().conditions, Timestamp::UNIX_EPOCH, verdict);
    slice
}

#[rstest]
#[case::quota_is_still_short("2", vec![("a".to_owned(), false)])]
#[case::quota_suffices_by_now("3", vec![])]
fn running_job_is_suspended_only_if_its_pending_slice_is_not_being_admitted(
    #[case] quota: &str,
    #[case] gates: Vec<(String, bool)>,
) {
    // Given a running job that joined a queue without enough quota,
    let job = job(vec![running(cluster("a", 2, "1"))]);
    let slice = pending(created_slice(&plan_for(&job, &[])).expect("a slice"));
    job.gate_writes.borrow_mut().clear();

    // when the scheduler decides with this quota,
    let mut scheduler = queue(None, json!({"nominalQuota": quota}));
    scheduler.observe(Timestamp::UNIX_EPOCH, &Input::Workload(&slice));
    scheduler.run_cycle(Timestamp::UNIX_EPOCH);
    plan(&ReconcileContext { scheduler: &scheduler, ..context(&job, &[&slice]) });

    // then
    assert_eq!(gate_writes(&job), gates);
}

#[rstest]
#[case::of_its_pods(|_: &mut Workload| (), &[])]
#[case::fewer_pods(|held: &mut Workload| {
    held.status.as_mut().expect("a status").admission.as_mut().expect("an admission").pod_set_assignments[1].count = Some(1);
}, &[("a", false)])]
#[case::smaller_pods(|held: &mut Workload| {
    held.spec.pod_sets[1].template = json!({"spec": {"containers": []}}).into();
}, &[("a", false)])]
#[case::no_such_group(|held: &mut Workload| held.spec.pod_sets[1].name = "other".to_owned(), &[("a", false)])]
fn cluster_runs_on_a_workload_of_kueue_with_quota(#[case] edit: fn(&mut Workload), #[case] expected: &[(&str, bool)]) {
    let (active, mut of_kueue) = serving();
    of_kueue.annotations_mut().remove(SLICE_ANNOTATION);
    edit(&mut of_kueue);

    let job = job(vec![active]);
    plan_for(&job, &[&of_kueue]);

    let writes = gate_writes(&job);
    assert_eq!(writes.iter().map(|(name, gate)| (name.as_str(), *gate)).collect::<Vec<_>>(), expected);
}

/// Kueue charges for one cluster of a service.
#[test]
fn second_cluster_does_not_run_on_a_workload_of_kueue() {
    let (active, mut of_kueue) = serving();
    of_kueue.annotations_mut().remove(SLICE_ANNOTATION);

    let both = job(vec![active, running(cluster("b", 2, "1"))]);
    plan_for(&both, &[&of_kueue]);

    assert_eq!(gate_writes(&both), [("a".to_owned(), false), ("b".to_owned(), false)]);
}
