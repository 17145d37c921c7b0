//! Finalizers of new objects, so that none is deleted before the planners protect it, and none costs
//! a second write.

use serde_json::{Value, json};

use sluice_api::kueue::names::RESOURCE_IN_USE_FINALIZER;

/// Returns the JSON patch (RFC 6902) that adds the finalizer to a new ClusterQueue or
/// ResourceFlavor; `None` for any other object, an update, or an object that has it (kueue v0.19.2
/// `pkg/webhooks/clusterqueue_webhook.go` and `resourceflavor_webhook.go`, `Default`).
pub(super) fn patch(object: &Value, old: Option<&Value>) -> Option<Value> {
    let version = object.get("apiVersion")?.as_str()?;
    let kind = object.get("kind")?.as_str()?;
    if old.is_some() || !version.starts_with("kueue.x-k8s.io/") || !matches!(kind, "ClusterQueue" | "ResourceFlavor") {
        return None;
    }
    let change = match object.pointer("/metadata/finalizers").and_then(Value::as_array) {
        Some(held) if held.iter().any(|finalizer| finalizer == RESOURCE_IN_USE_FINALIZER) => return None,
        Some(_) => json!({"op": "add", "path": "/metadata/finalizers/-", "value": RESOURCE_IN_USE_FINALIZER}),
        None => json!({"op": "add", "path": "/metadata/finalizers", "value": [RESOURCE_IN_USE_FINALIZER]}),
    };
    Some(json!([change]))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn object(kind: &str, finalizers: Option<&[&str]>) -> Value {
        let version = if kind == "RayCluster" { "ray.io/v1" } else { "kueue.x-k8s.io/v1beta2" };
        let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}});
        if let Some(finalizers) = finalizers {
            object["metadata"]["finalizers"] = json!(finalizers);
        }
        object
    }

    fn added(path: &str, value: Value) -> Option<Value> {
        Some(json!([{"op": "add", "path": path, "value": value}]))
    }

    #[rstest]
    #[case::queue("ClusterQueue", None, added("/metadata/finalizers", json!([RESOURCE_IN_USE_FINALIZER])))]
    #[case::flavor("ResourceFlavor", None, added("/metadata/finalizers", json!([RESOURCE_IN_USE_FINALIZER])))]
    #[case::with_another(
        "ClusterQueue",
        Some(&["other"][..]),
        added("/metadata/finalizers/-", json!(RESOURCE_IN_USE_FINALIZER))
    )]
    #[case::with_it("ClusterQueue", Some(&[RESOURCE_IN_USE_FINALIZER][..]), None)]
    #[case::other_kind_of_kueue("Cohort", None, None)]
    #[case::other_group("RayCluster", None, None)]
    fn new_queue_or_flavor_gets_the_finalizer(
        #[case] kind: &str,
        #[case] finalizers: Option<&[&str]>,
        #[case] expected: Option<Value>,
    ) {
        let object = object(kind, finalizers);

        assert_eq!(patch(&object, None), expected);
        assert_eq!(patch(&object, Some(&object)), None, "an update changes nothing");
    }
}
