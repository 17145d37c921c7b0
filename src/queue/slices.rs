//! Quota handover between the slices of one job.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::ObjectKey;
use super::registry::Registry;
use super::slot::{Slot, Standing};
use super::steps::read;
use super::tree::NodeId;
use sluice_api::kueue::Workload;

/// Limit on the length of a replacement chain that is followed. Normally two slices of a job exist.
pub(super) const LONGEST_CHAIN: usize = 64;

/// All workloads, by key and by id.
pub(super) type Workloads = Registry<ObjectKey, Slot>;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Places {
    #[serde(default, rename = "displaces", alias = "insteadOf")]
    instead_of: Vec<IgnoredAny>,
}

/// Returns true if the slice displaces members of its job whose pods it does not cover. The slice
/// that covers them finishes only when they are gone, which their job ensures. Until then the usage
/// is the larger of both slices'.
pub(super) fn takes_places(workload: &Workload) -> bool {
    !read::<Places>(workload).instead_of.is_empty()
}

impl Workloads {
    /// Returns the slice whose quota a workload takes over when admitted to `cluster_queue`: the
    /// nearest predecessor that still holds quota.
    pub(super) fn predecessor(&self, slot: &Slot, cluster_queue: NodeId) -> Option<&Slot> {
        let mut current = slot;
        for _ in 0..LONGEST_CHAIN {
            let before = self.named(current.entry.replaces.as_ref()?)?;
            if !self.claim_holds(current, before) {
                return None;
            }
            match &before.standing {
                Standing::Holds(_) => return (before.booked.cluster_queue == Some(cluster_queue)).then_some(before),
                Standing::InLine(_) | Standing::Held(..) => current = before,
                Standing::Superseded(_) | Standing::Out => return None,
            }
        }
        None
    }

    /// Returns true if `claimant` may replace `claimed`: both belong to one job, and the claims
    /// form no cycle.
    pub(super) fn claim_holds(&self, claimant: &Slot, claimed: &Slot) -> bool {
        if !claimant.entry.same_owner(&claimed.entry) {
            return false;
        }
        let mut current = &claimed.entry;
        for _ in 0..LONGEST_CHAIN {
            let Some(before) = &current.replaces else { return true };
            if *before == claimant.entry.key {
                return false;
            }
            match self.named(before) {
                Some(slot) => current = &slot.entry,
                None => return true,
            }
        }
        false
    }
}
