//! Decides whether a flavor is eligible for a pod set, regardless of quota.

use std::collections::BTreeMap;

use super::cached_workload::UnitPosition;
use super::cluster_queue_config::GroupFlavor;
use super::flavor_assigner::{AssignmentUnit, FlavorAssigner};
use super::partial_assignment::AssignedFlavor;
use super::pending::FlavorRejection;
use super::tree::CohortTree;
use super::workload_requests::PodSetRequests;

/// The reason that a flavor is not eligible for an assignment unit.
pub(super) enum Ineligible {
    /// The nodes of the flavor do not match the pods, or evictions were issued in another flavor.
    Mismatch(String),
    /// Pods of the same pod set run in this other flavor.
    PinnedElsewhere(String),
}

impl FlavorAssigner<'_> {
    /// Returns the reason that a unit cannot have a flavor, given those of earlier units.
    pub(super) fn ineligibility(
        &self,
        slot: &AssignmentUnit<'_>,
        flavor: &GroupFlavor,
        assigned: &[AssignedFlavor],
    ) -> Option<Ineligible> {
        let regardless = self.ineligibility_alone(slot, flavor);
        if regardless.is_some() || !slot.may_contradict {
            return regardless;
        }
        let excluded = slot.excluded.get(&flavor.name).cloned();
        excluded.or_else(|| self.contradiction(slot, flavor, assigned)).map(Ineligible::Mismatch)
    }

    /// Returns the reason that a unit cannot have a flavor, whatever those of other units are.
    pub(super) fn ineligibility_alone(&self, slot: &AssignmentUnit<'_>, flavor: &GroupFlavor) -> Option<Ineligible> {
        let requirements = &slot.pod_set.node_requirements;
        let unsuitable = self.flavors.get(&flavor.name).and_then(|spec| requirements.mismatch(spec));
        if let Some(problem) = unsuitable {
            return Some(Ineligible::Mismatch(problem));
        }
        let pinned = self.predecessor.as_ref().and_then(|predecessor| {
            slot.requests.iter().find_map(|(resource, _)| predecessor.running_flavor(slot.pod_set, resource))
        });
        if let Some(pinned) = pinned.filter(|pinned| *pinned != flavor.name) {
            return Some(Ineligible::PinnedElsewhere(pinned.to_owned()));
        }
        let kept = self.reserved_flavor(slot).filter(|kept| *kept != flavor.name)?;
        Some(Ineligible::Mismatch(format!("quota is reserved for this pod set in flavor {kept}")))
    }

    /// Returns the flavor of each resource that a pod set without pods would request: the first eligible
    /// one, as in kueue v0.19.2 (`pkg/scheduler/flavorassigner/flavorassigner.go`, `assignFlavors`).
    /// It uses no quota there, is admitted without one too, and gets any flavor when pods are added.
    pub(super) fn flavors_without_pods(&self, index: usize, set: &PodSetRequests) -> BTreeMap<String, String> {
        let groups = self.config.groups.iter().enumerate();
        let units = groups.map(|(group_index, group)| {
            let requested = self.config.requests(set, 0).filter(|(resource, _)| group.resources.contains(*resource));
            let position = UnitPosition { pod_set: index, group: group_index };
            AssignmentUnit::new(position, set, group, requested.map(|(resource, _)| (resource, 0)).collect())
        });
        let mut units: Vec<_> = units.filter(|unit| !unit.requests.is_empty()).collect();
        self.exclude_contradicting_flavors(&mut units, |_, _| true);
        let (mut flavors, mut assigned) = (BTreeMap::new(), Vec::new());
        for unit in &units {
            let mut eligible = unit.group.flavors.iter().enumerate();
            let eligible = eligible.find(|(_, flavor)| self.ineligibility(unit, flavor, &assigned).is_none());
            let Some((index, flavor)) = eligible else { continue };
            assigned.push(AssignedFlavor { unit: unit.position, flavor: index });
            flavors.extend(unit.requests.iter().map(|(resource, _)| ((*resource).to_owned(), flavor.name.clone())));
        }
        flavors
    }

    /// Converts the reason to a rejection. Pods running in another flavor are reported as such only
    /// if this flavor has any quota for all requested resources.
    pub(super) fn rejection(
        &self,
        slot: &AssignmentUnit<'_>,
        flavor: &GroupFlavor,
        objection: Ineligible,
        tree: &CohortTree,
    ) -> FlavorRejection {
        let (pod_set, name) = (slot.pod_set.name.clone(), flavor.name.clone());
        let has_any = |(resource, _): &(&str, i128)| {
            flavor.flavor_resource(resource).is_some_and(|fr| tree.potential_available(self.node, fr) > 0)
        };
        match objection {
            Ineligible::Mismatch(problem) => FlavorRejection::Mismatch { pod_set, flavor: name, problem },
            Ineligible::PinnedElsewhere(runs_in) if slot.requests.iter().all(has_any) => {
                FlavorRejection::PinnedElsewhere { pod_set, flavor: name, running_flavor: runs_in }
            }
            Ineligible::PinnedElsewhere(_) => {
                let problem = "the ClusterQueue has no quota for it".to_owned();
                FlavorRejection::Mismatch { pod_set, flavor: name, problem }
            }
        }
    }

    /// Returns the flavor in which evictions were issued for a unit. `None` if there were none or
    /// the resource group no longer has that flavor.
    fn reserved_flavor(&self, slot: &AssignmentUnit<'_>) -> Option<&str> {
        let reserved = self.reserved_assignment?.flavors.iter().find(|reserved| reserved.unit == slot.position)?;
        slot.group.flavors.iter().any(|other| other.name == reserved.flavor).then_some(&reserved.flavor)
    }
}
