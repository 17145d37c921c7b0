//! Fields that KubeRay 1.7 acts on, and we don't yet.

use kube_core::ResourceExt;

use super::problem::Problem;
use sluice_api::ray::{RayCluster, names};

/// The fields of a cluster that are set and not acted on, each with what is missing.
pub fn fields(cluster: &RayCluster) -> Vec<String> {
    let spec = &cluster.spec;
    let found = [
        (spec.history_server_options.is_some(), "spec.historyServerOptions: nothing is collected".to_owned()),
        (
            cluster.labels().contains_key(names::GANG_SCHEDULING_LABEL),
            format!("label {}: pods are scheduled one by one", names::GANG_SCHEDULING_LABEL),
        ),
    ];
    let ignored = found.into_iter().filter(|(set, _)| *set).map(|(_, field)| field);
    ignored.chain(protections(cluster).into_iter().map(|problem| problem.to_string())).collect()
}

/// Fields that protect a cluster. Without what they ask for it would be open to people whom its owner wants to keep
/// out, so there is no cluster rather than such a one.
pub(super) fn protections(cluster: &RayCluster) -> Vec<Problem> {
    let spec = &cluster.spec;
    let tls = spec.tls_options.as_ref().and_then(|tls| tls.enabled) == Some(true);
    let found = [
        (tls, "spec.tlsOptions.enabled", "encryption is not available yet; leave it out or set it to false"),
        (
            spec.network_policy.is_some(),
            "spec.networkPolicy",
            "network policies are not made yet; leave it out and make your own",
        ),
    ];
    found.into_iter().filter(|(set, ..)| *set).map(|(_, field, message)| Problem::new(field, message)).collect()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::changed;

    #[rstest]
    #[case::nothing(json!({}), &[])]
    #[case::no_recreation(json!({"upgradeStrategy": {"type": "None"}}), &[])]
    #[case::recreation(json!({"upgradeStrategy": {"type": "Recreate"}}), &[])]
    #[case::fault_tolerance(json!({"gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}}), &[])]
    #[case::history(json!({"historyServerOptions": {}}), &["spec.historyServerOptions"])]
    #[case::ingress(json!({"headGroupSpec": {"enableIngress": true}}), &[])]
    #[case::autoscaler(json!({"enableInTreeAutoscaling": true}), &[])]
    fn fields_without_effect_are_named(#[case] spec: Value, #[case] expected: &[&str]) {
        let fields = fields(&changed(spec));
        assert_eq!(fields.len(), expected.len(), "{fields:?}");
        assert!(fields.iter().zip(expected).all(|(field, expected)| field.starts_with(expected)), "{fields:?}");
    }

    #[rstest]
    #[case::tls(json!({"tlsOptions": {"enabled": true}}), Some("spec.tlsOptions.enabled"))]
    #[case::no_tls(json!({"tlsOptions": {}}), None)]
    #[case::policy(json!({"networkPolicy": {"mode": "DenyAll"}}), Some("spec.networkPolicy"))]
    fn a_protection_that_is_missing_is_a_problem_and_named(#[case] spec: Value, #[case] expected: Option<&str>) {
        let cluster = changed(spec);
        let problems = protections(&cluster);
        assert_eq!(problems.first().map(|problem| problem.field.as_str()), expected);
        assert_eq!(fields(&cluster), problems.iter().map(ToString::to_string).collect::<Vec<_>>());
    }
}
