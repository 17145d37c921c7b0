//! Which slice of a job takes over whose quota.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Key;
use super::registry::Registry;
use super::slot::{Slot, Standing};
use super::steps::read;
use super::tree::NodeId;
use sluice_api::kueue::Workload;

/// How many slices of one job are followed from one to the next. Two are alive in the normal course of things.
pub(super) const LONGEST_CHAIN: usize = 64;

/// All workloads, by name and by number.
pub(super) type Workloads = Registry<Key, Slot>;

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Places {
    #[serde(default)]
    instead_of: Vec<IgnoredAny>,
}

/// Whether a slice says that it takes the place of members of its job whose pods it does not pay for. The slice that does is not
/// over before they are gone, which their job sees to; until then both are charged by what is larger.
pub(super) fn takes_places(workload: &Workload) -> bool {
    !read::<Places>(workload).instead_of.is_empty()
}

impl Workloads {
    /// The slice whose quota a workload takes over when it is admitted to `cluster_queue`: the nearest one before it that
    /// still holds any.
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

    /// Whether a workload may take the place of the one that it says it replaces: both are of one job, and nobody
    /// replaces itself by way of others.
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
