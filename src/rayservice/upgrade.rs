//! Upgrade decision: which RayCluster is kept, updated, promoted or created for the desired spec.

use super::hash::Fit;
use sluice_api::ray::UpgradeType;

/// RayCluster that is neither active nor terminating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rival {
    /// Result of comparing its spec with the desired spec.
    pub fit: Fit,
    /// Its role so far.
    pub standing: Standing,
}

/// Role of an inactive cluster, in ascending order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It served before and is kept for requests and connections that still use it.
    Retired,
    /// No role is recorded: it was just created, or the status update was lost.
    New,
    /// The status names it as the pending cluster.
    Pending,
}

/// Next action of an upgrade. Indices refer to the inactive clusters; an inactive cluster that the
/// action does not name is no longer needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The active cluster matches the desired spec.
    Keep,
    /// The active cluster matches once worker groups are appended to it.
    UpdateActive,
    /// This cluster matches the desired spec and is pending.
    Continue(usize),
    /// This cluster matches once worker groups are appended to it and is pending.
    UpdatePending(usize),
    /// This cluster is no longer desired but holds part of the capacity or traffic; it is returned
    /// to the active cluster first.
    Return(usize),
    /// No cluster matches; one is created.
    Create,
    /// A new cluster is required but not created for this reason. An existing pending cluster stays
    /// unchanged.
    Hold(Reason, Option<usize>),
}

/// Reason why a required cluster is not created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// `upgradeStrategy.type` is None.
    NoUpgrades,
    /// The spec is invalid.
    Invalid,
    /// It was not admitted in time.
    GivenUp,
    /// Its incremental upgrade failed.
    Failed,
}

impl Step {
    /// Returns the index of the pending cluster; None if there is none.
    pub fn pending(&self) -> Option<usize> {
        match *self {
            Self::Continue(index) | Self::UpdatePending(index) | Self::Return(index) => Some(index),
            Self::Hold(_, pending) => pending,
            Self::Keep | Self::UpdateActive | Self::Create => None,
        }
    }
}

/// Decides the next action from the current clusters alone, so a spec that changes again is planned
/// from the current state. Existing clusters that match, including draining ones, are reused
/// instead of creating another one.
pub fn decide(active: Option<Fit>, rivals: &[Rival], strategy: &UpgradeType) -> Step {
    if active == Some(Fit::Same) {
        return Step::Keep;
    }
    if let Some(index) = best(rivals, Fit::Same, Standing::New) {
        return Step::Continue(index);
    }
    if let Some(index) = best(rivals, Fit::Appended, Standing::New) {
        return Step::UpdatePending(index);
    }
    match (active, strategy) {
        (Some(Fit::Appended), _) => Step::UpdateActive,
        // Unknown strategies are rejected by validation and never get here.
        (Some(_), UpgradeType::None | UpgradeType::Other(_)) => Step::Hold(Reason::NoUpgrades, None),
        _ => best(rivals, Fit::Same, Standing::Retired).map_or(Step::Create, Step::Continue),
    }
}

/// Returns the index of the most advanced new or pending cluster; None if all are draining. Ties go
/// to the oldest.
pub fn current(rivals: &[Rival]) -> Option<usize> {
    let preference = |index: &usize| (rivals[*index].standing, std::cmp::Reverse(*index));
    (0..rivals.len()).filter(|index| rivals[*index].standing >= Standing::New).max_by_key(preference)
}

fn best(rivals: &[Rival], fit: Fit, least: Standing) -> Option<usize> {
    let preference = |index: &usize| (rivals[*index].standing, std::cmp::Reverse(*index));
    let matches = |index: &usize| rivals[*index].fit == fit && rivals[*index].standing >= least;
    (0..rivals.len()).filter(matches).max_by_key(preference)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::Fit::{Appended, Different, Same};
    use super::Standing::{New, Pending, Retired};
    use super::UpgradeType::{NewCluster, NewClusterWithIncrementalUpgrade as Incremental};
    use super::*;

    const NO: UpgradeType = UpgradeType::None;

    #[rstest]
    // No active cluster yet.
    #[case::no_cluster(None, &[], NewCluster, Step::Create)]
    #[case::first_cluster_pending(None, &[(Same, Pending)], NewCluster, Step::Continue(0))]
    #[case::first_cluster_without_recorded_role(None, &[(Same, New)], NewCluster, Step::Continue(0))]
    #[case::spec_changed_before_first_cluster_serves(None, &[(Different, Pending)], NewCluster, Step::Create)]
    #[case::group_appended_before_first_cluster_serves(None, &[(Appended, Pending)], NewCluster, Step::UpdatePending(0))]
    #[case::first_cluster_with_upgrades_disabled(None, &[], NO, Step::Create)]
    #[case::first_cluster_changed_with_upgrades_disabled(None, &[(Different, Pending)], NO, Step::Create)]
    // Nothing to do.
    #[case::active_matches(Some(Same), &[], NewCluster, Step::Keep)]
    #[case::active_matches_with_draining_cluster(Some(Same), &[(Different, Retired)], NewCluster, Step::Keep)]
    // An upgrade.
    #[case::spec_changed(Some(Different), &[], NewCluster, Step::Create)]
    #[case::pending_matches(Some(Different), &[(Same, Pending)], NewCluster, Step::Continue(0))]
    #[case::spec_changed_again(Some(Different), &[(Different, Pending)], NewCluster, Step::Create)]
    #[case::replacement_next_to_outdated_pending(Some(Different), &[(Different, Pending), (Same, New)], NewCluster, Step::Continue(1))]
    #[case::two_matches_pending_preferred(Some(Different), &[(Same, New), (Same, Pending)], NewCluster, Step::Continue(1))]
    #[case::two_new_matches_oldest_preferred(Some(Different), &[(Same, New), (Same, New)], NewCluster, Step::Continue(0))]
    #[case::spec_reverted(Some(Same), &[(Different, Pending)], NewCluster, Step::Keep)]
    #[case::reverted_to_draining_cluster(Some(Different), &[(Same, Retired)], NewCluster, Step::Continue(0))]
    #[case::reverted_to_draining_cluster_with_pending(
        Some(Different), &[(Same, Retired), (Different, Pending)], NewCluster, Step::Continue(0))]
    // Worker groups are only appended.
    #[case::group_appended(Some(Appended), &[], NewCluster, Step::UpdateActive)]
    #[case::group_appended_to_pending(Some(Different), &[(Appended, Pending)], NewCluster, Step::UpdatePending(0))]
    #[case::spec_reverted_and_group_appended(Some(Appended), &[(Different, Pending)], NewCluster, Step::UpdateActive)]
    #[case::group_appended_to_draining_cluster(Some(Different), &[(Appended, Retired)], NewCluster, Step::Create)]
    // Upgrades are disabled.
    #[case::disabled(Some(Different), &[], NO, Step::Hold(Reason::NoUpgrades, None))]
    #[case::disabled_with_upgrade_in_progress(Some(Different), &[(Same, Pending)], NO, Step::Continue(0))]
    #[case::disabled_and_spec_changed_again(Some(Different), &[(Different, Pending)], NO, Step::Hold(Reason::NoUpgrades, None))]
    #[case::disabled_and_reverted_to_draining_cluster(Some(Different), &[(Same, Retired)], NO, Step::Hold(Reason::NoUpgrades, None))]
    #[case::disabled_and_group_appended(Some(Appended), &[], NO, Step::UpdateActive)]
    // Incremental upgrades.
    #[case::incremental_without_cluster(None, &[], Incremental, Step::Create)]
    #[case::incremental(Some(Different), &[], Incremental, Step::Create)]
    #[case::incremental_in_progress(Some(Different), &[(Same, Pending)], Incremental, Step::Continue(0))]
    #[case::incremental_and_group_appended(Some(Appended), &[], Incremental, Step::UpdateActive)]
    fn action_depends_only_on_current_clusters(
        #[case] active: Option<Fit>,
        #[case] rivals: &[(Fit, Standing)],
        #[case] strategy: UpgradeType,
        #[case] expected: Step,
    ) {
        let rivals: Vec<Rival> = rivals.iter().map(|&(fit, standing)| Rival { fit, standing }).collect();
        assert_eq!(decide(active, &rivals, &strategy), expected);
    }

    #[rstest]
    #[case::no_cluster(&[], None)]
    #[case::only_draining(&[Retired], None)]
    #[case::pending_preferred(&[New, Retired, Pending], Some(2))]
    #[case::new_without_pending(&[Retired, New], Some(1))]
    fn pending_cluster_is_the_one_named_in_the_status(#[case] standings: &[Standing], #[case] expected: Option<usize>) {
        let rivals: Vec<Rival> = standings.iter().map(|&standing| Rival { fit: Different, standing }).collect();
        assert_eq!(current(&rivals), expected);
    }
}
