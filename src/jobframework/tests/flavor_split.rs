//! Flavor split: a new member whose pods do not fit in the flavor of running pods of the same kind.

use super::*;
use crate::slice_record::MAX_POD_SETS;

/// Plans while these PodSets do not fit in the flavor that their running pods use.
fn plan_flavor_bound(job: &FakeJob, slices: &[&Workload], pod_sets: &[&str]) -> Plan {
    let pinned = |_: &Workload| pod_sets.iter().map(|name| (*name).to_owned()).collect();
    plan(&ReconcileContext { flavor_bound_pod_sets: &pinned, ..context(job, slices) })
}

/// Active member `a`, pending member `b` whose workers do not fit in the flavor of those of `a`,
/// the held slice, and the pending slice after the split.
fn split_upgrade() -> (Member, Member, Workload, Workload) {
    let (active, held) = serving();
    let pending = cluster("b", 3, "1");
    let upgrading = job(vec![active.clone(), pending.clone()]);
    let waiting = created_slice(&plan_for(&upgrading, &[&held])).expect("a successor");
    let plan = plan_flavor_bound(&upgrading, &[&held, &waiting], &["small"]);
    let split = patched_slice(&plan, &waiting).expect("the pending slice changes");
    (active, pending, held, split)
}

fn owned_counts(counts: &[(&str, i32)]) -> Vec<(String, i32)> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn only_pod_sets_without_capacity_are_split() {
    let (active, pending, held, split) = split_upgrade();

    assert_eq!(counts(&split), owned_counts(&[("head", 2), ("small", 2), ("small-2", 3)]));
    let templates: Vec<_> = split.spec.pod_sets.iter().map(|set| &set.template).collect();
    assert_eq!(templates[1], templates[2]);
    let plan = plan_flavor_bound(&job(vec![active, pending]), &[&held, &split], &[]);
    assert!(plan.writes.is_empty(), "the split stays: {plan:?}");
}

#[test]
fn shared_pod_sets_are_split_if_running_pods_lack_capacity_next_to_the_new_ones() {
    let (active, pending, held, split) = split_upgrade();

    let plan = plan_flavor_bound(&job(vec![active, pending]), &[&held, &split], &["small"]);

    let all_split = patched_slice(&plan, &split).expect("the pending slice changes");
    assert_eq!(counts(&all_split), owned_counts(&[("head", 1), ("small", 2), ("head-2", 1), ("small-2", 3)]));
}

#[test]
fn member_keeps_its_separate_pod_set_once_the_old_member_is_gone() {
    let (active, pending, held, split) = split_upgrade();
    let split = admitted(split);

    let switching = job(vec![active.clone(), pending.clone()]);
    plan_for(&switching, &[&held, &split]);
    assert_eq!(gate_writes(&switching), [("b".to_owned(), true)]);

    let ended = job(vec![terminating(with_remaining_pods(active, &[])), running(pending)]);
    let shrunk = patched_slice(&plan_for(&ended, &[&split]), &split).expect("a smaller slice");
    assert_eq!(counts(&shrunk), owned_counts(&[("head", 1), ("small-2", 3)]));
}

#[test]
fn next_member_uses_the_newest_pod_set_of_its_kind() {
    let (_, pending, _, split) = split_upgrade();
    let serving = running(pending);
    let alone = job(vec![serving.clone()]);
    let held = patched_slice(&plan_for(&alone, &[&admitted(split.clone())]), &split).expect("a slice for one");

    let successor = created_slice(&plan_for(&job(vec![serving, cluster("c", 2, "1")]), &[&admitted(held)]));

    assert_eq!(counts(&successor.expect("a successor")), owned_counts(&[("head", 2), ("small-2", 5)]));
}

#[test]
fn scale_up_of_a_running_member_is_not_split() {
    let (active, held) = serving();
    let grown = Member { groups: cluster("a", 5, "1").groups, ..active };
    let growing = job(vec![grown]);
    let waiting = created_slice(&plan_for(&growing, &[&held])).expect("a successor");

    let plan = plan_flavor_bound(&growing, &[&held, &waiting], &["small"]);

    assert!(patched_slice(&plan, &waiting).is_none(), "{plan:?}");
}

/// Its pods may have started on the held quota before a split would take effect.
#[test]
fn demand_that_is_covered_already_is_not_split() {
    let (active, held) = serving();
    let pending = cluster("b", 2, "1");
    let waiting = created_slice(&plan_for(&job(vec![active, pending.clone()]), &[&held])).expect("a successor");
    let alone = job(vec![pending]);

    let plan = plan_flavor_bound(&alone, &[&held, &waiting], &["small"]);

    let given = patched_slice(&plan, &held).expect("the held quota moves to the next member");
    assert_eq!(counts(&given), owned_counts(&[("head", 1), ("small", 2)]));
    let deletes_pending =
        |write: &Write| write.target.name == waiting.name_any() && matches!(write.op, WriteOp::Delete { .. });
    assert!(plan.writes.iter().any(deletes_pending), "{plan:?}");
}

#[test]
fn split_is_skipped_if_its_pod_set_name_is_in_use() {
    let (mut active, _) = serving();
    let mut groups = active.groups.as_ref().as_ref().expect("groups").clone();
    let other = cluster("other", 1, "7").groups.as_ref().as_ref().expect("groups")[1].clone();
    groups.push(PodGroupDemand { name: "small-2".into(), pod_set: "small-2".into(), ..other });
    active = running(Member { groups: Arc::new(Ok(groups)), ..active });
    let held = admitted(created_slice(&plan_for(&job(vec![active.clone()]), &[])).expect("a slice"));
    let upgrading = job(vec![active, cluster("b", 3, "1")]);
    let waiting = created_slice(&plan_for(&upgrading, &[&held])).expect("a successor");

    let plan = plan_flavor_bound(&upgrading, &[&held, &waiting], &["small"]);

    assert!(patched_slice(&plan, &waiting).is_none(), "{plan:?}");
}

#[test]
fn split_is_skipped_if_a_workload_cannot_hold_more_pod_sets() {
    let with_groups = |name: &str| {
        let cluster = cluster(name, 1, "1");
        Member { groups: numbered_groups(MAX_POD_SETS, &cluster), ..cluster }
    };
    let active = running(with_groups("a"));
    let held = admitted(created_slice(&plan_for(&job(vec![active.clone()]), &[])).expect("a slice"));
    let upgrading = job(vec![active, with_groups("b")]);
    let waiting = created_slice(&plan_for(&upgrading, &[&held])).expect("a successor");

    let plan = plan_flavor_bound(&upgrading, &[&held, &waiting], &["g0"]);

    assert!(patched_slice(&plan, &waiting).is_none(), "{plan:?}");
}
