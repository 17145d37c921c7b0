//! What a new object gets, as a function of what was asked for.

use serde_json::{Value, json};

use crate::api::kueue::names;
use crate::api::kueue::names::ELASTIC_JOB_GATE;
use crate::jobframework::managed::{Hold, Managed};

/// A JSON patch (RFC 6902) that makes an object be as it should; `None` when it is so already, or is none of our business. `old`
/// is the object as it was, unless it is new. `gates` is set where another operator makes the pods. `managed` says whether the object,
/// or what owns it, is the queue's to manage.
///
/// - A new job that names no LocalQueue gets the name of the one for such jobs, if its namespace has one.
/// - A new managed Job of Kubernetes is created suspended, and its pods are born behind the scheduling gate of elastic jobs.
/// - A new managed RayService gets a closed gate in its template, so that each of its clusters is created suspended.
/// - A new managed RayCluster is created suspended, by itself or as the child of a RayService. (KubeRay 1.7.0 gives its children
///   the labels of their service: ray-operator/controllers/ray/rayservice_controller.go, `constructRayClusterForRayService`.) One
///   that something else owns is none of ours: nobody here would open it again.
/// - With `gates`, the templates of its groups get the scheduling gate of elastic jobs, so that no pod of it runs before it is
///   paid for, also when the cluster grows. (Kueue v0.19.2 does so for elastic jobs when they are created.) When a cluster
///   changes, groups that come get it and groups that had it keep it: KubeRay 1.7.0 overwrites the spec of a child with that of
///   its service when groups are added. A group that never had it is left alone, since that may have its pods made anew.
///
/// What isn't there to be changed, like the spec of an object that has none, is left to the API server to refuse.
pub fn patch(object: &Value, old: Option<&Value>, gates: bool, managed: Managed) -> Option<Value> {
    // Whether it is managed is for the planners to find out, if nobody knows it here.
    if matches!(managed, Managed::No | Managed::Held(Hold::UnseenNamespace)) {
        return None;
    }
    let (parent, to_gate) = places(object, gates)?;
    let spec = object.pointer(parent)?.as_object()?;
    let is_suspended = spec.get("suspend") == Some(&Value::Bool(true));
    let mut changes = Vec::new();
    if old.is_none() && !is_suspended {
        changes.push(json!({"op": "add", "path": format!("{parent}/suspend"), "value": true}));
    }
    if managed == Managed::Held(Hold::Default) {
        changes.push(join(object));
    }
    changes.extend(to_gate.iter().filter_map(|(path, group)| gate(path, group, old)));
    (!changes.is_empty()).then(|| changes.into())
}

/// What has a template of pods, each with where it is.
type Templates<'a> = Vec<(String, &'a Value)>;

/// Where the gate of an object is, and which of its templates make pods that are to be born gated; `None` if it is none of ours.
fn places(object: &Value, gates: bool) -> Option<(&'static str, Templates<'_>)> {
    let version = object.get("apiVersion")?.as_str()?;
    match (version.split('/').next()?, object.get("kind")?.as_str()?) {
        ("ray.io", "RayService") => Some(("/spec/rayClusterConfig", Vec::new())),
        ("ray.io", "RayCluster") if is_ours(object) => {
            let groups = if gates { groups(object).collect() } else { Vec::new() };
            Some(("/spec", groups))
        }
        ("batch", "Job") if !owners(object).any(is_ray) => {
            Some(("/spec", object.get("spec").map(|spec| ("/spec".to_owned(), spec)).into_iter().collect()))
        }
        _ => None,
    }
}

/// What puts an object into the LocalQueue for jobs that name none.
fn join(object: &Value) -> Value {
    if object.pointer("/metadata/labels").is_some_and(Value::is_object) {
        let path = format!("/metadata/labels/{}", names::QUEUE_NAME_LABEL.replace('/', "~1"));
        json!({"op": "add", "path": path, "value": names::DEFAULT_LOCAL_QUEUE})
    } else {
        let labels = json!({names::QUEUE_NAME_LABEL: names::DEFAULT_LOCAL_QUEUE});
        json!({"op": "add", "path": "/metadata/labels", "value": labels})
    }
}

/// The groups of a RayCluster, each with where it is.
fn groups(cluster: &Value) -> impl Iterator<Item = (String, &Value)> {
    let head = cluster.pointer("/spec/headGroupSpec").map(|head| ("/spec/headGroupSpec".to_owned(), head));
    let workers = cluster.pointer("/spec/workerGroupSpecs").and_then(Value::as_array);
    let workers = workers.into_iter().flatten().enumerate();
    head.into_iter().chain(workers.map(|(index, group)| (format!("/spec/workerGroupSpecs/{index}"), group)))
}

/// What puts the scheduling gate into the template of a group, if that is to have it and hasn't.
fn gate(path: &str, group: &Value, old: Option<&Value>) -> Option<Value> {
    let before = old.and_then(|old| groups(old).find(|(_, before)| before.get("groupName") == group.get("groupName")));
    if is_gated(group) || before.is_some_and(|(_, before)| !is_gated(before)) {
        return None;
    }
    let spec = group.pointer("/template/spec")?.as_object()?;
    let (gate, path) = (json!({"name": ELASTIC_JOB_GATE}), format!("{path}/template/spec/schedulingGates"));
    Some(match spec.get("schedulingGates") {
        Some(Value::Array(_)) => json!({"op": "add", "path": format!("{path}/-"), "value": gate}),
        _ => json!({"op": "add", "path": path, "value": [gate]}),
    })
}

fn is_gated(group: &Value) -> bool {
    let gates = group.pointer("/template/spec/schedulingGates").and_then(Value::as_array);
    gates.into_iter().flatten().any(|gate| gate.get("name") == Some(&ELASTIC_JOB_GATE.into()))
}

pub(super) fn is_ray(object: &Value) -> bool {
    object.get("apiVersion").and_then(Value::as_str).is_some_and(|version| version.starts_with("ray.io/"))
}

/// Whether a cluster is a job of its own, or part of a RayService.
fn is_ours(cluster: &Value) -> bool {
    owners(cluster).all(|owner| is_ray(owner) && owner.get("kind") == Some(&"RayService".into()))
}

/// What controls an object.
pub(super) fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().filter(|owner| owner.get("controller") == Some(&true.into()))
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
    #[case::another_kind(object("RayJob", json!({})), None)]
    #[case::another_group(with(cluster(json!({})), "/apiVersion", json!("example.com/v1")), None)]
    #[case::no_spec(cluster(Value::Null), None)]
    #[case::no_template(object("RayService", json!({})), None)]
    #[case::template_that_is_none(service(json!([])), None)]
    fn a_new_queued_object_is_created_with_its_gate_closed(#[case] object: Value, #[case] path: Option<&str>) {
        let expected = path.map(|path| json!([{"op": "add", "path": path, "value": true}]));
        assert_eq!(patch(&object, None, false, Managed::InQueue), expected);
    }

    #[rstest]
    #[case::not_managed(cluster(json!({})), Managed::No, None)]
    #[case::perhaps_managed(cluster(json!({})), Managed::Held(Hold::UnseenNamespace), None)]
    #[case::not_named(cluster(json!({})), Managed::Held(Hold::NoQueueName), Some(json!([
        {"op": "add", "path": "/spec/suspend", "value": true},
    ])))]
    #[case::to_be_named(with(service(json!({})), "/metadata/labels", json!({"team": "a"})), Managed::Held(Hold::Default), Some(json!([
        {"op": "add", "path": "/spec/rayClusterConfig/suspend", "value": true},
        {"op": "add", "path": "/metadata/labels/kueue.x-k8s.io~1queue-name", "value": "default"},
    ])))]
    #[case::to_be_named_and_suspended(with(cluster(json!({"suspend": true})), "/metadata/labels", Value::Null),
        Managed::Held(Hold::Default), Some(json!([
        {"op": "add", "path": "/metadata/labels", "value": {"kueue.x-k8s.io/queue-name": "default"}},
    ])))]
    fn a_new_object_is_changed_as_far_as_it_is_managed(
        #[case] object: Value,
        #[case] managed: Managed,
        #[case] expected: Option<Value>,
    ) {
        assert_eq!(patch(&object, None, false, managed), expected);
    }

    #[test]
    fn a_new_job_of_kubernetes_is_suspended_and_its_pods_are_born_gated() {
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": {"template": {"spec": {}}}});
        let gates = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
        let expected = json!([
            {"op": "add", "path": "/spec/suspend", "value": true},
            {"op": "add", "path": "/spec/template/spec/schedulingGates", "value": gates},
        ]);
        assert_eq!(patch(&job, None, false, Managed::InQueue), Some(expected));

        let mut submitter = job;
        submitter["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "o", "uid": "1", "controller": true}]);
        assert_eq!(patch(&submitter, None, false, Managed::InQueue), None, "what has made it is charged for it");
    }

    /// A suspended cluster with a head and these groups; one whose name is in upper case has the gate.
    fn with_groups(names: &[&str]) -> Value {
        let group = |name: &str| {
            let gates = json!([{"name": "of-others"}, {"name": "kueue.x-k8s.io/elastic-job"}]);
            let gated = name.chars().all(char::is_uppercase);
            let spec = if gated { json!({"schedulingGates": gates}) } else { json!({"containers": []}) };
            json!({"groupName": name.to_lowercase(), "template": {"spec": spec}})
        };
        let (head, workers) = names.split_first().expect("a head");
        let workers: Vec<Value> = workers.iter().map(|name| group(name)).collect();
        let mut head = group(head);
        head.as_object_mut().expect("a group").remove("groupName");
        cluster(json!({"suspend": true, "headGroupSpec": head, "workerGroupSpecs": workers}))
    }

    #[rstest]
    #[case::new(with_groups(&["head", "a", "B"]), None, &["/spec/headGroupSpec", "/spec/workerGroupSpecs/0"])]
    #[case::new_and_gated(with_groups(&["HEAD", "A"]), None, &[])]
    #[case::changed(with_groups(&["head", "a"]), Some(with_groups(&["head", "a"])), &[])]
    #[case::overwritten(with_groups(&["head", "b", "a"]), Some(with_groups(&["HEAD", "A", "b"])),
        &["/spec/headGroupSpec", "/spec/workerGroupSpecs/1"])]
    #[case::a_group_comes(with_groups(&["head", "a", "b"]), Some(with_groups(&["head", "a"])), &["/spec/workerGroupSpecs/1"])]
    fn pods_that_others_make_are_born_gated(#[case] object: Value, #[case] old: Option<Value>, #[case] gated: &[&str]) {
        let patched = |gates| patch(&object, old.as_ref(), gates, Managed::InQueue).unwrap_or_else(|| json!([]));
        let paths = gated.iter().map(|path| format!("{path}/template/spec/schedulingGates"));
        let gate = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
        let expected: Vec<Value> = paths.map(|path| json!({"op": "add", "path": path, "value": gate})).collect();

        assert_eq!(patched(true), json!(expected));
        assert_eq!(patched(false), json!([]), "our own operator knows by itself which pods wait");
    }

    #[test]
    fn gates_of_others_stay_and_templates_that_are_none_are_left_alone() {
        let mut cluster = with_groups(&["head", "a"]);
        cluster["spec"]["headGroupSpec"] = json!({"template": 7});
        cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["schedulingGates"] = json!([{"name": "of-others"}]);

        let path = "/spec/workerGroupSpecs/0/template/spec/schedulingGates/-";
        let expected = json!([{"op": "add", "path": path, "value": {"name": "kueue.x-k8s.io/elastic-job"}}]);
        assert_eq!(patch(&cluster, None, true, Managed::InQueue), Some(expected));
    }

    #[test]
    fn a_cluster_that_is_there_keeps_its_gate_as_it_is_and_a_service_makes_no_pods_itself() {
        let open = with(with_groups(&["HEAD"]), "/spec/suspend", json!(false));
        assert_eq!(patch(&open, Some(&open), true, Managed::InQueue), None);
        let service = service(json!({"suspend": true, "headGroupSpec": {"template": {"spec": {}}}}));
        assert_eq!(patch(&service, None, true, Managed::InQueue), None);
    }
}
