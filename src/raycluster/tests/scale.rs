//! Scaling decisions for one group.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::json;

use super::super::fixtures::cluster_with_workers;
use super::super::groups::{PodGroup, pod_groups};
use super::super::pod_builder::{self, PodIndex};
use super::super::scale::{GroupState, decide};
use sluice_api::kueue::scheduling_gate;
use sluice_api::ray::RayCluster;

/// Reports whether a pod's creation was requested, and the watch has not shown it.
fn is_requested(pod: &Pod) -> bool {
    pod.status.is_none()
}

/// Returns a pod in the state of its letter: `r`eady, `p`ending, `f`ailed, `t`erminating, `g`ated
/// or requested (`A`).
fn pod(cluster: &RayCluster, group: &PodGroup, slot: u32, letter: char) -> Pod {
    let mut pod = pod_builder::build_pod(cluster, group, PodIndex { replica: slot, host: 0 }, 0);
    let (phase, ready) = match letter {
        'r' | 't' => ("Running", "True"),
        'p' | 'g' => ("Pending", "False"),
        'f' => ("Failed", "False"),
        'A' => ("", ""),
        other => panic!("unknown pod state: {other}"),
    };
    let status = json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}]});
    if !phase.is_empty() {
        pod.status = serde_json::from_value(status).expect("a pod status");
    }
    if letter == 'g' {
        scheduling_gate::add(pod.spec.get_or_insert_default());
    }
    if letter == 't' {
        pod.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time"));
    }
    pod
}

/// `pods` has one letter per index from 0, and a dot for a free index.
#[rstest]
#[case::from_nothing(3, "", 9, &[], &[0, 1, 2])]
#[case::nothing_to_do(3, "rrr", 9, &[], &[])]
#[case::lowest_free_indices(4, "r.r", 9, &[], &[1, 3])]
#[case::terminating_pod_counts(3, "rtr", 9, &[], &[])]
#[case::terminating_pod_occupies_its_index(4, "rtr", 9, &[], &[3])]
#[case::failed_pod_is_deleted_before_another_is_created(4, "rfr", 9, &[1], &[])]
#[case::failed_pod_is_deleted_without_quota(3, "rfr", 0, &[1], &[])]
#[case::highest_surplus_pods(2, "rrrr", 9, &[3, 2], &[])]
#[case::unready_surplus_pods_first(2, "prrr", 9, &[0, 3], &[])]
#[case::terminating_pods_are_no_surplus(2, "rrt", 9, &[], &[])]
#[case::failed_pod_is_no_surplus(2, "rrrf", 9, &[3, 2], &[])]
#[case::requested_pods_are_requested_again(3, "AA", 9, &[], &[0, 1, 2])]
#[case::requested_pods_use_quota(3, "AA", 2, &[], &[0, 1])]
#[case::requested_pods_keep_their_index(2, ".AA", 9, &[], &[1, 2])]
#[case::requested_and_terminating_pods(3, "tA", 9, &[], &[1, 2])]
#[case::none_desired(0, "rp", 9, &[1, 0], &[])]
#[case::as_many_as_granted(5, "", 2, &[], &[0, 1])]
#[case::existing_pods_use_the_grant(5, "rp", 3, &[], &[2])]
#[case::terminating_pods_use_the_grant(5, "rt", 2, &[], &[])]
#[case::smaller_grant_deletes_nothing(3, "rrr", 1, &[], &[])]
#[case::smaller_grant_ungates_nothing(4, "rrr", 1, &[], &[])]
fn group_is_scaled_to_the_desired_pods_within_the_grant(
    #[case] wanted: i32,
    #[case] pods: &str,
    #[case] granted: u32,
    #[case] delete: &[u32],
    #[case] create: &[u32],
) {
    let scene = GroupFixture::of(wanted, pods);
    assert_eq!(scene.decide(granted, &[], true), (delete.to_vec(), create.to_vec()));
}

#[rstest]
#[case::all_desired_pods_are_created(4, "", 1, &[0], &[1, 2, 3])]
#[case::gated_pods_are_next(4, "rg", 2, &[], &[2, 3])]
#[case::new_pods_follow_gated_ones(4, "rg", 3, &[2], &[3])]
#[case::no_more_desired(2, "rg", 1, &[], &[])]
fn pods_beyond_the_grant_are_gated(
    #[case] wanted: i32,
    #[case] pods: &str,
    #[case] granted: u32,
    #[case] run: &[u32],
    #[case] gated: &[u32],
) {
    let scene = GroupFixture::of(wanted, pods);
    assert_eq!(scene.decide(granted, &[], true).1, run);
    assert_eq!(scene.gated(granted), gated);
}

/// Upper-case letters are pods of an earlier template.
#[rstest]
#[case::running_pods_stay_and_count(3, "RRR", 1, &[], &[], &[])]
#[case::their_quota_ungates_no_other_pod(3, "RR", 0, &[], &[], &[2])]
#[case::they_do_not_use_the_grant_of_other_pods(3, "RR", 1, &[], &[2], &[])]
#[case::gated_pods_are_recreated(3, "RGg", 0, &[1], &[], &[])]
fn pods_of_an_earlier_template_keep_running_and_are_counted_separately(
    #[case] wanted: i32,
    #[case] pods: &str,
    #[case] granted: u32,
    #[case] delete: &[u32],
    #[case] run: &[u32],
    #[case] gated: &[u32],
) {
    let mut scene = GroupFixture::of(wanted, &pods.to_lowercase());
    for (pod, letter) in scene.pods.iter_mut().zip(pods.chars()) {
        let shape = if letter.is_uppercase() { "before" } else { "now" };
        pod.labels_mut().insert("sluice.dev/shape".to_owned(), shape.to_owned());
    }
    assert_eq!(scene.decide(granted, &[], true), (delete.to_vec(), run.to_vec()));
    assert_eq!(scene.gated(granted), gated);
}

#[test]
fn gated_surplus_pods_are_deleted_first() {
    assert_eq!(GroupFixture::of(2, "rgpr").decide(9, &[], true), (vec![1, 2], vec![]));
}

#[rstest]
#[case::surplus(1, "rrr", &[], &[], &[])]
#[case::named_pod(2, "rrr", &[0], &[0], &[])]
#[case::unknown_named_pod(3, "rrr", &[7], &[], &[])]
#[case::failed_pod(3, "rrf", &[], &[2], &[])]
fn with_an_autoscaler_only_named_or_failed_pods_are_deleted(
    #[case] wanted: i32,
    #[case] pods: &str,
    #[case] named: &[u32],
    #[case] delete: &[u32],
    #[case] create: &[u32],
) {
    let scene = GroupFixture::of(wanted, pods);
    assert_eq!(scene.decide(9, named, false), (delete.to_vec(), create.to_vec()));
}

#[test]
fn named_surplus_pods_are_deleted_first() {
    assert_eq!(GroupFixture::of(2, "rrr").decide(9, &[0], true), (vec![0], vec![]));
    assert_eq!(GroupFixture::of(1, "rrr").decide(9, &[0], true), (vec![0, 2], vec![]));
}

/// Group and its existing or requested pods.
struct GroupFixture {
    cluster: RayCluster,
    group: PodGroup,
    pods: Vec<Pod>,
}

impl GroupFixture {
    fn of(wanted: i32, letters: &str) -> Self {
        let cluster = cluster_with_workers(wanted);
        let group = pod_groups(&cluster).expect("the spec is valid").pop().expect("there are workers");
        let letters = (0..).zip(letters.chars()).filter(|(_, letter)| *letter != '.');
        let pods = letters.map(|(slot, letter)| pod(&cluster, &group, slot, letter)).collect();
        Self { cluster, group, pods }
    }

    /// Returns the indices of the pods to delete, and those of the ungated pods to create, in
    /// order.
    fn decide(&self, granted: u32, named: &[u32], trims: bool) -> (Vec<u32>, Vec<u32>) {
        let (delete, create) = self.change(granted, named, trims);
        (delete, create.into_iter().filter(|(_, gated)| !gated).map(|(slot, _)| slot).collect())
    }

    /// Returns the indices of the gated pods to create.
    fn gated(&self, granted: u32) -> Vec<u32> {
        self.change(granted, &[], true).1.into_iter().filter(|(_, gated)| *gated).map(|(slot, _)| slot).collect()
    }

    fn change(&self, granted: u32, named: &[u32], trims: bool) -> (Vec<u32>, Vec<(u32, bool)>) {
        let name =
            |slot: &u32| pod_builder::pod_name(&self.cluster, &self.group, PodIndex { replica: *slot, host: 0 }, 0);
        let existing = self.pods.iter().filter(|pod| !is_requested(pod));
        let names: BTreeSet<String> = existing.map(ResourceExt::name_any).collect();
        let to_delete: Vec<String> = named.iter().map(name).collect();
        let change = decide(&GroupState {
            cluster: &self.cluster,
            group: &self.group,
            pods: self.pods.iter().filter(|pod| !is_requested(pod)).collect(),
            expected_pods: self.pods.iter().filter(|pod| is_requested(pod)).collect(),
            pod_names: &names,
            workers_to_delete: &to_delete,
            granted,
            reclaims_surplus: false,
            shape: Some("now"),
            deletes_surplus: trims,
            now: "2026-01-01T00:00:00Z".parse().expect("a time"),
        });
        let slot = |pod: &Pod| pod.labels()["ray.io/worker-group-replica-index"].parse().expect("a number");
        let delete = change.delete.iter().map(|(pod, _)| slot(pod)).collect();
        (delete, change.create.iter().map(|new| (new.index.replica, new.gated)).collect())
    }
}
