//! From the live members of a job to its PodSets.
//!
//! Pods of equal shape under one group name are summed under that name, whichever member they belong to; so going from one
//! child to two is a scale-up under a stable name, and the old child's end a scale-down. Pods of another shape under the
//! same group name are a PodSet of their own, whose name ends in the shape, so each is charged as what it is.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::record::{MemberShare, Record, Share};
use super::{Group, Member};
use crate::queue::requests::{RequestsError, pod_facts};

/// The PodSets that a job needs, and which pods each of them pays for.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Which pods are paid for, member by member; the sequence is not set.
    pub record: Record,
    /// A template for each PodSet, by the name of the PodSet.
    pub templates: BTreeMap<String, PodTemplateSpec>,
}

/// Derives what a job needs from its members, the oldest first. `slices` are the records of its living slices, oldest
/// first: a PodSet keeps the name that it has there. `gone` are recorded shares of members whose objects are gone, but
/// whose pods are not.
///
/// # Errors
/// When the spec of a member doesn't say which pods it needs; the sentence names the field and the value.
pub fn wanted(members: &[Member], gone: &[MemberShare], slices: &[&Record]) -> Result<Wanted, String> {
    let mut names = Names::new(slices);
    let mut wanted = Wanted::default();
    wanted.record.members.extend(gone.iter().cloned());
    for member in members {
        let groups = member.groups.as_ref().as_ref().map_err(Clone::clone)?;
        let mut pods = Vec::new();
        for group in groups {
            let count = pods_of(member, group);
            if count == 0 {
                continue;
            }
            let pod_set = names.of(group);
            wanted.templates.entry(pod_set.clone()).or_insert_with(|| group.template.clone());
            pods.push(Share { group: group.name.clone(), shape: group.shape.clone(), pod_set, count, starting: 0 });
        }
        pods.extend(pods_of_removed_groups(member, groups, slices));
        if !pods.is_empty() {
            wanted.record.members.push(MemberShare { name: member.name.clone(), uid: member.uid.clone(), pods });
        }
    }
    Ok(wanted)
}

/// Pods that are left of groups which the spec no longer has. They were paid for, and are until they are gone.
fn pods_of_removed_groups(member: &Member, groups: &[Group], slices: &[&Record]) -> Vec<Share> {
    let removed = member.live_pods.iter().filter(|(name, _)| groups.iter().all(|group| group.name != **name));
    let paid = removed.filter_map(|(name, alive)| {
        let mut shares =
            slices.iter().rev().filter_map(|record| record.member(&member.uid)).flat_map(|share| &share.pods);
        let share = shares.find(|share| share.group == *name)?;
        Some(Share { count: share.count.min(*alive), ..share.clone() })
    });
    paid.collect()
}

/// Pods that exist count until they are gone, whatever the object says; pods that are to come count as long as their
/// member isn't on its way out, and hasn't been stopped for the sake of others.
fn pods_of(member: &Member, group: &Group) -> u32 {
    let alive = member.live_pods.get(&group.name).copied().unwrap_or(0);
    let none_come = member.going || (member.preempted && !member.open);
    if none_come { alive } else { group.count.max(alive) }
}

/// Gives PodSets their names.
struct Names {
    /// (group, shape) to name.
    taken: BTreeMap<(String, String), String>,
}

impl Names {
    fn new(slices: &[&Record]) -> Self {
        let shares = slices.iter().flat_map(|record| &record.members).flat_map(|member| &member.pods);
        let taken = shares.map(|share| ((share.group.clone(), share.shape.clone()), share.pod_set.clone()));
        Self { taken: taken.collect() }
    }

    fn of(&mut self, group: &Group) -> String {
        let key = (group.name.clone(), group.shape.clone());
        if let Some(name) = self.taken.get(&key) {
            return name.clone();
        }
        let plain_is_taken = self.taken.values().any(|name| *name == group.pod_set);
        let name = if plain_is_taken { suffixed(&group.pod_set, &group.shape) } else { group.pod_set.clone() };
        self.taken.insert(key, name.clone());
        name
    }
}

/// The name of a PodSet is a DNS label, so it has at most 63 characters.
fn suffixed(name: &str, shape: &str) -> String {
    let room = 63 - 1 - shape.len().min(10);
    let kept: String = name.chars().take(room).collect();
    format!("{kept}-{}", &shape[..shape.len().min(10)])
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
