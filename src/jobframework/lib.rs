//! Job reconciliation: derives Workload slices from a job and starts the pods that they cover.
//!
//! [`plan`] is the same for every kind of job. It derives PodSets from the live members, keeps the
//! slices in line with them, and opens the gate of a member once an admitted slice covers it. A
//! kind of job is one file that implements [`Job`].

mod adoption;
pub mod batch_job;
pub mod conditions;
mod finished;
mod flavor_split;
pub mod gate;
pub mod managed;
pub mod members;
mod on_hold;
pub mod pod_classifier;
pub mod pod_sets;
mod preemptible_parts;
pub mod ray_cluster;
pub mod ray_job;
pub mod ray_service;
pub mod readiness;
mod replacement;
mod scale_up_steps;
mod slice_lifecycle;
pub mod slice_record;
pub mod slices;
pub mod ungate;
pub mod upgrade_feasibility;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube_core::{Resource, ResourceExt};
use serde::Serialize;

use flavor_split::FlavorSplit;
use managed::ManagementState;
use pod_classifier::PodKind;
use slice_record::{DisplacedMember, MemberShare};
use sluice_api::condition;
use sluice_api::kueue::workload::PriorityClassRef;
use sluice_api::kueue::{Workload, names};
use sluice_plan::{EventRecord, ObjectRef, Plan, Write};
use sluice_queue::{self as queue, status};
use sluice_raycluster::NodePlacement;
use ungate::GatedPod;
use upgrade_feasibility::UpgradeFeasibility;

/// Adapter of a kind of job: the reads and writes that reconciliation needs.
pub trait GenericJob {
    /// Returns the reference to the job.
    fn reference(&self) -> ObjectRef;
    /// Returns the metadata of the job.
    fn meta(&self) -> &ObjectMeta;
    /// Returns true if the job should run: it is not being deleted and its owner has not suspended
    /// it.
    fn wants_to_run(&self) -> bool;
    /// Returns the result of a finished job; `None` while it is not finished.
    fn finished(&self) -> Option<JobResult> {
        None
    }
    /// Returns the kind of the job's members.
    fn member_kind(&self) -> &'static str {
        "RayCluster"
    }
    /// Returns the members of the job, oldest first.
    fn members(&self) -> Vec<Member>;
    /// Returns the write that makes every member created from now on start suspended; `None` if the
    /// template already does.
    fn suspend_template(&self) -> Option<Write> {
        None
    }
    /// Opens or closes the gate of the member named `member`; `None` if nothing has to be written.
    fn set_gate_open(&self, member: &str, open: bool) -> Option<Write>;
    /// Explains why pods of an open member run, or could run, beyond `_share`. `None` if pods that
    /// are not covered cannot start: their creator holds them, or they are created with a
    /// scheduling gate.
    fn ungated_overrun(&self, _member: &Member, _share: &MemberShare) -> Option<String> {
        None
    }
    /// Returns the uid of the member that replaces the active one, as the operator of the job
    /// reports it; `None` without an upgrade.
    fn pending_member(&self) -> Option<String> {
        None
    }
    /// Returns true if the active member always stops before the pending member starts.
    fn recreates(&self) -> bool {
        false
    }
    /// Returns the objects that route requests to the members.
    fn routing_objects(&self) -> Vec<ObjectRef> {
        Vec::new()
    }
    /// Returns true if the job retains its quota while its members are exchanged, because another
    /// member requests next what one member releases.
    fn retains_quota(&self) -> bool {
        false
    }
    /// Removes the scheduling gate of a pod of `member`, places the pod on nodes of its assigned
    /// flavors and labels it with its shape and PodSet.
    fn ungate_pod(&self, member: &str, pod: &str, leave: &PodAssignment) -> Option<Write>;
    /// Submits the job to LocalQueue `queue`.
    fn assign_queue(&self, queue: &str) -> Option<Write>;
    /// Returns the conditions that the job has now.
    fn conditions(&self) -> &[Condition];
    /// Sets `conditions` and removes those of the types in `gone`, in one write; `None` if nothing
    /// changes.
    fn set_conditions(&self, conditions: Vec<Condition>, gone: &[&str]) -> Option<Write>;

    /// Returns the LocalQueue that the job is submitted to; `None` if it names none.
    fn queue_name(&self) -> Option<String> {
        queue_name(self.meta()).map(str::to_owned)
    }
}

/// Returns the LocalQueue that a job with this metadata is submitted to; `None` if it names none.
pub fn queue_name(meta: &ObjectMeta) -> Option<&str> {
    let name = meta.labels.as_ref()?.get(names::QUEUE_NAME_LABEL)?;
    Some(name.as_str()).filter(|name| !name.is_empty())
}

/// Sets the queue name label of a job; `None` if it already has that value.
fn patch_queue_name<K>(job: &K, queue: &str) -> Option<Write>
where
    K: Resource<DynamicType = ()> + Clone + PartialEq + Serialize,
{
    let mut joined = job.clone();
    joined.labels_mut().insert(names::QUEUE_NAME_LABEL.to_owned(), queue.to_owned());
    Write::patch(job, &joined)
}

/// A part of a job that runs pods and has a gate: a RayCluster, a RayJob or a batch/v1 Job.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Name, in the namespace of the job.
    pub name: String,
    /// Uid, or the uid of a revision of a RayCluster.
    pub uid: String,
    /// Desired pod groups.
    pub groups: Arc<PodGroupDemands>,
    /// True if the gate is open: the member is not suspended.
    pub is_open: bool,
    /// True if the member is being deleted.
    pub is_terminating: bool,
    /// True if the member is the surge of an upgrade: stopping it delays the upgrade and fails no
    /// requests.
    pub is_surge: bool,
    /// True if the member has to stop because its quota is preempted.
    pub is_preempted: bool,
    /// Number of pods that exist and are not finished, by kind. Includes terminating pods, excludes
    /// pods with a scheduling gate.
    pub live_pods: BTreeMap<PodKind, u32>,
    /// Pods that still have their scheduling gate.
    pub gated_pods: Vec<GatedPod>,
    /// Number of ready pods, by group. Terminating pods do not count.
    pub ready_pods: BTreeMap<String, u32>,
    /// Templates of the kinds of pods that neither the member's spec nor a slice has.
    pub unknown_kinds: BTreeMap<PodKind, PodTemplateSpec>,
}

/// Result of a finished job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobResult {
    /// True if the job succeeded.
    pub succeeded: bool,
    /// Message for the Finished condition of the job's slices.
    pub message: String,
}

/// Desired pod groups of a member, or a message that names the invalid field and its value.
pub type PodGroupDemands = Result<Vec<PodGroupDemand>, String>;

/// Desired pods of one group of a member; all have the same shape.
#[derive(Debug, Clone, PartialEq)]
pub struct PodGroupDemand {
    /// Name of the group: the value of the group label of its pods.
    pub name: String,
    /// Preferred name of the group's PodSet.
    pub pod_set: String,
    /// Hash of the scheduling requirements of each pod; see [`pod_sets::shape_of`].
    pub shape: String,
    /// Number of pods.
    pub count: u32,
    /// Number of pods that the job can start with; `None` if it needs all of them.
    pub min_count: Option<u32>,
    /// Number of pods that preemption of replicas leaves.
    pub min_pods: u32,
    /// Number of pods per replica.
    pub hosts_per_replica: u32,
    /// Template of each pod.
    pub template: Arc<PodTemplateSpec>,
}

impl PodGroupDemand {
    /// Returns the kind of the pods that are created from the current template.
    pub fn kind(&self) -> PodKind {
        PodKind::new(&self.name, &self.shape)
    }
}

/// Assignment that a pod receives when its scheduling gate is removed.
#[derive(Debug, Clone, PartialEq)]
pub struct PodAssignment {
    /// Kind that the pod's quota is accounted under.
    pub kind: PodKind,
    /// PodSet that the pod is counted in.
    pub pod_set: String,
    /// Node selector and tolerations of the flavors assigned to the PodSet.
    pub placement: NodePlacement,
}

/// Priority of a job's Workloads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Priority {
    /// A higher value is scheduled first.
    pub value: i32,
    /// Class that the value comes from; `None` without a class.
    pub class: Option<PriorityClassRef>,
}

/// State that [`plan`] reconciles one job from.
pub struct ReconcileContext<'a> {
    /// The job.
    pub job: &'a dyn GenericJob,
    /// Result of the managed jobs policy for the job.
    pub managed: ManagementState,
    /// All Workloads that the job owns.
    pub workloads: Vec<&'a Workload>,
    /// RayClusters that are deleted while pods that a slice covers still exist.
    pub orphaned_members: Vec<Member>,
    /// Scheduler, to check the feasibility of upgrades.
    pub scheduler: &'a queue::Scheduler,
    /// Priority of the job's Workloads, or the reason why it cannot be resolved.
    pub priority: Result<Priority, String>,
    /// Returns the node selector and tolerations of pods that use these flavors.
    pub placement: &'a dyn Fn(&BTreeSet<String>) -> NodePlacement,
    /// Returns the PodSets of a pending slice that could fit in another flavor than the one that
    /// their running pods use.
    pub flavor_bound_pod_sets: &'a dyn Fn(&Workload) -> BTreeSet<String>,
    /// True if this process creates the pods, so it can delete single replicas.
    pub creates_pods: bool,
    /// Number of consecutive failed writes for the job.
    pub consecutive_failures: u32,
    /// True if slices carry the condition PodsReady. It costs two writes per slice, so it is set
    /// only if the queue acts on it (as in kueue v0.19.2).
    pub reports_pods_ready: bool,
    /// Current time.
    pub now: Timestamp,
}

/// Plans the writes that take a job from its spec to running pods: slices, gates and conditions.
///
/// A misconfigured job gets no new slice and no gate is opened for it. Its admitted slice stays
/// valid, and is still evicted or preempted like any other.
pub fn plan(view: &ReconcileContext<'_>) -> Plan {
    if let Some(finish) = view.job.finished() {
        return finished::plan(view, &finish);
    }
    match view.managed {
        ManagementState::Unmanaged => return unmanage(view),
        ManagementState::OnHold(hold) => return on_hold::plan(view, hold),
        ManagementState::InQueue => {}
    }
    let mut plan = Plan::default();
    let slices = slices::slices_of(view.workloads.iter().copied());
    let mut members = view.job.members();
    preemptible_parts::apply_preemption(&mut members, slices::covering(&slices).and_then(|slice| slice.preempted_part));
    suspend_template(view, &slices, &mut plan);
    let outcome = plan_slices(view, &slices, &members, &mut plan);
    let awaits_decision = adoption::awaits_first_decision(view, &slices, outcome.is_ok(), &mut plan);
    gate::plan(view, &members, slices::covering(&slices), awaits_decision, &mut plan);
    ungate::plan(view, &members, slices::covering(&slices), &mut plan);
    release_evicted(view, &slices, &members, &mut plan);
    readiness::plan(view, &slices, &members, &mut plan);
    match outcome {
        Ok(outlook) => conditions::plan(view, &slices, &members, &outlook, &mut plan),
        Err(problem) => conditions::misconfigured(view, &slices, &problem, &mut plan),
    }
    plan
}

/// Reconciles the slices with the demand of the members and returns the feasibility of an upgrade.
///
/// # Errors
/// Returns a message that names the field and its value if the demand cannot be requested.
fn plan_slices(
    view: &ReconcileContext<'_>,
    slices: &[slices::Slice<'_>],
    members: &[Member],
    plan: &mut Plan,
) -> Result<UpgradeFeasibility, String> {
    // Displaced members request nothing: the quota belongs to their replacement already.
    let living: Vec<_> = slices.iter().filter(|slice| slice.phase != slices::SlicePhase::Finished).collect();
    let aside = replacement::displaced_members(slices::covering(slices), view, members);
    let stays = |member: &&Member| aside.iter().all(|displaced| displaced.uid != member.uid);
    let staying = view.orphaned_members.iter().chain(members).filter(stays);
    let together = pod_sets::desired_pod_sets(staying.clone(), &living, None)?;
    let wanted =
        &match FlavorSplit::detect(view, slices, members).filter(|_| !slices::is_covered(&together.record, slices)) {
            Some(apart) => pod_sets::desired_pod_sets(staying, &living, Some(&apart))?,
            None => together,
        };
    let (priority, time_limit) = (&view.priority.clone()?, max_execution_seconds(view.job)?);
    let request = QuotaRequest {
        view,
        members,
        demand: wanted,
        priority,
        max_execution_seconds: time_limit,
        displaced: &aside,
        feasibility: UpgradeFeasibility::Unknown,
    };
    let request = QuotaRequest { feasibility: upgrade_feasibility::assess(&request, slices), ..request };
    // A restored active member is requested before the pending one, so that it runs again sooner.
    let first = replacement::restored_demand(&request, slices::covering(slices));
    let request = QuotaRequest { demand: first.as_ref().unwrap_or(wanted), ..request };
    slice_lifecycle::plan(&request, slices, plan);
    pod_sets::check_pod_set_limit(&wanted.record).map(|()| request.feasibility)
}

/// Makes every member created from now on start suspended. The template of a job with slices was
/// suspended before, so an open one means that a client bypassed the admission policies.
fn suspend_template(view: &ReconcileContext<'_>, slices: &[slices::Slice<'_>], plan: &mut Plan) {
    let Some(write) = view.job.suspend_template() else { return };
    plan.write(write);
    if !slices.is_empty() {
        let message = "The gate in the template was open and has been closed: objects created from it wait for quota";
        plan.events.push(EventRecord { warning: true, ..view.job.event("TemplateGateClosed", message) });
    }
}

/// Deletes the slices of a job that is not managed (any longer).
fn unmanage(view: &ReconcileContext<'_>) -> Plan {
    let mut plan = Plan::default();
    delete_slices(view, &mut plan);
    conditions::clear(view, &slices::slices_of(view.workloads.iter().copied()), &mut plan);
    plan
}

/// Deletes all slices. Their finalizer holds the quota that pods still use until the pods are gone.
fn delete_slices(view: &ReconcileContext<'_>, plan: &mut Plan) {
    let there = view.workloads.iter().filter(|workload| workload.metadata.deletion_timestamp.is_none());
    plan.writes.extend(there.map(|workload| Write::delete(*workload, false)));
}

/// Demand of a job, to be requested from the queue.
pub(crate) struct QuotaRequest<'a> {
    view: &'a ReconcileContext<'a>,
    members: &'a [Member],
    demand: &'a pod_sets::DesiredPodSets,
    priority: &'a Priority,
    /// Maximum time that the job may be admitted, in seconds.
    max_execution_seconds: Option<i32>,
    /// Members whose replacement holds the quota; nothing is requested for them.
    displaced: &'a [DisplacedMember],
    /// Feasibility of the job's upgrade.
    feasibility: UpgradeFeasibility,
}

/// Reads the maximum execution time of a job from its label, in seconds (kueue v0.19.2
/// `pkg/controller/jobframework/validation.go`, `validateCreateForMaxExecTime`); `None` without the
/// label. A slice that holds quota keeps the limit that it was admitted with.
///
/// # Errors
/// Returns a message if the label is not a positive number of seconds.
fn max_execution_seconds(job: &dyn GenericJob) -> Result<Option<i32>, String> {
    let label = names::MAX_EXEC_TIME_LABEL;
    let Some(text) = job.meta().labels.as_ref().and_then(|labels| labels.get(label)) else { return Ok(None) };
    let limit = text.parse().ok().filter(|limit| *limit > 0);
    limit
        .map(Some)
        .ok_or_else(|| format!("label {label}: {text:?} is not a number of seconds between 1 and {}", i32::MAX))
}

/// Releases the quota of an evicted slice once no pod uses it.
fn release_evicted(view: &ReconcileContext<'_>, slices: &[slices::Slice<'_>], members: &[Member], plan: &mut Plan) {
    let quiet =
        view.orphaned_members.is_empty() && members.iter().all(|member| !member.is_open && member.live_pods.is_empty());
    // A slice that replaced an admitted one is released after that one has finished: otherwise the
    // quota of the replaced slice would be counted again.
    let alone = slices.iter().all(|slice| slice.phase != slices::SlicePhase::Admitted);
    for slice in slices.iter().filter(|slice| slice.phase == slices::SlicePhase::Evicted && quiet && alone) {
        let mut released = status::released(slice.workload, view.now);
        readiness::reset(&mut released, view.now);
        plan.write(Write::patch_status(slice.workload, &released));
    }
}

/// Removes the finalizer of a Workload that is being deleted, once no pod uses its quota.
pub fn release_finalizer(workload: &Workload, has_pods: bool) -> Plan {
    let mut plan = Plan::default();
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is_true = |kind| condition::is_true(conditions, kind);
    let holds_quota = is_true(names::QUOTA_RESERVED) && !is_true(names::FINISHED);
    if workload.metadata.deletion_timestamp.is_some() && !(holds_quota && has_pods) {
        let mut released = workload.clone();
        if let Some(finalizers) = &mut released.metadata.finalizers {
            finalizers.retain(|finalizer| finalizer != names::RESOURCE_IN_USE_FINALIZER);
        }
        plan.write(Write::patch(workload, &released));
    }
    plan
}

impl dyn GenericJob + '_ {
    /// Returns a Normal Event about the job.
    pub fn event(&self, reason: &str, message: &str) -> EventRecord {
        EventRecord {
            regarding: self.reference(),
            uid: self.meta().uid.clone().unwrap_or_default(),
            warning: false,
            reason: reason.to_owned(),
            message: message.to_owned(),
            only_if_written: None,
        }
    }
}

#[cfg(test)]
mod tests;
