//! Creation of a pod with `dryRun=All`, which shows if the API server accepts the pods of a template.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};
use sluice_api::canonical_hash;

/// Labels that Kubernetes adds to the template of a batch/v1 Job. They differ for each Job, and no
/// admission depends on them (Kubernetes 1.36 `pkg/apis/batch/types.go`).
const JOB_LABELS: [&str; 4] =
    ["batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name"];

/// Identifies the pods that the API server treats alike: those of one template in one namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodDryRunId {
    /// Namespace of the pods.
    pub namespace: String,
    /// Hash of their template.
    pub template: String,
}

/// A pod to create with `dryRun=All`.
#[derive(Debug, Clone, PartialEq)]
pub struct PodDryRun {
    /// Identifies its template.
    pub id: PodDryRunId,
    /// Complete manifest of the pod.
    pub pod: Value,
}

impl PodDryRun {
    /// Creates the dry run of a pod of `template`. The API server's message contains `name`.
    pub fn new(namespace: &str, name: &str, template: &PodTemplateSpec) -> Self {
        let meta = template.metadata.clone().unwrap_or_default();
        let labels = meta.labels.unwrap_or_default();
        let shared: Vec<_> = labels.iter().filter(|(label, _)| !JOB_LABELS.contains(&label.as_str())).collect();
        let hashed = json!({"labels": shared, "annotations": meta.annotations, "spec": template.spec});
        let metadata = json!({
            "name": name, "namespace": namespace, "labels": labels, "annotations": meta.annotations,
        });
        Self {
            id: PodDryRunId { namespace: namespace.to_owned(), template: canonical_hash::hash(&hashed) },
            pod: json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.spec}),
        }
    }
}

/// Answer to the dry run of a template, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodVerdict {
    /// The API server accepts such pods, or could not say that it rejects them.
    Accepted,
    /// The dry run has not been answered.
    Unknown,
    /// The API server rejects such pods.
    Rejected {
        /// Its message.
        message: String,
        /// Time at which the dry run is due again.
        retry_at: Timestamp,
    },
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn template(of: Value) -> PodTemplateSpec {
        serde_json::from_value(of).expect("a template")
    }

    fn id(of: Value) -> PodDryRunId {
        PodDryRun::new("ns", "train-main", &template(of)).id
    }

    #[rstest]
    #[case::of_another_job(json!({"metadata": {"labels": {"team": "a", "job-name": "y"}}, "spec": {"containers": []}}), true)]
    #[case::another_label(json!({"metadata": {"labels": {"team": "b", "job-name": "x"}}, "spec": {"containers": []}}), false)]
    #[case::an_annotation(
        json!({"metadata": {"labels": {"team": "a"}, "annotations": {"a": "b"}}, "spec": {"containers": []}}), false)]
    #[case::another_spec(json!({"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [], "hostNetwork": true}}), false)]
    fn pods_of_equal_templates_share_a_dry_run(#[case] other: Value, #[case] same: bool) {
        let one = json!({"metadata": {"labels": {"team": "a", "job-name": "x"}}, "spec": {"containers": []}});

        assert_eq!(id(one) == id(other), same);
    }

    #[test]
    fn pod_of_a_dry_run_has_the_metadata_and_spec_of_the_template() {
        let template = template(json!({
            "metadata": {"labels": {"job-name": "train"}, "annotations": {"note": "a"}},
            "spec": {"containers": [{"name": "c"}], "hostNetwork": true},
        }));

        let pod = PodDryRun::new("ns", "train-main", &template).pod;

        assert_eq!(
            pod,
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": "train-main", "namespace": "ns",
                    "labels": {"job-name": "train"}, "annotations": {"note": "a"},
                },
                "spec": {"containers": [{"name": "c"}], "hostNetwork": true},
            })
        );
    }
}
