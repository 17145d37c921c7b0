//! What a new object gets, as a function of what was asked for.

use serde_json::{Value, json};

use sluice_api::kueue::names;
use sluice_api::kueue::names::ELASTIC_JOB_GATE;
use sluice_jobframework::managed::{Hold, Managed};

/// A JSON patch (RFC 6902) that makes an object be as it should; `None` when it is so already, or is none of our business. `old`
/// is the object as it was, unless it is new.
///
/// - A new job that names no LocalQueue gets the name of the one for such jobs, if its namespace has one.
/// - A new managed Job of Kubernetes is created suspended, and its pods are born behind the scheduling gate of elastic jobs. One that
///   hands a RayJob to the cluster that was made for it has its quota with that, and only its pod waits.
/// - A new managed RayJob is created suspended where another operator runs it, unless it is sent to a cluster of others.
/// - A new managed RayService gets a closed gate in its template, so that each of its clusters is created suspended.
/// - A new managed RayCluster is created suspended, by itself or as the child of a RayService. (KubeRay 1.7.0 gives its children
///   the labels of their service: ray-operator/controllers/ray/rayservice_controller.go, `constructRayClusterForRayService`.) One
///   that something else owns is none of ours: nobody here would open it again.
/// - Where another operator makes the pods, the templates of its groups get the scheduling gate of elastic jobs, those of a RayJob's
///   cluster as well, so that no pod of it runs before it is
///   paid for, also when the cluster grows. (Kueue v0.19.2 does so for elastic jobs when they are created.) When a cluster
///   changes, groups that come get it and groups that had it keep it: KubeRay 1.7.0 overwrites the spec of a child with that of
///   its service when groups are added. A group that never had it is left alone, since that may have its pods made anew.
///
/// What isn't there to be changed, like the spec of an object that has none, is left to the API server to refuse.
pub fn patch(object: &Value, old: Option<&Value>, circumstances: Circumstances) -> Option<Value> {
    let managed = circumstances.managed;
    // Whether it is managed is for the planners to find out, if nobody knows it here.
    if matches!(managed, Managed::No | Managed::Held(Hold::UnseenNamespace)) {
        return None;
    }
    let Waits { parent, suspended, templates } = waits(object, circumstances)?;
    let spec = object.pointer(parent)?.as_object()?;
    let is_suspended = spec.get("suspend") == Some(&Value::Bool(true));
    let mut changes = Vec::new();
    if suspended && old.is_none() && !is_suspended {
        changes.push(json!({"op": "add", "path": format!("{parent}/suspend"), "value": true}));
    }
    if managed == Managed::Held(Hold::Default) {
        changes.push(join(object));
    }
    changes.extend(templates.iter().filter_map(|(path, group)| gate(path, group, old)));
    (!changes.is_empty()).then(|| changes.into())
}

/// What is known beside the object.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances {
    /// Whether another operator makes the pods of Ray.
    pub others_make_pods: bool,
    /// Whether the object, or what owns it, is the queue's to manage.
    pub managed: Managed,
    /// Whether the RayJob that owns it is sent to a cluster of others.
    pub attaches: bool,
}

/// How an object is kept from running.
struct Waits<'a> {
    /// What has the field `suspend`.
    parent: &'static str,
    /// Whether that is to be set.
    suspended: bool,
    /// The templates whose pods are to be born gated, each with where it is.
    templates: Templates<'a>,
}

/// What has a template of pods, each with where it is.
type Templates<'a> = Vec<(String, &'a Value)>;

/// How an object is kept from running; `None` if it is none of ours.
fn waits(object: &Value, circumstances: Circumstances) -> Option<Waits<'_>> {
    let Circumstances { others_make_pods, attaches, .. } = circumstances;
    let version = object.get("apiVersion")?.as_str()?;
    let waits = |suspended, templates| Some(Waits { parent: "/spec", suspended, templates });
    match (version.split('/').next()?, object.get("kind")?.as_str()?) {
        ("ray.io", "RayService") => {
            Some(Waits { parent: "/spec/rayClusterConfig", suspended: true, templates: Vec::new() })
        }
        ("ray.io", "RayCluster") if is_ours(object) => {
            waits(true, if others_make_pods { groups(object).collect() } else { Vec::new() })
        }
        ("ray.io", "RayCluster") if others_make_pods && is_of_ray_job(object) => waits(false, groups(object).collect()),
        ("ray.io", "RayJob") if others_make_pods => waits(!is_sent_to_others(object), Vec::new()),
        ("batch", "Job") if !owners(object).any(is_ray) || is_of_ray_job(object) => {
            let template = object.get("spec").map(|spec| ("/spec".to_owned(), spec));
            waits(attaches || !is_of_ray_job(object), template.into_iter().collect())
        }
        _ => None,
    }
}

/// Whether a RayJob is sent to a cluster that others have made: such a one can't be suspended.
fn is_sent_to_others(ray_job: &Value) -> bool {
    ray_job.pointer("/spec/clusterSelector").and_then(Value::as_object).is_some_and(|labels| !labels.is_empty())
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

/// Whether a cluster was made for a RayJob, or a Job to submit it.
pub(super) fn is_of_ray_job(object: &Value) -> bool {
    owners(object).any(|owner| is_ray(owner) && owner.get("kind") == Some(&"RayJob".into()))
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

    const OURS: Circumstances = Circumstances { others_make_pods: false, managed: Managed::InQueue, attaches: false };
    const OF_OTHERS: Circumstances = Circumstances { others_make_pods: true, ..OURS };

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
        assert_eq!(patch(&object, None, OURS), expected);
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
        assert_eq!(patch(&object, None, Circumstances { managed, ..OURS }), expected);
    }

    #[test]
    fn a_new_job_of_kubernetes_is_suspended_and_its_pods_are_born_gated() {
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": {"template": {"spec": {}}}});
        let gates = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
        let expected = json!([
            {"op": "add", "path": "/spec/suspend", "value": true},
            {"op": "add", "path": "/spec/template/spec/schedulingGates", "value": gates},
        ]);
        assert_eq!(patch(&job, None, OURS), Some(expected));
    }

    #[test]
    fn the_job_that_submits_a_ray_job_waits_with_that_or_for_itself() {
        let mut submitter =
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": {"template": {"spec": {}}}});
        submitter["metadata"]["ownerReferences"] = of("RayJob", true)["metadata"]["ownerReferences"].clone();
        let suspended = json!({"op": "add", "path": "/spec/suspend", "value": true});
        let gates = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
        let gated = json!({"op": "add", "path": "/spec/template/spec/schedulingGates", "value": gates});

        assert_eq!(patch(&submitter, None, OF_OTHERS), Some(json!([gated])));
        let attaching = Circumstances { attaches: true, ..OF_OTHERS };
        assert_eq!(patch(&submitter, None, attaching), Some(json!([suspended, gated])));
        submitter["metadata"]["ownerReferences"][0]["kind"] = json!("RayCluster");
        assert_eq!(patch(&submitter, None, OF_OTHERS), None, "what has made it is charged for it");
    }

    #[rstest]
    #[case::one_with_its_cluster(json!({"rayClusterSpec": {}}), OF_OTHERS, true)]
    #[case::one_for_a_cluster_of_others(json!({"clusterSelector": {"a": "b"}}), OF_OTHERS, false)]
    #[case::one_that_nobody_runs(json!({"rayClusterSpec": {}}), OURS, false)]
    fn a_new_ray_job_is_suspended_where_it_can_be(
        #[case] spec: Value,
        #[case] circumstances: Circumstances,
        #[case] suspended: bool,
    ) {
        let expected = suspended.then(|| json!([{"op": "add", "path": "/spec/suspend", "value": true}]));
        assert_eq!(patch(&object("RayJob", spec), None, circumstances), expected);
    }

    #[test]
    fn the_cluster_of_a_ray_job_runs_with_pods_that_are_born_gated() {
        let mut cluster = with_groups(&["head", "A"]);
        cluster["spec"]["suspend"] = json!(false);
        cluster["metadata"]["ownerReferences"] = of("RayJob", true)["metadata"]["ownerReferences"].clone();
        let gates = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
        let path = "/spec/headGroupSpec/template/spec/schedulingGates";
        assert_eq!(patch(&cluster, None, OF_OTHERS), Some(json!([{"op": "add", "path": path, "value": gates}])));
        assert_eq!(patch(&cluster, None, OURS), None);
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
        let patched = |makers| patch(&object, old.as_ref(), makers).unwrap_or_else(|| json!([]));
        let paths = gated.iter().map(|path| format!("{path}/template/spec/schedulingGates"));
        let gate = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
        let expected: Vec<Value> = paths.map(|path| json!({"op": "add", "path": path, "value": gate})).collect();

        assert_eq!(patched(OF_OTHERS), json!(expected));
        assert_eq!(patched(OURS), json!([]), "our own operator knows by itself which pods wait");
    }

    #[test]
    fn gates_of_others_stay_and_templates_that_are_none_are_left_alone() {
        let mut cluster = with_groups(&["head", "a"]);
        cluster["spec"]["headGroupSpec"] = json!({"template": 7});
        cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["schedulingGates"] = json!([{"name": "of-others"}]);

        let path = "/spec/workerGroupSpecs/0/template/spec/schedulingGates/-";
        let expected = json!([{"op": "add", "path": path, "value": {"name": "kueue.x-k8s.io/elastic-job"}}]);
        assert_eq!(patch(&cluster, None, OF_OTHERS), Some(expected));
    }

    #[test]
    fn a_cluster_that_is_there_keeps_its_gate_as_it_is_and_a_service_makes_no_pods_itself() {
        let open = with(with_groups(&["HEAD"]), "/spec/suspend", json!(false));
        assert_eq!(patch(&open, Some(&open), OF_OTHERS), None);
        let service = service(json!({"suspend": true, "headGroupSpec": {"template": {"spec": {}}}}));
        assert_eq!(patch(&service, None, OF_OTHERS), None);
    }
}
