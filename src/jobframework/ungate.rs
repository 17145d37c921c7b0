//! Which of the pods that wait behind a scheduling gate may run: as many as the covering slice pays for, the oldest first.
//!
//! Kueue does the same in `pkg/controller/elasticjobs` (v0.19.2), by the names of the pods.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::slices::Slice;
use super::{Group, JobView, Member};
use crate::engine::plan::{ObjectRef, Plan};

/// A pod that waits behind its scheduling gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatedPod {
    /// Its name.
    pub name: String,
    /// Its group.
    pub group: String,
    /// The replica that it is a host of, if replicas have several.
    pub replica: Option<String>,
    /// Since when it is there.
    pub since: Option<Timestamp>,
}

/// Lets pods run that the covering slice pays for. None of them is let go while something is written about the slice: that may
/// be what takes them their quota.
pub fn plan(view: &JobView<'_>, members: &[Member], covering: Option<&Slice<'_>>, plan: &mut Plan) {
    let Some(slice) = covering else { return };
    let runs = |member: &&Member| member.open && !member.going && !member.preempted;
    for member in members.iter().filter(runs).filter(|member| !member.gated.is_empty()) {
        let (grant, flavors) = (slice.grant(member), slice.flavors(member));
        for group in member.groups.iter().flatten() {
            let granted = grant.get(&group.name).copied().unwrap_or(0);
            let pods = within(member, group, granted);
            let placement = (view.placement)(flavors.get(&group.name).unwrap_or(&Default::default()));
            let mut released = 0_u32;
            for pod in pods {
                let Some(write) = view.job.release(&member.name, &pod.name, &placement) else { continue };
                plan.write(write.while_quiet([ObjectRef::of(slice.workload)]));
                released += 1;
            }
            if released > 0 {
                let name = slice.workload.metadata.name.as_deref().unwrap_or_default();
                let what = format!("{released} of the pods of group {} of RayCluster {}", group.name, member.name);
                plan.notes.push(view.job.note("PodsReleased", &format!("{what} may run: slice {name} pays for them")));
            }
        }
    }
}

/// The gated pods of a group that fit into what is granted beside those that run, whole replicas only, the oldest first.
fn within<'m>(member: &'m Member, group: &Group, granted: u32) -> Vec<&'m GatedPod> {
    let running = member.live_pods.get(&group.name).copied().unwrap_or(0);
    let (mut room, mut pods) = (granted.saturating_sub(running) as usize, Vec::new());
    for replica in replicas(member, group) {
        if replica.len() > room {
            break;
        }
        room -= replica.len();
        pods.extend(replica);
    }
    pods
}

/// The gated pods of a group, replica by replica, the oldest first.
fn replicas<'m>(member: &'m Member, group: &Group) -> Vec<Vec<&'m GatedPod>> {
    let mut pods: Vec<&GatedPod> = member.gated.iter().filter(|pod| pod.group == group.name).collect();
    pods.sort_by_key(|pod| (pod.since, &pod.name));
    let mut replicas: Vec<Vec<&GatedPod>> = Vec::new();
    let mut places: BTreeMap<&String, usize> = BTreeMap::new();
    for pod in pods {
        match &pod.replica {
            Some(replica) => {
                let place = *places.entry(replica).or_insert(replicas.len());
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

    use k8s_openapi::api::core::v1::PodTemplateSpec;
    use rstest::rstest;

    use super::*;

    fn group(name: &str) -> Group {
        Group {
            name: name.to_owned(),
            pod_set: name.to_owned(),
            shape: String::new(),
            count: 9,
            fewest: 0,
            hosts: 1,
            template: PodTemplateSpec::default(),
        }
    }

    /// Two pods of `small` run; these wait, each with its replica, if it says of one, and the second that it came.
    fn member(gated: &[(&str, Option<&str>, i64)]) -> Member {
        let gated = gated.iter().map(|(name, replica, since)| GatedPod {
            name: (*name).to_owned(),
            group: "small".to_owned(),
            replica: replica.map(str::to_owned),
            since: Timestamp::from_second(*since).ok(),
        });
        Member {
            name: "a".to_owned(),
            uid: "a".to_owned(),
            groups: Arc::new(Ok(vec![group("small"), group("large")])),
            open: true,
            going: false,
            surge: false,
            preempted: false,
            live_pods: [("small".to_owned(), 2)].into(),
            gated: gated.collect(),
            ready_pods: BTreeMap::new(),
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
        let names: Vec<&str> = within(&member, &group("small"), granted).iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, expected);
        assert!(within(&member, &group("large"), granted).is_empty());
    }

    #[rstest]
    #[case::half_a_replica(3, &[])]
    #[case::a_replica(5, &["a-0", "a-1"])]
    #[case::both(6, &["a-0", "a-1", "b-0", "b-1"])]
    fn hosts_of_a_replica_are_released_together(#[case] granted: u32, #[case] expected: &[&str]) {
        let member =
            member(&[("a-0", Some("a"), 1), ("b-0", Some("b"), 2), ("a-1", Some("a"), 3), ("b-1", Some("b"), 3)]);
        let names: Vec<&str> = within(&member, &group("small"), granted).iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, expected);
    }
}
