//! Admission of pods by LimitRanges and ResourceQuotas, as far as the users of the simulator set them:
//! the maximum CPU of a container, and the number of pods that have not ended.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;
use sluice_api::quantity::Amount;

use super::super::kinds::{self, ResourceKind};
use super::super::object_meta;
use super::super::status_error::StatusError;
use super::super::store::Store;

/// Checks a new pod against the LimitRanges and ResourceQuotas of its namespace (kubernetes 1.36
/// `plugin/pkg/admission/limitranger/admission.go` and
/// `staging/src/k8s.io/apiserver/pkg/admission/plugin/resourcequota/controller.go`).
///
/// # Errors
/// Returns the error that a client would get.
pub(super) fn admit_pod(store: &Store, kind: &ResourceKind, pod: &Value) -> Result<(), StatusError> {
    let (namespace, name) = (object_meta::namespace(pod), object_meta::name(pod));
    for (_, limits) in store.range(kinds::by_name("LimitRange"), namespace, "") {
        if let Some(excess) = excess(&limits.object, pod) {
            return Err(StatusError::forbidden(kind, name, &excess));
        }
    }
    for (quota, stored) in store.range(kinds::by_name("ResourceQuota"), namespace, "") {
        let Some(hard) = stored.object.pointer("/spec/hard/pods").and_then(|hard| amount(hard, "pods")) else {
            continue;
        };
        let used = store.range(kind, namespace, "").filter(|(_, pod)| !has_ended(&pod.object)).count();
        if i64::try_from(used).is_ok_and(|used| Amount::new(used + 1) > hard) {
            let quota = quota.rsplit('/').next().unwrap_or_default();
            let hard = hard.display("pods");
            let why = format!("exceeded quota: {quota}, requested: pods=1, used: pods={used}, limited: pods={hard}");
            return Err(StatusError::forbidden(kind, name, &why));
        }
    }
    Ok(())
}

/// Describes the first container that may use more CPU than a LimitRange allows; `None` if none does.
fn excess(limits: &Value, pod: &Value) -> Option<String> {
    let items = limits.pointer("/spec/limits")?.as_array()?;
    let of_containers = items.iter().filter(|item| item["type"] == "Container");
    let most = of_containers.filter_map(|item| amount(item.pointer("/max/cpu")?, "cpu")).min()?;
    let lists = ["/spec/containers", "/spec/initContainers"].into_iter();
    let mut containers = lists.filter_map(|list| pod.pointer(list)?.as_array()).flatten();
    containers.find_map(|container| {
        let limit = container.pointer("/resources/limits/cpu").and_then(|limit| amount(limit, "cpu"))?;
        let (most, limit) = (most.display("cpu"), (limit > most).then(|| limit.display("cpu"))?);
        Some(format!("maximum cpu usage per Container is {most}, but limit is {limit}"))
    })
}

fn amount(quantity: &Value, resource: &str) -> Option<Amount> {
    Amount::from_quantity(resource, &Quantity(quantity.as_str()?.to_owned())).ok()
}

fn has_ended(pod: &Value) -> bool {
    matches!(pod.pointer("/status/phase").and_then(Value::as_str), Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rstest::rstest;
    use serde_json::json;

    use super::super::super::ApiServer;
    use super::*;

    fn pod(name: &str, cpu: &str) -> Value {
        let resources = json!({"limits": {"cpu": cpu}});
        let container = json!({"name": "work", "image": "work", "resources": resources});
        json!({"kind": "Pod", "metadata": {"namespace": "default", "name": name}, "spec": {"containers": [container]}})
    }

    #[rstest]
    #[case::within_both("500m", 2, None)]
    #[case::above_the_limit(
        "600m",
        2,
        Some("pods \"new\" is forbidden: maximum cpu usage per Container is 500m, but limit is 600m")
    )]
    #[case::above_the_quota(
        "500m",
        1,
        Some("pods \"new\" is forbidden: exceeded quota: limits, requested: pods=1, used: pods=1, limited: pods=1")
    )]
    fn new_pods_are_within_limits(#[case] cpu: &str, #[case] pods: u32, #[case] expected: Option<&str>) {
        // Given a LimitRange, a ResourceQuota, and two pods, one of which has ended,
        let now = Timestamp::UNIX_EPOCH;
        let mut api = ApiServer::new(now);
        let metadata = json!({"namespace": "default", "name": "limits"});
        for name in ["running", "ended"] {
            api.create(now, pod(name, "500m")).expect("a pod");
        }
        let end = |pod: &mut Value| pod["status"]["phase"] = "Succeeded".into();
        api.update_status(now, "Pod", "default", "ended", end).expect("the pod exists");
        let limit = json!({"type": "Container", "max": {"cpu": "500m"}});
        let range = json!({"kind": "LimitRange", "metadata": metadata, "spec": {"limits": [limit]}});
        api.create(now, range).expect("a LimitRange");
        let hard = json!({"pods": pods.to_string()});
        let quota = json!({"kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}});
        api.create(now, quota).expect("a ResourceQuota");

        // when another pod is created,
        let created = api.create(now, pod("new", cpu));

        // then it is rejected if it exceeds one of them.
        assert_eq!(created.err().map(|error| error.message), expected.map(str::to_owned));
    }
}
