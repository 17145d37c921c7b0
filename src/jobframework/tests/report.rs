//! What a job says of itself.

use super::*;
use sluice_api::sluice::{ADMITTED, QUOTA_RESERVED};

/// Status and message of a condition.
fn said(job: &FakeJob, kind: &str) -> Option<(String, String)> {
    job.said(kind).map(|said| (said.status, said.message))
}

fn status(job: &FakeJob, kind: &str) -> Option<String> {
    job.said(kind).map(|said| said.status)
}

/// The queue has looked at a slice, and let it wait.
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
fn a_job_that_is_admitted_says_which_slice_holds_its_quota_and_where() {
    let (active, held) = serving();
    let job = job(vec![active]);

    planned(&job, &[&held]);

    let slice = held.metadata.name.expect("a name");
    let text = format!("Slice {slice} holds quota in ClusterQueue cq for a");
    assert_eq!(said(&job, ADMITTED), Some(("True".into(), text.clone())));
    assert_eq!(said(&job, QUOTA_RESERVED), Some(("True".into(), text)));
}

#[test]
fn while_an_upgrade_waits_the_job_is_not_admitted_and_still_holds_quota() {
    let (active, held) = serving();
    let both = vec![active, cluster("b", 2, "1")];
    let waiting = created(&planned(&job(both.clone()), &[&held])).expect("a successor");

    // Before the queue has looked at the successor only the quota is told of.
    let job_before = job(both.clone());
    planned(&job_before, &[&held, &waiting]);
    assert_eq!((status(&job_before, ADMITTED), status(&job_before, QUOTA_RESERVED)), (None, Some("True".into())));

    let job_after = job(both);
    planned(&job_after, &[&held, &looked_at(waiting)]);
    let statuses = (status(&job_after, ADMITTED), status(&job_after, QUOTA_RESERVED));
    assert_eq!(statuses, (Some("False".into()), Some("True".into())));
}

#[test]
fn quota_that_is_to_be_given_back_is_held_until_that_is_done() {
    let (active, held) = serving();

    let evicted = job(vec![active.clone()]);
    planned(&evicted, &[&with(held.clone(), names::EVICTED)]);
    assert_eq!(status(&evicted, QUOTA_RESERVED), Some("True".into()));

    let suspended = FakeJob { runs: false, ..job(vec![active]) };
    planned(&suspended, &[&held]);
    assert_eq!(status(&suspended, QUOTA_RESERVED), Some("True".into()));

    let over = FakeJob { runs: false, ..job(Vec::new()) };
    planned(&over, &[&with(held, names::FINISHED)]);
    assert_eq!(said(&over, QUOTA_RESERVED), Some(("False".into(), "No slice of it holds quota".into())));
}

#[test]
fn a_new_job_says_nothing_before_there_is_something_to_say() {
    let new = job(vec![cluster("a", 2, "1")]);
    planned(&new, &[]);
    assert!(new.shown.borrow().is_empty());
}

#[test]
fn a_job_that_left_its_queue_says_so_once_its_quota_is_given_back() {
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
    assert!(holds.shown.borrow().is_empty(), "it is said already");

    let free = left();
    planned(&free, &[]);
    assert_eq!((status(&free, ADMITTED), status(&free, QUOTA_RESERVED)), (None, Some("False".into())));

    let mut never_queued = job(vec![open("a")]);
    never_queued.meta.labels = None;
    planned(&never_queued, &[]);
    assert!(never_queued.shown.borrow().is_empty());
}

#[test]
fn only_a_template_that_was_closed_before_is_worth_a_warning_when_it_is_open() {
    let (active, held) = serving();
    let reopened = FakeJob { template_is_open: true, ..job(vec![active]) };
    let told = planned(&reopened, &[&held]).notes;
    assert!(matches!(told.as_slice(), [note] if note.warning && note.reason == "TemplateGateClosed"), "{told:?}");

    let new = FakeJob { template_is_open: true, ..job(vec![cluster("a", 2, "1")]) };
    assert!(planned(&new, &[]).notes.is_empty());
}
