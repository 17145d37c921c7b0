//! Adjustments of pod resources by LimitRanges and by the overhead of RuntimeClasses (kueue v0.19.2
//! `pkg/workload/resources.go`, `AdjustResources`). As in Kueue, a missing RuntimeClass adds
//! nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::LimitRangeSpec;
use k8s_openapi::api::node::v1::Overhead;

use super::ObjectKey;
use super::cached_workload::CachedWorkload;
use super::explain::predecessor_of;
use super::limit_ranges::LimitRangeSummary;
use super::pod_resources::ExactResources;
use super::scheduler::{Scheduler, WorkloadId};
use super::tree::NodeId;
use super::workload_requests::PodSetRequests;
use sluice_api::quantity::Exact;

/// LimitRanges and RuntimeClass overheads of the cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct ResourceAdjustments {
    limit_ranges: BTreeMap<ObjectKey, LimitRangeSpec>,
    /// The merged LimitRanges by namespace.
    merged_limits: BTreeMap<String, LimitRangeSummary>,
    /// Overhead by RuntimeClass, without empty ones.
    overheads: BTreeMap<String, ExactResources>,
}

impl ResourceAdjustments {
    /// Returns the merged LimitRanges of a namespace; `None` if there are none.
    pub(super) fn limits(&self, namespace: &str) -> Option<&LimitRangeSummary> {
        self.merged_limits.get(namespace)
    }

    /// Returns the overhead that a RuntimeClass adds to each pod; `None` if it adds nothing.
    pub(super) fn overhead(&self, class: &str) -> Option<&ExactResources> {
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
        store(
            &mut self.merged_limits,
            namespace,
            Some(LimitRangeSummary::merge_all(all)).filter(|limits| *limits != LimitRangeSummary::default()),
        )
    }

    /// Stores or, with `None`, removes the overhead of a RuntimeClass. Returns true if it changed.
    fn set_runtime_class(&mut self, name: &str, overhead: Option<&Overhead>) -> bool {
        let fixed = overhead.and_then(|overhead| overhead.pod_fixed.as_ref()).into_iter().flatten();
        let sums =
            fixed.filter_map(|(resource, quantity)| Some((resource.clone(), Exact::parse_request(quantity).ok()?)));
        let sums: ExactResources = sums.collect();
        store(&mut self.overheads, name, Some(sums).filter(|sums| !sums.is_empty()))
    }
}

/// Stores or, with `None`, removes a value. Returns true if it changed.
fn store<T: PartialEq + Clone>(map: &mut BTreeMap<String, T>, name: &str, value: Option<T>) -> bool {
    let before = match value.clone() {
        Some(value) => map.insert(name.to_owned(), value),
        None => map.remove(name),
    };
    before != value
}

impl Scheduler {
    pub(super) fn set_limit_range(&mut self, key: &ObjectKey, spec: Option<&LimitRangeSpec>) {
        if self.requests_cache.adjustments.set_limit_range(key, spec) {
            let first = ObjectKey::new(key.namespace.clone(), "");
            let affected = self.workloads.range_from(&first).take_while(|(other, ..)| other.namespace == key.namespace);
            let affected: Vec<WorkloadId> = affected.map(|(_, id, _)| id).collect();
            self.recompute_requests(&affected);
        }
    }

    pub(super) fn set_runtime_class(&mut self, name: &str, overhead: Option<&Overhead>) {
        if self.requests_cache.adjustments.set_runtime_class(name, overhead) {
            let users = self.workloads.iter().filter(|(.., slot)| slot.info.names_runtime_class(name));
            let users: Vec<WorkloadId> = users.map(|(_, id, _)| id).collect();
            self.recompute_requests(&users);
        }
    }

    /// Recomputes the requests of these workloads. Admitted usage does not change.
    fn recompute_requests(&mut self, ids: &[WorkloadId]) {
        let Self { workloads, requests_cache: demands, settings, .. } = self;
        let changed = ids.iter().copied().filter(|id| {
            let Some(slot) = workloads.get_mut(*id) else { return false };
            let now = slot.info.recomputed_requests(demands, &settings.resources);
            now.map(|demand| slot.set_requests(demand)).is_some()
        });
        let changed: Vec<WorkloadId> = changed.collect();
        for id in changed {
            self.update_slices(id);
        }
    }

    /// Returns a message about the LimitRange constraints that the pods of a workload violate;
    /// `None` if there are no violations. Pods that its predecessor already runs are exempt,
    /// because they are not recreated: so an upgrade can move away from constraints that became too
    /// narrow.
    pub(super) fn limit_range_violations(&self, slot: &CachedWorkload, cluster_queue: NodeId) -> Option<String> {
        let demand = slot.info.requests.as_ref().ok()?;
        let mut broken = demand.pod_sets.iter().filter(|set| !set.limit_range_violations.is_empty()).peekable();
        broken.peek()?;
        let predecessor = self.predecessor(slot, cluster_queue).and_then(predecessor_of);
        let runs = |set: &PodSetRequests| {
            let before = predecessor.as_ref().and_then(|predecessor| predecessor.running_pod_set(set, set.count));
            before.is_some_and(|before| before.limit_range_violations == set.limit_range_violations)
        };
        let violations = broken.filter(|set| !runs(set));
        let messages = violations
            .flat_map(|set| set.limit_range_violations.iter().map(|breach| format!("pod set {}: {breach}", set.name)));
        let messages: Vec<String> = messages.collect();
        (!messages.is_empty()).then(|| messages.join("; "))
    }
}
