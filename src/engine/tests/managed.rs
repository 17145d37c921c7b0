//! Jobs without a queue name, and namespaces whose jobs are not managed.

use serde_json::{Value, json};

use super::control_plane::ControlPlane;
use super::fixtures::{cluster_spec, control_plane, put_cluster, put_service};
use sluice_api::kueue::names::{DEFAULT_LOCAL_QUEUE, QUEUE_NAME_LABEL};
use sluice_jobframework::managed::ManagedJobsPolicy;
use sluice_queue::Settings;

fn queue_name_required() -> ManagedJobsPolicy {
    ManagedJobsPolicy { manage_jobs_without_queue_name: true, ..ManagedJobsPolicy::default() }
}

/// Returns a policy that manages namespaces labeled `managed: yes`.
fn namespace_selected() -> ManagedJobsPolicy {
    let selector = json!({"matchLabels": {"managed": "yes"}});
    ManagedJobsPolicy {
        namespaces: serde_json::from_value(selector).expect("a selector"),
        ..ManagedJobsPolicy::default()
    }
}

fn put_unnamed_cluster(plane: &mut ControlPlane, name: &str) {
    plane.apply("RayCluster", json!({"metadata": {"name": name}, "spec": cluster_spec(1, "2.53.0")}));
}

/// Creates a RayService without a queue name.
fn put_unnamed_service(plane: &mut ControlPlane) {
    put_service(plane, "chat", "low", "2.53.0");
    plane.apply("RayService", json!({"metadata": {"name": "chat", "labels": {(QUEUE_NAME_LABEL): null}}}));
}

fn put_default_queue(plane: &mut ControlPlane) {
    plane.apply("LocalQueue", json!({"metadata": {"name": DEFAULT_LOCAL_QUEUE}, "spec": {"clusterQueue": "cq"}}));
}

fn name_queue(plane: &mut ControlPlane, kind: &str, name: &str) {
    plane.apply(kind, json!({"metadata": {"name": name, "labels": {(QUEUE_NAME_LABEL): "lq"}}}));
}

fn queue_of<'a>(plane: &'a ControlPlane, kind: &str, name: &str) -> &'a Value {
    &plane.object(kind, name)["metadata"]["labels"][QUEUE_NAME_LABEL]
}

fn label_namespace(plane: &mut ControlPlane, managed: &str) {
    plane.apply("Namespace", json!({"metadata": {"name": "default", "labels": {"managed": managed}}}));
}

#[test]
fn job_without_queue_name_runs_unmanaged() {
    let mut plane = control_plane(Settings::default(), "0");
    put_unnamed_cluster(&mut plane, "own");
    put_unnamed_service(&mut plane);
    plane.apply("RayService", json!({"metadata": {"name": "chat"}, "spec": {"rayClusterConfig": {"suspend": null}}}));
    plane.advance(60);
    let child = plane.clusters_of_service("chat").remove(0);
    assert_eq!((plane.ungated_pod_count("own"), plane.ungated_pod_count(&child)), (2, 2));
    assert!(plane.workloads("own").is_empty() && plane.workloads("chat").is_empty());
}

#[test]
fn new_job_without_queue_name_gets_the_default_queue() {
    // Given a namespace with a default LocalQueue,
    let mut plane = control_plane(Settings::default(), "4");
    put_default_queue(&mut plane);

    // when jobs without a queue name are created, then they get it, and run as far as there is
    // quota.
    put_unnamed_cluster(&mut plane, "own");
    put_unnamed_service(&mut plane);
    plane.advance(60);
    for (kind, name) in [("RayCluster", "own"), ("RayService", "chat")] {
        assert_eq!(queue_of(&plane, kind, name), DEFAULT_LOCAL_QUEUE);
        plane.workload(name);
    }
    let child = plane.clusters_of_service("chat").remove(0);
    assert_eq!((plane.ungated_pod_count("own"), plane.ungated_pod_count(&child)), (2, 2));
    put_unnamed_cluster(&mut plane, "another");
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count("another"), plane.gated_pod_count("another")), (0, 0));
    assert!(plane.pending_message("RayCluster", "another").contains("LocalQueue default"));
}

#[test]
fn new_cluster_gets_the_default_queue_after_a_failed_write() {
    // Given a cluster whose first write fails,
    let mut plane = control_plane(Settings::default(), "0");
    put_default_queue(&mut plane);
    plane.fail_next_write.insert("RayCluster");
    put_unnamed_cluster(&mut plane, "own");

    // when it is retried, then the cluster is queued, and none of its pods has run.
    plane.advance(60);
    assert_eq!(queue_of(&plane, "RayCluster", "own"), DEFAULT_LOCAL_QUEUE);
    assert_eq!(plane.ungated_pod_count("own"), 0);
}

#[test]
fn running_job_does_not_get_a_default_queue_created_later() {
    let mut plane = control_plane(Settings::default(), "4");
    put_unnamed_cluster(&mut plane, "own");
    plane.advance(60);

    put_default_queue(&mut plane);
    plane.advance(60);

    assert_eq!((queue_of(&plane, "RayCluster", "own"), plane.ungated_pod_count("own")), (&Value::Null, 2));
}

#[test]
fn job_without_required_queue_name_is_on_hold_until_it_has_one() {
    // Given a policy that requires a queue name for every job,
    let mut plane = control_plane(Settings::default(), "4").with_managed_jobs(queue_name_required());

    // when jobs without a queue name are created, then they run no pods and report why;
    put_unnamed_cluster(&mut plane, "own");
    put_unnamed_service(&mut plane);
    plane.advance(60);
    assert!(plane.clusters_of_service("chat").is_empty());
    assert_eq!((plane.ungated_pod_count("own"), plane.gated_pod_count("own")), (0, 0));
    for (kind, name) in [("RayCluster", "own"), ("RayService", "chat")] {
        let why = plane.pending_message(kind, name);
        assert!(why.contains("set its label kueue.x-k8s.io/queue-name to a LocalQueue"), "{kind} says {why:?}");
        assert_eq!(plane.event_count(kind, "NoQueueName"), 1);
    }

    // once they have a queue name, they are admitted.
    name_queue(&mut plane, "RayCluster", "own");
    name_queue(&mut plane, "RayService", "chat");
    plane.advance(60);
    let child = plane.clusters_of_service("chat").remove(0);
    assert_eq!((plane.ungated_pod_count("own"), plane.ungated_pod_count(&child)), (2, 2));
    assert_eq!(plane.pending_message("RayCluster", "own"), "");
}

#[test]
fn jobs_of_an_unselected_namespace_are_unmanaged_until_it_is_selected() {
    // Given a namespace that the policy does not select,
    let mut plane = control_plane(Settings::default(), "4").with_managed_jobs(namespace_selected());
    label_namespace(&mut plane, "no");
    put_default_queue(&mut plane);

    // when jobs are created there, then they run regardless of quota;
    put_cluster(&mut plane, "large", "low", 8);
    put_unnamed_cluster(&mut plane, "own");
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count("large"), plane.ungated_pod_count("own")), (9, 2));
    assert!(plane.workloads("large").is_empty());

    // once the namespace is selected, the job with a queue name needs quota,
    label_namespace(&mut plane, "yes");
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count("large"), plane.ungated_pod_count("own")), (0, 2));
    assert!(plane.pending_message("RayCluster", "large").contains("is pending in LocalQueue lq"));

    // and does not need it once the namespace is unselected.
    label_namespace(&mut plane, "no");
    plane.advance(60);
    assert!(plane.workloads("large").is_empty());
    assert_eq!(plane.pending_message("RayCluster", "large"), "");
}

#[test]
fn job_of_an_unobserved_namespace_waits_until_it_is_observed() {
    let mut plane = control_plane(Settings::default(), "4").with_managed_jobs(namespace_selected());
    plane.delete("Namespace", "default");
    put_cluster(&mut plane, "own", "low", 1);
    plane.advance(60);
    assert_eq!((plane.ungated_pod_count("own"), plane.workloads("own").len()), (0, 0));

    label_namespace(&mut plane, "yes");
    plane.advance(60);

    assert_eq!((plane.ungated_pod_count("own"), plane.workloads("own").len()), (2, 1));
}

#[test]
fn job_managed_by_another_controller_uses_no_quota() {
    let mut plane = control_plane(Settings::default(), "2");
    put_cluster(&mut plane, "afar", "high", 1);
    plane
        .apply("RayCluster", json!({"metadata": {"name": "afar"}, "spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}));
    put_cluster(&mut plane, "here", "low", 1);
    plane.advance(60);
    assert!(plane.workloads("afar").is_empty());
    assert_eq!((plane.ungated_pod_count("afar"), plane.ungated_pod_count("here")), (0, 2));
}

/// Action of a user on a job, without the admission policies.
#[derive(Debug, Clone, Copy)]
enum UserAction {
    RemoveQueueName,
    MoveToAnotherQueue,
    Unsuspend,
    Wait,
}

impl UserAction {
    const ALL: [Self; 4] = [Self::RemoveQueueName, Self::MoveToAnotherQueue, Self::Unsuspend, Self::Wait];

    /// Returns all sequences of this many actions.
    fn sequences(length: usize) -> Vec<Vec<Self>> {
        if length == 0 {
            return vec![Vec::new()];
        }
        let shorter = Self::sequences(length - 1);
        Self::ALL
            .iter()
            .flat_map(|first| shorter.iter().map(move |rest| [&[*first], rest.as_slice()].concat()))
            .collect()
    }

    fn run(self, plane: &mut ControlPlane, kind: &str) {
        let labels = |queue: Value| json!({"metadata": {"name": "own", "labels": {(QUEUE_NAME_LABEL): queue}}});
        match self {
            Self::RemoveQueueName => plane.apply(kind, labels(Value::Null)),
            Self::MoveToAnotherQueue => plane.apply(kind, labels(json!("lq"))),
            Self::Unsuspend if kind == "RayService" => {
                plane.apply(
                    kind,
                    json!({"metadata": {"name": "own"}, "spec": {"rayClusterConfig": {"suspend": false}}}),
                );
                for child in plane.clusters_of_service("own") {
                    plane.apply("RayCluster", json!({"metadata": {"name": child}, "spec": {"suspend": false}}));
                }
            }
            Self::Unsuspend => plane.apply(kind, json!({"metadata": {"name": "own"}, "spec": {"suspend": false}})),
            Self::Wait => plane.advance(5),
        }
    }
}

#[test]
fn job_with_a_default_queue_never_runs_without_quota_whatever_its_user_does() {
    let pod = json!({
        "restartPolicy": "Never", "schedulingGates": [{"name": "kueue.x-k8s.io/elastic-job"}],
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
    });
    let job = json!({"suspend": true, "parallelism": 2, "completions": 2, "template": {"spec": pod}});
    for kind in ["RayCluster", "RayService", "Job"] {
        for actions in UserAction::sequences(4) {
            let mut plane = control_plane(Settings::default(), "0");
            put_default_queue(&mut plane);
            match kind {
                "RayService" => {
                    put_service(&mut plane, "own", "low", "2.53.0");
                    plane.apply(kind, json!({"metadata": {"name": "own", "labels": {(QUEUE_NAME_LABEL): null}}}));
                }
                "Job" => plane.apply(kind, json!({"metadata": {"name": "own"}, "spec": job})),
                _ => put_unnamed_cluster(&mut plane, "own"),
            }

            actions.iter().for_each(|action| action.run(&mut plane, kind));
            plane.advance(60);

            assert_eq!(plane.most_running, 0, "{kind}: {actions:?}");
            let queue = queue_of(&plane, kind, "own");
            assert!(queue == DEFAULT_LOCAL_QUEUE || queue == "lq", "{kind} is in {queue}: {actions:?}");
            assert_eq!(plane.workloads("own").len(), 1, "{kind}: {actions:?}");
        }
    }
}
