//! Changes that jobs plan to their Workloads. Until they are made, the demand of such a Workload may
//! be obsolete, so it is not admitted.

use std::collections::{BTreeMap, BTreeSet};

use sluice_plan::{ObjectKey, Write, WriteOp};

use super::planner_key::JobKey;

/// The Workloads whose admission is withheld for each job: its last plan changes or deletes them, or
/// its next plan will.
#[derive(Debug, Clone, Default)]
pub(super) struct PlannedSliceChanges {
    by_job: BTreeMap<JobKey, BTreeSet<ObjectKey>>,
}

/// Returns the Workloads that these writes of a job change or delete.
pub(super) fn changed_slices(writes: &[Write]) -> BTreeSet<ObjectKey> {
    let changes = writes.iter().filter(|write| !matches!(write.op, WriteOp::Create(_)));
    let targets = changes.map(|write| &write.target).filter(|target| target.kind == "Workload");
    targets.map(|slice| ObjectKey::new(slice.namespace.clone().unwrap_or_default(), &slice.name)).collect()
}

impl PlannedSliceChanges {
    /// Records the plan of a job. Returns the Workloads that were withheld before and that this plan
    /// does not change, so that they can be admitted.
    pub(super) fn record(&mut self, job: &JobKey, writes: &[Write]) -> BTreeSet<ObjectKey> {
        let changed = changed_slices(writes);
        let mut released = self.by_job.remove(job).unwrap_or_default();
        released.retain(|slice| !changed.contains(slice));
        if !changed.is_empty() {
            self.by_job.insert(job.clone(), changed);
        }
        released
    }

    /// Withholds a Workload until the next plan of its job.
    pub(super) fn withhold(&mut self, job: JobKey, slice: ObjectKey) {
        self.by_job.entry(job).or_default().insert(slice);
    }

    /// Reports whether this Workload of a job is withheld.
    pub(super) fn includes(&self, job: &JobKey, slice: &ObjectKey) -> bool {
        self.by_job.get(job).is_some_and(|changed| changed.contains(slice))
    }
}

#[cfg(test)]
mod tests {
    use sluice_api::kueue::Workload;
    use sluice_plan::ObjectRef;

    use super::*;

    fn delete(name: &str) -> Write {
        let target = ObjectRef::named::<Workload>(Some("team".into()), name.into());
        Write::new(target, WriteOp::Delete { uid: "1".into(), foreground: false })
    }

    #[test]
    fn slice_is_released_once_the_plan_of_its_job_no_longer_changes_it() {
        let slice = |name: &str| ObjectKey::new("team", name);
        let (own, other) = (JobKey::BatchJob(slice("own")), JobKey::BatchJob(slice("other")));
        let mut planned = PlannedSliceChanges::default();

        assert_eq!(planned.record(&own, &[delete("a"), delete("b")]), BTreeSet::new());
        assert_eq!(planned.record(&other, &[delete("c")]), BTreeSet::new());
        assert!(planned.includes(&own, &slice("a")) && !planned.includes(&own, &slice("c")));

        assert_eq!(planned.record(&own, &[delete("b")]), BTreeSet::from([slice("a")]));
        assert!(!planned.includes(&own, &slice("a")) && planned.includes(&own, &slice("b")));
        assert_eq!(planned.record(&own, &[]), BTreeSet::from([slice("b")]));
        assert!(planned.includes(&other, &slice("c")));
    }

    #[test]
    fn withheld_slice_is_released_by_the_next_plan_of_its_job() {
        let (job, slice) = (JobKey::BatchJob(ObjectKey::new("team", "job")), ObjectKey::new("team", "a"));
        let mut planned = PlannedSliceChanges::default();

        planned.withhold(job.clone(), slice.clone());

        assert!(planned.includes(&job, &slice));
        assert_eq!(planned.record(&job, &[]), BTreeSet::from([slice]));
    }
}
