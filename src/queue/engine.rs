//! The state that scheduling decisions depend on, and how observed changes update it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::demand::Demands;
use super::entry::{Entry, Stage};
use super::ledger::{Charge, Ledger, Sums};
use super::line::{Line, Rank, Shape};
use super::queues::Queues;
use super::quota::{Quota, cohort_spec};
use super::registry::{Id, Registry};
use super::report::Counts;
use super::settings::Settings;
use super::slot::{Room, Slot};
use super::tree::{FlavorResource, NodeId, Tree};
use super::{Event, ObjectKey};
use sluice_api::kueue::{
    Admission, ClusterQueue, ClusterQueueStatus, Cohort, CohortStatus, LocalQueue, LocalQueueStatus,
    ResourceFlavorSpec, StopPolicy, Workload,
};

/// Decides which workloads are admitted. Deterministic: equal inputs give equal decisions. Observe
/// all existing objects before the first [`Engine::cycle`]: quota held by a workload that has not
/// been observed counts as free.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(super) settings: Settings,
    pub(super) now: Timestamp,
    pub(super) flavors: BTreeMap<String, ResourceFlavorSpec>,
    pub(super) namespaces: BTreeMap<String, BTreeMap<String, String>>,
    pub(super) cluster_queues: Queues,
    pub(super) local_queues: Registry<ObjectKey, LocalQueueState>,
    pub(super) workloads: Registry<ObjectKey, Slot>,
    /// The workloads that claim to replace the slice with this key.
    pub(super) claims: BTreeMap<ObjectKey, BTreeSet<WorkloadId>>,
    /// Times at which a workload is requeued after an eviction, or exceeds a deadline.
    pub(super) timers: BTreeSet<(Timestamp, WorkloadId)>,
    /// Times at which the pending messages at the head of a ClusterQueue are refreshed.
    pub(super) refreshes: BTreeSet<(Timestamp, NodeId)>,
    pub(super) tree: Tree,
    pub(super) demands: Demands,
    pub(super) cohorts: BTreeMap<String, CohortStatus>,
    /// Capacity reserved for workloads that wait for evictions, by the root of their tree.
    pub(super) promises: BTreeMap<NodeId, Vec<Promise>>,
    /// Workloads that caused evictions. They are ahead of all others until they are admitted or
    /// cannot be nominated.
    pub(super) preemptors: BTreeSet<WorkloadId>,
    /// Admitted workloads whose pods are not ready.
    pub(super) unready: BTreeSet<WorkloadId>,
    /// ClusterQueues in whose tree a pending workload may fit since the last cycle.
    pub(super) dirty: BTreeSet<NodeId>,
    /// Number of nominations and evictions so far.
    pub(super) decisions: u64,
    /// Objects whose decision may have changed since the last cycle.
    pub(super) touched: Touched,
}

/// Identifies a workload while it is in the cache.
pub(super) type WorkloadId = Id<Slot>;

/// Identifies a LocalQueue while it is in the cache.
pub(super) type LocalQueueId = Id<LocalQueueState>;

/// Objects whose decision may have changed since the last cycle.
#[derive(Debug, Clone, Default)]
pub(super) struct Touched {
    pub(super) workloads: BTreeSet<WorkloadId>,
    pub(super) cluster_queues: BTreeSet<NodeId>,
    pub(super) cohorts: BTreeSet<NodeId>,
    pub(super) local_queues: BTreeSet<LocalQueueId>,
}

/// A cached ClusterQueue. Exists without an object while workloads or LocalQueues refer to it.
#[derive(Debug, Clone, Default)]
pub(super) struct ClusterQueueState {
    pub(super) name: String,
    pub(super) node: NodeId,
    /// The cycle of Cohorts above it, as `a -> b -> a`. `None` without a cycle.
    pub(super) cohort_cycle: Option<String>,
    pub(super) quota: Option<Quota>,
    pub(super) generation: Option<i64>,
    pub(super) observed: ClusterQueueStatus,
    pub(super) ledger: Ledger,
    pub(super) line: Line,
    /// Time at which the pending messages at its head are refreshed. `None` if nothing is due.
    pub(super) refresh_at: Option<Timestamp>,
    /// The head that the workloads behind it were last reported to wait for. Used with StrictFIFO
    /// only.
    pub(super) first: Option<WorkloadId>,
    pub(super) counts: Counts,
    /// Workloads that are queued in it or hold its quota.
    pub(super) members: BTreeSet<WorkloadId>,
}

/// A cached LocalQueue. Exists without an object while workloads refer to it.
#[derive(Debug, Clone)]
pub(super) struct LocalQueueState {
    pub(super) key: ObjectKey,
    pub(super) rules: Option<LocalQueueRules>,
    pub(super) generation: Option<i64>,
    pub(super) observed: LocalQueueStatus,
    pub(super) sums: Sums,
    pub(super) counts: Counts,
    /// Workloads whose `spec.queueName` names it.
    pub(super) members: BTreeSet<WorkloadId>,
}

impl LocalQueueState {
    fn of(key: ObjectKey) -> Self {
        Self {
            key,
            rules: None,
            generation: None,
            observed: LocalQueueStatus::default(),
            sums: Sums::default(),
            counts: Counts::default(),
            members: BTreeSet::new(),
        }
    }
}

/// The fields of a LocalQueue that scheduling depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LocalQueueRules {
    /// Its ClusterQueue. `None` if `spec.clusterQueue` is empty.
    pub(super) cluster_queue: Option<NodeId>,
    pub(super) stop: StopPolicy,
    pub(super) terminating: bool,
}

/// Capacity reserved for a pending workload: until its evictions have completed, or as the head of
/// a StrictFIFO ClusterQueue.
#[derive(Debug, Clone)]
pub(super) struct Promise {
    pub(super) node: NodeId,
    pub(super) usage: Charge,
    /// The workload that it is reserved for.
    pub(super) workload: WorkloadId,
    /// True if workloads were evicted for it.
    pub(super) room_made: bool,
    /// Pod counts and flavors that the reservation was made for.
    pub(super) room: Room,
    /// Its position in the pending queue. `None` for the head of a StrictFIFO ClusterQueue that
    /// waits without evictions.
    pub(super) place: Option<(Shape, Rank)>,
}

impl Default for Engine {
    fn default() -> Self {
        Self::new(Settings::default())
    }
}

impl Engine {
    /// Creates a scheduler with an empty cache.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            now: Timestamp::UNIX_EPOCH,
            flavors: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            cluster_queues: Queues::default(),
            local_queues: Registry::default(),
            workloads: Registry::default(),
            claims: BTreeMap::new(),
            timers: BTreeSet::new(),
            refreshes: BTreeSet::new(),
            tree: Tree::default(),
            demands: Demands::default(),
            cohorts: BTreeMap::new(),
            promises: BTreeMap::new(),
            preemptors: BTreeSet::new(),
            unready: BTreeSet::new(),
            dirty: BTreeSet::new(),
            decisions: 0,
            touched: Touched::default(),
        }
    }
}

impl Engine {
    /// Returns the number of nominations and evictions so far: each attempt to admit a workload or
    /// to reserve capacity for it counts, and so does each preempted workload.
    pub fn decisions(&self) -> u64 {
        self.decisions
    }

    /// Observes a change. Decisions are made in [`Engine::cycle`], so several changes can precede
    /// one cycle. Observing an unchanged object has no effect.
    pub fn step(&mut self, now: Timestamp, event: &Event<'_>) {
        self.now = self.now.max(now);
        match *event {
            Event::ResourceFlavor(flavor) => {
                let name = flavor.metadata.name.clone().unwrap_or_default();
                if self.flavors.insert(name.clone(), flavor.spec.clone()).as_ref() != Some(&flavor.spec) {
                    self.flavor_changed(&name);
                }
            }
            Event::ResourceFlavorGone(name) => {
                if self.flavors.remove(name).is_some() {
                    self.flavor_changed(name);
                }
            }
            Event::ClusterQueue(cluster_queue) => self.observe_cluster_queue(cluster_queue),
            Event::ClusterQueueGone(name) => {
                if let Some(state) = self.cluster_queues.named_mut(name) {
                    (state.quota, state.generation, state.observed) = (None, None, ClusterQueueStatus::default());
                    let node = state.node;
                    self.tree.set(node, None);
                    self.cluster_queue_changed(node);
                }
            }
            Event::Cohort(cohort) => self.observe_cohort(cohort),
            Event::CohortGone(name) => {
                self.cohorts.remove(name);
                let node = self.tree.cohort(name);
                self.tree.set(node, None);
            }
            Event::LocalQueue(local_queue) => self.observe_local_queue(local_queue),
            Event::LocalQueueGone(key) => {
                if let Some(id) = self.local_queues.id(key)
                    && let Some(state) = self.local_queues.get_mut(id)
                {
                    (state.rules, state.generation, state.observed) = (None, None, LocalQueueStatus::default());
                    self.local_queue_changed(id);
                }
            }
            Event::Namespace(namespace) => {
                let labels = namespace.metadata.labels.clone().unwrap_or_default();
                self.set_namespace(namespace.metadata.name.as_deref().unwrap_or_default(), Some(labels));
            }
            Event::NamespaceGone(name) => self.set_namespace(name, None),
            Event::LimitRange(limit_range) => {
                self.set_limit_range(&ObjectKey::of(limit_range), limit_range.spec.as_ref())
            }
            Event::LimitRangeGone(key) => self.set_limit_range(key, None),
            Event::RuntimeClass(class) => {
                self.set_runtime_class(class.metadata.name.as_deref().unwrap_or_default(), class.overhead.as_ref());
            }
            Event::RuntimeClassGone(name) => self.set_runtime_class(name, None),
            Event::Workload(workload) => self.observe_workload(workload),
            Event::WorkloadGone(key) => self.forget_workload(key),
            Event::AdmissionRefused(key) => {
                if let Some(id) = self.workloads.id(key)
                    && let Some(slot) = self.workloads.get_mut(id)
                    && slot.assumed.take().is_some()
                {
                    slot.refused = true;
                    self.settle_family(id);
                }
            }
        }
    }

    fn observe_cluster_queue(&mut self, cluster_queue: &ClusterQueue) {
        let name = cluster_queue.metadata.name.clone().unwrap_or_default();
        let quota = Quota::of(cluster_queue, &mut self.tree);
        let node = self.tree.cluster_queue(&name);
        self.tree.set(node, Some(quota.node_spec()));
        let quota = Some(quota);
        let state = self.cluster_queues.place(&name, node);
        state.observed = cluster_queue.status.clone().unwrap_or_default();
        state.generation = cluster_queue.metadata.generation;
        if state.quota != quota {
            state.quota = quota;
            self.cluster_queue_changed(node);
        }
        self.touched.cluster_queues.insert(node);
    }

    fn observe_cohort(&mut self, cohort: &Cohort) {
        let name = cohort.metadata.name.clone().unwrap_or_default();
        let node = self.tree.cohort(&name);
        self.tree.set(node, Some(cohort_spec(&cohort.spec)));
        self.cohorts.insert(name, cohort.status.clone().unwrap_or_default());
        self.touched.cohorts.insert(node);
    }

    /// Interns the ClusterQueue and the flavor resources that a workload holds.
    pub(super) fn name_resources(&mut self, entry: &Entry) {
        if let Stage::Reserved(admission) = &entry.stage {
            self.tree.cluster_queue(&admission.cluster_queue);
            for at in flavor_resources(admission) {
                self.tree.fr(&at);
            }
        }
    }

    fn observe_local_queue(&mut self, local_queue: &LocalQueue) {
        let key = ObjectKey::of(local_queue);
        let cluster_queue = local_queue.spec.cluster_queue.as_ref().filter(|name| !name.is_empty());
        let rules = LocalQueueRules {
            cluster_queue: cluster_queue.map(|name| self.tree.cluster_queue(name)),
            stop: local_queue.spec.stop_policy.unwrap_or_default(),
            terminating: local_queue.metadata.deletion_timestamp.is_some(),
        };
        let id = self.local_queues.place(&key, || LocalQueueState::of(key.clone()));
        let Some(state) = self.local_queues.get_mut(id) else { return };
        state.observed = local_queue.status.clone().unwrap_or_default();
        state.generation = local_queue.metadata.generation;
        if state.rules.as_ref() != Some(&rules) {
            state.rules = Some(rules);
            self.local_queue_changed(id);
        }
        self.touched.local_queues.insert(id);
    }

    fn observe_workload(&mut self, workload: &Workload) {
        let key = ObjectKey::of(workload);
        let known = self.workloads.id(&key);
        let before = known.and_then(|id| self.workloads.get(id));
        let mut entry = Entry::of(workload, before, &self.settings, &mut self.demands);
        if before.is_some_and(|before| before.entry == entry) {
            return;
        }
        if let Some(slot) = known.and_then(|id| self.workloads.get_mut(id))
            && slot.to_tell.is_some_and(|reason| slot.entry.was_told(reason, &mut entry))
        {
            // The observed condition reflects the last decision, and nothing else changed: a newer
            // decision would have set another reason.
            slot.to_tell = None;
            slot.observe(entry);
            return;
        }
        self.name_resources(&entry);
        let id = match known {
            Some(id) => {
                self.index(id, false);
                id
            }
            None => self.workloads.place(&key, || Slot::of(entry.clone())),
        };
        if let Some(slot) = self.workloads.get_mut(id) {
            slot.observe(entry);
        }
        self.index(id, true);
        self.settle_family(id);
    }

    fn forget_workload(&mut self, key: &ObjectKey) {
        let Some(id) = self.workloads.id(key) else { return };
        let family = self.family(id);
        self.index(id, false);
        let Some(slot) = self.workloads.remove(key) else { return };
        self.unready.remove(&id);
        self.preemptors.remove(&id);
        self.touched.workloads.remove(&id);
        self.unbook(id, &slot.entry.uid, &slot.booked);
        for relative in family.into_iter().filter(|relative| *relative != id) {
            self.settle(relative);
        }
    }

    /// Adds a workload to the indexes, or removes it if `present` is false.
    fn index(&mut self, id: WorkloadId, present: bool) {
        let Some(slot) = self.workloads.get(id) else { return };
        let entry = &slot.entry;
        if let Some(claimed) = &entry.replaces {
            let claimants = self.claims.entry(claimed.clone()).or_default();
            set_member(claimants, id, present);
            if claimants.is_empty() {
                self.claims.remove(claimed);
            }
        }
        for at in entry.deadlines(&self.settings).filter(|at| *at > self.now || !present) {
            set_member(&mut self.timers, (at, id), present);
        }
        let named = match (present, &entry.queue_name) {
            (true, Some(name)) => {
                let key = ObjectKey::new(entry.key.namespace.clone(), name.clone());
                Some(self.local_queues.place(&key, || LocalQueueState::of(key.clone())))
            }
            (true, None) => None,
            (false, _) => slot.local_queue,
        };
        if let Some(local_queue) = named {
            if let Some(state) = self.local_queues.get_mut(local_queue) {
                set_member(&mut state.members, id, present);
            }
            self.tidy_local_queue(local_queue);
        }
        if let Some(slot) = self.workloads.get_mut(id) {
            slot.local_queue = named.filter(|_| present);
        }
    }

    fn set_namespace(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) {
        let before = match labels.clone() {
            Some(labels) => self.namespaces.insert(name.to_owned(), labels),
            None => self.namespaces.remove(name),
        };
        if before != labels {
            let first = ObjectKey::new(name, "");
            let local_queues = self.local_queues.from(&first).take_while(|(key, ..)| key.namespace == name);
            let members: Vec<WorkloadId> = local_queues.flat_map(|(.., state)| &state.members).copied().collect();
            self.settle_all(&members);
        }
    }

    fn flavor_changed(&mut self, flavor: &str) {
        let uses = |state: &ClusterQueueState| {
            state.quota.as_ref().is_some_and(|quota| quota.flavors().any(|(name, _)| name == flavor))
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
            state.line.retry_all();
            self.dirty.insert(node);
            if let Some(before) = state.refresh_at.replace(self.now) {
                self.refreshes.remove(&(before, node));
            }
            self.refreshes.insert((self.now, node));
            let members: Vec<WorkloadId> = state.members.iter().copied().collect();
            self.settle_all(&members);
        }
        let behind =
            |state: &LocalQueueState| state.rules.as_ref().is_some_and(|rules| rules.cluster_queue == Some(node));
        let local_queues = self.local_queues.iter().filter(|(.., state)| behind(state));
        self.touched.local_queues.extend(local_queues.map(|(_, id, _)| id));
        self.touched.cluster_queues.insert(node);
        self.tidy_cluster_queue(node);
    }

    fn local_queue_changed(&mut self, id: LocalQueueId) {
        if let Some(state) = self.local_queues.get(id) {
            let members: Vec<WorkloadId> = state.members.iter().copied().collect();
            self.settle_all(&members);
        }
        self.touched.local_queues.insert(id);
        self.tidy_local_queue(id);
    }

    /// Removes a ClusterQueue that has no object and that nothing refers to.
    pub(super) fn tidy_cluster_queue(&mut self, node: NodeId) {
        let unused = |state: &ClusterQueueState| {
            state.quota.is_none() && state.members.is_empty() && state.ledger.is_empty() && state.line.is_empty()
        };
        if self.cluster_queues.get(node).is_some_and(unused) {
            self.cluster_queues.remove(node);
        }
    }

    /// Removes a LocalQueue that has no object, that no workload names, and that has no counts or
    /// usage.
    pub(super) fn tidy_local_queue(&mut self, id: LocalQueueId) {
        let Some(state) = self.local_queues.get(id) else { return };
        let counted = state.counts != Counts::default() || !state.sums.is_empty();
        if state.rules.is_none() && state.members.is_empty() && !counted {
            let key = state.key.clone();
            self.local_queues.remove(&key);
        }
    }
}

/// Returns the flavor resources that an admission assigns, with repetitions.
pub(super) fn flavor_resources(admission: &Admission) -> impl Iterator<Item = FlavorResource> + '_ {
    let flavors = admission.pod_set_assignments.iter().flat_map(|assignment| &assignment.flavors);
    flavors.map(|(resource, flavor)| FlavorResource { flavor: flavor.clone(), resource: resource.clone() })
}

fn set_member<T: Ord>(set: &mut BTreeSet<T>, member: T, present: bool) {
    if present {
        set.insert(member);
    } else {
        set.remove(&member);
    }
}
