//! Conditions of a job.

use super::*;
use crate::upgrade_feasibility::UPGRADE_ADMISSIBLE;
use sluice_api::job_conditions::{ADMITTED, QUOTA_RESERVED};

/// Status and message of a condition.
fn condition_content(job: &FakeJob, kind: &str) -> Option<(String, String)> {
    job.last_condition(kind).map(|said| (said.status, said.message))
}

fn condition_status(job: &FakeJob, kind: &str) -> Option<String> {
    job.last_condition(kind).map(|said| said.status)
}

/// The slice after the queue has decided that it stays pending.
fn decided_pending(slice: Workload) -> Workload {
    let mut slice = with_condition(slice, names::QUOTA_RESERVED);
    for condition in &mut slice.status.get_or_insert_default().conditions {
        condition.status = "False".into();
    }
    slice
}

fn open_cluster(name: &str) -> Member {
    Member { is_open: true, ..cluster(name, 2, "1") }
}

#[test]
fn admitted_job_names_its_slice_and_its_cluster_queue() {
    let (active, held) = serving();
    let job = job(vec![active]);

    plan_for(&job, &[&held]);

    let slice = held.metadata.name.expect("a name");
    let text = format!("Slice {slice} holds quota in ClusterQueue cq for a");
    assert_eq!(condition_content(&job, ADMITTED), Some(("True".into(), text.clone())));
    assert_eq!(condition_content(&job, QUOTA_RESERVED), Some(("True".into(), text)));
}

#[test]
fn job_with_a_pending_upgrade_is_not_admitted_and_still_holds_quota() {
    let (active, held) = serving();
    let both = vec![active, cluster("b", 2, "1")];
    let waiting = created_slice(&plan_for(&job(both.clone()), &[&held])).expect("a successor");

    // Before the first decision about the successor, only QuotaReserved is set.
    let job_before = job(both.clone());
    plan_for(&job_before, &[&held, &waiting]);
    assert_eq!(
        (condition_status(&job_before, ADMITTED), condition_status(&job_before, QUOTA_RESERVED)),
        (None, Some("True".into()))
    );

    let job_after = job(both);
    plan_for(&job_after, &[&held, &decided_pending(waiting)]);
    let statuses = (condition_status(&job_after, ADMITTED), condition_status(&job_after, QUOTA_RESERVED));
    assert_eq!(statuses, (Some("False".into()), Some("True".into())));
}

#[test]
fn quota_is_reported_as_reserved_until_it_is_released() {
    let (active, held) = serving();

    let evicted = job(vec![active.clone()]);
    plan_for(&evicted, &[&with_condition(held.clone(), names::EVICTED)]);
    assert_eq!(condition_status(&evicted, QUOTA_RESERVED), Some("True".into()));

    let suspended = FakeJob { wants_to_run: false, ..job(vec![active]) };
    plan_for(&suspended, &[&held]);
    assert_eq!(condition_status(&suspended, QUOTA_RESERVED), Some("True".into()));

    let over = FakeJob { wants_to_run: false, ..job(Vec::new()) };
    plan_for(&over, &[&with_condition(held, names::FINISHED)]);
    assert_eq!(
        condition_content(&over, QUOTA_RESERVED),
        Some(("False".into(), "No slice of the job holds quota".into()))
    );
}

#[test]
fn new_job_has_no_conditions_before_the_first_decision() {
    let new = job(vec![cluster("a", 2, "1")]);
    plan_for(&new, &[]);
    assert!(new.written_conditions.borrow().is_empty());
}

#[test]
fn job_that_left_its_queue_has_no_conditions_once_its_quota_is_released() {
    let (_, held) = serving();
    let reserved = with_condition(Workload::default(), QUOTA_RESERVED).status.expect("a status").conditions;
    let left = || {
        let mut left = job(vec![open_cluster("a")]);
        left.meta.labels = None;
        left.conditions = reserved.clone();
        left
    };

    let holds = left();
    plan_for(&holds, &[&held]);
    assert!(holds.written_conditions.borrow().is_empty(), "the condition is set already");

    let free = left();
    plan_for(&free, &[]);
    assert_eq!(*free.removed_conditions.borrow(), [ADMITTED, QUOTA_RESERVED, UPGRADE_ADMISSIBLE]);

    let mut never_queued = job(vec![open_cluster("a")]);
    never_queued.meta.labels = None;
    plan_for(&never_queued, &[]);
    assert!(never_queued.written_conditions.borrow().is_empty());
}

#[test]
fn open_template_is_a_warning_only_if_it_was_closed_before() {
    let (active, held) = serving();
    let reopened = FakeJob { template_is_open: true, ..job(vec![active]) };
    let events = plan_for(&reopened, &[&held]).events;
    assert!(matches!(events.as_slice(), [note] if note.warning && note.reason == "TemplateGateClosed"), "{events:?}");

    let new = FakeJob { template_is_open: true, ..job(vec![cluster("a", 2, "1")]) };
    assert!(plan_for(&new, &[]).events.is_empty());
}
