//! What the framework decides, in a job whose members are given.

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
fn a_first_cluster_gets_a_slice_and_stays_closed_until_that_is_admitted() {
    let job = job(vec![cluster("a", 2, "1")]);

    let slice = created(&planned(&job, &[])).expect("a slice");
    assert_eq!(counts(&slice), [("head".to_owned(), 1), ("small".to_owned(), 2)]);
    assert_eq!(slice.spec.queue_name.as_deref(), Some("lq"));
    assert!(planned(&job, &[&slice]).writes.is_empty(), "nothing to do while it waits");
    assert!(gates(&job).is_empty());

    let slice = admitted(slice);
    let plan = planned(&job, &[&slice]);
    assert_eq!(gates(&job), [("a".to_owned(), true)]);
    assert_eq!(plan.writes[0].quiet, [ObjectRef::of(&slice)], "it isn't opened while its slice is written");
}

#[test]
fn an_upgrade_is_a_scale_up_under_the_same_names() {
    let (active, held) = serving();
    let job = job(vec![active, cluster("b", 2, "1")]);

    let plan = planned(&job, &[&held]);
    let successor = created(&plan).expect("a successor");

    assert_eq!(counts(&successor), [("head".to_owned(), 2), ("small".to_owned(), 4)]);
    let replaces =
        &successor.metadata.annotations.as_ref().expect("annotations")[names::SLICE_REPLACEMENT_FOR_ANNOTATION];
    assert_eq!(*replaces, format!("{NAMESPACE}/{}", held.metadata.name.clone().expect("a name")));
    assert!(gates(&job).is_empty(), "neither the new cluster is opened nor the old one closed");
    assert!(planned(&job, &[&held, &successor]).writes.is_empty(), "and so it stays while the successor waits");
}

#[test]
fn a_slice_that_was_made_before_a_cluster_existed_does_not_open_it() {
    // Given a slice that is big enough for two clusters by its numbers, but was made for others,
    let (active, _) = serving();
    let others = job(vec![active.clone(), cluster("other", 2, "1")]);
    let big = admitted(created(&planned(&others, &[])).expect("a slice"));

    // when a new cluster comes up, it isn't opened on the strength of the numbers.
    let job = job(vec![active, cluster("other", 2, "1"), cluster("new", 2, "1")]);
    let plan = planned(&job, &[&big]);
    assert_eq!(gates(&job), [("other".to_owned(), true)]);
    // Nor is another one opened while the new one is written: that may be what opens it.
    let new = ObjectRef::named::<RayCluster>(Some(NAMESPACE.to_owned()), "new".to_owned());
    let opening = plan.writes.iter().find(|write| write.target == job.reference()).expect("it is opened");
    assert_eq!(opening.quiet, [new, ObjectRef::of(&big)]);
}

#[test]
fn a_cluster_with_other_pods_under_the_same_group_name_is_counted_apart() {
    let (active, held) = serving();
    let bigger = cluster("b", 2, "2");
    let shape = bigger.groups.as_ref().as_ref().expect("groups")[1].shape.clone();
    let job = job(vec![active, bigger]);

    let successor = created(&planned(&job, &[&held])).expect("a successor");

    let expected = [("head", 1), ("small", 2), (&format!("head-{shape}"), 1), (&format!("small-{shape}"), 2)];
    assert_eq!(counts(&successor), expected.map(|(name, count)| (name.to_owned(), count)));
}

#[test]
fn the_end_of_the_old_cluster_is_a_scale_down_in_place_once_its_pods_are_gone() {
    let (active, held) = serving();
    let new = cluster("b", 2, "1");
    let successor = created(&planned(&job(vec![active.clone(), new.clone()]), &[&held])).expect("a successor");
    let both = admitted(successor);

    // While its pods terminate it counts in full,
    let ending = job(vec![going(active.clone()), running(new.clone())]);
    assert!(planned(&ending, &[&both]).writes.is_empty());
    // and for what is left of it later on,
    let one_left = left(going(active), &[("headgroup", 1)]);
    let slice =
        patched(&planned(&job(vec![one_left, running(new.clone())]), &[&both]), &both).expect("a smaller slice");
    assert_eq!(counts(&slice), [("head".to_owned(), 2), ("small".to_owned(), 2)]);
    // until it is gone.
    let ended = job(vec![running(new)]);
    let slice = patched(&planned(&ended, &[&both]), &both).expect("a smaller slice");
    assert_eq!(counts(&slice), [("head".to_owned(), 1), ("small".to_owned(), 2)]);
    assert!(gates(&ended).is_empty(), "the new cluster stays open");
}

#[test]
fn pods_whose_cluster_is_gone_keep_their_quota() {
    let (active, held) = serving();
    let new = cluster("b", 2, "1");
    let job = job(vec![new]);
    let gone = Member { groups: Arc::new(Ok(Vec::new())), ..left(going(active), &[("small", 1)]) };

    let plan = plan(&JobView { outlived: vec![gone], ..view(&job, &[&held]) });

    let successor = created(&plan).expect("more is needed than is held");
    assert_eq!(counts(&successor), [("small".to_owned(), 3), ("head".to_owned(), 1)]);
    assert!(gates(&job).is_empty());
}

#[test]
fn a_change_taken_back_drops_the_successor_and_leaves_what_is_held() {
    let (active, held) = serving();
    let successor = created(&planned(&job(vec![active.clone(), cluster("b", 2, "1")]), &[&held])).expect("a successor");

    let job = job(vec![active]);
    let plan = planned(&job, &[&held, &successor]);

    assert_eq!(deleted(&plan), [successor.metadata.name.expect("a name")]);
    assert_eq!(plan.writes.len(), 1);
    assert!(gates(&job).is_empty());
}

#[test]
fn a_cluster_that_takes_the_place_of_one_that_is_gone_runs_on_the_same_quota() {
    let (_, held) = serving();
    let job = job(vec![cluster("b", 2, "1")]);

    let plan = planned(&job, &[&held]);
    assert!(created(&plan).is_none(), "no more is needed than is held");
    assert!(gates(&job).is_empty(), "the slice doesn't name the new cluster yet");

    let renewed = patched(&plan, &held).expect("the slice is made out to the new cluster");
    planned(&job, &[&renewed]);
    assert_eq!(gates(&job), [("b".to_owned(), true)]);
}

#[test]
fn a_cluster_that_nothing_pays_for_is_closed() {
    let (active, held) = serving();
    let opened_by_hand = Member { open: true, ..cluster("b", 2, "1") };

    let both = job(vec![active, opened_by_hand]);
    planned(&both, &[&held]);
    assert_eq!(gates(&both), [("b".to_owned(), false)], "and what is paid for stays open");
}

#[test]
fn a_cluster_that_outgrows_its_slice_stays_open_and_asks_for_more() {
    let (active, held) = serving();
    let grown = Member { live_pods: active.live_pods.clone(), open: true, ..cluster("a", 3, "1") };

    let job = job(vec![grown.clone()]);
    let plan = planned(&job, &[&held]);

    assert_eq!(counts(&created(&plan).expect("a successor")), [("head".to_owned(), 1), ("small".to_owned(), 3)]);
    assert!(gates(&job).is_empty());
    let grant = slices::Slice::of(&held).grant(&grown);
    assert_eq!(grant, [("headgroup".to_owned(), 1), ("small".to_owned(), 2)].into(), "until then it gets no more pods");
}

#[test]
fn a_pod_behind_a_scheduling_gate_runs_once_a_slice_pays_for_it() {
    let (active, held) = serving();
    let gated = ungate::GatedPod {
        name: "a-small-3".into(),
        kind: active.groups.iter().flatten().nth(1).expect("workers").kind(),
        index: None,
        replica: None,
        since: Some(Timestamp::UNIX_EPOCH),
    };
    let grown = Member { live_pods: active.live_pods.clone(), gated: vec![gated], open: true, ..cluster("a", 3, "1") };
    let released = |plan: &Plan| -> Vec<(String, Vec<ObjectRef>)> {
        let of_pods = plan.writes.iter().filter(|write| write.target.kind == "Pod");
        of_pods.map(|write| (write.target.name.clone(), write.quiet.clone())).collect()
    };

    let plan = planned(&job(vec![grown.clone()]), &[&held]);
    assert_eq!(released(&plan), []);

    let larger = admitted(created(&plan).expect("a successor"));
    let paid = planned(&job(vec![grown.clone()]), &[&held, &larger]);
    assert_eq!(
        released(&paid),
        [("a/a-small-3".to_owned(), vec![ObjectRef::of(&larger)])],
        "once nothing is written of it"
    );
    assert!(paid.notes.iter().any(|note| note.reason == "PodsUngated"));

    let closed = planned(&job(vec![Member { open: false, ..grown }]), &[&held, &larger]);
    assert_eq!(released(&closed), []);
}

#[test]
fn an_evicted_slice_closes_everything_and_is_given_back_once_the_pods_are_gone() {
    let (active, held) = serving();
    let evicted = with(held, names::EVICTED);

    let stopping = job(vec![active.clone()]);
    assert!(created(&planned(&stopping, &[&evicted])).is_none(), "nothing is asked for before it has stopped");
    assert_eq!(gates(&stopping), [("a".to_owned(), false)]);

    let closed = Member { open: false, ..active };
    let still_there = planned(&job(vec![closed.clone()]), &[&evicted]);
    assert!(still_there.writes.is_empty(), "its pods are still there");

    let stopped = Member { live_pods: BTreeMap::new(), ..closed };
    let plan = planned(&job(vec![stopped]), &[&evicted]);
    assert!(matches!(plan.writes.as_slice(), [Write { op: WriteOp::PatchStatus(_), .. }]), "{plan:?}");
}

#[test]
fn a_job_that_is_stopped_by_its_owner_gives_everything_back() {
    let (active, held) = serving();

    let ending = FakeJob { runs: false, ..job(vec![going(active)]) };
    assert!(planned(&ending, &[&held]).writes.is_empty(), "its pods are still there");
    assert_eq!(
        says(&ending),
        "Suspended: Its owner has suspended it: slice rayservice-svc-7d3e5-1 holds quota until its pods are gone"
    );

    let ended = FakeJob { runs: false, ..job(Vec::new()) };
    let plan = planned(&ended, &[&held]);
    assert!(matches!(plan.writes.as_slice(), [Write { op: WriteOp::PatchStatus(_), .. }]), "{plan:?}");

    let over = with(held, names::FINISHED);
    planned(&ended, &[&over]);
    assert_eq!(says(&ended), "Suspended: Its owner has suspended it: it holds no quota");
}

#[test]
fn sequence_numbers_only_grow_and_slices_that_are_over_are_cleaned_up() {
    let (active, held) = serving();
    let over = with(held, names::FINISHED);
    let job = job(vec![active]);

    let next = created(&planned(&job, &[&over])).expect("a new slice");
    assert_eq!(Record::of(&next).expect("a record").sequence, 2);
    assert!(next.metadata.name.as_ref().is_some_and(|name| name.ends_with("-2")));
    assert_eq!(deleted(&planned(&job, &[&over, &next])), [over.metadata.name.expect("a name")]);
}

#[test]
fn a_slice_whose_record_was_tampered_with_opens_nothing() {
    let (_, mut held) = serving();
    held.metadata.annotations.get_or_insert_default().insert(SLICE_ANNOTATION.into(), "{\"members\": 7}".into());
    let job = job(vec![cluster("a", 2, "1")]);

    planned(&job, &[&held]);
    assert!(gates(&job).is_empty());
}

#[test]
fn a_workload_that_is_being_deleted_goes_once_nothing_runs_on_it() {
    let (_, held) = serving();
    let mut going = held;
    going.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));

    assert!(release(&going, true).writes.is_empty());
    assert_eq!(release(&going, false).writes.len(), 1);
}

#[test]
fn a_job_that_can_not_be_queued_keeps_what_runs_and_loses_it_when_that_is_evicted() {
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
fn pods_of_a_group_that_was_removed_keep_their_quota_until_they_are_gone() {
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
fn a_job_that_names_no_queue_is_left_alone() {
    let (active, held) = serving();
    let mut free = job(vec![active, Member { open: true, ..cluster("b", 2, "1") }]);
    free.meta.labels = None;

    assert!(planned(&free, &[]).writes.is_empty());
    assert_eq!(deleted(&planned(&free, &[&held])), [held.metadata.name.clone().expect("a name")], "it left its queue");
    assert!(gates(&free).is_empty());
}

#[test]
fn a_successor_that_was_evicted_waits_on_under_its_own_name() {
    let (active, held) = serving();
    let both = job(vec![active.clone(), cluster("b", 2, "1")]);
    let successor = created(&planned(&both, &[&held])).expect("a successor");

    // Given that it was admitted, evicted and given back, and what it replaced is gone,
    let stopped = |member: Member| Member { open: false, live_pods: BTreeMap::new(), ..member };
    let idle = job(vec![stopped(active), cluster("b", 2, "1")]);
    let plan = planned(&idle, &[&successor]);

    // then it keeps its place in the queue.
    assert!(plan.writes.is_empty(), "{plan:?}");
}
