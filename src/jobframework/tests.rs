//! Tests of job reconciliation with a fake job.

mod apart;
mod changes;
mod fitting;
mod fixture;
mod parts;
mod readiness;
mod report;
mod shapes;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::record::Record;
use super::*;
use sluice_api::ray::RayCluster;
use sluice_plan::WriteOp;
use sluice_queue::steps::SLICE_ANNOTATION;

use fixture::*;

#[test]
fn first_cluster_gets_a_slice_and_stays_suspended_until_the_slice_is_admitted() {
    let job = job(vec![cluster("a", 2, "1")]);

    let slice = created(&planned(&job, &[])).expect("a slice");
    assert_eq!(counts(&slice), [("head".to_owned(), 1), ("small".to_owned(), 2)]);
    assert_eq!(slice.spec.queue_name.as_deref(), Some("lq"));
    assert!(planned(&job, &[&slice]).writes.is_empty(), "nothing to do while the slice is pending");
    assert!(gates(&job).is_empty());

    let slice = admitted(slice);
    let plan = planned(&job, &[&slice]);
    assert_eq!(gates(&job), [("a".to_owned(), true)]);
    assert_eq!(
        plan.writes[0].quiet,
        [ObjectRef::of(&slice)],
        "the gate does not open while a write to its slice is in flight"
    );
}

#[test]
fn upgrade_is_a_scale_up_of_the_same_pod_sets() {
    let (active, held) = serving();
    let job = job(vec![active, cluster("b", 2, "1")]);

    let plan = planned(&job, &[&held]);
    let successor = created(&plan).expect("a successor");

    assert_eq!(counts(&successor), [("head".to_owned(), 2), ("small".to_owned(), 4)]);
    let replaces =
        &successor.metadata.annotations.as_ref().expect("annotations")[names::SLICE_REPLACEMENT_FOR_ANNOTATION];
    assert_eq!(*replaces, format!("{NAMESPACE}/{}", held.metadata.name.clone().expect("a name")));
    assert!(gates(&job).is_empty(), "neither gate changes");
    assert!(planned(&job, &[&held, &successor]).writes.is_empty(), "nothing changes while the successor is pending");
}

#[test]
fn slice_created_before_a_cluster_existed_does_not_open_it() {
    // Given a slice that is large enough for two clusters, but was created for two others,
    let (active, _) = serving();
    let others = job(vec![active.clone(), cluster("other", 2, "1")]);
    let big = admitted(created(&planned(&others, &[])).expect("a slice"));

    // when a new cluster is created, then the numbers alone do not open it.
    let job = job(vec![active, cluster("other", 2, "1"), cluster("new", 2, "1")]);
    let plan = planned(&job, &[&big]);
    assert_eq!(gates(&job), [("other".to_owned(), true)]);
    // The other one waits for writes to the new one, which may open that.
    let new = ObjectRef::named::<RayCluster>(Some(NAMESPACE.to_owned()), "new".to_owned());
    let opening = plan.writes.iter().find(|write| write.target == job.reference()).expect("a write to the gate");
    assert_eq!(opening.quiet, [new, ObjectRef::of(&big)]);
}

#[test]
fn cluster_with_other_pod_shapes_in_the_same_groups_gets_separate_pod_sets() {
    let (active, held) = serving();
    let bigger = cluster("b", 2, "2");
    let shape = bigger.groups.as_ref().as_ref().expect("groups")[1].shape.clone();
    let job = job(vec![active, bigger]);

    let successor = created(&planned(&job, &[&held])).expect("a successor");

    let expected = [("head", 1), ("small", 2), (&format!("head-{shape}"), 1), (&format!("small-{shape}"), 2)];
    assert_eq!(counts(&successor), expected.map(|(name, count)| (name.to_owned(), count)));
}

#[test]
fn end_of_the_old_cluster_is_a_scale_down_in_place_once_its_pods_are_gone() {
    let (active, held) = serving();
    let new = cluster("b", 2, "1");
    let successor = created(&planned(&job(vec![active.clone(), new.clone()]), &[&held])).expect("a successor");
    let both = admitted(successor);

    // While its pods terminate, it counts in full,
    let ending = job(vec![going(active.clone()), running(new.clone())]);
    assert!(planned(&ending, &[&both]).writes.is_empty());
    // later it counts by its remaining pods,
    let one_left = left(going(active), &[("headgroup", 1)]);
    let slice =
        patched(&planned(&job(vec![one_left, running(new.clone())]), &[&both]), &both).expect("a smaller slice");
    assert_eq!(counts(&slice), [("head".to_owned(), 2), ("small".to_owned(), 2)]);
    // and once it is gone, it does not count.
    let ended = job(vec![running(new)]);
    let slice = patched(&planned(&ended, &[&both]), &both).expect("a smaller slice");
    assert_eq!(counts(&slice), [("head".to_owned(), 1), ("small".to_owned(), 2)]);
    assert!(gates(&ended).is_empty(), "the new cluster stays open");
}

#[test]
fn pods_of_a_deleted_cluster_keep_their_quota() {
    let (active, held) = serving();
    let new = cluster("b", 2, "1");
    let job = job(vec![new]);
    let gone = Member { groups: Arc::new(Ok(Vec::new())), ..left(going(active), &[("small", 1)]) };

    let plan = plan(&JobView { outlived: vec![gone], ..view(&job, &[&held]) });

    let successor = created(&plan).expect("the demand exceeds the held quota");
    assert_eq!(counts(&successor), [("small".to_owned(), 3), ("head".to_owned(), 1)]);
    assert!(gates(&job).is_empty());
}

#[test]
fn rolled_back_upgrade_deletes_the_successor_and_leaves_the_held_slice() {
    let (active, held) = serving();
    let successor = created(&planned(&job(vec![active.clone(), cluster("b", 2, "1")]), &[&held])).expect("a successor");

    let job = job(vec![active]);
    let plan = planned(&job, &[&held, &successor]);

    assert_eq!(deleted(&plan), [successor.metadata.name.expect("a name")]);
    assert_eq!(plan.writes.len(), 1);
    assert!(gates(&job).is_empty());
}

#[test]
fn cluster_that_replaces_a_deleted_one_uses_the_same_quota() {
    let (_, held) = serving();
    let job = job(vec![cluster("b", 2, "1")]);

    let plan = planned(&job, &[&held]);
    assert!(created(&plan).is_none(), "the held quota is enough");
    assert!(gates(&job).is_empty(), "the slice doesn't name the new cluster yet");

    let renewed = patched(&plan, &held).expect("the slice covers the new cluster");
    planned(&job, &[&renewed]);
    assert_eq!(gates(&job), [("b".to_owned(), true)]);
}

#[test]
fn uncovered_cluster_is_suspended() {
    let (active, held) = serving();
    let opened_by_hand = Member { open: true, ..cluster("b", 2, "1") };

    let both = job(vec![active, opened_by_hand]);
    planned(&both, &[&held]);
    assert_eq!(gates(&both), [("b".to_owned(), false)], "and the covered one stays open");
}

#[test]
fn cluster_that_outgrows_its_slice_stays_open_and_requests_more() {
    let (active, held) = serving();
    let grown = Member { live_pods: active.live_pods.clone(), open: true, ..cluster("a", 3, "1") };

    let job = job(vec![grown.clone()]);
    let plan = planned(&job, &[&held]);

    assert_eq!(counts(&created(&plan).expect("a successor")), [("head".to_owned(), 1), ("small".to_owned(), 3)]);
    assert!(gates(&job).is_empty());
    let grant = slices::Slice::of(&held).grant(&grown);
    assert_eq!(
        grant,
        [("headgroup".to_owned(), 1), ("small".to_owned(), 2)].into(),
        "it gets no more pods until its successor is admitted"
    );
}

#[test]
fn gated_pod_is_ungated_once_a_slice_covers_it() {
    let (active, held) = serving();
    let gated = ungate::GatedPod {
        name: "a-small-3".into(),
        kind: active.groups.iter().flatten().nth(1).expect("workers").kind(),
        index: None,
        replica: None,
        since: Some(Timestamp::UNIX_EPOCH),
    };
    let grown = Member { live_pods: active.live_pods.clone(), gated: vec![gated], open: true, ..cluster("a", 3, "1") };
    let ungated = |plan: &Plan| -> Vec<(String, Vec<ObjectRef>)> {
        let of_pods = plan.writes.iter().filter(|write| write.target.kind == "Pod");
        of_pods.map(|write| (write.target.name.clone(), write.quiet.clone())).collect()
    };

    let plan = planned(&job(vec![grown.clone()]), &[&held]);
    assert_eq!(ungated(&plan), []);

    let larger = admitted(created(&plan).expect("a successor"));
    let covered = planned(&job(vec![grown.clone()]), &[&held, &larger]);
    assert_eq!(
        ungated(&covered),
        [("a/a-small-3".to_owned(), vec![ObjectRef::of(&larger)])],
        "once no write to the slice is in flight"
    );
    assert!(covered.notes.iter().any(|note| note.reason == "PodsUngated"));

    let closed = planned(&job(vec![Member { open: false, ..grown }]), &[&held, &larger]);
    assert_eq!(ungated(&closed), []);
}

#[test]
fn evicted_slice_suspends_all_members_and_is_released_once_their_pods_are_gone() {
    let (active, held) = serving();
    let evicted = with(held, names::EVICTED);

    let stopping = job(vec![active.clone()]);
    assert!(created(&planned(&stopping, &[&evicted])).is_none(), "nothing is requested before the pods are gone");
    assert_eq!(gates(&stopping), [("a".to_owned(), false)]);

    let closed = Member { open: false, ..active };
    let still_there = planned(&job(vec![closed.clone()]), &[&evicted]);
    assert!(still_there.writes.is_empty(), "its pods are still there");

    let stopped = Member { live_pods: BTreeMap::new(), ..closed };
    let plan = planned(&job(vec![stopped]), &[&evicted]);
    assert!(matches!(plan.writes.as_slice(), [Write { op: WriteOp::PatchStatus(_), .. }]), "{plan:?}");
}

#[test]
fn job_suspended_by_its_owner_releases_all_quota() {
    let (active, held) = serving();

    let ending = FakeJob { runs: false, ..job(vec![going(active)]) };
    assert!(planned(&ending, &[&held]).writes.is_empty(), "its pods are still there");
    assert_eq!(
        says(&ending),
        "Suspended: Suspended by its owner: slice rayservice-svc-7d3e5-1 holds quota until its pods are gone"
    );

    let ended = FakeJob { runs: false, ..job(Vec::new()) };
    let plan = planned(&ended, &[&held]);
    assert!(matches!(plan.writes.as_slice(), [Write { op: WriteOp::PatchStatus(_), .. }]), "{plan:?}");

    let over = with(held, names::FINISHED);
    planned(&ended, &[&over]);
    assert_eq!(says(&ended), "Suspended: Suspended by its owner: the job holds no quota");
}

#[test]
fn sequence_numbers_only_grow_and_finished_slices_are_deleted() {
    let (active, held) = serving();
    let over = with(held, names::FINISHED);
    let job = job(vec![active]);

    let next = created(&planned(&job, &[&over])).expect("a new slice");
    assert_eq!(Record::of(&next).expect("a record").sequence, 2);
    assert!(next.metadata.name.as_ref().is_some_and(|name| name.ends_with("-2")));
    assert_eq!(deleted(&planned(&job, &[&over, &next])), [over.metadata.name.expect("a name")]);
}

#[test]
fn slice_with_an_invalid_record_opens_no_gate() {
    let (_, mut held) = serving();
    held.metadata.annotations.get_or_insert_default().insert(SLICE_ANNOTATION.into(), "{\"members\": 7}".into());
    let job = job(vec![cluster("a", 2, "1")]);

    planned(&job, &[&held]);
    assert!(gates(&job).is_empty());
}

#[test]
fn finalizer_of_a_deleted_workload_is_removed_once_no_pod_uses_its_quota() {
    let (_, held) = serving();
    let mut deleted = held;
    deleted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));

    assert!(release(&deleted, true).writes.is_empty());
    assert_eq!(release(&deleted, false).writes.len(), 1);
}

#[test]
fn misconfigured_job_keeps_running_until_its_slice_is_evicted() {
    let (active, held) = serving();
    let broken = Member { groups: Arc::new(Err("spec.headGroupSpec: broken".into())), ..active };

    let kept = job(vec![broken.clone()]);
    assert!(planned(&kept, &[&held]).writes.is_empty());
    assert!(gates(&kept).is_empty());
    assert_eq!(
        kept.said(sluice_api::sluice::ADMITTED).map(|shown| shown.message),
        Some("spec.headGroupSpec: broken".into())
    );

    let evicted = job(vec![broken]);
    planned(&evicted, &[&with(held, names::EVICTED)]);
    assert_eq!(gates(&evicted), [("a".to_owned(), false)]);
}

#[test]
fn pods_of_a_removed_group_keep_their_quota_until_they_are_gone() {
    let (active, held) = serving();
    let mut groups = active.groups.as_ref().clone().expect("groups");
    groups.truncate(1);
    let without = Member { groups: Arc::new(Ok(groups)), ..active };

    assert!(planned(&job(vec![without.clone()]), &[&held]).writes.is_empty(), "both workers are still there");

    let one_left = left(without, &[("headgroup", 1), ("small", 1)]);
    let slice = patched(&planned(&job(vec![one_left]), &[&held]), &held).expect("a smaller slice");
    assert_eq!(counts(&slice), [("head".to_owned(), 1), ("small".to_owned(), 1)]);
}

#[test]
fn job_without_a_queue_name_is_not_managed() {
    let (active, held) = serving();
    let mut free = job(vec![active, Member { open: true, ..cluster("b", 2, "1") }]);
    free.meta.labels = None;

    assert!(planned(&free, &[]).writes.is_empty());
    assert_eq!(
        deleted(&planned(&free, &[&held])),
        [held.metadata.name.clone().expect("a name")],
        "the job left its queue"
    );
    assert!(gates(&free).is_empty());
}

#[test]
fn evicted_successor_stays_pending_under_the_same_name() {
    let (active, held) = serving();
    let both = job(vec![active.clone(), cluster("b", 2, "1")]);
    let successor = created(&planned(&both, &[&held])).expect("a successor");

    // Given that it was admitted, evicted and released, and that its predecessor is gone,
    let stopped = |member: Member| Member { open: false, live_pods: BTreeMap::new(), ..member };
    let idle = job(vec![stopped(active), cluster("b", 2, "1")]);
    let plan = planned(&idle, &[&successor]);

    // then it keeps its position in the queue.
    assert!(plan.writes.is_empty(), "{plan:?}");
}
