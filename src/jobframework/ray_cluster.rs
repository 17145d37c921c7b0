//! RayCluster as a standalone job, and as a member of a RayService.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube_core::ResourceExt;

use super::census::Molds;
use super::members::{self, Pods, Who};
use super::{Group, Groups, Job, Leave, Member, pod_sets, report};
use sluice_api::ray::{RayCluster, names};
use sluice_plan::{ObjectRef, Write};
use sluice_raycluster::{PodGroup, Problem};

/// PodSet of the head pod, named as in Kueue (Kueue 0.19 `pkg/controller/jobs/raycluster`).
const HEAD_POD_SET: &str = "head";

/// Adapter of a standalone RayCluster.
pub struct RayClusterJob<'a> {
    /// The RayCluster.
    pub cluster: &'a RayCluster,
    /// Pods of the cluster.
    pub pods: Pods<'a>,
    /// Desired pod groups; see [`groups`].
    pub groups: Arc<Groups>,
    /// Templates that older pods may come from.
    pub molds: &'a Molds<'a>,
    /// Uid that the cluster has as a member: see [`revision::share`].
    pub share: String,
    /// Recreation of the pods for a new revision; `None` if they are of the desired revision.
    pub renewal: Option<Renewal>,
}

/// Recreation of a cluster whose pods are of an earlier revision than the desired one. The cluster
/// counts as two members: the old revision stops, and then the new one starts.
pub struct Renewal {
    /// Pod groups of the running revision.
    pub groups: Arc<Groups>,
    /// Member uid of the running revision.
    pub share: String,
    /// True if the running revision stops, because the new one has its quota.
    pub stops: bool,
}

impl Job for RayClusterJob<'_> {
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
        let revision_member = |share: &str, pods: &Pods<'_>, groups: &Arc<Groups>| {
            member(self.cluster, share.to_owned(), pods, groups.clone(), self.molds)
        };
        let Some(old) = &self.renewal else { return vec![revision_member(&self.share, &self.pods, &self.groups)] };
        let running = revision_member(&old.share, &self.pods, &old.groups);
        let pending = revision_member(&self.share, &Pods::default(), &self.groups);
        let is_open = running.open;
        vec![
            Member { open: is_open && !old.stops, ..running },
            Member { open: is_open && old.stops, surge: !old.stops, ..pending },
        ]
    }

    fn set_open(&self, _: &str, open: bool) -> Option<Write> {
        set_open(self.cluster, open)
    }

    fn next(&self) -> Option<String> {
        self.renewal.as_ref().map(|_| self.share.clone())
    }

    fn starts_anew(&self) -> bool {
        self.renewal.is_some()
    }

    fn release(&self, _: &str, pod: &str, leave: &Leave) -> Option<Write> {
        members::released(&self.pods, pod, leave)
    }

    fn join(&self, queue: &str) -> Option<Write> {
        super::joined(self.cluster, queue)
    }

    fn conditions(&self) -> &[Condition] {
        self.cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
    }

    fn show(&self, conditions: Vec<Condition>, gone: &[&str]) -> Option<Write> {
        if report::shows(self.conditions(), &conditions, gone) {
            return None;
        }
        let mut shown = self.cluster.status.clone().unwrap_or_default();
        report::show_in(&mut shown.conditions, conditions, gone);
        Write::patch_status(self.cluster, &shown)
    }
}

/// Opens or closes the gate of a cluster; `None` if nothing changes.
pub fn set_open(cluster: &RayCluster, open: bool) -> Option<Write> {
    let mut gated = cluster.clone();
    gated.spec.suspend = Some(!open);
    Write::patch(cluster, &gated)
}

/// Builds the member of a job for a cluster or a revision of it; `share` is the uid of the member.
pub fn member(cluster: &RayCluster, share: String, pods: &Pods<'_>, groups: Arc<Groups>, molds: &Molds<'_>) -> Member {
    let identity = Who {
        name: cluster.name_any(),
        uid: share,
        open: cluster.spec.suspend != Some(true),
        going: cluster.metadata.deletion_timestamp.is_some(),
    };
    members::of(identity, pods, groups, molds)
}

/// Returns the preferred PodSet name of a group.
pub fn pod_set(group: &str) -> String {
    if group == names::HEAD_GROUP { HEAD_POD_SET.to_owned() } else { group.to_lowercase() }
}

/// Converts the pod groups of a cluster, or the errors in its spec.
///
/// # Errors
/// Returns the errors of the spec as one message that names the cluster.
pub fn groups(cluster: &RayCluster, made_of: &Result<Vec<PodGroup>, Vec<Problem>>) -> Groups {
    let named = |error: String| format!("RayCluster {}: {error}", cluster.name_any());
    let joined = |problems: &Vec<Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let groups = made_of.as_ref().map_err(|problems| named(joined(problems)))?.iter().map(|group| {
        let spec = group.template.spec.clone().unwrap_or_default();
        let shape = pod_sets::shape_of(&spec).map_err(|error| named(format!("group {}: {error}", group.name)))?;
        let (pod_set, name, template) = (pod_set(&group.name), group.name.clone(), Arc::new(group.template.clone()));
        Ok(Group {
            pod_set,
            shape,
            name,
            count: group.count,
            min_count: None,
            fewest: group.fewest,
            hosts: group.hosts,
            template,
        })
    });
    groups.collect()
}
