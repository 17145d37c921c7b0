//! Refreshes of the numbers in pending messages. A message is written when its reason changes; the
//! numbers in it change with every admission, and writing them to every pending workload each time
//! would cost more than the admissions.

use jiff::{SignedDuration, Timestamp};

use super::scheduler::{CachedClusterQueue, Scheduler, WorkloadId};
use super::tree::NodeId;

/// Number of workloads at the head of a ClusterQueue that are looked at in a refresh. A changed reason
/// of theirs is written, and the numbers of those that the refresh is for. The others keep the
/// message from when they were looked at last; `sluice explain` has the current one.
const REFRESHED_HEADS: usize = 32;
/// Delay before the messages of a ClusterQueue are refreshed after a change of quota elsewhere in
/// its cohort, so that the cycle after that change only decides.
const COHORT_REFRESH_DELAY: SignedDuration = SignedDuration::from_secs(5);
/// Delay before the message of the first pending workload is refreshed after a change of usage, and
/// so the minimum time between two refreshes.
const USAGE_REFRESH_DELAY: SignedDuration = SignedDuration::from_secs(60);

/// A scheduled refresh of the pending messages of a ClusterQueue.
#[derive(Debug, Clone, Copy)]
pub(super) struct MessageRefresh {
    at: Timestamp,
    /// Number of workloads at the head that get new numbers.
    new_numbers: usize,
}

impl MessageRefresh {
    /// Refreshes the heads of a ClusterQueue whose own quota changed.
    pub(super) fn after_quota_change(now: Timestamp) -> Self {
        Self { at: now, new_numbers: REFRESHED_HEADS }
    }

    /// Refreshes the heads of a ClusterQueue in whose cohort quota changed.
    pub(super) fn after_cohort_change(now: Timestamp) -> Self {
        Self { at: later(now, COHORT_REFRESH_DELAY), new_numbers: REFRESHED_HEADS }
    }

    /// Refreshes the first pending workload after a change of usage.
    fn after_usage_change(now: Timestamp) -> Self {
        Self { at: later(now, USAGE_REFRESH_DELAY), new_numbers: 1 }
    }

    /// Returns one refresh that replaces both.
    fn merged_with(self, other: Self) -> Self {
        Self { at: self.at.min(other.at), new_numbers: self.new_numbers.max(other.new_numbers) }
    }
}

impl Scheduler {
    /// Schedules a message refresh for the first pending workloads, and reports a new head of a
    /// StrictFIFO ClusterQueue to the workloads behind it immediately.
    pub(super) fn schedule_head_refreshes(&mut self, root: NodeId) {
        for node in self.tree.cluster_queues_below(root) {
            let Some(state) = self.cluster_queues.get_mut(node) else { continue };
            let first = state.pending_queue.head().map(|rank| rank.workload);
            if state.config.as_ref().is_some_and(|quota| quota.strict_fifo) && first != state.last_reported_head {
                state.last_reported_head = first;
                self.dirty_objects.workloads.extend(heads(state));
            }
            if first.is_some() && state.message_refresh.is_none() {
                self.schedule_message_refresh(node, MessageRefresh::after_usage_change(self.now));
            }
        }
    }

    /// Schedules a message refresh of a ClusterQueue, in addition to one that is already scheduled.
    pub(super) fn schedule_message_refresh(&mut self, node: NodeId, refresh: MessageRefresh) {
        let Some(state) = self.cluster_queues.get_mut(node) else { return };
        let scheduled = state.message_refresh.take();
        let refresh = scheduled.map_or(refresh, |scheduled| scheduled.merged_with(refresh));
        state.message_refresh = Some(refresh);
        if let Some(scheduled) = scheduled {
            self.message_refreshes.remove(&(scheduled.at, node));
        }
        self.message_refreshes.insert((refresh.at, node));
    }

    /// Drops all refreshes that are scheduled before the first cycle: objects that are observed for
    /// the first time have not changed, so a restart rewrites no message.
    pub(super) fn drop_message_refreshes(&mut self) {
        for (_, node) in std::mem::take(&mut self.message_refreshes) {
            if let Some(state) = self.cluster_queues.get_mut(node) {
                state.message_refresh = None;
            }
        }
    }

    /// Marks the messages that are due for a refresh.
    pub(super) fn refresh_messages(&mut self) {
        while let Some((at, node)) = self.message_refreshes.first().copied().filter(|(at, _)| *at <= self.now) {
            self.message_refreshes.remove(&(at, node));
            let Some(state) = self.cluster_queues.get_mut(node) else { continue };
            let new_numbers = state.message_refresh.take().map_or(0, |refresh| refresh.new_numbers);
            for (index, id) in heads(state).enumerate() {
                if let Some(slot) = self.workloads.get_mut(id) {
                    slot.refresh_message |= index < new_numbers;
                }
                self.dirty_objects.workloads.insert(id);
            }
        }
    }
}

/// Returns the pending workloads that a refresh looks at.
fn heads(state: &CachedClusterQueue) -> impl Iterator<Item = WorkloadId> {
    state.pending_queue.iter().take(REFRESHED_HEADS).map(|rank| rank.workload)
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.saturating_add(by).unwrap_or(Timestamp::MAX)
}
