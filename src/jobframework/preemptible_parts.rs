//! Preemptible parts of a slice: pods that can be preempted without stopping the whole job.

use std::sync::Arc;

use super::slice_record::{MemberShare, SliceRecord};
use super::types::PodSetCounts;
use super::types::{Member, PodGroupDemand};
use sluice_queue::partial_preemption::{PartPods, PreemptiblePart};

/// Returns the preemptible parts of a slice, the least important first. A slice that covers nothing
/// but surge has none: it would be empty without it.
pub(super) fn for_record(record: &SliceRecord, members: &[Member], creates_pods: bool) -> Vec<PartPods> {
    let (mut surge, mut replicas) = (PodSetCounts::new(), PodSetCounts::new());
    for share in &record.members {
        match members.iter().find(|member| member.uid == share.uid) {
            Some(member) if member.is_surge => add_pods(&mut surge, share, |_, count| count),
            Some(member) if creates_pods => {
                add_pods(&mut replicas, share, |pods, count| count.saturating_sub(min_pods(member, pods)));
            }
            _ => {}
        }
    }
    let is_surge = |share: &MemberShare| members.iter().any(|member| member.uid == share.uid && member.is_surge);
    if record.members.iter().all(is_surge) {
        return Vec::new();
    }
    let parts = [(PreemptiblePart::Surge, surge), (PreemptiblePart::Replicas, replicas)].into_iter();
    parts.filter(|(_, pods)| !pods.is_empty()).map(|(part, pods)| PartPods { part, pods }).collect()
}

fn add_pods(pods: &mut PodSetCounts, share: &MemberShare, taken: impl Fn((&str, &str), u32) -> u32) {
    for share in &share.pods {
        let count = taken((&share.group, &share.shape), share.count);
        if count > 0 {
            *pods.entry(share.pod_set.clone()).or_default() += count;
        }
    }
}

/// Returns the number of pods of a group and shape that preemption leaves. Pods that the member's
/// spec no longer describes are never preempted as replicas.
fn min_pods(member: &Member, (name, shape): (&str, &str)) -> u32 {
    let mut groups = member.groups.iter().flatten();
    groups.find(|group| group.name == name && group.shape == shape).map_or(u32::MAX, |group| group.min_pods)
}

/// Applies partial preemption to the members: marks the surge to stop and, if replicas are
/// preempted too, lowers the other members to their minimum.
pub(super) fn apply_preemption(members: &mut [Member], preempted: Option<PreemptiblePart>) {
    for member in members {
        member.is_preempted = member.is_surge && preempted.is_some();
        if preempted == Some(PreemptiblePart::Replicas) && !member.is_surge {
            let lowered = |groups: &Vec<PodGroupDemand>| {
                groups.iter().map(|group| PodGroupDemand { count: group.min_pods, ..group.clone() }).collect()
            };
            member.groups = Arc::new(member.groups.as_ref().as_ref().map(lowered).map_err(Clone::clone));
        }
    }
}
