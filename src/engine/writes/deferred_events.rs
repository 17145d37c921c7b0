//! Kubernetes Events about writes: emitted once all writes of their plan have succeeded, dropped if
//! one of them fails.

use std::collections::BTreeSet;

use super::WriteId;
use sluice_plan::{EventRecord, ObjectRef, Write};

/// The Events that wait for writes, by plan.
#[derive(Debug, Clone, Default)]
pub(super) struct DeferredEvents {
    by_plan: Vec<PlanEvents>,
}

#[derive(Debug, Clone)]
struct PlanEvents {
    /// The writes that have not succeeded yet; never empty.
    pending_writes: BTreeSet<WriteId>,
    events: Vec<EventRecord>,
}

impl DeferredEvents {
    /// Defers the Events of a plan until the writes that were sent for it succeed, and returns those
    /// that no write delays (`is_only_events`). If the plan has writes but none was sent, its Events
    /// are dropped: the planner returns them again with its next plan.
    pub(super) fn defer(
        &mut self,
        sent: &[(WriteId, Write)],
        mut events: Vec<EventRecord>,
        is_only_events: bool,
    ) -> Vec<EventRecord> {
        let changed: BTreeSet<&ObjectRef> = sent
            .iter()
            .map(|(_, write)| write)
            .filter(|write| super::changes_more_than_status(write))
            .map(|write| &write.target)
            .collect();
        events.retain(|event| event.only_if_written.as_ref().is_none_or(|object| changed.contains(object)));
        if is_only_events {
            return events;
        }
        if !sent.is_empty() && !events.is_empty() {
            self.by_plan.push(PlanEvents { pending_writes: sent.iter().map(|(id, _)| *id).collect(), events });
        }
        Vec::new()
    }

    /// Records that a write succeeded; returns the Events that waited for it last.
    pub(super) fn on_succeeded(&mut self, id: WriteId) -> Vec<EventRecord> {
        for plan in &mut self.by_plan {
            plan.pending_writes.remove(&id);
        }
        self.by_plan.extract_if(.., |plan| plan.pending_writes.is_empty()).flat_map(|plan| plan.events).collect()
    }

    /// Drops the Events that wait for a failed write.
    pub(super) fn on_failed(&mut self, id: WriteId) {
        self.by_plan.retain(|plan| !plan.pending_writes.contains(&id));
    }

    /// Returns the number of plans whose Events wait.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.by_plan.len()
    }
}
