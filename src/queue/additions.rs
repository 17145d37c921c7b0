//! Adjustments of pod resources by LimitRanges and by the overhead of RuntimeClasses (kueue v0.19.2
//! `pkg/workload/resources.go`, `AdjustResources`). As in Kueue, a missing RuntimeClass adds
//! nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::LimitRangeSpec;
use k8s_openapi::api::node::v1::Overhead;

use super::ObjectKey;
use super::demand::PodSetDemand;
use super::engine::{Engine, WorkloadId};
use super::explain::predecessor_of;
use super::limits::Limits;
use super::pod::Sums;
use super::slot::Slot;
use super::tree::NodeId;
use sluice_api::quantity::Exact;

/// LimitRanges and RuntimeClass overheads of the cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct Additions {
    limit_ranges: BTreeMap<ObjectKey, LimitRangeSpec>,
    /// The merged LimitRanges by namespace.
    limits: BTreeMap<String, Limits>,
    /// Overhead by RuntimeClass, without empty ones.
    overheads: BTreeMap<String, Sums>,
}

impl Additions {
    /// Returns the merged LimitRanges of a namespace; `None` if there are none.
    pub(super) fn limits(&self, namespace: &str) -> Option<&Limits> {
        self.limits.get(namespace)
    }

    /// Returns the overhead that a RuntimeClass adds to each pod; `None` if it adds nothing.
    pub(super) fn overhead(&self, class: &str) -> Option<&Sums> {
        self.overheads.get(class)
    }

    /// Stores or, with `None`, removes a LimitRange. Returns true if the merged limits changed.
    fn set_limit_range(&mut self, key: &ObjectKey, spec: Option<&LimitRangeSpec>) -> bool {
        match spec {
            Some(spec) => {
                self.limit_ranges.insert(key.clone(), spec.clone());
            }
            None => {
                self.limit_ranges.remove(key);
            }
        }
        let namespace = key.namespace.as_str();
        let all = self.limit_ranges.range(ObjectKey::new(namespace, "")..);
        let all = all.take_while(|(key, _)| key.namespace == namespace).map(|(key, spec)| (key.name.as_str(), spec));
        replace(&mut self.limits, namespace, Some(Limits::of(all)).filter(|limits| *limits != Limits::default()))
    }

    /// Stores or, with `None`, removes the overhead of a RuntimeClass. Returns true if it changed.
    fn set_runtime_class(&mut self, name: &str, overhead: Option<&Overhead>) -> bool {
        let fixed = overhead.and_then(|overhead| overhead.pod_fixed.as_ref()).into_iter().flatten();
        let sums = fixed.filter_map(|(resource, quantity)| Some((resource.clone(), Exact::demanded(quantity).ok()?)));
        let sums: Sums = sums.collect();
        replace(&mut self.overheads, name, Some(sums).filter(|sums| !sums.is_empty()))
    }
}

/// Stores or, with `None`, removes a value. Returns true if it changed.
fn replace<T: PartialEq + Clone>(map: &mut BTreeMap<String, T>, name: &str, value: Option<T>) -> bool {
    let before = match value.clone() {
        Some(value) => map.insert(name.to_owned(), value),
        None => map.remove(name),
    };
    before != value
}

impl Engine {
    pub(super) fn set_limit_range(&mut self, key: &ObjectKey, spec: Option<&LimitRangeSpec>) {
        if self.demands.added.set_limit_range(key, spec) {
            let first = ObjectKey::new(key.namespace.clone(), "");
            let affected = self.workloads.from(&first).take_while(|(other, ..)| other.namespace == key.namespace);
            let affected: Vec<WorkloadId> = affected.map(|(_, id, _)| id).collect();
            self.ask_again(&affected);
        }
    }

    pub(super) fn set_runtime_class(&mut self, name: &str, overhead: Option<&Overhead>) {
        if self.demands.added.set_runtime_class(name, overhead) {
            let users = self.workloads.iter().filter(|(.., slot)| slot.entry.names_class(name));
            let users: Vec<WorkloadId> = users.map(|(_, id, _)| id).collect();
            self.ask_again(&users);
        }
    }

    /// Recomputes the requests of these workloads. Admitted usage does not change.
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

    /// Returns a message about the LimitRange constraints that the pods of a workload violate;
    /// `None` if there are no violations. Pods that its predecessor already runs are exempt,
    /// because they are not recreated: so an upgrade can move away from constraints that became too
    /// narrow.
    pub(super) fn breaches(&self, slot: &Slot, cluster_queue: NodeId) -> Option<String> {
        let demand = slot.entry.demand.as_ref().ok()?;
        let mut broken = demand.pod_sets.iter().filter(|set| !set.breaches.is_empty()).peekable();
        broken.peek()?;
        let predecessor = self.predecessor(slot, cluster_queue).and_then(predecessor_of);
        let runs = |set: &PodSetDemand| {
            let before = predecessor.as_ref().and_then(|predecessor| predecessor.running(set, set.count));
            before.is_some_and(|before| before.breaches == set.breaches)
        };
        let violations = broken.filter(|set| !runs(set));
        let messages =
            violations.flat_map(|set| set.breaches.iter().map(|breach| format!("pod set {}: {breach}", set.name)));
        let messages: Vec<String> = messages.collect();
        (!messages.is_empty()).then(|| messages.join("; "))
    }
}
