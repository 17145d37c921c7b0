//! The state that scheduling decisions depend on, and how observed changes update it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::cached_workload::{CachedWorkload, ReservedAssignment};
use super::cluster_queue_config::{ClusterQueueConfig, cohort_spec};
use super::cluster_queues::ClusterQueues;
use super::index_update::IndexUpdate;
use super::ledger::{FlavorResourceQuantities, UsageLedger, UsageTotals};
use super::message_refresh::MessageRefresh;
use super::pending_queue::{EquivalenceKey, PendingQueue, QueueOrder};
use super::queue_status::WorkloadCounts;
use super::registry::Registry;
use super::settings::Settings;
use super::slices::Workloads;
use super::tree::{CohortTree, FlavorResource, NodeId};
use super::workload_info::{AdmissionStage, WorkloadInfo};
use super::workload_requests::RequestsCache;
use super::{Input, ObjectKey};
use sluice_api::kueue::{
    Admission, ClusterQueue, ClusterQueueStatus, Cohort, CohortStatus, LocalQueue, LocalQueueStatus,
    ResourceFlavorSpec, StopPolicy, Workload,
};

/// Decides which workloads are admitted. Deterministic: equal inputs give equal decisions. Observe
/// all existing objects before the first [`Scheduler::run_cycle`]: quota held by a workload that has not
/// been observed counts as free.
#[derive(Debug, Clone)]
pub struct Scheduler {
    pub(super) settings: Settings,
    pub(super) now: Timestamp,
    pub(super) flavors: BTreeMap<String, ResourceFlavorSpec>,
    pub(super) namespaces: BTreeMap<String, BTreeMap<String, String>>,
    pub(super) cluster_queues: ClusterQueues,
    pub(super) local_queues: Registry<ObjectKey, LocalQueueId, CachedLocalQueue>,
    pub(super) workloads: Workloads,
    /// The workloads that claim to replace the slice with this key.
    pub(super) replacement_claims: BTreeMap<ObjectKey, BTreeSet<WorkloadId>>,
    /// Times at which a workload is requeued after an eviction, or exceeds a deadline.
    pub(super) requeue_timers: BTreeSet<(Timestamp, WorkloadId)>,
    /// Times at which the pending messages at the head of a ClusterQueue are refreshed.
    pub(super) message_refreshes: BTreeSet<(Timestamp, NodeId)>,
    /// True once a cycle has run.
    pub(super) has_run: bool,
    pub(super) tree: CohortTree,
    pub(super) requests_cache: RequestsCache,
    pub(super) cohort_statuses: BTreeMap<String, CohortStatus>,
    /// Capacity reserved for workloads that wait for evictions, by the root of their tree.
    pub(super) reservations: BTreeMap<NodeId, Vec<CapacityReservation>>,
    /// Workloads that caused evictions. They are ahead of all others until they are admitted or
    /// cannot be nominated.
    pub(super) preemptors: BTreeSet<WorkloadId>,
    /// Admitted workloads whose pods are not ready.
    pub(super) not_ready: BTreeSet<WorkloadId>,
    /// ClusterQueues in whose tree a pending workload may fit since the last cycle.
    pub(super) dirty_cluster_queues: BTreeSet<NodeId>,
    /// Number of nominations and evictions so far.
    pub(super) decision_count: u64,
    /// Objects whose decision may have changed since the last cycle.
    pub(super) dirty_objects: DirtySet,
    /// ClusterQueues whose counts may have changed since [`Scheduler::take_changed_counts`].
    pub(super) changed_counts: BTreeSet<NodeId>,
}

slotmap::new_key_type! {
    /// Identifies a workload while it is in the cache.
    pub(super) struct WorkloadId;

    /// Identifies a LocalQueue while it is in the cache.
    pub(super) struct LocalQueueId;
}

/// Objects whose decision may have changed since the last cycle.
#[derive(Debug, Clone, Default)]
pub(super) struct DirtySet {
    pub(super) workloads: BTreeSet<WorkloadId>,
    pub(super) cluster_queues: BTreeSet<NodeId>,
    pub(super) cohorts: BTreeSet<NodeId>,
    pub(super) local_queues: BTreeSet<LocalQueueId>,
}

/// A cached ClusterQueue. Exists without an object while workloads or LocalQueues refer to it.
#[derive(Debug, Clone, Default)]
pub(super) struct CachedClusterQueue {
    pub(super) name: String,
    pub(super) node: NodeId,
    /// The cycle of Cohorts above it, as `a -> b -> a`. `None` without a cycle.
    pub(super) cohort_cycle: Option<String>,
    pub(super) config: Option<ClusterQueueConfig>,
    pub(super) generation: Option<i64>,
    pub(super) observed: ClusterQueueStatus,
    pub(super) ledger: UsageLedger,
    pub(super) pending_queue: PendingQueue,
    /// The next refresh of pending messages. `None` if nothing is due.
    pub(super) message_refresh: Option<MessageRefresh>,
    /// The head that the workloads behind it were last reported to wait for. Used with StrictFIFO
    /// only.
    pub(super) last_reported_head: Option<WorkloadId>,
    pub(super) counts: WorkloadCounts,
    /// Workloads that are queued in it or hold its quota.
    pub(super) workloads: BTreeSet<WorkloadId>,
}

/// A cached LocalQueue. Exists without an object while workloads refer to it.
#[derive(Debug, Clone)]
pub(super) struct CachedLocalQueue {
    pub(super) key: ObjectKey,
    pub(super) config: Option<LocalQueueConfig>,
    pub(super) generation: Option<i64>,
    pub(super) observed: LocalQueueStatus,
    pub(super) totals: UsageTotals,
    pub(super) counts: WorkloadCounts,
    /// Workloads whose `spec.queueName` names it.
    pub(super) workloads: BTreeSet<WorkloadId>,
}

impl CachedLocalQueue {
    fn new(key: ObjectKey) -> Self {
        Self {
            key,
            config: None,
            generation: None,
            observed: LocalQueueStatus::default(),
            totals: UsageTotals::default(),
            counts: WorkloadCounts::default(),
            workloads: BTreeSet::new(),
        }
    }
}

/// The fields of a LocalQueue that scheduling depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LocalQueueConfig {
    /// Its ClusterQueue. `None` if `spec.clusterQueue` is empty.
    pub(super) cluster_queue: Option<NodeId>,
    pub(super) stop_policy: StopPolicy,
    pub(super) terminating: bool,
}

/// Capacity reserved for a pending workload: until its evictions have completed, or as the head of
/// a StrictFIFO ClusterQueue.
#[derive(Debug, Clone)]
pub(super) struct CapacityReservation {
    pub(super) node: NodeId,
    pub(super) usage: FlavorResourceQuantities,
    /// The workload that it is reserved for.
    pub(super) workload: WorkloadId,
    /// True if workloads were evicted for it.
    pub(super) preemption_issued: bool,
    /// Pod counts and flavors that the reservation was made for.
    pub(super) assignment: ReservedAssignment,
    /// Its position in the pending queue. `None` for the head of a StrictFIFO ClusterQueue that
    /// waits without evictions.
    pub(super) queue_position: Option<(EquivalenceKey, QueueOrder)>,
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new(Settings::default())
    }
}

impl Scheduler {
    /// Creates a scheduler with an empty cache.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            now: Timestamp::UNIX_EPOCH,
            flavors: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            cluster_queues: ClusterQueues::default(),
            local_queues: Registry::default(),
            workloads: Registry::default(),
            replacement_claims: BTreeMap::new(),
            requeue_timers: BTreeSet::new(),
            message_refreshes: BTreeSet::new(),
            has_run: false,
            tree: CohortTree::default(),
            requests_cache: RequestsCache::default(),
            cohort_statuses: BTreeMap::new(),
            reservations: BTreeMap::new(),
            preemptors: BTreeSet::new(),
            not_ready: BTreeSet::new(),
            dirty_cluster_queues: BTreeSet::new(),
            decision_count: 0,
            dirty_objects: DirtySet::default(),
            changed_counts: BTreeSet::new(),
        }
    }
}

impl Scheduler {
    /// Returns the number of nominations and evictions so far: each attempt to admit a workload or
    /// to reserve capacity for it counts, and so does each preempted workload.
    pub fn decision_count(&self) -> u64 {
        self.decision_count
    }

    /// Returns the ClusterQueues whose counts may have changed since the last call, as of the last
    /// cycle. A deleted ClusterQueue is not among them.
    pub fn take_changed_counts(&mut self) -> Vec<(String, WorkloadCounts)> {
        let changed = std::mem::take(&mut self.changed_counts).into_iter();
        let existing = changed.filter_map(|node| self.cluster_queues.get(node)).filter(|state| state.config.is_some());
        existing.map(|state| (state.name.clone(), state.counts)).collect()
    }

    /// Observes a change. Decisions are made in [`Scheduler::run_cycle`], so several changes can precede
    /// one cycle. Observing an unchanged object has no effect.
    pub fn observe(&mut self, now: Timestamp, event: &Input<'_>) {
        self.now = self.now.max(now);
        match *event {
            Input::ResourceFlavor(flavor) => {
                let name = flavor.metadata.name.clone().unwrap_or_default();
                if self.flavors.insert(name.clone(), flavor.spec.clone()).as_ref() != Some(&flavor.spec) {
                    self.flavor_changed(&name);
                }
            }
            Input::ResourceFlavorDeleted(name) => {
                if self.flavors.remove(name).is_some() {
                    self.flavor_changed(name);
                }
            }
            Input::ClusterQueue(cluster_queue) => self.observe_cluster_queue(cluster_queue),
            Input::ClusterQueueDeleted(name) => {
                if let Some(state) = self.cluster_queues.get_by_name_mut(name) {
                    (state.config, state.generation, state.observed) = (None, None, ClusterQueueStatus::default());
                    let node = state.node;
                    self.tree.set_spec(node, None);
                    self.cluster_queue_changed(node);
                }
            }
            Input::Cohort(cohort) => self.observe_cohort(cohort),
            Input::CohortDeleted(name) => {
                self.cohort_statuses.remove(name);
                let node = self.tree.cohort_id(name);
                self.tree.set_spec(node, None);
            }
            Input::LocalQueue(local_queue) => self.observe_local_queue(local_queue),
            Input::LocalQueueDeleted(key) => {
                if let Some(id) = self.local_queues.id(key)
                    && let Some(state) = self.local_queues.get_mut(id)
                {
                    (state.config, state.generation, state.observed) = (None, None, LocalQueueStatus::default());
                    self.local_queue_changed(id);
                }
            }
            Input::Namespace(namespace) => {
                let labels = namespace.metadata.labels.clone().unwrap_or_default();
                self.set_namespace(namespace.metadata.name.as_deref().unwrap_or_default(), Some(labels));
            }
            Input::NamespaceDeleted(name) => self.set_namespace(name, None),
            Input::LimitRange(limit_range) => {
                self.set_limit_range(&ObjectKey::of(limit_range), limit_range.spec.as_ref());
            }
            Input::LimitRangeDeleted(key) => self.set_limit_range(key, None),
            Input::RuntimeClass(class) => {
                self.set_runtime_class(class.metadata.name.as_deref().unwrap_or_default(), class.overhead.as_ref());
            }
            Input::RuntimeClassDeleted(name) => self.set_runtime_class(name, None),
            Input::Workload(workload) => self.observe_workload(workload),
            Input::WorkloadDeleted(key) => self.remove_workload(key),
            Input::AdmissionRejected(key) => {
                if let Some(id) = self.workloads.id(key)
                    && let Some(slot) = self.workloads.get_mut(id)
                    && slot.assumed_admission.take().is_some()
                {
                    slot.admission_rejected = true;
                    self.update_slices(id);
                }
            }
        }
    }

    fn observe_cluster_queue(&mut self, cluster_queue: &ClusterQueue) {
        let name = cluster_queue.metadata.name.clone().unwrap_or_default();
        let quota = ClusterQueueConfig::of(cluster_queue, &mut self.tree);
        let node = self.tree.cluster_queue_id(&name);
        self.tree.set_spec(node, Some(quota.node_spec()));
        let quota = Some(quota);
        let state = self.cluster_queues.get_or_insert(&name, node);
        state.observed = cluster_queue.status.clone().unwrap_or_default();
        state.generation = cluster_queue.metadata.generation;
        if state.config != quota {
            state.config = quota;
            self.cluster_queue_changed(node);
        }
        self.dirty_objects.cluster_queues.insert(node);
    }

    fn observe_cohort(&mut self, cohort: &Cohort) {
        let name = cohort.metadata.name.clone().unwrap_or_default();
        let node = self.tree.cohort_id(&name);
        self.tree.set_spec(node, Some(cohort_spec(&cohort.spec)));
        self.cohort_statuses.insert(name, cohort.status.clone().unwrap_or_default());
        self.dirty_objects.cohorts.insert(node);
    }

    /// Interns the ClusterQueue and the flavor resources that a workload holds.
    pub(super) fn intern_flavor_resources(&mut self, entry: &WorkloadInfo) {
        if let AdmissionStage::Reserved(admission) = &entry.stage {
            self.tree.cluster_queue_id(&admission.cluster_queue);
            for at in admitted_flavor_resources(admission) {
                self.tree.flavor_resource_id(&at);
            }
        }
    }

    fn observe_local_queue(&mut self, local_queue: &LocalQueue) {
        let key = ObjectKey::of(local_queue);
        let cluster_queue = local_queue.spec.cluster_queue.as_ref().filter(|name| !name.is_empty());
        let rules = LocalQueueConfig {
            cluster_queue: cluster_queue.map(|name| self.tree.cluster_queue_id(name)),
            stop_policy: local_queue.spec.stop_policy.unwrap_or_default(),
            terminating: local_queue.metadata.deletion_timestamp.is_some(),
        };
        let id = self.local_queues.get_or_insert_with(&key, || CachedLocalQueue::new(key.clone()));
        let Some(state) = self.local_queues.get_mut(id) else { return };
        state.observed = local_queue.status.clone().unwrap_or_default();
        state.generation = local_queue.metadata.generation;
        if state.config.as_ref() != Some(&rules) {
            state.config = Some(rules);
            self.local_queue_changed(id);
        }
        self.dirty_objects.local_queues.insert(id);
    }

    fn observe_workload(&mut self, workload: &Workload) {
        let key = ObjectKey::of(workload);
        let known = self.workloads.id(&key);
        let before = known.and_then(|id| self.workloads.get(id));
        let mut entry = WorkloadInfo::from_workload(workload, before, &self.settings, &mut self.requests_cache);
        if before.is_some_and(|before| before.info == entry) {
            return;
        }
        if let Some(slot) = known.and_then(|id| self.workloads.get_mut(id))
            && slot.unobserved_reason.is_some_and(|reason| slot.info.differs_only_in_reason(reason, &mut entry))
        {
            // The observed condition reflects the last decision, and nothing else changed: a newer
            // decision would have set another reason.
            slot.unobserved_reason = None;
            slot.update_info(entry);
            return;
        }
        self.intern_flavor_resources(&entry);
        let id = match known {
            Some(id) => {
                self.update_indexes(id, IndexUpdate::Remove);
                id
            }
            None => self.workloads.get_or_insert_with(&key, || CachedWorkload::new(entry.clone())),
        };
        if let Some(slot) = self.workloads.get_mut(id) {
            slot.update_info(entry);
        }
        self.update_indexes(id, IndexUpdate::Insert);
        self.update_slices(id);
    }

    fn remove_workload(&mut self, key: &ObjectKey) {
        let Some(id) = self.workloads.id(key) else { return };
        let family = self.related_slices(id);
        self.update_indexes(id, IndexUpdate::Remove);
        let Some(slot) = self.workloads.remove(key) else { return };
        self.not_ready.remove(&id);
        self.preemptors.remove(&id);
        self.dirty_objects.workloads.remove(&id);
        self.remove_usage(id, &slot.info.uid, &slot.accounting);
        for relative in family.into_iter().filter(|relative| *relative != id) {
            self.update(relative);
        }
    }

    /// Inserts a workload into the indexes, or removes it.
    fn update_indexes(&mut self, id: WorkloadId, update: IndexUpdate) {
        let Some(slot) = self.workloads.get(id) else { return };
        let entry = &slot.info;
        if let Some(claimed) = &entry.replaces {
            let claimants = self.replacement_claims.entry(claimed.clone()).or_default();
            update.apply_to(claimants, id);
            if claimants.is_empty() {
                self.replacement_claims.remove(claimed);
            }
        }
        for at in entry.deadlines(&self.settings).filter(|at| *at > self.now || update == IndexUpdate::Remove) {
            update.apply_to(&mut self.requeue_timers, (at, id));
        }
        let named = match (update, &entry.queue_name) {
            (IndexUpdate::Insert, Some(name)) => {
                let key = ObjectKey::new(entry.key.namespace.clone(), name.clone());
                Some(self.local_queues.get_or_insert_with(&key, || CachedLocalQueue::new(key.clone())))
            }
            (IndexUpdate::Insert, None) => None,
            (IndexUpdate::Remove, _) => slot.local_queue,
        };
        if let Some(local_queue) = named {
            if let Some(state) = self.local_queues.get_mut(local_queue) {
                update.apply_to(&mut state.workloads, id);
            }
            self.remove_unused_local_queue(local_queue);
        }
        if let Some(slot) = self.workloads.get_mut(id) {
            slot.local_queue = named.filter(|_| update == IndexUpdate::Insert);
        }
    }

    fn set_namespace(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) {
        let before = match labels.clone() {
            Some(labels) => self.namespaces.insert(name.to_owned(), labels),
            None => self.namespaces.remove(name),
        };
        if before != labels {
            let first = ObjectKey::new(name, "");
            let local_queues = self.local_queues.range_from(&first).take_while(|(key, ..)| key.namespace == name);
            let members: Vec<WorkloadId> = local_queues.flat_map(|(.., state)| &state.workloads).copied().collect();
            self.update_all(&members);
        }
    }

    fn flavor_changed(&mut self, flavor: &str) {
        let uses = |state: &CachedClusterQueue| {
            state.config.as_ref().is_some_and(|quota| quota.flavors().any(|(name, _)| name == flavor))
        };
        let users: Vec<NodeId> =
            self.cluster_queues.iter().filter(|state| uses(state)).map(|state| state.node).collect();
        for node in users {
            self.cluster_queue_changed(node);
        }
    }

    /// Requeues and updates all workloads of a ClusterQueue whose configuration changed.
    pub(super) fn cluster_queue_changed(&mut self, node: NodeId) {
        if let Some(state) = self.cluster_queues.get_mut(node) {
            state.pending_queue.activate_all();
            self.dirty_cluster_queues.insert(node);
            let members: Vec<WorkloadId> = state.workloads.iter().copied().collect();
            self.update_all(&members);
            self.schedule_message_refresh(node, MessageRefresh::after_quota_change(self.now));
        }
        let behind =
            |state: &CachedLocalQueue| state.config.as_ref().is_some_and(|rules| rules.cluster_queue == Some(node));
        let local_queues = self.local_queues.iter().filter(|(.., state)| behind(state));
        self.dirty_objects.local_queues.extend(local_queues.map(|(_, id, _)| id));
        self.dirty_objects.cluster_queues.insert(node);
        self.remove_unused_cluster_queue(node);
    }

    fn local_queue_changed(&mut self, id: LocalQueueId) {
        if let Some(state) = self.local_queues.get(id) {
            let members: Vec<WorkloadId> = state.workloads.iter().copied().collect();
            self.update_all(&members);
        }
        self.dirty_objects.local_queues.insert(id);
        self.remove_unused_local_queue(id);
    }

    /// Removes a ClusterQueue that has no object and that nothing refers to.
    pub(super) fn remove_unused_cluster_queue(&mut self, node: NodeId) {
        let unused = |state: &CachedClusterQueue| {
            state.config.is_none()
                && state.workloads.is_empty()
                && state.ledger.is_empty()
                && state.pending_queue.is_empty()
        };
        if self.cluster_queues.get(node).is_some_and(unused) {
            self.cluster_queues.remove(node);
        }
    }

    /// Removes a LocalQueue that has no object, that no workload names, and that has no counts or
    /// usage.
    pub(super) fn remove_unused_local_queue(&mut self, id: LocalQueueId) {
        let Some(state) = self.local_queues.get(id) else { return };
        let counted = state.counts != WorkloadCounts::default() || !state.totals.is_empty();
        if state.config.is_none() && state.workloads.is_empty() && !counted {
            let key = state.key.clone();
            self.local_queues.remove(&key);
        }
    }
}

/// Returns the flavor resources that an admission assigns, with repetitions.
pub(super) fn admitted_flavor_resources(admission: &Admission) -> impl Iterator<Item = FlavorResource> + '_ {
    let flavors = admission.pod_set_assignments.iter().flat_map(|assignment| &assignment.flavors);
    flavors.map(|(resource, flavor)| FlavorResource { flavor: flavor.clone(), resource: resource.clone() })
}
