//! Upgrade plans on states that the engine creates from manifests.

use jiff::Timestamp;
use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::dry_run::DryRun;
use crate::kubectl_apply::apply_manifest;
use crate::snapshot::parse_manifests;
use sluice_engine::cluster_state::Object;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// Returns a ClusterQueue with `gpus` GPUs of one flavor, its LocalQueue and a low priority class.
fn queue(gpus: u32) -> Value {
    json!([
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}},
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "spot"}},
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ClusterQueue", "metadata": {"name": "team-a"}, "spec": {
            "namespaceSelector": {},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": [{"coveredResources": ["cpu", "memory", "nvidia.com/gpu"], "flavors": [{"name": "spot", "resources": [
                {"name": "cpu", "nominalQuota": 1000}, {"name": "memory", "nominalQuota": "1Ti"}, {"name": "nvidia.com/gpu", "nominalQuota": gpus},
            ]}]}],
        }},
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "a"}, "spec": {"clusterQueue": "team-a"}},
        {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "low"}, "value": 1},
    ])
}

fn template(gpus: u32, port: bool) -> Value {
    let ports = if port { json!([{"containerPort": 8000, "name": "serve"}]) } else { json!([]) };
    json!({"spec": {"containers": [{
        "name": "ray", "image": "rayproject/ray:2.53.0", "ports": ports,
        "resources": {"requests": {"nvidia.com/gpu": gpus}, "limits": {"nvidia.com/gpu": gpus}},
    }]}})
}

/// Returns a RayCluster spec with a head without GPUs and workers of one GPU each.
fn cluster(version: &str, workers: u32) -> Value {
    json!({
        "rayVersion": version,
        "headGroupSpec": {"rayStartParams": {}, "template": template(0, true)},
        "workerGroupSpecs": [{
            "groupName": "small", "replicas": workers, "minReplicas": 1, "maxReplicas": 100, "rayStartParams": {},
            "template": template(1, false),
        }],
    })
}

fn service(version: &str, workers: u32) -> Value {
    json!({
        "apiVersion": "ray.io/v1", "kind": "RayService",
        "metadata": {"name": "fruit", "labels": {"kueue.x-k8s.io/queue-name": "a"}},
        "spec": {"serveConfigV2": "applications: []", "rayClusterConfig": cluster(version, workers)},
    })
}

/// Returns a standalone RayCluster in the same queue.
fn other(name: &str, class: Option<&str>, workers: u32) -> Value {
    let mut labels = json!({"kueue.x-k8s.io/queue-name": "a"});
    if let Some(class) = class {
        labels["kueue.x-k8s.io/priority-class"] = class.into();
    }
    json!({"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": name, "labels": labels}, "spec": cluster("2.53.0", workers)})
}

/// Returns the manifests of one object or an array of objects.
fn in_a_list(objects: &Value) -> Vec<Value> {
    let items = if objects.is_array() { objects.clone() } else { json!([objects]) };
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    parse_manifests(&list.to_string(), "default").expect("manifests")
}

/// Returns the Service that selects the serving cluster; None if there is no cluster.
fn serve_service(state: &Snapshot) -> Option<Value> {
    let owned = state.objects().iter().find_map(|object| match object {
        Object::RayCluster(cluster) => Some((cluster.name_any(), cluster.owner_references().first()?.clone())),
        _ => None,
    });
    owned.map(|(cluster, owner)| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "fruit-serve-svc", "ownerReferences": [owner]},
            "spec": {"selector": {"ray.io/cluster": cluster, "ray.io/serve": "true"}},
        })
    })
}

/// Returns the state after applying each element of `steps` in order, with the cluster serving.
fn state(steps: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for objects in steps {
        snapshot = with(&snapshot, objects);
        if let Some(service) = serve_service(&snapshot) {
            snapshot = with(&snapshot, &service);
        }
    }
    snapshot
}

fn with(state: &Snapshot, objects: &Value) -> Snapshot {
    let mut dry_run = DryRun::start(state, &PolicyConfig::default(), NOW);
    for object in in_a_list(objects) {
        let object = apply_manifest(None, object).expect("an object").expect("a watched kind");
        dry_run.apply(&object);
    }
    dry_run.run_to_fixpoint(|_| ()).expect("a fixpoint");
    dry_run.snapshot()
}

fn planned(state: &Snapshot, manifest: &Value, surge: Option<Percent>) -> UpgradePlan {
    plan(state, in_a_list(manifest), &PolicyConfig::default(), surge, NOW).expect("a plan")
}

fn gpus(uses: &[ResourceUsage]) -> &str {
    uses.iter().find(|usage| usage.resource == "nvidia.com/gpu").map(|usage| usage.amount.as_str()).unwrap_or_default()
}

fn least(way: &StrategyOutcome) -> Option<&str> {
    let gpu_change = way.min_quota.as_ref()?.iter().find(|change| change.resource == "nvidia.com/gpu");
    Some(gpu_change.map(|change| change.to.as_str()).unwrap_or_default())
}

/// Returns strategy, verdict, peak and minimum quota of each outcome; a star marks the requested
/// strategy.
fn outcomes(plan: &UpgradePlan) -> Vec<(String, PlanVerdict, &str, &str)> {
    let rows = plan.strategies.iter().map(|way| {
        let asked = if way.requested { "*" } else { "" };
        (format!("{asked}{}", way.strategy), way.verdict, gpus(&way.peak), least(way).unwrap_or("none"))
    });
    rows.collect()
}

#[rstest]
#[case::exact_fit(6, 0, PlanVerdict::Fits, "6", "6", PlanVerdict::Fits, "3")]
#[case::surplus(9, 0, PlanVerdict::Fits, "6", "6", PlanVerdict::Fits, "3")]
#[case::held_by_another_job(6, 1, PlanVerdict::Pending, "6", "7", PlanVerdict::Fits, "4")]
#[case::one_short(5, 0, PlanVerdict::Never, "6", "6", PlanVerdict::Fits, "3")]
#[case::short_and_partly_held_by_another_job(5, 2, PlanVerdict::Never, "6", "8", PlanVerdict::Fits, "5")]
fn second_cluster_needs_quota_in_addition_to_the_first(
    #[case] quota: u32,
    #[case] others: u32,
    #[case] verdict: PlanVerdict,
    #[case] peak: &str,
    #[case] least: &str,
    #[case] recreate: PlanVerdict,
    #[case] least_recreate: &str,
) {
    // Given a serving RayService of three GPUs, and another job,
    let mut applied = vec![queue(quota), json!([service("2.53.0", 3)])];
    if others > 0 {
        applied.push(json!([other("other", None, others)]));
    }
    let state = state(&applied);

    // when the upgrade to another version is planned,
    let plan = planned(&state, &service("2.54.0", 3), None);

    // then the plan has the verdict, peak and minimum quota of both strategies.
    let expected =
        [("*NewCluster".to_owned(), verdict, peak, least), ("Recreate".to_owned(), recreate, "3", least_recreate)];
    let mut outcomes = outcomes(&plan);
    outcomes.retain(|(strategy, ..)| !strategy.starts_with("Incremental"));
    assert_eq!(outcomes, expected, "{plan}");
    assert_eq!(plan.verdict, verdict);
    assert_eq!(plan.message.is_none(), verdict == PlanVerdict::Fits);
    assert!(plan.strategies.iter().all(|way| way.preempts.is_empty()), "{plan}");
}

/// Adds a Job with three pods of one GPU each, and its pods once it is unsuspended.
fn running_job(state: &Snapshot) -> Snapshot {
    let spec = template(1, false)["spec"].clone();
    let mut template = json!({"spec": spec});
    template["spec"]["restartPolicy"] = "Never".into();
    let labels = json!({"kueue.x-k8s.io/queue-name": "a", "kueue.x-k8s.io/priority-class": "low"});
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "batch", "labels": labels},
        "spec": {"suspend": true, "parallelism": 3, "completions": 3, "template": template},
    });
    let state = with(state, &job);
    let uid = state.objects().iter().find_map(|object| match object {
        Object::BatchJob(job) => job.metadata.uid.clone(),
        _ => None,
    });
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "batch", "uid": uid, "controller": true});
    let pods = (0..3).map(|number| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
            "metadata": {"name": format!("batch-{number}"), "labels": {"batch.kubernetes.io/job-name": "batch"}, "ownerReferences": [owner]},
        })
    });
    with(&state, &pods.collect())
}

#[rstest]
#[case::ray_cluster("RayCluster default/batch", |state: &Snapshot| with(state, &other("batch", Some("low"), 3)))]
#[case::batch_job("Job default/batch", running_job)]
fn plan_lists_the_preempted_jobs(#[case] job: &str, #[case] arrives: fn(&Snapshot) -> Snapshot) {
    // Given a RayService of two GPUs in a queue of six, and a job of low priority that holds three,
    let state = arrives(&state(&[queue(6), json!([service("2.53.0", 2)])]));

    // when an upgrade with a higher priority is planned,
    let mut urgent = service("2.54.0", 2);
    urgent["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high".into();
    let high = json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 9});
    let plan = planned(&state, &json!([high, urgent]), None);

    // then it fits, and preempts the job.
    assert_eq!(plan.verdict, PlanVerdict::Fits, "{plan}");
    let preempts = &plan.strategies[0].preempts;
    assert_eq!(preempts.len(), 1, "{plan}");
    assert_eq!((preempts[0].job.as_str(), gpus(&preempts[0].loses)), (job, "3"));
}

#[rstest]
#[case::largest_that_fits_now(5, None, "Incremental, surge 66%, step 66%", PlanVerdict::Fits, "5", "5")]
#[case::requested(5, Some(67), "Incremental, surge 67%, step 67%", PlanVerdict::Never, "6", "6")]
#[case::none_fits(3, None, "Incremental, surge 66%, step 66%", PlanVerdict::Never, "5", "5")]
fn incremental_upgrade_needs_quota_for_its_surge(
    #[case] quota: u32,
    #[case] surge: Option<Percent>,
    #[case] strategy: &str,
    #[case] verdict: PlanVerdict,
    #[case] peak: &str,
    #[case] least: &str,
) {
    // Given a RayService of three workers that the Ray autoscaler may scale down to one,
    let mut to = service("2.54.0", 3);
    to["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"] = true.into();
    let state = state(&[queue(quota), json!([service("2.53.0", 3)])]);

    // then the surge is rounded up to whole workers.
    let plan = planned(&state, &to, surge);
    assert_eq!(outcomes(&plan)[1], (strategy.to_owned(), verdict, peak, least), "{plan}");
}

/// Returns a RayService with incremental upgrades and four workers of `gpus` GPUs and one Serve
/// replica each.
fn incremental(version: &str, gpus: u32, surge: u32) -> Value {
    let mut service = service(version, 4);
    service["spec"]["serveConfigV2"] =
        json!({"applications": [{"name": "fruit", "deployments": [{"name": "Stand", "num_replicas": 4}]}]})
            .to_string()
            .into();
    let group = &mut service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0];
    group["template"] = template(gpus, false);
    group["minReplicas"] = 0.into();
    service["spec"]["upgradeStrategy"] = json!({"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": {
        "maxSurgePercent": surge, "stepSizePercent": 25, "intervalSeconds": 10, "gatewayClassName": "traefik",
    }});
    service
}

/// Returns the steps of the requested strategy: seconds; traffic, capacity and pods of both
/// clusters; GPUs.
fn steps(plan: &UpgradePlan) -> Vec<String> {
    let timeline =
        plan.strategies.iter().find(|way| way.requested).and_then(|way| way.timeline.as_ref()).expect("a timeline");
    let steps = timeline.steps.iter().map(|step| {
        let (serving, next) = (step.active, step.pending);
        format!(
            "{:>2} s: {}/{} of {}, {}/{} of {}: {}",
            step.after_seconds,
            serving.traffic_percent,
            serving.capacity_percent,
            serving.pods,
            next.traffic_percent,
            next.capacity_percent,
            next.pods,
            gpus(&step.usage)
        )
    });
    steps.collect()
}

#[rstest]
#[case::fits(6, PlanVerdict::Fits)]
#[case::one_short(5, PlanVerdict::Never)]
fn plan_lists_the_steps(#[case] quota: u32, #[case] verdict: PlanVerdict) {
    let state = state(&[queue(quota), json!([incremental("2.53.0", 1, 50)])]);
    let plan = planned(&state, &incremental("2.54.0", 1, 50), None);
    let expected = [
        " 0 s: 100/100 of 5, 0/0 of 3: 6",
        " 0 s: 100/100 of 5, 0/50 of 3: 6",
        " 0 s: 75/100 of 5, 25/50 of 3: 6",
        "10 s: 50/100 of 5, 50/50 of 3: 6",
        "10 s: 50/50 of 3, 50/50 of 3: 4",
        "10 s: 50/50 of 3, 50/100 of 5: 6",
        "20 s: 25/50 of 3, 75/100 of 5: 6",
        "30 s: 0/50 of 3, 100/100 of 5: 6",
        "30 s: 0/0 of 0, 100/100 of 5: 4",
    ];
    assert_eq!(steps(&plan), expected, "{plan}");
    assert_eq!(
        (plan.verdict, gpus(&plan.strategies[1].peak), least(&plan.strategies[1])),
        (verdict, "6", Some("6")),
        "{plan}"
    );
}

#[rstest]
#[case::fits(10, PlanVerdict::Fits)]
#[case::would_stall_half_way(9, PlanVerdict::Never)]
fn larger_workers_peak_in_the_middle_of_the_upgrade(#[case] quota: u32, #[case] verdict: PlanVerdict) {
    // Given that eight GPUs fit half of the new workers in addition to the old ones,
    let state = state(&[queue(quota), json!([incremental("2.53.0", 1, 50)])]);
    let plan = planned(&state, &incremental("2.54.0", 2, 50), None);
    // then the other half decides.
    assert_eq!(steps(&plan)[5], "10 s: 50/50 of 3, 50/100 of 5: 10", "{plan}");
    assert_eq!(
        (plan.verdict, gpus(&plan.strategies[1].peak), least(&plan.strategies[1])),
        (verdict, "10", Some("10")),
        "{plan}"
    );
}

#[test]
fn plan_includes_the_incremental_upgrade_with_the_smallest_need() {
    // Given quota for a quarter of the workers, but not for half,
    let state = state(&[queue(5), json!([incremental("2.53.0", 1, 50)])]);
    let plan = planned(&state, &incremental("2.54.0", 1, 50), None);
    // then the plan includes the smaller surge in addition to the requested one.
    let expected = [
        ("NewCluster".to_owned(), PlanVerdict::Never, "8", "8"),
        ("*Incremental, surge 50%, step 25%".to_owned(), PlanVerdict::Never, "6", "6"),
        ("Incremental, surge 29%, step 25%".to_owned(), PlanVerdict::Fits, "5", "5"),
        ("Recreate".to_owned(), PlanVerdict::Fits, "4", "4"),
    ];
    assert_eq!(outcomes(&plan), expected, "{plan}");
}

#[rstest]
#[case::new_cluster(json!({}), "*NewCluster", PlanVerdict::Never)]
#[case::recreate(json!({"sluice.dev/when-upgrade-exceeds-quota": "Recreate"}), "*Recreate", PlanVerdict::Fits)]
fn annotation_selects_the_strategy(#[case] annotations: Value, #[case] requested: &str, #[case] verdict: PlanVerdict) {
    let state = state(&[queue(5), json!([service("2.53.0", 3)])]);
    let mut to = service("2.54.0", 3);
    to["metadata"]["annotations"] = annotations;

    let plan = planned(&state, &to, None);

    let chosen = plan.strategies.iter().find(|way| way.requested).expect("a requested strategy");
    assert_eq!((format!("*{}", chosen.strategy).as_str(), plan.verdict), (requested, verdict), "{plan}");
}

#[test]
fn strategy_none_is_never_upgraded() {
    let state = state(&[queue(9), json!([service("2.53.0", 3)])]);
    let mut to = service("2.54.0", 3);
    to["spec"]["upgradeStrategy"] = json!({"type": "None"});
    let plan = planned(&state, &to, None);
    assert_eq!(plan.verdict, PlanVerdict::Never);
    assert_eq!(plan.message.as_deref(), Some("spec.upgradeStrategy.type is None: no new cluster is created"));
}

#[rstest]
#[case::first_cluster(false, 3, "first cluster", PlanVerdict::Pending, "5")]
#[case::unchanged(true, 0, "in place", PlanVerdict::Fits, "")]
#[case::additional_worker_group(true, 2, "in place", PlanVerdict::Pending, "6")]
fn change_without_a_second_cluster_has_one_strategy(
    #[case] exists: bool,
    #[case] more: u32,
    #[case] strategy: &str,
    #[case] verdict: PlanVerdict,
    #[case] least: &str,
) {
    // Given a queue in which the RayService, if it exists, holds two GPUs, and another job two,
    let mut steps = vec![queue(if exists { 5 } else { 4 })];
    steps.extend(exists.then(|| json!([service("2.53.0", 2)])));
    steps.push(json!([other("other", None, 2)]));

    // when it is created, or gets another worker group,
    let mut to = service("2.53.0", if exists { 2 } else { more });
    if exists && more > 0 {
        let groups = to["spec"]["rayClusterConfig"]["workerGroupSpecs"].as_array_mut().expect("groups");
        let mut group = groups[0].clone();
        (group["groupName"], group["replicas"]) = ("more".into(), more.into());
        groups.push(group);
    }

    // then the plan has that one outcome.
    let plan = planned(&state(&steps), &to, None);
    assert_eq!(plan.strategies.len(), 1, "{plan}");
    let (actual, actual_verdict, _, actual_least) = outcomes(&plan).remove(0);
    assert_eq!(
        (actual.as_str(), actual_verdict, actual_least),
        (format!("*{strategy}").as_str(), verdict, least),
        "{plan}"
    );
}

#[test]
fn quota_raised_in_the_same_manifest_counts() {
    let state = state(&[queue(3), json!([service("2.53.0", 3)])]);
    let raised = queue(6);
    let plan = planned(&state, &json!([raised[2], service("2.54.0", 3)]), None);
    assert_eq!(plan.verdict, PlanVerdict::Fits, "{plan}");
}

#[rstest]
#[case::no_service(json!([]), "expected exactly one RayService in the manifest, found 0")]
#[case::two(json!([service("a", 1), service("b", 1)]), "expected exactly one RayService in the manifest, found 2")]
fn manifest_must_contain_exactly_one_service(#[case] manifest: Value, #[case] problem: &str) {
    let error =
        plan(&Snapshot::default(), in_a_list(&manifest), &PolicyConfig::default(), None, NOW).expect_err("an error");
    assert_eq!(error.to_string(), problem);
}

#[test]
fn invalid_spec_is_reported_by_field() {
    let state = state(&[queue(9), json!([service("2.53.0", 3)])]);
    let mut to = service("2.54.0", 3);
    to["spec"]["serveConfigV2"] = "applications: {".into();
    let error = plan(&state, in_a_list(&to), &PolicyConfig::default(), None, NOW).expect_err("an error").to_string();
    assert!(error.starts_with("RayService default/fruit is invalid: spec.serveConfigV2: "), "{error}");
}

#[test]
fn missing_local_queue_is_reported() {
    let mut to = service("2.54.0", 3);
    to["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "b".into();
    let plan = planned(&state(&[queue(9)]), &to, None);
    assert_eq!(plan.verdict, PlanVerdict::Never);
    assert!(plan.message.as_deref().is_some_and(|why| why.contains("LocalQueue b")), "{plan}");
    assert_eq!(plan.strategies[0].min_quota, None);
}
