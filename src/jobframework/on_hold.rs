//! Jobs on hold: managed jobs that are not in a queue yet. They do not run until they are.

use super::context::ReconcileContext;
use super::managed::HoldReason;
use super::{conditions, delete_slices, gate, slices, suspend_template};
use sluice_api::kueue::names::DEFAULT_LOCAL_QUEUE;
use sluice_plan::Plan;

/// Assigns the default LocalQueue if there is one. Otherwise suspends the job and reports the
/// missing queue name.
pub(super) fn plan(context: &ReconcileContext<'_>, hold: HoldReason) -> Plan {
    let mut plan = Plan::default();
    match hold {
        HoldReason::NamespaceNotCached => {}
        HoldReason::AssignDefaultQueue => plan.write(context.job.assign_queue(DEFAULT_LOCAL_QUEUE)),
        HoldReason::NoQueueName => {
            let slices = slices::slices_of(context.workloads.iter().copied());
            suspend_template(context, &slices, &mut plan);
            delete_slices(context, &mut plan);
            gate::plan(context, &context.job.members(), None, false, &mut plan);
            conditions::missing_queue_name(context, &slices, &mut plan);
        }
    }
    plan
}
