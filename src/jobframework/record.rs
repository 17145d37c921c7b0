//! What a slice was built from: which pods of which members of the job it pays for.
//!
//! The record is kept on the Workload as an annotation. It is why a slice that was made before a child existed can't open
//! that child, and why quota can be held for a child whose object is gone while its pods are not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::census::PodKind;
use sluice_api::kueue::Workload;
use sluice_queue::parts::PartPods;
use sluice_queue::steps::{SLICE_ANNOTATION, Step, StepPods};
use sluice_raycluster::revision;

/// What a slice pays for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Orders the slices of a job; it only grows.
    pub sequence: u64,
    /// What it pays for, member by member, the oldest member first.
    pub members: Vec<MemberShare>,
    /// In which order it may be granted what it asks for on top of what its predecessor holds; all at once if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// What can be taken from it without the rest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartPods>,
    /// Members whose place it takes: it pays for none of their pods, and what it pays for starts once the last of them is gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instead_of: Vec<Displaced>,
}

/// A member that makes place for another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Displaced {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// The uid of the member that takes its place.
    pub by: String,
}

/// What a slice pays for in one member of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberShare {
    /// Name of the member: of a RayCluster, say.
    pub name: String,
    /// Its uid, so that a member made anew under the same name isn't taken for it; with that of its revision
    /// ([`revision::share`]), if it is a RayCluster whose pods were made anew.
    pub uid: String,
    /// Its pods, by group.
    pub pods: Vec<Share>,
}

/// Pods of one shape in one group of one member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Share {
    /// The group, as the member's pods are labelled.
    pub group: String,
    /// What the scheduler is asked for by each of these pods, hashed.
    pub shape: String,
    /// The PodSet that they are counted in.
    pub pod_set: String,
    /// How many pods.
    pub count: u32,
    /// How many of them came on top of what the job held before, and have not all been ready yet. They may take their time:
    /// what ran before is not stopped for them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub starting: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// How many pods of each (PodSet, shape).
pub type Counts = BTreeMap<(String, String), u32>;

impl Record {
    /// The record of a slice; `None` when the Workload has none, or one that can't be read.
    pub fn of(workload: &Workload) -> Option<Self> {
        let annotations = workload.metadata.annotations.as_ref()?;
        serde_json::from_str(annotations.get(SLICE_ANNOTATION)?).ok()
    }

    /// The record as the value of its annotation.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What it pays for in the member with this uid.
    pub fn member(&self, uid: &str) -> Option<&MemberShare> {
        self.members.iter().find(|member| member.uid == uid)
    }

    /// What it pays for in the RayCluster with this uid, of whatever revision.
    pub fn of_cluster(&self, uid: &str) -> Option<&MemberShare> {
        self.members.iter().find(|member| revision::of_share(&member.uid).0 == uid)
    }

    /// All pods that it pays for, summed over the members.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::new();
        for share in self.members.iter().flat_map(|member| &member.pods) {
            *counts.entry((share.pod_set.clone(), share.shape.clone())).or_default() += share.count;
        }
        counts
    }

    /// The same pods, of which those that `before` did not pay for, or that were starting there, are starting.
    pub fn on_top_of(mut self, before: &Self) -> Self {
        for member in &mut self.members {
            let known = before.member(&member.uid);
            for share in &mut member.pods {
                let settled = known.map_or(0, |known| known.settled(&share.group, &share.shape));
                share.starting = share.count.saturating_sub(settled);
            }
        }
        self
    }

    /// The same pods, of which those of the member with this uid are not starting any more.
    pub fn started(mut self, uid: &str) -> Self {
        let of_member = self.members.iter_mut().filter(|member| member.uid == uid);
        of_member.flat_map(|member| &mut member.pods).for_each(|share| share.starting = 0);
        self
    }

    /// What of this is still wanted: members that are gone are dropped, and shares are lowered to what is wanted.
    pub fn meet(&self, wanted: &Self) -> Self {
        let members = self.members.iter().filter_map(|member| {
            let wanted = wanted.member(&member.uid)?;
            let pods = member.pods.iter().filter_map(|share| share.meet(wanted));
            Some(MemberShare { pods: pods.collect(), ..member.clone() })
        });
        Self { sequence: self.sequence, members: members.collect(), ..Self::default() }
    }

    /// The same, and what `held` pays for beyond that, for members that are still wanted: it stands for what they will ask for next,
    /// or others of the same job in their place.
    pub fn keeping(mut self, held: &Self) -> Self {
        let mut wanted = self.counts();
        let spare = held.counts().into_iter().filter_map(|(pods, count)| {
            let spare = count.checked_sub(wanted.remove(&pods).unwrap_or(0))?;
            Some((pods, spare))
        });
        let mut spare: Counts = spare.collect();
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

    /// What of this is paid for when so many pods of each PodSet were granted: each step as often as there is enough for it.
    /// The last come first here, since only members that are to run have a head among their pods.
    pub fn as_granted(mut self, granted: impl Fn(&str) -> u32) -> Self {
        let mut left: BTreeMap<String, u32> = BTreeMap::new();
        for (pod_set, before) in self.before_steps() {
            left.insert(pod_set.clone(), granted(&pod_set).saturating_sub(before));
        }
        for step in std::mem::take(&mut self.steps).iter().rev() {
            let room = |pods: &StepPods| left.get(&pods.pod_set).map_or(0, |left| left / pods.count.max(1));
            let times = step.pods.iter().map(room).min().unwrap_or(0).min(step.times);
            for pods in &step.pods {
                left.entry(pods.pod_set.clone()).and_modify(|left| *left -= times * pods.count);
                self.take_away(pods, pods.count.saturating_mul(step.times - times));
            }
        }
        self
    }

    /// How many pods of each PodSet it pays for before its first step.
    fn before_steps(&self) -> BTreeMap<String, u32> {
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

    fn take_away(&mut self, pods: &StepPods, count: u32) {
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
    /// Which PodSet holds its pods of this kind.
    pub fn pod_set_of(&self, kind: &PodKind) -> Option<&str> {
        self.pods.iter().find(|share| share.kind() == *kind).map(|share| share.pod_set.as_str())
    }

    /// How many pods of this group and shape are paid for.
    pub fn count(&self, group: &str, shape: &str) -> u32 {
        let same = self.pods.iter().filter(|share| share.group == group && share.shape == shape);
        same.map(|share| share.count).sum()
    }

    /// Pays for more pods like those of `share`.
    fn add(&mut self, share: &Share, more: u32) {
        match self.pods.iter_mut().find(|known| known.kind() == share.kind() && known.pod_set == share.pod_set) {
            Some(known) => known.count += more,
            None if more > 0 => self.pods.push(Share { count: more, starting: 0, ..share.clone() }),
            None => {}
        }
    }

    /// How many of those are past their start.
    fn settled(&self, group: &str, shape: &str) -> u32 {
        let same = self.pods.iter().filter(|share| share.group == group && share.shape == shape);
        same.map(|share| share.count.saturating_sub(share.starting)).sum()
    }
}

impl Share {
    /// What these pods are.
    pub fn kind(&self) -> PodKind {
        PodKind::new(&self.group, &self.shape)
    }

    fn meet(&self, wanted: &MemberShare) -> Option<Self> {
        let count = self.count.min(wanted.count(&self.group, &self.shape));
        let settled = self.count.saturating_sub(self.starting).min(count);
        (count > 0).then(|| Self { count, starting: count - settled, ..self.clone() })
    }
}

/// Whether `wanted` is no more than `granted`, for each PodSet and shape.
pub fn fits_within(wanted: &Counts, granted: &Counts) -> bool {
    wanted.iter().all(|(pods, count)| granted.get(pods).is_some_and(|granted| count <= granted))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn share(group: &str, count: u32) -> Share {
        Share { group: group.into(), shape: "s".into(), pod_set: group.into(), count, starting: 2 }
    }

    fn record(members: &[(&str, u32)]) -> Record {
        let member = |(uid, count): &(&str, u32)| MemberShare {
            name: (*uid).into(),
            uid: (*uid).into(),
            pods: vec![Share { starting: 0, ..share("small", *count) }],
        };
        Record { members: members.iter().map(member).collect(), ..Record::default() }
    }

    #[rstest]
    #[case::one_gives_and_none_takes(&[("a", 2), ("b", 2)], &[("a", 4), ("b", 2)])]
    #[case::one_gives_to_the_other(&[("a", 2), ("b", 4)], &[("a", 2), ("b", 4)])]
    #[case::one_gives_more_than_the_other_takes(&[("a", 1), ("b", 4)], &[("a", 2), ("b", 4)])]
    #[case::one_takes_more(&[("a", 4), ("b", 4)], &[("a", 4), ("b", 4)])]
    #[case::one_has_nothing_left(&[("a", 0), ("b", 3)], &[("a", 3), ("b", 3)])]
    #[case::one_is_gone(&[("b", 3)], &[("b", 3)])]
    fn what_is_held_is_kept_for_the_members_that_are_wanted(
        #[case] wanted: &[(&str, u32)],
        #[case] expected: &[(&str, u32)],
    ) {
        let held = record(&[("a", 4), ("b", 2)]);
        assert_eq!(record(wanted).keeping(&held), record(expected));
    }

    fn step(member: &str, times: u32, pods: &[(&str, u32)]) -> Step {
        let pods = pods.iter().map(|(group, count)| StepPods {
            member: member.into(),
            group: (*group).into(),
            pod_set: (*group).into(),
            count: *count,
        });
        Step { times, pods: pods.collect() }
    }

    /// Of `a` a head and two workers run; two replicas of two hosts come on top, and then `b`.
    fn growing() -> Record {
        let member = |uid: &str, pods: Vec<Share>| MemberShare { name: uid.to_owned(), uid: uid.to_owned(), pods };
        let members = vec![
            member("a", vec![share("head", 1), share("small", 6)]),
            member("b", vec![share("head", 1), share("small", 3)]),
        ];
        let steps = vec![step("a", 2, &[("small", 2)]), step("b", 1, &[("head", 1), ("small", 3)])];
        Record { sequence: 7, members, steps, ..Record::default() }
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
    fn the_steps_that_were_granted_are_paid_for(
        #[case] heads: u32,
        #[case] small: u32,
        #[case] expected: &[(&str, u32, u32)],
    ) {
        let paid = growing().as_granted(|pod_set| if pod_set == "head" { heads } else { small });

        let counts =
            paid.members.iter().map(|member| (&*member.uid, member.count("head", "s"), member.count("small", "s")));
        assert_eq!(counts.collect::<Vec<_>>(), expected);
        assert_eq!((paid.sequence, paid.steps), (7, vec![]));
    }

    #[test]
    fn what_was_not_granted_does_not_start() {
        let paid = growing().as_granted(|pod_set| if pod_set == "head" { 1 } else { 4 });
        assert_eq!(paid.members[0].pods[1], Share { count: 4, starting: 0, ..share("small", 4) });
    }

    #[test]
    fn a_record_that_grows_is_read_as_it_was_written() {
        let mut workload = Workload::default();
        let annotations = workload.metadata.annotations.get_or_insert_default();
        annotations.insert(SLICE_ANNOTATION.into(), growing().to_annotation());
        assert_eq!(Record::of(&workload), Some(growing()));
    }
}
