//! Pods that a batch/v1 Job needs quota for.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job as BatchJob, JobSpec};
use kube_core::ResourceExt;

use super::super::demand_error::DemandError;
use super::super::shape::shape_of;
use super::super::types::{PodGroupDemand, PodGroupDemands};
use super::wanted_pods::wanted_pods;
use super::{JOB_NAME_LABEL, POD_GROUP};
use sluice_api::kueue::names::{DEFAULT_POD_SET, MIN_PARALLELISM_ANNOTATION};
use sluice_api::kueue::scheduling_gate;

/// Returns the pods that a Job needs quota for: those that run, and those that the Job controller may
/// still create.
pub(super) fn groups(job: &BatchJob) -> PodGroupDemands {
    let spec = job.spec.clone().unwrap_or_default();
    let parallelism = spec.parallelism.unwrap_or(1);
    let count = u32::try_from(wanted_pods(job, &spec)).unwrap_or(0);
    check_manual_selector(job, &spec)?;
    let mut template = spec.template;
    let pod_spec = template.spec.get_or_insert_default();
    scheduling_gate::remove(pod_spec);
    let shape = shape_of(pod_spec)
        .map_err(|source| DemandError::TemplateRequests { field: "spec.template", source: Box::new(source) })?;
    Ok(vec![PodGroupDemand {
        name: POD_GROUP.to_owned(),
        pod_set: DEFAULT_POD_SET.to_owned(),
        shape,
        count,
        min_count: min_parallelism(job, parallelism)?,
        min_pods: count,
        hosts_per_replica: 1,
        template: Arc::new(template),
    }])
}

/// Checks that the pods of a Job with a manual selector name the Job: they are found by that label,
/// which the Job controller adds only to those of generated selectors.
///
/// # Errors
/// If the pod template lacks the label.
fn check_manual_selector(job: &BatchJob, spec: &JobSpec) -> Result<(), DemandError> {
    let labels = spec.template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
    let named = labels.and_then(|labels| labels.get(JOB_NAME_LABEL));
    if spec.manual_selector == Some(true) && named != job.metadata.name.as_ref() {
        return Err(DemandError::ManualSelector { job: job.name_any() });
    }
    Ok(())
}

/// Reads the minimum parallelism of a Job; `None` without the annotation, and if it is not less than the
/// parallelism. Kueue rejects such a Job (kueue v0.19.2 `pkg/controller/jobs/job/job_webhook.go`,
/// `validatePartialAdmissionCreate`), but it may have been scaled down since.
///
/// # Errors
/// If the annotation is not a number above zero.
fn min_parallelism(job: &BatchJob, parallelism: i32) -> Result<Option<u32>, DemandError> {
    let Some(text) = job.annotations().get(MIN_PARALLELISM_ANNOTATION) else { return Ok(None) };
    let fewest = text.parse::<u32>().ok().filter(|fewest| *fewest > 0);
    let fewest = fewest.ok_or_else(|| DemandError::MinParallelism { value: text.clone() })?;
    Ok(Some(fewest).filter(|fewest| *fewest < u32::try_from(parallelism).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::generated_selector(json!({}), json!({}), true)]
    #[case::own_labels(json!({"manualSelector": true}), json!({"app": "x"}), false)]
    #[case::label_of_another_job(json!({"manualSelector": true}), json!({(JOB_NAME_LABEL): "other"}), false)]
    #[case::label_of_the_job(json!({"manualSelector": true}), json!({(JOB_NAME_LABEL): "sum"}), true)]
    fn pods_of_a_manual_selector_must_name_their_job(
        #[case] spec: Value,
        #[case] labels: Value,
        #[case] is_valid: bool,
    ) {
        let mut job = json!({"metadata": {"name": "sum"}, "spec": spec});
        job["spec"]["template"] = json!({"metadata": {"labels": labels}, "spec": {"containers": []}});
        let job: BatchJob = serde_json::from_value(job).expect("a Job");
        assert_eq!(groups(&job).is_ok(), is_valid);
    }

    #[rstest]
    #[case::less_than_parallelism("2", 3, Some(Some(2)))]
    #[case::as_much_as_parallelism("2", 2, Some(None))]
    #[case::more_than_parallelism("2", 1, Some(None))]
    #[case::scaled_to_zero("2", 0, Some(None))]
    #[case::zero("0", 3, None)]
    #[case::negative("-1", 3, None)]
    #[case::not_a_number("two", 3, None)]
    fn min_parallelism_counts_if_it_is_less_than_parallelism(
        #[case] annotation: &str,
        #[case] parallelism: i32,
        #[case] expected: Option<Option<u32>>,
    ) {
        let job: BatchJob = serde_json::from_value(json!({
            "metadata": {"name": "sum", "annotations": {(MIN_PARALLELISM_ANNOTATION): annotation}},
            "spec": {"parallelism": parallelism, "template": {"spec": {"containers": []}}},
        }))
        .expect("a Job");

        let min_counts = groups(&job).ok().map(|groups| groups[0].min_count);

        assert_eq!(min_counts, expected);
    }
}
