//! A Job of Kubernetes (`batch/v1`) as a job: it is its own only member.
//!
//! Its gate is `spec.suspend`; and its pods are born behind the scheduling gate of elastic jobs, so that a Job that is granted
//! fewer pods than it makes, or that is given more parallelism while it runs, never runs more of them than are paid for. Kueue
//! v0.19.2 (`pkg/controller/jobs/job/job_controller.go`) gates the pods of elastic Jobs only, and lowers `spec.parallelism` of
//! others while they are granted less; here the spec stays as its owner wrote it.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::{Job as BatchJob, JobCondition, JobSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube_core::ResourceExt;

use super::census::Molds;
use super::members::{self, Pods, Who};
use super::record::MemberShare;
use super::{Finish, Group, Groups, Job, Leave, Member, pod_sets, report};
use sluice_api::kueue::names::{
    DEFAULT_POD_SET, MAX_EXEC_TIME_LABEL, MIN_PARALLELISM_ANNOTATION, PRIORITY_CLASS_LABEL, QUEUE_NAME_LABEL,
};
use sluice_api::kueue::scheduling_gate;
use sluice_plan::{ObjectRef, Write};

/// The value of `spec.managedBy` that means the Job controller of Kubernetes; so does no value.
const CONTROLLER: &str = "kubernetes.io/job-controller";
/// Label of a pod that a Job has made: the Job.
pub const JOB_NAME_LABEL: &str = "batch.kubernetes.io/job-name";
/// The group that its pods are in: they have no label that names one.
const GROUP: &str = "";
/// Conditions that end a Job.
const COMPLETE: &str = "Complete";
const FAILED: &str = "Failed";

/// A Job of Kubernetes, with what runs for it.
pub struct BatchJobJob<'a> {
    job: &'a BatchJob,
    /// Its metadata, with what it inherits.
    meta: Cow<'a, ObjectMeta>,
    pods: Pods<'a>,
    molds: &'a Molds<'a>,
    conditions: Vec<Condition>,
}

impl<'a> BatchJobJob<'a> {
    /// A Job, its pods, and what these may have been made from before.
    pub fn new(job: &'a BatchJob, pods: Pods<'a>, molds: &'a Molds<'a>) -> Self {
        let shown = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let conditions = shown.map(|shown| known(shown, job.metadata.generation)).collect();
        Self { job, meta: Cow::Borrowed(&job.metadata), pods, molds, conditions }
    }

    /// The same, where the labels of another object say how it is queued, as far as its own don't.
    pub fn queued_as(mut self, other: &ObjectMeta) -> Self {
        let meta = self.meta.to_mut();
        let labels = meta.labels.get_or_insert_default();
        for label in [QUEUE_NAME_LABEL, PRIORITY_CLASS_LABEL, MAX_EXEC_TIME_LABEL] {
            if let Some(value) = other.labels.as_ref().and_then(|others| others.get(label)) {
                labels.entry(label.to_owned()).or_insert_with(|| value.clone());
            }
        }
        self
    }

    /// The Job with another spec.
    fn with(&self, change: impl FnOnce(&mut JobSpec)) -> Option<Write> {
        let mut changed = self.job.clone();
        change(changed.spec.get_or_insert_default());
        Write::patch(self.job, &changed)
    }

    fn is_suspended(&self) -> bool {
        self.job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true))
    }

    fn has_gated_template(&self) -> bool {
        let spec = self.job.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        spec.is_some_and(scheduling_gate::has)
    }
}

impl Job for BatchJobJob<'_> {
    fn reference(&self) -> ObjectRef {
        ObjectRef::of(self.job)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn wants_to_run(&self) -> bool {
        self.job.metadata.deletion_timestamp.is_none()
    }

    fn finished(&self) -> Option<Finish> {
        let end = end(self.job)?;
        Some(Finish { succeeded: end.type_ == COMPLETE, message: end.message.clone().unwrap_or_default() })
    }

    fn member_kind(&self) -> &'static str {
        "Job"
    }

    fn members(&self) -> Vec<Member> {
        let who = Who {
            name: self.job.name_any(),
            uid: self.job.uid().unwrap_or_default(),
            open: !self.is_suspended(),
            going: self.job.metadata.deletion_timestamp.is_some(),
        };
        vec![members::of(who, &self.pods, Arc::new(groups(self.job)), self.molds)]
    }

    /// The template can be changed while the Job is suspended and, by its status, hasn't started: else the status has to forget
    /// that, as Kueue has it forget it.
    fn hold_template_gate(&self) -> Option<Write> {
        if self.has_gated_template() || !self.is_suspended() || !self.wants_to_run() {
            return None;
        }
        let status = self.job.status.as_ref();
        if status.is_some_and(|status| status.active.unwrap_or(0) > 0) {
            return None;
        }
        if status.is_some_and(|status| status.start_time.is_some()) {
            let mut stopped = status.cloned().unwrap_or_default();
            stopped.start_time = None;
            return Write::patch_status_from(self.job, status, &stopped);
        }
        self.with(|spec| scheduling_gate::set(spec.template.spec.get_or_insert_default(), true))
    }

    /// It isn't opened before its pods would be born gated.
    fn set_open(&self, _: &str, open: bool) -> Option<Write> {
        if open && !self.has_gated_template() {
            return None;
        }
        self.with(|spec| spec.suspend = Some(!open))
    }

    /// Pods that were made before the template had its gate run as they are: the Job controller may see a Job later than it is
    /// suspended, given the gate and opened.
    fn unheld(&self, member: &Member, share: &MemberShare) -> Option<String> {
        if !self.has_gated_template() {
            let why = "its pods are not born behind a scheduling gate, so more of them could run than are paid for";
            return Some(why.to_owned());
        }
        let run: u32 = member.live_pods.values().sum();
        let unpaid =
            member.live_pods.iter().map(|(kind, run)| run.saturating_sub(share.count(&kind.group, &kind.shape)));
        let unpaid: u32 = unpaid.sum();
        (unpaid > 0).then(|| {
            format!("{unpaid} of its {run} pods that run are not paid for: they were not born behind a scheduling gate")
        })
    }

    fn release(&self, _: &str, pod: &str, leave: &Leave) -> Option<Write> {
        members::released(&self.pods, pod, leave)
    }

    fn join(&self, queue: &str) -> Option<Write> {
        super::joined(self.job, queue)
    }

    fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    fn show(&self, conditions: Vec<Condition>, gone: &[&str]) -> Option<Write> {
        if report::shows(&self.conditions, &conditions, gone) {
            return None;
        }
        let mut shown = self.conditions.clone();
        report::show_in(&mut shown, conditions, gone);
        let held = self.job.status.as_ref().and_then(|status| status.conditions.as_ref());
        let told = |shown: Condition| {
            let same = held.into_iter().flatten().find(|held| known(held, shown.observed_generation) == shown);
            same.cloned().unwrap_or_else(|| job_condition(shown))
        };
        let mut status = self.job.status.clone().unwrap_or_default();
        status.conditions = Some(shown.into_iter().map(told).collect());
        Write::patch_status_from(self.job, self.job.status.as_ref(), &status)
    }
}

/// A condition as those of other kinds are. It says of no generation, and holds for the present one.
fn known(shown: &JobCondition, generation: Option<i64>) -> Condition {
    Condition {
        type_: shown.type_.clone(),
        status: shown.status.clone(),
        reason: shown.reason.clone().unwrap_or_default(),
        message: shown.message.clone().unwrap_or_default(),
        last_transition_time: shown.last_transition_time.clone().unwrap_or_else(epoch),
        observed_generation: generation,
    }
}

fn job_condition(condition: Condition) -> JobCondition {
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

/// Whether a Job has ended.
pub fn is_over(job: &BatchJob) -> bool {
    end(job).is_some()
}

/// What says how a Job has ended.
fn end(job: &BatchJob) -> Option<&JobCondition> {
    let mut conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.find(|shown| [COMPLETE, FAILED].contains(&shown.type_.as_str()) && shown.status == "True")
}

/// Whether `spec.managedBy` leaves a Job to another controller than that of Kubernetes.
pub fn is_managed_elsewhere(managed_by: Option<&str>) -> bool {
    managed_by.is_some_and(|manager| manager != CONTROLLER)
}

/// Whether a Job is a part of something of Ray, which is charged for it.
pub fn is_of_ray(job: &BatchJob) -> bool {
    let is_ray = |api_version: &str| api_version.starts_with("ray.io/");
    job.owner_references().iter().any(|owner| owner.controller == Some(true) && is_ray(&owner.api_version))
}

/// The PriorityClass of its pods.
pub fn pod_class(job: &BatchJob) -> Option<&str> {
    job.spec.as_ref()?.template.spec.as_ref()?.priority_class_name.as_deref().filter(|name| !name.is_empty())
}

/// The pods that a Job wants at once: no more than are left to be completed (kueue v0.19.2
/// `pkg/controller/jobs/job/job_controller.go`, `podsCount` and `ReclaimablePods`).
fn groups(job: &BatchJob) -> Groups {
    let spec = job.spec.clone().unwrap_or_default();
    let parallelism = spec.parallelism.unwrap_or(1);
    let succeeded = job.status.as_ref().and_then(|status| status.succeeded).unwrap_or(0);
    let left = spec.completions.map_or(parallelism, |completions| completions.saturating_sub(succeeded));
    let count = u32::try_from(parallelism.min(left)).unwrap_or(0);
    let mut template = spec.template;
    let pod = template.spec.get_or_insert_default();
    scheduling_gate::set(pod, false);
    let shape = pod_sets::shape_of(pod).map_err(|error| format!("spec.template: {error}"))?;
    Ok(vec![Group {
        name: GROUP.to_owned(),
        pod_set: DEFAULT_POD_SET.to_owned(),
        shape,
        count,
        min_count: min_parallelism(job, parallelism)?,
        fewest: count,
        hosts: 1,
        template: Arc::new(template),
    }])
}

/// The fewest pods that a Job can do with at the start (kueue v0.19.2 `pkg/controller/jobs/job/job_webhook.go`,
/// `validatePartialAdmissionCreate`).
fn min_parallelism(job: &BatchJob, parallelism: i32) -> Result<Option<u32>, String> {
    let Some(text) = job.annotations().get(MIN_PARALLELISM_ANNOTATION) else { return Ok(None) };
    let fewest = text.parse::<u32>().ok().filter(|fewest| (1..parallelism.unsigned_abs()).contains(fewest));
    let most = parallelism - 1;
    fewest.map(Some).ok_or_else(|| {
        format!(
            "annotation {MIN_PARALLELISM_ANNOTATION}: {text:?} is not a number of pods between 1 and {most}, one less than \
             spec.parallelism"
        )
    })
}
