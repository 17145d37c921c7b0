//! RayCluster as a standalone job, and as a member of a RayService.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube_core::ResourceExt;

use super::demand_error::DemandError;
use super::generic_job::GenericJob;
use super::members::{self, MemberIdentity, MemberPods};
use super::pod_classifier::KnownTemplates;
use super::shape::shape_of;
use super::types::{Gate, Member, PodAssignment, PodGroupDemand, PodGroupDemands};
use super::{conditions, pod_sets};
use sluice_api::ray::{RayCluster, names as ray_names};
use sluice_plan::{ObjectRef, Write};
use sluice_raycluster::{FieldError, PodGroup};

/// Adapter of a standalone RayCluster.
pub struct RayClusterAdapter<'a> {
    /// The RayCluster.
    pub cluster: &'a RayCluster,
    /// Pods of the cluster.
    pub pods: MemberPods<'a>,
    /// Desired pod groups; see [`pod_group_demands`].
    pub groups: Arc<PodGroupDemands>,
    /// Templates that older pods may come from.
    pub known_templates: &'a KnownTemplates<'a>,
    /// Uid that the cluster has as a member: see [`sluice_raycluster::revision::member_uid`].
    pub member_uid: String,
    /// Recreation of the pods for a new revision; `None` if they are of the desired revision.
    pub recreation: Option<Recreation>,
}

/// Recreation of a cluster whose pods are of an earlier revision than the desired one. The cluster
/// counts as two members: the old revision stops, and then the new one starts.
pub struct Recreation {
    /// Pod groups of the running revision.
    pub groups: Arc<PodGroupDemands>,
    /// Member uid of the running revision.
    pub member_uid: String,
    /// True if the running revision stops, because the new one has its quota.
    pub is_stopping: bool,
}

impl GenericJob for RayClusterAdapter<'_> {
    fn reference(&self) -> ObjectRef {
        ObjectRef::of(self.cluster)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.cluster.metadata
    }

    fn wants_to_run(&self) -> bool {
        self.cluster.metadata.deletion_timestamp.is_none()
    }

    fn members(&self) -> Vec<Member> {
        let revision_member = |share: &str, pods: &MemberPods<'_>, groups: &Arc<PodGroupDemands>| {
            cluster_member(self.cluster, share.to_owned(), pods, groups.clone(), self.known_templates)
        };
        let Some(old) = &self.recreation else {
            return vec![revision_member(&self.member_uid, &self.pods, &self.groups)];
        };
        let running = revision_member(&old.member_uid, &self.pods, &old.groups);
        let pending = revision_member(&self.member_uid, &MemberPods::default(), &self.groups);
        let is_open = running.is_open;
        vec![
            Member { is_open: is_open && !old.is_stopping, ..running },
            Member { is_open: is_open && old.is_stopping, is_surge: !old.is_stopping, ..pending },
        ]
    }

    fn set_gate(&self, _: &str, gate: Gate) -> Option<Write> {
        set_gate(self.cluster, gate)
    }

    fn pending_member(&self) -> Option<String> {
        self.recreation.as_ref().map(|_| self.member_uid.clone())
    }

    fn recreates(&self) -> bool {
        self.recreation.is_some()
    }

    fn ungate_pod(&self, _: &str, pod: &str, leave: &PodAssignment) -> Option<Write> {
        let uid = self.cluster.metadata.uid.as_deref();
        members::ungated_with_uid(&self.pods, pod, leave, uid.map(|uid| (ray_names::CLUSTER_UID_LABEL, uid)))
    }

    /// Pods may be recreated if a template changes, so that of a running cluster keeps its gate.
    fn remove_gates(&self) -> Vec<Write> {
        let mut ungated = self.cluster.clone();
        if self.cluster.spec.suspend == Some(true) {
            let spec = &mut ungated.spec;
            spec.head_group_spec.template.remove_scheduling_gate();
            spec.worker_group_specs.iter_mut().for_each(|group| group.template.remove_scheduling_gate());
        }
        let template = Write::patch(self.cluster, &ungated);
        template.into_iter().chain(members::remove_scheduling_gates(&self.pods)).collect()
    }

    fn assign_queue(&self, queue: &str) -> Option<Write> {
        super::generic_job::patch_queue_name(self.cluster, queue)
    }

    fn conditions(&self) -> &[Condition] {
        self.cluster.conditions()
    }

    fn set_conditions(&self, conditions: Vec<Condition>, gone: &[&str]) -> Option<Write> {
        if conditions::are_current(self.conditions(), &conditions, gone) {
            return None;
        }
        let mut shown = self.cluster.status.clone().unwrap_or_default();
        conditions::apply_to(&mut shown.conditions, conditions, gone);
        Write::patch_status(self.cluster, &shown)
    }
}

/// Opens or closes the gate of a cluster; `None` if nothing changes.
fn set_gate(cluster: &RayCluster, gate: Gate) -> Option<Write> {
    let mut gated = cluster.clone();
    gated.spec.suspend = Some(gate == Gate::Closed);
    Write::patch(cluster, &gated)
}

/// Reports whether a cluster is deleted except for its state in Redis: a Job deletes that, with the
/// quota of the head.
pub fn awaits_redis_cleanup(cluster: &RayCluster) -> bool {
    let is_terminating = cluster.metadata.deletion_timestamp.is_some();
    is_terminating && cluster.finalizers().iter().any(|finalizer| finalizer == ray_names::REDIS_CLEANUP_FINALIZER)
}

/// Builds the member of a job for a cluster or a revision of it; `share` is the uid of the member.
/// The head counts as running until the state of a deleted cluster is gone from Redis. (Kueue v0.19.2
/// `pkg/controller/jobs/raycluster/common.go` charges the larger of head and cleanup pod to the head.)
pub fn cluster_member(
    cluster: &RayCluster,
    share: String,
    pods: &MemberPods<'_>,
    groups: Arc<PodGroupDemands>,
    templates: &KnownTemplates<'_>,
) -> Member {
    let identity = MemberIdentity {
        name: cluster.name_any(),
        uid: share,
        is_open: cluster.spec.suspend != Some(true),
        is_terminating: cluster.metadata.deletion_timestamp.is_some(),
    };
    let mut member = members::build_member(identity, pods, groups, templates);
    let groups = member.groups.as_ref().as_ref().map(Vec::as_slice).unwrap_or_default();
    if let Some(head) =
        groups.iter().find(|group| group.name == ray_names::HEAD_GROUP).filter(|_| awaits_redis_cleanup(cluster))
    {
        member.live_pods.entry(head.kind()).or_insert(1);
    }
    member
}

/// Converts the pod groups of a cluster, or the errors in its spec.
///
/// # Errors
/// If the spec or the requests of a group are invalid.
pub fn pod_group_demands(cluster: &RayCluster, made_of: &Result<Vec<PodGroup>, Vec<FieldError>>) -> PodGroupDemands {
    let invalid =
        |errors: &Vec<FieldError>| DemandError::InvalidCluster { cluster: cluster.name_any(), errors: errors.clone() };
    let groups = made_of.as_ref().map_err(invalid)?.iter().map(|group| {
        let spec = group.template.spec.clone().unwrap_or_default();
        let shape = shape_of(&spec).map_err(|source| DemandError::GroupRequests {
            cluster: cluster.name_any(),
            group: group.name.clone(),
            source: Box::new(source),
        })?;
        let (pod_set, name, template) =
            (pod_sets::pod_set_name(&group.name), group.name.clone(), Arc::new(group.template.clone()));
        Ok(PodGroupDemand {
            pod_set,
            shape,
            name,
            count: group.count,
            min_count: None,
            min_pods: group.min_count,
            hosts_per_replica: group.hosts_per_replica,
            template,
        })
    });
    groups.collect()
}
