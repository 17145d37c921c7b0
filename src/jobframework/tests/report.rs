//! Conditions of a job.

use super::*;
use sluice_api::sluice::{ADMITTED, QUOTA_RESERVED};

/// Status and message of a condition.
fn said(job: &FakeJob, kind: &str) -> Option<(String, String)> {
    job.said(kind).map(|said| (said.status, said.message))
}

fn status(job: &FakeJob, kind: &str) -> Option<String> {
    job.said(kind).map(|said| said.status)
}

/// The slice after the queue has decided that it stays pending.
fn looked_at(slice: Workload) -> Workload {
    let mut slice = with(slice, names::QUOTA_RESERVED);
    for condition in &mut slice.status.get_or_insert_default().conditions {
        condition.status = "False".into();
    }
    slice
}

fn open(name: &str) -> Member {
    Member { open: true, ..cluster(name, 2, "1") }
}

#[test]
fn admitted_job_names_its_slice_and_its_cluster_queue() {
    let (active, held) = serving();
    let job = job(vec![active]);

    planned(&job, &[&held]);

    let slice = held.metadata.name.expect("a name");
    let text = format!("Slice {slice} holds quota in ClusterQueue cq for a");
    assert_eq!(said(&job, ADMITTED), Some(("True".into(), text.clone())));
    assert_eq!(said(&job, QUOTA_RESERVED), Some(("True".into(), text)));
}

#[test]
fn job_with_a_pending_upgrade_is_not_admitted_and_still_holds_quota() {
    let (active, held) = serving();
    let both = vec![active, cluster("b", 2, "1")];
    let waiting = created(&planned(&job(both.clone()), &[&held])).expect("a successor");

    // Before the first decision about the successor, only QuotaReserved is set.
    let job_before = job(both.clone());
    planned(&job_before, &[&held, &waiting]);
    assert_eq!((status(&job_before, ADMITTED), status(&job_before, QUOTA_RESERVED)), (None, Some("True".into())));

    let job_after = job(both);
    planned(&job_after, &[&held, &looked_at(waiting)]);
    let statuses = (status(&job_after, ADMITTED), status(&job_after, QUOTA_RESERVED));
    assert_eq!(statuses, (Some("False".into()), Some("True".into())));
}

#[test]
fn quota_is_reported_as_reserved_until_it_is_released() {
    let (active, held) = serving();

    let evicted = job(vec![active.clone()]);
    planned(&evicted, &[&with(held.clone(), names::EVICTED)]);
    assert_eq!(status(&evicted, QUOTA_RESERVED), Some("True".into()));

    let suspended = FakeJob { runs: false, ..job(vec![active]) };
    planned(&suspended, &[&held]);
    assert_eq!(status(&suspended, QUOTA_RESERVED), Some("True".into()));

    let over = FakeJob { runs: false, ..job(Vec::new()) };
    planned(&over, &[&with(held, names::FINISHED)]);
    assert_eq!(said(&over, QUOTA_RESERVED), Some(("False".into(), "No slice of the job holds quota".into())));
}

#[test]
fn new_job_has_no_conditions_before_the_first_decision() {
    let new = job(vec![cluster("a", 2, "1")]);
    planned(&new, &[]);
    assert!(new.shown.borrow().is_empty());
}

#[test]
fn job_that_left_its_queue_reports_it_once_its_quota_is_released() {
    let (_, held) = serving();
    let reserved = with(Workload::default(), QUOTA_RESERVED).status.expect("a status").conditions;
    let left = || {
        let mut left = job(vec![open("a")]);
        left.meta.labels = None;
        left.known = reserved.clone();
        left
    };

    let holds = left();
    planned(&holds, &[&held]);
    assert!(holds.shown.borrow().is_empty(), "the condition is set already");

    let free = left();
    planned(&free, &[]);
    assert_eq!((status(&free, ADMITTED), status(&free, QUOTA_RESERVED)), (None, Some("False".into())));

    let mut never_queued = job(vec![open("a")]);
    never_queued.meta.labels = None;
    planned(&never_queued, &[]);
    assert!(never_queued.shown.borrow().is_empty());
}

#[test]
fn open_template_is_a_warning_only_if_it_was_closed_before() {
    let (active, held) = serving();
    let reopened = FakeJob { template_is_open: true, ..job(vec![active]) };
    let events = planned(&reopened, &[&held]).notes;
    assert!(matches!(events.as_slice(), [note] if note.warning && note.reason == "TemplateGateClosed"), "{events:?}");

    let new = FakeJob { template_is_open: true, ..job(vec![cluster("a", 2, "1")]) };
    assert!(planned(&new, &[]).notes.is_empty());
}
