//! Partial admission of a growing slice: growth steps, in order, each as often as it fits.
//!
//! A slice declares the order in which it grows. What it takes over from its predecessor comes
//! first, followed by the growth steps: a replica of a running worker group, or all pods of a new
//! cluster. A step that does not fit is skipped, because its quota may never exist.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::workload_info::PodCount;
use sluice_api::kueue::Workload;

/// Annotation with the record from which a slice was built, as JSON. The scheduler reads its
/// `steps`.
pub const SLICE_ANNOTATION: &str = "sluice.dev/slice";

/// Pods that are admitted together or not at all, repeated `times` times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrowthStep {
    /// Number of repetitions.
    pub times: u32,
    /// Pods that each repetition adds.
    pub pods: Vec<GrowthStepPods>,
}

/// Pods of one worker group that a step adds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrowthStepPods {
    /// The uid of the job member that owns them.
    pub member: String,
    /// Name of their group.
    pub group: String,
    /// Name of their PodSet.
    pub pod_set: String,
    /// Number of pods.
    pub count: u32,
}

#[derive(Default, Deserialize)]
struct GrowthStepsRecord {
    #[serde(default)]
    steps: Vec<GrowthStep>,
}

/// Returns the growth steps of a Workload; empty if the slice record is missing or invalid.
pub(super) fn growth_steps(workload: &Workload) -> Vec<GrowthStep> {
    read_slice_record::<GrowthStepsRecord>(workload).steps
}

/// Reads the fields of `T` from the slice record; the default if the record is missing or invalid.
pub(super) fn read_slice_record<T: DeserializeOwned + Default>(slice: &Workload) -> T {
    let annotation = slice.metadata.annotations.as_ref().and_then(|all| all.get(SLICE_ANNOTATION));
    annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Order in which the pods of a workload are admitted if not all of them fit.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GrowthPlan {
    /// Pod count of each pod set before the first step.
    base: Vec<i32>,
    steps: Vec<ResolvedStep>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ResolvedStep {
    times: i32,
    /// Pods that it adds to each pod set.
    adds: Vec<i32>,
}

impl GrowthPlan {
    /// Builds the plan from the steps. `None` if the steps are invalid or exceed the pods of the
    /// workload, or if they allow no partial admission.
    pub(super) fn from_steps(steps: &[GrowthStep], sets: &[(String, PodCount)]) -> Option<Self> {
        let resolved: Option<Vec<ResolvedStep>> = steps.iter().map(|step| ResolvedStep::resolve(step, sets)).collect();
        // A single step without repetitions is admitted in full or not at all.
        let resolved = resolved.filter(|resolved| resolved.len() > 1 || resolved.iter().any(|rung| rung.times > 1))?;
        let counts = sets.iter().enumerate().map(|(index, (_, count))| {
            let added =
                resolved.iter().try_fold(0_i32, |sum, rung| sum.checked_add(rung.times.checked_mul(rung.adds[index])?));
            Some(count.needed() - added?).filter(|foot| *foot >= 0 && count.reclaimable == 0)
        });
        Some(Self { base: counts.collect::<Option<_>>()?, steps: resolved })
    }

    /// Returns the fewest pods of each pod set that any step results in.
    pub(super) fn min_counts(&self) -> impl Iterator<Item = i32> {
        let adds = |index: usize| self.steps.iter().map(|rung| rung.adds[index]).min().unwrap_or(0);
        self.base.iter().enumerate().map(move |(index, foot)| foot + adds(index))
    }

    /// Returns the largest pod counts within `whole` that `fits`, step by step. `None` if no step
    /// fits.
    pub(super) fn largest_fitting(&self, whole: &[i32], mut fits: impl FnMut(&[i32]) -> bool) -> Option<Vec<i32>> {
        let mut reached = self.base.clone();
        for rung in &self.steps {
            let (mut low, mut high) = (0, rung.max_repetitions(&reached, whole));
            while low < high {
                let middle = high - (high - low) / 2;
                if fits(&rung.counts_after(&reached, middle)) {
                    low = middle;
                } else {
                    high = middle - 1;
                }
            }
            reached = rung.counts_after(&reached, low);
        }
        (reached != self.base).then_some(reached)
    }
}

impl ResolvedStep {
    fn resolve(step: &GrowthStep, sets: &[(String, PodCount)]) -> Option<Self> {
        let mut adds = vec![0_i32; sets.len()];
        for pods in &step.pods {
            let index = sets.iter().position(|(name, _)| *name == pods.pod_set)?;
            adds[index] = adds[index].checked_add(i32::try_from(pods.count).ok()?)?;
        }
        let times = i32::try_from(step.times).ok().filter(|times| *times > 0)?;
        adds.iter().any(|adds| *adds > 0).then_some(Self { times, adds })
    }

    fn counts_after(&self, counts: &[i32], times: i32) -> Vec<i32> {
        counts.iter().zip(&self.adds).map(|(count, adds)| count + adds * times).collect()
    }

    /// Returns the number of repetitions that stay within `whole`.
    fn max_repetitions(&self, counts: &[i32], whole: &[i32]) -> i32 {
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

    fn step(times: u32, pods: &[(&str, u32)]) -> GrowthStep {
        let pods = pods.iter().map(|(pod_set, count)| GrowthStepPods {
            member: "uid".into(),
            group: (*pod_set).into(),
            pod_set: (*pod_set).into(),
            count: *count,
        });
        GrowthStep { times, pods: pods.collect() }
    }

    /// Two replicas of two hosts each, then a cluster of a head and three workers; one head and two
    /// workers run.
    fn growth_plan() -> GrowthPlan {
        let steps = [step(2, &[("small", 2)]), step(1, &[("head", 1), ("small", 3)])];
        GrowthPlan::from_steps(&steps, &sets()).expect("a growth plan")
    }

    #[rstest]
    #[case::nothing([1, 3], None)]
    #[case::a_replica([1, 5], Some([1, 4]))]
    #[case::all_replicas([1, 9], Some([1, 6]))]
    #[case::not_all_of_the_cluster([2, 8], Some([1, 6]))]
    #[case::everything([2, 9], Some([2, 9]))]
    fn as_many_growth_steps_are_taken_as_fit(#[case] capacity: [i32; 2], #[case] expected: Option<[i32; 2]>) {
        let fits = |counts: &[i32]| counts.iter().zip(capacity).all(|(count, capacity)| *count <= capacity);
        assert_eq!(growth_plan().largest_fitting(&[2, 9], fits), expected.map(Vec::from));
    }

    #[test]
    fn growth_step_that_does_not_fit_is_skipped() {
        let one_replica_is_too_much = |counts: &[i32]| counts[1] < 4 || counts[0] == 2;
        assert_eq!(growth_plan().largest_fitting(&[2, 9], one_replica_is_too_much), Some(vec![2, 5]));
    }

    #[test]
    fn growth_stays_within_the_given_pod_counts() {
        assert_eq!(growth_plan().largest_fitting(&[1, 5], |_| true), Some(vec![1, 4]));
    }

    #[test]
    fn least_is_the_smallest_count_of_any_growth_step() {
        assert_eq!(growth_plan().min_counts().collect::<Vec<_>>(), [1, 4]);
    }

    #[rstest]
    #[case::nothing(vec![])]
    #[case::more_pods_than_specified(vec![step(5, &[("small", 2)])])]
    #[case::another_pod_set(vec![step(1, &[("large", 1)])])]
    #[case::no_pods(vec![step(1, &[("small", 0)])])]
    #[case::zero_times(vec![step(0, &[("small", 1)])])]
    #[case::only_one(vec![step(1, &[("small", 1)])])]
    #[case::too_large_to_count(vec![step(u32::MAX, &[("small", u32::MAX)])])]
    fn steps_without_partial_admission_give_no_plan(#[case] steps: Vec<GrowthStep>) {
        assert_eq!(GrowthPlan::from_steps(&steps, &sets()), None);
    }
}
