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
    let mut stage = running_service();
    let active = stage.live_clusters()[0].clone();
    stage.pods_start = false;
    stage.patch_service(ray_version_patch("2.54.0"));
    stage.run_for(10);
    let pending = stage.active_and_pending().1.expect("a pending cluster");

    stage.patch_service(json!({"spec": {"rayClusterConfig": {"workerGroupSpecs": groups_with_one_appended()}}}));
    stage.run_for(10);

    assert_eq!(stage.active_and_pending(), (Some(active.clone()), Some(pending.clone())));
    let groups = |name: &str| stage.cluster(name).spec.worker_group_specs.len();
    assert_eq!((groups(&active), groups(&pending)), (1, 2));
}

#[test]
fn b05_pending_cluster_that_already_receives_requests_serves_until_the_next_one_can() {
    // Given an upgrade whose new cluster receives requests before the status reports it,
    let mut stage = running_service();
    let first = stage.selected_cluster();
    stage.patch_service(ray_version_patch("2.54.0"));
    let end = stage.now + jiff::SignedDuration::from_secs(60);
    while stage.selected_cluster() == first && stage.now < end {
        stage.run_once(end, &|_| true);
    }
    let second = stage.selected_cluster().expect("a cluster");
    assert_eq!(stage.active_and_pending(), (first.clone(), Some(second.clone())));

    // when the spec changes again, then that cluster is kept: it serves until the third one does.
    stage.pods_start = false;
    stage.patch_service(ray_version_patch("2.55.0"));
    stage.run_for(20);
    assert_eq!(stage.selected_cluster(), Some(second.clone()));
    assert_eq!(stage.active_and_pending().0, Some(second));
    stage.pods_start = true;
    stage.run_for(60);
    assert_eq!((stage.served_by.len(), stage.condition("Ready")), (3, state("True", "NonZeroServeEndpoints")));
}

#[rstest]
#[case::of_the_active_cluster(false)]
#[case::of_the_pending_cluster(true)]
fn b07_autoscaler_changes_trigger_no_upgrade(#[case] in_an_upgrade: bool) {
    let mut stage = running_service();
    if in_an_upgrade {
        stage.pods_start = false;
        stage.patch_service(ray_version_patch("2.54.0"));
        stage.run_for(10);
    }
    let before = stage.active_and_pending();
    let name = before.1.clone().or(before.0.clone()).expect("a cluster");
    let mut groups = serde_json::to_value(stage.cluster(&name).spec.worker_group_specs).expect("JSON");
    groups[0]["replicas"] = json!(4);
    groups[0]["scaleStrategy"] = json!({"workersToDelete": ["chat-x-worker-1"]});
    stage.patch_as_other_client("RayCluster", &name, json!({"spec": {"workerGroupSpecs": groups}}));
    stage.run_for(30);

    assert_eq!(stage.active_and_pending(), before);
    let group = stage.cluster(&name).spec.worker_group_specs.remove(0);
    assert_eq!(
        (group.replicas, group.scale_strategy.map(|strategy| strategy.workers_to_delete.len())),
        (Some(4), Some(1))
    );
}

#[test]
fn b09_configuration_is_applied_in_place_when_upgrades_are_disabled() {
    let mut stage = running_service();
    let name = stage.live_clusters()[0].clone();
    let before = stage.cluster(&name).spec;
    stage.patch_service(json!({"spec": {"upgradeStrategy": {"type": "None"}}}));
    stage.patch_service(
        json!({"spec": {"serveConfigV2": serve_config("two"), "rayClusterConfig": {"rayVersion": "2.54.0"}}}),
    );
    stage.run_for(30);

    assert_eq!(stage.live_clusters(), std::slice::from_ref(&name));
    assert_eq!(serde_json::to_value(stage.cluster(&name).spec).ok(), serde_json::to_value(before).ok());
    assert_eq!(stage.applied_configs(&name).len(), 2);
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
    let mut stage = running_service();
    stage.default_zero_downtime = operator_default;
    stage.patch_service(json!({"spec": {"upgradeStrategy": strategy}}));
    stage.patch_service(ray_version_patch("2.54.0"));
    stage.run_for(5);

    assert_eq!(stage.live_clusters().len(), if upgrades { 2 } else { 1 });
    let expected = if upgrades { None } else { state("True", "UpgradeStrategyNone") };
    assert_eq!(stage.condition("sluice.dev/UpgradeBlocked"), expected);
    let names_flag = stage.message("sluice.dev/UpgradeBlocked").contains("--enable-zero-downtime is false");
    assert_eq!(names_flag, !upgrades && strategy["type"].is_null());
}

#[test]
fn b13_unhealthy_head_gets_no_requests_and_the_new_cluster_takes_over() {
    // Given a RayService without workers, in an upgrade that is pending for quota,
    let mut stage = Harness::new(chat_service());
    stage.has_workers = false;
    stage.run_for(60);
    let old = stage.selected_cluster().expect("a cluster");
    stage.is_queued = true;
    stage.patch_service(ray_version_patch("2.54.0"));
    stage.run_for(10);

    // when the proxy of the old head fails, then it receives no more requests and Ready reports it,
    stage.clusters_with_unhealthy_proxy.insert(old.clone());
    stage.run_for(30);
    let label = &stage.object("Pod", &format!("{old}-head")).expect("a head")["metadata"]["labels"]["ray.io/serve"];
    assert_eq!(label, "false");
    assert_eq!(stage.condition("Ready"), state("False", "ZeroServeEndpoints"));

    // and once there is quota, the new cluster takes over.
    let new = stage.active_and_pending().1.expect("a pending cluster");
    stage.set_unsuspended(&new, true);
    stage.run_for(30);
    assert_eq!(
        (stage.selected_cluster(), stage.condition("Ready")),
        (Some(new), state("True", "NonZeroServeEndpoints"))
    );
}

#[rstest]
#[case::unset(json!(null), 60)]
#[case::none(json!(0), 0)]
#[case::some(json!(20), 20)]
fn b16_replaced_cluster_is_deleted_after_the_deletion_delay(#[case] delay: Value, #[case] seconds: i64) {
    let mut stage = running_service();
    let old = stage.live_clusters()[0].clone();
    stage.patch_service(json!({"spec": {"rayClusterDeletionDelaySeconds": delay}}));
    stage.patch_service(ray_version_patch("2.54.0"));
    let end = stage.now + jiff::SignedDuration::from_secs(300);
    while !stage.has_stopped_serving(&old) && stage.now < end {
        stage.run_once(end, &|_| true);
    }
    let left_at = stage.now;
    while stage.live_clusters().contains(&old) && stage.now < end {
        stage.run_once(end, &|_| true);
    }
    let kept = stage.now.duration_since(left_at).as_secs();
    assert!((seconds - 1..=seconds + 2).contains(&kept), "it was kept for {kept} s");
}

#[test]
fn b18_derived_names_of_the_longest_allowed_name_are_valid() {
    let mut service = chat_service();
    service["metadata"]["name"] = json!("c".repeat(47));
    let mut stage = Harness::new(service);
    stage.run_for(60);

    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    let made = [stage.object_names("RayCluster"), stage.object_names("Service")].concat();
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
    let mut stage = running_service();
    let name = stage.live_clusters()[0].clone();
    if !healthy {
        stage.clusters_with_unhealthy_proxy.insert(name.clone());
    }
    stage.patch_service(json!({"spec": {"excludeHeadPodFromServeSvc": exclude}}));
    stage.run_for(60);
    let head = stage.object("Pod", &format!("{name}-head")).expect("a head");
    assert_eq!(head["metadata"]["labels"]["ray.io/serve"], expected);
}

#[test]
fn b26_suspending_during_an_upgrade_deletes_both_clusters_and_resumes_with_the_new_spec() {
    let mut stage = running_service();
    stage.pods_start = false;
    stage.patch_service(ray_version_patch("2.54.0"));
    stage.run_for(10);
    assert_eq!(stage.live_clusters().len(), 2);

    stage.patch_service(json!({"spec": {"suspend": true}}));
    stage.run_for(20);
    assert_eq!((stage.clusters().len(), stage.condition("Suspended")), (0, state("True", "SuspendComplete")));

    stage.pods_start = true;
    stage.patch_service(json!({"spec": {"suspend": false}}));
    stage.run_for(60);
    let clusters = stage.clusters();
    let versions: Vec<_> = clusters.iter().map(|cluster| cluster.spec.ray_version.as_deref()).collect();
    assert_eq!((versions, stage.condition("Ready")), (vec![Some("2.54.0")], state("True", "NonZeroServeEndpoints")));
}
