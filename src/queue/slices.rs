//! Quota handover between the slices of one job.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::ObjectKey;
use super::cached_workload::{CachedWorkload, QueueState};
use super::partial_admission::read_slice_record;
use super::registry::Registry;
use super::scheduler::WorkloadId;
use super::tree::NodeId;
use sluice_api::kueue::Workload;

/// Limit on the length of a replacement chain that is followed. Normally two slices of a job exist.
pub(super) const MAX_CHAIN_LENGTH: usize = 64;

/// All workloads, by key and by id.
pub(super) type Workloads = Registry<ObjectKey, WorkloadId, CachedWorkload>;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DisplacedMembers {
    #[serde(default, rename = "displaces", alias = "insteadOf")]
    displaces: Vec<IgnoredAny>,
}

/// Returns true if the slice displaces members of its job whose pods it does not cover. The slice
/// that covers them finishes only when they are gone, which their job ensures. Until then the usage
/// is the larger of both slices'.
pub(super) fn displaces_members(workload: &Workload) -> bool {
    !read_slice_record::<DisplacedMembers>(workload).displaces.is_empty()
}

impl Workloads {
    /// Returns the slice whose quota a workload takes over when admitted to `cluster_queue`: the
    /// nearest predecessor that still holds quota.
    pub(super) fn predecessor(&self, slot: &CachedWorkload, cluster_queue: NodeId) -> Option<&CachedWorkload> {
        let mut current = slot;
        for _ in 0..MAX_CHAIN_LENGTH {
            let before = self.get_by_name(current.info.replaces.as_ref()?)?;
            if !self.is_valid_claim(current, before) {
                return None;
            }
            match &before.queue_state {
                QueueState::Admitted(_) => {
                    return (before.accounting.cluster_queue == Some(cluster_queue)).then_some(before);
                }
                QueueState::Queued(_) | QueueState::OnHold(..) => current = before,
                QueueState::Superseded(_) | QueueState::Inactive => return None,
            }
        }
        None
    }

    /// Returns true if `claimant` may replace `claimed`: both belong to one job, and the claims
    /// form no cycle.
    pub(super) fn is_valid_claim(&self, claimant: &CachedWorkload, claimed: &CachedWorkload) -> bool {
        if !claimant.info.same_owner(&claimed.info) {
            return false;
        }
        let mut current = &claimed.info;
        for _ in 0..MAX_CHAIN_LENGTH {
            let Some(before) = &current.replaces else { return true };
            if *before == claimant.info.key {
                return false;
            }
            match self.get_by_name(before) {
                Some(slot) => current = &slot.info,
                None => return true,
            }
        }
        false
    }
}
