//! Takes from objects what differs between any two control planes, and nothing else.

use serde_json::{Map, Value, json};

use super::dump::{Dump, WAITS_FOR_QUOTA, waits_for_quota};
use super::names::Names;
use crate::script::manifests::Place;

/// Objects by kind and by what they are called on every control plane.
pub(super) type Normal = std::collections::BTreeMap<String, Value>;

/// Where conditions are.
const CONDITIONS: [&str; 3] = [
    "/status/conditions",
    "/status/activeServiceStatus/rayClusterStatus/conditions",
    "/status/pendingServiceStatus/rayClusterStatus/conditions",
];

/// What is the same wherever the same was done.
pub(super) fn normalised(dump: &Dump, place: &Place) -> Normal {
    let names = Names::of(dump, place);
    let objects = dump.iter().map(|((kind, name), object)| {
        let mut object = object.clone();
        reduce(kind, &mut object);
        let mut object = told(object, &names);
        sort(kind, &mut object);
        (format!("{kind} {}", names.told(name)), object)
    });
    objects.collect()
}

/// Objects in which those who wait for quota are not told for how much, nor whether it is more than there is in all: both may
/// be the numbers of up to ten seconds ago (`REFRESH_AFTER` in `src/queue/cycle.rs`).
pub(super) fn without_numbers(mut objects: Normal) -> Normal {
    for object in objects.values_mut() {
        for conditions in CONDITIONS {
            let conditions = object.pointer_mut(conditions).and_then(Value::as_array_mut).into_iter().flatten();
            for condition in conditions.filter(|condition| condition["status"] == "False") {
                let condition = fields(condition, "");
                condition.remove("message");
                let waits = |reason: &&mut Value| reason.as_str().is_some_and(waits_for_quota);
                if let Some(reason) = condition.get_mut("reason").filter(waits) {
                    *reason = WAITS_FOR_QUOTA.into();
                }
            }
        }
    }
    objects
}

/// Tells texts without what is random in them, and times as times.
fn told(value: Value, names: &Names) -> Value {
    match value {
        Value::String(text) if is_time(&text) => "<time>".into(),
        Value::String(text) => in_order(&names.told(&text)).into(),
        Value::Array(items) => items.into_iter().map(|item| told(item, names)).collect(),
        Value::Object(fields) => fields.into_iter().map(|(field, value)| (field, told(value, names))).collect(),
        other => other,
    }
}

/// Those who hold as much as one another are named in the order of their uids, which are random: here in that of their names.
fn in_order(text: &str) -> String {
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

/// Removes what need not be the same.
fn reduce(kind: &str, object: &mut Value) {
    let meta = fields(object, "/metadata");
    // One counter over everything that ever happened on a control plane.
    meta.remove("resourceVersion");
    // When and by how many writes a field became what it is depends on which events arrived together.
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

/// Whether a cluster was seen in a state that it had for a moment depends on who was faster: only the present one counts.
fn cluster(object: &mut Value, status: &str) {
    let state = object.pointer(&format!("{status}/state")).cloned().unwrap_or_default();
    let times = object.pointer_mut(&format!("{status}/stateTransitionTimes")).and_then(Value::as_object_mut);
    times.into_iter().for_each(|times| times.retain(|of, _| *of == state));
}

/// What the API server makes of every pod, the scheduler's choice among equal nodes, and what a kubelet says of containers,
/// which nobody here reads.
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
    // The admission plugins DefaultTolerationSeconds and ServiceAccount, which the simulator hasn't.
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
    // Which of the kubelet's conditions there are, and in which order, differs between kubelets; two of them are read.
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

/// What the API server makes of every Service.
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

/// Of the labels and annotations only those that say whose it is count, and how often it was written depends on which pods
/// changed together.
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

/// Conditions are told by their types, and endpoints and ports have no order. A list of nothing is written in two ways.
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

/// A slice shrinks pod by pod or at once, as the news of the pods comes in. What it was when its conditions were written
/// follows from that, and for one that is over also what was left of it; time that has passed is time. (For its number see
/// [`Names`].)
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
        as_asked(&mut set["template"]);
    }
}

/// Two clusters whose pods ask for the same share a pod set, and the first that was seen lends its template. So what counts of
/// it is what they ask the scheduler for.
fn as_asked(template: &mut Value) {
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

/// The fields of a part of an object, which every object of its kind has.
fn fields<'a>(object: &'a mut Value, pointer: &str) -> &'a mut Map<String, Value> {
    object.pointer_mut(pointer).and_then(Value::as_object_mut).unwrap_or_else(|| panic!("there is no {pointer}"))
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
    fn holders_are_named_in_one_order() {
        let told = in_order(
            "2 of 3 used: b holds 1, a holds 1; fits once 1 is released; 1 used, limited by cohort x: d holds 1, c holds 1",
        );

        assert_eq!(
            told,
            "2 of 3 used: a holds 1, b holds 1; fits once 1 is released; 1 used, limited by cohort x: c holds 1, d holds 1"
        );
    }

    #[test]
    fn of_a_slice_that_is_over_counts_that_it_is() {
        let slice = |members: &str, generation: i64| {
            let record = format!("{{\"sequence\":1,\"members\":[{members}]}}");
            let meta = json!({"name": "s", "generation": generation, "annotations": {"sluice.dev/slice": record}});
            let conditions = json!([{"type": "Finished", "status": "True", "observedGeneration": generation}]);
            let object =
                json!({"metadata": meta, "spec": {"podSets": [members]}, "status": {"conditions": conditions}});
            let mut object = object;
            reduce("Workload", &mut object);
            object
        };

        assert_eq!(slice("1", 2), slice("", 3));
    }

    #[test]
    fn what_the_api_server_adds_to_every_pod_does_not_count_and_other_values_do() {
        let pod = |policy: &str| {
            let spec =
                json!({"restartPolicy": policy, "containers": [{"name": "c", "imagePullPolicy": "IfNotPresent"}]});
            let mut object = json!({"metadata": {"name": "p"}, "spec": spec, "status": {"phase": "Running"}});
            reduce("Pod", &mut object);
            object["spec"].take()
        };

        assert_eq!(pod("Always"), json!({"containers": [{"name": "c"}]}));
        assert_eq!(pod("Never"), json!({"restartPolicy": "Never", "containers": [{"name": "c"}]}));
    }
}
