//! Upgrade decision: which RayCluster is kept, updated, promoted or created for the desired spec.

use super::spec_hash::SpecMatch;
use sluice_api::ray::UpgradeType;

/// RayCluster that is neither active nor terminating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyCluster {
    /// Result of comparing its spec with the desired spec.
    pub spec_match: SpecMatch,
    /// Its role so far.
    pub role: ClusterRole,
}

/// Role of an inactive cluster, in ascending order of preference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClusterRole {
    /// It served before and is kept for requests and connections that still use it.
    Draining,
    /// No role is recorded: it was just created, or the status update was lost.
    New,
    /// The status names it as the pending cluster.
    Pending,
}

/// Next action of an upgrade. Indices refer to the inactive clusters; an inactive cluster that the
/// action does not name is no longer needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeAction {
    /// The active cluster matches the desired spec.
    Keep,
    /// The active cluster matches once worker groups are appended to it.
    UpdateActive,
    /// This cluster matches the desired spec and is pending.
    UsePending(usize),
    /// This cluster matches once worker groups are appended to it and is pending.
    UpdatePending(usize),
    /// This cluster is no longer desired but holds part of the capacity or traffic; it is returned
    /// to the active cluster first.
    RollBack(usize),
    /// No cluster matches; one is created.
    Create,
    /// A new cluster is required but not created for this reason. An existing pending cluster stays
    /// unchanged.
    Block {
        /// Reason why none is created.
        reason: BlockReason,
        /// Index of the existing pending cluster; None if there is none.
        pending: Option<usize>,
    },
}

/// Reason why a required cluster is not created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockReason {
    /// `upgradeStrategy.type` is None.
    UpgradesDisabled,
    /// The spec is invalid.
    InvalidSpec,
    /// It was not admitted in time.
    AdmissionTimedOut,
    /// Its incremental upgrade failed.
    UpgradeFailed,
}

impl UpgradeAction {
    /// Returns the index of the pending cluster; None if there is none.
    pub fn pending_index(&self) -> Option<usize> {
        match *self {
            Self::UsePending(index) | Self::UpdatePending(index) | Self::RollBack(index) => Some(index),
            Self::Block { pending, .. } => pending,
            Self::Keep | Self::UpdateActive | Self::Create => None,
        }
    }
}

/// Decides the next action from the current clusters alone, so a spec that changes again is planned
/// from the current state. Existing clusters that match, including draining ones, are reused
/// instead of creating another one.
pub fn decide(active: Option<SpecMatch>, rivals: &[StandbyCluster], strategy: &UpgradeType) -> UpgradeAction {
    if active == Some(SpecMatch::Same) {
        return UpgradeAction::Keep;
    }
    if let Some(index) = best_match(rivals, SpecMatch::Same, ClusterRole::New) {
        return UpgradeAction::UsePending(index);
    }
    if let Some(index) = best_match(rivals, SpecMatch::GroupsAppended, ClusterRole::New) {
        return UpgradeAction::UpdatePending(index);
    }
    match (active, strategy) {
        (Some(SpecMatch::GroupsAppended), _) => UpgradeAction::UpdateActive,
        // Unknown strategies are rejected by validation and never get here.
        (Some(_), UpgradeType::None | UpgradeType::Unknown(_)) => {
            UpgradeAction::Block { reason: BlockReason::UpgradesDisabled, pending: None }
        }
        _ => best_match(rivals, SpecMatch::Same, ClusterRole::Draining)
            .map_or(UpgradeAction::Create, UpgradeAction::UsePending),
    }
}

/// Returns the index of the most advanced new or pending cluster; None if all are draining. Ties go
/// to the oldest.
pub fn current_pending(rivals: &[StandbyCluster]) -> Option<usize> {
    let preference = |index: &usize| (rivals[*index].role, std::cmp::Reverse(*index));
    (0..rivals.len()).filter(|index| rivals[*index].role >= ClusterRole::New).max_by_key(preference)
}

fn best_match(rivals: &[StandbyCluster], fit: SpecMatch, least: ClusterRole) -> Option<usize> {
    let preference = |index: &usize| (rivals[*index].role, std::cmp::Reverse(*index));
    let matches = |index: &usize| rivals[*index].spec_match == fit && rivals[*index].role >= least;
    (0..rivals.len()).filter(matches).max_by_key(preference)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::ClusterRole::{Draining, New, Pending};
    use super::SpecMatch::{Different, GroupsAppended, Same};
    use super::UpgradeType::{NewCluster, NewClusterWithIncrementalUpgrade as Incremental};
    use super::*;

    const NO_UPGRADES: UpgradeType = UpgradeType::None;

    #[rstest]
    // No active cluster yet.
    #[case::no_cluster(None, &[], NewCluster, UpgradeAction::Create)]
    #[case::first_cluster_pending(None, &[(Same, Pending)], NewCluster, UpgradeAction::UsePending(0))]
    #[case::first_cluster_without_recorded_role(None, &[(Same, New)], NewCluster, UpgradeAction::UsePending(0))]
    #[case::spec_changed_before_first_cluster_serves(None, &[(Different, Pending)], NewCluster, UpgradeAction::Create)]
    #[case::group_appended_before_first_cluster_serves(None, &[(GroupsAppended, Pending)], NewCluster, UpgradeAction::UpdatePending(0))]
    #[case::first_cluster_with_upgrades_disabled(None, &[], NO_UPGRADES, UpgradeAction::Create)]
    #[case::first_cluster_changed_with_upgrades_disabled(None, &[(Different, Pending)], NO_UPGRADES, UpgradeAction::Create)]
    // Nothing to do.
    #[case::active_matches(Some(Same), &[], NewCluster, UpgradeAction::Keep)]
    #[case::active_matches_with_draining_cluster(Some(Same), &[(Different, Draining)], NewCluster, UpgradeAction::Keep)]
    // An upgrade.
    #[case::spec_changed(Some(Different), &[], NewCluster, UpgradeAction::Create)]
    #[case::pending_matches(Some(Different), &[(Same, Pending)], NewCluster, UpgradeAction::UsePending(0))]
    #[case::spec_changed_again(Some(Different), &[(Different, Pending)], NewCluster, UpgradeAction::Create)]
    #[case::replacement_next_to_outdated_pending(Some(Different), &[(Different, Pending), (Same, New)], NewCluster, UpgradeAction::UsePending(1))]
    #[case::two_matches_pending_preferred(Some(Different), &[(Same, New), (Same, Pending)], NewCluster, UpgradeAction::UsePending(1))]
    #[case::two_new_matches_oldest_preferred(Some(Different), &[(Same, New), (Same, New)], NewCluster, UpgradeAction::UsePending(0))]
    #[case::spec_reverted(Some(Same), &[(Different, Pending)], NewCluster, UpgradeAction::Keep)]
    #[case::reverted_to_draining_cluster(Some(Different), &[(Same, Draining)], NewCluster, UpgradeAction::UsePending(0))]
    #[case::reverted_to_draining_cluster_with_pending(
        Some(Different), &[(Same, Draining), (Different, Pending)], NewCluster, UpgradeAction::UsePending(0))]
    // Worker groups are only appended.
    #[case::group_appended(Some(GroupsAppended), &[], NewCluster, UpgradeAction::UpdateActive)]
    #[case::group_appended_to_pending(Some(Different), &[(GroupsAppended, Pending)], NewCluster, UpgradeAction::UpdatePending(0))]
    #[case::spec_reverted_and_group_appended(Some(GroupsAppended), &[(Different, Pending)], NewCluster, UpgradeAction::UpdateActive)]
    #[case::group_appended_to_draining_cluster(Some(Different), &[(GroupsAppended, Draining)], NewCluster, UpgradeAction::Create)]
    // Upgrades are disabled.
    #[case::disabled(Some(Different), &[], NO_UPGRADES, UpgradeAction::Block { reason: BlockReason::UpgradesDisabled, pending: None })]
    #[case::disabled_with_upgrade_in_progress(Some(Different), &[(Same, Pending)], NO_UPGRADES, UpgradeAction::UsePending(0))]
    #[case::disabled_and_spec_changed_again(Some(Different), &[(Different, Pending)], NO_UPGRADES, UpgradeAction::Block { reason: BlockReason::UpgradesDisabled, pending: None })]
    #[case::disabled_and_reverted_to_draining_cluster(Some(Different), &[(Same, Draining)], NO_UPGRADES, UpgradeAction::Block { reason: BlockReason::UpgradesDisabled, pending: None })]
    #[case::disabled_and_group_appended(Some(GroupsAppended), &[], NO_UPGRADES, UpgradeAction::UpdateActive)]
    // Incremental upgrades.
    #[case::incremental_without_cluster(None, &[], Incremental, UpgradeAction::Create)]
    #[case::incremental(Some(Different), &[], Incremental, UpgradeAction::Create)]
    #[case::incremental_in_progress(Some(Different), &[(Same, Pending)], Incremental, UpgradeAction::UsePending(0))]
    #[case::incremental_and_group_appended(Some(GroupsAppended), &[], Incremental, UpgradeAction::UpdateActive)]
    fn action_depends_only_on_current_clusters(
        #[case] active: Option<SpecMatch>,
        #[case] rivals: &[(SpecMatch, ClusterRole)],
        #[case] strategy: UpgradeType,
        #[case] expected: UpgradeAction,
    ) {
        let rivals: Vec<StandbyCluster> =
            rivals.iter().map(|&(spec_match, role)| StandbyCluster { spec_match, role }).collect();
        assert_eq!(decide(active, &rivals, &strategy), expected);
    }

    #[rstest]
    #[case::no_cluster(&[], None)]
    #[case::only_draining(&[Draining], None)]
    #[case::pending_preferred(&[New, Draining, Pending], Some(2))]
    #[case::new_without_pending(&[Draining, New], Some(1))]
    fn pending_cluster_is_the_one_named_in_the_status(
        #[case] standings: &[ClusterRole],
        #[case] expected: Option<usize>,
    ) {
        let rivals: Vec<StandbyCluster> =
            standings.iter().map(|&role| StandbyCluster { spec_match: Different, role }).collect();
        assert_eq!(current_pending(&rivals), expected);
    }
}
