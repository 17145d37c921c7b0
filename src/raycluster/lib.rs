//! RayCluster operator: creates pods and Services from the spec, and computes the status from the
//! pods.
//!
//! [`plan`] is a pure function of the observed state. It returns the writes that bring the cluster
//! to its spec, within the quota that the queue has admitted.

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

/// Observed state of one RayCluster, as input of [`plan`].
pub struct View<'a> {
    /// RayCluster to reconcile.
    pub cluster: &'a RayCluster,
    /// Pod groups of the spec, or its validation errors: the result of [`validate::groups`].
    pub groups: &'a Result<Vec<PodGroup>, Vec<Problem>>,
    /// Validation errors of the current spec while `cluster` holds an earlier, valid one.
    pub rejected: &'a [Problem],
    /// All pods with the cluster's name in the label `ray.io/cluster`, including terminating ones.
    pub pods: Vec<&'a Pod>,
    /// Pods whose creation was requested and that the watch has not confirmed yet.
    pub arriving: Vec<&'a Pod>,
    /// Services owned by the cluster.
    pub services: Vec<&'a Service>,
    /// Ingress with the name of the cluster's Ingress, regardless of its owner.
    pub ingress: Option<&'a Ingress>,
    /// Existing ServiceAccount and RBAC objects of the autoscaler.
    pub access: Access,
    /// State of the Secret that holds the cluster's auth token.
    pub token: auth::Token,
    /// Job that deletes the cluster's keys from Redis.
    pub cleanup: Option<&'a Job>,
    /// Namespace and name of another live cluster that may store its state under the same Redis
    /// keys.
    pub shares_storage_with: Option<String>,
    /// Policy for the cluster's pods.
    pub task: Task,
    /// Revision that new pods are created from.
    pub revision: revision::Name,
    /// Number of pods that may run.
    pub grant: Grant,
    /// Labels and placement that the queue assigns to new pods, by group. A missing group gets
    /// none.
    pub marks: BTreeMap<String, Mark>,
    /// Workload slice that covers the grant. No ungated pod is created while a write to the slice
    /// or to the cluster is in flight, since that write may revoke the quota or suspend the
    /// cluster.
    pub payer: Option<ObjectRef>,
    /// Pod write that the API server rejected.
    pub setback: Option<&'a Setback>,
    /// True if the operator deletes surplus workers even when the Ray autoscaler is enabled.
    pub trims_autoscaled: bool,
    /// Current time.
    pub now: Timestamp,
}

impl View<'_> {
    /// Returns the validation errors of the current spec.
    fn problems(&self) -> &[Problem] {
        self.groups.as_ref().err().map_or(self.rejected, Vec::as_slice)
    }
}

/// Policy for the pods of a cluster that is not suspended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Pods are created and deleted to match the spec.
    Run,
    /// All pods of other revisions are deleted. Pods of this revision are created once the last of
    /// them is gone.
    Renew(revision::Name),
    /// No pod is created or deleted: the revision of the existing pods is not known yet.
    Rest,
}

/// Labels and placement that the queue assigns to the pods of a group (Kueue `podset.PodSetInfo`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mark {
    /// Shape (hash of the scheduling requirements) of pods of the current template. It is written
    /// to the pod as a label, since the template may change later.
    pub shape: String,
    /// PodSet that accounts for these pods; `None` until there is one.
    pub pod_set: Option<String>,
    /// Node labels and tolerations from the assigned flavors.
    pub placement: Placement,
    /// Number of pods of earlier templates that the quota covers in addition.
    pub earlier: u32,
}

/// Number of pods of the current templates that admitted quota covers. Pods beyond it are created
/// with a scheduling gate. Running pods lose their quota when the cluster is suspended, or by
/// partial preemption ([`Grant::DownTo`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// The cluster is not queued, so quota does not limit its pods.
    Ungated,
    /// Admitted pods by group. The head's group is `headgroup`; a missing group has none.
    UpTo(BTreeMap<String, u32>),
    /// Admitted pods by group, after partial preemption: running pods beyond it are deleted.
    DownTo(BTreeMap<String, u32>),
}

impl Grant {
    /// Returns the number of pods of `group` that may run.
    pub fn of(&self, group: &str) -> u32 {
        match self {
            Self::Ungated => u32::MAX,
            Self::UpTo(pods) | Self::DownTo(pods) => pods.get(group).copied().unwrap_or(0),
        }
    }
}

impl Mark {
    /// Writes the labels and the placement to a new pod. A gated pod gets only the shape label: its
    /// PodSet and flavors are known once its quota is admitted.
    fn put(&self, pod: &mut Pod, gated: bool) {
        let labels = pod.labels_mut();
        labels.insert(kueue_names::SHAPE_LABEL.to_owned(), self.shape.clone());
        if gated {
            return;
        }
        if let Some(pod_set) = &self.pod_set {
            labels.insert(kueue_names::POD_SET_LABEL.to_owned(), pod_set.clone());
            self.placement.apply(pod.spec.get_or_insert_default());
        }
    }
}

/// Plans the writes that bring a cluster to its spec.
///
/// An invalid spec does not affect running pods: they stay as they are, and only suspension still
/// works.
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

/// Plans the pods of a cluster that is not suspended.
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

/// Deletes all of `pods` that are not terminating, and records one Event with `reason`.
fn take_all(cluster: &RayCluster, pods: &[&Pod], reason: &str, plan: &mut Plan) {
    let live: Vec<_> = pods.iter().filter(|pod| !pods::is_going(pod)).collect();
    plan.writes.extend(live.iter().map(|pod| Write::delete(**pod, false)));
    if !live.is_empty() {
        let text = format!("Deleted Pods for RayCluster {} due to {reason}", place(cluster, &cluster.name_any()));
        plan.notes.push(Note::normal(cluster, "DeletedPod", text));
    }
}

/// Plans the pods of each group of the spec, and deletes the pods of groups that are no longer in
/// it.
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
    // Workers are useless without a head, so they are created only with one or after it. Without
    // quota for the head no gated pods are created either: the cluster was unsuspended by hand.
    let is_prepared =
        !access::awaits_account(view) && !redis_cleanup::awaits_finalizer(cluster) && view.token != auth::Token::Taken;
    let makes_pods = has_head || view.grant.of(ray_names::HEAD_GROUP) > 0 && is_prepared;
    let names: BTreeSet<String> = view.pods.iter().map(|pod| pod.name_any()).collect();
    for group in groups {
        let pods = by_group.remove(group.name.as_str()).unwrap_or_default();
        if group.role() == Role::Head && pods.len() > 1 {
            let heads: Vec<_> = pods.iter().map(|pod| pod.name_any()).collect();
            let text = format!("found {} head Pods, want 1: {}; delete all but one", heads.len(), heads.join(", "));
            plan.notes.push(Note::warning(cluster, "MultipleHeadPods", text));
            continue;
        }
        let mut change = scale::decide(&situation(view, group, pods, &names));
        change.create.retain(|_| makes_pods);
        apply(view, group, change, plan);
    }
    for pod in by_group.into_values().flatten().filter(|pod| !pods::is_going(pod)) {
        delete(cluster, Role::Worker, pod, "its worker group is no longer in the spec", plan);
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

/// Reports whether a lost head must not be recreated: the annotation forbids it once the cluster
/// was provisioned, since a job that ran on the head can't be resumed.
fn stays_headless(cluster: &RayCluster) -> bool {
    let conditions = cluster.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let disabled = cluster.annotations().get(ray_names::KEEP_HEAD_DOWN_ANNOTATION).is_some_and(|value| value == "true");
    disabled && condition::is_true(conditions, ray_names::PROVISIONED)
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
