//! Default objects of the validation cases.

use serde_json::{Value, json};

use sluice_testkit::objects::NAMESPACE;

/// Returns a valid object of a kind.
pub(super) fn default_object(kind: &str) -> Value {
    let spec = match kind {
        "ClusterQueue" => {
            json!({"cohortName": "all", "resourceGroups": [group(&["cpu"], &[("on-demand", "cpu", json!({}))])]})
        }
        "Cohort" => {
            json!({"parentName": "all", "resourceGroups": [group(&["cpu"], &[("on-demand", "cpu", json!({}))])]})
        }
        "ResourceFlavor" => json!({"nodeLabels": {"pool": "a"}}),
        "LocalQueue" => json!({"clusterQueue": "team"}),
        "Workload" => json!({"queueName": "team", "podSets": [pod_set("main", 3)]}),
        _ => panic!("no default {kind}"),
    };
    let namespace = matches!(kind, "LocalQueue" | "Workload").then_some(NAMESPACE);
    let metadata = json!({"name": "usual", "namespace": namespace});
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec})
}

pub(super) fn pod_set(name: &str, count: i32) -> Value {
    let container = json!({"name": "c", "resources": {"requests": {"cpu": "1"}}});
    json!({"name": name, "count": count, "template": {"spec": {"containers": [container]}}})
}

/// Returns a resource group. Each flavor has a nominal quota of 1, with the given fields merged in.
pub(super) fn group(covered: &[&str], quotas: &[(&str, &str, Value)]) -> Value {
    let mut flavors: Vec<Value> = Vec::new();
    for (flavor, resource, more) in quotas {
        let mut quota = json!({"name": resource, "nominalQuota": 1});
        merge(&mut quota, more);
        match flavors.iter_mut().find(|known| known["name"] == *flavor) {
            Some(known) => known["resources"].as_array_mut().expect("resources").push(quota),
            None => flavors.push(json!({"name": flavor, "resources": [quota]})),
        }
    }
    json!({"coveredResources": covered, "flavors": flavors})
}

pub(super) fn groups(groups: &[Value]) -> Value {
    json!({"spec": {"resourceGroups": groups}})
}

/// Returns one group with one CPU quota.
pub(super) fn quota(more: Value) -> Value {
    groups(&[group(&["cpu"], &[("on-demand", "cpu", more)])])
}

/// Returns one group with this many flavors, named after `prefix`, and resources, with limits.
pub(super) fn large(prefix: &str, flavors: usize, resources: usize) -> Value {
    let covered: Vec<String> = (0..resources).map(|n| format!("{prefix}-{n}")).collect();
    let quotas: Vec<Value> = covered
        .iter()
        .map(|name| json!({"name": name, "nominalQuota": 1, "borrowingLimit": "1500m", "lendingLimit": 1}))
        .collect();
    let flavors: Vec<Value> =
        (0..flavors).map(|n| json!({"name": format!("{prefix}-{n}"), "resources": quotas})).collect();
    json!({"coveredResources": covered, "flavors": flavors})
}

pub(super) fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    let fields = object.as_object_mut().expect("an object");
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            merge(fields.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}
