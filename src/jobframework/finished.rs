//! Finished jobs: their slices finish too.

use super::slices::{self, Phase};
use super::{Finish, JobView, succession};
use sluice_api::kueue::names::finished_reason;
use sluice_plan::Plan;

/// Finishes pending slices immediately, and slices that hold quota once the last pod has finished
/// or is gone.
pub(super) fn plan(view: &JobView<'_>, finish: &Finish) -> Plan {
    let mut plan = Plan::default();
    let has_pods = view.job.members().iter().any(|member| !member.live_pods.is_empty());
    let reason = if finish.succeeded { finished_reason::SUCCEEDED } else { finished_reason::FAILED };
    for slice in slices::slices_of(view.workloads.iter().copied()) {
        let is_over = match slice.phase {
            Phase::Waiting => true,
            Phase::Admitted | Phase::Evicted => !has_pods,
            Phase::Going | Phase::Finished => false,
        };
        if is_over {
            plan.write(succession::finish(slice.workload, reason, finish.message.clone(), view.now));
        }
    }
    plan
}
