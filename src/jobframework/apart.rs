//! Pods that go to another flavor than pods of the same kind that run already.
//!
//! All pods of a PodSet are in one flavor. So while there is room only in another one, what a new member adds gets PodSets of its
//! own. (Kueue v0.19.2 `pkg/scheduler/flavorassigner` keeps every slice of a job in the flavors of the one before it.)

use std::collections::BTreeSet;

use super::pod_sets::MOST_POD_SETS;
use super::record::Record;
use super::slices::{self, Slice};
use super::{JobView, Member};

/// Which pods of a job get PodSets of their own.
#[derive(Debug)]
pub(super) struct Apart<'a> {
    /// The PodSets that they would be counted in otherwise.
    pod_sets: BTreeSet<String>,
    /// The uids of the members that they belong to.
    members: BTreeSet<&'a str>,
    /// The sequence number of the slice that asks for them: their PodSets are called by it.
    sequence: u64,
}

impl<'a> Apart<'a> {
    /// Those of members that are yet to run, of PodSets for which a waiting slice finds no room where the others are, and then of
    /// all that are shared with what runs; none if a Workload has no room for so many PodSets.
    pub(super) fn of(view: &JobView<'_>, slices: &[Slice<'_>], members: &'a [Member]) -> Option<Self> {
        let (held, waiting) = (slices::covering(slices)?, slices::waiting(slices)?);
        let is_new =
            |member: &&Member| !member.open && member.live_pods.is_empty() && held.record.member(&member.uid).is_none();
        let new: BTreeSet<&str> = members.iter().filter(is_new).map(|member| member.uid.as_str()).collect();
        if new.is_empty() {
            return None;
        }
        let pinned = (view.pinned)(waiting.workload);
        let asked = waiting.record.members.iter().filter(|share| new.contains(share.uid.as_str()));
        let asked: BTreeSet<&String> = asked.flat_map(|share| &share.pods).map(|share| &share.pod_set).collect();
        let mut pod_sets: BTreeSet<String> = pinned.iter().filter(|pod_set| asked.contains(pod_set)).cloned().collect();
        if pod_sets.is_empty() && !pinned.is_empty() {
            // What stays is short because what comes takes its place.
            pod_sets = names(&held.record).intersection(&asked).copied().cloned().collect();
        }
        let fits = pod_sets.len() + names(&waiting.record).len() <= MOST_POD_SETS;
        let sequence = waiting.record.sequence;
        (!pod_sets.is_empty() && fits).then_some(Self { pod_sets, members: new, sequence })
    }

    /// Whether pods of a member get a PodSet of their own that would be counted in this one otherwise.
    pub(super) fn concerns(&self, member: &str, pod_set: &str) -> bool {
        self.members.contains(member) && self.pod_sets.contains(pod_set)
    }

    /// What their PodSets end in.
    pub(super) fn sequence(&self) -> String {
        self.sequence.to_string()
    }
}

fn names(record: &Record) -> BTreeSet<&String> {
    record.members.iter().flat_map(|member| &member.pods).map(|share| &share.pod_set).collect()
}
