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
