//! Derivation of a job's PodSets from its live members.
//!
//! Pods of equal shape under one group name are summed under that name, regardless of their member.
//! So a second RayCluster is a scale-up under a stable name, and the end of the old one a
//! scale-down. Pods of another shape under the same group name get a separate PodSet whose name
//! ends in the shape, so that each pod is accounted by its shape. Pods that go to another flavor
//! get a separate PodSet whose name ends in the sequence number of the slice that first requested
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodTemplateSpec;

use super::demand_error::{DemandError, MemberPodSets};
use super::flavor_split::FlavorSplit;
use super::slice_record::MAX_POD_SETS;
use super::slice_record::{MemberShare, PodShare, SliceRecord};
use super::slices::Slice;
use super::types::PodKind;
use super::types::{Member, PodGroupDemand};
use sluice_api::kueue::PodTemplate;
use sluice_api::ray::names::HEAD_GROUP;

/// PodSet of the head pod, named as in Kueue (Kueue 0.19 `pkg/controller/jobs/raycluster`).
const HEAD_POD_SET: &str = "head";

/// PodSets that a job needs, and the pods that each of them covers.
#[derive(Debug, Clone, Default)]
pub struct DesiredPodSets {
    /// Pods to cover, by member. The sequence number is not set.
    pub record: SliceRecord,
    /// Pod template of each PodSet, by PodSet name.
    pub templates: BTreeMap<String, PodSetTemplate>,
    /// Number of pods that the job can start with, by PodSet name, for PodSets that do not need
    /// all.
    pub min_counts: BTreeMap<String, u32>,
}

/// Pod template of a PodSet.
#[derive(Debug, Clone)]
pub enum PodSetTemplate {
    /// Generated from the member's current spec.
    Generated(Arc<PodTemplateSpec>),
    /// Recorded in an existing slice.
    Recorded(PodTemplate),
}

impl PodSetTemplate {
    /// Returns the template in the form that a PodSet stores.
    pub fn template(&self) -> PodTemplate {
        match self {
            Self::Generated(template) => PodTemplate::new(template.as_ref()).unwrap_or_default(),
            Self::Recorded(template) => template.clone(),
        }
    }
}

/// Derives the PodSets of a job from its `members`: orphaned members first, then the others, oldest
/// first. `slices` are the unfinished slices, oldest first: a PodSet keeps the name that it has
/// there, except for the pods that `split` splits off.
///
/// # Errors
/// If the spec of a member is invalid.
pub(super) fn desired_pod_sets<'m>(
    members: impl IntoIterator<Item = &'m Member>,
    slices: &[&Slice<'_>],
    split: Option<&FlavorSplit<'_>>,
) -> Result<DesiredPodSets, DemandError> {
    let mut names = PodSetNames::new(slices);
    let mut wanted = DesiredPodSets::default();
    for member in members {
        let groups = member.groups.as_ref().as_ref().map_err(Clone::clone)?;
        let pods = pods_needed(member, groups).into_iter().map(|(kind, count)| {
            let group = groups.iter().find(|group| group.name == kind.group);
            let plain = group.map_or_else(|| pod_set_name(&kind.group), |group| group.pod_set.clone());
            let pod_set = names.name_for(&member.uid, &kind, &plain, split);
            let min_count = group.and_then(|group| group.min_count);
            wanted.min_counts.extend(min_count.map(|min_count| (pod_set.clone(), min_count)));
            let present = group.filter(|group| group.shape == kind.shape).map(|group| &group.template);
            let mold = || match (present, recorded_template(slices, &pod_set)) {
                (Some(template), _) => PodSetTemplate::Generated(template.clone()),
                (None, Some(template)) => PodSetTemplate::Recorded(template.clone()),
                (None, None) => {
                    PodSetTemplate::Generated(Arc::new(member.unknown_kinds.get(&kind).cloned().unwrap_or_default()))
                }
            };
            wanted.templates.entry(pod_set.clone()).or_insert_with(mold);
            PodShare { group: kind.group, shape: kind.shape, pod_set, count, starting: 0 }
        });
        let pods: Vec<PodShare> = pods.collect();
        if !pods.is_empty() {
            wanted.record.members.push(MemberShare { name: member.name.clone(), uid: member.uid.clone(), pods });
        }
    }
    Ok(wanted)
}

/// Returns the number of pods of each kind that a member needs.
///
/// Existing pods count under their kind until they are gone, whatever the spec says. Pods still to
/// come count unless their member is terminating or has been stopped by preemption: gated pods
/// under their kind, and the rest under the current template of the group.
fn pods_needed(member: &Member, groups: &[PodGroupDemand]) -> Vec<(PodKind, u32)> {
    let mut needed = Vec::new();
    let mut others = member.live_pods.clone();
    let no_more_pods = member.is_terminating || (member.is_preempted && !member.is_open);
    for group in groups {
        let present = group.kind();
        let alive: u32 =
            member.live_pods.iter().filter(|(kind, _)| kind.group == group.name).map(|(_, alive)| alive).sum();
        let to_come = if no_more_pods { 0 } else { group.count.saturating_sub(alive) };
        let gated = member.gated_pods.iter().filter(|pod| pod.kind.group == group.name && pod.kind != present);
        let gated: Vec<_> = gated.take(to_come as usize).collect();
        let rest = to_come - u32::try_from(gated.len()).unwrap_or(to_come);
        needed.push((present.clone(), others.remove(&present).unwrap_or(0).saturating_add(rest)));
        for pod in gated {
            *others.entry(pod.kind.clone()).or_default() += 1;
        }
        let of_group: Vec<_> = others.extract_if(.., |kind, _| kind.group == group.name).collect();
        needed.extend(of_group);
    }
    needed.extend(others);
    needed.retain(|(_, count)| *count > 0);
    needed
}

/// Returns the template that the newest of the slices has for a PodSet.
fn recorded_template<'s>(slices: &[&'s Slice<'_>], pod_set: &str) -> Option<&'s PodTemplate> {
    let sets = slices.iter().rev().flat_map(|slice| &slice.workload.spec.pod_sets);
    sets.into_iter().find(|set| set.name == pod_set).map(|set| &set.template)
}

/// Returns the preferred PodSet name of a group.
pub fn pod_set_name(group: &str) -> String {
    if group == HEAD_GROUP { HEAD_POD_SET.to_owned() } else { group.to_lowercase() }
}

/// Checks that a Workload can hold all PodSets.
///
/// # Errors
/// If there are more than [`MAX_POD_SETS`].
pub(super) fn check_pod_set_limit(record: &SliceRecord) -> Result<(), DemandError> {
    let names = |member: &MemberShare| member.pods.iter().map(|share| share.pod_set.clone()).collect::<BTreeSet<_>>();
    let all: BTreeSet<String> = record.members.iter().flat_map(names).collect();
    if all.len() <= MAX_POD_SETS {
        return Ok(());
    }
    let each = |member: &MemberShare| MemberPodSets { cluster: member.name.clone(), pod_sets: names(member).len() };
    Err(DemandError::TooManyPodSets { members: record.members.iter().map(each).collect(), pod_sets: all.len() })
}

/// Names of the PodSets of a job, stable over its slices.
struct PodSetNames {
    /// PodSet name of pods that a slice records, by member uid and kind.
    by_member: BTreeMap<(String, PodKind), String>,
    /// PodSet name that other pods of a kind get.
    latest_by_kind: BTreeMap<PodKind, String>,
    used: BTreeSet<String>,
}

impl PodSetNames {
    /// Collects the names in `slices`, including those of PodSets that were requested but not
    /// granted.
    fn new(slices: &[&Slice<'_>]) -> Self {
        let mut names = Self { by_member: BTreeMap::new(), latest_by_kind: BTreeMap::new(), used: BTreeSet::new() };
        for slice in slices {
            names.add_record(&slice.record);
            let sets = &slice.workload.spec.pod_sets;
            let named = |set: &str| slice.record.members.iter().flat_map(|m| &m.pods).any(|share| share.pod_set == set);
            if let Some(requested) =
                SliceRecord::from_workload(slice.workload).filter(|_| !sets.iter().all(|set| named(&set.name)))
            {
                names.add_record(&requested);
            }
        }
        names
    }

    fn add_record(&mut self, record: &SliceRecord) {
        for member in &record.members {
            for share in &member.pods {
                self.by_member.insert((member.uid.clone(), share.kind()), share.pod_set.clone());
                self.reserve(&share.kind(), &share.pod_set);
            }
        }
    }

    fn reserve(&mut self, kind: &PodKind, name: &str) {
        self.latest_by_kind.insert(kind.clone(), name.to_owned());
        self.used.insert(name.to_owned());
    }

    /// Returns the PodSet name for pods of `kind` in `member`, which is `plain` if that is not in
    /// use.
    fn name_for(&mut self, member: &str, kind: &PodKind, plain: &str, split: Option<&FlavorSplit<'_>>) -> String {
        let own = self.by_member.get(&(member.to_owned(), kind.clone()));
        let name = own.or(self.latest_by_kind.get(kind)).cloned().unwrap_or_else(|| match self.used.contains(plain) {
            true => with_suffix(plain, &kind.shape),
            false => plain.to_owned(),
        });
        let moved = split.filter(|split| split.splits(member, &name)).map(|split| with_suffix(plain, &split.suffix()));
        let is_free = |name: &String| !self.used.contains(name) || self.latest_by_kind.get(kind) == Some(name);
        let name = moved.filter(is_free).unwrap_or(name);
        self.reserve(kind, &name);
        name
    }
}

/// Returns `name-ending`. A PodSet name is a DNS label of at most 63 characters; the ending takes
/// at most 10 of them.
fn with_suffix(name: &str, ending: &str) -> String {
    let ending: String = ending.chars().take(10).collect();
    let kept: String = name.chars().take(63 - 1 - ending.len()).collect();
    format!("{kept}-{ending}")
}
