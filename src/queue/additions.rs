//! What the cluster adds to pods beside their templates, and what it allows them: LimitRanges and the overhead of
//! RuntimeClasses. (kueue v0.19.2 `pkg/workload/resources.go`, `AdjustResources`. As there, a class that is not there adds
//! nothing.)

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::LimitRangeSpec;
use k8s_openapi::api::node::v1::Overhead;

use super::Key;
use super::demand::PodSetDemand;
use super::engine::{Engine, WorkloadId};
use super::explain::predecessor_of;
use super::limits::Limits;
use super::pod::Sums;
use super::slot::Slot;
use super::tree::NodeId;
use sluice_api::quantity::Exact;

/// What the cluster adds to pods, and what it allows them.
#[derive(Debug, Clone, Default)]
pub(super) struct Additions {
    limit_ranges: BTreeMap<Key, LimitRangeSpec>,
    /// All LimitRanges of a namespace as one, where there are any.
    limits: BTreeMap<String, Limits>,
    /// By RuntimeClass, where there is any.
    overheads: BTreeMap<String, Sums>,
}

impl Additions {
    /// All LimitRanges of a namespace as one; `None` where there are none.
    pub(super) fn limits(&self, namespace: &str) -> Option<&Limits> {
        self.limits.get(namespace)
    }

    /// What a RuntimeClass adds to each pod, if it adds anything.
    pub(super) fn overhead(&self, class: &str) -> Option<&Sums> {
        self.overheads.get(class)
    }

    /// Returns whether that makes a difference.
    fn set_limit_range(&mut self, key: &Key, spec: Option<&LimitRangeSpec>) -> bool {
        match spec {
            Some(spec) => drop(self.limit_ranges.insert(key.clone(), spec.clone())),
            None => drop(self.limit_ranges.remove(key)),
        }
        let namespace = key.namespace.as_str();
        let all = self.limit_ranges.range(Key::new(namespace, "")..);
        let all = all.take_while(|(key, _)| key.namespace == namespace).map(|(key, spec)| (key.name.as_str(), spec));
        replace(&mut self.limits, namespace, Some(Limits::of(all)).filter(|limits| *limits != Limits::default()))
    }

    /// Returns whether that makes a difference.
    fn set_runtime_class(&mut self, name: &str, overhead: Option<&Overhead>) -> bool {
        let fixed = overhead.and_then(|overhead| overhead.pod_fixed.as_ref()).into_iter().flatten();
        let sums = fixed.filter_map(|(resource, quantity)| Some((resource.clone(), Exact::demanded(quantity).ok()?)));
        let sums: Sums = sums.collect();
        replace(&mut self.overheads, name, Some(sums).filter(|sums| !sums.is_empty()))
    }
}

/// Returns whether that makes a difference.
fn replace<T: PartialEq + Clone>(map: &mut BTreeMap<String, T>, name: &str, value: Option<T>) -> bool {
    let before = match value.clone() {
        Some(value) => map.insert(name.to_owned(), value),
        None => map.remove(name),
    };
    before != value
}

impl Engine {
    pub(super) fn set_limit_range(&mut self, key: &Key, spec: Option<&LimitRangeSpec>) {
        if self.demands.added.set_limit_range(key, spec) {
            let first = Key::new(key.namespace.clone(), "");
            let here = self.workloads.from(&first).take_while(|(other, ..)| other.namespace == key.namespace);
            let here: Vec<WorkloadId> = here.map(|(_, id, _)| id).collect();
            self.ask_again(&here);
        }
    }

    pub(super) fn set_runtime_class(&mut self, name: &str, overhead: Option<&Overhead>) {
        if self.demands.added.set_runtime_class(name, overhead) {
            let users = self.workloads.iter().filter(|(.., slot)| slot.entry.names_class(name));
            let users: Vec<WorkloadId> = users.map(|(_, id, _)| id).collect();
            self.ask_again(&users);
        }
    }

    /// Something else is added to the pods of these. What they hold is what was admitted, and stays.
    fn ask_again(&mut self, ids: &[WorkloadId]) {
        let Self { workloads, demands, settings, .. } = self;
        let changed = ids.iter().copied().filter(|id| {
            let Some(slot) = workloads.get_mut(*id) else { return false };
            let now = slot.entry.asks_now(demands, &settings.resources);
            now.map(|demand| slot.asks_now(demand)).is_some()
        });
        let changed: Vec<WorkloadId> = changed.collect();
        for id in changed {
            self.settle_family(id);
        }
    }

    /// Which bounds of LimitRanges the pods of a workload break, in a sentence. Those that its predecessor runs already are
    /// there and are not made again, so an upgrade can lead out of bounds that became too narrow.
    pub(super) fn breaches(&self, slot: &Slot, cluster_queue: NodeId) -> Option<String> {
        let demand = slot.entry.demand.as_ref().ok()?;
        let mut broken = demand.pod_sets.iter().filter(|set| !set.breaches.is_empty()).peekable();
        broken.peek()?;
        let predecessor = self.predecessor(slot, cluster_queue).and_then(predecessor_of);
        let runs = |set: &PodSetDemand| {
            let before = predecessor.as_ref().and_then(|predecessor| predecessor.running(set, set.count));
            before.is_some_and(|before| before.breaches == set.breaches)
        };
        let told = broken.filter(|set| !runs(set));
        let told = told.flat_map(|set| set.breaches.iter().map(|breach| format!("pod set {}: {breach}", set.name)));
        let told: Vec<String> = told.collect();
        (!told.is_empty()).then(|| told.join("; "))
    }
}
