//! Pods of several shapes under one group name: each is accounted by its shape.

use super::*;

fn shape(cpu: &str) -> String {
    cluster("any", 1, cpu).groups.as_ref().as_ref().expect("groups")[1].shape.clone()
}

/// The running cluster with 1 CPU per pod, after an in-place edit of its number of workers and
/// their CPU.
fn edited(active: &Member, workers: u32, cpu: &str) -> Member {
    let mut groups = active.groups.as_ref().clone().expect("groups");
    groups[1] = cluster("a", workers, cpu).groups.as_ref().clone().expect("groups").remove(1);
    Member { groups: Arc::new(Ok(groups)), ..active.clone() }
}

fn small(cpu: &str) -> PodKind {
    PodKind::new("small", shape(cpu))
}

fn with_live(member: Member, kind: PodKind, count: u32) -> Member {
    let mut live_pods = member.live_pods.clone();
    live_pods.insert(kind, count);
    live_pods.retain(|_, count| *count > 0);
    Member { live_pods, ..member }
}

fn gated_pod(name: &str, kind: PodKind) -> GatedPod {
    let created_at = Some(Timestamp::UNIX_EPOCH);
    GatedPod { name: name.into(), kind, is_counted: false, replica: None, replica_index: None, created_at }
}

fn owned_counts(expected: &[(&str, i32)]) -> Vec<(String, i32)> {
    expected.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn requests(slice: &Workload, pod_set: &str) -> String {
    let set = slice.spec.pod_sets.iter().find(|set| set.name == pod_set).expect("the PodSet");
    set.template.decode()["spec"]["containers"][0]["resources"]["requests"]["cpu"]
        .as_str()
        .expect("a request")
        .to_owned()
}

#[test]
fn running_pods_keep_their_accounting_after_an_in_place_edit() {
    let (active, held) = serving();

    assert!(plan_for(&job(vec![edited(&active, 2, "2")]), &[&held]).writes.is_empty(), "no pod was added or removed");
    assert!(
        plan_for(&job(vec![edited(&active, 2, "500m")]), &[&held]).writes.is_empty(),
        "and running pods keep their requests"
    );
}

#[test]
fn pods_added_after_an_edit_are_accounted_by_the_current_template() {
    let (active, held) = serving();
    let grown = edited(&active, 3, "2");
    let bigger = format!("small-{}", shape("2"));

    let successor = created_slice(&plan_for(&job(vec![grown.clone()]), &[&held])).expect("a successor");

    assert_eq!(counts(&successor), owned_counts(&[("head", 1), (&bigger, 1), ("small", 2)]));
    assert_eq!((requests(&successor, &bigger), requests(&successor, "small")), ("2".to_owned(), "1".to_owned()));
    let none = [("headgroup".to_owned(), 1), ("small".to_owned(), 0)].into();
    assert_eq!(
        slices::Slice::from_workload(&held).granted_pods(&grown),
        none,
        "quota of the old shape covers no pod of the new one"
    );
    assert_eq!(slices::Slice::from_workload(&held).outdated_pods(&grown), [("small".to_owned(), 2)].into());
}

#[test]
fn quota_of_a_pod_from_before_an_edit_does_not_cover_one_from_after_it() {
    let (active, held) = serving();
    let one_left = with_live(edited(&active, 2, "2"), small("1"), 1);
    let bigger = format!("small-{}", shape("2"));

    let plan = plan_for(&job(vec![one_left.clone()]), &[&held]);

    assert_eq!(
        counts(&patched_slice(&plan, &held).expect("a smaller slice")),
        owned_counts(&[("head", 1), ("small", 1)])
    );
    let successor = created_slice(&plan).expect("a larger request");
    assert_eq!(counts(&successor), owned_counts(&[("head", 1), (&bigger, 1), ("small", 1)]));

    // Once that is admitted and the last old one is gone, only the new shape is left.
    let last = with_live(with_live(one_left, small("1"), 0), small("2"), 1);
    let plan = plan_for(&job(vec![last]), &[&admitted(successor.clone())]);
    assert_eq!(
        counts(&patched_slice(&plan, &successor).expect("a smaller slice")),
        owned_counts(&[("head", 1), (&bigger, 1)])
    );
    assert_eq!(counts(&created_slice(&plan).expect("a larger request")), owned_counts(&[("head", 1), (&bigger, 2)]));
}

#[test]
fn gated_pods_are_requested_by_their_shape() {
    let (active, held) = serving();
    let grown = edited(&active, 4, "2");
    let both = vec![gated_pod("old", small("1")), gated_pod("new", small("2"))];
    let grown = Member { gated_pods: both, ..grown };
    let bigger = format!("small-{}", shape("2"));

    let successor = created_slice(&plan_for(&job(vec![grown.clone()]), &[&held])).expect("a successor");
    assert_eq!(counts(&successor), owned_counts(&[("head", 1), (&bigger, 1), ("small", 3)]));

    // When fewer pods are desired, nothing is requested for the gated ones.
    let fewer = Member { gated_pods: grown.gated_pods, ..edited(&active, 2, "2") };
    assert!(plan_for(&job(vec![fewer]), &[&held]).writes.is_empty());
}

#[test]
fn pods_of_a_removed_group_keep_their_template_when_the_job_grows() {
    let (active, held) = serving();
    let mut groups = edited(&active, 1, "1").groups.as_ref().clone().expect("groups");
    groups[1].name = "large".into();
    groups[1].pod_set = "large".into();
    let renamed = Member { groups: Arc::new(Ok(groups)), ..active };

    let successor = created_slice(&plan_for(&job(vec![renamed]), &[&held])).expect("a successor");

    assert_eq!(counts(&successor), owned_counts(&[("head", 1), ("large", 1), ("small", 2)]));
    assert_eq!(requests(&successor, "small"), "1");
}

#[test]
fn job_with_too_many_pod_sets_still_releases_quota_of_deleted_pods() {
    let (active, held) = serving();
    let one_left = with_live(active, small("1"), 1);
    let many = numbered_groups(slice_record::MAX_POD_SETS, &one_left);
    let job = job(vec![Member { groups: many, ..one_left }]);

    let plan = plan_for(&job, &[&held]);

    assert_eq!(
        counts(&patched_slice(&plan, &held).expect("a smaller slice")),
        owned_counts(&[("head", 1), ("small", 1)])
    );
    assert!(created_slice(&plan).is_none(), "{plan:?}");
    assert!(
        not_admitted_message(&job).starts_with("Misconfigured: spec.workerGroupSpecs"),
        "{}",
        not_admitted_message(&job)
    );
}

#[test]
fn pods_of_an_unknown_kind_are_accounted_by_their_own_spec() {
    let (active, held) = serving();
    let found = PodKind::new("small", "found");
    let template = cluster("any", 1, "7").groups.as_ref().as_ref().expect("groups")[1].template.as_ref().clone();
    let surprised = with_live(active, found.clone(), 1);
    let surprised = Member { unknown_kinds: [(found, template)].into(), ..surprised };

    let successor = created_slice(&plan_for(&job(vec![surprised]), &[&held])).expect("a successor");

    assert_eq!(counts(&successor), owned_counts(&[("head", 1), ("small", 2), ("small-found", 1)]));
    assert_eq!(requests(&successor, "small-found"), "7");
}

#[test]
fn change_of_resources_with_unchanged_counts_creates_a_successor_and_restarts_nothing() {
    let (active, held) = serving();
    let both = job(vec![active, cluster("b", 2, "2")]);

    let plan = plan_for(&both, &[&held]);

    let [write] = plan.writes.as_slice() else { panic!("one successor: {plan:?}") };
    assert!(matches!(write.op, WriteOp::Create(_)));
    assert!(gate_writes(&both).is_empty());
}

#[test]
fn message_names_the_members_with_too_many_pod_sets() {
    let many = |name: &str, cpu: &str, groups: u32| {
        let mut member = cluster(name, 1, cpu);
        let first = member.groups.as_ref().clone().expect("groups");
        let workers = (1..=groups).map(|number| {
            let name = format!("group-{number}");
            PodGroupDemand { name: name.clone(), pod_set: name, ..first[1].clone() }
        });
        member.groups = Arc::new(Ok(first[..1].iter().cloned().chain(workers).collect()));
        member
    };
    let active = many("a", "1", 8);
    let held = admitted(created_slice(&plan_for(&job(vec![active.clone()]), &[])).expect("a slice"));

    let fits = job(vec![running(active.clone()), many("b", "2", 8)]);
    assert_eq!(counts(&created_slice(&plan_for(&fits, &[&held])).expect("a successor")).len(), 18);

    let upgrade = job(vec![running(active), many("b", "2", 9)]);
    assert!(created_slice(&plan_for(&upgrade, &[&held])).is_none());
    assert_eq!(
        not_admitted_message(&upgrade),
        "Misconfigured: spec.workerGroupSpecs: RayCluster a has 9 kinds of pods and RayCluster b has 10 kinds of pods, which \
         makes 19 PodSets, and a Workload has at most 18; use fewer worker groups, or change the resources and node \
         constraints of fewer of them at a time"
    );
    assert!(gate_writes(&upgrade).is_empty(), "running members keep running");
}
