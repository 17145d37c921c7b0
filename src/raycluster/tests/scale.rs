//! Which pods of one group go, and which come.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::json;

use super::super::fixtures::cluster_with_workers;
use super::super::groups::{PodGroup, pod_groups};
use super::super::pod_builder::{self, Slot};
use super::super::scale::{Situation, decide};
use sluice_api::kueue::scheduling_gate;
use sluice_api::ray::RayCluster;

/// Whether a pod was asked for, and not seen yet.
fn is_asked(pod: &Pod) -> bool {
    pod.status.is_none()
}

/// A pod of the group as a letter tells: ready, pending, failed, terminating, gated or asked for (`A`).
fn pod(cluster: &RayCluster, group: &PodGroup, slot: u32, letter: char) -> Pod {
    let mut pod = pod_builder::build(cluster, group, Slot { replica: slot, host: 0 }, 0);
    let (phase, ready) = match letter {
        'r' | 't' => ("Running", "True"),
        'p' | 'g' => ("Pending", "False"),
        'f' => ("Failed", "False"),
        'A' => ("", ""),
        other => panic!("no letter of a pod: {other}"),
    };
    let status = json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}]});
    if !phase.is_empty() {
        pod.status = serde_json::from_value(status).expect("a pod status");
    }
    scheduling_gate::set(pod.spec.get_or_insert_default(), letter == 'g');
    if letter == 't' {
        pod.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time"));
    }
    pod
}

/// `pods` has a letter for each slot from 0 on, and a dot for a free one.
#[rstest]
#[case::from_nothing(3, "", 9, &[], &[0, 1, 2])]
#[case::nothing_to_do(3, "rrr", 9, &[], &[])]
#[case::the_lowest_free_slots(4, "r.r", 9, &[], &[1, 3])]
#[case::a_terminating_pod_holds_its_place(3, "rtr", 9, &[], &[])]
#[case::and_its_slot_when_more_are_wanted(4, "rtr", 9, &[], &[3])]
#[case::a_failed_one_goes_before_another_comes(4, "rfr", 9, &[1], &[])]
#[case::a_failed_one_goes_without_quota_too(3, "rfr", 0, &[1], &[])]
#[case::the_highest_of_too_many(2, "rrrr", 9, &[3, 2], &[])]
#[case::the_unready_of_too_many_first(2, "prrr", 9, &[0, 3], &[])]
#[case::those_that_go_already_are_not_too_many(2, "rrt", 9, &[], &[])]
#[case::a_failed_one_is_not_counted_as_too_many(2, "rrrf", 9, &[3, 2], &[])]
#[case::what_was_asked_for_is_asked_for_again(3, "AA", 9, &[], &[0, 1, 2])]
#[case::and_has_its_quota(3, "AA", 2, &[], &[0, 1])]
#[case::and_its_place(2, ".AA", 9, &[], &[1, 2])]
#[case::beside_what_goes(3, "tA", 9, &[], &[1, 2])]
#[case::none_wanted(0, "rp", 9, &[1, 0], &[])]
#[case::as_many_as_granted(5, "", 2, &[], &[0, 1])]
#[case::what_is_there_is_granted_already(5, "rp", 3, &[], &[2])]
#[case::a_terminating_one_too(5, "rt", 2, &[], &[])]
#[case::a_grant_smaller_than_what_is_there_takes_nothing(3, "rrr", 1, &[], &[])]
#[case::nor_gives_anything(4, "rrr", 1, &[], &[])]
fn a_group_comes_to_what_is_wanted_within_what_is_granted(
    #[case] wanted: i32,
    #[case] pods: &str,
    #[case] granted: u32,
    #[case] goes: &[u32],
    #[case] comes: &[u32],
) {
    let scene = Scene::of(wanted, pods);
    assert_eq!(scene.decide(granted, &[], true), (goes.to_vec(), comes.to_vec()));
}

#[rstest]
#[case::all_that_is_wanted_is_made(4, "", 1, &[0], &[1, 2, 3])]
#[case::what_waits_is_the_next_to_run(4, "rg", 2, &[], &[2, 3])]
#[case::and_then_what_is_made(4, "rg", 3, &[2], &[3])]
#[case::nothing_more_is_wanted(2, "rg", 1, &[], &[])]
fn what_is_not_granted_waits_behind_a_gate(
    #[case] wanted: i32,
    #[case] pods: &str,
    #[case] granted: u32,
    #[case] run: &[u32],
    #[case] wait: &[u32],
) {
    let scene = Scene::of(wanted, pods);
    assert_eq!(scene.decide(granted, &[], true).1, run);
    assert_eq!(scene.gated(granted), wait);
}

/// A pod of an earlier template: a letter in upper case.
#[rstest]
#[case::those_that_run_stay_and_leave_no_room(3, "RRR", 1, &[], &[], &[])]
#[case::what_is_paid_for_them_lets_nobody_in(3, "RR", 0, &[], &[], &[2])]
#[case::nor_do_they_use_what_is_paid_for_others(3, "RR", 1, &[], &[2], &[])]
#[case::those_that_wait_are_made_anew(3, "RGg", 0, &[1], &[], &[])]
fn pods_of_an_earlier_template_run_on_and_are_counted_apart(
    #[case] wanted: i32,
    #[case] pods: &str,
    #[case] granted: u32,
    #[case] goes: &[u32],
    #[case] run: &[u32],
    #[case] wait: &[u32],
) {
    let mut scene = Scene::of(wanted, &pods.to_lowercase());
    for (pod, letter) in scene.pods.iter_mut().zip(pods.chars()) {
        let shape = if letter.is_uppercase() { "before" } else { "now" };
        pod.labels_mut().insert("sluice.dev/shape".to_owned(), shape.to_owned());
    }
    assert_eq!(scene.decide(granted, &[], true), (goes.to_vec(), run.to_vec()));
    assert_eq!(scene.gated(granted), wait);
}

#[test]
fn those_that_wait_go_first_of_too_many() {
    assert_eq!(Scene::of(2, "rgpr").decide(9, &[], true), (vec![1, 2], vec![]));
}

#[rstest]
#[case::too_many(1, "rrr", &[], &[], &[])]
#[case::one_is_named(2, "rrr", &[0], &[0], &[])]
#[case::a_named_one_that_is_unknown(3, "rrr", &[7], &[], &[])]
#[case::one_that_failed(3, "rrf", &[], &[2], &[])]
fn with_an_autoscaler_only_those_go_that_it_names_or_that_failed(
    #[case] wanted: i32,
    #[case] pods: &str,
    #[case] named: &[u32],
    #[case] goes: &[u32],
    #[case] comes: &[u32],
) {
    let scene = Scene::of(wanted, pods);
    assert_eq!(scene.decide(9, named, false), (goes.to_vec(), comes.to_vec()));
}

#[test]
fn those_that_are_named_go_first_of_too_many() {
    assert_eq!(Scene::of(2, "rrr").decide(9, &[0], true), (vec![0], vec![]));
    assert_eq!(Scene::of(1, "rrr").decide(9, &[0], true), (vec![0, 2], vec![]));
}

/// A group and the pods that it has.
struct Scene {
    cluster: RayCluster,
    group: PodGroup,
    pods: Vec<Pod>,
}

impl Scene {
    fn of(wanted: i32, letters: &str) -> Self {
        let cluster = cluster_with_workers(wanted);
        let group = pod_groups(&cluster).expect("the spec is valid").pop().expect("there are workers");
        let letters = (0..).zip(letters.chars()).filter(|(_, letter)| *letter != '.');
        let pods = letters.map(|(slot, letter)| pod(&cluster, &group, slot, letter)).collect();
        Self { cluster, group, pods }
    }

    /// The slots that are emptied and those that are filled with pods that may run, in order.
    fn decide(&self, granted: u32, named: &[u32], trims: bool) -> (Vec<u32>, Vec<u32>) {
        let (goes, comes) = self.change(granted, named, trims);
        (goes, comes.into_iter().filter(|(_, gated)| !gated).map(|(slot, _)| slot).collect())
    }

    /// The slots that are filled with pods that wait.
    fn gated(&self, granted: u32) -> Vec<u32> {
        self.change(granted, &[], true).1.into_iter().filter(|(_, gated)| *gated).map(|(slot, _)| slot).collect()
    }

    fn change(&self, granted: u32, named: &[u32], trims: bool) -> (Vec<u32>, Vec<(u32, bool)>) {
        let name = |slot: &u32| pod_builder::name(&self.cluster, &self.group, Slot { replica: *slot, host: 0 }, 0);
        let seen = self.pods.iter().filter(|pod| !is_asked(pod));
        let names: BTreeSet<String> = seen.map(ResourceExt::name_any).collect();
        let to_delete: Vec<String> = named.iter().map(name).collect();
        let change = decide(&Situation {
            cluster: &self.cluster,
            group: &self.group,
            pods: self.pods.iter().filter(|pod| !is_asked(pod)).collect(),
            arriving: self.pods.iter().filter(|pod| is_asked(pod)).collect(),
            names: &names,
            to_delete: &to_delete,
            granted,
            takes_back: false,
            shape: Some("now"),
            trims,
            now: "2026-01-01T00:00:00Z".parse().expect("a time"),
        });
        let slot = |pod: &Pod| pod.labels()["ray.io/worker-group-replica-index"].parse().expect("a number");
        let goes = change.delete.iter().map(|(pod, _)| slot(pod)).collect();
        (goes, change.create.iter().map(|new| (new.slot.replica, new.gated)).collect())
    }
}
