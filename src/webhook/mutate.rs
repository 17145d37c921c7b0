//! Mutation of an object under admission, as a pure function.

use serde_json::{Value, json};

use sluice_api::kueue::names;
use sluice_api::kueue::names::ELASTIC_JOB_GATE;
use sluice_api::ray::names::TEMPLATE_SUSPENDED_ANNOTATION;
use sluice_jobframework::managed::{HoldReason, ManagementState};

/// Returns the JSON patch (RFC 6902) for an object; None if it needs no change or isn't managed.
/// `old` is the object before an update; None on creation.
///
/// - A new job without a queue name gets the default LocalQueue of its namespace, if there is one.
/// - A new managed batch/v1 Job is created suspended, and its pod template gets the scheduling gate
///   of elastic jobs. The submitter Job of a RayJob with its own cluster is only gated, since the
///   slice of the RayJob covers it.
/// - A new managed RayJob is created suspended if an external operator runs it, unless it has a
///   `clusterSelector`.
/// - A new managed RayService gets `suspend: true` in its cluster template, so that each of its
///   RayClusters is created suspended, and an annotation that says so.
/// - A new managed RayCluster is created suspended, unless an external operator created it for a
///   RayJob. (KubeRay 1.7.0 copies the labels of a RayService to its children:
///   ray-operator/controllers/ray/rayservice_controller.go, `constructRayClusterForRayService`.)
///   An owner of any other kind changes nothing: no slice of it covers the cluster.
/// - If an external operator creates the pods, the group templates of RayClusters, including those
///   of RayJobs, get the scheduling gate of elastic jobs, so that no pod runs before quota covers
///   it, also when the cluster grows. (Kueue v0.19.2 does so for elastic jobs when they are
///   created.) On an update, new groups get the gate, and groups that had it keep it: KubeRay 1.7.0
///   overwrites the spec of a child with that of its RayService when groups are added. A group that
///   never had the gate is left alone, since changing its template may recreate its pods.
///
/// Invalid objects, such as one without a spec, are left to the API server to reject.
pub fn patch(object: &Value, old: Option<&Value>, context: MutationContext) -> Option<Value> {
    let managed = context.managed;
    // If the namespace isn't cached yet, the planners decide after creation.
    if !managed.needs_quota() || managed == ManagementState::OnHold(HoldReason::NamespaceNotCached) {
        return None;
    }
    let GatingPlan { suspend_parent: parent, suspend_on_create: suspended, templates } = gating_plan(object, context)?;
    let spec = object.pointer(parent)?.as_object()?;
    let is_suspended = spec.get("suspend") == Some(&Value::Bool(true));
    let mut changes = Vec::new();
    if suspended && old.is_none() && !is_suspended {
        changes.push(json!({"op": "add", "path": format!("{parent}/suspend"), "value": true}));
        if object.get("kind") == Some(&"RayService".into()) {
            changes.push(add_to_metadata(object, "annotations", TEMPLATE_SUSPENDED_ANNOTATION, "true"));
        }
    }
    if managed == ManagementState::OnHold(HoldReason::AssignDefaultQueue) {
        changes.push(add_to_metadata(object, "labels", names::QUEUE_NAME_LABEL, names::DEFAULT_LOCAL_QUEUE));
    }
    changes.extend(templates.iter().filter_map(|(path, group)| add_gate(path, group, old)));
    (!changes.is_empty()).then(|| changes.into())
}

/// Context of an object under admission.
#[derive(Debug, Clone, Copy)]
pub struct MutationContext {
    /// True if an external operator creates the Ray pods.
    pub external_ray_operator: bool,
    /// Management state of the job that the object is or belongs to.
    pub managed: ManagementState,
    /// True if the RayJob that owns the object runs on an existing cluster.
    pub uses_existing_cluster: bool,
}

/// Changes that keep an object from running.
struct GatingPlan<'a> {
    /// JSON pointer to the parent of the field `suspend`.
    suspend_parent: &'static str,
    /// True if `suspend` is set on creation.
    suspend_on_create: bool,
    /// Pod templates that get the scheduling gate.
    templates: Templates<'a>,
}

/// Objects with a field `template`, each with its JSON pointer.
type Templates<'a> = Vec<(String, &'a Value)>;

/// Returns the changes that keep an object from running; None if Sluice doesn't gate it.
fn gating_plan(object: &Value, context: MutationContext) -> Option<GatingPlan<'_>> {
    let MutationContext { external_ray_operator, uses_existing_cluster, .. } = context;
    let version = object.get("apiVersion")?.as_str()?;
    let plan =
        |suspended, templates| Some(GatingPlan { suspend_parent: "/spec", suspend_on_create: suspended, templates });
    match (version.split('/').next()?, object.get("kind")?.as_str()?) {
        ("ray.io", "RayService") => Some(GatingPlan {
            suspend_parent: "/spec/rayClusterConfig",
            suspend_on_create: true,
            templates: Vec::new(),
        }),
        ("ray.io", "RayCluster") if external_ray_operator => {
            plan(!belongs_to_ray_job(object), groups(object).collect())
        }
        ("ray.io", "RayCluster") => plan(true, Vec::new()),
        ("ray.io", "RayJob") if external_ray_operator => plan(!has_cluster_selector(object), Vec::new()),
        ("batch", "Job") if !may_clean_up_redis(object) => {
            let template = object.get("spec").map(|spec| ("/spec".to_owned(), spec));
            plan(uses_existing_cluster || !belongs_to_ray_job(object), template.into_iter().collect())
        }
        _ => None,
    }
}

/// Returns true if a RayJob runs on an existing cluster. KubeRay rejects `suspend` for those.
fn has_cluster_selector(ray_job: &Value) -> bool {
    ray_job.pointer("/spec/clusterSelector").and_then(Value::as_object).is_some_and(|labels| !labels.is_empty())
}

/// Returns the patch operation that adds an entry to the labels or annotations of an object.
fn add_to_metadata(object: &Value, field: &str, key: &str, value: &str) -> Value {
    let path = format!("/metadata/{field}");
    if object.pointer(&path).is_some_and(Value::is_object) {
        json!({"op": "add", "path": format!("{path}/{}", key.replace('/', "~1")), "value": value})
    } else {
        json!({"op": "add", "path": path, "value": {key: value}})
    }
}

/// Returns the groups of a RayCluster, each with its JSON pointer.
fn groups(cluster: &Value) -> impl Iterator<Item = (String, &Value)> {
    let head = cluster.pointer("/spec/headGroupSpec").map(|head| ("/spec/headGroupSpec".to_owned(), head));
    let workers = cluster.pointer("/spec/workerGroupSpecs").and_then(Value::as_array);
    let workers = workers.into_iter().flatten().enumerate();
    head.into_iter().chain(workers.map(|(index, group)| (format!("/spec/workerGroupSpecs/{index}"), group)))
}

/// Returns the patch operation that adds the scheduling gate to the template of a group; None if
/// the group has it, or existed without it.
fn add_gate(path: &str, group: &Value, old: Option<&Value>) -> Option<Value> {
    let before = old.and_then(|old| groups(old).find(|(_, before)| before.get("groupName") == group.get("groupName")));
    if has_gate(group) || before.is_some_and(|(_, before)| !has_gate(before)) {
        return None;
    }
    let spec = group.pointer("/template/spec")?.as_object()?;
    let (gate, path) = (json!({"name": ELASTIC_JOB_GATE}), format!("{path}/template/spec/schedulingGates"));
    Some(match spec.get("schedulingGates") {
        Some(Value::Array(_)) => json!({"op": "add", "path": format!("{path}/-"), "value": gate}),
        _ => json!({"op": "add", "path": path, "value": [gate]}),
    })
}

fn has_gate(group: &Value) -> bool {
    let gates = group.pointer("/template/spec/schedulingGates").and_then(Value::as_array);
    gates.into_iter().flatten().any(|gate| gate.get("name") == Some(&ELASTIC_JOB_GATE.into()))
}

pub(super) fn has_ray_api_version(object: &Value) -> bool {
    object.get("apiVersion").and_then(Value::as_str).is_some_and(|version| version.starts_with("ray.io/"))
}

/// Returns true if the object is the RayCluster or the submitter Job of a RayJob.
pub(super) fn belongs_to_ray_job(object: &Value) -> bool {
    controllers(object).any(|owner| has_ray_api_version(owner) && owner.get("kind") == Some(&"RayJob".into()))
}

/// Returns true if a Job may be the one that deletes the state of a RayCluster from Redis, which needs
/// no quota. It names no queue.
fn may_clean_up_redis(job: &Value) -> bool {
    let label = job.pointer("/metadata/labels").and_then(|labels| labels.get(names::QUEUE_NAME_LABEL));
    let is_named = label.and_then(Value::as_str).is_some_and(|name| !name.is_empty());
    let of_cluster = |owner: &Value| has_ray_api_version(owner) && owner.get("kind") == Some(&"RayCluster".into());
    !is_named && controllers(job).any(of_cluster)
}

/// Returns the controller reference of an object, if any.
pub(super) fn controllers(object: &Value) -> impl Iterator<Item = &Value> {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().filter(|owner| owner.get("controller") == Some(&true.into()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const BUILT_IN: MutationContext = MutationContext {
        external_ray_operator: false,
        managed: ManagementState::InQueue,
        uses_existing_cluster: false,
    };
    const EXTERNAL: MutationContext = MutationContext { external_ray_operator: true, ..BUILT_IN };

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

    fn child_of(owner: &str, controller: bool) -> Value {
        let mut child = cluster(json!({}));
        let reference =
            json!({"apiVersion": "ray.io/v1", "kind": owner, "name": "o", "uid": "1", "controller": controller});
        child["metadata"]["ownerReferences"] = json!([reference]);
        child
    }

    fn with(mut object: Value, pointer: &str, value: Value) -> Value {
        *object.pointer_mut(pointer).expect("an existing pointer") = value;
        object
    }

    #[rstest]
    #[case::cluster(cluster(json!({})), Some("/spec/suspend"))]
    #[case::unsuspended_cluster(cluster(json!({"suspend": false})), Some("/spec/suspend"))]
    #[case::suspended_cluster(cluster(json!({"suspend": true})), None)]
    #[case::child_of_a_service(child_of("RayService", true), Some("/spec/suspend"))]
    #[case::child_of_a_job_that_the_built_in_operator_cannot_run(child_of("RayJob", true), Some("/spec/suspend"))]
    #[case::child_of_a_stranger(child_of("Workflow", true), Some("/spec/suspend"))]
    #[case::owned_but_not_controlled_by_a_job(child_of("RayJob", false), Some("/spec/suspend"))]
    #[case::service(service(json!({})), Some("/spec/rayClusterConfig/suspend"))]
    #[case::unsuspended_service(service(json!({"suspend": false})), Some("/spec/rayClusterConfig/suspend"))]
    #[case::suspended_service(service(json!({"suspend": true})), None)]
    #[case::another_kind(object("RayJob", json!({})), None)]
    #[case::another_group(with(cluster(json!({})), "/apiVersion", json!("example.com/v1")), None)]
    #[case::no_spec(cluster(Value::Null), None)]
    #[case::no_template(object("RayService", json!({})), None)]
    #[case::invalid_template(service(json!([])), None)]
    fn new_queued_object_is_created_suspended(#[case] object: Value, #[case] path: Option<&str>) {
        let changes = |path: &str| {
            let mut changes = vec![json!({"op": "add", "path": path, "value": true})];
            if object["kind"] == "RayService" {
                let annotations = json!({"sluice.dev/template-suspended": "true"});
                changes.push(json!({"op": "add", "path": "/metadata/annotations", "value": annotations}));
            }
            Value::from(changes)
        };
        assert_eq!(patch(&object, None, BUILT_IN), path.map(changes));
    }

    #[rstest]
    #[case::not_managed(cluster(json!({})), ManagementState::Unmanaged, None)]
    #[case::namespace_not_seen(cluster(json!({})), ManagementState::OnHold(HoldReason::NamespaceNotCached), None)]
    #[case::no_queue_name(cluster(json!({})), ManagementState::OnHold(HoldReason::NoQueueName), Some(json!([
        {"op": "add", "path": "/spec/suspend", "value": true},
    ])))]
    #[case::default_queue(with(service(json!({})), "/metadata/labels", json!({"team": "a"})), ManagementState::OnHold(HoldReason::AssignDefaultQueue), Some(json!([
        {"op": "add", "path": "/spec/rayClusterConfig/suspend", "value": true},
        {"op": "add", "path": "/metadata/annotations", "value": {"sluice.dev/template-suspended": "true"}},
        {"op": "add", "path": "/metadata/labels/kueue.x-k8s.io~1queue-name", "value": "default"},
    ])))]
    #[case::default_queue_and_suspended(with(cluster(json!({"suspend": true})), "/metadata/labels", Value::Null),
        ManagementState::OnHold(HoldReason::AssignDefaultQueue), Some(json!([
        {"op": "add", "path": "/metadata/labels", "value": {"kueue.x-k8s.io/queue-name": "default"}},
    ])))]
    fn mutation_depends_on_the_management_state(
        #[case] object: Value,
        #[case] managed: ManagementState,
        #[case] expected: Option<Value>,
    ) {
        assert_eq!(patch(&object, None, MutationContext { managed, ..BUILT_IN }), expected);
    }

    #[test]
    fn new_batch_job_is_suspended_and_its_pods_are_gated() {
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": {"template": {"spec": {}}}});
        let gates = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
        let expected = json!([
            {"op": "add", "path": "/spec/suspend", "value": true},
            {"op": "add", "path": "/spec/template/spec/schedulingGates", "value": gates},
        ]);
        assert_eq!(patch(&job, None, BUILT_IN), Some(expected));
    }

    #[test]
    fn submitter_job_is_suspended_only_if_its_ray_job_uses_an_existing_cluster() {
        let mut submitter =
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": {"template": {"spec": {}}}});
        submitter["metadata"]["ownerReferences"] = child_of("RayJob", true)["metadata"]["ownerReferences"].clone();
        let suspended = json!({"op": "add", "path": "/spec/suspend", "value": true});
        let gates = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
        let gated = json!({"op": "add", "path": "/spec/template/spec/schedulingGates", "value": gates});

        assert_eq!(patch(&submitter, None, EXTERNAL), Some(json!([gated])));
        let attaching = MutationContext { uses_existing_cluster: true, ..EXTERNAL };
        assert_eq!(patch(&submitter, None, attaching), Some(json!([suspended, gated])));
        submitter["metadata"]["ownerReferences"][0]["kind"] = json!("RayCluster");
        assert_eq!(patch(&submitter, None, EXTERNAL), None, "its owner's slice covers it");
    }

    #[rstest]
    #[case::own_cluster(json!({"rayClusterSpec": {}}), EXTERNAL, true)]
    #[case::existing_cluster(json!({"clusterSelector": {"a": "b"}}), EXTERNAL, false)]
    #[case::no_operator(json!({"rayClusterSpec": {}}), BUILT_IN, false)]
    fn new_ray_job_is_suspended_unless_it_uses_an_existing_cluster(
        #[case] spec: Value,
        #[case] context: MutationContext,
        #[case] suspended: bool,
    ) {
        let expected = suspended.then(|| json!([{"op": "add", "path": "/spec/suspend", "value": true}]));
        assert_eq!(patch(&object("RayJob", spec), None, context), expected);
    }

    #[test]
    fn cluster_of_a_ray_job_is_gated_but_not_suspended() {
        let mut cluster = with_groups(&["head", "A"]);
        cluster["spec"]["suspend"] = json!(false);
        cluster["metadata"]["ownerReferences"] = child_of("RayJob", true)["metadata"]["ownerReferences"].clone();
        let gates = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
        let path = "/spec/headGroupSpec/template/spec/schedulingGates";
        assert_eq!(patch(&cluster, None, EXTERNAL), Some(json!([{"op": "add", "path": path, "value": gates}])));
    }

    /// Returns a suspended cluster with a head and these groups; an upper-case name has the gate.
    fn with_groups(names: &[&str]) -> Value {
        let group = |name: &str| {
            let gates = json!([{"name": "other-controller"}, {"name": "kueue.x-k8s.io/elastic-job"}]);
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
    #[case::group_added(with_groups(&["head", "a", "b"]), Some(with_groups(&["head", "a"])), &["/spec/workerGroupSpecs/1"])]
    fn templates_are_gated_if_an_external_operator_creates_the_pods(
        #[case] object: Value,
        #[case] old: Option<Value>,
        #[case] gated: &[&str],
    ) {
        let patched = |context| patch(&object, old.as_ref(), context).unwrap_or_else(|| json!([]));
        let paths = gated.iter().map(|path| format!("{path}/template/spec/schedulingGates"));
        let gate = json!([{"name": "kueue.x-k8s.io/elastic-job"}]);
        let expected: Vec<Value> = paths.map(|path| json!({"op": "add", "path": path, "value": gate})).collect();

        assert_eq!(patched(EXTERNAL), json!(expected));
        assert_eq!(patched(BUILT_IN), json!([]), "Sluice's operator gates its pods itself");
    }

    #[test]
    fn other_gates_are_preserved_and_invalid_templates_are_left_alone() {
        let mut cluster = with_groups(&["head", "a"]);
        cluster["spec"]["headGroupSpec"] = json!({"template": 7});
        cluster["spec"]["workerGroupSpecs"][0]["template"]["spec"]["schedulingGates"] =
            json!([{"name": "other-controller"}]);

        let path = "/spec/workerGroupSpecs/0/template/spec/schedulingGates/-";
        let expected = json!([{"op": "add", "path": path, "value": {"name": "kueue.x-k8s.io/elastic-job"}}]);
        assert_eq!(patch(&cluster, None, EXTERNAL), Some(expected));
    }

    #[test]
    fn existing_cluster_keeps_its_gates_and_service_templates_are_not_gated() {
        let open = with(with_groups(&["HEAD"]), "/spec/suspend", json!(false));
        assert_eq!(patch(&open, Some(&open), EXTERNAL), None);
        let service = service(json!({"suspend": true, "headGroupSpec": {"template": {"spec": {}}}}));
        assert_eq!(patch(&service, None, EXTERNAL), None);
    }
}
