//! Container that KubeRay adds to each pod to collect logs and events for the Ray history server.
//!
//! Sluice's own operator adds none, and says so. Where KubeRay creates the pods, the container is
//! charged: KubeRay rejects a cluster with these options unless its feature gate is on, so each pod of
//! a cluster that it accepts has one.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::field_error::FieldError;
use super::groups::{PodGroup, pod_groups};
use sluice_api::ray::RayCluster;

/// Returns the groups of a cluster whose pods KubeRay creates, with the containers that only it adds.
///
/// # Errors
/// Fails when a pod template or a quantity can't be parsed; the error names the field and the
/// value.
pub fn pod_groups_of_kuberay(cluster: &RayCluster) -> Result<Vec<PodGroup>, FieldError> {
    let mut groups = pod_groups(cluster)?;
    let Some(collector) = collector(cluster)? else { return Ok(groups) };
    for group in &mut groups {
        group.template.spec.get_or_insert_default().containers.push(collector.clone());
    }
    Ok(groups)
}

/// Returns the container as far as quota depends on it; `None` without its options (kuberay v1.7.0
/// `ray-operator/controllers/ray/common/pod.go`, `BuildCollectorContainer`).
fn collector(cluster: &RayCluster) -> Result<Option<Container>, FieldError> {
    let options = cluster.spec.history_server_options.as_ref();
    let Some(options) = options.and_then(|options| options.collector_options.clone()) else { return Ok(None) };
    let resources = match options.resources {
        None => default_resources(),
        Some(resources) => serde_json::from_value(resources).map_err(|error| {
            FieldError::new("spec.historyServerOptions.collectorOptions.resources", format!("can't be parsed: {error}"))
        })?,
    };
    Ok(Some(Container {
        name: "ray-history-collector".to_owned(),
        image: options.image,
        resources: Some(resources),
        ..Container::default()
    }))
}

fn default_resources() -> ResourceRequirements {
    let amounts = |cpu: &str, memory: &str| {
        BTreeMap::from(
            [("cpu", cpu), ("memory", memory)].map(|(name, amount)| (name.to_owned(), Quantity(amount.into()))),
        )
    };
    ResourceRequirements {
        limits: Some(amounts("200m", "256Mi")),
        requests: Some(amounts("50m", "64Mi")),
        ..ResourceRequirements::default()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::cluster_with_patch;

    #[rstest]
    #[case::no_options(json!(null), None)]
    #[case::no_collector(json!({}), None)]
    #[case::default_resources(json!({"collectorOptions": {"image": "c"}}), Some("50m"))]
    #[case::own_resources(json!({"collectorOptions": {"resources": {"requests": {"cpu": "1"}}}}), Some("1"))]
    fn each_pod_of_kuberay_has_a_collector(#[case] options: Value, #[case] cpu: Option<&str>) {
        let cluster = cluster_with_patch(json!({"historyServerOptions": options}));

        let groups = pod_groups_of_kuberay(&cluster).expect("the spec is valid");

        for (group, own) in groups.iter().zip(pod_groups(&cluster).expect("the spec is valid")) {
            let containers = &group.template.spec.as_ref().expect("a spec").containers;
            let added = &containers[own.template.spec.expect("a spec").containers.len()..];
            let requests = added.iter().filter_map(|container| container.resources.as_ref()?.requests.as_ref());
            let cpus: Vec<&str> = requests.map(|requests| requests["cpu"].0.as_str()).collect();
            assert_eq!(cpus, Vec::from_iter(cpu), "{}", group.name);
        }
    }

    #[test]
    fn invalid_resources_name_the_field() {
        let options = json!({"collectorOptions": {"resources": {"requests": "much"}}});
        let error =
            pod_groups_of_kuberay(&cluster_with_patch(json!({"historyServerOptions": options}))).expect_err("invalid");
        assert!(error.to_string().starts_with("spec.historyServerOptions.collectorOptions.resources"), "{error}");
    }
}
