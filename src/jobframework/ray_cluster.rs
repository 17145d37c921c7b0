//! RayCluster as a job of its own, and as a member of a job.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube_core::ResourceExt;

use super::census::Molds;
use super::members::{self, Pods, Who};
use super::{Group, Groups, Job, Leave, Member, pod_sets, report};
use sluice_api::ray::{RayCluster, names};
use sluice_plan::{ObjectRef, Write};
use sluice_raycluster::{PodGroup, Problem};

/// The PodSet of the head pod, as Kueue names it (Kueue 0.19 `pkg/controller/jobs/raycluster`).
const HEAD_POD_SET: &str = "head";

/// A RayCluster that nothing else owns.
pub struct RayClusterJob<'a> {
    /// The cluster.
    pub cluster: &'a RayCluster,
    /// Its pods.
    pub pods: Pods<'a>,
    /// What its spec wants; see [`groups`].
    pub groups: Arc<Groups>,
    /// What its pods may have been made from before.
    pub molds: &'a Molds<'a>,
    /// What its quota is held for: see [`revision::share`].
    pub share: String,
    /// What its pods make place for, if they do.
    pub renewal: Option<Renewal>,
}

/// A cluster the pods of which are of an earlier revision than the one that is wanted. It counts as two members: one stops, and then
/// the other starts.
pub struct Renewal {
    /// The groups of what runs.
    pub groups: Arc<Groups>,
    /// What the quota of that is held for.
    pub share: String,
    /// Whether it stops, because there is quota for the other.
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
        let of_share = |share: &str, pods: &Pods<'_>, groups: &Arc<Groups>| {
            member(self.cluster, share.to_owned(), pods, groups.clone(), self.molds)
        };
        let Some(old) = &self.renewal else { return vec![of_share(&self.share, &self.pods, &self.groups)] };
        let runs = of_share(&old.share, &self.pods, &old.groups);
        let comes = of_share(&self.share, &Pods::default(), &self.groups);
        let is_open = runs.open;
        vec![
            Member { open: is_open && !old.stops, ..runs },
            Member { open: is_open && old.stops, surge: !old.stops, ..comes },
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

/// Opens or closes the gate of a cluster.
pub fn set_open(cluster: &RayCluster, open: bool) -> Option<Write> {
    let mut gated = cluster.clone();
    gated.spec.suspend = Some(!open);
    Write::patch(cluster, &gated)
}

/// A cluster, or a revision of it, as a member of a job: by its share of quota, with what is wanted of it, and its pods.
pub fn member(cluster: &RayCluster, share: String, pods: &Pods<'_>, groups: Arc<Groups>, molds: &Molds<'_>) -> Member {
    let who = Who {
        name: cluster.name_any(),
        uid: share,
        open: cluster.spec.suspend != Some(true),
        going: cluster.metadata.deletion_timestamp.is_some(),
    };
    members::of(who, pods, groups, molds)
}

/// The name of the PodSet of a group, if that is free.
pub fn pod_set(group: &str) -> String {
    if group == names::HEAD_GROUP { HEAD_POD_SET.to_owned() } else { group.to_lowercase() }
}

/// The groups of pods that a cluster wants, of those that it is made of or of what is wrong with its spec.
///
/// # Errors
/// What is wrong, in a sentence.
pub fn groups(cluster: &RayCluster, made_of: &Result<Vec<PodGroup>, Vec<Problem>>) -> Groups {
    let named = |error: String| format!("RayCluster {}: {error}", cluster.name_any());
    let told = |problems: &Vec<Problem>| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let groups = made_of.as_ref().map_err(|problems| named(told(problems)))?.iter().map(|group| {
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
