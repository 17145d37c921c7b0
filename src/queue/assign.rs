//! Which flavors a workload gets, or what stands in the way.

use std::collections::BTreeMap;

use super::entry::{Demand, PodSetDemand};
use super::ledger::{Charge, FlavorResource, Ledger, add_to, clamped};
use super::pending::{Obstacle, Shortfall};
use super::quota::{Group, Quota};
use super::requests::Requests;
use crate::api::kueue::{Admission, PodSetAssignment, ResourceFlavorSpec};
use crate::api::quantity::Amount;
use crate::engine::store::Key;

/// How many holders an obstacle names.
const NAMED_HOLDERS: usize = 3;

/// The slice whose quota a workload takes over.
#[derive(Debug, Clone)]
pub(super) struct Predecessor<'a> {
    pub(super) key: &'a Key,
    pub(super) charge: &'a Charge,
    pub(super) demand: Option<&'a Demand>,
    pub(super) admission: &'a Admission,
}

impl Predecessor<'_> {
    fn holds(&self, at: &FlavorResource) -> Amount {
        self.charge.get(at).copied().unwrap_or_default()
    }

    /// The flavor that running pods of the same pod set already have. They stay where they are, so another flavor would
    /// charge what does not run and not charge what does.
    fn flavor_of(&self, set: &PodSetDemand, resource: &str) -> Option<&str> {
        let before = self.demand?.pod_sets.iter().find(|before| before.name == set.name)?;
        let assignment = self.admission.pod_set_assignments.iter().find(|assignment| assignment.name == set.name)?;
        let runs = before.per_pod == set.per_pod && assignment.count.unwrap_or(before.count) > 0;
        runs.then(|| assignment.flavors.get(resource)).flatten().map(String::as_str)
    }
}

/// The rules and the state of one ClusterQueue, as one workload sees them.
#[derive(Debug, Clone)]
pub(super) struct Attempt<'a> {
    pub(super) cluster_queue: &'a str,
    pub(super) quota: &'a Quota,
    pub(super) flavors: &'a BTreeMap<String, ResourceFlavorSpec>,
    pub(super) ledger: &'a Ledger,
    pub(super) predecessor: Option<Predecessor<'a>>,
}

impl Attempt<'_> {
    /// Gives each pod set the first flavor of each resource group in which all that it asks for is free, after what earlier
    /// pod sets of the same workload took; or says what stands in the way of each pod set, flavor by flavor.
    pub(super) fn assign(&self, demand: &Demand) -> Result<Admission, Vec<Obstacle>> {
        let (mut taken, mut assignments, mut obstacles) = (Charge::new(), Vec::new(), Vec::new());
        for set in &demand.pod_sets {
            match self.assign_pod_set(set, &taken) {
                Ok(assignment) => {
                    for (resource, flavor) in &assignment.flavors {
                        let amount = self.requests(set).get(resource);
                        add_to(&mut taken, FlavorResource::new(flavor, resource), amount);
                    }
                    assignments.push(assignment);
                }
                Err(found) => obstacles.extend(found),
            }
        }
        if obstacles.is_empty() {
            Ok(Admission { cluster_queue: self.cluster_queue.to_owned(), pod_set_assignments: assignments })
        } else {
            Err(obstacles)
        }
    }

    /// What all pods of a pod set ask for. Where the ClusterQueue counts pods, each asks for one.
    fn requests(&self, set: &PodSetDemand) -> Requests {
        let mut per_pod = set.per_pod.clone();
        if self.quota.group_of("pods").is_some() {
            per_pod.set("pods", Amount::new(1));
        }
        per_pod.times(set.count.into())
    }

    fn assign_pod_set(&self, set: &PodSetDemand, taken: &Charge) -> Result<PodSetAssignment, Vec<Obstacle>> {
        let requests = self.requests(set);
        let (mut flavors, mut obstacles) = (BTreeMap::new(), Vec::new());
        for group in &self.quota.groups {
            let asked: Vec<(&str, Amount)> =
                requests.iter().filter(|(resource, _)| group.resources.contains(*resource)).collect();
            if asked.is_empty() {
                continue;
            }
            match self.first_fitting(set, group, &asked, taken) {
                Ok(flavor) => {
                    flavors.extend(asked.iter().map(|(resource, _)| ((*resource).to_owned(), flavor.to_owned())))
                }
                Err(found) => obstacles.extend(found),
            }
        }
        let not_offered = requests.iter().filter(|(resource, _)| self.quota.group_of(resource).is_none());
        obstacles.extend(
            not_offered
                .map(|(resource, _)| Obstacle::NotOffered { pod_set: set.name.clone(), resource: resource.to_owned() }),
        );
        if !obstacles.is_empty() {
            return Err(obstacles);
        }
        let usage = requests.quantities().into_iter().filter(|(resource, _)| flavors.contains_key(resource));
        Ok(PodSetAssignment {
            name: set.name.clone(),
            resource_usage: usage.collect(),
            flavors,
            count: Some(set.count),
            ..PodSetAssignment::default()
        })
    }

    fn first_fitting<'g>(
        &self,
        set: &PodSetDemand,
        group: &'g Group,
        asked: &[(&str, Amount)],
        taken: &Charge,
    ) -> Result<&'g str, Vec<Obstacle>> {
        let pinned = self
            .predecessor
            .as_ref()
            .and_then(|predecessor| asked.iter().find_map(|(resource, _)| predecessor.flavor_of(set, resource)));
        let specs = group.flavors.iter().filter_map(|flavor| self.flavors.get(flavor));
        let labels = specs.flat_map(|spec| spec.node_labels.keys().map(String::as_str)).collect();
        let mut obstacles = Vec::new();
        for flavor in &group.flavors {
            let elsewhere = pinned.filter(|pinned| pinned != flavor);
            let problem = match elsewhere {
                Some(pinned) => Some(format!("pods of this pod set already run in flavor {pinned}")),
                None => self.flavors.get(flavor).and_then(|spec| set.placement.objection(spec, &labels)),
            };
            if let Some(problem) = problem {
                obstacles.push(Obstacle::Unsuitable { pod_set: set.name.clone(), flavor: flavor.clone(), problem });
                continue;
            }
            let short: Vec<Obstacle> = asked
                .iter()
                .filter_map(|(resource, amount)| self.obstacle(set, flavor, resource, *amount, taken))
                .collect();
            if short.is_empty() {
                return Ok(flavor);
            }
            obstacles.extend(short);
        }
        Err(obstacles)
    }

    /// What stands in the way of `requested` in one flavor, if anything does.
    fn obstacle(
        &self,
        set: &PodSetDemand,
        flavor: &str,
        resource: &str,
        requested: Amount,
        taken: &Charge,
    ) -> Option<Obstacle> {
        let at = FlavorResource::new(flavor, resource);
        let nominal = self.quota.nominal(&at);
        let earlier = taken.get(&at).copied().unwrap_or_default();
        let held = self.predecessor.as_ref().map_or(Amount::ZERO, |predecessor| predecessor.holds(&at));
        let used = self.ledger.reserved(&at) - i128::from(held.get());
        let wanted = i128::from(requested.get()) + i128::from(earlier.get());
        let missing = used + wanted - i128::from(nominal.get());
        if missing <= 0 && requested != Amount::MAX {
            return None;
        }
        let own = self.predecessor.as_ref().map(|predecessor| predecessor.key);
        let holders = self.ledger.holders(&at).filter(|(key, _)| Some(*key) != own);
        let holders: Vec<(Key, Amount)> =
            holders.take(NAMED_HOLDERS).map(|(key, amount)| (key.clone(), amount)).collect();
        let all = self.ledger.holder_count(&at) - usize::from(held != Amount::ZERO);
        let shortfall = Shortfall {
            pod_set: set.name.clone(),
            flavor: flavor.to_owned(),
            resource: resource.to_owned(),
            requested,
            earlier,
            held,
            used: clamped(used),
            nominal,
            missing: clamped(missing),
            more_holders: all.saturating_sub(holders.len()),
            holders,
        };
        let never = wanted > i128::from(nominal.get()) || requested == Amount::MAX;
        Some(if never { Obstacle::Exceeds(shortfall) } else { Obstacle::Short(shortfall) })
    }
}
