//! Compatibility with KubeRay's RayServices and RayClusters: the prefix of each test name
//! (`b04_...`) is the number of the behavior in the list of compatible ones. Tests of other
//! behaviors are next to the code that they cover, here and in `src/raycluster` and `src/engine`,
//! with the same prefixes.

use rstest::rstest;
use serde_json::{Value, json};

use super::harness::Harness;
use super::{chat_service, groups_with_one_appended, ray_version_patch, running_service, serve_config, state};

#[test]
fn b04_group_appended_during_an_upgrade_is_added_to_the_pending_cluster() {
    let mut harness = running_service();
    let active = harness.live_clusters()[0].clone();
    harness.pods_start = false;
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(10);
    let pending = harness.active_and_pending().1.expect("a pending cluster");

    harness.patch_service(json!({"spec": {"rayClusterConfig": {"workerGroupSpecs": groups_with_one_appended()}}}));
    harness.run_for(10);

    assert_eq!(harness.active_and_pending(), (Some(active.clone()), Some(pending.clone())));
    let groups = |name: &str| harness.cluster(name).spec.worker_group_specs.len();
    assert_eq!((groups(&active), groups(&pending)), (1, 2));
}

#[test]
fn b05_pending_cluster_that_already_receives_requests_serves_until_the_next_one_can() {
    // Given an upgrade whose new cluster receives requests before the status reports it,
    let mut harness = running_service();
    let first = harness.selected_cluster();
    harness.patch_service(ray_version_patch("2.54.0"));
    let end = harness.now + jiff::SignedDuration::from_secs(60);
    while harness.selected_cluster() == first && harness.now < end {
        harness.run_once(end, &|_| true);
    }
    let second = harness.selected_cluster().expect("a cluster");
    assert_eq!(harness.active_and_pending(), (first.clone(), Some(second.clone())));

    // when the spec changes again, then that cluster is kept: it serves until the third one does.
    harness.pods_start = false;
    harness.patch_service(ray_version_patch("2.55.0"));
    harness.run_for(20);
    assert_eq!(harness.selected_cluster(), Some(second.clone()));
    assert_eq!(harness.active_and_pending().0, Some(second));
    harness.pods_start = true;
    harness.run_for(60);
    assert_eq!((harness.served_by.len(), harness.condition("Ready")), (3, state("True", "NonZeroServeEndpoints")));
}

#[rstest]
#[case::of_the_active_cluster(false)]
#[case::of_the_pending_cluster(true)]
fn b07_autoscaler_changes_trigger_no_upgrade(#[case] in_an_upgrade: bool) {
    let mut harness = running_service();
    if in_an_upgrade {
        harness.pods_start = false;
        harness.patch_service(ray_version_patch("2.54.0"));
        harness.run_for(10);
    }
    let before = harness.active_and_pending();
    let name = before.1.clone().or(before.0.clone()).expect("a cluster");
    let mut groups = serde_json::to_value(harness.cluster(&name).spec.worker_group_specs).expect("JSON");
    groups[0]["replicas"] = json!(4);
    groups[0]["scaleStrategy"] = json!({"workersToDelete": ["chat-x-worker-1"]});
    harness.patch_as_other_client("RayCluster", &name, json!({"spec": {"workerGroupSpecs": groups}}));
    harness.run_for(30);

    assert_eq!(harness.active_and_pending(), before);
    let group = harness.cluster(&name).spec.worker_group_specs.remove(0);
    assert_eq!(
        (group.replicas, group.scale_strategy.map(|strategy| strategy.workers_to_delete.len())),
        (Some(4), Some(1))
    );
}

#[test]
fn b09_configuration_is_applied_in_place_when_upgrades_are_disabled() {
    let mut harness = running_service();
    let name = harness.live_clusters()[0].clone();
    let before = harness.cluster(&name).spec;
    harness.patch_service(json!({"spec": {"upgradeStrategy": {"type": "None"}}}));
    harness.patch_service(
        json!({"spec": {"serveConfigV2": serve_config("two"), "rayClusterConfig": {"rayVersion": "2.54.0"}}}),
    );
    harness.run_for(30);

    assert_eq!(harness.live_clusters(), std::slice::from_ref(&name));
    assert_eq!(serde_json::to_value(harness.cluster(&name).spec).ok(), serde_json::to_value(before).ok());
    assert_eq!(harness.applied_configs(&name).len(), 2);
}

#[rstest]
#[case::unset_and_on(json!(null), true, true)]
#[case::unset_and_off(json!(null), false, false)]
#[case::new_cluster_and_on(json!({"type": "NewCluster"}), true, true)]
#[case::new_cluster_and_off(json!({"type": "NewCluster"}), false, true)]
#[case::none_and_on(json!({"type": "None"}), true, false)]
#[case::none_and_off(json!({"type": "None"}), false, false)]
#[case::no_type_and_off(json!({}), false, false)]
fn b11_strategy_of_the_ray_service_overrides_the_operator_default(
    #[case] strategy: Value,
    #[case] operator_default: bool,
    #[case] upgrades: bool,
) {
    let mut harness = running_service();
    harness.default_zero_downtime = operator_default;
    harness.patch_service(json!({"spec": {"upgradeStrategy": strategy}}));
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(5);

    assert_eq!(harness.live_clusters().len(), if upgrades { 2 } else { 1 });
    let expected = if upgrades { None } else { state("True", "UpgradeStrategyNone") };
    assert_eq!(harness.condition("sluice.dev/UpgradeBlocked"), expected);
    let names_flag = harness.message("sluice.dev/UpgradeBlocked").contains("--enable-zero-downtime is false");
    assert_eq!(names_flag, !upgrades && strategy["type"].is_null());
}

#[test]
fn b13_unhealthy_head_gets_no_requests_and_the_new_cluster_takes_over() {
    // Given a RayService without workers, in an upgrade that is pending for quota,
    let mut harness = Harness::new(chat_service());
    harness.has_workers = false;
    harness.run_for(60);
    let old = harness.selected_cluster().expect("a cluster");
    harness.is_queued = true;
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(10);

    // when the proxy of the old head fails, then it receives no more requests and Ready reports it,
    harness.clusters_with_unhealthy_proxy.insert(old.clone());
    harness.run_for(30);
    let label = &harness.object("Pod", &format!("{old}-head")).expect("a head")["metadata"]["labels"]["ray.io/serve"];
    assert_eq!(label, "false");
    assert_eq!(harness.condition("Ready"), state("False", "ZeroServeEndpoints"));

    // and once there is quota, the new cluster takes over.
    let new = harness.active_and_pending().1.expect("a pending cluster");
    harness.set_unsuspended(&new, true);
    harness.run_for(30);
    assert_eq!(
        (harness.selected_cluster(), harness.condition("Ready")),
        (Some(new), state("True", "NonZeroServeEndpoints"))
    );
}

#[rstest]
#[case::unset(json!(null), 60)]
#[case::none(json!(0), 0)]
#[case::some(json!(20), 20)]
fn b16_replaced_cluster_is_deleted_after_the_deletion_delay(#[case] delay: Value, #[case] seconds: i64) {
    let mut harness = running_service();
    let old = harness.live_clusters()[0].clone();
    harness.patch_service(json!({"spec": {"rayClusterDeletionDelaySeconds": delay}}));
    harness.patch_service(ray_version_patch("2.54.0"));
    let end = harness.now + jiff::SignedDuration::from_secs(300);
    while !harness.has_stopped_serving(&old) && harness.now < end {
        harness.run_once(end, &|_| true);
    }
    let left_at = harness.now;
    while harness.live_clusters().contains(&old) && harness.now < end {
        harness.run_once(end, &|_| true);
    }
    let kept = harness.now.duration_since(left_at).as_secs();
    assert!((seconds - 1..=seconds + 2).contains(&kept), "it was kept for {kept} s");
}

#[test]
fn b18_derived_names_of_the_longest_allowed_name_are_valid() {
    let mut service = chat_service();
    service["metadata"]["name"] = json!("c".repeat(47));
    let mut harness = Harness::new(service);
    harness.run_for(60);

    assert_eq!(harness.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    let made = [harness.object_names("RayCluster"), harness.object_names("Service")].concat();
    assert_eq!(made.len(), 3);
    assert!(made.iter().all(|name| name.len() <= 63), "{made:?}");
}

#[rstest]
#[case::included_and_healthy(json!(false), true, "true")]
#[case::included_and_unhealthy(json!(false), false, "false")]
#[case::excluded_and_healthy(json!(true), true, "false")]
#[case::excluded_and_unhealthy(json!(true), false, "false")]
fn b19_head_receives_requests_only_if_included_and_healthy(
    #[case] exclude: Value,
    #[case] healthy: bool,
    #[case] expected: &str,
) {
    let mut harness = running_service();
    let name = harness.live_clusters()[0].clone();
    if !healthy {
        harness.clusters_with_unhealthy_proxy.insert(name.clone());
    }
    harness.patch_service(json!({"spec": {"excludeHeadPodFromServeSvc": exclude}}));
    harness.run_for(60);
    let head = harness.object("Pod", &format!("{name}-head")).expect("a head");
    assert_eq!(head["metadata"]["labels"]["ray.io/serve"], expected);
}

#[test]
fn b26_suspending_during_an_upgrade_deletes_both_clusters_and_resumes_with_the_new_spec() {
    let mut harness = running_service();
    harness.pods_start = false;
    harness.patch_service(ray_version_patch("2.54.0"));
    harness.run_for(10);
    assert_eq!(harness.live_clusters().len(), 2);

    harness.patch_service(json!({"spec": {"suspend": true}}));
    harness.run_for(20);
    assert_eq!((harness.clusters().len(), harness.condition("Suspended")), (0, state("True", "SuspendComplete")));

    harness.pods_start = true;
    harness.patch_service(json!({"spec": {"suspend": false}}));
    harness.run_for(60);
    let clusters = harness.clusters();
    let versions: Vec<_> = clusters.iter().map(|cluster| cluster.spec.ray_version.as_deref()).collect();
    assert_eq!((versions, harness.condition("Ready")), (vec![Some("2.54.0")], state("True", "NonZeroServeEndpoints")));
}
