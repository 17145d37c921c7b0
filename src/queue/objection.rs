//! Decides whether a flavor is eligible for a pod set, regardless of quota.

use super::assign::{Attempt, Slot};
use super::pending::Obstacle;
use super::quota::FlavorInGroup;
use super::tree::Tree;

/// The reason that a flavor is not eligible for an assignment unit.
pub(super) enum Objection {
    /// The nodes of the flavor do not match the pods, or evictions were issued in another flavor.
    Unsuitable(String),
    /// Pods of the same pod set run in this other flavor.
    Pinned(String),
}

impl Attempt<'_> {
    pub(super) fn objection(&self, slot: &Slot<'_>, flavor: &FlavorInGroup) -> Option<Objection> {
        let specs = slot.group.flavors.iter().filter_map(|flavor| self.flavors.get(&flavor.name));
        let labels = || specs.flat_map(|spec| spec.node_labels.keys().map(String::as_str)).collect();
        let unsuitable = self.flavors.get(&flavor.name).and_then(|spec| slot.set.placement.objection(spec, labels));
        if let Some(problem) = unsuitable {
            return Some(Objection::Unsuitable(problem));
        }
        let pinned = self.predecessor.as_ref().and_then(|predecessor| {
            slot.asked.iter().find_map(|(resource, _)| predecessor.flavor_of(slot.set, resource))
        });
        if let Some(pinned) = pinned.filter(|pinned| *pinned != flavor.name) {
            return Some(Objection::Pinned(pinned.to_owned()));
        }
        let kept = self.kept_flavor(slot).filter(|kept| *kept != flavor.name)?;
        Some(Objection::Unsuitable(format!("quota is reserved for this pod set in flavor {kept}")))
    }

    /// Converts the reason to a rejection. Pods running in another flavor are reported as such only
    /// if this flavor has any quota for all requested resources.
    pub(super) fn obstacle(
        &self,
        slot: &Slot<'_>,
        flavor: &FlavorInGroup,
        objection: Objection,
        tree: &Tree,
    ) -> Obstacle {
        let (pod_set, name) = (slot.set.name.clone(), flavor.name.clone());
        let has_any =
            |(resource, _): &(&str, i128)| flavor.fr(resource).is_some_and(|fr| tree.potential(self.node, fr) > 0);
        match objection {
            Objection::Unsuitable(problem) => Obstacle::Unsuitable { pod_set, flavor: name, problem },
            Objection::Pinned(runs_in) if slot.asked.iter().all(has_any) => {
                Obstacle::Pinned { pod_set, flavor: name, runs_in }
            }
            Objection::Pinned(_) => {
                let problem = "the ClusterQueue has no quota for it".to_owned();
                Obstacle::Unsuitable { pod_set, flavor: name, problem }
            }
        }
    }

    /// Returns the flavor in which evictions were issued for a unit. `None` if there were none or
    /// the resource group no longer has that flavor.
    fn kept_flavor(&self, slot: &Slot<'_>) -> Option<&str> {
        let mut kept = self.room?.flavors.iter().filter(|(set, group, _)| (*set, *group) == slot.place);
        let (.., flavor) = kept.next()?;
        slot.group.flavors.iter().any(|other| other.name == *flavor).then_some(flavor)
    }
}
