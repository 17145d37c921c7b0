//! What of a slice may be granted when not all of it can be: its first steps, each of them whole.
//!
//! A slice that grows says in which order it grows. What it takes over from its predecessor comes first, and then step by
//! step what comes on top: a replica of a group that runs, all of a cluster that is to run.

use serde::{Deserialize, Serialize};

use super::entry::PodCount;
use crate::api::kueue::Workload;

/// The annotation in which a slice says what it was built from, as JSON. The queue reads its `steps`.
pub const SLICE_ANNOTATION: &str = "sluice.dev/slice";

/// Pods that are granted together or not at all, so many times over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// How many such steps there are, one after the other.
    pub times: u32,
    /// What each of them adds.
    pub pods: Vec<StepPods>,
}

/// Pods of one group that a step adds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepPods {
    /// The uid of the member of the job that they belong to.
    pub member: String,
    /// Their group.
    pub group: String,
    /// The PodSet that they are counted in.
    pub pod_set: String,
    /// How many.
    pub count: u32,
}

#[derive(Deserialize)]
struct Steps {
    #[serde(default)]
    steps: Vec<Step>,
}

/// The steps of a Workload; none if it has none that can be read.
pub(super) fn steps_of(workload: &Workload) -> Vec<Step> {
    let annotation = workload.metadata.annotations.as_ref().and_then(|all| all.get(SLICE_ANNOTATION));
    let steps = annotation.and_then(|text| serde_json::from_str::<Steps>(text).ok());
    steps.map(|read| read.steps).unwrap_or_default()
}

/// The order in which the pods of a workload are granted if not all of them can be.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ladder {
    /// Pods of each pod set before the first rung.
    foot: Vec<i32>,
    rungs: Vec<Rung>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Rung {
    times: i32,
    /// What it adds to each pod set.
    adds: Vec<i32>,
}

impl Ladder {
    /// The ladder that these steps are, if they stay within the pods that there are.
    pub(super) fn of(steps: &[Step], sets: &[(String, PodCount)]) -> Option<Self> {
        let rungs: Option<Vec<Rung>> = steps.iter().map(|step| Rung::of(step, sets)).collect();
        let rungs = rungs.filter(|rungs| !rungs.is_empty())?;
        let counts = sets.iter().enumerate().map(|(index, (_, count))| {
            let added =
                rungs.iter().try_fold(0_i32, |sum, rung| sum.checked_add(rung.times.checked_mul(rung.adds[index])?));
            Some(count.needed() - added?).filter(|foot| *foot >= 0 && count.reclaimable == 0)
        });
        Some(Self { foot: counts.collect::<Option<_>>()?, rungs })
    }

    /// How many pods of each pod set come with the first rung.
    pub(super) fn least(&self) -> Vec<i32> {
        self.up_to(1)
    }

    /// How many rungs `counts` has of it.
    pub(super) fn height_of(&self, counts: &[i32]) -> i32 {
        let (mut reached, mut height) = (self.foot.clone(), 0_i32);
        for rung in &self.rungs {
            let left = counts.iter().zip(&reached).zip(&rung.adds).filter(|(_, adds)| **adds > 0);
            let times = left.map(|((count, reached), adds)| (count - reached) / adds).min().unwrap_or(0);
            let times = times.clamp(0, rung.times);
            reached.iter_mut().zip(&rung.adds).for_each(|(reached, adds)| *reached += adds * times);
            height = height.saturating_add(times);
            if times < rung.times {
                break;
            }
        }
        height
    }

    /// The pods of each pod set with so many rungs.
    pub(super) fn up_to(&self, height: i32) -> Vec<i32> {
        let (mut counts, mut left) = (self.foot.clone(), height);
        for rung in &self.rungs {
            let times = left.clamp(0, rung.times);
            counts.iter_mut().zip(&rung.adds).for_each(|(count, adds)| *count += adds * times);
            left -= times;
        }
        counts
    }
}

impl Rung {
    fn of(step: &Step, sets: &[(String, PodCount)]) -> Option<Self> {
        let mut adds = vec![0_i32; sets.len()];
        for pods in &step.pods {
            let index = sets.iter().position(|(name, _)| *name == pods.pod_set)?;
            adds[index] = adds[index].checked_add(i32::try_from(pods.count).ok()?)?;
        }
        let times = i32::try_from(step.times).ok().filter(|times| *times > 0)?;
        adds.iter().any(|adds| *adds > 0).then_some(Self { times, adds })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn sets() -> Vec<(String, PodCount)> {
        let set = |name: &str, specified| (name.to_owned(), PodCount { specified, reclaimable: 0 });
        vec![set("head", 2), set("small", 9)]
    }

    fn step(times: u32, pods: &[(&str, u32)]) -> Step {
        let pods = pods.iter().map(|(pod_set, count)| StepPods {
            member: "uid".into(),
            group: (*pod_set).into(),
            pod_set: (*pod_set).into(),
            count: *count,
        });
        Step { times, pods: pods.collect() }
    }

    /// Two replicas of two hosts, and then a cluster of a head and three workers; one head and two workers run.
    fn ladder() -> Ladder {
        let steps = [step(2, &[("small", 2)]), step(1, &[("head", 1), ("small", 3)])];
        Ladder::of(&steps, &sets()).expect("a ladder")
    }

    #[rstest]
    #[case::the_foot(0, [1, 2])]
    #[case::a_replica(1, [1, 4])]
    #[case::all_replicas(2, [1, 6])]
    #[case::everything(3, [2, 9])]
    fn each_rung_adds_its_pods(#[case] height: i32, #[case] counts: [i32; 2]) {
        assert_eq!(ladder().up_to(height), counts);
        assert_eq!(ladder().height_of(&counts), height);
    }

    #[rstest]
    #[case::half_a_replica([1, 5], 1)]
    #[case::the_head_only([2, 6], 2)]
    #[case::below_the_foot([1, 1], 0)]
    fn a_part_of_a_rung_is_none(#[case] counts: [i32; 2], #[case] height: i32) {
        assert_eq!(ladder().height_of(&counts), height);
    }

    #[rstest]
    #[case::nothing(vec![])]
    #[case::more_than_there_is(vec![step(5, &[("small", 2)])])]
    #[case::another_pod_set(vec![step(1, &[("large", 1)])])]
    #[case::no_pods(vec![step(1, &[("small", 0)])])]
    #[case::never(vec![step(0, &[("small", 1)])])]
    #[case::too_large_to_count(vec![step(u32::MAX, &[("small", u32::MAX)])])]
    fn steps_that_can_not_be_are_no_ladder(#[case] steps: Vec<Step>) {
        assert_eq!(Ladder::of(&steps, &sets()), None);
    }
}
