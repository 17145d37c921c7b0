//! What of a slice may be granted when not all of it can be: whole steps, in their order, each as often as it fits.
//!
//! A slice that grows says in which order it grows. What it takes over from its predecessor comes first, and then step by
//! step what comes on top: a replica of a group that runs, all of a cluster that is to run. One that doesn't fit is passed over:
//! it may ask for what there never is.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::entry::PodCount;
use sluice_api::kueue::Workload;

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

#[derive(Default, Deserialize)]
struct Steps {
    #[serde(default)]
    steps: Vec<Step>,
}

/// The steps of a Workload; none if it has none that can be read.
pub(super) fn steps_of(workload: &Workload) -> Vec<Step> {
    read::<Steps>(workload).steps
}

/// What a slice says of itself, as far as `T` asks; the default if it says nothing that can be read.
pub(super) fn read<T: DeserializeOwned + Default>(slice: &Workload) -> T {
    let annotation = slice.metadata.annotations.as_ref().and_then(|all| all.get(SLICE_ANNOTATION));
    annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
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
        // One that is granted or not is none to climb.
        let rungs = rungs.filter(|rungs| rungs.len() > 1 || rungs.iter().any(|rung| rung.times > 1))?;
        let counts = sets.iter().enumerate().map(|(index, (_, count))| {
            let added =
                rungs.iter().try_fold(0_i32, |sum, rung| sum.checked_add(rung.times.checked_mul(rung.adds[index])?));
            Some(count.needed() - added?).filter(|foot| *foot >= 0 && count.reclaimable == 0)
        });
        Some(Self { foot: counts.collect::<Option<_>>()?, rungs })
    }

    /// The fewest pods of each pod set that any rung comes with.
    pub(super) fn least(&self) -> impl Iterator<Item = i32> {
        let adds = |index: usize| self.rungs.iter().map(|rung| rung.adds[index]).min().unwrap_or(0);
        self.foot.iter().enumerate().map(move |(index, foot)| foot + adds(index))
    }

    /// The most pods of each pod set, within `whole`, with which it `fits`, rung by rung. `None` if not even one does.
    pub(super) fn climb(&self, whole: &[i32], mut fits: impl FnMut(&[i32]) -> bool) -> Option<Vec<i32>> {
        let mut reached = self.foot.clone();
        for rung in &self.rungs {
            let (mut low, mut high) = (0, rung.times_within(&reached, whole));
            while low < high {
                let middle = high - (high - low) / 2;
                if fits(&rung.above(&reached, middle)) {
                    low = middle;
                } else {
                    high = middle - 1;
                }
            }
            reached = rung.above(&reached, low);
        }
        (reached != self.foot).then_some(reached)
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

    fn above(&self, counts: &[i32], times: i32) -> Vec<i32> {
        counts.iter().zip(&self.adds).map(|(count, adds)| count + adds * times).collect()
    }

    /// How often it can be taken until there are more pods than in `whole`.
    fn times_within(&self, counts: &[i32], whole: &[i32]) -> i32 {
        let left = whole.iter().zip(counts).zip(&self.adds).filter(|(_, adds)| **adds > 0);
        let times = left.map(|((whole, count), adds)| (whole - count).max(0) / adds).min();
        times.unwrap_or(0).min(self.times)
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
    #[case::nothing([1, 3], None)]
    #[case::a_replica([1, 5], Some([1, 4]))]
    #[case::all_replicas([1, 9], Some([1, 6]))]
    #[case::not_all_of_the_cluster([2, 8], Some([1, 6]))]
    #[case::everything([2, 9], Some([2, 9]))]
    fn as_many_rungs_are_taken_as_fit(#[case] room: [i32; 2], #[case] expected: Option<[i32; 2]>) {
        let fits = |counts: &[i32]| counts.iter().zip(room).all(|(count, room)| *count <= room);
        assert_eq!(ladder().climb(&[2, 9], fits), expected.map(Vec::from));
    }

    #[test]
    fn a_rung_that_does_not_fit_is_passed_over() {
        let one_replica_is_too_much = |counts: &[i32]| counts[1] < 4 || counts[0] == 2;
        assert_eq!(ladder().climb(&[2, 9], one_replica_is_too_much), Some(vec![2, 5]));
    }

    #[test]
    fn no_more_is_taken_than_room_was_made_for() {
        assert_eq!(ladder().climb(&[1, 5], |_| true), Some(vec![1, 4]));
    }

    #[test]
    fn the_least_is_what_any_rung_comes_with() {
        assert_eq!(ladder().least().collect::<Vec<_>>(), [1, 4]);
    }

    #[rstest]
    #[case::nothing(vec![])]
    #[case::more_than_there_is(vec![step(5, &[("small", 2)])])]
    #[case::another_pod_set(vec![step(1, &[("large", 1)])])]
    #[case::no_pods(vec![step(1, &[("small", 0)])])]
    #[case::never(vec![step(0, &[("small", 1)])])]
    #[case::but_one(vec![step(1, &[("small", 1)])])]
    #[case::too_large_to_count(vec![step(u32::MAX, &[("small", u32::MAX)])])]
    fn what_can_not_be_climbed_is_no_ladder(#[case] steps: Vec<Step>) {
        assert_eq!(Ladder::of(&steps, &sets()), None);
    }
}
