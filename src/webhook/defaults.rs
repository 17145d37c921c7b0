//! What a new object gets, as a function of what was asked for.

use serde_json::{Value, json};

use crate::api::kueue::names;

/// A JSON patch (RFC 6902) that makes a new object be as it should; `None` when it is so already, or is none of our business.
///
/// - A queued RayService gets a closed gate in its template, so that each of its clusters is created suspended.
/// - A queued RayCluster is created suspended, by itself or as the child of a RayService. (KubeRay 1.7.0 gives its children the
///   labels of their service: ray-operator/controllers/ray/rayservice_controller.go, `constructRayClusterForRayService`.) One
///   that something else owns is none of ours: nobody here would open it again.
///
/// What isn't there to be changed, like the spec of an object that has none, is left to the API server to refuse.
pub fn patch(object: &Value) -> Option<Value> {
    let queue = object.pointer("/metadata/labels")?.get(names::QUEUE_NAME_LABEL)?.as_str()?;
    if queue.is_empty() || !is_ray(object) {
        return None;
    }
    let parent = match object.get("kind")?.as_str()? {
        "RayService" => "/spec/rayClusterConfig",
        "RayCluster" if is_ours(object) => "/spec",
        _ => return None,
    };
    let spec = object.pointer(parent)?.as_object()?;
    let is_suspended = spec.get("suspend") == Some(&Value::Bool(true));
    (!is_suspended).then(|| json!([{"op": "add", "path": format!("{parent}/suspend"), "value": true}]))
}

fn is_ray(object: &Value) -> bool {
    object.get("apiVersion").and_then(Value::as_str).is_some_and(|version| version.starts_with("ray.io/"))
}

/// Whether a cluster is a job of its own, or part of a RayService.
fn is_ours(cluster: &Value) -> bool {
    let owners = cluster.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let mut controllers = owners.into_iter().flatten().filter(|owner| owner.get("controller") == Some(&true.into()));
    controllers.all(|owner| is_ray(owner) && owner.get("kind") == Some(&"RayService".into()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn object(kind: &str, spec: Value) -> Value {
        let labels = json!({"kueue.x-k8s.io/queue-name": "a"});
        json!({"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "x", "labels": labels}, "spec": spec})
    }

    fn cluster(spec: Value) -> Value {
        object("RayCluster", spec)
    }

    fn service(template: Value) -> Value {
        object("RayService", json!({"rayClusterConfig": template}))
    }

    fn of(owner: &str, controller: bool) -> Value {
        let mut child = cluster(json!({}));
        let reference =
            json!({"apiVersion": "ray.io/v1", "kind": owner, "name": "o", "uid": "1", "controller": controller});
        child["metadata"]["ownerReferences"] = json!([reference]);
        child
    }

    fn with(mut object: Value, pointer: &str, value: Value) -> Value {
        *object.pointer_mut(pointer).expect("a place") = value;
        object
    }

    #[rstest]
    #[case::cluster(cluster(json!({})), Some("/spec/suspend"))]
    #[case::open_cluster(cluster(json!({"suspend": false})), Some("/spec/suspend"))]
    #[case::suspended_cluster(cluster(json!({"suspend": true})), None)]
    #[case::child_of_a_service(of("RayService", true), Some("/spec/suspend"))]
    #[case::child_of_a_job(of("RayJob", true), None)]
    #[case::cluster_that_a_job_only_refers_to(of("RayJob", false), Some("/spec/suspend"))]
    #[case::service(service(json!({})), Some("/spec/rayClusterConfig/suspend"))]
    #[case::open_service(service(json!({"suspend": false})), Some("/spec/rayClusterConfig/suspend"))]
    #[case::gated_service(service(json!({"suspend": true})), None)]
    #[case::no_label(with(cluster(json!({})), "/metadata/labels", json!({"team": "a"})), None)]
    #[case::no_labels(with(cluster(json!({})), "/metadata/labels", Value::Null), None)]
    #[case::no_queue(with(cluster(json!({})), "/metadata/labels", json!({"kueue.x-k8s.io/queue-name": ""})), None)]
    #[case::another_kind(object("RayJob", json!({})), None)]
    #[case::another_group(with(cluster(json!({})), "/apiVersion", json!("example.com/v1")), None)]
    #[case::no_spec(cluster(Value::Null), None)]
    #[case::no_template(object("RayService", json!({})), None)]
    #[case::template_that_is_none(service(json!([])), None)]
    fn a_new_queued_object_is_created_with_its_gate_closed(#[case] object: Value, #[case] path: Option<&str>) {
        let expected = path.map(|path| json!([{"op": "add", "path": path, "value": true}]));
        assert_eq!(patch(&object), expected);
    }
}
