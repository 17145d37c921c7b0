//! Scale-up steps: the order in which a job grows if its demand is granted only in part. Running
//! members come first, replica by replica, and then each member that does not run yet, as a whole.

use super::slice_record::{MemberShare, PodShare, SliceRecord};
use super::types::{Member, PodGroupDemand};
use sluice_queue::partial_admission::{GrowthStep, GrowthStepPods};

/// Returns the steps from `held` to `wanted`. Empty if there is only one: it is granted or not.
pub(super) fn from_held(held: &SliceRecord, wanted: &SliceRecord, members: &[Member]) -> Vec<GrowthStep> {
    let is_running = |share: &&MemberShare| members.iter().any(|member| member.uid == share.uid && member.is_open);
    let (running, to_run): (Vec<&MemberShare>, Vec<&MemberShare>) = wanted.members.iter().partition(is_running);
    // A running member that is not held uses the previous slice, because it was to be replaced. It
    // is requested as a whole: otherwise it would lose pods whose quota no other member needs.
    let running_steps = |share: &&MemberShare| match held.member(&share.uid) {
        Some(_) => by_replica(share, held, members).collect(),
        None => whole_member(share, held).into_iter().collect::<Vec<GrowthStep>>(),
    };
    let growth = running.iter().flat_map(running_steps);
    let steps: Vec<GrowthStep> = growth.chain(to_run.iter().filter_map(|share| whole_member(share, held))).collect();
    let is_stepwise = steps.iter().map(|step| u64::from(step.times)).sum::<u64>() > 1;
    if is_stepwise { steps } else { Vec::new() }
}

/// Returns the steps from the minimum number of pods that a job can start with to `wanted`. The
/// minimum is granted with the first step, since an admission grants at least one step.
pub(super) fn from_min_count(wanted: &SliceRecord, members: &[Member]) -> Vec<GrowthStep> {
    let with_groups = |share: &MemberShare| {
        let member = members.iter().find(|member| member.uid == share.uid)?;
        Some((share.clone(), member.groups.as_ref().as_ref().ok()?))
    };
    let shares = wanted.members.iter().filter_map(with_groups);
    let steps = shares.flat_map(|(member, groups)| {
        let step = |share: &PodShare| {
            let group = groups.iter().find(|group| group.kind() == share.kind())?;
            let times = (share.count + 1).saturating_sub(group.min_count?.max(1));
            (times > 1).then(|| GrowthStep { times, pods: vec![step_pods(&member, share, 1)] })
        };
        member.pods.iter().filter_map(step).collect::<Vec<_>>()
    });
    steps.collect()
}

/// Returns a step for each added replica, group by group. Missing hosts of an incomplete replica
/// come first.
fn by_replica<'a>(
    wanted: &'a MemberShare,
    held: &'a SliceRecord,
    members: &'a [Member],
) -> impl Iterator<Item = GrowthStep> + 'a {
    let member = members.iter().find(|member| member.uid == wanted.uid);
    let groups: &[PodGroupDemand] =
        member.and_then(|member| member.groups.as_ref().as_ref().ok()).map_or(&[], Vec::as_slice);
    wanted.pods.iter().flat_map(move |share| {
        let more = missing_pods(wanted, share, held);
        let hosts =
            groups.iter().find(|group| group.name == share.group).map_or(1, |group| group.hosts_per_replica.max(1));
        let step = |times, count| GrowthStep { times, pods: vec![step_pods(wanted, share, count)] };
        [step(1, more % hosts), step(more / hosts, hosts)]
            .into_iter()
            .filter(|step| step.times > 0 && step.pods.iter().all(|pods| pods.count > 0))
    })
}

/// Returns one step for all missing pods of a member; `None` if none is missing.
fn whole_member(wanted: &MemberShare, held: &SliceRecord) -> Option<GrowthStep> {
    let more = wanted.pods.iter().map(|share| step_pods(wanted, share, missing_pods(wanted, share, held)));
    let pods: Vec<GrowthStepPods> = more.filter(|pods| pods.count > 0).collect();
    (!pods.is_empty()).then_some(GrowthStep { times: 1, pods })
}

fn step_pods(member: &MemberShare, share: &PodShare, count: u32) -> GrowthStepPods {
    GrowthStepPods { member: member.uid.clone(), group: share.group.clone(), pod_set: share.pod_set.clone(), count }
}

/// Returns the number of pods of a share that are not held yet.
fn missing_pods(member: &MemberShare, share: &PodShare, held: &SliceRecord) -> u32 {
    let held = held.member(&member.uid).map_or(0, |held| held.count(&share.group, &share.shape));
    share.count.saturating_sub(held)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::PodTemplateSpec;
    use rstest::rstest;

    use super::*;

    /// A member with a group `small` whose replicas have `hosts` pods.
    fn member(uid: &str, open: bool, hosts: u32) -> Member {
        let group = |name: &str, hosts| PodGroupDemand {
            name: name.to_owned(),
            pod_set: name.to_owned(),
            shape: name.to_owned(),
            count: 0,
            min_count: None,
            min_pods: 0,
            hosts_per_replica: hosts,
            template: Arc::new(PodTemplateSpec::default()),
        };
        Member {
            name: uid.to_owned(),
            uid: uid.to_owned(),
            groups: Arc::new(Ok(vec![group("head", 1), group("small", hosts)])),
            is_open: open,
            is_terminating: false,
            is_surge: false,
            is_preempted: false,
            live_pods: BTreeMap::new(),
            gated_pods: Vec::new(),
            ready_pods: BTreeMap::new(),
            scheduled_pods: BTreeMap::new(),
            unknown_kinds: BTreeMap::new(),
        }
    }

    fn record(members: &[(&str, u32, u32)]) -> SliceRecord {
        let share = |group: &str, count| PodShare {
            group: group.to_owned(),
            shape: group.to_owned(),
            pod_set: group.to_owned(),
            count,
            starting: 0,
        };
        let members = members.iter().map(|(uid, heads, small)| MemberShare {
            name: (*uid).to_owned(),
            uid: (*uid).to_owned(),
            pods: vec![share("head", *heads), share("small", *small)],
        });
        SliceRecord { members: members.collect(), ..SliceRecord::default() }
    }

    type Expected<'a> = Vec<(u32, Vec<(&'a str, &'a str, u32)>)>;

    fn flat(steps: &[GrowthStep]) -> Expected<'_> {
        steps
            .iter()
            .map(|step| {
                let pods = step.pods.iter().map(|pods| (pods.member.as_str(), pods.pod_set.as_str(), pods.count));
                (step.times, pods.collect())
            })
            .collect()
    }

    #[rstest]
    #[case::one_replica(1, 3, vec![])]
    #[case::replicas(1, 5, vec![(3, vec![("a", "small", 1)])])]
    #[case::replicas_of_two_hosts(2, 6, vec![(2, vec![("a", "small", 2)])])]
    #[case::missing_hosts_of_a_replica_come_first(2, 5, vec![(1, vec![("a", "small", 1)]), (1, vec![("a", "small", 2)])])]
    fn running_member_grows_by_whole_replicas(#[case] hosts: u32, #[case] small: u32, #[case] expected: Expected<'_>) {
        let steps = from_held(&record(&[("a", 1, 2)]), &record(&[("a", 1, small)]), &[member("a", true, hosts)]);
        assert_eq!(flat(&steps), expected);
    }

    #[test]
    fn member_that_does_not_run_yet_comes_last_and_as_a_whole() {
        let members = [member("a", true, 1), member("b", false, 1)];
        let steps = from_held(&record(&[("a", 1, 2)]), &record(&[("a", 1, 4), ("b", 1, 4)]), &members);
        assert_eq!(flat(&steps), [(2, vec![("a", "small", 1)]), (1, vec![("b", "head", 1), ("b", "small", 4)])]);
    }

    #[test]
    fn running_member_on_the_previous_slice_is_requested_as_a_whole() {
        // Given a slice whose member was to replace the active one and is no longer desired,
        let held = record(&[("b", 1, 2)]);
        let members = [member("a", true, 1), member("c", false, 1)];
        // when the active member is requested, alone or with a pending one, then it is one step.
        assert_eq!(from_held(&held, &record(&[("a", 1, 2)]), &members), []);
        let steps = from_held(&held, &record(&[("a", 1, 2), ("c", 1, 2)]), &members);
        assert_eq!(flat(&steps), ["a", "c"].map(|uid| (1, vec![(uid, "head", 1), (uid, "small", 2)])));
    }

    #[test]
    fn upgrade_without_a_scale_up_has_no_steps() {
        let members = [member("a", true, 1), member("b", false, 1)];
        assert_eq!(from_held(&record(&[("a", 1, 2)]), &record(&[("a", 1, 2), ("b", 1, 2)]), &members), []);
    }
}
