//! A new member whose pods find no room where pods of the same kind run already.

use super::*;
use crate::pod_sets::MOST_POD_SETS;

/// What is planned while the queue finds no room for more of these PodSets in the flavor that they are in.
fn pinned(job: &FakeJob, slices: &[&Workload], pod_sets: &[&str]) -> Plan {
    let pinned = |_: &Workload| pod_sets.iter().map(|name| (*name).to_owned()).collect();
    plan(&JobView { pinned: &pinned, ..view(job, slices) })
}

/// A service that serves from `a` and waits for its upgrade to `b`, for whose workers there is no room where those of `a` are;
/// and its slices.
fn waiting_apart() -> (Member, Member, Workload, Workload) {
    let (active, held) = serving();
    let pending = cluster("b", 3, "1");
    let upgrading = job(vec![active.clone(), pending.clone()]);
    let waiting = created(&planned(&upgrading, &[&held])).expect("a successor");
    let plan = pinned(&upgrading, &[&held, &waiting], &["small"]);
    let apart = patched(&plan, &waiting).expect("it asks otherwise");
    (active, pending, held, apart)
}

fn named(counts: &[(&str, i32)]) -> Vec<(String, i32)> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

#[test]
fn it_is_counted_apart_and_only_where_there_is_no_room() {
    let (active, pending, held, apart) = waiting_apart();

    assert_eq!(counts(&apart), named(&[("head", 2), ("small", 2), ("small-2", 3)]));
    let templates: Vec<_> = apart.spec.pod_sets.iter().map(|set| &set.template).collect();
    assert_eq!(templates[1], templates[2]);
    let plan = pinned(&job(vec![active, pending]), &[&held, &apart], &[]);
    assert!(plan.writes.is_empty(), "and so it stays: {plan:?}");
}

#[test]
fn more_is_counted_apart_where_what_runs_already_has_no_room_beside_it() {
    let (active, pending, held, apart) = waiting_apart();

    let plan = pinned(&job(vec![active, pending]), &[&held, &apart], &["small"]);

    let all_apart = patched(&plan, &apart).expect("it asks otherwise");
    assert_eq!(counts(&all_apart), named(&[("head", 1), ("small", 2), ("head-2", 1), ("small-2", 3)]));
}

#[test]
fn it_is_opened_on_its_own_pod_set_and_keeps_it_when_the_old_one_is_gone() {
    let (active, pending, held, apart) = waiting_apart();
    let apart = admitted(apart);

    let switching = job(vec![active.clone(), pending.clone()]);
    planned(&switching, &[&held, &apart]);
    assert_eq!(gates(&switching), [("b".to_owned(), true)]);

    let ended = job(vec![going(left(active, &[])), running(pending)]);
    let shrunk = patched(&planned(&ended, &[&apart]), &apart).expect("a smaller slice");
    assert_eq!(counts(&shrunk), named(&[("head", 1), ("small-2", 3)]));
}

#[test]
fn what_comes_next_is_counted_with_the_newest() {
    let (_, pending, _, apart) = waiting_apart();
    let serving = running(pending);
    let alone = job(vec![serving.clone()]);
    let held = patched(&planned(&alone, &[&admitted(apart.clone())]), &apart).expect("a slice for one");

    let successor = created(&planned(&job(vec![serving, cluster("c", 2, "1")]), &[&admitted(held)]));

    assert_eq!(counts(&successor.expect("a successor")), named(&[("head", 2), ("small-2", 5)]));
}

#[test]
fn what_runs_already_stays_where_it_is() {
    let (active, held) = serving();
    let grown = Member { groups: cluster("a", 5, "1").groups, ..active };
    let growing = job(vec![grown]);
    let waiting = created(&planned(&growing, &[&held])).expect("a successor");

    let plan = pinned(&growing, &[&held, &waiting], &["small"]);

    assert!(patched(&plan, &waiting).is_none(), "{plan:?}");
}

/// Its pods may have started on what is held by the time that it would hold something else.
#[test]
fn what_is_paid_for_already_is_not_counted_apart() {
    let (active, held) = serving();
    let pending = cluster("b", 2, "1");
    let waiting = created(&planned(&job(vec![active, pending.clone()]), &[&held])).expect("a successor");
    let alone = job(vec![pending]);

    let plan = pinned(&alone, &[&held, &waiting], &["small"]);

    let given = patched(&plan, &held).expect("what is held is given to the next");
    assert_eq!(counts(&given), named(&[("head", 1), ("small", 2)]));
    let goes = |write: &Write| write.target.name == waiting.name_any() && matches!(write.op, WriteOp::Delete { .. });
    assert!(plan.writes.iter().any(goes), "{plan:?}");
}

#[test]
fn a_group_that_has_the_name_already_keeps_it() {
    let (mut active, _) = serving();
    let mut groups = active.groups.as_ref().as_ref().expect("groups").clone();
    let other = cluster("other", 1, "7").groups.as_ref().as_ref().expect("groups")[1].clone();
    groups.push(Group { name: "small-2".into(), pod_set: "small-2".into(), ..other });
    active = running(Member { groups: Arc::new(Ok(groups)), ..active });
    let held = admitted(created(&planned(&job(vec![active.clone()]), &[])).expect("a slice"));
    let upgrading = job(vec![active, cluster("b", 3, "1")]);
    let waiting = created(&planned(&upgrading, &[&held])).expect("a successor");

    let plan = pinned(&upgrading, &[&held, &waiting], &["small"]);

    assert!(patched(&plan, &waiting).is_none(), "{plan:?}");
}

#[test]
fn nothing_is_counted_apart_for_which_a_workload_has_no_room() {
    let with_groups = |name: &str| {
        let cluster = cluster(name, 1, "1");
        Member { groups: numbered_groups(MOST_POD_SETS, &cluster), ..cluster }
    };
    let active = running(with_groups("a"));
    let held = admitted(created(&planned(&job(vec![active.clone()]), &[])).expect("a slice"));
    let upgrading = job(vec![active, with_groups("b")]);
    let waiting = created(&planned(&upgrading, &[&held])).expect("a successor");

    let plan = pinned(&upgrading, &[&held, &waiting], &["g0"]);

    assert!(patched(&plan, &waiting).is_none(), "{plan:?}");
}
