//! Content of the pods of a cluster.

use kube_core::ResourceExt;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::fixtures::{TestCluster, cluster_with_patch, cluster_with_workers, worker};
use super::{created, pod_of, ray_container, value, variable};
use sluice_api::ray::{RayCluster, names};
use sluice_plan::WriteOp;

const ULIMIT: &str = "ulimit -n ${RAY_START_ULIMIT_OPEN_FILES:-65536}; ";

/// Returns the cluster as created by a RayService.
fn of_service(mut cluster: RayCluster) -> RayCluster {
    cluster.metadata.labels = Some([("ray.io/originated-from-crd".to_owned(), "RayService".to_owned())].into());
    cluster
}

fn with_version(version: &str) -> RayCluster {
    let mut cluster = cluster_with_workers(1);
    cluster.spec.ray_version = Some(version.to_owned());
    cluster
}

#[test]
fn head_starts_ray_with_the_resources_of_its_container() {
    let pod = pod_of(cluster_with_workers(0), "headgroup");
    let line = "ray start --head --block --dashboard-agent-listen-port=52365 --dashboard-host=0.0.0.0 \
                --memory=2147483648 --metrics-export-port=8080 --num-cpus=1";
    assert_eq!(ray_container(&pod).command.as_deref(), Some(&["/bin/bash", "-c", "--"].map(str::to_owned)[..]));
    assert_eq!(ray_container(&pod).args, Some(vec![format!("{ULIMIT}{line}")]));
    assert_eq!(value(ray_container(&pod), "KUBERAY_GEN_RAY_START_CMD"), Some(line));
}

#[test]
fn worker_has_the_head_address_and_waits_for_the_head() {
    let pod = pod_of(cluster_with_workers(1), "small");
    let head = "demo-head-svc.default.svc.cluster.local";
    let line = format!(
        "ray start --address={head}:6379 --block --dashboard-agent-listen-port=52365 --metrics-export-port=8080 --num-cpus=1"
    );
    assert_eq!(ray_container(&pod).args, Some(vec![format!("{ULIMIT}{line}")]), "half a CPU is rounded up");
    assert_eq!(value(ray_container(&pod), "FQ_RAY_IP"), Some(head));
    assert_eq!(value(ray_container(&pod), "RAY_IP"), Some("demo-head-svc"));
    assert_eq!(value(ray_container(&pod), "RAY_ADDRESS"), Some(&*format!("{head}:6379")));
    let waiters = pod.spec.as_ref().and_then(|spec| spec.init_containers.clone()).unwrap_or_default();
    assert_eq!(waiters.len(), 1);
    assert_eq!(
        (waiters[0].name.as_str(), waiters[0].image.as_deref()),
        ("wait-gcs-ready", Some("rayproject/ray:2.53.0"))
    );
    let script = waiters[0].args.iter().flatten().next().expect("a script");
    assert!(script.contains(&format!("ray health-check --address {head}:6379")), "{script}");
}

#[rstest]
#[case::head("headgroup", Some("127.0.0.1:6380"))]
#[case::worker("small", Some("demo-head-svc.default.svc.cluster.local:6380"))]
fn custom_gcs_port_is_set_on_head_and_workers(#[case] group: &str, #[case] address: Option<&str>) {
    let mut cluster = cluster_with_patch(json!({"headGroupSpec": {"rayStartParams": {"port": "6380"}}}));
    cluster.spec.worker_group_specs = vec![worker("small", 1)];
    let pod = pod_of(cluster, group);
    assert_eq!(value(ray_container(&pod), "RAY_ADDRESS"), address);
    assert_eq!(value(ray_container(&pod), "RAY_PORT"), Some("6380"));
}

#[test]
fn pod_gets_cluster_group_and_name_from_the_downward_api() {
    let pod = pod_of(cluster_with_workers(1), "small");
    let field = |name: &str| {
        let source = variable(ray_container(&pod), name)?.value_from.as_ref()?;
        Some(source.field_ref.as_ref()?.field_path.clone())
    };
    assert_eq!(field("RAY_CLUSTER_NAME").as_deref(), Some("metadata.labels['ray.io/cluster']"));
    assert_eq!(field("RAY_CLUSTER_NAMESPACE").as_deref(), Some("metadata.namespace"));
    assert_eq!(field("RAY_CLOUD_INSTANCE_ID").as_deref(), Some("metadata.name"));
    assert_eq!(field("RAY_NODE_TYPE_NAME").as_deref(), Some("metadata.labels['ray.io/group']"));
}

#[test]
fn user_environment_takes_precedence() {
    let env = json!([{"name": "RAY_ADDRESS", "value": "elsewhere"}, {"name": "A", "value": "b"}]);
    let cluster = cluster_with_patch(
        json!({"headGroupSpec": {"template": {"spec": {"containers": [{"name": "h", "env": env}]}}}}),
    );
    let pod = pod_of(cluster, "headgroup");
    assert_eq!(value(ray_container(&pod), "RAY_ADDRESS"), Some("elsewhere"));
    assert_eq!(value(ray_container(&pod), "A"), Some("b"));
}

#[test]
fn pod_is_owned_by_its_cluster_and_blocks_its_deletion() {
    let pod = pod_of(cluster_with_workers(1), "small");
    let owner = pod.owner_references().first().expect("an owner");
    assert_eq!((owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()), ("RayCluster", "demo", "uid-1"));
    assert_eq!((owner.controller, owner.block_owner_deletion), (Some(true), Some(true)));
}

#[rstest]
#[case::of_the_cluster("default", "uid-1", 0)]
#[case::of_an_earlier_cluster("default", "uid-0", 1)]
#[case::forged_in_another_namespace("other", "uid-1", 1)]
fn pod_that_lost_its_owner_is_told_by_the_uid_in_its_label(
    #[case] namespace: &str,
    #[case] uid: &str,
    #[case] expected: usize,
) {
    // Given a cluster of a head, and a head without an owner,
    let mut cluster = TestCluster::new(cluster_with_workers(0));
    cluster.reconcile_until_stable();
    let head = cluster.pods.values_mut().next().expect("a head");
    head.metadata.owner_references = None;
    head.metadata.namespace = Some(namespace.to_owned());
    head.labels_mut().insert(names::CLUSTER_UID_LABEL.to_owned(), uid.to_owned());

    // when the cluster is planned, then it creates a head unless this one is its own.
    assert_eq!(created(&cluster.plan(), "Pod"), expected);
}

#[test]
fn users_can_override_labels_except_those_that_select_pods() {
    let mut cluster = cluster_with_workers(1);
    let group = &mut cluster.spec.worker_group_specs[0];
    group.template.0["metadata"] = json!({
        "labels": {"ray.io/cluster": "other", "ray.io/group": "other", "ray.io/node-type": "head",
                   "app.kubernetes.io/name": "mine", "team": "a"},
        "annotations": {"note": "kept"},
    });
    group.labels = Some([("team".to_owned(), "b".to_owned())].into());
    let pod = pod_of(cluster, "small");
    let expected = json!({
        "app.kubernetes.io/created-by": "kuberay-operator",
        "app.kubernetes.io/name": "mine",
        "ray.io/cluster": "demo",
        "ray.io/group": "small",
        "ray.io/identifier": "demo-worker",
        "ray.io/is-ray-node": "yes",
        "ray.io/node-type": "worker",
        "ray.io/worker-group-replica-index": "0",
        "team": "b",
    });
    assert_eq!(serde_json::to_value(pod.labels()).ok(), Some(expected));
    assert_eq!(pod.annotations().get("note").map(String::as_str), Some("kept"));
    assert!(ray_container(&pod).args.iter().flatten().any(|line| line.contains(" --labels=team=b ")));
}

#[rstest]
#[case::head_of_a_service(true, "headgroup", Some("false"))]
#[case::worker_of_a_service(true, "small", Some("true"))]
#[case::worker_of_a_cluster(false, "small", None)]
fn only_pods_of_a_ray_service_have_the_serve_label(
    #[case] serves: bool,
    #[case] group: &str,
    #[case] expected: Option<&str>,
) {
    let cluster = cluster_with_workers(1);
    let pod = pod_of(if serves { of_service(cluster) } else { cluster }, group);
    assert_eq!(pod.labels().get("ray.io/serve").map(String::as_str), expected);
    let timeout = value(ray_container(&pod), "RAY_gcs_server_request_timeout_seconds");
    assert_eq!(timeout, serves.then_some("5"));
}

#[rstest]
#[case::new_head("2.53.0", "headgroup", Some(52365), None)]
#[case::new_worker("2.53.0", "small", Some(52365), None)]
#[case::old_head("2.52.1", "headgroup", None, Some("api/gcs_healthz"))]
#[case::old_worker("2.9.0", "small", None, Some("api/local_raylet_healthz"))]
#[case::unknown("nightly", "small", None, Some("api/local_raylet_healthz"))]
fn probes_match_the_ray_version(
    #[case] version: &str,
    #[case] group: &str,
    #[case] port: Option<i32>,
    #[case] command: Option<&str>,
) {
    let pod = pod_of(with_version(version), group);
    for probe in [&ray_container(&pod).liveness_probe, &ray_container(&pod).readiness_probe] {
        let probe = serde_json::to_value(probe).expect("a probe is JSON");
        assert_eq!(probe.pointer("/httpGet/port").and_then(Value::as_i64), port.map(i64::from));
        let script = probe.pointer("/exec/command/2").and_then(Value::as_str);
        assert_eq!(script.is_some(), command.is_some(), "{probe}");
        assert!(command.is_none_or(|command| script.is_some_and(|script| script.contains(command))), "{probe}");
    }
}

#[test]
fn ray_service_worker_is_ready_only_while_its_proxy_responds() {
    let pod = pod_of(of_service(with_version("2.53.0")), "small");
    let readiness = ray_container(&pod).readiness_probe.clone().expect("a probe");
    let script = readiness.exec.and_then(|exec| exec.command).unwrap_or_default().pop().unwrap_or_default();
    assert!(script.contains("localhost:52365/api/local_raylet_healthz"), "{script}");
    assert!(script.contains("localhost:8000/-/healthz"), "{script}");
    assert_eq!((readiness.http_get, readiness.failure_threshold), (None, Some(1)));
    assert!(ray_container(&pod).liveness_probe.as_ref().is_some_and(|probe| probe.http_get.is_some()));
}

#[test]
fn user_probes_take_precedence() {
    let mut cluster = cluster_with_workers(1);
    cluster.spec.worker_group_specs[0].template.0["spec"]["containers"][0]["readinessProbe"] =
        json!({"tcpSocket": {"port": 1}});
    let pod = pod_of(of_service(cluster), "small");
    let readiness = serde_json::to_value(&ray_container(&pod).readiness_probe).expect("a probe is JSON");
    assert_eq!(readiness, json!({"tcpSocket": {"port": 1}}));
}

#[rstest]
#[case::default(json!({}), json!(null), json!({"preStop": {"sleep": {"seconds": 5}}}))]
#[case::short_grace_period(json!({"terminationGracePeriodSeconds": 3}), json!(null), json!({"preStop": {"sleep": {"seconds": 2}}}))]
#[case::no_grace_period(json!({"terminationGracePeriodSeconds": 1}), json!(null), json!(null))]
#[case::user_pre_stop(
    json!({}),
    json!({"preStop": {"httpGet": {"port": 1}}}),
    json!({"preStop": {"httpGet": {"port": 1}}})
)]
#[case::user_post_start(
    json!({}),
    json!({"postStart": {"httpGet": {"port": 1}}}),
    json!({"postStart": {"httpGet": {"port": 1}}, "preStop": {"sleep": {"seconds": 5}}})
)]
fn terminating_ray_service_worker_keeps_serving_for_a_few_seconds(
    #[case] spec: Value,
    #[case] lifecycle: Value,
    #[case] expected: Value,
) {
    let mut cluster = cluster_with_workers(1);
    let template = &mut cluster.spec.worker_group_specs[0].template.0["spec"];
    template.as_object_mut().expect("a spec").extend(spec.as_object().cloned().expect("fields"));
    template["containers"][0]["lifecycle"] = lifecycle;
    let pod = pod_of(of_service(cluster), "small");
    assert_eq!(serde_json::to_value(&ray_container(&pod).lifecycle).expect("a lifecycle is JSON"), expected);
}

#[rstest]
#[case::head_of_a_service(of_service(cluster_with_workers(1)), "headgroup")]
#[case::worker_without_requests(cluster_with_workers(1), "small")]
fn pod_without_requests_has_no_pre_stop_hook(#[case] cluster: RayCluster, #[case] group: &str) {
    assert_eq!(ray_container(&pod_of(cluster, group)).lifecycle, None);
}

#[rstest]
#[case::limit(json!({"limits": {"memory": "2Gi"}, "requests": {"memory": "1Gi"}}), json!({}), Some(Some("2Gi")))]
#[case::request(json!({"requests": {"memory": "1Gi"}}), json!({}), Some(Some("1Gi")))]
#[case::neither(json!({}), json!({}), Some(None))]
#[case::user_plasma_directory(json!({}), json!({"plasma-directory": "/tmp"}), None)]
fn shared_memory_is_sized_by_memory(
    #[case] resources: Value,
    #[case] params: Value,
    #[case] expected: Option<Option<&str>>,
) {
    let container = json!({"name": "h", "resources": resources});
    let pod = pod_of(
        cluster_with_patch(
            json!({"headGroupSpec": {"rayStartParams": params, "template": {"spec": {"containers": [container]}}}}),
        ),
        "headgroup",
    );
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.clone()).unwrap_or_default();
    let shared = volumes.iter().find(|volume| volume.name == "shared-mem").and_then(|volume| volume.empty_dir.clone());
    let size = shared.as_ref().map(|dir| dir.size_limit.as_ref().map(|size| size.0.as_str()));
    assert_eq!(size, expected);
    assert_eq!(shared.and_then(|dir| dir.medium).as_deref(), expected.map(|_| "Memory"));
}

#[rstest]
#[case::on_the_cluster(true)]
#[case::on_the_template(false)]
fn annotation_keeps_the_user_command(#[case] on_cluster: bool) {
    let annotations = json!({"ray.io/overwrite-container-cmd": "true"});
    let container = json!({"name": "h", "command": ["sleep", "inf"]});
    let mut cluster = cluster_with_patch(json!({"headGroupSpec": {"template": {"spec": {"containers": [container]}}}}));
    if on_cluster {
        cluster.metadata.annotations = serde_json::from_value(annotations).ok();
    } else {
        cluster.spec.head_group_spec.template.0["metadata"] = json!({"annotations": annotations});
    }
    let pod = pod_of(cluster, "headgroup");
    assert_eq!(ray_container(&pod).command, Some(vec!["sleep".to_owned(), "inf".to_owned()]));
    assert_eq!(ray_container(&pod).args, None);
    assert!(
        value(ray_container(&pod), "KUBERAY_GEN_RAY_START_CMD")
            .is_some_and(|line| line.starts_with("ray start --head"))
    );
}

#[test]
fn group_resources_override_container_resources() {
    let resources = json!({"CPU": "8", "memory": "1Gi", "GPU": "2", "Custom": "1.5"});
    let pod = pod_of(cluster_with_patch(json!({"headGroupSpec": {"resources": resources}})), "headgroup");
    let line = value(ray_container(&pod), "KUBERAY_GEN_RAY_START_CMD").expect("the line is there");
    for flag in ["--num-cpus=8", "--memory=1073741824", "--num-gpus=2", "--resources='{\"Custom\":1.5}'"] {
        assert!(line.contains(flag), "{line}");
    }
}

fn autoscaling(options: Value) -> RayCluster {
    let mut cluster = cluster_with_patch(json!({"enableInTreeAutoscaling": true, "autoscalerOptions": options}));
    cluster.spec.worker_group_specs = vec![worker("small", 1)];
    cluster
}

#[test]
fn autoscaler_runs_as_a_sidecar_of_the_head_and_shares_its_logs() {
    let pod = pod_of(autoscaling(json!({})), "headgroup");
    let containers = pod.spec.as_ref().map(|spec| spec.containers.clone()).unwrap_or_default();
    assert_eq!(containers.len(), 2);
    let sidecar = &containers[1];
    assert_eq!((sidecar.name.as_str(), sidecar.image.as_deref()), ("autoscaler", Some("rayproject/ray:2.53.0")));
    let limits = sidecar.resources.clone().and_then(|resources| resources.limits).unwrap_or_default();
    assert_eq!((limits["cpu"].0.as_str(), limits["memory"].0.as_str()), ("500m", "512Mi"));
    for container in &containers {
        assert!(container.volume_mounts.iter().flatten().any(|mount| mount.mount_path == "/tmp/ray"));
    }
    assert!(value(&containers[0], "KUBERAY_GEN_RAY_START_CMD").is_some_and(|line| line.contains(" --no-monitor")));
}

#[test]
fn autoscaler_options_configure_the_sidecar() {
    let options = json!({
        "image": "mine", "resources": {"limits": {"cpu": "1"}}, "env": [{"name": "A", "value": "b"}],
        "args": ["ulimit -n 1; $KUBERAY_GEN_AUTOSCALER_START_CMD"],
    });
    let pod = pod_of(autoscaling(options), "headgroup");
    let sidecar = pod.spec.as_ref().and_then(|spec| spec.containers.get(1)).expect("the sidecar is there");
    assert_eq!((sidecar.image.as_deref(), value(sidecar, "A")), (Some("mine"), Some("b")));
    let limits = sidecar.resources.clone().and_then(|resources| resources.limits).unwrap_or_default();
    assert_eq!(limits.len(), 1, "the user's resources replace ours as a whole");
    assert!(sidecar.args.iter().flatten().any(|script| script.starts_with("ulimit -n 1")));
}

#[rstest]
#[case::v1("v1", Some("false"), None)]
#[case::v2("v2", Some("true"), Some("Never"))]
fn autoscaler_v2_sets_restart_policy_never(
    #[case] version: &str,
    #[case] variable: Option<&str>,
    #[case] policy: Option<&str>,
) {
    let cluster = autoscaling(json!({"version": version}));
    let head = pod_of(cluster.clone(), "headgroup");
    let worker = pod_of(cluster, "small");
    assert_eq!(value(ray_container(&head), "RAY_enable_autoscaler_v2"), variable);
    for pod in [head, worker] {
        assert_eq!(pod.spec.and_then(|spec| spec.restart_policy).as_deref(), policy);
    }
}

#[test]
fn unknown_fields_of_the_template_reach_the_pod() {
    let mut cluster = cluster_with_workers(1);
    let template = &mut cluster.spec.worker_group_specs[0].template.0;
    template["spec"]["newSchedulingField"] = json!({"a": 1});
    template["spec"]["containers"][0]["newContainerField"] = json!("x");
    template["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b", "newEnvField": true}]);
    let plan = TestCluster::new(cluster).plan();
    let pod = plan.writes.iter().find(|write| write.target.name.starts_with("demo-small")).expect("a worker");
    let WriteOp::Create(pod) = &pod.op else { panic!("not a creation") };
    assert_eq!(pod["spec"]["newSchedulingField"], json!({"a": 1}));
    assert_eq!(pod["spec"]["containers"][0]["newContainerField"], "x");
    assert_eq!(pod["spec"]["containers"][0]["env"][0], json!({"name": "A", "value": "b", "newEnvField": true}));
}
