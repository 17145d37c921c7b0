//! Tests of job reconciliation with a fake job.

mod adoption;
mod changes;
mod conditions;
mod fixture;
mod flavor_split;
mod partial_preemption;
mod pod_shapes;
mod readiness;
mod retention;
mod upgrade_feasibility;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_core::ResourceExt;
use rstest::rstest;

use super::slice_record::SliceRecord;
use super::*;
use sluice_api::ray::RayCluster;
use sluice_plan::{ObjectRef, WriteOp};
use sluice_queue::partial_admission::SLICE_ANNOTATION;

use fixture::*;

#[test]
fn first_cluster_gets_a_slice_and_stays_suspended_until_the_slice_is_admitted() {
    let job = job(vec![cluster("a", 2, "1")]);

    let slice = created_slice(&plan_for(&job, &[])).expect("a slice");
    assert_eq!(counts(&slice), [("head".to_owned(), 1), ("small".to_owned(), 2)]);
    assert_eq!(slice.spec.queue_name.as_deref(), Some("lq"));
    assert!(plan_for(&job, &[&slice]).writes.is_empty(), "nothing to do while the slice is pending");
    assert!(gate_writes(&job).is_empty());

    let slice = admitted(slice);
    let plan = plan_for(&job, &[&slice]);
    assert_eq!(gate_writes(&job), [("a".to_owned(), true)]);
    assert_eq!(
        plan.writes[0].blocked_by,
        [ObjectRef::of(&slice)],
        "the gate does not open while a write to its slice is in flight"
    );
}

#[test]
fn upgrade_is_a_scale_up_of_the_same_pod_sets() {
    let (active, held) = serving();
    let job = job(vec![active, cluster("b", 2, "1")]);

    let plan = plan_for(&job, &[&held]);
    let successor = created_slice(&plan).expect("a successor");

    assert_eq!(counts(&successor), [("head".to_owned(), 2), ("small".to_owned(), 4)]);
    let replaces =
        &successor.metadata.annotations.as_ref().expect("annotations")[names::SLICE_REPLACEMENT_FOR_ANNOTATION];
    assert_eq!(*replaces, format!("{NAMESPACE}/{}", held.metadata.name.clone().expect("a name")));
    assert!(gate_writes(&job).is_empty(), "neither gate changes");
    assert!(plan_for(&job, &[&held, &successor]).writes.is_empty(), "nothing changes while the successor is pending");
}

#[test]
fn slice_created_before_a_cluster_existed_does_not_open_it() {
    // Given a slice that is large enough for two clusters, but was created for two others,
    let (active, _) = serving();
    let others = job(vec![active.clone(), cluster("other", 2, "1")]);
    let big = admitted(created_slice(&plan_for(&others, &[])).expect("a slice"));

    // when a new cluster is created, then the numbers alone do not open it.
    let job = job(vec![active, cluster("other", 2, "1"), cluster("new", 2, "1")]);
    let plan = plan_for(&job, &[&big]);
    assert_eq!(gate_writes(&job), [("other".to_owned(), true)]);
    // The other one waits for writes to the new one, which may open that.
    let new = ObjectRef::named::<RayCluster>(Some(NAMESPACE.to_owned()), "new".to_owned());
    let opening = plan.writes.iter().find(|write| write.target == job.reference()).expect("a write to the gate");
    assert_eq!(opening.blocked_by, [new, ObjectRef::of(&big)]);
}

#[test]
fn cluster_with_other_pod_shapes_in_the_same_groups_gets_separate_pod_sets() {
    let (active, held) = serving();
    let bigger = cluster("b", 2, "2");
    let shape = bigger.groups.as_ref().as_ref().expect("groups")[1].shape.clone();
    let job = job(vec![active, bigger]);

    let successor = created_slice(&plan_for(&job, &[&held])).expect("a successor");

    let expected = [("head", 1), ("small", 2), (&format!("head-{shape}"), 1), (&format!("small-{shape}"), 2)];
    assert_eq!(counts(&successor), expected.map(|(name, count)| (name.to_owned(), count)));
}

#[test]
fn end_of_the_old_cluster_is_a_scale_down_in_place_once_its_pods_are_gone() {
    let (active, held) = serving();
    let new = cluster("b", 2, "1");
    let successor = created_slice(&plan_for(&job(vec![active.clone(), new.clone()]), &[&held])).expect("a successor");
    let both = admitted(successor);

    // While its pods terminate, it counts in full,
    let ending = job(vec![terminating(active.clone()), running(new.clone())]);
    assert!(plan_for(&ending, &[&both]).writes.is_empty());
    // later it counts by its remaining pods,
    let one_left = with_remaining_pods(terminating(active), &[("headgroup", 1)]);
    let slice =
        patched_slice(&plan_for(&job(vec![one_left, running(new.clone())]), &[&both]), &both).expect("a smaller slice");
    assert_eq!(counts(&slice), [("head".to_owned(), 2), ("small".to_owned(), 2)]);
    // and once it is gone, it does not count.
    let ended = job(vec![running(new)]);
    let slice = patched_slice(&plan_for(&ended, &[&both]), &both).expect("a smaller slice");
    assert_eq!(counts(&slice), [("head".to_owned(), 1), ("small".to_owned(), 2)]);
    assert!(gate_writes(&ended).is_empty(), "the new cluster stays open");
}

#[test]
fn pods_of_a_deleted_cluster_keep_their_quota() {
    let (active, held) = serving();
    let new = cluster("b", 2, "1");
    let job = job(vec![new]);
    let gone = Member { groups: Arc::new(Ok(Vec::new())), ..with_remaining_pods(terminating(active), &[("small", 1)]) };

    let plan = plan(&ReconcileContext { orphaned_members: vec![gone], ..context(&job, &[&held]) });

    let successor = created_slice(&plan).expect("the demand exceeds the held quota");
    assert_eq!(counts(&successor), [("small".to_owned(), 3), ("head".to_owned(), 1)]);
    assert!(gate_writes(&job).is_empty());
}

#[test]
fn rolled_back_upgrade_deletes_the_successor_and_leaves_the_held_slice() {
    let (active, held) = serving();
    let successor =
        created_slice(&plan_for(&job(vec![active.clone(), cluster("b", 2, "1")]), &[&held])).expect("a successor");

    let job = job(vec![active]);
    let plan = plan_for(&job, &[&held, &successor]);

    assert_eq!(deleted_names(&plan), [successor.metadata.name.expect("a name")]);
    assert_eq!(plan.writes.len(), 1);
    assert!(gate_writes(&job).is_empty());
}

#[test]
fn cluster_that_replaces_a_deleted_one_uses_the_same_quota() {
    let (_, held) = serving();
    let job = job(vec![cluster("b", 2, "1")]);

    let plan = plan_for(&job, &[&held]);
    assert!(created_slice(&plan).is_none(), "the held quota is enough");
    assert!(gate_writes(&job).is_empty(), "the slice doesn't name the new cluster yet");

    let renewed = patched_slice(&plan, &held).expect("the slice covers the new cluster");
    plan_for(&job, &[&renewed]);
    assert_eq!(gate_writes(&job), [("b".to_owned(), true)]);
}

#[rstest]
#[case::suspended(false, false, &[("a", true)])]
#[case::resumed(true, false, &[])]
#[case::suspended_with_pods_that_are_terminating(false, true, &[])]
fn finishing_job_is_open_without_a_slice_once_its_pods_are_gone(
    #[case] is_open: bool,
    #[case] has_pods: bool,
    #[case] expected: &[(&str, bool)],
) {
    let member = if has_pods { running(cluster("a", 2, "1")) } else { cluster("a", 2, "1") };
    let job = FakeJob { is_finishing: true, ..job(vec![Member { is_open, ..member }]) };
    plan_for(&job, &[]);
    let writes = gate_writes(&job);
    assert_eq!(writes.iter().map(|(name, gate)| (name.as_str(), *gate)).collect::<Vec<_>>(), expected);
}

#[test]
fn finishing_job_is_resumed_although_its_slice_is_of_the_queue_that_it_left() {
    let (active, mut held) = serving();
    held.spec.queue_name = Some("left".to_owned());
    let stopped = Member { is_open: false, live_pods: BTreeMap::new(), ..active };
    let job = FakeJob { is_finishing: true, ..job(vec![stopped]) };
    plan_for(&job, &[&held]);
    assert_eq!(gate_writes(&job), [("a".to_owned(), true)]);
}

#[test]
fn uncovered_cluster_is_suspended() {
    let (active, held) = serving();
    let opened_by_hand = Member { is_open: true, ..cluster("b", 2, "1") };

    let both = job(vec![active, opened_by_hand]);
    plan_for(&both, &[&held]);
    assert_eq!(gate_writes(&both), [("b".to_owned(), false)], "and the covered one stays open");
}

#[test]
fn cluster_that_outgrows_its_slice_stays_open_and_requests_more() {
    let (active, held) = serving();
    let grown = Member { live_pods: active.live_pods.clone(), is_open: true, ..cluster("a", 3, "1") };

    let job = job(vec![grown.clone()]);
    let plan = plan_for(&job, &[&held]);

    assert_eq!(counts(&created_slice(&plan).expect("a successor")), [("head".to_owned(), 1), ("small".to_owned(), 3)]);
    assert!(gate_writes(&job).is_empty());
    let grant = slices::Slice::from_workload(&held).granted_pods(&grown);
    assert_eq!(
        grant,
        [("headgroup".to_owned(), 1), ("small".to_owned(), 2)].into(),
        "it gets no more pods until its successor is admitted"
    );
}

#[test]
fn gated_pod_is_ungated_once_a_slice_covers_it() {
    let (active, held) = serving();
    let gated = GatedPod {
        name: "a-small-3".into(),
        kind: active.groups.iter().flatten().nth(1).expect("workers").kind(),
        is_counted: false,
        replica_index: None,
        replica: None,
        created_at: Some(Timestamp::UNIX_EPOCH),
    };
    let grown =
        Member { live_pods: active.live_pods.clone(), gated_pods: vec![gated], is_open: true, ..cluster("a", 3, "1") };
    let ungated = |plan: &Plan| -> Vec<(String, Vec<ObjectRef>)> {
        let of_pods = plan.writes.iter().filter(|write| write.target.kind == "Pod");
        of_pods.map(|write| (write.target.name.clone(), write.blocked_by.clone())).collect()
    };

    let plan = plan_for(&job(vec![grown.clone()]), &[&held]);
    assert_eq!(ungated(&plan), []);

    let larger = admitted(created_slice(&plan).expect("a successor"));
    let covered = plan_for(&job(vec![grown.clone()]), &[&held, &larger]);
    assert_eq!(
        ungated(&covered),
        [("a/a-small-3".to_owned(), vec![ObjectRef::of(&larger)])],
        "once no write to the slice is in flight"
    );
    assert!(covered.events.iter().any(|note| note.reason == "PodsUngated"));

    let closed = plan_for(&job(vec![Member { is_open: false, ..grown }]), &[&held, &larger]);
    assert_eq!(ungated(&closed), []);
}

#[test]
fn evicted_slice_suspends_all_members_and_is_released_once_their_pods_are_gone() {
    let (active, held) = serving();
    let evicted = with_condition(held, names::EVICTED);

    let stopping = job(vec![active.clone()]);
    assert!(
        created_slice(&plan_for(&stopping, &[&evicted])).is_none(),
        "nothing is requested before the pods are gone"
    );
    assert_eq!(gate_writes(&stopping), [("a".to_owned(), false)]);

    let closed = Member { is_open: false, ..active };
    let still_there = plan_for(&job(vec![closed.clone()]), &[&evicted]);
    assert!(still_there.writes.is_empty(), "its pods are still there");

    let stopped = Member { live_pods: BTreeMap::new(), ..closed };
    let plan = plan_for(&job(vec![stopped]), &[&evicted]);
    assert!(matches!(plan.writes.as_slice(), [Write { op: WriteOp::PatchStatus(_), .. }]), "{plan:?}");
}

#[test]
fn job_suspended_by_its_owner_releases_all_quota() {
    let (active, held) = serving();

    let ending = FakeJob { wants_to_run: false, ..job(vec![terminating(active)]) };
    assert!(plan_for(&ending, &[&held]).writes.is_empty(), "its pods are still there");
    assert_eq!(
        not_admitted_message(&ending),
        "Suspended: Suspended by its owner: slice rayservice-svc-aa26c holds quota until its pods are gone"
    );

    let ended = FakeJob { wants_to_run: false, ..job(Vec::new()) };
    let plan = plan_for(&ended, &[&held]);
    assert!(matches!(plan.writes.as_slice(), [Write { op: WriteOp::PatchStatus(_), .. }]), "{plan:?}");

    let over = with_condition(held, names::FINISHED);
    plan_for(&ended, &[&over]);
    assert_eq!(not_admitted_message(&ended), "Suspended: Suspended by its owner: the job holds no quota");
}

#[test]
fn stopping_job_finishes_a_slice_that_covers_none_of_its_pods() {
    // Given a job that stops, of whose pods only one is left, which its slice no longer covers,
    let (active, held) = serving();
    let left = |group: &str| {
        let kind = active.live_pods.keys().find(|kind| kind.group == group).cloned();
        Member { live_pods: [(kind.expect("a kind"), 1)].into(), ..terminating(active.clone()) }
    };
    let stopping = |group: &str| FakeJob { wants_to_run: false, ..job(vec![left(group)]) };
    let held = patched_slice(&plan_for(&stopping("headgroup"), &[&held]), &held).expect("a smaller slice");
    assert_eq!(held.spec.pod_sets.len(), 1);

    // then the slice is finished: a Workload has at least one PodSet.
    let plan = plan_for(&stopping("small"), &[&held]);
    assert!(matches!(plan.writes.as_slice(), [Write { op: WriteOp::PatchStatus(_), .. }]), "{plan:?}");
}

#[test]
fn stopping_job_keeps_a_workload_of_kueue_until_its_pods_are_gone() {
    let (active, mut held) = serving();
    held.metadata.annotations = None;
    let stopping = FakeJob { wants_to_run: false, ..job(vec![terminating(active)]) };
    assert_eq!(plan_for(&stopping, &[&held]).writes, []);
}

#[test]
fn sequence_numbers_only_grow_and_finished_slices_are_deleted() {
    let (active, held) = serving();
    let over = with_condition(held, names::FINISHED);
    let job = job(vec![active]);

    let next = created_slice(&plan_for(&job, &[&over])).expect("a new slice");
    assert_eq!(SliceRecord::from_workload(&next).expect("a record").sequence, 2);
    assert!(next.metadata.name.as_ref().is_some_and(|name| name.ends_with("-2")));
    assert_eq!(deleted_names(&plan_for(&job, &[&over, &next])), [over.metadata.name.expect("a name")]);
}

#[test]
fn slice_with_an_invalid_record_opens_no_gate() {
    let (_, mut held) = serving();
    held.metadata.annotations.get_or_insert_default().insert(SLICE_ANNOTATION.into(), "{\"members\": 7}".into());
    let job = job(vec![cluster("a", 2, "1")]);

    plan_for(&job, &[&held]);
    assert!(gate_writes(&job).is_empty());
}

#[test]
fn slice_deleted_by_hand_keeps_gates_open_and_opens_none() {
    let (active, mut held) = serving();
    held.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));

    let open = job(vec![active]);
    plan_for(&open, &[&held]);
    assert_eq!(gate_writes(&open), []);

    let closed = job(vec![cluster("a", 2, "1")]);
    plan_for(&closed, &[&held]);
    assert_eq!(gate_writes(&closed), []);
}

#[test]
fn finalizer_of_a_deleted_workload_is_removed_once_no_pod_uses_its_quota() {
    let (_, held) = serving();
    let mut deleted = held;
    deleted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));

    assert!(release_finalizer(&deleted, true).writes.is_empty());
    assert_eq!(release_finalizer(&deleted, false).writes.len(), 1);
}

#[test]
fn misconfigured_job_keeps_running_until_its_slice_is_evicted() {
    let (active, held) = serving();
    let error = DemandError::ClusterSpecMissing;
    let broken = Member { groups: Arc::new(Err(error.clone())), ..active };

    let kept = job(vec![broken.clone()]);
    assert!(plan_for(&kept, &[&held]).writes.is_empty());
    assert!(gate_writes(&kept).is_empty());
    assert_eq!(
        kept.last_condition(sluice_api::job_conditions::ADMITTED).map(|shown| shown.message),
        Some(error.to_string())
    );

    let evicted = job(vec![broken]);
    plan_for(&evicted, &[&with_condition(held, names::EVICTED)]);
    assert_eq!(gate_writes(&evicted), [("a".to_owned(), false)]);
}

#[test]
fn pods_of_a_removed_group_keep_their_quota_until_they_are_gone() {
    let (active, held) = serving();
    let mut groups = active.groups.as_ref().clone().expect("groups");
    groups.truncate(1);
    let without = Member { groups: Arc::new(Ok(groups)), ..active };

    assert!(plan_for(&job(vec![without.clone()]), &[&held]).writes.is_empty(), "both workers are still there");

    let one_left = with_remaining_pods(without, &[("headgroup", 1), ("small", 1)]);
    let slice = patched_slice(&plan_for(&job(vec![one_left]), &[&held]), &held).expect("a smaller slice");
    assert_eq!(counts(&slice), [("head".to_owned(), 1), ("small".to_owned(), 1)]);
}

#[test]
fn job_without_a_queue_name_is_not_managed() {
    let (active, held) = serving();
    let mut free = job(vec![active, Member { is_open: true, ..cluster("b", 2, "1") }]);
    free.meta.labels = None;

    assert!(plan_for(&free, &[]).writes.is_empty());
    assert_eq!(
        deleted_names(&plan_for(&free, &[&held])),
        [held.metadata.name.clone().expect("a name")],
        "the job left its queue"
    );
    assert!(gate_writes(&free).is_empty());
}

#[test]
fn evicted_successor_stays_pending_under_the_same_name() {
    let (active, held) = serving();
    let both = job(vec![active.clone(), cluster("b", 2, "1")]);
    let successor = created_slice(&plan_for(&both, &[&held])).expect("a successor");

    // Given that it was admitted, evicted and released, and that its predecessor is gone,
    let stopped = |member: Member| Member { is_open: false, live_pods: BTreeMap::new(), ..member };
    let idle = job(vec![stopped(active), cluster("b", 2, "1")]);
    let plan = plan_for(&idle, &[&successor]);

    // then it keeps its position in the queue.
    assert!(plan.writes.is_empty(), "{plan:?}");
}

/// Kueue gives its Workload the name of our first slice.
#[test]
fn slice_that_replaces_a_workload_of_kueue_has_another_name() {
    let (active, mut of_kueue) = serving();
    of_kueue.annotations_mut().remove(sluice_queue::partial_admission::SLICE_ANNOTATION);

    let slice = created_slice(&plan_for(&job(vec![active]), &[&of_kueue])).expect("a slice");

    let first = of_kueue.metadata.name.expect("a name");
    assert_eq!(slice.metadata.name, Some(format!("{first}-2")));
}
