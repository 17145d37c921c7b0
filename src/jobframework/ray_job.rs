//! RayJob as a job: it has one member, itself. Its pods are those of its RayCluster and of the
//! submitter Job.
//!
//! KubeRay runs it. Its gate is `spec.suspend`: a suspended RayJob has no RayCluster, so its demand
//! is derived from `spec.rayClusterSpec`, and later from the RayCluster, which the autoscaler
//! changes. A RayJob with a `clusterSelector` cannot be suspended, and the quota of that RayCluster
//! is accounted to the cluster's own job. Such a RayJob needs only its submitter pod, so its
//! submitter Job is the job (see [`super::batch_job`]). Kueue v0.19.2
//! (`pkg/controller/jobs/rayjob/rayjob_controller.go`) runs such a RayJob without quota.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job as BatchJob;
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use kube_core::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};

use super::demand_error::DemandError;
use super::generic_job::GenericJob;
use super::members::{self, MemberIdentity, MemberPods};
use super::pod_classifier::KnownTemplates;
use super::shape::shape_of;
use super::types::{Gate, JobResult, Member, PodAssignment, PodGroupDemand, PodGroupDemands};
use super::{batch_job, conditions, ray_cluster};
use sluice_api::kueue::names;
use sluice_api::ray::{PodTemplate, RayCluster, RayJob, SubmitterKind};
use sluice_plan::{ObjectRef, Write};
use sluice_raycluster as raycluster;

/// Annotation with the conditions of a RayJob, as YAML: its status has no conditions, and KubeRay
/// would drop them.
pub const CONDITIONS_ANNOTATION: &str = "sluice.dev/conditions";
/// Group of the submitter pod: it has no group label.
const SUBMITTER_GROUP: &str = "";
/// PodSet of the submitter pod, named as in Kueue.
const SUBMITTER_POD_SET: &str = "submitter";
/// Name of the submitter container (kuberay v1.7.0
/// `ray-operator/controllers/ray/utils/constant.go`, `SubmitterContainerName`).
const SUBMITTER_CONTAINER: &str = "ray-job-submitter";
/// Default CPU and memory requests of the submitter container (kuberay v1.7.0
/// `ray-operator/controllers/ray/common/job.go`, `GetDefaultSubmitterContainer`).
const SUBMITTER_REQUESTS: (&str, &str) = ("500m", "200Mi");
/// Default CPU and memory limits of the submitter container.
const SUBMITTER_LIMITS: (&str, &str) = ("1", "1Gi");
/// `status.jobDeploymentStatus` of a RayJob that succeeded.
const COMPLETE: &str = "Complete";
/// `status.jobDeploymentStatus` of a RayJob that failed.
const FAILED: &str = "Failed";
/// `status.jobDeploymentStatus` of a RayJob with an invalid spec, which KubeRay never runs.
const VALIDATION_FAILED: &str = "ValidationFailed";
/// `status.jobStatus` of a Ray job that succeeded.
const SUCCEEDED: &str = "SUCCEEDED";

/// Adapter of a RayJob that gets its own RayCluster.
pub struct RayJobAdapter<'a> {
    job: &'a RayJob,
    groups: Arc<PodGroupDemands>,
    pods: MemberPods<'a>,
    known_templates: &'a KnownTemplates<'a>,
    conditions: Vec<Condition>,
}

impl<'a> RayJobAdapter<'a> {
    /// Creates the adapter of a RayJob with its desired groups (see [`RayJobRequirements`]), its pods and the
    /// templates that older pods may come from.
    pub fn new(
        job: &'a RayJob,
        groups: Arc<PodGroupDemands>,
        pods: MemberPods<'a>,
        templates: &'a KnownTemplates<'a>,
    ) -> Self {
        let shown = job.annotations().get(CONDITIONS_ANNOTATION);
        // An unparsable annotation is overwritten.
        let conditions: Vec<AnnotationCondition> =
            shown.and_then(|text| serde_saphyr::from_str(text).ok()).unwrap_or_default();
        let conditions = conditions.into_iter().map(Condition::from).collect();
        Self { job, groups, pods, known_templates: templates, conditions }
    }
}

impl GenericJob for RayJobAdapter<'_> {
    fn reference(&self) -> ObjectRef {
        ObjectRef::of(self.job)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.job.metadata
    }

    fn wants_to_run(&self) -> bool {
        self.job.metadata.deletion_timestamp.is_none() && deployment_status(self.job) != Some(VALIDATION_FAILED)
    }

    fn finished(&self) -> Option<JobResult> {
        let status = self.job.status.as_ref()?;
        let is_over = is_finished(self.job);
        is_over.then(|| JobResult {
            succeeded: status.job_status.as_deref() == Some(SUCCEEDED),
            message: status.message.clone().unwrap_or_default(),
        })
    }

    fn member_kind(&self) -> &'static str {
        "RayJob"
    }

    fn members(&self) -> Vec<Member> {
        let identity = MemberIdentity {
            name: self.job.name_any(),
            uid: self.job.uid().unwrap_or_default(),
            is_open: !is_suspended(self.job),
            is_terminating: self.job.metadata.deletion_timestamp.is_some(),
        };
        vec![members::build_member(identity, &self.pods, self.groups.clone(), self.known_templates)]
    }

    fn set_gate(&self, _: &str, gate: Gate) -> Option<Write> {
        let mut gated = self.job.clone();
        gated.spec.suspend = Some(gate == Gate::Closed);
        Write::patch(self.job, &gated)
    }

    fn ungate_pod(&self, _: &str, pod: &str, leave: &PodAssignment) -> Option<Write> {
        let uid = self.job.metadata.uid.as_deref();
        members::ungated_with_uid(&self.pods, pod, leave, uid.map(|uid| (names::JOB_UID_LABEL, uid)))
    }

    fn assign_queue(&self, queue: &str) -> Option<Write> {
        super::generic_job::patch_queue_name(self.job, queue)
    }

    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    fn set_conditions(&self, conditions: Vec<Condition>, gone: &[&str]) -> Option<Write> {
        if conditions::are_current(&self.conditions, &conditions, gone) {
            return None;
        }
        let mut shown = self.conditions.clone();
        conditions::apply_to(&mut shown, conditions, gone);
        let shown: Vec<AnnotationCondition> = shown.into_iter().map(AnnotationCondition::from).collect();
        let text = serde_saphyr::to_string(&shown).ok()?;
        let mut annotated = self.job.clone();
        annotated.annotations_mut().insert(CONDITIONS_ANNOTATION.to_owned(), text);
        Write::patch(self.job, &annotated)
    }
}

/// Condition as stored in the annotation. The fields are in reading order: type and status first.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnnotationCondition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
    last_transition_time: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    observed_generation: Option<i64>,
}

impl From<Condition> for AnnotationCondition {
    fn from(condition: Condition) -> Self {
        Self {
            kind: condition.type_,
            status: condition.status,
            reason: condition.reason,
            message: condition.message,
            last_transition_time: condition.last_transition_time,
            observed_generation: condition.observed_generation,
        }
    }
}

impl From<AnnotationCondition> for Condition {
    fn from(shown: AnnotationCondition) -> Self {
        Self {
            type_: shown.kind,
            status: shown.status,
            reason: shown.reason,
            message: shown.message,
            last_transition_time: shown.last_transition_time,
            observed_generation: shown.observed_generation,
        }
    }
}

/// Returns true if `spec.suspend` of a RayJob is set.
pub fn is_suspended(job: &RayJob) -> bool {
    job.spec.suspend == Some(true)
}

/// Returns true if KubeRay has started to process a RayJob.
pub fn has_started(job: &RayJob) -> bool {
    deployment_status(job).is_some_and(|status| !status.is_empty() && status != "Suspended")
}

fn is_finished(job: &RayJob) -> bool {
    matches!(deployment_status(job), Some(COMPLETE | FAILED))
}

fn deployment_status(job: &RayJob) -> Option<&str> {
    job.status.as_ref()?.job_deployment_status.as_deref()
}

/// Path of the submitter pod template.
const SUBMITTER_TEMPLATE_FIELD: &str = "spec.submitterPodTemplate";

/// Pods that a RayJob needs according to its spec.
#[derive(Debug)]
pub struct RayJobRequirements {
    cluster: Arc<PodGroupDemands>,
    submitter: Option<Result<PodGroupDemand, DemandError>>,
}

impl RayJobRequirements {
    /// Derives the requirements from the spec of a RayJob.
    pub fn from_spec(job: &RayJob) -> Self {
        Self { cluster: Arc::new(cluster_groups(job)), submitter: submitter_template(job).map(submitter_group) }
    }

    /// Returns the desired pod groups of a RayJob: those of its RayCluster, `cluster`, while it is
    /// not suspended (otherwise those of its spec), and the submitter pod until the `submitter` Job
    /// has finished. For an invalid RayJob, KubeRay creates nothing; a cluster that exists runs on.
    pub fn groups(
        &self,
        job: &RayJob,
        cluster: Option<Arc<PodGroupDemands>>,
        submitter: Option<&BatchJob>,
    ) -> Arc<PodGroupDemands> {
        if deployment_status(job) == Some(VALIDATION_FAILED) {
            return cluster.unwrap_or_else(|| Arc::new(Ok(Vec::new())));
        }
        let cluster = cluster.filter(|_| !is_suspended(job)).unwrap_or_else(|| self.cluster.clone());
        if submitter.is_some_and(batch_job::is_finished) {
            return cluster;
        }
        let Some(group) = &self.submitter else { return cluster };
        Arc::new(cluster.as_ref().clone().and_then(|mut groups| {
            groups.push(group.clone()?);
            Ok(groups)
        }))
    }
}

/// Returns the pod groups of the RayCluster that KubeRay will create (kuberay v1.7.0
/// `ray-operator/controllers/ray/rayjob_controller.go`, `constructRayClusterForRayJob`).
fn cluster_groups(job: &RayJob) -> PodGroupDemands {
    let Some(mut spec) = job.spec.ray_cluster_spec.clone() else {
        return Err(DemandError::ClusterSpecMissing);
    };
    if job.spec.submitter_kind() == SubmitterKind::Sidecar {
        spec.head_group_spec.template = with_submitter_container(&spec.head_group_spec.template);
    }
    let mut cluster = RayCluster::new(&job.name_any(), spec);
    cluster.metadata.namespace = job.namespace();
    cluster.metadata.annotations = job.meta().annotations.clone();
    let groups = raycluster::pod_groups_of_kuberay(&cluster).map_err(|problem| vec![problem]);
    ray_cluster::pod_group_demands(&cluster, &groups).map_err(|error| DemandError::RayJobCluster(Box::new(error)))
}

/// Adds the submitter sidecar container to the head template.
fn with_submitter_container(template: &PodTemplate) -> PodTemplate {
    let mut with = serde_json::Value::clone(&template.0);
    if let Some(containers) = with.pointer_mut("/spec/containers").and_then(serde_json::Value::as_array_mut) {
        containers.extend(serde_json::to_value(default_submitter()));
    }
    PodTemplate(with.into())
}

/// Returns the template of the submitter pod; `None` if the submission mode has no submitter Job.
fn submitter_template(job: &RayJob) -> Option<Result<PodTemplateSpec, DemandError>> {
    if job.spec.submitter_kind() != SubmitterKind::BatchJob {
        return None;
    }
    let Some(template) = &job.spec.submitter_pod_template else {
        let spec = PodSpec {
            containers: vec![default_submitter()],
            restart_policy: Some("Never".to_owned()),
            ..PodSpec::default()
        };
        return Some(Ok(PodTemplateSpec { spec: Some(spec), ..PodTemplateSpec::default() }));
    };
    Some(template.parse().map_err(|source| DemandError::Template { field: SUBMITTER_TEMPLATE_FIELD, source }))
}

fn default_submitter() -> Container {
    let amounts = |(cpu, memory): (&str, &str)| {
        let amount = |name: &str, amount: &str| (name.to_owned(), Quantity(amount.to_owned()));
        Some(BTreeMap::from([amount("cpu", cpu), amount("memory", memory)]))
    };
    Container {
        name: SUBMITTER_CONTAINER.to_owned(),
        resources: Some(ResourceRequirements {
            requests: amounts(SUBMITTER_REQUESTS),
            limits: amounts(SUBMITTER_LIMITS),
            ..ResourceRequirements::default()
        }),
        ..Container::default()
    }
}

fn submitter_group(template: Result<PodTemplateSpec, DemandError>) -> Result<PodGroupDemand, DemandError> {
    let template = template?;
    let spec = template.spec.clone().unwrap_or_default();
    let shape = shape_of(&spec).map_err(|source| DemandError::TemplateRequests {
        field: SUBMITTER_TEMPLATE_FIELD,
        source: Box::new(source),
    })?;
    Ok(PodGroupDemand {
        name: SUBMITTER_GROUP.to_owned(),
        pod_set: SUBMITTER_POD_SET.to_owned(),
        shape,
        count: 1,
        min_count: None,
        min_pods: 1,
        hosts_per_replica: 1,
        template: Arc::new(template),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use sluice_plan::WriteOp;

    fn template(cpu: &str) -> Value {
        json!({"spec": {"containers": [{"name": "ray", "image": "ray", "resources": {"requests": {"cpu": cpu}}}]}})
    }

    fn ray_job(spec: Value) -> RayJob {
        let group = json!({"groupName": "Small", "replicas": 2, "rayStartParams": {}, "template": template("1")});
        let cluster = json!({
            "headGroupSpec": {"rayStartParams": {}, "template": template("500m")}, "workerGroupSpecs": [group],
        });
        let mut whole = json!({"rayClusterSpec": cluster});
        whole.as_object_mut().expect("a spec").extend(spec.as_object().cloned().unwrap_or_default());
        let meta = json!({"name": "train", "namespace": "team", "uid": "u"});
        serde_json::from_value(json!({"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": meta, "spec": whole}))
            .expect("a RayJob")
    }

    /// PodSet and number of pods of each group.
    fn wanted(groups: &PodGroupDemands) -> Vec<(&str, u32)> {
        groups.as_ref().expect("groups").iter().map(|group| (group.pod_set.as_str(), group.count)).collect()
    }

    fn submitter_that_is(condition: &str) -> BatchJob {
        let conditions = json!([{"type": condition, "status": "True"}]);
        serde_json::from_value(json!({"metadata": {}, "status": {"conditions": conditions}})).expect("a Job")
    }

    #[rstest]
    #[case::by_a_job(json!({"submissionMode": "K8sJobMode"}), &[("head", 1), ("small", 2), ("submitter", 1)])]
    #[case::by_a_job_by_default(json!({}), &[("head", 1), ("small", 2), ("submitter", 1)])]
    #[case::by_http(json!({"submissionMode": "HTTPMode"}), &[("head", 1), ("small", 2)])]
    #[case::by_hand(json!({"submissionMode": "InteractiveMode"}), &[("head", 1), ("small", 2)])]
    #[case::by_a_sidecar_of_the_head(json!({"submissionMode": "SidecarMode"}), &[("head", 1), ("small", 2)])]
    fn ray_job_requests_its_future_cluster_and_its_submitter(#[case] spec: Value, #[case] expected: &[(&str, u32)]) {
        let job = ray_job(spec);
        assert_eq!(wanted(&RayJobRequirements::from_spec(&job).groups(&job, None, None)), expected);
    }

    #[test]
    fn submitter_sidecar_is_accounted_to_the_head() {
        let cpu = |mode: &str| {
            let job = ray_job(json!({"submissionMode": mode}));
            let groups = RayJobRequirements::from_spec(&job).groups(&job, None, None);
            let head = groups.as_ref().as_ref().expect("groups")[0].template.spec.clone().expect("a spec");
            let requests = sluice_queue::requests::pod_requests(&head).expect("amounts");
            requests
                .iter()
                .find(|(resource, _)| *resource == "cpu")
                .map(|(_, amount)| amount.display("cpu").to_string())
        };
        assert_eq!((cpu("HTTPMode").as_deref(), cpu("SidecarMode").as_deref()), (Some("500m"), Some("1")));
    }

    #[test]
    fn running_ray_job_requests_the_current_groups_of_its_cluster() {
        let (waiting, running) = (ray_job(json!({"suspend": true})), ray_job(json!({"suspend": false})));
        let needs = RayJobRequirements::from_spec(&running);
        let cluster = || Some(Arc::new(Ok(Vec::new())));
        assert_eq!(wanted(&needs.groups(&running, cluster(), None)), [("submitter", 1)]);
        assert_eq!(wanted(&needs.groups(&waiting, cluster(), None)), [("head", 1), ("small", 2), ("submitter", 1)]);
    }

    #[rstest]
    #[case::before_its_cluster(false, &[])]
    #[case::with_a_cluster(true, &[("head", 1), ("small", 2)])]
    fn invalid_ray_job_requests_only_the_cluster_that_exists(
        #[case] has_cluster: bool,
        #[case] expected: &[(&str, u32)],
    ) {
        let mut job = ray_job(json!({"suspend": true}));
        let needs = RayJobRequirements::from_spec(&job);
        let cluster = has_cluster.then(|| needs.cluster.clone());
        job.status = serde_json::from_value(json!({"jobDeploymentStatus": "ValidationFailed"})).expect("a status");

        assert_eq!(wanted(&needs.groups(&job, cluster, None)), expected);
    }

    #[rstest]
    #[case::that_runs("Suspended", true)]
    #[case::that_is_done("Complete", false)]
    #[case::that_has_failed("Failed", false)]
    fn submitter_is_requested_until_it_has_finished(#[case] condition: &str, #[case] is_wanted: bool) {
        let job = ray_job(json!({}));
        let groups = RayJobRequirements::from_spec(&job).groups(&job, None, Some(&submitter_that_is(condition)));
        assert_eq!(wanted(&groups).contains(&("submitter", 1)), is_wanted);
    }

    #[rstest]
    #[case::no_cluster(json!({"rayClusterSpec": null}), "spec.rayClusterSpec: missing")]
    #[case::bad_amount(json!({"submitterPodTemplate": template("1x")}), "spec.submitterPodTemplate: ")]
    fn error_names_the_invalid_field(#[case] spec: Value, #[case] expected: &str) {
        let job = ray_job(spec);
        let groups = RayJobRequirements::from_spec(&job).groups(&job, None, None);
        let problem = groups.as_ref().as_ref().expect_err("a problem");
        assert!(problem.to_string().starts_with(expected), "{problem}");
    }

    #[test]
    fn conditions_of_a_ray_job_are_stored_in_an_annotation() {
        let mut job = ray_job(json!({}));
        let condition: Condition = serde_json::from_value(json!({
            "type": "sluice.dev/Admitted", "status": "False", "reason": "WaitingForQuota",
            "message": "a: \"2\" short;\n# or so, and that is a message of more than one line and of more than eighty characters",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }))
        .expect("a condition");
        let templates = KnownTemplates::default();
        let shown = |job: &RayJob| {
            let queued = RayJobAdapter::new(job, Arc::new(Ok(Vec::new())), MemberPods::default(), &templates);
            (queued.conditions().to_vec(), queued.set_conditions(vec![condition.clone()], &[]))
        };
        let (before, write) = shown(&job);
        assert_eq!(before, []);
        let Some(WriteOp::Patch(patch)) = write.map(|write| write.op) else { panic!("no condition is written") };
        let text = patch["metadata"]["annotations"][CONDITIONS_ANNOTATION].as_str().expect("a text").to_owned();
        assert!(
            text.starts_with("- type: sluice.dev/Admitted\n  status: \"False\"\n  reason: WaitingForQuota\n"),
            "{text}"
        );

        job.metadata.annotations = Some([(CONDITIONS_ANNOTATION.to_owned(), text)].into());
        assert_eq!(shown(&job), (vec![condition.clone()], None));

        job.metadata.annotations = Some([(CONDITIONS_ANNOTATION.to_owned(), "what?".to_owned())].into());
        let (before, write) = shown(&job);
        assert!(before.is_empty() && write.is_some(), "an unparsable annotation is overwritten");
    }
}
