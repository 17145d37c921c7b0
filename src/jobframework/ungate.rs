//! Which of the pods that wait behind a scheduling gate may run: as many as the covering slice pays for, the oldest first.
//!
//! Kueue does the same in `pkg/controller/elasticjobs` (v0.19.2), by the names of the pods.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::census::PodKind;
use super::record::MemberShare;
use super::slices::Slice;
use super::{JobView, Leave, Member};
use sluice_plan::{ObjectRef, Plan};

/// A pod that waits behind its scheduling gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatedPod {
    /// Its name.
    pub name: String,
    /// What it is: it may have been made before its group's template was changed.
    pub kind: PodKind,
    /// The replica that it is a host of, if replicas have several.
    pub replica: Option<String>,
    /// Which of the replicas of its group it is in, from 0, if it says so.
    pub index: Option<u32>,
    /// Since when it is there.
    pub since: Option<Timestamp>,
}

/// Lets pods run that the covering slice pays for. None of them is let go while something is written about the slice: that may
/// be what takes them their quota.
pub fn plan(view: &JobView<'_>, members: &[Member], covering: Option<&Slice<'_>>, plan: &mut Plan) {
    let Some(slice) = covering else { return };
    let runs = |member: &&Member| member.open && !member.going && !member.preempted;
    for member in members.iter().filter(runs).filter(|member| !member.gated.is_empty()) {
        let Some(share) = slice.record.member(&member.uid) else { continue };
        let mut released: BTreeMap<&str, u32> = BTreeMap::new();
        for pod in within(member, share) {
            let Some(pod_set) = share.pod_set_of(&pod.kind) else { continue };
            let placement = (view.placement)(&slice.flavors(pod_set));
            let leave = Leave { kind: pod.kind.clone(), pod_set: pod_set.to_owned(), placement };
            let Some(write) = view.job.release(&member.name, &pod.name, &leave) else { continue };
            plan.write(write.while_quiet([ObjectRef::of(slice.workload)]));
            *released.entry(&pod.kind.group).or_default() += 1;
        }
        for (group, released) in released {
            let name = slice.workload.metadata.name.as_deref().unwrap_or_default();
            let what = match group {
                "" => format!("{released} of the pods of {} {}", view.job.member_kind(), member.name),
                group => {
                    format!("{released} of the pods of group {group} of {} {}", view.job.member_kind(), member.name)
                }
            };
            plan.notes.push(view.job.note("PodsUngated", &format!("{what} may run: slice {name} pays for them")));
        }
    }
}

/// The gated pods of a member that fit into what is paid for beside those that run, whole replicas only, the oldest of a kind
/// first.
fn within<'m>(member: &'m Member, share: &MemberShare) -> Vec<&'m GatedPod> {
    let mut room: BTreeMap<PodKind, u32> = BTreeMap::new();
    for pods in &share.pods {
        *room.entry(pods.kind()).or_default() += pods.count;
    }
    for (kind, room) in &mut room {
        *room = room.saturating_sub(member.live_pods.get(kind).copied().unwrap_or(0));
    }
    let mut pods = Vec::new();
    for replica in replicas(member) {
        let mut left = room.clone();
        let take = |pod: &&GatedPod| match left.get_mut(&pod.kind) {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        };
        if replica.iter().all(take) {
            room = left;
            pods.extend(replica);
        } else {
            // Nobody younger overtakes what has to wait.
            for pod in replica {
                room.remove(&pod.kind);
            }
        }
    }
    pods
}

/// The gated pods of a member, replica by replica, the oldest first; of those as old as one another, those of the lower index.
fn replicas(member: &Member) -> Vec<Vec<&GatedPod>> {
    let mut pods: Vec<&GatedPod> = member.gated.iter().collect();
    pods.sort_by_key(|pod| (pod.since, pod.index, &pod.name));
    let mut replicas: Vec<Vec<&GatedPod>> = Vec::new();
    let mut places: BTreeMap<(&String, &String), usize> = BTreeMap::new();
    for pod in pods {
        match &pod.replica {
            Some(replica) => {
                let place = *places.entry((&pod.kind.group, replica)).or_insert(replicas.len());
                if place == replicas.len() {
                    replicas.push(Vec::new());
                }
                replicas[place].push(pod);
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

    use super::super::record::Share;
    use super::*;

    fn small(shape: &str) -> PodKind {
        PodKind::new("small", shape)
    }

    fn paid(pods: &[(&str, u32)]) -> MemberShare {
        let pods = pods.iter().map(|(shape, count)| Share {
            group: "small".to_owned(),
            shape: (*shape).to_owned(),
            pod_set: "small".to_owned(),
            count: *count,
            starting: 0,
        });
        MemberShare { name: "a".to_owned(), uid: "a".to_owned(), pods: pods.collect() }
    }

    fn released<'m>(member: &'m Member, share: &MemberShare) -> Vec<&'m str> {
        within(member, share).iter().map(|pod| pod.name.as_str()).collect()
    }

    /// Two pods of `small` run; these wait, each with its replica, if it says of one, and the second that it came.
    fn member(gated: &[(&str, Option<&str>, i64)]) -> Member {
        let gated = gated.iter().map(|(name, replica, since)| GatedPod {
            name: (*name).to_owned(),
            kind: small("now"),
            replica: replica.map(str::to_owned),
            index: None,
            since: Timestamp::from_second(*since).ok(),
        });
        Member {
            name: "a".to_owned(),
            uid: "a".to_owned(),
            groups: Arc::new(Ok(Vec::new())),
            open: true,
            going: false,
            surge: false,
            preempted: false,
            live_pods: [(small("now"), 2)].into(),
            gated: gated.collect(),
            ready_pods: BTreeMap::new(),
            strangers: BTreeMap::new(),
        }
    }

    #[rstest]
    #[case::nothing_more(2, &[])]
    #[case::less_than_runs(1, &[])]
    #[case::the_oldest(3, &["late-name"])]
    #[case::by_name_of_one_age(4, &["late-name", "a"])]
    #[case::all(9, &["late-name", "a", "b"])]
    fn as_many_pods_are_released_as_are_paid_for(#[case] granted: u32, #[case] expected: &[&str]) {
        let member = member(&[("b", None, 5), ("a", None, 5), ("late-name", None, 3)]);
        assert_eq!(released(&member, &paid(&[("now", granted)])), expected);
        assert!(released(&member, &paid(&[("before", granted)])).is_empty());
    }

    #[test]
    fn of_pods_of_one_age_the_lower_index_is_released_first() {
        let mut member = member(&[("a", None, 5), ("b", None, 5)]);
        (member.gated[0].index, member.gated[1].index) = (Some(10), Some(9));
        assert_eq!(released(&member, &paid(&[("now", 3)])), ["b"]);
    }

    #[rstest]
    #[case::half_a_replica(3, &[])]
    #[case::a_replica(5, &["a-0", "a-1"])]
    #[case::both(6, &["a-0", "a-1", "b-0", "b-1"])]
    fn hosts_of_a_replica_are_released_together(#[case] granted: u32, #[case] expected: &[&str]) {
        let member =
            member(&[("a-0", Some("a"), 1), ("b-0", Some("b"), 2), ("a-1", Some("a"), 3), ("b-1", Some("b"), 3)]);
        assert_eq!(released(&member, &paid(&[("now", granted)])), expected);
    }

    #[test]
    fn a_pod_of_an_earlier_template_waits_for_quota_of_its_own_and_holds_up_no_other() {
        let mut member = member(&[("before", None, 1), ("now", None, 2), ("later", None, 3)]);
        member.gated[0].kind = small("before");

        assert_eq!(released(&member, &paid(&[("now", 3)])), ["now"]);
        assert_eq!(released(&member, &paid(&[("now", 3), ("before", 1)])), ["before", "now"]);
    }
}
