//! Slice record: the pods of each member of the job that a slice covers.
//!
//! The record is an annotation of the Workload. Because of it, a slice created before a RayCluster
//! existed cannot open that cluster, and quota can be held for a deleted RayCluster whose pods
//! still exist.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::types::PodKind;
use sluice_api::kueue::Workload;
use sluice_queue::partial_admission::{GrowthStep, GrowthStepPods, SLICE_ANNOTATION};
use sluice_queue::partial_preemption::PartPods;
use sluice_raycluster::revision;

/// Maximum number of PodSets of a Workload (kueue v0.19.2
/// `apis/kueue/v1beta2/workload_types.go`; our CRD schema has the same limit).
pub const MAX_POD_SETS: usize = 18;

/// Pods that a slice covers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceRecord {
    /// Sequence number within the job; it only grows.
    pub sequence: u64,
    /// Covered pods by member, oldest member first.
    pub members: Vec<MemberShare>,
    /// Steps in which the pods beyond those of the predecessor may be granted, in order. If empty,
    /// all are granted together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<GrowthStep>,
    /// Parts that can be preempted separately.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartPods>,
    /// Members that the covered ones replace. The slice covers none of their pods, and its pods
    /// start once the last of theirs is gone. Earlier versions stored it as `insteadOf`.
    #[serde(default, rename = "displaces", alias = "insteadOf", skip_serializing_if = "Vec::is_empty")]
    pub displaces: Vec<DisplacedMember>,
}

/// Member that is stopped so that another member can use its quota.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DisplacedMember {
    /// Name of the member.
    pub name: String,
    /// Uid of the member.
    pub uid: String,
    /// Uid of the member that replaces it.
    #[serde(rename = "by")]
    pub replaced_by: String,
}

/// Pods of one member of the job that a slice covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberShare {
    /// Name of the member, for example of a RayCluster.
    pub name: String,
    /// Uid of the member, which differs from that of a recreated one of the same name. For a
    /// RayCluster whose pods were recreated it includes the revision ([`sluice_raycluster::revision::member_uid`]).
    pub uid: String,
    /// Covered pods, by group and shape.
    pub pods: Vec<PodShare>,
}

/// Pods of one shape in one group of one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodShare {
    /// Name of the group: the value of the group label of its pods.
    pub group: String,
    /// Hash of the scheduling requirements of each pod.
    pub shape: String,
    /// PodSet that the pods are counted in.
    pub pod_set: String,
    /// Number of pods.
    pub count: u32,
    /// Number of pods that were added to what the job held before and have not all been ready yet.
    /// The PodsReady timeout does not apply to them: running pods are not stopped because of them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub starting: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Number of pods by (PodSet, shape).
pub type PodSetShapeCounts = BTreeMap<(String, String), u32>;

impl SliceRecord {
    /// Reads the record of a slice; `None` if the Workload has none or it cannot be parsed.
    pub fn from_workload(workload: &Workload) -> Option<Self> {
        let annotations = workload.metadata.annotations.as_ref()?;
        serde_json::from_str(annotations.get(SLICE_ANNOTATION)?).ok()
    }

    /// Returns the record as the value of its annotation.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns the covered pods of the member with this uid; `None` if the slice does not cover it.
    pub fn member(&self, uid: &str) -> Option<&MemberShare> {
        self.members.iter().find(|member| member.uid == uid)
    }

    /// Returns the covered pods of the RayCluster with this uid, regardless of the revision.
    pub fn member_of_cluster(&self, uid: &str) -> Option<&MemberShare> {
        self.members.iter().find(|member| revision::parse_member_uid(&member.uid).0 == uid)
    }

    /// Returns the number of covered pods by PodSet and shape, over all members.
    pub fn counts(&self) -> PodSetShapeCounts {
        let mut counts = PodSetShapeCounts::new();
        for share in self.members.iter().flat_map(|member| &member.pods) {
            *counts.entry((share.pod_set.clone(), share.shape.clone())).or_default() += share.count;
        }
        counts
    }

    /// Marks the pods that `before` did not cover, or that were starting there, as starting.
    pub fn mark_starting(mut self, before: &Self) -> Self {
        for member in &mut self.members {
            let known = before.member(&member.uid);
            for share in &mut member.pods {
                let settled = known.map_or(0, |known| known.started_count(&share.group, &share.shape));
                share.starting = share.count.saturating_sub(settled);
            }
        }
        self
    }

    /// Marks the pods of the member with this uid as started.
    pub fn mark_started(mut self, uid: &str) -> Self {
        for member in self.members.iter_mut().filter(|member| member.uid == uid) {
            for share in &mut member.pods {
                share.starting = 0;
            }
        }
        self
    }

    /// Returns the intersection with `wanted`: lowers pod counts to the desired ones, and drops members
    /// of which nothing is left.
    pub fn intersection(&self, wanted: &Self) -> Self {
        let members = self.members.iter().filter_map(|member| {
            let wanted = wanted.member(&member.uid)?;
            let pods: Vec<_> = member.pods.iter().filter_map(|share| share.intersection(wanted)).collect();
            (!pods.is_empty()).then(|| MemberShare { pods, ..member.clone() })
        });
        Self { sequence: self.sequence, members: members.collect(), ..Self::default() }
    }

    /// Retains the quota of `held` beyond this demand, for members that are still desired: they, or
    /// other members of the job, request it next.
    pub fn retaining(mut self, held: &Self) -> Self {
        let mut wanted = self.counts();
        let spare = held.counts().into_iter().filter_map(|(pods, count)| {
            let spare = count.checked_sub(wanted.remove(&pods).unwrap_or(0))?;
            Some((pods, spare))
        });
        let mut spare: PodSetShapeCounts = spare.collect();
        for member in &mut self.members {
            let Some(before) = held.member(&member.uid) else { continue };
            for share in &before.pods {
                let Some(left) = spare.get_mut(&(share.pod_set.clone(), share.shape.clone())) else { continue };
                let more = share.count.saturating_sub(member.count(&share.group, &share.shape)).min(*left);
                *left -= more;
                member.add(share, more);
            }
        }
        self
    }

    /// Limits the record to the number of pods granted per PodSet: each step counts as often as the
    /// grant allows. Steps are evaluated last to first, since only the steps of members that do not
    /// run yet include a head.
    pub fn limited_to_grant(mut self, granted: impl Fn(&str) -> u32) -> Self {
        let mut left: BTreeMap<String, u32> = BTreeMap::new();
        for (pod_set, before) in self.base_counts() {
            left.insert(pod_set.clone(), granted(&pod_set).saturating_sub(before));
        }
        for step in std::mem::take(&mut self.steps).iter().rev() {
            let room = |pods: &GrowthStepPods| left.get(&pods.pod_set).map_or(0, |left| left / pods.count.max(1));
            let times = step.pods.iter().map(room).min().unwrap_or(0).min(step.times);
            for pods in &step.pods {
                left.entry(pods.pod_set.clone()).and_modify(|left| *left -= times * pods.count);
                self.remove_pods(pods, pods.count.saturating_mul(step.times - times));
            }
        }
        self
    }

    /// Returns the number of covered pods by PodSet before the first step.
    fn base_counts(&self) -> BTreeMap<String, u32> {
        let mut before: BTreeMap<String, u32> = BTreeMap::new();
        for share in self.members.iter().flat_map(|member| &member.pods) {
            *before.entry(share.pod_set.clone()).or_default() += share.count;
        }
        for (step, pods) in self.steps.iter().flat_map(|step| step.pods.iter().map(move |pods| (step, pods))) {
            let added = pods.count.saturating_mul(step.times);
            before.entry(pods.pod_set.clone()).and_modify(|before| *before = before.saturating_sub(added));
        }
        before
    }

    fn remove_pods(&mut self, pods: &GrowthStepPods, count: u32) {
        for member in self.members.iter_mut().filter(|member| member.uid == pods.member) {
            let shares = member.pods.iter_mut();
            for share in shares.filter(|share| share.group == pods.group && share.pod_set == pods.pod_set) {
                share.count = share.count.saturating_sub(count);
                share.starting = share.starting.saturating_sub(count);
            }
            member.pods.retain(|share| share.count > 0);
        }
        self.members.retain(|member| !member.pods.is_empty());
    }
}

impl MemberShare {
    /// Returns the PodSet that covers pods of this kind; `None` if none does.
    pub fn pod_set_of(&self, kind: &PodKind) -> Option<&str> {
        self.pods.iter().find(|share| share.kind() == *kind).map(|share| share.pod_set.as_str())
    }

    /// Returns the number of covered pods of this group and shape.
    pub fn count(&self, group: &str, shape: &str) -> u32 {
        let same = self.pods.iter().filter(|share| share.group == group && share.shape == shape);
        same.map(|share| share.count).sum()
    }

    /// Adds `more` pods of the kind and PodSet of `share`.
    fn add(&mut self, share: &PodShare, more: u32) {
        match self.pods.iter_mut().find(|known| known.kind() == share.kind() && known.pod_set == share.pod_set) {
            Some(known) => known.count += more,
            None if more > 0 => self.pods.push(PodShare { count: more, starting: 0, ..share.clone() }),
            None => {}
        }
    }

    /// Returns the number of covered pods of this group and shape that have started.
    fn started_count(&self, group: &str, shape: &str) -> u32 {
        let same = self.pods.iter().filter(|share| share.group == group && share.shape == shape);
        same.map(|share| share.count.saturating_sub(share.starting)).sum()
    }
}

impl PodShare {
    /// Returns the kind of these pods.
    pub fn kind(&self) -> PodKind {
        PodKind::new(&self.group, &self.shape)
    }

    fn intersection(&self, wanted: &MemberShare) -> Option<Self> {
        let count = self.count.min(wanted.count(&self.group, &self.shape));
        let settled = self.count.saturating_sub(self.starting).min(count);
        (count > 0).then(|| Self { count, starting: count - settled, ..self.clone() })
    }
}

/// Returns true if `wanted` is at most `granted` for each PodSet and shape.
pub fn fits_within(wanted: &PodSetShapeCounts, granted: &PodSetShapeCounts) -> bool {
    wanted.iter().all(|(pods, count)| granted.get(pods).is_some_and(|granted| count <= granted))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn share(group: &str, count: u32) -> PodShare {
        PodShare { group: group.into(), shape: "s".into(), pod_set: group.into(), count, starting: 2 }
    }

    fn record(members: &[(&str, u32)]) -> SliceRecord {
        let member = |(uid, count): &(&str, u32)| MemberShare {
            name: (*uid).into(),
            uid: (*uid).into(),
            pods: vec![PodShare { starting: 0, ..share("small", *count) }],
        };
        SliceRecord { members: members.iter().map(member).collect(), ..SliceRecord::default() }
    }

    #[rstest]
    #[case::one_shrinks(&[("a", 2), ("b", 2)], &[("a", 4), ("b", 2)])]
    #[case::one_shrinks_and_the_other_grows_by_as_much(&[("a", 2), ("b", 4)], &[("a", 2), ("b", 4)])]
    #[case::one_shrinks_by_more_than_the_other_grows(&[("a", 1), ("b", 4)], &[("a", 2), ("b", 4)])]
    #[case::one_grows(&[("a", 4), ("b", 4)], &[("a", 4), ("b", 4)])]
    #[case::one_shrinks_to_zero(&[("a", 0), ("b", 3)], &[("a", 3), ("b", 3)])]
    #[case::one_is_gone(&[("b", 3)], &[("b", 3)])]
    fn held_quota_is_retained_for_desired_members(#[case] wanted: &[(&str, u32)], #[case] expected: &[(&str, u32)]) {
        let held = record(&[("a", 4), ("b", 2)]);
        assert_eq!(record(wanted).retaining(&held), record(expected));
    }

    fn step(member: &str, times: u32, pods: &[(&str, u32)]) -> GrowthStep {
        let pods = pods.iter().map(|(group, count)| GrowthStepPods {
            member: member.into(),
            group: (*group).into(),
            pod_set: (*group).into(),
            count: *count,
        });
        GrowthStep { times, pods: pods.collect() }
    }

    /// A head and two workers of `a` run. Two replicas of two hosts are added, and then `b`.
    fn growing() -> SliceRecord {
        let member = |uid: &str, pods: Vec<PodShare>| MemberShare { name: uid.to_owned(), uid: uid.to_owned(), pods };
        let members = vec![
            member("a", vec![share("head", 1), share("small", 6)]),
            member("b", vec![share("head", 1), share("small", 3)]),
        ];
        let steps = vec![step("a", 2, &[("small", 2)]), step("b", 1, &[("head", 1), ("small", 3)])];
        SliceRecord { sequence: 7, members, steps, ..SliceRecord::default() }
    }

    #[rstest]
    #[case::everything(2, 9, &[("a", 1, 6), ("b", 1, 3)])]
    #[case::more_than_that(5, 99, &[("a", 1, 6), ("b", 1, 3)])]
    #[case::all_replicas(1, 6, &[("a", 1, 6)])]
    #[case::the_cluster_and_a_replica(2, 7, &[("a", 1, 4), ("b", 1, 3)])]
    #[case::the_cluster_alone(2, 5, &[("a", 1, 2), ("b", 1, 3)])]
    #[case::too_little_for_the_cluster(2, 4, &[("a", 1, 4)])]
    #[case::a_replica(1, 4, &[("a", 1, 4)])]
    #[case::a_replica_and_a_half(1, 5, &[("a", 1, 4)])]
    #[case::nothing_more(1, 2, &[("a", 1, 2)])]
    #[case::less_than_ran_before(1, 1, &[("a", 1, 2)])]
    #[case::a_head_is_missing(0, 9, &[("a", 1, 6)])]
    fn granted_steps_are_covered(#[case] heads: u32, #[case] small: u32, #[case] expected: &[(&str, u32, u32)]) {
        let covered = growing().limited_to_grant(|pod_set| if pod_set == "head" { heads } else { small });

        let counts =
            covered.members.iter().map(|member| (&*member.uid, member.count("head", "s"), member.count("small", "s")));
        assert_eq!(counts.collect::<Vec<_>>(), expected);
        assert_eq!((covered.sequence, covered.steps), (7, vec![]));
    }

    #[test]
    fn pods_that_were_not_granted_are_not_starting() {
        let covered = growing().limited_to_grant(|pod_set| if pod_set == "head" { 1 } else { 4 });
        assert_eq!(covered.members[0].pods[1], PodShare { count: 4, starting: 0, ..share("small", 4) });
    }

    #[test]
    fn record_with_steps_round_trips() {
        assert_eq!(read(&growing().to_annotation()), Some(growing()));
    }

    fn read(annotation: &str) -> Option<SliceRecord> {
        let mut workload = Workload::default();
        workload.metadata.annotations.get_or_insert_default().insert(SLICE_ANNOTATION.into(), annotation.into());
        SliceRecord::from_workload(&workload)
    }

    /// Earlier versions stored the displaced members as `insteadOf`.
    #[rstest]
    #[case::of_this_version("displaces")]
    #[case::of_earlier_versions("insteadOf")]
    fn displaced_members_are_read(#[case] field: &str) {
        let text = format!(r#"{{"sequence":1,"members":[],"{field}":[{{"name":"a","uid":"u","by":"b"}}]}}"#);
        let displaced = DisplacedMember { name: "a".into(), uid: "u".into(), replaced_by: "b".into() };
        let record = SliceRecord { sequence: 1, displaces: vec![displaced], ..SliceRecord::default() };

        assert_eq!(read(&text), Some(record.clone()));
        assert!(record.to_annotation().contains("\"displaces\""), "{}", record.to_annotation());
    }
}
