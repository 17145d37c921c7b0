//! Shape of a pod: a hash of the fields that quota and flavor assignment depend on.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::json;
use sha2::{Digest, Sha256};
use sluice_queue::requests::{RequestsError, pod_resources_json};

/// Hashes the fields that quota and flavor assignment depend on: requests and limits of the
/// containers, runtime class and node constraints. The sum of the requests is not enough:
/// LimitRanges default and limit each container.
///
/// # Errors
/// Returns an error that names the request if it is not a valid quantity.
pub fn shape_of(spec: &PodSpec) -> Result<String, RequestsError> {
    let node_affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let fields = json!({
        "pod": pod_resources_json(spec)?,
        "nodeSelector": spec.node_selector,
        "nodeAffinity": node_affinity,
        "tolerations": spec.tolerations,
    });
    let digest = Sha256::digest(fields.to_string());
    Ok(digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    fn shape(pod: Value) -> String {
        shape_of(&serde_json::from_value(pod).expect("a pod")).expect("a shape")
    }

    fn worker(resources: Value) -> Value {
        json!({"name": "ray-worker", "resources": resources})
    }

    fn plain() -> Value {
        json!({"containers": [worker(json!({"requests": {"cpu": "1"}}))]})
    }

    #[rstest]
    #[case::another_notation(json!({"containers": [worker(json!({"requests": {"cpu": "1000m"}}))]}), true)]
    #[case::another_image(json!({"containers": [{"name": "w", "image": "new", "resources": {"requests": {"cpu": 1}}}]}), true)]
    #[case::another_request(json!({"containers": [worker(json!({"requests": {"cpu": "2"}}))]}), false)]
    // A LimitRange can default the request of the sidecar, and limits each container separately.
    #[case::a_sidecar_without_requests(
        json!({"containers": [worker(json!({"requests": {"cpu": "1"}})), {"name": "sidecar"}]}), false)]
    #[case::a_limit(json!({"containers": [worker(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}))]}), false)]
    #[case::the_same_in_two_containers(
        json!({"containers": [worker(json!({"requests": {"cpu": "500m"}})), worker(json!({"requests": {"cpu": "500m"}}))]}), false)]
    #[case::a_runtime_class(
        json!({"runtimeClassName": "kata", "containers": [worker(json!({"requests": {"cpu": "1"}}))]}), false)]
    #[case::a_node_selector(
        json!({"nodeSelector": {"gpu": "h100"}, "containers": [worker(json!({"requests": {"cpu": "1"}}))]}), false)]
    fn shape_covers_all_fields_that_quota_and_flavor_depend_on(#[case] other: Value, #[case] same: bool) {
        assert_eq!(shape(plain()) == shape(other), same);
    }
}
