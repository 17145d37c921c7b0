//! batch/v1 Job as a job: it has one member, itself.
//!
//! Its gate is `spec.suspend`. Its pods are created with the scheduling gate of elastic jobs, so a
//! Job that is granted fewer pods than it creates, or whose parallelism grows while it runs, never
//! runs more pods than its slice covers. Kueue v0.19.2
//! (`pkg/controller/jobs/job/job_controller.go`) gates the pods of elastic Jobs only, and lowers
//! `spec.parallelism` of other Jobs while they are granted less. Here the spec stays as written.

mod pod_demand;
mod wanted_pods;

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job as BatchJob, JobCondition, JobSpec, JobStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube_core::ResourceExt;

use super::conditions;
use super::generic_job::GenericJob;
use super::members::{self, MemberIdentity, MemberPods};
use super::pod_classifier::KnownTemplates;
use super::slice_record::MemberShare;
use super::types::{Gate, JobResult, Member, PodAssignment};
use pod_demand::groups;
use sluice_api::kueue::names::{MAX_EXEC_TIME_LABEL, PRIORITY_CLASS_LABEL, QUEUE_NAME_LABEL};
use sluice_api::kueue::scheduling_gate;
use sluice_plan::{ObjectRef, Write};
use wanted_pods::{FINISHING, is_counted_success};

/// Value of `spec.managedBy` for the built-in Job controller; an absent value means the same.
const JOB_CONTROLLER: &str = "kubernetes.io/job-controller";
/// Label of a Job's pods with the name of the Job.
pub const JOB_NAME_LABEL: &str = "batch.kubernetes.io/job-name";
/// Label of a Job's pods with the uid of the Job.
pub const CONTROLLER_UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
/// Group of a Job's pods: they have no group label.
const POD_GROUP: &str = "";
/// Condition of a Job that succeeded.
const COMPLETE: &str = "Complete";
/// Condition of a Job that failed.
const FAILED: &str = "Failed";

/// Adapter of a batch/v1 Job and its pods.
pub struct BatchJobAdapter<'a> {
    job: &'a BatchJob,
    /// Metadata of the Job, with inherited labels.
    meta: Cow<'a, ObjectMeta>,
    pods: MemberPods<'a>,
    known_templates: &'a KnownTemplates<'a>,
    conditions: Vec<Condition>,
}

impl<'a> BatchJobAdapter<'a> {
    /// Creates the adapter of a Job with these pods and the templates that older pods may come
    /// from.
    pub fn new(job: &'a BatchJob, mut pods: MemberPods<'a>, templates: &'a KnownTemplates<'a>) -> Self {
        pods.observed.retain(|pod| !is_counted_success(job, pod));
        let shown = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let conditions = shown.map(|shown| to_condition(shown, job.metadata.generation)).collect();
        Self { job, meta: Cow::Borrowed(&job.metadata), pods, known_templates: templates, conditions }
    }

    /// Inherits the queueing labels of `other` that the Job does not have.
    pub fn inherit_queue_labels(mut self, other: &ObjectMeta) -> Self {
        let meta = self.meta.to_mut();
        let labels = meta.labels.get_or_insert_default();
        for label in [QUEUE_NAME_LABEL, PRIORITY_CLASS_LABEL, MAX_EXEC_TIME_LABEL] {
            if let Some(value) = other.labels.as_ref().and_then(|others| others.get(label)) {
                labels.entry(label.to_owned()).or_insert_with(|| value.clone());
            }
        }
        self
    }

    /// Returns the patch for a changed spec; `None` if nothing changes.
    fn patch_spec(&self, change: impl FnOnce(&mut JobSpec)) -> Option<Write> {
        let mut changed = self.job.clone();
        change(changed.spec.get_or_insert_default());
        Write::patch(self.job, &changed)
    }

    fn is_suspended(&self) -> bool {
        is_suspended(self.job)
    }

    fn has_gated_template(&self) -> bool {
        let spec = self.job.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        spec.is_some_and(scheduling_gate::has_gate)
    }
}

impl GenericJob for BatchJobAdapter<'_> {
    fn reference(&self) -> ObjectRef {
        ObjectRef::of(self.job)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    /// A Job with parallelism 0 is paused by its owner.
    fn wants_to_run(&self) -> bool {
        let is_paused = self.job.spec.as_ref().is_some_and(|spec| spec.parallelism == Some(0));
        self.job.metadata.deletion_timestamp.is_none() && !is_paused
    }

    fn finished(&self) -> Option<JobResult> {
        let end = finished_condition(self.job)?;
        Some(JobResult { succeeded: end.type_ == COMPLETE, message: end.message.clone().unwrap_or_default() })
    }

    /// A Job that has met its success or failure criteria while it was suspended becomes finished once it is
    /// resumed (kubernetes v1.36 `pkg/apis/batch/validation/validation.go`: it needs a start time).
    fn is_finishing(&self) -> bool {
        true_condition(self.job, &FINISHING).is_some()
    }

    fn member_kind(&self) -> &'static str {
        "Job"
    }

    fn members(&self) -> Vec<Member> {
        let identity = MemberIdentity {
            name: self.job.name_any(),
            uid: self.job.uid().unwrap_or_default(),
            is_open: !self.is_suspended(),
            is_terminating: self.job.metadata.deletion_timestamp.is_some(),
        };
        vec![members::build_member(identity, &self.pods, Arc::new(groups(self.job)), self.known_templates)]
    }

    /// Opens the gate and adds the scheduling gate to the template in one write, unless the
    /// mutating webhook added it. The template is mutable only while the Job is suspended and
    /// `status.startTime` is not set, so the start time is reset first, as Kueue does. Waits until the
    /// Job controller has observed the suspension: it may still create pods from the template
    /// without a gate, unless the Job is finishing.
    fn set_gate(&self, _: &str, gate: Gate) -> Option<Write> {
        if gate == Gate::Closed {
            return self.patch_spec(|spec| spec.suspend = Some(true));
        }
        let is_gated = self.has_gated_template();
        if !is_gated && !self.is_finishing() && !is_suspension_observed(self.job) {
            return None;
        }
        if let Some(status) = self.job.status.as_ref().filter(|_| !is_gated) {
            if status.active.unwrap_or(0) > 0 {
                return None;
            }
            if status.start_time.is_some() {
                let stopped = JobStatus { start_time: None, ..status.clone() };
                return Write::patch_status_from(self.job, Some(status), &stopped);
            }
        }
        self.patch_spec(|spec| {
            if !is_gated {
                scheduling_gate::add(spec.template.spec.get_or_insert_default());
            }
            spec.suspend = Some(false);
        })
    }

    /// Pods created before the template had its scheduling gate run ungated: the Job controller may
    /// observe the Job only after it was suspended, gated and opened.
    fn ungated_overrun(&self, member: &Member, share: &MemberShare) -> Option<String> {
        if member.is_open && !self.has_gated_template() {
            let why = "its pod template has no scheduling gate, so more pods could run than its slice covers";
            return Some(why.to_owned());
        }
        let run: u32 = member.live_pods.values().sum();
        let uncovered =
            member.live_pods.iter().map(|(kind, run)| run.saturating_sub(share.count(&kind.group, &kind.shape)));
        let uncovered: u32 = uncovered.sum();
        (uncovered > 0).then(|| {
            format!(
                "{uncovered} of its {run} running pods are not covered: they were created without a scheduling gate"
            )
        })
    }

    fn has_complete_templates(&self) -> bool {
        true
    }

    /// A Job whose parallelism grew beyond its slice while it was suspended starts with what the slice
    /// covers, as one that grows while it runs continues with that. A slice is requested for all pods,
    /// so this is not how a Job starts first.
    fn starts_in_part(&self) -> bool {
        true
    }

    /// Without completions, a Job is complete once a pod has succeeded and none is active (kubernetes
    /// v1.36 `pkg/controller/job/job_controller.go`, `syncJob`).
    fn suspension_consequence(&self) -> Option<String> {
        let spec = self.job.spec.as_ref()?;
        let status = self.job.status.as_ref()?;
        let (succeeded, active) = (status.succeeded.unwrap_or(0), status.active.unwrap_or(0));
        (spec.completions.is_none() && succeeded > 0 && active > 0).then(|| {
            format!(
                "{active} unfinished pods are stopped, and Kubernetes counts the Job as complete without them, because \
                 {succeeded} succeeded and spec.completions is unset"
            )
        })
    }

    fn ungate_pod(&self, _: &str, pod: &str, leave: &PodAssignment) -> Option<Write> {
        members::ungated(&self.pods, pod, leave)
    }

    /// The template of a Job that has started is immutable: its pods are ungated one by one.
    fn remove_gates(&self) -> Vec<Write> {
        let has_started = self.job.status.as_ref().is_some_and(|status| status.start_time.is_some());
        let remove = |spec: &mut JobSpec| scheduling_gate::remove(spec.template.spec.get_or_insert_default());
        let template =
            (self.is_suspended() && !has_started && self.has_gated_template()).then(|| self.patch_spec(remove));
        template.flatten().into_iter().chain(members::remove_scheduling_gates(&self.pods)).collect()
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
        let held = self.job.status.as_ref().and_then(|status| status.conditions.as_ref());
        // An unchanged condition keeps fields that `Condition` lacks, like lastProbeTime.
        let to_job_condition = |shown: Condition| {
            let same = held.into_iter().flatten().find(|held| to_condition(held, shown.observed_generation) == shown);
            same.cloned().unwrap_or_else(|| to_job_condition(shown))
        };
        let mut status = self.job.status.clone().unwrap_or_default();
        status.conditions = Some(shown.into_iter().map(to_job_condition).collect());
        Write::patch_status_from(self.job, self.job.status.as_ref(), &status)
    }
}

/// Converts a Job condition. It has no observed generation and counts for the current `generation`.
fn to_condition(shown: &JobCondition, generation: Option<i64>) -> Condition {
    Condition {
        type_: shown.type_.clone(),
        status: shown.status.clone(),
        reason: shown.reason.clone().unwrap_or_default(),
        message: shown.message.clone().unwrap_or_default(),
        last_transition_time: shown.last_transition_time.clone().unwrap_or_else(epoch),
        observed_generation: generation,
    }
}

fn to_job_condition(condition: Condition) -> JobCondition {
    JobCondition {
        type_: condition.type_,
        status: condition.status,
        reason: Some(condition.reason),
        message: Some(condition.message),
        last_probe_time: None,
        last_transition_time: Some(condition.last_transition_time),
    }
}

fn epoch() -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH)
}

/// Returns true if `spec.suspend` of a Job is set.
pub fn is_suspended(job: &BatchJob) -> bool {
    job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true))
}

/// Returns true if the Job controller has observed that a suspended Job is suspended: it was created
/// so, or has that condition (Kubernetes 1.36 `pkg/controller/job/job_controller.go`, `syncJob`).
fn is_suspension_observed(job: &BatchJob) -> bool {
    job.metadata.generation == Some(1) || true_condition(job, &["Suspended"]).is_some()
}

/// Returns true if a Job has finished.
pub fn is_finished(job: &BatchJob) -> bool {
    finished_condition(job).is_some()
}

/// Returns the condition of a finished Job: Complete or Failed; `None` while it is not finished.
fn finished_condition(job: &BatchJob) -> Option<&JobCondition> {
    true_condition(job, &[COMPLETE, FAILED])
}

/// Returns the first condition of one of these types that is True.
fn true_condition<'a>(job: &'a BatchJob, types: &[&str]) -> Option<&'a JobCondition> {
    let mut conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|shown| types.contains(&shown.type_.as_str()) && shown.status == "True")
}

/// Returns true if `spec.managedBy` names another controller than the built-in Job controller.
pub fn is_managed_elsewhere(managed_by: Option<&str>) -> bool {
    managed_by.is_some_and(|manager| manager != JOB_CONTROLLER)
}

/// Returns the PriorityClass of a Job's pods; `None` if the template names none.
pub fn pod_priority_class(job: &BatchJob) -> Option<&str> {
    job.spec.as_ref()?.template.spec.as_ref()?.priority_class_name.as_deref().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use rstest::rstest;
    use serde_json::{Value, json};
    use sluice_api::kueue::names::ELASTIC_JOB_GATE;
    use sluice_plan::WriteOp;

    use super::*;

    /// Returns the operation that sets the gate of a Job with these fields.
    fn set_gate(gate: Gate, suspend: bool, gates: Value, status: Value) -> Option<WriteOp> {
        let job: BatchJob = serde_json::from_value(json!({
            "metadata": {"name": "sum", "namespace": "team", "uid": "1", "resourceVersion": "7", "generation": 2},
            "spec": {"suspend": suspend, "template": {"spec": {"containers": [], "schedulingGates": gates}}},
            "status": status,
        }))
        .expect("a Job");
        let (pods, templates) = (
            MemberPods { observed: Vec::new(), expected: Vec::new(), unanswered_ungatings: Default::default() },
            KnownTemplates::from_workloads([]),
        );
        Some(BatchJobAdapter::new(&job, pods, &templates).set_gate("sum", gate)?.op)
    }

    #[rstest]
    #[case::not_recorded(json!(["batch.kubernetes.io/job-tracking"]), json!([]), "Succeeded", 1)]
    #[case::recorded(json!(["batch.kubernetes.io/job-tracking"]), json!(["p"]), "Succeeded", 0)]
    #[case::other_pod_is_recorded(json!(["batch.kubernetes.io/job-tracking"]), json!(["q"]), "Succeeded", 1)]
    #[case::counted(json!([]), json!([]), "Succeeded", 0)]
    #[case::runs(json!(["batch.kubernetes.io/job-tracking"]), json!([]), "Running", 1)]
    fn pod_is_ready_until_its_success_is_counted(
        #[case] finalizers: Value,
        #[case] recorded: Value,
        #[case] phase: &str,
        #[case] ready: u32,
    ) {
        let job: BatchJob = serde_json::from_value(json!({
            "metadata": {"name": "sum"},
            "spec": {"template": {"spec": {"containers": []}}},
            "status": {"uncountedTerminatedPods": {"succeeded": recorded}},
        }))
        .expect("a Job");
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "uid": "p", "finalizers": finalizers},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .expect("a Pod");
        let pods = MemberPods { observed: vec![&pod], ..MemberPods::default() };

        let member = BatchJobAdapter::new(&job, pods, &KnownTemplates::from_workloads([])).members().remove(0);

        assert_eq!(member.ready_pods.get(POD_GROUP).copied().unwrap_or(0), ready);
    }

    fn gates(names: &[&str]) -> Value {
        names.iter().map(|name| json!({"name": name})).collect()
    }

    fn patch(spec: Value) -> Option<WriteOp> {
        Some(WriteOp::Patch(json!({"metadata": {"resourceVersion": "7"}, "spec": spec})))
    }

    fn gated(names: &[&str]) -> Value {
        json!({"suspend": false, "template": {"spec": {"schedulingGates": gates(names)}}})
    }

    /// Returns the status of a Job whose suspension the Job controller has observed.
    fn suspended(mut status: Value) -> Value {
        status["conditions"] = json!([{"type": "Suspended", "status": "True"}]);
        status
    }

    #[rstest]
    #[case::without_the_webhook(&[], suspended(json!({})), patch(gated(&[ELASTIC_JOB_GATE])))]
    #[case::without_the_webhook_and_not_observed(&[], json!({}), None)]
    #[case::resumed_and_not_observed_again(&[], json!({"conditions": [{"type": "Suspended", "status": "False"}]}), None)]
    #[case::other_gates_stay(&["topology"], suspended(json!({})), patch(gated(&["topology", ELASTIC_JOB_GATE])))]
    #[case::gated_by_the_webhook(&[ELASTIC_JOB_GATE, "topology"], json!({}), patch(json!({"suspend": false})))]
    #[case::resumed(&[ELASTIC_JOB_GATE], json!({"startTime": "2026-01-01T00:00:00Z"}), patch(json!({"suspend": false})))]
    #[case::immutable_template(
        &[],
        suspended(json!({"startTime": "2026-01-01T00:00:00Z"})),
        Some(WriteOp::PatchStatus(json!({"metadata": {"resourceVersion": "7"}, "status": {"startTime": null}}))),
    )]
    #[case::pods_still_run(&[], suspended(json!({"active": 1})), None)]
    #[case::finishing_before_the_suspension_is_observed(
        &[],
        json!({"conditions": [{"type": "FailureTarget", "status": "True"}]}),
        patch(gated(&[ELASTIC_JOB_GATE])),
    )]
    fn job_is_resumed_only_with_a_gated_template(
        #[case] before: &[&str],
        #[case] status: Value,
        #[case] expected: Option<WriteOp>,
    ) {
        assert_eq!(set_gate(Gate::Open, true, gates(before), status), expected);
    }

    #[rstest]
    #[case::created_suspended(1, json!({}), true)]
    #[case::suspended_since(2, json!({}), false)]
    #[case::suspended_since_and_observed(2, suspended(json!({})), true)]
    fn suspension_is_observed(#[case] generation: i64, #[case] status: Value, #[case] expected: bool) {
        let job: BatchJob = serde_json::from_value(json!({
            "metadata": {"name": "sum", "generation": generation},
            "spec": {"suspend": true, "template": {"spec": {"containers": []}}},
            "status": status,
        }))
        .expect("a Job");
        assert_eq!(is_suspension_observed(&job), expected);
    }

    #[test]
    fn template_stays_as_it_is_when_a_job_is_suspended() {
        assert_eq!(set_gate(Gate::Closed, false, gates(&[]), json!({"active": 1})), patch(json!({"suspend": true})));
    }
}
