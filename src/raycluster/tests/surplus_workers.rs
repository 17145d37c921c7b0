//! Deletion of surplus workers, by the operator or by the autoscaler's choice.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt;
use rstest::rstest;

use super::super::fixtures::TestCluster;
use super::{deleted, ready_cluster};

#[test]
fn unready_and_highest_surplus_workers_are_deleted_first() {
    let mut test_cluster = ready_cluster(4);
    let of_slot = |test_cluster: &TestCluster, slot: &str| -> String {
        let has_index =
            |pod: &&Pod| pod.labels().get("ray.io/worker-group-replica-index").is_some_and(|index| index == slot);
        test_cluster.pods.values().find(has_index).expect("the slot is filled").name_any()
    };
    let (unready, highest) = (of_slot(&test_cluster, "1"), of_slot(&test_cluster, "3"));
    test_cluster.set_phase(&unready, "Pending");
    test_cluster.edit(|spec| spec.worker_group_specs[0].replicas = Some(2));

    let plan = test_cluster.reconcile_once();

    assert_eq!(BTreeSet::from_iter(deleted(&plan)), BTreeSet::from([unready.as_str(), highest.as_str()]));
    test_cluster.remove_terminating_pods();
    test_cluster.reconcile_until_stable();
    test_cluster.edit(|spec| spec.worker_group_specs[0].replicas = Some(3));
    test_cluster.reconcile_until_stable();
    assert_eq!(of_slot(&test_cluster, "1"), unready, "the lowest free slot is filled");
}

#[rstest]
#[case::deleted_by_the_operator(false, false, 1)]
#[case::left_to_the_autoscaler(true, false, 0)]
#[case::deleted_by_the_operator_despite_the_autoscaler(true, true, 1)]
fn b38_surplus_workers_are_left_to_an_enabled_autoscaler(
    #[case] autoscaling: bool,
    #[case] trims_autoscaled: bool,
    #[case] expected: usize,
) {
    let mut test_cluster = ready_cluster(2);
    test_cluster.random_pod_delete = trims_autoscaled;
    test_cluster.edit(|spec| {
        spec.enable_in_tree_autoscaling = Some(autoscaling);
        spec.worker_group_specs[0].replicas = Some(1);
    });
    assert_eq!(deleted(&test_cluster.plan()).len(), expected);
}

#[test]
fn b37_workers_to_delete_are_deleted_with_an_autoscaler_and_recreated_under_another_name() {
    let mut test_cluster = ready_cluster(2);
    let name = test_cluster.pod_names("small")[0].clone();
    test_cluster.edit(|spec| {
        spec.enable_in_tree_autoscaling = Some(true);
        let strategy = spec.worker_group_specs[0].scale_strategy.get_or_insert_default();
        strategy.workers_to_delete = vec![name.clone(), "not-there".to_owned()];
    });

    assert_eq!(deleted(&test_cluster.reconcile_once()), [name.as_str()]);
    test_cluster.remove_terminating_pods();
    test_cluster.reconcile_until_stable();

    let names = test_cluster.pod_names("small");
    assert!(names.len() == 2 && !names.contains(&name), "{names:?}");
}

#[test]
fn workers_of_a_removed_or_suspended_group_are_deleted() {
    let mut test_cluster = ready_cluster(2);
    test_cluster.edit(|spec| spec.worker_group_specs[0].suspend = Some(true));
    assert_eq!(deleted(&test_cluster.plan()).len(), 2);
    test_cluster.edit(|spec| spec.worker_group_specs.clear());
    assert_eq!(deleted(&test_cluster.plan()).len(), 2);
}
