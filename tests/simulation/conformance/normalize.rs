//! Removes from objects exactly what differs between any two control planes.

use serde_json::{Map, Value, json};

use super::dump::{Dump, PENDING_FOR_QUOTA, is_pending_for_quota};
use super::names::NameMap;
use crate::script::manifests::ScriptNamespace;

/// Normalized objects by kind and normalized name.
pub(super) type NormalizedObjects = std::collections::BTreeMap<String, Value>;

/// Paths of condition lists.
const CONDITIONS: [&str; 3] = [
    "/status/conditions",
    "/status/activeServiceStatus/rayClusterStatus/conditions",
    "/status/pendingServiceStatus/rayClusterStatus/conditions",
];

/// Returns the objects without what differs between control planes.
pub(super) fn normalized(dump: &Dump, place: &ScriptNamespace) -> NormalizedObjects {
    let names = NameMap::from_dump(dump, place);
    let objects = dump.iter().map(|((kind, name), object)| {
        let mut object = object.clone();
        remove_varying_fields(kind, &mut object);
        let mut object = replace_random(object, &names);
        sort(kind, &mut object);
        (format!("{kind} {}", names.rename(name)), object)
    });
    objects.collect()
}

/// Removes messages of false conditions and merges the pending reasons of insufficient quota: both
/// may be out of date (`src/queue/message_refresh.rs`).
pub(super) fn without_pending_numbers(mut objects: NormalizedObjects) -> NormalizedObjects {
    for object in objects.values_mut() {
        for conditions in CONDITIONS {
            let conditions = object.pointer_mut(conditions).and_then(Value::as_array_mut).into_iter().flatten();
            for condition in conditions.filter(|condition| condition["status"] == "False") {
                let condition = fields(condition, "");
                condition.remove("message");
                let waits = |reason: &&mut Value| reason.as_str().is_some_and(is_pending_for_quota);
                if let Some(reason) = condition.get_mut("reason").filter(waits) {
                    *reason = PENDING_FOR_QUOTA.into();
                }
            }
        }
    }
    objects
}

/// Replaces timestamps and random names in all strings.
fn replace_random(value: Value, names: &NameMap) -> Value {
    match value {
        Value::String(text) if is_time(&text) => "<time>".into(),
        Value::String(text) => sort_holders(&names.rename(&text)).into(),
        Value::Array(items) => items.into_iter().map(|item| replace_random(item, names)).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(field, value)| (field, replace_random(value, names))).collect()
        }
        other => other,
    }
}

/// Sorts holders of quota in a message by name. Holders of equal amounts are listed in the order of
/// their random uids.
fn sort_holders(text: &str) -> String {
    let parts = text.split(';').map(|part| match part.rsplit_once(": ") {
        Some((before, holders)) if holders.contains(" holds ") => {
            let mut holders: Vec<&str> = holders.split(", ").collect();
            holders.sort_unstable();
            format!("{before}: {}", holders.join(", "))
        }
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join(";")
}

fn is_time(text: &str) -> bool {
    text.len() >= 20 && text.ends_with('Z') && text.parse::<jiff::Timestamp>().is_ok()
}

/// Removes fields that may differ.
fn remove_varying_fields(kind: &str, object: &mut Value) {
    let meta = fields(object, "/metadata");
    // A counter of all writes of a control plane.
    meta.remove("resourceVersion");
    // The number and the times of the writes depend on which events arrived together.
    meta.remove("managedFields");
    match kind {
        "Pod" => pod(object),
        "Service" => service(object),
        "EndpointSlice" => endpoint_slice(object),
        "Workload" => workload(object),
        "RayCluster" => cluster(object, "/status"),
        "RayService" => {
            cluster(object, "/status/activeServiceStatus/rayClusterStatus");
            cluster(object, "/status/pendingServiceStatus/rayClusterStatus");
        }
        _ => {}
    }
}

/// Keeps only the transition time of the current state: whether a brief state was observed depends
/// on timing.
fn cluster(object: &mut Value, status: &str) {
    let state = object.pointer(&format!("{status}/state")).cloned().unwrap_or_default();
    let times = object.pointer_mut(&format!("{status}/stateTransitionTimes")).and_then(Value::as_object_mut);
    times.into_iter().for_each(|times| times.retain(|of, _| *of == state));
}

/// Removes defaults of the API server, the node name, and container statuses, which Sluice does not
/// read.
fn pod(pod: &mut Value) {
    let spec = fields(pod, "/spec");
    let defaults = json!({
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": true,
        "preemptionPolicy": "PreemptLowerPriority",
        "priority": 0,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "serviceAccount": "default",
        "serviceAccountName": "default",
        "terminationGracePeriodSeconds": 30,
    });
    without_defaults(spec, &defaults);
    if let Some(node) = spec.get_mut("nodeName") {
        *node = "<node>".into();
    }
    // Added by the admission plugins DefaultTolerationSeconds and ServiceAccount, which the
    // simulator lacks.
    let by_plugin = |item: &Value| {
        let key = item["key"].as_str().unwrap_or_default();
        matches!(key, "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable")
            || item["name"].as_str().is_some_and(|name| name.starts_with("kube-api-access-"))
    };
    for list in ["tolerations", "volumes"] {
        retain(spec, list, |item| !by_plugin(item));
    }
    for containers in ["containers", "initContainers"] {
        for container in spec.get_mut(containers).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(container) = container.as_object_mut() else { continue };
            without_container_defaults(container);
            retain(container, "volumeMounts", |item| !by_plugin(item));
        }
    }
    let status = fields(pod, "/status");
    for address in ["hostIP", "hostIPs", "podIPs", "containerStatuses", "initContainerStatuses", "qosClass"] {
        status.remove(address);
    }
    // Kubelets differ in the conditions that they set and in their order; Sluice reads these two.
    retain(status, "conditions", |item| matches!(item["type"].as_str(), Some("Ready" | "PodScheduled")));
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter_map(Value::as_object_mut) {
        condition.retain(|field, _| matches!(field.as_str(), "type" | "status"));
    }
}

fn without_container_defaults(container: &mut Map<String, Value>) {
    let defaults = json!({
        "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "resources": {},
    });
    without_defaults(container, &defaults);
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        port.as_object_mut().into_iter().for_each(|port| without_defaults(port, &json!({"protocol": "TCP"})));
    }
    for variable in container.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten() {
        let field = variable.pointer_mut("/valueFrom/fieldRef").and_then(Value::as_object_mut);
        field.into_iter().for_each(|field| without_defaults(field, &json!({"apiVersion": "v1"})));
    }
    for probe in ["livenessProbe", "readinessProbe"] {
        let defaults = json!({"failureThreshold": 3, "periodSeconds": 10, "successThreshold": 1, "timeoutSeconds": 1});
        let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) else { continue };
        without_defaults(probe, &defaults);
        let get = probe.get_mut("httpGet").and_then(Value::as_object_mut);
        get.into_iter().for_each(|get| without_defaults(get, &json!({"scheme": "HTTP"})));
    }
}

/// Removes defaults of the API server and addresses.
fn service(service: &mut Value) {
    let spec = fields(service, "/spec");
    for addresses in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        spec.remove(addresses);
    }
    if spec.get("clusterIP").is_some_and(|address| address != "None") {
        spec.remove("clusterIP");
    }
    let defaults = json!({"internalTrafficPolicy": "Cluster", "sessionAffinity": "None", "type": "ClusterIP"});
    without_defaults(spec, &defaults);
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(port) = port.as_object_mut() else { continue };
        let number = port.get("port").cloned().unwrap_or_default();
        without_defaults(port, &json!({"protocol": "TCP", "targetPort": number}));
    }
    let empty = service.get("status").is_some_and(|status| *status == json!({"loadBalancer": {}}));
    if empty {
        fields(service, "").remove("status");
    }
}

/// Keeps only the label that names the Service. The generation depends on which pods changed
/// together.
fn endpoint_slice(slice: &mut Value) {
    let meta = fields(slice, "/metadata");
    meta.remove("generation");
    meta.remove("annotations");
    meta.remove("generateName");
    let labels = meta.get_mut("labels").and_then(Value::as_object_mut);
    labels.into_iter().for_each(|labels| labels.retain(|label, _| label == "kubernetes.io/service-name"));
    for endpoint in slice["endpoints"].as_array_mut().into_iter().flatten() {
        fields(endpoint, "").remove("nodeName");
    }
}

/// Sorts conditions by type, and endpoints and ports by name. Missing and empty lists become equal.
fn sort(kind: &str, object: &mut Value) {
    for conditions in CONDITIONS {
        let conditions = object.pointer_mut(conditions).and_then(Value::as_array_mut);
        conditions.into_iter().for_each(|all| all.sort_by_key(|condition| condition["type"].to_string()));
    }
    if kind != "EndpointSlice" {
        return;
    }
    let slice = fields(object, "");
    for list in ["endpoints", "ports"] {
        let mut items = slice.remove(list).and_then(|items| items.as_array().cloned()).unwrap_or_default();
        items.sort_by_key(|item| item["name"].to_string() + &item["targetRef"]["name"].to_string());
        slice.insert(list.to_owned(), items.into());
    }
}

/// Removes what depends on timing. A slice shrinks pod by pod or in one write, depending on when
/// pod events arrive. So the observed generations differ, and for a finished slice also its last
/// pod sets. (For the sequence number see [`NameMap`](super::names::NameMap).)
fn workload(workload: &mut Value) {
    fields(workload, "/metadata").remove("generation");
    let conditions = workload.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    let conditions = conditions.map(Vec::as_mut_slice).unwrap_or_default();
    conditions.iter_mut().for_each(|condition| drop(fields(condition, "").remove("observedGeneration")));
    let is_over = conditions.iter().any(|condition| condition["type"] == "Finished" && condition["status"] == "True");
    if let Some(seconds) = workload.pointer_mut("/status/accumulatedPastExecutionTimeSeconds") {
        *seconds = "<seconds>".into();
    }
    if is_over {
        fields(workload, "/spec").remove("podSets");
        fields(workload, "/status").remove("admission");
        fields(workload, "/metadata/annotations").remove("sluice.dev/slice");
        return;
    }
    if let Some(record) = workload.pointer_mut("/metadata/annotations/sluice.dev~1slice") {
        let mut read: Value = serde_json::from_str(record.as_str().unwrap_or_default()).unwrap_or_default();
        read.as_object_mut().into_iter().for_each(|read| drop(read.remove("sequence")));
        *record = read;
    }
    for set in workload["spec"]["podSets"].as_array_mut().into_iter().flatten() {
        keep_scheduling_fields(&mut set["template"]);
    }
}

/// Keeps only the scheduling fields of a template. Clusters with equal requests share a pod set,
/// which has the template of the cluster that was seen first.
fn keep_scheduling_fields(template: &mut Value) {
    fields(template, "").retain(|field, _| field == "spec");
    let spec = fields(template, "/spec");
    let asks =
        ["containers", "initContainers", "nodeSelector", "affinity", "tolerations", "priorityClassName", "overhead"];
    spec.retain(|field, _| asks.contains(&field.as_str()));
    for containers in ["containers", "initContainers"] {
        for container in spec.get_mut(containers).and_then(Value::as_array_mut).into_iter().flatten() {
            fields(container, "").retain(|field, _| matches!(field.as_str(), "name" | "resources" | "restartPolicy"));
        }
    }
}

/// Returns the fields at a path that every object of the kind has.
fn fields<'a>(object: &'a mut Value, pointer: &str) -> &'a mut Map<String, Value> {
    object.pointer_mut(pointer).and_then(Value::as_object_mut).unwrap_or_else(|| panic!("missing {pointer}"))
}

fn without_defaults(object: &mut Map<String, Value>, defaults: &Value) {
    object.retain(|field, value| defaults.get(field) != Some(value));
}

fn retain(object: &mut Map<String, Value>, list: &str, keep: impl Fn(&Value) -> bool) {
    if let Some(items) = object.get_mut(list).and_then(Value::as_array_mut) {
        items.retain(keep);
        if items.is_empty() {
            object.remove(list);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_sorted_by_name() {
        let sorted = sort_holders(
            "2 of 3 used: b holds 1, a holds 1; fits once 1 is released; 1 used, limited by cohort x: d holds 1, c holds 1",
        );

        assert_eq!(
            sorted,
            "2 of 3 used: a holds 1, b holds 1; fits once 1 is released; 1 used, limited by cohort x: c holds 1, d holds 1"
        );
    }

    #[test]
    fn finished_slices_with_different_members_are_equal() {
        let slice = |members: &str, generation: i64| {
            let record = format!("{{\"sequence\":1,\"members\":[{members}]}}");
            let meta = json!({"name": "s", "generation": generation, "annotations": {"sluice.dev/slice": record}});
            let conditions = json!([{"type": "Finished", "status": "True", "observedGeneration": generation}]);
            let object =
                json!({"metadata": meta, "spec": {"podSets": [members]}, "status": {"conditions": conditions}});
            let mut object = object;
            remove_varying_fields("Workload", &mut object);
            object
        };

        assert_eq!(slice("1", 2), slice("", 3));
    }

    #[test]
    fn defaults_of_the_api_server_are_removed_and_other_values_are_kept() {
        let pod = |policy: &str| {
            let spec =
                json!({"restartPolicy": policy, "containers": [{"name": "c", "imagePullPolicy": "IfNotPresent"}]});
            let mut object = json!({"metadata": {"name": "p"}, "spec": spec, "status": {"phase": "Running"}});
            remove_varying_fields("Pod", &mut object);
            object["spec"].take()
        };

        assert_eq!(pod("Always"), json!({"containers": [{"name": "c"}]}));
        assert_eq!(pod("Never"), json!({"restartPolicy": "Never", "containers": [{"name": "c"}]}));
    }
}
