//! Retention of finished Workloads that no job plans.

use jiff::Timestamp;

use super::Engine;
use super::cluster_state::has_controller;
use super::owners::owning_job_exists;
use sluice_api::condition;
use sluice_api::kueue::{Workload, names};
use sluice_jobframework::retention;
use sluice_jobframework::slice_record::SliceRecord;
use sluice_plan::Plan;

impl Engine {
    /// Plans the deletion of a finished Workload whose job is gone, or that never had one. Returns
    /// `None` if it is not finished, no finished Workload is deleted, or the planner of its job deletes it.
    pub(super) fn plan_finished_workload(&self, workload: &Workload, now: Timestamp) -> Option<Plan> {
        self.retention.after_finished?;
        if !condition::is_true(workload.conditions(), names::FINISHED) {
            return None;
        }
        let record = SliceRecord::from_workload(workload).unwrap_or_default();
        let is_adopted = !has_controller(workload) && self.adoptive_job(workload, &record).is_some();
        if is_adopted || owning_job_exists(&self.cluster_state, workload) {
            return None;
        }
        let mut plan = Plan::default();
        retention::delete_finished(self.retention, workload, now, &mut plan);
        Some(plan)
    }
}
