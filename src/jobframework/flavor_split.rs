//! Flavor split: pods of a new member that use another flavor than running pods of the same kind.
//!
//! All pods of a PodSet use one flavor. If only another flavor has capacity, the pods of the new
//! member get separate PodSets. (Kueue v0.19.2 `pkg/scheduler/flavorassigner` keeps every slice of
//! a job in the flavors of its predecessor.)

use std::collections::BTreeSet;

use super::context::ReconcileContext;
use super::slice_record::MAX_POD_SETS;
use super::slice_record::SliceRecord;
use super::slices::{self, Slice};
use super::types::Member;

/// Pods of a job that get separate PodSets.
#[derive(Debug)]
pub(super) struct FlavorSplit<'a> {
    /// PodSets that the pods would be counted in without the split.
    pod_sets: BTreeSet<String>,
    /// Uids of the members that the pods belong to.
    members: BTreeSet<&'a str>,
    /// Sequence number of the slice that requests the pods; it is the suffix of their PodSets.
    sequence: u64,
}

impl<'a> FlavorSplit<'a> {
    /// Splits off pods of members that do not run yet, of PodSets that could fit in another flavor
    /// only. If those are split already, splits all PodSets shared with running members. `None` if
    /// there is nothing to split, or a Workload cannot hold that many PodSets.
    pub(super) fn detect(context: &ReconcileContext<'_>, slices: &[Slice<'_>], members: &'a [Member]) -> Option<Self> {
        let (held, waiting) = (slices::covering(slices)?, slices::pending(slices)?);
        let is_new = |member: &&Member| {
            !member.is_open && member.live_pods.is_empty() && held.record.member(&member.uid).is_none()
        };
        let new: BTreeSet<&str> = members.iter().filter(is_new).map(|member| member.uid.as_str()).collect();
        if new.is_empty() {
            return None;
        }
        let pinned = (context.flavor_bound_pod_sets)(waiting.workload);
        let requested = waiting.record.members.iter().filter(|share| new.contains(share.uid.as_str()));
        let requested: BTreeSet<&String> =
            requested.flat_map(|share| &share.pods).map(|share| &share.pod_set).collect();
        let mut pod_sets: BTreeSet<String> =
            pinned.iter().filter(|pod_set| requested.contains(pod_set)).cloned().collect();
        if pod_sets.is_empty() && !pinned.is_empty() {
            // The PodSet of the running pods lacks capacity because new pods use up its flavor.
            pod_sets = pod_set_names(&held.record).intersection(&requested).copied().cloned().collect();
        }
        let fits = pod_sets.len() + pod_set_names(&waiting.record).len() <= MAX_POD_SETS;
        let sequence = waiting.record.sequence;
        (!pod_sets.is_empty() && fits).then_some(Self { pod_sets, members: new, sequence })
    }

    /// Returns true if pods of `member` are split off from `pod_set`.
    pub(super) fn splits(&self, member: &str, pod_set: &str) -> bool {
        self.members.contains(member) && self.pod_sets.contains(pod_set)
    }

    /// Returns the suffix of the separate PodSets.
    pub(super) fn suffix(&self) -> String {
        self.sequence.to_string()
    }
}

fn pod_set_names(record: &SliceRecord) -> BTreeSet<&String> {
    record.members.iter().flat_map(|member| &member.pods).map(|share| &share.pod_set).collect()
}
