//! The RayCluster operator: pods and Services from a spec, and a status from pods.
//!
//! [`plan`] is a function of what is observed: it names what has to be written for the cluster to become what its spec
//! asks for, as far as the queue has paid for it.

pub mod access;
pub mod auth;
mod autoscaler;
mod environment;
mod farewell;
pub mod fault_tolerance;
#[cfg(test)]
mod fixtures;
pub mod groups;
mod ingress;
pub mod names;
pub mod placement;
pub mod plain;
pub mod pod_builder;
mod pods;
mod probes;
mod problem;
mod redis_cleanup;
pub mod revision;
mod scale;
pub mod services;
mod setback;
mod start_command;
mod status;
mod suspend;
pub mod template;
#[cfg(test)]
mod tests;
pub mod unsupported;
pub mod validate;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::Ingress;
use kube_core::{Resource, ResourceExt};

use access::Access;
use autoscaler::Autoscaler;
use scale::{Change, Situation};
use sluice_api::condition;
use sluice_api::kueue::{names as kueue_names, scheduling_gate};
use sluice_api::ray::{RayCluster, is_managed_elsewhere, names as ray_names};
use sluice_plan::{Note, ObjectRef, Plan, Write};
use suspend::Phase;

pub use groups::{PodGroup, Role, pod_groups};
pub use placement::Placement;
pub use problem::Problem;
pub use setback::Setback;

/// What is known of one cluster.
pub struct View<'a> {
    /// The cluster.
    pub cluster: &'a RayCluster,
    /// What its spec makes of it: [`validate::groups`].
    pub groups: &'a Result<Vec<PodGroup>, Vec<Problem>>,
    /// What is wrong with the spec as it is now, if `cluster` is as it was before.
    pub rejected: &'a [Problem],
    /// All pods that carry its name in the label `ray.io/cluster`, those that are ending included.
    pub pods: Vec<&'a Pod>,
    /// Pods of it that were asked for and may be there by now.
    pub arriving: Vec<&'a Pod>,
    /// The Services that it owns.
    pub services: Vec<&'a Service>,
    /// The Ingress of the name that its own has or would have.
    pub ingress: Option<&'a Ingress>,
    /// What lets its autoscaler work.
    pub access: Access,
    /// What is known of the Secret that its token is kept in.
    pub token: auth::Token,
    /// The Job that deletes what it has kept in a Redis.
    pub cleanup: Option<&'a Job>,
    /// Another cluster that lives on and may keep its state under the same keys, by namespace and name.
    pub shares_storage_with: Option<String>,
    /// What becomes of its pods.
    pub task: Task,
    /// What new pods are made from.
    pub revision: revision::Name,
    /// How many pods it may have.
    pub grant: Grant,
    /// What the pods of a group are to be told by the queue, by group; nothing for a group that is missing.
    pub marks: BTreeMap<String, Mark>,
    /// The slice that the grant comes from. While something is written about it, or about the cluster, no pod is let run: that may be
    /// what takes the pod its quota, or what closes the gate.
    pub payer: Option<ObjectRef>,
    /// What the API server has refused to do about its pods.
    pub setback: Option<&'a Setback>,
    /// Whether workers beyond what is wanted are deleted also where Ray's autoscaler has to say which of them go.
    pub trims_autoscaled: bool,
    /// The present.
    pub now: Timestamp,
}

impl View<'_> {
    /// What is wrong with the spec as it is now.
    fn problems(&self) -> &[Problem] {
        self.groups.as_ref().err().map_or(self.rejected, Vec::as_slice)
    }
}

/// What becomes of the pods of a cluster that is not suspended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// They become what is asked for.
    Run,
    /// All go but those of this revision, which take their place once the last of the others is gone.
    Renew(revision::Name),
    /// They stay as they are: it isn't known yet what they are made from.
    Rest,
}

/// What the queue has to say of the pods of a group.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mark {
    /// What a pod of the present template is charged as. It is written on the pod, since the template may change.
    pub shape: String,
    /// The PodSet that such pods are counted in, once there is one.
    pub pod_set: Option<String>,
    /// Where they may run.
    pub placement: Placement,
    /// How many pods of earlier templates are paid for beside them.
    pub earlier: u32,
}

/// How many pods of the present templates the queue has paid for. Those that come on top wait behind scheduling gates. Pods that
/// run are taken by suspending the cluster, unless the queue wants only some of them back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// The cluster is in no queue.
    Ungated,
    /// Pods by group; the head's group is `headgroup`, and a group that is missing has none.
    UpTo(BTreeMap<String, u32>),
    /// The same, and others get the quota of those that run beyond it.
    DownTo(BTreeMap<String, u32>),
}

impl Grant {
    /// How many pods a group may have.
    pub fn of(&self, group: &str) -> u32 {
        match self {
            Self::Ungated => u32::MAX,
            Self::UpTo(pods) | Self::DownTo(pods) => pods.get(group).copied().unwrap_or(0),
        }
    }
}

impl Mark {
    /// Tells it to a new pod. Where one that waits is to run, and in which PodSet it counts, is known once there is quota for it.
    fn put(&self, pod: &mut Pod, gated: bool) {
        let labels = pod.labels_mut();
        labels.insert(kueue_names::SHAPE_LABEL.to_owned(), self.shape.clone());
        if let Some(pod_set) = self.pod_set.as_ref().filter(|_| !gated) {
            labels.insert(kueue_names::POD_SET_LABEL.to_owned(), pod_set.clone());
            self.placement.apply(pod.spec.get_or_insert_default());
        }
    }
}

/// Plans everything that separates a cluster from what its spec asks for.
///
/// A spec that makes no sense stops nothing that runs: pods stay as they are, and only suspending still works.
pub fn plan(view: &View<'_>) -> Plan {
    let mut plan = Plan::default();
    let cluster = view.cluster;
    if is_managed_elsewhere(cluster.spec.managed_by.as_deref()) {
        return plan;
    }
    if cluster.metadata.deletion_timestamp.is_some() {
        redis_cleanup::end(view, &mut plan);
        return plan;
    }
    let pods = pods::own(view);
    let phase = Phase::of(cluster, !pods.is_empty());
    if let Ok(groups) = view.groups {
        services::plan(view, groups, &mut plan);
        access::plan(view, &mut plan);
        auth::plan(view, &mut plan);
        ingress::plan(view, &mut plan);
        redis_cleanup::plan(cluster, &mut plan);
    }
    match (phase, view.groups) {
        (Phase::Suspending, _) => take_all(cluster, &pods, "suspension", &mut plan),
        (Phase::Open, groups) => open(view, &pods, groups, &mut plan),
        (Phase::Asked | Phase::Suspended | Phase::Resuming, _) => {}
    }
    if !view.problems().is_empty() {
        let text = format!("The RayCluster spec is invalid: {}", status::told(view.problems()));
        plan.notes.push(Note::warning(cluster, "InvalidRayClusterSpec", text));
    }
    let changes_pods = plan.writes.iter().any(|write| write.target.kind == Pod::kind(&()));
    plan.write(status::write(&status::Facts { view, pods: &pods, groups: view.groups, phase, changes_pods }));
    plan
}

/// Plans the pods of a cluster whose gate is open.
fn open(view: &View<'_>, pods: &[&Pod], groups: &Result<Vec<PodGroup>, Vec<Problem>>, plan: &mut Plan) {
    match (&view.task, groups) {
        (Task::Renew(wanted), _) => {
            let old: Vec<&Pod> = pods.iter().copied().filter(|pod| revision::of_pod(pod) != *wanted).collect();
            take_all(view.cluster, &old, "spec change with Recreate upgradeStrategy", plan);
        }
        (Task::Run, Ok(groups)) => run(view, pods, groups, plan),
        (Task::Run, Err(_)) | (Task::Rest, _) => {}
    }
}

/// Deletes these pods, for a reason.
fn take_all(cluster: &RayCluster, pods: &[&Pod], reason: &str, plan: &mut Plan) {
    let there: Vec<_> = pods.iter().filter(|pod| !pods::is_going(pod)).collect();
    plan.writes.extend(there.iter().map(|pod| Write::delete(**pod, false)));
    if !there.is_empty() {
        let text = format!("Deleted Pods for RayCluster {} due to {reason}", place(cluster, &cluster.name_any()));
        plan.notes.push(Note::normal(cluster, "DeletedPod", text));
    }
}

/// Plans the pods of a cluster that may have some.
fn run(view: &View<'_>, pods: &[&Pod], groups: &[PodGroup], plan: &mut Plan) {
    let cluster = view.cluster;
    let mut by_group: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in pods {
        by_group.entry(pods::group(pod)).or_default().push(pod);
    }
    let has_head = by_group.contains_key(ray_names::HEAD_GROUP);
    if !has_head && stays_headless(cluster) {
        return;
    }
    // Workers without a head would wait for nobody. And whoever was let through by hand gets no pod that waits, either.
    let is_prepared =
        !access::awaits_account(view) && !redis_cleanup::awaits_finalizer(cluster) && view.token != auth::Token::Taken;
    let makes_pods = has_head || view.grant.of(ray_names::HEAD_GROUP) > 0 && is_prepared;
    let names: BTreeSet<String> = view.pods.iter().map(|pod| pod.name_any()).collect();
    for group in groups {
        let pods = by_group.remove(group.name.as_str()).unwrap_or_default();
        if group.role() == Role::Head && pods.len() > 1 {
            let heads: Vec<_> = pods.iter().map(|pod| pod.name_any()).collect();
            let text =
                format!("{} heads, where one is allowed: {}; delete the wrong ones", heads.len(), heads.join(", "));
            plan.notes.push(Note::warning(cluster, "MultipleHeadPods", text));
            continue;
        }
        let mut change = scale::decide(&situation(view, group, pods, &names));
        change.create.retain(|_| makes_pods);
        apply(view, group, change, plan);
    }
    for pod in by_group.into_values().flatten().filter(|pod| !pods::is_going(pod)) {
        delete(cluster, Role::Worker, pod, "its group is no longer in the spec", plan);
    }
}

fn situation<'a>(
    view: &'a View<'a>,
    group: &'a PodGroup,
    pods: Vec<&'a Pod>,
    names: &'a BTreeSet<String>,
) -> Situation<'a> {
    let spec = groups::worker_group(view.cluster, &group.name);
    let strategy = spec.and_then(|spec| spec.scale_strategy.as_ref());
    let suspended = spec.is_some_and(|spec| spec.suspend == Some(true));
    Situation {
        cluster: view.cluster,
        group,
        pods,
        arriving: view.arriving.iter().copied().filter(|pod| pods::group(pod) == group.name).collect(),
        names,
        to_delete: strategy.map_or(&[], |strategy| &strategy.workers_to_delete),
        granted: view.grant.of(&group.name),
        takes_back: matches!(view.grant, Grant::DownTo(_)),
        shape: view.marks.get(&group.name).map(|mark| mark.shape.as_str()),
        trims: suspended || view.trims_autoscaled || Autoscaler::of(&view.cluster.spec) == Autoscaler::Off,
        now: view.now,
    }
}

/// Whether a head that is gone stays gone: a job that ran on it can't be taken up again.
fn stays_headless(cluster: &RayCluster) -> bool {
    let conditions = cluster.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let asked = cluster.annotations().get(ray_names::KEEP_HEAD_DOWN_ANNOTATION).is_some_and(|value| value == "true");
    asked && condition::is_true(conditions, ray_names::PROVISIONED)
}

fn apply(view: &View<'_>, group: &PodGroup, change: Change<'_>, plan: &mut Plan) {
    let cluster = view.cluster;
    for (pod, reason) in change.delete {
        delete(cluster, group.role(), pod, &reason, plan);
    }
    for new in change.create {
        let mut pod = pod_builder::build(cluster, group, new.slot, new.attempt);
        revision::stamp(&mut pod, &view.revision);
        scheduling_gate::set(pod.spec.get_or_insert_default(), new.gated);
        if let Some(mark) = view.marks.get(&group.name) {
            mark.put(&mut pod, new.gated);
        }
        let write = pod_builder::create(cluster, group, &pod);
        let rests_on = view.payer.iter().cloned().chain([ObjectRef::of(cluster)]);
        let target = write.target.clone();
        plan.write(if new.gated || view.payer.is_none() { write } else { write.while_quiet(rests_on) });
        let (reason, what) = match group.role() {
            Role::Head => ("CreatedHeadPod", "head"),
            Role::Worker => ("CreatedWorkerPod", "worker"),
        };
        let text = format!("Created {what} Pod {}", place(cluster, &pod.name_any()));
        plan.notes.push(Note::normal(cluster, reason, text).of_write(&target));
    }
    if let Some(at) = change.wake_at {
        plan.wake(at);
    }
}

fn delete(cluster: &RayCluster, role: Role, pod: &Pod, reason: &str, plan: &mut Plan) {
    plan.write(Write::delete(pod, false));
    let event = match role {
        Role::Head => "DeletedHeadPod",
        Role::Worker => "DeletedWorkerPod",
    };
    let text = format!("Deleted {role} Pod {}: {reason}", place(cluster, &pod.name_any()));
    plan.notes.push(Note::normal(cluster, event, text).of_write(&ObjectRef::of(pod)));
}

fn place(cluster: &RayCluster, name: &str) -> String {
    format!("{}/{name}", cluster.namespace().unwrap_or_default())
}
