//! What the API server puts into objects of Kubernetes' own kinds.

use serde_json::{Map, Value, json};

use super::kinds::Kind;
use super::store::Store;
use super::{fields, kinds};

/// Puts the first status, and what is decided once, into a new object.
pub fn begin(store: &Store, kind: &Kind, object: &mut Value) {
    match kind.kind.as_str() {
        "Pod" => {
            let class = quality(object);
            object["status"] = json!({"phase": "Pending", "qosClass": class});
            set_priority(store, object);
        }
        "Namespace" => {
            let name = fields::name(object).to_owned();
            fields::map(fields::metadata_mut(object).entry("labels").or_insert(Value::Null))
                .insert("kubernetes.io/metadata.name".into(), name.into());
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
        }
        "Service" => {
            object["status"] = json!({"loadBalancer": {}});
            give_address(store, object);
        }
        "PersistentVolumeClaim" => object["status"] = json!({"phase": "Pending"}),
        _ => {}
    }
}

/// Puts in what a field is when nobody says it. Nulls go: the types of Kubernetes' own kinds do not know them.
pub fn default(kind: &Kind, object: &mut Value) {
    without_nulls(object);
    match kind.kind.as_str() {
        "Pod" => default_pod(fields::map(&mut object["spec"])),
        "Service" => default_service(fields::map(&mut object["spec"])),
        "PriorityClass" => set_default(fields::map(object), "preemptionPolicy", "PreemptLowerPriority"),
        _ => {}
    }
}

/// Keeps what was decided at the creation and a change did not mention.
pub fn keep(kind: &Kind, old: &Value, object: &mut Value) {
    if kind.kind != "Service" || object.pointer("/spec/type") == Some(&"ExternalName".into()) {
        return;
    }
    for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if let Some(value) = old.pointer("/spec").and_then(|spec| spec.get(field)) {
            set_default(fields::map(&mut object["spec"]), field, value.clone());
        }
    }
}

fn set_default(fields: &mut Map<String, Value>, field: &str, value: impl Into<Value>) {
    if !fields.contains_key(field) {
        fields.insert(field.to_owned(), value.into());
    }
}

fn without_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(without_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(without_nulls),
        _ => {}
    }
}

fn default_pod(spec: &mut Map<String, Value>) {
    set_default(spec, "restartPolicy", "Always");
    set_default(spec, "terminationGracePeriodSeconds", 30);
    set_default(spec, "dnsPolicy", "ClusterFirst");
    set_default(spec, "schedulerName", "default-scheduler");
    set_default(spec, "enableServiceLinks", true);
    set_default(spec, "securityContext", json!({}));
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            default_container(fields::map(container));
        }
    }
}

fn default_container(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let tag = image.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag);
    let newest = !image.contains('@') && tag.is_none_or(|tag| tag == "latest");
    set_default(container, "imagePullPolicy", if newest { "Always" } else { "IfNotPresent" });
    set_default(container, "terminationMessagePath", "/dev/termination-log");
    set_default(container, "terminationMessagePolicy", "File");
    set_default(container, "resources", json!({}));
    for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        set_default(fields::map(port), "protocol", "TCP");
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe).and_then(Value::as_object_mut) {
            for (field, value) in
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
            {
                set_default(probe, field, value);
            }
        }
    }
    // What is limited and not asked for is asked for up to its limit.
    let limits = container.get("resources").and_then(|resources| resources.get("limits")).and_then(Value::as_object);
    if let Some(limits) = limits.cloned() {
        let resources = fields::map(&mut container["resources"]);
        let requests = fields::map(resources.entry("requests").or_insert(Value::Null));
        for (resource, amount) in limits {
            set_default(requests, &resource, amount);
        }
    }
}

/// The quality of service, by requests and limits of CPU and memory.
fn quality(pod: &Value) -> &'static str {
    let containers: Vec<&Value> = ["/spec/containers", "/spec/initContainers"]
        .into_iter()
        .filter_map(|list| pod.pointer(list)?.as_array())
        .flatten()
        .collect();
    let amount = |container: &Value, list: &str, resource: &str| {
        container.pointer(&format!("/resources/{list}/{resource}")).cloned()
    };
    let lists = [("requests", "cpu"), ("requests", "memory"), ("limits", "cpu"), ("limits", "memory")];
    if !containers.iter().any(|container| lists.iter().any(|(list, of)| amount(container, list, of).is_some())) {
        return "BestEffort";
    }
    let is_guaranteed = |container: &&Value| {
        ["cpu", "memory"].into_iter().all(|resource| {
            let limit = amount(container, "limits", resource);
            limit.is_some() && limit == amount(container, "requests", resource)
        })
    };
    if containers.iter().all(is_guaranteed) { "Guaranteed" } else { "Burstable" }
}

/// The number behind the pod's priority class.
fn set_priority(store: &Store, pod: &mut Value) {
    let spec = fields::map(&mut pod["spec"]);
    let class = spec.get("priorityClassName").and_then(Value::as_str).unwrap_or_default();
    let found = store.get(kinds::named("PriorityClass"), class).map(|class| &class.object);
    let value = found.and_then(|class| class.get("value").cloned()).unwrap_or(0.into());
    let policy = found.and_then(|class| class.get("preemptionPolicy").cloned());
    spec.insert("priority".into(), value);
    set_default(spec, "preemptionPolicy", policy.unwrap_or("PreemptLowerPriority".into()));
}

fn default_service(spec: &mut Map<String, Value>) {
    set_default(spec, "type", "ClusterIP");
    set_default(spec, "sessionAffinity", "None");
    if spec.get("type") != Some(&"ExternalName".into()) {
        set_default(spec, "internalTrafficPolicy", "Cluster");
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let port = fields::map(port);
        set_default(port, "protocol", "TCP");
        if let Some(number) = port.get("port").cloned() {
            set_default(port, "targetPort", number);
        }
    }
}

/// Gives a Service its cluster IP, the same one in every run.
fn give_address(store: &Store, service: &mut Value) {
    let spec = fields::map(&mut service["spec"]);
    if spec.get("type") == Some(&"ExternalName".into()) {
        return;
    }
    let number = store.version();
    set_default(spec, "clusterIP", format!("10.96.{}.{}", number / 250 % 256, number % 250 + 1));
    let ip = spec.get("clusterIP").cloned().unwrap_or_default();
    set_default(spec, "clusterIPs", json!([ip]));
    set_default(spec, "ipFamilies", json!(["IPv4"]));
    set_default(spec, "ipFamilyPolicy", "SingleStack");
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none(json!({}), "BestEffort")]
    #[case::requests(json!({"requests": {"cpu": "1"}}), "Burstable")]
    #[case::both_equal(
        json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}),
        "Guaranteed"
    )]
    fn a_pod_has_the_quality_of_its_resources(#[case] resources: Value, #[case] expected: &str) {
        let pod = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
        assert_eq!(quality(&pod), expected);
    }

    #[test]
    fn a_container_asks_for_what_it_is_limited_to() {
        let mut pod = json!({"spec": {"containers": [{
            "name": "c",
            "image": "host:5000/ray:2",
            "ports": [{"containerPort": 1}],
            "resources": {"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"cpu": "500m"}},
        }]}});
        default(kinds::named("Pod"), &mut pod);
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["resources"]["requests"], json!({"cpu": "500m", "memory": "2Gi"}));
        assert_eq!(container["imagePullPolicy"], "IfNotPresent");
        assert_eq!(container["ports"][0]["protocol"], "TCP");
        assert_eq!(pod["spec"]["restartPolicy"], "Always");
    }
}
