//! Flavors of one pod set whose node labels contradict each other.
//!
//! A pod set with resources of several resource groups gets a flavor of each. If two of them have one
//! node label with different values, its pods fit on no node. Kueue v0.19.2 assigns them all the same,
//! and sets one of the values (`pkg/podset/podset.go`, `FromAssignment`; kubernetes-sigs/kueue#14409).

use std::collections::BTreeMap;

use super::cluster_queue_config::GroupFlavor;
use super::flavor_assigner::{AssignmentUnit, FlavorAssigner};
use super::flavor_backtracking::MAX_COMBINATIONS;
use super::partial_assignment::AssignedFlavor;

/// A unit, and the indexes of those of its flavors that may be assigned.
type Candidates<'a, 'u> = (&'a AssignmentUnit<'u>, Vec<usize>);

impl FlavorAssigner<'_> {
    /// Marks the units whose flavors may contradict those of another unit of their pod set, and
    /// excludes the flavors that go with no combination of flavors for the other units. These have to
    /// have enough quota, if there are any that do.
    pub(super) fn exclude_contradicting_flavors<'u>(
        &self,
        units: &mut [AssignmentUnit<'u>],
        has_quota: impl Fn(&AssignmentUnit<'u>, &GroupFlavor) -> bool,
    ) {
        for units in units.chunk_by_mut(|unit, next| unit.position.pod_set == next.position.pod_set) {
            if !self.may_contradict(units) {
                continue;
            }
            let of_pod_set = &*units;
            let excluded = (0..units.len()).map(|index| self.excluded_flavors(of_pod_set, index, &has_quota));
            let excluded: Vec<BTreeMap<String, String>> = excluded.collect();
            for (unit, excluded) in units.iter_mut().zip(excluded) {
                (unit.may_contradict, unit.excluded) = (true, excluded);
            }
        }
    }

    fn may_contradict(&self, units: &[AssignmentUnit<'_>]) -> bool {
        // Pods that run stay in their flavors, even if the labels of those have changed since.
        let is_pinned = |unit: &AssignmentUnit<'_>| {
            let mut resources = unit.requests.iter().map(|(resource, _)| resource);
            let running = |resource| self.predecessor.as_ref()?.running_flavor(unit.pod_set, resource);
            resources.any(|resource| running(resource).is_some())
        };
        if units.len() < 2 || units.iter().any(is_pinned) {
            return false;
        }
        units.iter().enumerate().any(|(index, unit)| {
            let mut others = units[index + 1..].iter().flat_map(|other| &other.group.flavors);
            others
                .any(|other| unit.group.flavors.iter().any(|flavor| self.contradicting_label(flavor, other).is_some()))
        })
    }

    /// Returns the names of the flavors that a unit cannot have because of the other units of its
    /// pod set, with the reason for each. Units that have no flavor in any case are disregarded.
    fn excluded_flavors<'u>(
        &self,
        units: &[AssignmentUnit<'u>],
        index: usize,
        has_quota: &impl Fn(&AssignmentUnit<'u>, &GroupFlavor) -> bool,
    ) -> BTreeMap<String, String> {
        let eligible = |unit: &AssignmentUnit<'u>| -> Vec<usize> {
            let flavors = unit.group.flavors.iter().enumerate();
            flavors
                .filter(|(_, flavor)| self.ineligibility_alone(unit, flavor).is_none())
                .map(|(flavor, _)| flavor)
                .collect()
        };
        let unit = &units[index];
        let own = eligible(unit);
        let others = units.iter().filter(|other| other.position != unit.position);
        let others = others.map(|other| (other, eligible(other))).filter(|(_, flavors)| !flavors.is_empty());
        let others: Vec<Candidates<'_, 'u>> = others.collect();
        let with_quota = others.iter().map(|(other, flavors)| {
            let flavors = flavors.iter().copied();
            (*other, flavors.filter(|flavor| has_quota(other, &other.group.flavors[*flavor])).collect())
        });
        let excluded = self.inconsistent_flavors(unit, &own, &with_quota.collect::<Vec<_>>());
        if excluded.len() < own.len() { excluded } else { self.inconsistent_flavors(unit, &own, &others) }
    }

    fn inconsistent_flavors(
        &self,
        unit: &AssignmentUnit<'_>,
        flavors: &[usize],
        others: &[Candidates<'_, '_>],
    ) -> BTreeMap<String, String> {
        let excluded = flavors.iter().filter_map(|flavor| {
            let mut assigned = vec![AssignedFlavor { unit: unit.position, flavor: *flavor }];
            if self.goes_with_all(others, &mut assigned, &mut 0) {
                return None;
            }
            let flavor = &unit.group.flavors[*flavor];
            Some((flavor.name.clone(), self.exclusion_message(flavor, others)))
        });
        excluded.collect()
    }

    /// Reports whether all other units can have a flavor besides the assigned ones, or there are too
    /// many combinations to tell.
    fn goes_with_all(
        &self,
        others: &[Candidates<'_, '_>],
        assigned: &mut Vec<AssignedFlavor>,
        tries: &mut usize,
    ) -> bool {
        let Some(((unit, flavors), rest)) = others.split_first() else { return true };
        flavors.iter().any(|flavor| {
            *tries += 1;
            if *tries >= MAX_COMBINATIONS {
                return true;
            }
            if self.contradiction(unit, &unit.group.flavors[*flavor], assigned).is_some() {
                return false;
            }
            assigned.push(AssignedFlavor { unit: unit.position, flavor: *flavor });
            let goes = self.goes_with_all(rest, assigned, tries);
            assigned.pop();
            goes
        })
    }

    /// Names the label, and the resource whose flavors it contradicts.
    fn exclusion_message(&self, flavor: &GroupFlavor, others: &[Candidates<'_, '_>]) -> String {
        let contradicting = others.iter().find_map(|(other, flavors)| {
            let labels = flavors.iter().map(|index| self.contradicting_label(flavor, &other.group.flavors[*index]));
            let labels = labels.collect::<Option<Vec<_>>>()?;
            let (label, value, _) = labels.first()?;
            Some(format!(
                "no flavor for {} is compatible with its node label {label}={value}",
                other.requests.first()?.0
            ))
        });
        contradicting
            .unwrap_or_else(|| "no combination of flavors for the other resources has its node labels".to_owned())
    }

    /// Describes a label that the nodes of a flavor have with another value than those of a flavor
    /// that the same pods have for other resources.
    pub(super) fn contradiction(
        &self,
        unit: &AssignmentUnit<'_>,
        flavor: &GroupFlavor,
        assigned: &[AssignedFlavor],
    ) -> Option<String> {
        assigned.iter().filter(|other| other.unit.pod_set == unit.position.pod_set).find_map(|other| {
            let other = &self.config.groups[other.unit.group].flavors[other.flavor];
            let (label, value, others_value) = self.contradicting_label(flavor, other)?;
            let other = &other.name;
            Some(format!(
                "its node label {label}={value} contradicts {label}={others_value} of flavor {other} for the same pods"
            ))
        })
    }

    /// Returns a node label that two flavors have with different values, and both values.
    fn contradicting_label(&self, flavor: &GroupFlavor, other: &GroupFlavor) -> Option<(&str, &str, &str)> {
        let others = &self.flavors.get(&other.name)?.node_labels;
        self.flavors.get(&flavor.name)?.node_labels.iter().find_map(|(label, value)| {
            let others_value = others.get(label).filter(|others_value| *others_value != value)?;
            Some((label.as_str(), value.as_str(), others_value.as_str()))
        })
    }
}
