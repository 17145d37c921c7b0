//! What a job needs of the queue, and what the queue lets it do.
//!
//! [`plan`] is the same for every kind of job: PodSets from the live members, slices that follow them, and the gate that
//! opens a member once an admitted slice covers it. A kind of job is one file that implements [`Job`].

mod apart;
pub mod batch_job;
pub mod census;
mod finished;
pub mod fitting;
pub mod gate;
mod growth;
mod held;
mod instead;
pub mod managed;
pub mod members;
mod newcomer;
mod parts;
pub mod pod_sets;
pub mod ray_cluster;
pub mod ray_job;
pub mod ray_service;
pub mod readiness;
pub mod record;
pub mod report;
pub mod slices;
mod succession;
pub mod ungate;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube_core::{Resource, ResourceExt};
use serde::Serialize;

use sluice_api::condition;
use sluice_api::kueue::workload::PriorityClassRef;
use sluice_api::kueue::{Workload, names};
use sluice_plan::{Note, ObjectRef, Plan, Write};
use sluice_queue::{self as queue, status};
use sluice_raycluster::Placement;
use apart::Apart;
use census::PodKind;
use fitting::Outlook;
use managed::Managed;
use record::{Displaced, MemberShare};
use ungate::GatedPod;

/// A kind of job: what the framework needs to know of it, and to do to it.
pub trait Job {
    /// The reference to the job.
    fn reference(&self) -> ObjectRef;
    /// Its metadata.
    fn meta(&self) -> &ObjectMeta;
    /// Whether it wants to run at all: it isn't being deleted, and its owner hasn't suspended it.
    fn wants_to_run(&self) -> bool;
    /// How it has ended, if it has.
    fn finished(&self) -> Option<Finish> {
        None
    }
    /// The kind of its members.
    fn member_kind(&self) -> &'static str {
        "RayCluster"
    }
    /// What runs pods for it, the oldest first.
    fn members(&self) -> Vec<Member>;
    /// What makes every later member be born suspended, if that isn't so already.
    fn hold_template_gate(&self) -> Option<Write> {
        None
    }
    /// Opens or closes the gate of the member with this name.
    fn set_open(&self, member: &str, open: bool) -> Option<Write>;
    /// Why pods of an open member of which this share is paid for run unpaid, or could; `None` where those that are not paid for
    /// are held back: by who makes them, or by a gate that they are born with.
    fn unheld(&self, _member: &Member, _share: &MemberShare) -> Option<String> {
        None
    }
    /// The uid of the member that is to take the place of the one that serves, as its operator says.
    fn next(&self) -> Option<String> {
        None
    }
    /// Whether what serves always stops before that starts.
    fn starts_anew(&self) -> bool {
        false
    }
    /// What says to which of its members requests are sent.
    fn routed_by(&self) -> Vec<ObjectRef> {
        Vec::new()
    }
    /// Whether what it holds stays its own while its members change places: what one gives back is what another asks for next.
    fn keeps_what_it_holds(&self) -> bool {
        false
    }
    /// Takes the scheduling gate from a pod of a member, sends it to where its quota is, and labels it with what it is.
    fn release(&self, member: &str, pod: &str, leave: &Leave) -> Option<Write>;
    /// Puts it into this LocalQueue.
    fn join(&self, queue: &str) -> Option<Write>;
    /// The conditions that are shown on it.
    fn conditions(&self) -> &[Condition];
    /// Shows these conditions on the job, and none of the types `gone`, all in one write; unless that is so already.
    fn show(&self, conditions: Vec<Condition>, gone: &[&str]) -> Option<Write>;

    /// The LocalQueue that it is submitted to.
    fn queue_name(&self) -> Option<String> {
        queue_name(self.meta()).map(str::to_owned)
    }
}

/// The LocalQueue that a job with this metadata is submitted to.
pub fn queue_name(meta: &ObjectMeta) -> Option<&str> {
    let name = meta.labels.as_ref()?.get(names::QUEUE_NAME_LABEL)?;
    Some(name.as_str()).filter(|name| !name.is_empty())
}

/// Puts a job into this LocalQueue.
fn joined<K>(job: &K, queue: &str) -> Option<Write>
where
    K: Resource<DynamicType = ()> + Clone + PartialEq + Serialize,
{
    let mut joined = job.clone();
    joined.labels_mut().insert(names::QUEUE_NAME_LABEL.to_owned(), queue.to_owned());
    Write::patch(job, &joined)
}

/// What runs pods for a job, behind a gate of its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    /// Its name, in the job's namespace.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The groups of pods that it wants.
    pub groups: Arc<Groups>,
    /// Whether its gate is open.
    pub open: bool,
    /// Whether it is being deleted.
    pub going: bool,
    /// Whether it is what an upgrade holds on top of what serves: nobody misses it but those who wait for the upgrade.
    pub surge: bool,
    /// Whether it has to stop, because others get its quota.
    pub preempted: bool,
    /// Pods of it that exist and haven't ended, by what they are; those that are being deleted included, but none behind a
    /// scheduling gate.
    pub live_pods: BTreeMap<PodKind, u32>,
    /// Pods of it that wait behind their scheduling gates.
    pub gated: Vec<GatedPod>,
    /// Pods of it that are ready, by group; those that are being deleted are not.
    pub ready_pods: BTreeMap<String, u32>,
    /// What those of its pods look like whose kind follows neither from its spec nor from a slice.
    pub strangers: BTreeMap<PodKind, PodTemplateSpec>,
}

/// How a job has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    /// Whether it did what it was to do.
    pub succeeded: bool,
    /// What is said of that.
    pub message: String,
}

/// The groups of pods that a member wants; or why its spec doesn't say, in a sentence that names the field and the value.
pub type Groups = Result<Vec<Group>, String>;

/// Pods of one shape that a member wants.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// The group, as its pods are labelled.
    pub name: String,
    /// The name that its PodSet has, if that is free.
    pub pod_set: String,
    /// What the scheduler is asked for by each pod, hashed; see [`pod_sets::shape_of`].
    pub shape: String,
    /// How many pods.
    pub count: u32,
    /// With how many of them it can start, if not only with all.
    pub min_count: Option<u32>,
    /// How many of them it can do with.
    pub fewest: u32,
    /// How many pods make a replica.
    pub hosts: u32,
    /// What each of them looks like.
    pub template: Arc<PodTemplateSpec>,
}

impl Group {
    /// The kind that a pod made now would be of.
    pub fn kind(&self) -> PodKind {
        PodKind::new(&self.name, &self.shape)
    }
}

/// What a pod is told that may run.
#[derive(Debug, Clone, PartialEq)]
pub struct Leave {
    /// What it is charged as.
    pub kind: PodKind,
    /// The PodSet that it is counted in.
    pub pod_set: String,
    /// Where its quota is.
    pub placement: Placement,
}

/// The priority of a job's workloads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Priority {
    /// Higher goes first.
    pub value: i32,
    /// Where the value comes from.
    pub class: Option<PriorityClassRef>,
}

/// What is known of one job.
pub struct JobView<'a> {
    /// The job.
    pub job: &'a dyn Job,
    /// Whether it is the queue's to manage.
    pub managed: Managed,
    /// All Workloads that it owns.
    pub workloads: Vec<&'a Workload>,
    /// Clusters whose objects are gone, while pods that a slice pays for are not.
    pub outlived: Vec<Member>,
    /// What quota there is.
    pub queue: &'a queue::Engine,
    /// The priority of its workloads, or why it has none.
    pub priority: Result<Priority, String>,
    /// Where pods run that use quota of these flavors.
    pub placement: &'a dyn Fn(&BTreeSet<String>) -> Placement,
    /// The PodSets of a slice that waits for which there may be room in another flavor than the one that pods of theirs run in.
    pub pinned: &'a dyn Fn(&Workload) -> BTreeSet<String>,
    /// Whether this process makes the pods, and can take some away and leave others.
    pub makes_pods: bool,
    /// How many writes for it have failed in a row.
    pub failures: u32,
    /// Whether its workloads are to say that their pods are ready. Nobody else looks at that, and it costs two writes a slice,
    /// so it is said only where the queue decides by it (as kueue v0.19.2 does).
    pub watches_readiness: bool,
    /// The present.
    pub now: Timestamp,
}

/// Plans everything that stands between a job and its pods.
///
/// A job that can't be queued as it is gets no new slice and no open gate; what it has goes on, and still loses it when that
/// is taken away.
pub fn plan(view: &JobView<'_>) -> Plan {
    if let Some(finish) = view.job.finished() {
        return finished::plan(view, &finish);
    }
    match view.managed {
        Managed::No => return leave(view),
        Managed::Held(hold) => return held::plan(view, hold),
        Managed::InQueue => {}
    }
    let mut plan = Plan::default();
    let slices = slices::slices_of(view.workloads.iter().copied());
    let mut members = view.job.members();
    parts::preempt(&mut members, slices::covering(&slices).and_then(|slice| slice.gives_back));
    hold_template_gate(view, &slices, &mut plan);
    let asked = plan_slices(view, &slices, &members, &mut plan);
    let unjudged = newcomer::is_unjudged(view, &slices, asked.is_ok(), &mut plan);
    gate::plan(view, &members, slices::covering(&slices), unjudged, &mut plan);
    ungate::plan(view, &members, slices::covering(&slices), &mut plan);
    give_back(view, &slices, &members, &mut plan);
    readiness::plan(view, &slices, &members, &mut plan);
    match asked {
        Ok(outlook) => report::plan(view, &slices, &members, &outlook, &mut plan),
        Err(problem) => report::misconfigured(view, &slices, &problem, &mut plan),
    }
    plan
}

/// Brings the slices in line with what the members want; returns what is to be expected of an upgrade, or why not all can be
/// asked for.
fn plan_slices(
    view: &JobView<'_>,
    slices: &[slices::Slice<'_>],
    members: &[Member],
    plan: &mut Plan,
) -> Result<Outlook, String> {
    let living: Vec<_> = slices.iter().filter(|slice| slice.phase != slices::Phase::Finished).collect();
    let aside = instead::aside(slices::covering(slices), view, members);
    let stays = |member: &&Member| aside.iter().all(|displaced| displaced.uid != member.uid);
    let staying = view.outlived.iter().chain(members).filter(stays);
    let together = pod_sets::wanted(staying.clone(), &living, None)?;
    let wanted = &match Apart::of(view, slices, members).filter(|_| !slices::is_paid_for(&together.record, slices)) {
        Some(apart) => pod_sets::wanted(staying, &living, Some(&apart))?,
        None => together,
    };
    let (priority, time_limit) = (&view.priority.clone()?, time_limit(view.job)?);
    let request = Request { view, members, wanted, priority, time_limit, aside: &aside, outlook: Outlook::Unknown };
    let request = Request { outlook: fitting::outlook(&request, slices), ..request };
    let first = instead::wanted_back(&request, slices::covering(slices));
    let request = Request { wanted: first.as_ref().unwrap_or(wanted), ..request };
    succession::plan(&request, slices, plan);
    pod_sets::enough_room(&wanted.record).map(|()| request.outlook)
}

/// Makes every later member be born suspended. A job that has slices was so before: somebody has got past the policies.
fn hold_template_gate(view: &JobView<'_>, slices: &[slices::Slice<'_>], plan: &mut Plan) {
    let Some(write) = view.job.hold_template_gate() else { return };
    plan.write(write);
    if !slices.is_empty() {
        let message = "The gate in its template was open, and is closed again: what is made from it waits for quota";
        plan.notes.push(Note { warning: true, ..view.job.note("TemplateGateClosed", message) });
    }
}

/// A job that is in no queue is none of our business; one that was in a queue before takes its slices with it.
fn leave(view: &JobView<'_>) -> Plan {
    let mut plan = Plan::default();
    delete_slices(view, &mut plan);
    report::left(view, &slices::slices_of(view.workloads.iter().copied()), &mut plan);
    plan
}

/// Deletes all slices. Quota that pods still run on is held until they are gone.
fn delete_slices(view: &JobView<'_>, plan: &mut Plan) {
    let there = view.workloads.iter().filter(|workload| workload.metadata.deletion_timestamp.is_none());
    plan.writes.extend(there.map(|workload| Write::delete(*workload, false)));
}

/// What a job asks of the queue.
pub(crate) struct Request<'a> {
    view: &'a JobView<'a>,
    members: &'a [Member],
    wanted: &'a pod_sets::Wanted,
    priority: &'a Priority,
    /// How long it may be admitted in all, in seconds.
    time_limit: Option<i32>,
    /// Members that make place for others.
    aside: &'a [Displaced],
    /// What is to be expected of its upgrade.
    outlook: Outlook,
}

/// How long a job may be admitted in all, in seconds, as its label says (kueue v0.19.2
/// `pkg/controller/jobframework/validation.go`, `validateCreateForMaxExecTime`). A slice that holds quota keeps the limit
/// that it was admitted with.
fn time_limit(job: &dyn Job) -> Result<Option<i32>, String> {
    let label = names::MAX_EXEC_TIME_LABEL;
    let Some(text) = job.meta().labels.as_ref().and_then(|labels| labels.get(label)) else { return Ok(None) };
    let limit = text.parse().ok().filter(|limit| *limit > 0);
    limit
        .map(Some)
        .ok_or_else(|| format!("label {label}: {text:?} is not a number of seconds between 1 and {}", i32::MAX))
}

/// Gives the quota of an evicted slice back once nothing runs on it any more.
fn give_back(view: &JobView<'_>, slices: &[slices::Slice<'_>], members: &[Member], plan: &mut Plan) {
    let quiet = view.outlived.is_empty() && members.iter().all(|member| !member.open && member.live_pods.is_empty());
    // One that took the place of another is given back once that is over: else what the other held would count again.
    let alone = slices.iter().all(|slice| slice.phase != slices::Phase::Admitted);
    for slice in slices.iter().filter(|slice| slice.phase == slices::Phase::Evicted && quiet && alone) {
        let mut released = status::released(slice.workload, view.now);
        readiness::forget(&mut released, view.now);
        plan.write(Write::patch_status(slice.workload, &released));
    }
}

/// Lets a Workload go that is being deleted, once no pod runs on its quota.
pub fn release(workload: &Workload, has_pods: bool) -> Plan {
    let mut plan = Plan::default();
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is = |kind| condition::is_true(conditions, kind);
    let holds_quota = is(names::QUOTA_RESERVED) && !is(names::FINISHED);
    if workload.metadata.deletion_timestamp.is_some() && !(holds_quota && has_pods) {
        let mut released = workload.clone();
        if let Some(finalizers) = &mut released.metadata.finalizers {
            finalizers.retain(|finalizer| finalizer != names::RESOURCE_IN_USE_FINALIZER);
        }
        plan.write(Write::patch(workload, &released));
    }
    plan
}

impl dyn Job + '_ {
    /// An event about the job that tells of progress.
    pub fn note(&self, reason: &str, message: &str) -> Note {
        Note {
            regarding: self.reference(),
            uid: self.meta().uid.clone().unwrap_or_default(),
            warning: false,
            reason: reason.to_owned(),
            message: message.to_owned(),
            tells_of: None,
        }
    }
}

#[cfg(test)]
mod tests;
