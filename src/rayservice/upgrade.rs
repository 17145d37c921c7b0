//! The state machine of an upgrade: which cluster is to become what, now that this is wanted.

use super::hash::Fit;
use crate::api::ray::UpgradeType;

/// A child that lives and doesn't serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rival {
    /// How it compares with what is wanted.
    pub fit: Fit,
    /// What it has been so far.
    pub standing: Standing,
}

/// What a child that doesn't serve has been so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// It served once, and is kept for those who still talk to it.
    Retired,
    /// Nothing says what it is for: it was just made, or the news of it got lost.
    New,
    /// The status names it as the one that serves next.
    Pending,
}

/// What is to be done. Indices are those of the rivals; a rival that isn't named here is not wanted any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The active cluster is what is wanted.
    Keep,
    /// The active cluster becomes what is wanted by more worker groups.
    UpdateActive,
    /// This rival is what is wanted; it serves next.
    Continue(usize),
    /// This rival becomes what is wanted by more worker groups; it serves next.
    UpdatePending(usize),
    /// This rival isn't wanted any more, and has a part of what the active one is to have: that takes it back first.
    Return(usize),
    /// No cluster is what is wanted; one is made.
    Create,
    /// Another cluster is wanted, and there is none because of this. A pending one stays as it is.
    Hold(Reason, Option<usize>),
}

/// Why a wanted cluster isn't made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// `upgradeStrategy.type` is None.
    NoUpgrades,
    /// What is wanted makes no sense.
    Invalid,
    /// It waited for quota for too long.
    GivenUp,
    /// It was tried, and failed.
    Failed,
}

impl Step {
    /// The rival that is pending.
    pub fn pending(&self) -> Option<usize> {
        match *self {
            Self::Continue(index) | Self::UpdatePending(index) | Self::Return(index) => Some(index),
            Self::Hold(_, pending) => pending,
            Self::Keep | Self::UpdateActive | Self::Create => None,
        }
    }
}

/// Decides what is to be done for what is wanted, whatever was wanted before: a goal that changes is planned anew from
/// where things stand. What is at hand already, warm ones that served before included, is never made a second time.
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
        // Nobody gets so far with a strategy that isn't known: the spec is invalid.
        (Some(_), UpgradeType::None | UpgradeType::Other(_)) => Step::Hold(Reason::NoUpgrades, None),
        _ => best(rivals, Fit::Same, Standing::Retired).map_or(Step::Create, Step::Continue),
    }
}

/// The rival that was on its way to serve.
pub fn current(rivals: &[Rival]) -> Option<usize> {
    let standing = |index: &usize| (rivals[*index].standing, std::cmp::Reverse(*index));
    (0..rivals.len()).filter(|index| rivals[*index].standing >= Standing::New).max_by_key(standing)
}

fn best(rivals: &[Rival], fit: Fit, least: Standing) -> Option<usize> {
    let standing = |index: &usize| (rivals[*index].standing, std::cmp::Reverse(*index));
    let fitting = |index: &usize| rivals[*index].fit == fit && rivals[*index].standing >= least;
    (0..rivals.len()).filter(fitting).max_by_key(standing)
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
    // The beginning of a service.
    #[case::nothing_there(None, &[], NewCluster, Step::Create)]
    #[case::first_one_on_its_way(None, &[(Same, Pending)], NewCluster, Step::Continue(0))]
    #[case::first_one_of_which_the_news_got_lost(None, &[(Same, New)], NewCluster, Step::Continue(0))]
    #[case::changed_before_the_first_one_serves(None, &[(Different, Pending)], NewCluster, Step::Create)]
    #[case::group_added_before_the_first_one_serves(None, &[(Appended, Pending)], NewCluster, Step::UpdatePending(0))]
    #[case::first_one_although_upgrades_are_off(None, &[], NO, Step::Create)]
    #[case::changed_first_one_although_upgrades_are_off(None, &[(Different, Pending)], NO, Step::Create)]
    // Nothing to do.
    #[case::settled(Some(Same), &[], NewCluster, Step::Keep)]
    #[case::settled_beside_an_old_one(Some(Same), &[(Different, Retired)], NewCluster, Step::Keep)]
    // An upgrade.
    #[case::changed(Some(Different), &[], NewCluster, Step::Create)]
    #[case::on_its_way(Some(Different), &[(Same, Pending)], NewCluster, Step::Continue(0))]
    #[case::changed_again(Some(Different), &[(Different, Pending)], NewCluster, Step::Create)]
    #[case::replacement_beside_the_replaced(Some(Different), &[(Different, Pending), (Same, New)], NewCluster, Step::Continue(1))]
    #[case::two_of_the_same(Some(Different), &[(Same, New), (Same, Pending)], NewCluster, Step::Continue(1))]
    #[case::two_of_the_same_unnamed(Some(Different), &[(Same, New), (Same, New)], NewCluster, Step::Continue(0))]
    #[case::taken_back(Some(Same), &[(Different, Pending)], NewCluster, Step::Keep)]
    #[case::back_to_what_served_before(Some(Different), &[(Same, Retired)], NewCluster, Step::Continue(0))]
    #[case::back_to_what_served_before_from_a_pending_one(
        Some(Different), &[(Same, Retired), (Different, Pending)], NewCluster, Step::Continue(0))]
    // Groups that are only appended.
    #[case::group_added(Some(Appended), &[], NewCluster, Step::UpdateActive)]
    #[case::group_added_to_the_pending(Some(Different), &[(Appended, Pending)], NewCluster, Step::UpdatePending(0))]
    #[case::taken_back_and_group_added(Some(Appended), &[(Different, Pending)], NewCluster, Step::UpdateActive)]
    #[case::group_added_to_one_that_goes(Some(Different), &[(Appended, Retired)], NewCluster, Step::Create)]
    // Upgrades are off.
    #[case::off(Some(Different), &[], NO, Step::Hold(Reason::NoUpgrades, None))]
    #[case::off_but_begun(Some(Different), &[(Same, Pending)], NO, Step::Continue(0))]
    #[case::off_and_changed_again(Some(Different), &[(Different, Pending)], NO, Step::Hold(Reason::NoUpgrades, None))]
    #[case::off_and_back(Some(Different), &[(Same, Retired)], NO, Step::Hold(Reason::NoUpgrades, None))]
    #[case::off_and_group_added(Some(Appended), &[], NO, Step::UpdateActive)]
    // A strategy that isn't known how to carry out.
    // A step at a time.
    #[case::incremental_from_the_start(None, &[], Incremental, Step::Create)]
    #[case::incremental(Some(Different), &[], Incremental, Step::Create)]
    #[case::incremental_halfway(Some(Different), &[(Same, Pending)], Incremental, Step::Continue(0))]
    #[case::incremental_and_group_added(Some(Appended), &[], Incremental, Step::UpdateActive)]
    fn every_goal_is_planned_from_where_things_stand(
        #[case] active: Option<Fit>,
        #[case] rivals: &[(Fit, Standing)],
        #[case] strategy: UpgradeType,
        #[case] expected: Step,
    ) {
        let rivals: Vec<Rival> = rivals.iter().map(|&(fit, standing)| Rival { fit, standing }).collect();
        assert_eq!(decide(active, &rivals, &strategy), expected);
    }

    #[rstest]
    #[case::none(&[], None)]
    #[case::only_old_ones(&[Retired], None)]
    #[case::named(&[New, Retired, Pending], Some(2))]
    #[case::unnamed(&[Retired, New], Some(1))]
    fn the_one_on_its_way_is_the_one_that_the_status_names(
        #[case] standings: &[Standing],
        #[case] expected: Option<usize>,
    ) {
        let rivals: Vec<Rival> = standings.iter().map(|&standing| Rival { fit: Different, standing }).collect();
        assert_eq!(current(&rivals), expected);
    }
}
