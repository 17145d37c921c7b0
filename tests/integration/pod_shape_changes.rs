//! Upgrades and edits that change pod resources: each pod is accounted for as it was created until
//! it is gone, and nothing that serves is stopped. Most scenarios run twice: with our own Ray
//! operator, and with the fake [`KubeRay`].
//!
//! Limits and failures of the proof of concept and of Kueue, and the tests that cover them (in
//! `tests/integration` unless a path is given):
//!
//! | limit or failure | test |
//! |---|---|
//! | proof of concept, 1: an upgrade to other resources is miscounted | `upgrade_to_more_gpus…` here; `upgrades::upgrade_to_larger_pods_requests_their_actual_size` |
//! | proof of concept, 2: a user who clears the template's gate gets pods without quota | `admission_policies::tampering::template_unsuspended_while_sluice_is_down…` |
//! | a) a change outside of the pods runs a second cluster unaccounted | `upgrades::upgrade_waits_for_quota_and_completes…` (only `rayVersion` changes) |
//! | b) a change of the pods stops the service | `upgrade_to_more_gpus…` and `upgrades_add…` here: the active cluster is never suspended |
//! | c) an elastic service of unchanged counts hangs in its upgrade | `elastic_service_of_unchanged_size…` here |
//! | d) a running service cannot be evicted | `running_service_is_drained…` here; `evictions`, `preemption` |
//! | kueue#9015, #11195: quota leaks because the old slice finishes first | invariant I4, checked in every scenario; `src/queue/tests/slices.rs` |
//! | kueue#9322: unchanged PodSets are counted twice | `src/queue/tests/behaviors/slices.rs`, B24 |
//! | kueue#11327: two successors under rapid changes | `src/engine/tests/growth.rs`, `src/jobframework/tests/changes.rs` |
//! | kueue#11977, #12045: more pods are ungated than admitted | invariant I3, per PodSet; `src/jobframework/ungate.rs` |
//! | kueue#12931: slices created in the same second are in the wrong order | `src/jobframework/tests/changes.rs`, `src/queue/tests/behaviors/slices.rs`, B55 |
//! | kueue#13071: a slice replaces one of another namespace | `src/queue/tests/slices.rs`, `slice_of_another_owner_cannot_be_replaced` |
//! | kueue#12670: a scale-down is rejected, and its quota stays reserved | `src/queue/tests/behaviors/slices.rs` |
//! | kueue#14129, #14139: gated forever because the first slice was deleted | `src/jobframework/tests/changes.rs` |
//! | kueue#14277, #14703: pods and quota are observed late | `src/engine/tests/growth.rs` |
//! | kueue#9879, #9986: restarted pods stay gated | `cluster_edited_in_place…` here: its pods are deleted one by one |
//! | kueue#10167: no gates at creation; the webhook blocks finalizers | `admission_policies::webhook`; pods are created gated in every scenario with [`KubeRay`] here |
//! | kueue#14792: the flavor changes after a count was 0 | `src/queue/tests/behaviors/slices.rs` |
//! | kueue#12350, #12403: no flavor labels on ungated pods | `flavors::changed_node_selector…` |
//! | kueue#13025: a group is added | `groups_of_a_running_cluster…` here |
//!
//! Not implemented: MultiKueue (#13489), topology (#15617), provisioning requests (#14316).

use kube::ResourceExt;
use kube::api::DeleteParams;
use rstest::rstest;
use serde_json::json;
use sluice_api::condition;
use sluice_api::kueue::scheduling_gate::is_gated;

use crate::rayclusters::CLUSTER;
use crate::resource_change_fixture::{
    Fixture, GPU, RayOperatorKind, pod_sets, sample_service, set_quota, standalone_cluster, worker_group,
    worker_group_of_cpu,
};
use sluice_testkit::objects::QUEUE;
use sluice_testkit::{eventually, eventually_or_err};

#[rstest]
#[case::our_operator(RayOperatorKind::Ours)]
#[case::another_operator(RayOperatorKind::Another)]
#[tokio::test]
async fn upgrade_to_more_gpus_per_worker_counts_both_clusters_exactly(#[case] operator: RayOperatorKind) {
    let fixture = Fixture::start(operator).await;
    let gpus = |gpus: &str| worker_group("small", 1, json!({"cpu": "500m", "memory": "1Gi", GPU: gpus}));
    set_quota(&fixture, "4", "16Gi", "2").await;
    fixture.env.apply_object(sample_service("2.52.0", &[gpus("1")])).await;
    fixture.env.wait_until_serving("2.52.0").await;
    fixture.wait_for_reserved(GPU, "1").await;

    // Given one GPU in use and one free, when a worker requests two, then the upgrade waits for a
    // third,
    fixture.env.apply_object(sample_service("2.53.0", &[gpus("2")])).await;
    let (pending, message) = fixture.env.wait_for_pending_upgrade().await;
    assert!(message.contains(GPU) && message.contains("nominalQuota is 3"), "{message}");
    assert!(fixture.env.pods_of(&pending).await.is_empty());
    fixture.wait_for_reserved(GPU, "1").await;

    // and completes once the quota allows it; then two are reserved.
    set_quota(&fixture, "4", "16Gi", "3").await;
    assert_eq!(fixture.env.wait_until_serving("2.53.0").await, pending);
    fixture.env.wait_for_only_cluster(&pending).await;
    fixture.wait_for_reserved(GPU, "2").await;
    let names = pod_sets(&fixture.check_history().await);
    let others: Vec<&String> = names.iter().filter(|name| *name != "head" && *name != "small").collect();
    assert!(matches!(others.as_slice(), [other] if other.starts_with("small-")), "{names:?}");
}

#[rstest]
#[case::our_operator(RayOperatorKind::Ours)]
#[case::another_operator(RayOperatorKind::Another)]
#[tokio::test]
async fn upgrades_add_rename_and_remove_groups(#[case] operator: RayOperatorKind) {
    let fixture = Fixture::start(operator).await;
    fixture.env.set_quota("8", "32Gi").await;
    let upgrades = [
        ("2.52.0", vec![worker_group_of_cpu("small", 1, 500)], "1"),
        ("2.53.0", vec![worker_group_of_cpu("small", 1, 500), worker_group_of_cpu("large", 2, 1000)], "3"),
        ("2.54.0", vec![worker_group_of_cpu("tiny", 1, 500), worker_group_of_cpu("large", 2, 1000)], "3"),
        ("2.55.0", vec![worker_group_of_cpu("tiny", 1, 250)], "750m"),
    ];
    for (version, groups, cpu) in upgrades {
        fixture.env.apply_object(sample_service(version, &groups)).await;
        let serving = fixture.env.wait_until_serving(version).await;
        fixture.env.wait_for_only_cluster(&serving).await;
        fixture.wait_for_reserved("cpu", cpu).await;
    }
    fixture.check_history().await;
}

#[rstest]
#[case::our_operator(RayOperatorKind::Ours)]
#[case::another_operator(RayOperatorKind::Another)]
#[tokio::test]
async fn cluster_edited_in_place_accounts_for_each_pod_as_it_was_created(#[case] operator: RayOperatorKind) {
    let fixture = Fixture::start(operator).await;
    fixture.env.set_quota("1500m", "3Gi").await;
    fixture.env.apply_object(standalone_cluster(&[worker_group_of_cpu("small", 2, 500)])).await;
    let pods = fixture.wait_for_pods(CLUSTER, 0, 3).await;
    fixture.wait_for_reserved("cpu", "1500m").await;
    let old: Vec<String> =
        pods.iter().filter(|pod| pod.labels()["ray.io/group"] == "small").map(ResourceExt::name_any).collect();

    // Given workers of half a CPU, when their template requests a whole one, running workers are
    // unchanged.
    fixture.env.apply_object(standalone_cluster(&[worker_group_of_cpu("small", 2, 1000)])).await;

    // A lost worker releases its quota. Its replacement requests more and waits for it.
    fixture.env.pods().delete(&old[0], &DeleteParams::default()).await.expect("a worker is lost");
    fixture.wait_for_pods(CLUSTER, 1, 2).await;
    fixture.wait_for_reserved("cpu", "1").await;
    assert!(fixture.env.pods().get_opt(&old[1]).await.expect("the other worker").is_some());
    fixture.env.set_quota("1999m", "3Gi").await;
    fixture.wait_for_pods(CLUSTER, 1, 2).await;
    fixture.env.set_quota("2", "3Gi").await;
    fixture.wait_for_pods(CLUSTER, 0, 3).await;
    fixture.wait_for_reserved("cpu", "2").await;

    // The same for the other worker.
    fixture.env.pods().delete(&old[1], &DeleteParams::default()).await.expect("a worker is lost");
    fixture.wait_for_pods(CLUSTER, 1, 2).await;
    fixture.wait_for_reserved("cpu", "1500m").await;
    fixture.env.set_quota("2500m", "3Gi").await;
    fixture.wait_for_pods(CLUSTER, 0, 3).await;
    fixture.wait_for_reserved("cpu", "2500m").await;
    fixture.check_history().await;
}

#[rstest]
#[case::our_operator(RayOperatorKind::Ours)]
#[case::another_operator(RayOperatorKind::Another)]
#[tokio::test]
async fn groups_of_a_running_cluster_can_be_added_renamed_and_removed(#[case] operator: RayOperatorKind) {
    let fixture = Fixture::start(operator).await;
    fixture.env.set_quota("1", "4Gi").await;
    fixture.env.apply_object(standalone_cluster(&[worker_group_of_cpu("small", 1, 500)])).await;
    fixture.wait_for_pods(CLUSTER, 0, 2).await;

    // An added group waits for quota, and runs partially as quota allows.
    fixture
        .env
        .apply_object(standalone_cluster(&[
            worker_group_of_cpu("small", 1, 500),
            worker_group_of_cpu("large", 2, 1000),
        ]))
        .await;
    fixture.wait_for_pods(CLUSTER, 2, 2).await;
    fixture.env.set_quota("2", "4Gi").await;
    fixture.wait_for_pods(CLUSTER, 1, 3).await;
    fixture.wait_for_reserved("cpu", "2").await;
    fixture.env.set_quota("3", "4Gi").await;
    fixture.wait_for_pods(CLUSTER, 0, 4).await;
    fixture.wait_for_reserved("cpu", "3").await;

    // A renamed group is a different group.
    fixture
        .env
        .apply_object(standalone_cluster(&[worker_group_of_cpu("tiny", 1, 500), worker_group_of_cpu("large", 2, 1000)]))
        .await;
    eventually("the renamed group runs", async || {
        let pods = fixture.env.pods_of(CLUSTER).await;
        let running =
            |group: &str| pods.iter().filter(|pod| pod.labels()["ray.io/group"] == group && !is_gated(pod)).count();
        (running("tiny") == 1 && running("small") == 0).then_some(())
    })
    .await;
    fixture.wait_for_reserved("cpu", "3").await;

    fixture.env.apply_object(standalone_cluster(&[worker_group_of_cpu("tiny", 1, 500)])).await;
    fixture.wait_for_pods(CLUSTER, 0, 2).await;
    fixture.wait_for_reserved("cpu", "1").await;
    fixture.check_history().await;
}

#[tokio::test]
async fn upgrade_with_too_many_pod_sets_reports_it_and_keeps_the_active_cluster() {
    let fixture = Fixture::start(RayOperatorKind::Ours).await;
    fixture.env.set_quota("64", "256Gi").await;
    let all =
        |cpu: u32| (1..=9).map(|number| worker_group_of_cpu(&format!("group-{number}"), 1, cpu)).collect::<Vec<_>>();
    fixture.env.apply_object(sample_service("2.52.0", &all(250))).await;
    let first = fixture.env.wait_until_serving("2.52.0").await;
    let pods = fixture.wait_for_pods(&first, 0, 10).await;
    let has_condition = async |what: &str, matches: &dyn Fn(&str, &str) -> bool| {
        eventually_or_err(what, async || {
            let conditions = fixture.env.get_service().await.status.unwrap_or_default().conditions;
            match condition::get(&conditions, "sluice.dev/Admitted") {
                Some(found) if matches(&found.status, &found.message) => Ok(()),
                found => Err(format!("but {found:?}")),
            }
        })
        .await;
    };

    // Nine groups that all change, plus an unchanged head, are one PodSet too many.
    fixture.env.apply_object(sample_service("2.53.0", &all(300))).await;
    has_condition("the condition reports the number and the maximum of PodSets", &|status, message| {
        let words = ["spec.workerGroupSpecs", "19 PodSets", "at most 18"];
        status == "False" && words.iter().all(|word| message.contains(word))
    })
    .await;
    let there = fixture.env.pods_of(&first).await;
    assert_eq!(
        there.iter().map(ResourceExt::uid).collect::<Vec<_>>(),
        pods.iter().map(ResourceExt::uid).collect::<Vec<_>>()
    );

    // With one unchanged group, they fit.
    let mut fewer = all(300);
    fewer[0] = worker_group_of_cpu("group-1", 1, 250);
    fixture.env.apply_object(sample_service("2.54.0", &fewer)).await;
    let second = fixture.env.wait_until_serving("2.54.0").await;
    fixture.env.wait_for_only_cluster(&second).await;
    has_condition("the service is admitted", &|status, _| status == "True").await;
    fixture.check_history().await;
}

#[rstest]
#[case::our_operator(RayOperatorKind::Ours)]
#[case::another_operator(RayOperatorKind::Another)]
#[tokio::test]
async fn elastic_service_of_unchanged_size_is_upgraded_with_a_new_slice(#[case] operator: RayOperatorKind) {
    let fixture = Fixture::start(operator).await;
    fixture.env.set_quota("2", "4Gi").await;
    let elastic = |version: &str| {
        let mut service = sample_service(version, &[worker_group_of_cpu("small", 1, 500)]);
        service["metadata"]["annotations"] = json!({"kueue.x-k8s.io/elastic-job": "true"});
        service
    };
    fixture.env.apply_object(elastic("2.52.0")).await;
    fixture.env.wait_until_serving("2.52.0").await;
    fixture.wait_for_reserved("cpu", "1").await;

    fixture.env.apply_object(elastic("2.53.0")).await;
    let second = fixture.env.wait_until_serving("2.53.0").await;
    fixture.env.wait_for_only_cluster(&second).await;
    fixture.wait_for_pods(&second, 0, 2).await;
    fixture.wait_for_reserved("cpu", "1").await;
    fixture.check_history().await;
}

#[rstest]
#[case::our_operator(RayOperatorKind::Ours)]
#[case::another_operator(RayOperatorKind::Another)]
#[tokio::test]
async fn running_service_is_drained_and_readmitted(#[case] operator: RayOperatorKind) {
    let fixture = Fixture::start(operator).await;
    fixture.env.apply_object(sample_service("2.52.0", &[worker_group_of_cpu("small", 1, 500)])).await;
    let serving = fixture.env.wait_until_serving("2.52.0").await;
    fixture.wait_for_reserved("cpu", "1").await;

    fixture.env.patch_queue(QUEUE, json!({"stopPolicy": "HoldAndDrain"})).await;
    fixture.wait_for_pods(&serving, 0, 0).await;
    fixture.wait_for_reserved("cpu", "0").await;
    fixture.env.patch_queue(QUEUE, json!({"stopPolicy": "None"})).await;
    fixture.wait_for_pods(&serving, 0, 2).await;
    fixture.wait_for_reserved("cpu", "1").await;
    fixture.check_history_with_evictions().await;
}

#[tokio::test]
async fn pods_of_another_operator_are_created_gated_and_ungated_as_quota_allows() {
    let fixture = Fixture::start(RayOperatorKind::Another).await;
    fixture.env.apply_object(standalone_cluster(&[worker_group_of_cpu("small", 1, 500)])).await;
    fixture.wait_for_pods(CLUSTER, 0, 2).await;
    fixture.wait_for_reserved("cpu", "1").await;

    fixture.env.apply_object(standalone_cluster(&[worker_group_of_cpu("small", 3, 500)])).await;
    fixture.wait_for_pods(CLUSTER, 2, 2).await;
    fixture.env.set_quota("1500m", "4Gi").await;
    for pod in fixture.wait_for_pods(CLUSTER, 1, 3).await.iter().filter(|pod| !is_gated(pod)) {
        assert!(pod.labels().contains_key("kueue.x-k8s.io/podset"), "{} has the label of its PodSet", pod.name_any());
    }
    fixture.env.set_quota("2", "4Gi").await;
    fixture.wait_for_pods(CLUSTER, 0, 4).await;
    fixture.wait_for_reserved("cpu", "2").await;
    fixture.check_history().await;
}
