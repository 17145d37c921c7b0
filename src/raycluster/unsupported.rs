//! Fields that KubeRay 1.7 supports and Sluice does not yet.

use kube_core::ResourceExt;

use super::field_error::FieldError;
use sluice_api::ray::{RayCluster, names};

/// Returns the unsupported fields that are set on a cluster, each with the missing function.
pub fn unsupported_fields(cluster: &RayCluster) -> Vec<String> {
    let spec = &cluster.spec;
    let found = [
        (spec.history_server_options.is_some(), "spec.historyServerOptions: no history is collected".to_owned()),
        (
            cluster.labels().contains_key(names::GANG_SCHEDULING_LABEL),
            format!("label {}: Pods are scheduled individually, not as a gang", names::GANG_SCHEDULING_LABEL),
        ),
    ];
    let unsupported = found.into_iter().filter(|(set, _)| *set).map(|(_, field)| field);
    unsupported.chain(unsupported_protections(cluster).into_iter().map(|problem| problem.to_string())).collect()
}

/// Returns errors for unsupported fields that protect a cluster. Ignoring them would expose the
/// cluster to clients that its owner wants to exclude, so it is rejected.
pub(super) fn unsupported_protections(cluster: &RayCluster) -> Vec<FieldError> {
    let spec = &cluster.spec;
    let tls = spec.tls_options.as_ref().and_then(|tls| tls.enabled) == Some(true);
    let found = [
        (tls, "spec.tlsOptions.enabled", "TLS is not supported yet; unset it or set it to false"),
        (
            spec.network_policy.is_some(),
            "spec.networkPolicy",
            "network policies are not supported yet; unset it and create your own NetworkPolicy",
        ),
    ];
    found.into_iter().filter(|(set, ..)| *set).map(|(_, field, message)| FieldError::new(field, message)).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::cluster_with_patch;

    #[rstest]
    #[case::nothing(json!({}), &[])]
    #[case::strategy_none(json!({"upgradeStrategy": {"type": "None"}}), &[])]
    #[case::strategy_recreate(json!({"upgradeStrategy": {"type": "Recreate"}}), &[])]
    #[case::fault_tolerance(json!({"gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}}), &[])]
    #[case::history(json!({"historyServerOptions": {}}), &["spec.historyServerOptions"])]
    #[case::ingress(json!({"headGroupSpec": {"enableIngress": true}}), &[])]
    #[case::autoscaler(json!({"enableInTreeAutoscaling": true}), &[])]
    fn unsupported_fields_are_reported(#[case] spec: Value, #[case] expected: &[&str]) {
        let fields = unsupported_fields(&cluster_with_patch(spec));
        assert_eq!(fields.len(), expected.len(), "{fields:?}");
        assert!(fields.iter().zip(expected).all(|(field, expected)| field.starts_with(expected)), "{fields:?}");
    }

    #[rstest]
    #[case::tls(json!({"tlsOptions": {"enabled": true}}), Some("spec.tlsOptions.enabled"))]
    #[case::no_tls(json!({"tlsOptions": {}}), None)]
    #[case::policy(json!({"networkPolicy": {"mode": "DenyAll"}}), Some("spec.networkPolicy"))]
    fn unsupported_protection_is_an_error_and_reported(#[case] spec: Value, #[case] expected: Option<&str>) {
        let cluster = cluster_with_patch(spec);
        let problems = unsupported_protections(&cluster);
        assert_eq!(problems.first().map(|problem| problem.field.as_str()), expected);
        assert_eq!(unsupported_fields(&cluster), problems.iter().map(ToString::to_string).collect::<Vec<_>>());
    }
}
