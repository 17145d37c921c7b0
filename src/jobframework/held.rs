//! Jobs on hold: managed jobs that are not in a queue yet. They do not run until they are.

use super::managed::Hold;
use super::{JobView, delete_slices, gate, hold_template_gate, report, slices};
use sluice_api::kueue::names::DEFAULT_LOCAL_QUEUE;
use sluice_plan::Plan;

/// Assigns the default LocalQueue if there is one. Otherwise suspends the job and reports the
/// missing queue name.
pub(super) fn plan(view: &JobView<'_>, hold: Hold) -> Plan {
    let mut plan = Plan::default();
    match hold {
        Hold::UnseenNamespace => {}
        Hold::Default => plan.write(view.job.join(DEFAULT_LOCAL_QUEUE)),
        Hold::NoQueueName => {
            let slices = slices::slices_of(view.workloads.iter().copied());
            hold_template_gate(view, &slices, &mut plan);
            delete_slices(view, &mut plan);
            gate::plan(view, &view.job.members(), None, false, &mut plan);
            report::unnamed(view, &slices, &mut plan);
        }
    }
    plan
}
