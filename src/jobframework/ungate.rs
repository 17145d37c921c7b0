//! Ungating of pods: removes the scheduling gate of as many pods as the covering slice covers,
//! oldest first.
//!
//! Kueue does the same in `pkg/controller/elasticjobs` (v0.19.2), in the order of the pod names.

use std::collections::BTreeMap;

use super::context::ReconcileContext;
use super::slice_record::MemberShare;
use super::slices::Slice;
use super::types::GatedPod;
use super::types::PodKind;
use super::types::{Member, PodAssignment};
use sluice_plan::{ObjectRef, Plan};

/// Ungates the pods that the covering slice covers. No pod is ungated while a write to the slice is
/// in flight: that write may revoke the quota.
pub fn plan(context: &ReconcileContext<'_>, members: &[Member], covering: Option<&Slice<'_>>, plan: &mut Plan) {
    let Some(slice) = covering else { return };
    let is_running = |member: &&Member| member.is_open && !member.is_terminating && !member.is_preempted;
    for member in members.iter().filter(is_running).filter(|member| !member.gated_pods.is_empty()) {
        let Some(share) = slice.record.member(&member.uid) else { continue };
        let mut released: BTreeMap<&str, u32> = BTreeMap::new();
        for pod in covered_pods(member, share) {
            let Some(pod_set) = share.pod_set_of(&pod.kind) else { continue };
            let placement = (context.placement)(&slice.flavors(pod_set));
            let leave = PodAssignment { kind: pod.kind.clone(), pod_set: pod_set.to_owned(), placement };
            let Some(write) = context.job.ungate_pod(&member.name, &pod.name, &leave) else { continue };
            plan.write(write.blocked_while_in_flight([ObjectRef::of(slice.workload)]));
            *released.entry(&pod.kind.group).or_default() += 1;
        }
        for (group, released) in released {
            let name = slice.workload.metadata.name.as_deref().unwrap_or_default();
            let of_group = if group.is_empty() { String::new() } else { format!("group {group} of ") };
            let (kind, member) = (context.job.member_kind(), &member.name);
            let pods = if released == 1 { "pod" } else { "pods" };
            let message = format!("Ungated {released} {pods} of {of_group}{kind} {member}: covered by slice {name}");
            plan.events.push(context.job.event("PodsUngated", &message));
        }
    }
}

/// Returns the gated pods of a member that the share covers in addition to its live pods: whole
/// replicas only, oldest of a kind first. Those that count as live come before all others, because
/// they may start at any time.
fn covered_pods<'m>(member: &'m Member, share: &MemberShare) -> Vec<&'m GatedPod> {
    let mut capacity: BTreeMap<PodKind, u32> = BTreeMap::new();
    for pods in &share.pods {
        *capacity.entry(pods.kind()).or_default() += pods.count;
    }
    for (kind, capacity) in &mut capacity {
        let gated = member.gated_pods.iter().filter(|pod| pod.is_counted && pod.kind == *kind).count();
        let live = member.live_pods.get(kind).copied().unwrap_or(0);
        *capacity = capacity.saturating_sub(live.saturating_sub(u32::try_from(gated).unwrap_or(u32::MAX)));
    }
    let mut replicas = by_replica(member);
    replicas.sort_by_key(|replica| !replica.iter().any(|pod| pod.is_counted));
    let mut pods = Vec::new();
    for replica in replicas {
        let mut left = capacity.clone();
        let take = |pod: &&GatedPod| match left.get_mut(&pod.kind) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        };
        if replica.iter().all(take) {
            capacity = left;
            pods.extend(replica);
        } else {
            // A younger pod of the same kind does not overtake a replica that has to wait.
            for pod in replica {
                capacity.remove(&pod.kind);
            }
        }
    }
    pods
}

/// Returns the gated pods of a member by replica, oldest first, and then by replica index.
fn by_replica(member: &Member) -> Vec<Vec<&GatedPod>> {
    let mut pods: Vec<&GatedPod> = member.gated_pods.iter().collect();
    pods.sort_by_key(|pod| (pod.created_at, pod.replica_index, &pod.name));
    let mut replicas: Vec<Vec<&GatedPod>> = Vec::new();
    let mut positions: BTreeMap<(&String, &String), usize> = BTreeMap::new();
    for pod in pods {
        match &pod.replica {
            Some(replica) => {
                let position = *positions.entry((&pod.kind.group, replica)).or_insert(replicas.len());
                if position == replicas.len() {
                    replicas.push(Vec::new());
                }
                replicas[position].push(pod);
            }
            None => replicas.push(vec![pod]),
        }
    }
    replicas
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rstest::rstest;

    use super::super::slice_record::PodShare;
    use jiff::Timestamp;

    use super::*;

    fn small(shape: &str) -> PodKind {
        PodKind::new("small", shape)
    }

    fn covered(pods: &[(&str, u32)]) -> MemberShare {
        let pods = pods.iter().map(|(shape, count)| PodShare {
            group: "small".to_owned(),
            shape: (*shape).to_owned(),
            pod_set: "small".to_owned(),
            count: *count,
            starting: 0,
        });
        MemberShare { name: "a".to_owned(), uid: "a".to_owned(), pods: pods.collect() }
    }

    fn released<'m>(member: &'m Member, share: &MemberShare) -> Vec<&'m str> {
        covered_pods(member, share).iter().map(|pod| pod.name.as_str()).collect()
    }

    /// Two pods of `small` run, and these are gated: name, replica and creation time in seconds.
    fn member(gated: &[(&str, Option<&str>, i64)]) -> Member {
        let gated = gated.iter().map(|(name, replica, since)| GatedPod {
            name: (*name).to_owned(),
            kind: small("now"),
            is_counted: false,
            replica: replica.map(str::to_owned),
            replica_index: None,
            created_at: Timestamp::from_second(*since).ok(),
        });
        Member {
            name: "a".to_owned(),
            uid: "a".to_owned(),
            groups: Arc::new(Ok(Vec::new())),
            is_open: true,
            is_terminating: false,
            is_surge: false,
            is_preempted: false,
            live_pods: [(small("now"), 2)].into(),
            gated_pods: gated.collect(),
            ready_pods: BTreeMap::new(),
            scheduled_pods: BTreeMap::new(),
            unknown_kinds: BTreeMap::new(),
        }
    }

    #[rstest]
    #[case::nothing_more(2, &[])]
    #[case::fewer_than_run(1, &[])]
    #[case::the_oldest(3, &["late-name"])]
    #[case::by_name_at_equal_age(4, &["late-name", "a"])]
    #[case::all(9, &["late-name", "a", "b"])]
    fn as_many_pods_are_ungated_as_are_covered(#[case] granted: u32, #[case] expected: &[&str]) {
        let member = member(&[("b", None, 5), ("a", None, 5), ("late-name", None, 3)]);
        assert_eq!(released(&member, &covered(&[("now", granted)])), expected);
        assert!(released(&member, &covered(&[("before", granted)])).is_empty());
    }

    #[rstest]
    #[case::its_place_is_taken_by_itself(3, &["late"])]
    #[case::there_is_room_for_another(4, &["late", "early"])]
    #[case::it_is_not_covered_any_more(2, &[])]
    fn pod_whose_ungating_got_no_response_is_ungated_first(#[case] granted: u32, #[case] expected: &[&str]) {
        let mut member = member(&[("early", None, 1), ("late", None, 2)]);
        member.gated_pods[1].is_counted = true;
        member.live_pods = [(small("now"), 3)].into();

        assert_eq!(released(&member, &covered(&[("now", granted)])), expected);
    }

    #[test]
    fn pod_with_the_lower_replica_index_is_ungated_first_at_equal_age() {
        let mut member = member(&[("a", None, 5), ("b", None, 5)]);
        (member.gated_pods[0].replica_index, member.gated_pods[1].replica_index) = (Some(10), Some(9));
        assert_eq!(released(&member, &covered(&[("now", 3)])), ["b"]);
    }

    #[rstest]
    #[case::half_a_replica(3, &[])]
    #[case::a_replica(5, &["a-0", "a-1"])]
    #[case::both(6, &["a-0", "a-1", "b-0", "b-1"])]
    fn hosts_of_a_replica_are_ungated_together(#[case] granted: u32, #[case] expected: &[&str]) {
        let member =
            member(&[("a-0", Some("a"), 1), ("b-0", Some("b"), 2), ("a-1", Some("a"), 3), ("b-1", Some("b"), 3)]);
        assert_eq!(released(&member, &covered(&[("now", granted)])), expected);
    }

    #[test]
    fn gated_pod_of_an_earlier_template_needs_separate_quota_and_blocks_no_other_pod() {
        let mut member = member(&[("before", None, 1), ("now", None, 2), ("later", None, 3)]);
        member.gated_pods[0].kind = small("before");

        assert_eq!(released(&member, &covered(&[("now", 3)])), ["now"]);
        assert_eq!(released(&member, &covered(&[("now", 3), ("before", 1)])), ["before", "now"]);
    }
}
