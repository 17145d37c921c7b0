//! What a service does from its beginning to its end.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::stage::Stage;
use super::{chat, config, serving, state, version};
use crate::api::ray::names;
use crate::engine::plan::{Plan, WriteOp};

#[test]
fn a_new_service_comes_to_serve() {
    let mut stage = Stage::new(chat());
    stage.play(1);
    let first = stage.living();
    assert_eq!(stage.named(), (None, Some(first[0].clone())));
    assert_eq!(stage.condition("Ready"), state("False", "Initializing"));
    assert_eq!(stage.leads_to(), None, "nobody is there for requests yet");

    stage.play(30);

    assert_eq!(stage.named(), (Some(first[0].clone()), None));
    assert_eq!(stage.leads_to(), Some(first[0].clone()));
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    assert_eq!(stage.condition("UpgradeInProgress"), state("False", "NoPendingCluster"));
    let status = stage.service().and_then(|service| service.status).expect("a status");
    assert_eq!(status.service_status.as_deref(), Some("Running"));
    assert_eq!(status.num_serve_endpoints, Some(1));
    let apps = status.active_service_status.and_then(|active| active.application_statuses).expect("applications");
    assert_eq!(apps["one"].status.as_deref(), Some("RUNNING"));
    assert_eq!(stage.applied(&first[0]).len(), 1);
    assert_eq!(
        (stage.told("CreatedRayCluster"), stage.told("CreatedService"), stage.told("UpdatedServeApplications")),
        (1, 2, 1)
    );
}

#[test]
fn a_child_is_made_as_kuberay_makes_it() {
    let stage = serving();
    let name = &stage.living()[0];
    assert_eq!(name.len(), "chat-".len() + 5);
    let child = stage.cluster(name);
    assert_eq!(child.labels()["team"], "a");
    assert_eq!(child.labels()[names::ORIGIN_NAME_LABEL], "chat");
    assert_eq!(child.labels()[names::ORIGIN_KIND_LABEL], "RayService");
    assert_eq!(child.annotations()["note"], "b");
    assert_eq!(child.annotations()[names::WORKER_GROUPS_ANNOTATION], "1");
    assert!(child.annotations()[names::SPEC_HASH_ANNOTATION].starts_with("v1-"));
    let owner = &child.owner_references()[0];
    assert_eq!(
        (owner.kind.as_str(), owner.controller, owner.block_owner_deletion),
        ("RayService", Some(true), Some(true))
    );
    assert_eq!(child.spec.suspend, None);
}

#[test]
fn the_services_lead_to_the_cluster_and_take_the_ports_of_its_head() {
    let stage = serving();
    let service = |name: &str| -> Service {
        serde_json::from_value(stage.object("Service", name).expect("the Service").clone()).expect("a Service")
    };
    let serve = service("chat-serve-svc").spec.expect("a spec");
    let ports: Vec<_> = serve.ports.iter().flatten().map(|port| (port.name.as_deref(), port.port)).collect();
    assert_eq!(ports, [(Some("serve"), 8000)]);
    assert_eq!(serve.selector.expect("a selector")[names::SERVE_LABEL], "true");
    let head = service("chat-head-svc").spec.expect("a spec");
    assert_eq!(head.cluster_ip.as_deref(), Some("None"));
    assert_eq!(head.selector.expect("a selector")[names::NODE_TYPE_LABEL], "head");
}

#[test]
fn a_queued_child_is_born_suspended_and_the_service_says_what_it_waits_for() {
    let mut stage = Stage::new(chat());
    stage.gated = true;
    stage.play(10);

    let name = stage.living()[0].clone();
    assert_eq!(stage.cluster(&name).spec.suspend, Some(true));
    assert!(stage.message("Ready").contains("its gate is closed"), "{}", stage.message("Ready"));

    stage.set_gate(&name, true);
    stage.play(20);
    assert_eq!(stage.leads_to(), Some(name));
}

#[test]
fn nothing_is_written_while_nothing_changes() {
    let mut stage = serving();
    let plans: Vec<Plan> = (0..20)
        .map(|_| {
            stage.now += SignedDuration::from_secs(3);
            stage.plan()
        })
        .collect();
    assert!(plans.iter().all(|plan| plan.writes.is_empty() && plan.notes.is_empty()), "{plans:?}");
}

#[test]
fn another_configuration_is_applied_in_place() {
    let mut stage = serving();
    let before = stage.living();

    stage.edit(json!({"spec": {"serveConfigV2": config("two")}}));
    stage.play(30);

    assert_eq!(stage.living(), before);
    assert_eq!(stage.applied(&before[0]).len(), 2);
    let status = stage.service().and_then(|service| service.status).expect("a status");
    assert!(
        status.active_service_status.and_then(|active| active.application_statuses).expect("seen").contains_key("two")
    );
    assert_eq!(stage.told("UpgradeStarted"), 0);
}

#[test]
fn another_version_gets_a_cluster_that_takes_over_once_it_runs() {
    let mut stage = serving();
    let old = stage.living()[0].clone();
    stage.deploy = SignedDuration::from_secs(20);

    stage.edit(version("2.54.0"));
    stage.play(15);

    assert_eq!(stage.condition("UpgradeInProgress"), state("True", "BothActivePendingClustersExist"));
    assert!(stage.message("UpgradeInProgress").contains("application one is DEPLOYING"));
    assert_eq!(stage.leads_to(), Some(old.clone()));
    let status = stage.service().and_then(|service| service.status).expect("a status");
    assert!(status.active_service_status.and_then(|active| active.application_statuses).is_some(), "not blanked");

    stage.play(20);
    let new = stage.leads_to().expect("somebody serves");
    assert_ne!(new, old);
    assert_eq!(stage.named(), (Some(new.clone()), None));
    assert_eq!(stage.living().len(), 2, "the old one is kept for those who still talk to it");
    assert_eq!(stage.told("UpgradeStarted") + stage.told("Promoted"), 2);

    stage.play(70);
    assert_eq!(stage.living(), [new]);
    assert_eq!(stage.served_by.len(), 2);
}

#[test]
fn a_configuration_that_comes_with_another_cluster_never_reaches_the_one_that_serves() {
    let mut stage = serving();
    let old = stage.living()[0].clone();
    stage.pods_start = false;
    stage.edit(version("2.54.0"));
    stage.edit(json!({"spec": {"serveConfigV2": config("two")}}));
    stage.play(30);
    stage.restart();
    stage.play(30);
    stage.edit(json!({"spec": {"serveConfigV2": config("three")}}));
    stage.play(30);
    assert_eq!(stage.applied(&old).len(), 1);

    stage.pods_start = true;
    stage.play(30);
    let new = stage.leads_to().expect("somebody serves");
    assert_eq!(stage.applied(&new)[0]["applications"][0]["name"], "three");
    assert_eq!(stage.applied(&old).len(), 1);
}

#[test]
fn a_change_taken_back_costs_nothing() {
    let mut stage = serving();
    let old = stage.living();
    stage.gated = true;
    stage.edit(version("2.54.0"));
    stage.play(20);
    assert_eq!(stage.living().len(), 2);

    stage.edit(version("2.53.0"));
    stage.play(2);

    assert_eq!(stage.living(), old, "what never served goes at once");
    assert_eq!(stage.condition("UpgradeInProgress"), state("False", "NoPendingCluster"));
    assert_eq!(stage.told("UpgradeCancelled"), 1);
    assert_eq!(stage.served_by, old);
}

#[test]
fn another_change_replaces_the_pending_cluster() {
    let mut stage = serving();
    stage.pods_start = false;
    stage.edit(version("2.54.0"));
    stage.play(10);
    let (active, second) = stage.named();

    stage.edit(version("2.55.0"));
    stage.play(10);

    let (still, third) = stage.named();
    assert_eq!(still, active);
    assert_ne!(third, second);
    assert_eq!(stage.living().len(), 2);
    assert!(!stage.living().contains(&second.expect("a name")));
}

#[test]
fn a_pending_cluster_without_a_head_blocks_nothing() {
    let mut stage = serving();
    let old = stage.living()[0].clone();
    stage.pods_start = false;
    stage.edit(version("2.54.0"));
    stage.play(30);
    assert!(stage.message("UpgradeInProgress").contains("its head is not ready (HeadPodNotFound)"));

    stage.edit(json!({"spec": {"serveConfigV2": config("two"), "rayClusterConfig": {"rayVersion": "2.53.0"}}}));
    stage.play(20);

    assert_eq!(stage.living(), std::slice::from_ref(&old));
    assert_eq!(stage.applied(&old).len(), 2);
}

#[test]
fn there_and_back_again_never_takes_a_name_that_is_still_taken() {
    let mut stage = serving();
    stage.pods_start = false;
    stage.edit(version("2.54.0"));
    stage.play(5);
    let second = stage.named().1.expect("a pending cluster");
    stage.pods_linger = true;
    stage.pods_start = true;
    stage.play(1);

    stage.edit(version("2.53.0"));
    stage.play(5);
    stage.edit(version("2.54.0"));
    stage.play(1);

    let again = stage.named().1.expect("a pending cluster");
    assert_ne!(again, second, "the first one is not gone yet");
    assert_eq!(stage.clusters().len(), 3);
}

#[test]
fn what_served_before_serves_again_while_it_is_still_warm() {
    let mut stage = serving();
    let old = stage.living()[0].clone();
    stage.edit(version("2.54.0"));
    stage.play(30);
    assert_ne!(stage.leads_to(), Some(old.clone()));

    stage.edit(version("2.53.0"));
    stage.play(5);

    assert_eq!(stage.leads_to(), Some(old.clone()));
    assert_eq!(stage.told("CreatedRayCluster"), 2, "nothing was made for it");
    stage.play(100);
    assert_eq!(stage.living(), [old]);
}

#[test]
fn a_change_taken_back_as_traffic_moves_leaves_both_clusters_their_time() {
    let mut stage = serving();
    let old = stage.leads_to();
    stage.edit(version("2.54.0"));
    let end = stage.now + SignedDuration::from_secs(60);
    while stage.leads_to() == old && stage.now < end {
        stage.beat(end, &|_| true);
    }
    let new = stage.leads_to();
    assert_eq!((stage.named().0, new != old), (old.clone(), true), "the status is behind");

    stage.edit(version("2.53.0"));
    stage.play(10);

    assert_eq!(stage.leads_to(), old);
    assert_eq!(stage.named(), (old.clone(), None));
    assert!(stage.living().contains(&new.expect("it served")), "requests that it took may still be running");
    stage.play(100);
    assert_eq!(stage.living(), Vec::from_iter(old));
}

#[test]
fn replicas_that_change_change_no_cluster() {
    let mut stage = serving();
    let before = stage.living();
    let mut groups = chat()["spec"]["rayClusterConfig"]["workerGroupSpecs"].clone();
    groups[0]["replicas"] = json!(4);
    stage.edit(json!({"spec": {"rayClusterConfig": {"workerGroupSpecs": groups}}}));
    stage.play(20);

    assert_eq!(stage.living(), before);
    assert_eq!(stage.cluster(&before[0]).spec.worker_group_specs[0].replicas, Some(1));
}

#[test]
fn a_group_that_is_appended_is_added_in_place_and_leaves_the_others_as_they_have_become() {
    let mut stage = serving();
    let before = stage.living();
    let mut scaled = chat()["spec"]["rayClusterConfig"]["workerGroupSpecs"].clone();
    scaled[0]["replicas"] = json!(3);
    stage.meddle("RayCluster", &before[0], json!({"spec": {"workerGroupSpecs": scaled}}));
    let mut groups = chat()["spec"]["rayClusterConfig"]["workerGroupSpecs"].clone();
    let mut big = groups[0].clone();
    big["groupName"] = json!("big");
    groups.as_array_mut().expect("a list").push(big);

    stage.edit(json!({"spec": {"rayClusterConfig": {"workerGroupSpecs": groups}}}));
    stage.play(20);

    assert_eq!(stage.living(), before);
    let groups = stage.cluster(&before[0]).spec.worker_group_specs;
    let groups: Vec<_> = groups.iter().map(|group| (group.group_name.as_str(), group.replicas)).collect();
    assert_eq!(groups, [("small", Some(3)), ("big", Some(1))]);
    assert_eq!(stage.told("UpdatedRayCluster"), 1);
}

#[rstest]
#[case::off("None", "UpgradeStrategyNone", None)]
#[case::incremental("NewClusterWithIncrementalUpgrade", "UpgradeStrategyUnsupported", Some("FieldsNotActedOn"))]
fn a_strategy_that_allows_no_new_cluster_is_told(
    #[case] strategy: &str,
    #[case] held: &str,
    #[case] unsupported: Option<&str>,
) {
    let mut stage = serving();
    let before = stage.living();
    stage.edit(json!({"spec": {"upgradeStrategy": {"type": strategy}}}));
    stage.edit(version("2.54.0"));
    stage.play(30);

    assert_eq!(stage.living(), before);
    assert_eq!(stage.condition("sluice.dev/UpgradeHeld"), state("True", held));
    assert_eq!(stage.condition("sluice.dev/Unsupported"), unsupported.and_then(|reason| state("True", reason)));
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    assert_eq!(stage.told("UpgradeHeld"), 1);

    stage.edit(json!({"spec": {"upgradeStrategy": null}}));
    stage.play(30);
    assert_eq!(stage.condition("sluice.dev/UpgradeHeld"), None);
    assert_eq!(stage.served_by.len(), 2);
}

#[test]
fn a_head_that_comes_up_anew_gets_its_applications_back() {
    let mut stage = serving();
    let name = stage.living()[0].clone();
    stage.lose_head(&name);
    stage.play(20);
    assert_eq!(stage.applied(&name).len(), 1);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
}

#[test]
fn a_head_that_comes_up_anew_in_an_upgrade_gets_no_configuration_of_another_cluster() {
    let mut stage = serving();
    let name = stage.living()[0].clone();
    stage.gated = true;
    stage.edit(version("2.54.0"));
    stage.edit(json!({"spec": {"serveConfigV2": config("two")}}));
    stage.play(10);
    stage.lose_head(&name);
    stage.play(20);
    assert_eq!(stage.applied(&name).len(), 0);
    assert_eq!(stage.told("ServeApplicationsLost"), 1);

    stage.edit(json!({"spec": {"serveConfigV2": config("one")}}));
    stage.play(20);
    assert_eq!(stage.applied(&name).len(), 1);
}

#[rstest]
#[case::counts(json!(null), "true")]
#[case::excluded(json!(true), "false")]
fn the_head_takes_requests_if_its_proxy_does_and_nobody_minds(#[case] exclude: Value, #[case] expected: &str) {
    let mut stage = serving();
    stage.edit(json!({"spec": {"excludeHeadPodFromServeSvc": exclude}}));
    stage.play(30);
    let head = format!("{}-head", stage.living()[0]);
    let labels = &stage.object("Pod", &head).expect("a head")["metadata"]["labels"];
    assert_eq!(labels[names::SERVE_LABEL], expected);
}

#[test]
fn a_cluster_without_workers_takes_over_once_its_head_takes_requests() {
    let mut stage = Stage::new(chat());
    stage.workers = false;
    stage.play(30);
    stage.edit(version("2.54.0"));
    stage.play(30);
    assert_eq!(stage.served_by.len(), 2);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
}

#[test]
fn a_configuration_that_serve_refuses_is_told_and_tried_again_less_and_less_often() {
    let mut stage = Stage::new(chat());
    stage.refusal = Some(400);
    stage.play(120);
    assert_eq!(stage.told("FailedToUpdateServeApplications"), 1);
    assert!(stage.message("Ready").contains("HTTP status 400: no"), "{}", stage.message("Ready"));

    stage.refusal = None;
    stage.edit(json!({"spec": {"serveConfigV2": config("two")}}));
    stage.play(10);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"), "another one is tried at once");
}

#[rstest]
#[case::yaml(json!({"serveConfigV2": "applications: ["}), "spec.serveConfigV2: it isn't YAML: line 1 column 15")]
#[case::no_config(json!({"serveConfigV2": null}), "spec.serveConfigV2: it is empty")]
#[case::no_head(json!({"rayClusterConfig": {"headGroupSpec": {"template": {"spec": {"containers": []}}}}}),
    "spec.rayClusterConfig.headGroupSpec.template.spec.containers")]
#[case::delay(json!({"rayClusterDeletionDelaySeconds": -1}), "spec.rayClusterDeletionDelaySeconds: -1 is below 0")]
#[case::strategy(json!({"upgradeStrategy": {"type": "Blue"}}), "spec.upgradeStrategy.type: \"Blue\"; NewCluster")]
#[case::no_port(
    json!({"rayClusterConfig": {"headGroupSpec": {"template": {"spec": {"containers": [
        {"name": "ray", "ports": [{"name": "dashboard", "containerPort": 8265}]}]}}}}}),
    "containers[0].ports: there is no port named \"serve\"")]
#[case::head_name(json!({"rayClusterConfig": {"headGroupSpec": {"headService": {"metadata": {"name": "mine"}}}}}),
    "headService.metadata.name: \"mine\"")]
fn a_spec_that_makes_no_sense_is_told_and_stops_nothing_that_runs(#[case] spec: Value, #[case] message: &str) {
    let mut fresh = Stage::new(chat());
    fresh.edit(json!({"spec": spec}));
    fresh.play(10);
    assert_eq!(fresh.condition("Ready"), state("False", "ValidationFailed"));
    assert!(fresh.message("Ready").contains(message), "{}", fresh.message("Ready"));
    assert_eq!((fresh.living().len(), fresh.told("InvalidRayServiceSpec")), (0, 1));

    let mut stage = serving();
    let before = stage.living();
    stage.edit(json!({"spec": spec}));
    stage.play(100);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    assert_eq!(stage.condition("sluice.dev/Valid"), state("False", "InvalidSpec"));
    assert!(stage.message("sluice.dev/Valid").contains(message));
    assert_eq!((stage.living(), stage.served_by.clone()), (before.clone(), before));

    let original = chat();
    stage.edit(json!({"spec": {"upgradeStrategy": null, "rayClusterDeletionDelaySeconds": null}}));
    stage.edit(json!({"spec": {"rayClusterConfig": {"headGroupSpec": {"headService": null}}}}));
    stage.edit(json!({"spec": original["spec"]}));
    stage.play(10);
    assert_eq!(stage.condition("sluice.dev/Valid"), None);
}

#[rstest]
#[case::long("c".repeat(48))]
#[case::digit("1chat".into())]
fn a_name_that_its_children_could_not_bear_is_refused(#[case] name: String) {
    let mut service = chat();
    service["metadata"]["name"] = json!(name);
    let mut stage = Stage::new(service);
    stage.play(10);
    assert_eq!(stage.condition("Ready"), state("False", "ValidationFailed"));
    assert!(stage.message("Ready").starts_with("metadata.name: "));
}

#[test]
fn suspending_takes_the_clusters_and_keeps_the_address() {
    let mut stage = serving();
    stage.edit(version("2.54.0"));
    stage.play(1);
    stage.pods_linger = true;
    stage.edit(json!({"spec": {"suspend": true}}));
    stage.play(10);
    assert_eq!(stage.condition("Suspending"), state("True", "SuspendInProgress"));
    stage.edit(json!({"spec": {"suspend": false}}));
    stage.play(10);
    assert_eq!(stage.condition("Suspending"), state("True", "SuspendInProgress"), "it is carried through");

    stage.edit(json!({"spec": {"suspend": true}}));
    stage.pods_linger = false;
    stage.play(10);
    assert_eq!(stage.condition("Suspended"), state("True", "SuspendComplete"));
    assert_eq!(stage.condition("Ready"), state("False", "SuspendComplete"));
    assert_eq!(stage.clusters().len(), 0);
    assert_eq!(stage.named(), (None, None));
    let uid = stage.object("Service", "chat-serve-svc").expect("its address survives")["metadata"]["uid"].clone();
    let before = stage.leads_to();

    stage.edit(json!({"spec": {"suspend": false}}));
    stage.play(30);
    assert_eq!(stage.condition("Suspended"), state("False", "RayServiceResumed"));
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
    assert_eq!(stage.object("Service", "chat-serve-svc").expect("there")["metadata"]["uid"], uid);
    assert_ne!(stage.leads_to(), before, "no request comes in before the new cluster is ready");
}

#[test]
fn a_resumed_service_changes_its_mind_without_a_surge() {
    let mut stage = serving();
    let old = stage.leads_to();
    stage.edit(json!({"spec": {"suspend": true}}));
    stage.play(10);
    stage.gated = true;
    stage.edit(json!({"spec": {"suspend": false}}));
    stage.play(10);
    assert_eq!(stage.leads_to(), old, "the Service is not moved before somebody can serve");
    assert_eq!(stage.named(), (None, stage.living().pop()), "who bears no name of the past does not serve yet");

    stage.edit(version("2.54.0"));
    stage.play(10);

    assert_eq!(stage.living().len(), 1, "nothing serves, so nothing is kept beside the new one");
    assert_eq!(stage.condition("UpgradeInProgress"), state("False", "Initializing"));
}

#[test]
fn a_service_that_is_born_suspended_makes_nothing_until_it_is_resumed() {
    let mut service = chat();
    service["spec"]["suspend"] = json!(true);
    let mut stage = Stage::new(service);
    stage.play(10);
    assert_eq!(stage.condition("Suspended"), state("True", "SuspendComplete"));
    assert_eq!(stage.told("CreatedRayCluster"), 0);
    stage.edit(json!({"spec": {"suspend": false}}));
    stage.play(30);
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
}

#[test]
fn a_deleted_service_stays_until_its_clusters_are_gone() {
    let mut stage = serving();
    stage.edit(version("2.54.0"));
    stage.play(1);
    stage.pods_linger = true;
    stage.delete("RayService", "chat");
    stage.play(30);
    assert!(stage.service().is_some());
    assert!(stage.living().is_empty());

    stage.pods_linger = false;
    stage.play(5);
    assert!(stage.service().is_none());
}

#[test]
fn the_finalizer_is_there_before_anything_else() {
    let stage = Stage::new(chat());
    let plan = stage.plan();
    assert_eq!(plan.writes.len(), 1);
    let WriteOp::Patch(patch) = &plan.writes[0].op else { panic!("{plan:?}") };
    assert_eq!(patch["metadata"]["finalizers"], json!([names::SERVICE_FINALIZER]));
}

#[test]
fn a_service_that_another_manages_is_left_alone() {
    let mut service = chat();
    service["spec"]["managedBy"] = json!("kueue.x-k8s.io/multikueue");
    assert_eq!(Stage::new(service).plan(), Plan::default());
}

#[test]
fn conditions_of_others_stay() {
    let mut stage = Stage::new(chat());
    let admitted = json!({
        "type": "sluice.dev/Admitted", "status": "False", "reason": "Pending", "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    stage.edit(json!({"status": {"conditions": [admitted]}}));
    stage.play(30);
    assert_eq!(stage.condition("sluice.dev/Admitted"), state("False", "Pending"));
}

#[test]
fn an_active_cluster_that_somebody_deletes_is_replaced() {
    let mut stage = serving();
    let old = stage.living()[0].clone();
    stage.delete("RayCluster", &old);
    stage.play(40);
    let new = stage.living();
    assert_eq!(new.len(), 1);
    assert_eq!(stage.leads_to().as_ref(), new.first());
    assert_eq!(stage.condition("Ready"), state("True", "NonZeroServeEndpoints"));
}

#[test]
fn a_service_object_that_somebody_deletes_or_bends_is_put_right() {
    let mut stage = serving();
    let name = stage.living()[0].clone();
    stage.delete("Service", "chat-serve-svc");
    stage.meddle("Service", "chat-head-svc", json!({"spec": {"selector": {"ray.io/cluster": "other"}}}));
    stage.play(5);
    assert_eq!(stage.leads_to(), Some(name.clone()));
    let head = stage.object("Service", "chat-head-svc").expect("there");
    assert_eq!(head["spec"]["selector"]["ray.io/cluster"], json!(name));
}

#[test]
fn a_serve_service_of_the_users_own_keeps_its_shape_and_what_others_add() {
    let mut service = chat();
    service["spec"]["serveService"] = json!({
        "metadata": {"name": "front", "annotations": {"lb": "internal"}},
        "spec": {"type": "LoadBalancer", "ports": [{"name": "web", "port": 80, "targetPort": 8000}], "selector": {"x": "y"}},
    });
    let mut stage = Stage::new(service);
    stage.play(30);
    stage.meddle(
        "Service",
        "front",
        json!({"spec": {"clusterIP": "10.9.9.9", "ports": [
            {"name": "web", "port": 80, "targetPort": 8000, "nodePort": 30_080, "protocol": "TCP"},
            {"name": "serve", "port": 8000, "targetPort": 8000, "nodePort": 30_081, "protocol": "TCP"},
        ]}}),
    );
    assert!(stage.plan().writes.is_empty(), "{:?}", stage.plan().writes);
    let front = stage.object("Service", "front").expect("there");
    assert_eq!(front["spec"]["type"], "LoadBalancer");
    assert_eq!(front["metadata"]["annotations"]["lb"], "internal");
    assert_eq!(front["spec"]["selector"].as_object().expect("a selector").len(), 2);
}

#[test]
fn clusters_of_kuberay_are_taken_over_as_they_are() {
    let mut stage = serving();
    let name = stage.living()[0].clone();
    let annotations = json!({(names::SPEC_HASH_ANNOTATION): "94Q7P53ETTCG3N1LC5S2KGF6PI8U6FHG", (names::SERVE_CONFIG_HASH_ANNOTATION): null});
    stage.meddle("RayCluster", &name, json!({"metadata": {"annotations": annotations}}));
    stage.restart();
    stage.play(30);
    assert_eq!(stage.living(), std::slice::from_ref(&name));
    assert!(stage.cluster(&name).annotations()[names::SPEC_HASH_ANNOTATION].starts_with("v1-"));
}
