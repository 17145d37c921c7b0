//! What a slice was built from: which pods of which members of the job it pays for.
//!
//! The record is kept on the Workload as an annotation. It is why a slice that was made before a child existed can't open
//! that child, and why quota can be held for a child whose object is gone while its pods are not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::kueue::Workload;

/// The annotation that holds the record, as JSON.
pub const RECORD_ANNOTATION: &str = "sluice.dev/slice";

/// What a slice pays for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Orders the slices of a job; it only grows.
    pub sequence: u64,
    /// What it pays for, member by member, the oldest member first.
    pub members: Vec<MemberShare>,
}

/// What a slice pays for in one member of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberShare {
    /// Name of the member: of a RayCluster, say.
    pub name: String,
    /// Its uid, so that a member made anew under the same name isn't taken for it.
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
        serde_json::from_str(annotations.get(RECORD_ANNOTATION)?).ok()
    }

    /// The record as the value of its annotation.
    pub fn to_annotation(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What it pays for in the member with this uid.
    pub fn member(&self, uid: &str) -> Option<&MemberShare> {
        self.members.iter().find(|member| member.uid == uid)
    }

    /// All pods that it pays for, summed over the members.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::new();
        for share in self.members.iter().flat_map(|member| &member.pods) {
            *counts.entry((share.pod_set.clone(), share.shape.clone())).or_default() += share.count;
        }
        counts
    }

    /// Which PodSet holds pods of this group and shape.
    pub fn pod_set_of(&self, group: &str, shape: &str) -> Option<&str> {
        let shares = self.members.iter().flat_map(|member| &member.pods);
        shares
            .into_iter()
            .find(|share| share.group == group && share.shape == shape)
            .map(|share| share.pod_set.as_str())
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
        Self { sequence: self.sequence, members: members.collect() }
    }
}

impl MemberShare {
    /// How many pods of this group and shape are paid for.
    pub fn count(&self, group: &str, shape: &str) -> u32 {
        let same = self.pods.iter().filter(|share| share.group == group && share.shape == shape);
        same.map(|share| share.count).sum()
    }

    /// How many of those are past their start.
    fn settled(&self, group: &str, shape: &str) -> u32 {
        let same = self.pods.iter().filter(|share| share.group == group && share.shape == shape);
        same.map(|share| share.count.saturating_sub(share.starting)).sum()
    }
}

impl Share {
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
