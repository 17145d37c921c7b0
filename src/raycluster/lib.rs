//! RayCluster operator: creates pods and Services from the spec, and computes the status from the
//! pods.
//!
//! [`plan`] is a pure function of the observed state. It returns the writes that bring the cluster
//! to its spec, within the quota that the queue has admitted.

pub mod auth;
mod autoscaler;
pub mod autoscaler_rbac;
pub mod canonical_json;
mod env_vars;
pub mod fault_tolerance;
mod field_error;
#[cfg(test)]
mod fixtures;
pub mod groups;
mod history_collector;
mod ingress;
pub mod names;
pub mod node_placement;
pub mod pod_builder;
mod pods;
mod pre_stop;
mod probes;
mod redis_cleanup;
mod replica_failure;
pub mod revision;
mod scale;
pub mod services;
mod start_command;
mod status;
mod suspend;
pub mod template;
#[cfg(test)]
mod tests;
pub mod unsupported;
pub mod validate;
mod validate_template;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::Ingress;
use kube_core::{Resource, ResourceExt};

use autoscaler::Autoscaler;
use autoscaler_rbac::AutoscalerRbac;
use scale::{GroupState, ScaleDecision};
use sluice_api::condition;
use sluice_api::kueue::{names as kueue_names, scheduling_gate};
use sluice_api::pod;
use sluice_api::ray::{RayCluster, is_managed_elsewhere, names as ray_names};
use sluice_plan::{EventRecord, ObjectRef, Plan, Write};
use suspend::SuspendState;

pub use field_error::FieldError;
pub use groups::{PodGroup, RayNodeType, pod_groups};
pub use history_collector::pod_groups_of_kuberay;
pub use node_placement::NodePlacement;
pub use replica_failure::ReplicaFailure;

/// Observed state of one RayCluster, as input of [`plan`].
pub struct ClusterContext<'a> {
    /// RayCluster to reconcile.
    pub cluster: &'a RayCluster,
    /// Pod groups of the spec, or its validation errors: the result of [`validate::validated_groups`].
    pub groups: &'a Result<Vec<PodGroup>, Vec<FieldError>>,
    /// Validation errors of the current spec while `cluster` holds an earlier, valid one.
    pub rejected_spec_errors: &'a [FieldError],
    /// All pods with the cluster's name in the label `ray.io/cluster`, including terminating ones.
    pub pods: Vec<&'a Pod>,
    /// Pods whose creation was requested and that the watch has not confirmed yet.
    pub expected_pods: Vec<&'a Pod>,
    /// Services owned by the cluster.
    pub services: Vec<&'a Service>,
    /// Ingress with the name of the cluster's Ingress, regardless of its owner.
    pub ingress: Option<&'a Ingress>,
    /// Existing ServiceAccount and RBAC objects of the autoscaler.
    pub autoscaler_rbac: AutoscalerRbac,
    /// State of the Secret that holds the cluster's auth token.
    pub token_secret: auth::TokenSecret,
    /// Job that deletes the cluster's keys from Redis.
    pub redis_cleanup_job: Option<&'a Job>,
    /// Namespace and name of another live cluster that may store its state under the same Redis
    /// keys.
    pub shares_storage_with: Option<String>,
    /// Policy for the cluster's pods.
    pub pod_policy: PodPolicy,
    /// Revision that new pods are created from.
    pub revision: revision::RevisionName,
    /// Number of pods that may run.
    pub grant: Grant,
    /// Labels and placement that the queue assigns to new pods, by group. A missing group gets
    /// none.
    pub pod_set_infos: BTreeMap<String, PodSetInfo>,
    /// Workload slice that covers the grant. No ungated pod is created while a write to the slice
    /// or to the cluster is in flight, since that write may revoke the quota or suspend the
    /// cluster.
    pub covering_slice: Option<ObjectRef>,
    /// Pod write that the API server rejected.
    pub replica_failure: Option<&'a ReplicaFailure>,
    /// True if the operator deletes surplus workers even when the Ray autoscaler is enabled.
    pub random_pod_delete: bool,
    /// Current time.
    pub now: Timestamp,
}

impl ClusterContext<'_> {
    /// Returns the validation errors of the current spec.
    fn spec_errors(&self) -> &[FieldError] {
        self.groups.as_ref().err().map_or(self.rejected_spec_errors, Vec::as_slice)
    }
}

/// Policy for the pods of a cluster that is not suspended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodPolicy {
    /// Pods are created and deleted to match the spec.
    Reconcile,
    /// All pods of other revisions are deleted. Pods of this revision are created once the last of
    /// them is gone.
    Recreate(revision::RevisionName),
    /// No pod is created or deleted: the revision of the existing pods is not known yet.
    Freeze,
}

/// Labels and placement that the queue assigns to the pods of a group (Kueue `podset.PodSetInfo`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodSetInfo {
    /// Shape (hash of the scheduling requirements) of pods of the current template. It is written
    /// to the pod as a label, since the template may change later.
    pub shape: String,
    /// PodSet that accounts for these pods; `None` until there is one.
    pub pod_set: Option<String>,
    /// Node labels and tolerations from the assigned flavors.
    pub placement: NodePlacement,
    /// Number of pods of earlier templates that the quota covers in addition.
    pub earlier_pods: u32,
}

/// Number of pods of the current templates that admitted quota covers. Pods beyond it are created
/// with a scheduling gate. Running pods lose their quota when the cluster is suspended, or by
/// partial preemption ([`Grant::Reclaim`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Grant {
    /// The cluster is not queued, so quota does not limit its pods.
    Ungated,
    /// Admitted pods by group. The head's group is `headgroup`; a missing group has none.
    UpTo(BTreeMap<String, u32>),
    /// Admitted pods by group, after partial preemption: running pods beyond it are deleted.
    Reclaim(BTreeMap<String, u32>),
}

impl Grant {
    /// Returns the number of pods of `group` that may run.
    pub fn pods_in_group(&self, group: &str) -> u32 {
        match self {
            Self::Ungated => u32::MAX,
            Self::UpTo(pods) | Self::Reclaim(pods) => pods.get(group).copied().unwrap_or(0),
        }
    }
}

impl PodSetInfo {
    /// Writes the labels and the placement to a new pod of `cluster`. A gated pod gets neither the PodSet
    /// nor the placement: they are known once its quota is admitted.
    fn apply_to(&self, pod: &mut Pod, cluster: &RayCluster, gated: bool) {
        let labels = pod.labels_mut();
        labels.extend(cluster.uid().map(|uid| (ray_names::CLUSTER_UID_LABEL.to_owned(), uid)));
        labels.insert(kueue_names::SCHEDULING_HASH_LABEL.to_owned(), self.shape.clone());
        if gated {
            return;
        }
        if let Some(pod_set) = &self.pod_set {
            labels.insert(kueue_names::POD_SET_LABEL.to_owned(), pod_set.clone());
            self.placement.apply_to(pod.spec.get_or_insert_default());
        }
    }
}

/// Plans the writes that bring a cluster to its spec.
///
/// An invalid spec does not affect running pods: they stay as they are, and only suspension still
/// works.
pub fn plan(view: &ClusterContext<'_>) -> Plan {
    let mut plan = Plan::default();
    let cluster = view.cluster;
    if is_managed_elsewhere(cluster.spec.managed_by.as_deref()) {
        return plan;
    }
    if cluster.metadata.deletion_timestamp.is_some() {
        redis_cleanup::finalize(view, &mut plan);
        return plan;
    }
    let pods = pods::owned_by(view);
    let phase = SuspendState::of(cluster, !pods.is_empty());
    if let Ok(groups) = view.groups {
        services::plan(view, groups, &mut plan);
        autoscaler_rbac::plan(view, &mut plan);
        auth::plan(view, &mut plan);
        ingress::plan(view, &mut plan);
        redis_cleanup::plan(cluster, &mut plan);
    }
    match (phase, view.groups) {
        (SuspendState::Suspending, _) => delete_all_pods(cluster, &pods, "suspension", &mut plan),
        (SuspendState::Active, groups) => plan_pods(view, &pods, groups, &mut plan),
        (SuspendState::Requested | SuspendState::Suspended | SuspendState::Resuming, _) => {}
    }
    if !view.spec_errors().is_empty() {
        let text = format!("The RayCluster spec is invalid: {}", status::error_message(view.spec_errors()));
        plan.events.push(EventRecord::warning(cluster, "InvalidRayClusterSpec", text));
    }
    let changes_pods = plan.writes.iter().any(|write| write.target.kind == Pod::kind(&()));
    plan.write(status::write(&status::StatusContext {
        view,
        pods: &pods,
        groups: view.groups,
        suspend_state: phase,
        changes_pods,
    }));
    plan
}

/// Plans the pods of a cluster that is not suspended.
fn plan_pods(
    view: &ClusterContext<'_>,
    pods: &[&Pod],
    groups: &Result<Vec<PodGroup>, Vec<FieldError>>,
    plan: &mut Plan,
) {
    match (&view.pod_policy, groups) {
        (PodPolicy::Recreate(wanted), _) => {
            let old: Vec<&Pod> = pods.iter().copied().filter(|pod| revision::pod_revision(pod) != *wanted).collect();
            delete_all_pods(view.cluster, &old, "spec change with Recreate upgradeStrategy", plan);
        }
        (PodPolicy::Reconcile, Ok(groups)) => reconcile_groups(view, pods, groups, plan),
        (PodPolicy::Reconcile, Err(_)) | (PodPolicy::Freeze, _) => {}
    }
}

/// Deletes all of `pods` that are not terminating, and records one Event with `reason`.
fn delete_all_pods(cluster: &RayCluster, pods: &[&Pod], reason: &str, plan: &mut Plan) {
    let live: Vec<_> = pods.iter().filter(|pod| !pod::is_terminating(pod)).collect();
    plan.writes.extend(live.iter().map(|pod| Write::delete(**pod)));
    if !live.is_empty() {
        let text =
            format!("Deleted Pods for RayCluster {} due to {reason}", namespaced_name(cluster, &cluster.name_any()));
        plan.events.push(EventRecord::normal(cluster, "DeletedPod", text));
    }
}

/// Plans the pods of each group of the spec, and deletes the pods of groups that are no longer in
/// it.
fn reconcile_groups(view: &ClusterContext<'_>, pods: &[&Pod], groups: &[PodGroup], plan: &mut Plan) {
    let cluster = view.cluster;
    let mut by_group: BTreeMap<Option<&str>, Vec<&Pod>> = BTreeMap::new();
    for pod in pods {
        by_group.entry(pods::group_name(pod)).or_default().push(pod);
    }
    let has_head = by_group.contains_key(&Some(ray_names::HEAD_GROUP));
    if !has_head && head_restart_disabled(cluster) {
        return;
    }
    // Workers are useless without a head, so they are created only with one or after it. Without
    // quota for the head no gated pods are created either: the cluster was unsuspended by hand.
    let is_prepared = !autoscaler_rbac::awaits_service_account(view)
        && !redis_cleanup::awaits_finalizer(cluster)
        && view.token_secret != auth::TokenSecret::OwnedByPredecessor;
    let creates_pods = has_head || view.grant.pods_in_group(ray_names::HEAD_GROUP) > 0 && is_prepared;
    let names: BTreeSet<String> = view.pods.iter().map(|pod| pod.name_any()).collect();
    for group in groups {
        let pods = by_group.remove(&Some(group.name.as_str())).unwrap_or_default();
        if group.node_type() == RayNodeType::Head && pods.len() > 1 {
            let heads: Vec<_> = pods.iter().map(|pod| pod.name_any()).collect();
            let text = format!("found {} head Pods, want 1: {}; delete all but one", heads.len(), heads.join(", "));
            plan.events.push(EventRecord::warning(cluster, "MultipleHeadPods", text));
            continue;
        }
        let mut change = scale::decide(&group_state(view, group, pods, &names));
        change.create.retain(|_| creates_pods);
        apply_decision(view, group, change, plan);
    }
    for pod in by_group.into_values().flatten().filter(|pod| !pod::is_terminating(pod)) {
        delete_pod(cluster, RayNodeType::Worker, pod, "its worker group is no longer in the spec", plan);
    }
}

fn group_state<'a>(
    view: &'a ClusterContext<'a>,
    group: &'a PodGroup,
    pods: Vec<&'a Pod>,
    names: &'a BTreeSet<String>,
) -> GroupState<'a> {
    let spec = groups::worker_group(view.cluster, &group.name);
    let strategy = spec.and_then(|spec| spec.scale_strategy.as_ref());
    let suspended = spec.is_some_and(|spec| spec.suspend == Some(true));
    GroupState {
        cluster: view.cluster,
        group,
        pods,
        expected_pods: view
            .expected_pods
            .iter()
            .copied()
            .filter(|pod| pods::group_name(pod) == Some(group.name.as_str()))
            .collect(),
        pod_names: names,
        workers_to_delete: strategy.map_or(&[], |strategy| &strategy.workers_to_delete),
        granted: view.grant.pods_in_group(&group.name),
        reclaims_surplus: matches!(view.grant, Grant::Reclaim(_)),
        shape: view.pod_set_infos.get(&group.name).map(|mark| mark.shape.as_str()),
        deletes_surplus: suspended || view.random_pod_delete || Autoscaler::of(&view.cluster.spec) == Autoscaler::Off,
        now: view.now,
    }
}

/// Reports whether a lost head must not be recreated: the annotation forbids it once the cluster
/// was provisioned, since a job that ran on the head can't be resumed.
fn head_restart_disabled(cluster: &RayCluster) -> bool {
    let conditions = cluster.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let disabled =
        cluster.annotations().get(ray_names::DISABLE_HEAD_RESTART_ANNOTATION).is_some_and(|value| value == "true");
    disabled && condition::is_true(conditions, ray_names::CLUSTER_PROVISIONED)
}

fn apply_decision(view: &ClusterContext<'_>, group: &PodGroup, change: ScaleDecision<'_>, plan: &mut Plan) {
    let cluster = view.cluster;
    for (pod, reason) in change.delete {
        delete_pod(cluster, group.node_type(), pod, &reason, plan);
    }
    for new in change.create {
        let mut pod = pod_builder::build_pod(cluster, group, new.index, new.attempt);
        revision::label_revision(&mut pod, &view.revision);
        if new.gated {
            scheduling_gate::add(pod.spec.get_or_insert_default());
        } else {
            scheduling_gate::remove(pod.spec.get_or_insert_default());
        }
        if let Some(mark) = view.pod_set_infos.get(&group.name) {
            mark.apply_to(&mut pod, cluster, new.gated);
        }
        let write = pod_builder::create_write(cluster, group, &pod);
        let rests_on = view.covering_slice.iter().cloned().chain([ObjectRef::of(cluster)]);
        let target = write.target.clone();
        plan.write(if new.gated || view.covering_slice.is_none() {
            write
        } else {
            write.blocked_while_in_flight(rests_on)
        });
        let (reason, what) = match group.node_type() {
            RayNodeType::Head => ("CreatedHeadPod", "head"),
            RayNodeType::Worker => ("CreatedWorkerPod", "worker"),
        };
        let text = format!("Created {what} Pod {}", namespaced_name(cluster, &pod.name_any()));
        plan.events.push(EventRecord::normal(cluster, reason, text).only_if_written(&target));
    }
    if let Some(at) = change.wake_at {
        plan.wake_by(at);
    }
}

fn delete_pod(cluster: &RayCluster, role: RayNodeType, pod: &Pod, reason: &str, plan: &mut Plan) {
    plan.write(Write::delete(pod));
    let event = match role {
        RayNodeType::Head => "DeletedHeadPod",
        RayNodeType::Worker => "DeletedWorkerPod",
    };
    let text = format!("Deleted {role} Pod {}: {reason}", namespaced_name(cluster, &pod.name_any()));
    plan.events.push(EventRecord::normal(cluster, event, text).only_if_written(&ObjectRef::of(pod)));
}

fn namespaced_name(cluster: &RayCluster, name: &str) -> String {
    format!("{}/{name}", cluster.namespace().unwrap_or_default())
}
