//! Finished jobs: their slices finish too.

use jiff::Timestamp;

use super::context::ReconcileContext;
use super::slices::{self, SlicePhase};
use super::types::JobResult;
use super::{retention, slice_lifecycle};
use sluice_api::kueue::Workload;
use sluice_api::kueue::names::finished_reason;
use sluice_plan::Plan;

/// Finishes a slice whose job is gone and whose pods do not run any more (Kueue 0.20
/// `pkg/workload/workload.go`, `FinalizeOrphanedWorkload`, does so while pods still run).
pub fn plan_orphaned(slice: &Workload, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let message = "The owner no longer exists, and none of its pods runs".to_owned();
    plan.write(slice_lifecycle::finish_slice(slice, finished_reason::OWNER_NOT_FOUND, message, now));
    plan
}

/// Finishes pending slices immediately, and slices that hold quota once the last pod has finished
/// or is gone.
pub(super) fn plan(context: &ReconcileContext<'_>, finish: &JobResult) -> Plan {
    let mut plan = Plan::default();
    let has_pods = context.job.members().iter().any(|member| !member.live_pods.is_empty());
    let reason = if finish.succeeded { finished_reason::SUCCEEDED } else { finished_reason::FAILED };
    let slices = slices::slices_of(context.workloads.iter().copied());
    for slice in &slices {
        let is_over = match slice.phase {
            SlicePhase::Pending => true,
            SlicePhase::Admitted | SlicePhase::Evicted => !has_pods,
            SlicePhase::Terminating | SlicePhase::Finished => false,
        };
        if is_over {
            plan.write(slice_lifecycle::finish_slice(slice.workload, reason, finish.message.clone(), context.now));
        }
    }
    retention::delete_finished_slices(context, &slices, &mut plan);
    plan
}
