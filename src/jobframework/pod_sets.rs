//! From the live members of a job to its PodSets.
//!
//! Pods of equal shape under one group name are summed under that name, whichever member they belong to; so going from one
//! child to two is a scale-up under a stable name, and the old child's end a scale-down. Pods of another shape under the
//! same group name are a PodSet of their own, whose name ends in the shape, so each is charged as what it is; and so are pods
//! that go to another flavor, whose PodSet ends in the number of the slice that asked for them first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::apart::Apart;
use super::census::PodKind;
use super::record::{MemberShare, Record, Share};
use super::slices::Slice;
use super::{Group, Member, ray_cluster};
use sluice_api::kueue::PodTemplate;
use sluice_queue::requests::{RequestsError, pod_facts};

/// How many PodSets a Workload has room for (kueue v0.19.2 `apis/kueue/v1beta2/workload_types.go`; the schema of ours says the
/// same).
pub const MOST_POD_SETS: usize = 18;

/// The PodSets that a job needs, and which pods each of them pays for.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Which pods are paid for, member by member; the sequence is not set.
    pub record: Record,
    /// A template for each PodSet, by the name of the PodSet.
    pub templates: BTreeMap<String, Mold>,
    /// With how many pods of a PodSet the job can start, where that is fewer than all.
    pub min_counts: BTreeMap<String, u32>,
}

/// What the pods of a PodSet look like.
#[derive(Debug, Clone)]
pub enum Mold {
    /// As our operator makes them.
    Made(Arc<PodTemplateSpec>),
    /// As a slice says that has them already.
    Kept(PodTemplate),
}

impl Mold {
    /// As a PodSet has it.
    pub fn template(&self) -> PodTemplate {
        match self {
            Self::Made(template) => PodTemplate::new(template.as_ref()).unwrap_or_default(),
            Self::Kept(template) => template.clone(),
        }
    }
}

/// Derives what a job needs from its members, the oldest first; those whose objects are gone, while pods of them are not, before
/// the others. `slices` are its living slices, oldest first: a PodSet keeps the name that it has there, but for pods that are to
/// be counted `apart`.
///
/// # Errors
/// When the spec of a member doesn't say which pods it needs; the sentence names the field and the value.
pub(super) fn wanted<'m>(
    members: impl IntoIterator<Item = &'m Member>,
    slices: &[&Slice<'_>],
    apart: Option<&Apart<'_>>,
) -> Result<Wanted, String> {
    let mut names = Names::new(slices);
    let mut wanted = Wanted::default();
    for member in members {
        let groups = member.groups.as_ref().as_ref().map_err(Clone::clone)?;
        let pods = needed(member, groups).into_iter().map(|(kind, count)| {
            let group = groups.iter().find(|group| group.name == kind.group);
            let plain = group.map_or_else(|| ray_cluster::pod_set(&kind.group), |group| group.pod_set.clone());
            let pod_set = names.of(&member.uid, &kind, &plain, apart);
            let min_count = group.and_then(|group| group.min_count);
            wanted.min_counts.extend(min_count.map(|min_count| (pod_set.clone(), min_count)));
            let present = group.filter(|group| group.shape == kind.shape).map(|group| &group.template);
            let mold = || match (present, kept(slices, &pod_set)) {
                (Some(template), _) => Mold::Made(template.clone()),
                (None, Some(template)) => Mold::Kept(template.clone()),
                (None, None) => Mold::Made(Arc::new(member.strangers.get(&kind).cloned().unwrap_or_default())),
            };
            wanted.templates.entry(pod_set.clone()).or_insert_with(mold);
            Share { group: kind.group, shape: kind.shape, pod_set, count, starting: 0 }
        });
        let pods: Vec<Share> = pods.collect();
        if !pods.is_empty() {
            wanted.record.members.push(MemberShare { name: member.name.clone(), uid: member.uid.clone(), pods });
        }
    }
    Ok(wanted)
}

/// How many pods of each kind a member needs. Pods that exist count as what they are until they are gone, whatever the object
/// says; pods that are to come count as long as their member isn't on its way out, and hasn't been stopped for the sake of others:
/// those that wait already as what they are, and the others as the group's template says.
fn needed(member: &Member, groups: &[Group]) -> Vec<(PodKind, u32)> {
    let mut needed = Vec::new();
    let mut others = member.live_pods.clone();
    let none_come = member.going || (member.preempted && !member.open);
    for group in groups {
        let present = group.kind();
        let alive: u32 =
            member.live_pods.iter().filter(|(kind, _)| kind.group == group.name).map(|(_, alive)| alive).sum();
        let to_come = if none_come { 0 } else { group.count.saturating_sub(alive) };
        let waiting = member.gated.iter().filter(|pod| pod.kind.group == group.name && pod.kind != present);
        let waiting: Vec<_> = waiting.take(to_come as usize).collect();
        let rest = to_come - u32::try_from(waiting.len()).unwrap_or(to_come);
        needed.push((present.clone(), others.remove(&present).unwrap_or(0).saturating_add(rest)));
        for pod in waiting {
            *others.entry(pod.kind.clone()).or_default() += 1;
        }
        let of_group: Vec<_> = others.extract_if(.., |kind, _| kind.group == group.name).collect();
        needed.extend(of_group);
    }
    needed.extend(others);
    needed.retain(|(_, count)| *count > 0);
    needed
}

/// The template that a living slice has for a PodSet.
fn kept<'s>(slices: &[&'s Slice<'_>], pod_set: &str) -> Option<&'s PodTemplate> {
    let sets = slices.iter().rev().flat_map(|slice| &slice.workload.spec.pod_sets);
    sets.into_iter().find(|set| set.name == pod_set).map(|set| &set.template)
}

/// Whether a Workload has room for all PodSets.
///
/// # Errors
/// When there are more; the sentence names the field and the numbers.
pub(super) fn enough_room(record: &Record) -> Result<(), String> {
    let of = |member: &MemberShare| member.pods.iter().map(|share| share.pod_set.clone()).collect::<BTreeSet<_>>();
    let all: BTreeSet<String> = record.members.iter().flat_map(of).collect();
    if all.len() <= MOST_POD_SETS {
        return Ok(());
    }
    let each = record
        .members
        .iter()
        .map(|member| format!("RayCluster {} has pods of {} kinds", member.name, of(member).len()));
    Err(format!(
        "spec.workerGroupSpecs: {}, which makes {} PodSets, and a Workload has at most {MOST_POD_SETS}; have fewer worker groups, \
         or change the resources and places of fewer of them at once",
        each.collect::<Vec<_>>().join(" and "),
        all.len()
    ))
}

/// Gives PodSets their names.
struct Names {
    /// Those that pods of a member have, by its uid.
    own: BTreeMap<(String, PodKind), String>,
    /// Those that other pods of a kind get.
    newest: BTreeMap<PodKind, String>,
    used: BTreeSet<String>,
}

impl Names {
    /// The names that living slices have; also of PodSets that were asked for and not granted.
    fn new(slices: &[&Slice<'_>]) -> Self {
        let mut names = Self { own: BTreeMap::new(), newest: BTreeMap::new(), used: BTreeSet::new() };
        for slice in slices {
            names.take(&slice.record);
            let sets = &slice.workload.spec.pod_sets;
            let named = |set: &str| slice.record.members.iter().flat_map(|m| &m.pods).any(|share| share.pod_set == set);
            if let Some(asked) = Record::of(slice.workload).filter(|_| !sets.iter().all(|set| named(&set.name))) {
                names.take(&asked);
            }
        }
        names
    }

    fn take(&mut self, record: &Record) {
        for member in &record.members {
            for share in &member.pods {
                self.own.insert((member.uid.clone(), share.kind()), share.pod_set.clone());
                self.note(&share.kind(), &share.pod_set);
            }
        }
    }

    fn note(&mut self, kind: &PodKind, name: &str) {
        self.newest.insert(kind.clone(), name.to_owned());
        self.used.insert(name.to_owned());
    }

    /// The PodSet of pods of this kind in a member. `plain` is what it is called if that is free.
    fn of(&mut self, member: &str, kind: &PodKind, plain: &str, apart: Option<&Apart<'_>>) -> String {
        let own = self.own.get(&(member.to_owned(), kind.clone()));
        let name = own.or(self.newest.get(kind)).cloned().unwrap_or_else(|| match self.used.contains(plain) {
            true => ending(plain, &kind.shape),
            false => plain.to_owned(),
        });
        let moved = apart.filter(|apart| apart.concerns(member, &name)).map(|apart| ending(plain, &apart.sequence()));
        let is_free = |name: &String| !self.used.contains(name) || self.newest.get(kind) == Some(name);
        let name = moved.filter(is_free).unwrap_or(name);
        self.note(kind, &name);
        name
    }
}

/// `name-ending`; the name of a PodSet is a DNS label, so it has at most 63 characters, and at most 10 of them are the ending.
fn ending(name: &str, ending: &str) -> String {
    let ending: String = ending.chars().take(10).collect();
    let kept: String = name.chars().take(63 - 1 - ending.len()).collect();
    format!("{kept}-{ending}")
}

/// Hashes what makes two pods the same to quota and to the choice of a flavor: what their containers request and are limited
/// to, their runtime class, and where they can run. (The sum of the requests would not do: what a LimitRange adds to pods and
/// allows them goes by container.)
///
/// # Errors
/// When a request isn't a quantity; the sentence names it.
pub fn shape_of(spec: &PodSpec) -> Result<String, RequestsError> {
    let node_affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let facts = json!({
        "pod": pod_facts(spec)?,
        "nodeSelector": spec.node_selector,
        "nodeAffinity": node_affinity,
        "tolerations": spec.tolerations,
    });
    let digest = Sha256::digest(facts.to_string());
    Ok(digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    fn of(pod: Value) -> String {
        shape_of(&serde_json::from_value(pod).expect("a pod")).expect("a shape")
    }

    fn worker(resources: Value) -> Value {
        json!({"name": "ray-worker", "resources": resources})
    }

    fn plain() -> Value {
        json!({"containers": [worker(json!({"requests": {"cpu": "1"}}))]})
    }

    #[rstest]
    #[case::another_notation(json!({"containers": [worker(json!({"requests": {"cpu": "1000m"}}))]}), true)]
    #[case::another_image(json!({"containers": [{"name": "w", "image": "new", "resources": {"requests": {"cpu": 1}}}]}), true)]
    #[case::another_request(json!({"containers": [worker(json!({"requests": {"cpu": "2"}}))]}), false)]
    // A LimitRange may give the sidecar a request, forbid the limit, and demand so much of each container.
    #[case::a_sidecar_that_asks_for_nothing(
        json!({"containers": [worker(json!({"requests": {"cpu": "1"}})), {"name": "sidecar"}]}), false)]
    #[case::a_limit(json!({"containers": [worker(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}))]}), false)]
    #[case::the_same_in_two_containers(
        json!({"containers": [worker(json!({"requests": {"cpu": "500m"}})), worker(json!({"requests": {"cpu": "500m"}}))]}), false)]
    #[case::a_runtime_class(
        json!({"runtimeClassName": "kata", "containers": [worker(json!({"requests": {"cpu": "1"}}))]}), false)]
    #[case::a_place(
        json!({"nodeSelector": {"gpu": "h100"}, "containers": [worker(json!({"requests": {"cpu": "1"}}))]}), false)]
    fn a_shape_is_all_that_a_charge_and_a_flavor_can_depend_on(#[case] other: Value, #[case] same: bool) {
        assert_eq!(of(plain()) == of(other), same);
    }
}
