//! Test clusters in compact notation (`words.rs`), and the decisions of one cycle.

use std::ops::{Deref, DerefMut};

use serde_json::{Value, json};

use super::super::fixture::{Cluster, object_key, timestamp};
use super::notation::{PodSetNotation, WorkloadNotation};
pub(super) use super::notation::{QueueOrCohort, cohort, queue};
use crate::settings::{FairSharing, PreemptionStrategy};
use crate::{Decision, EvictionReason, Input, ObjectKey, Scheduler, Settings};
use sluice_api::condition;
use sluice_api::kueue::{Admission, Workload, names};

/// Default time, in seconds since the Unix epoch.
const NOW: i64 = 1000;

/// Limit of eviction rounds for detecting endless preemption.
const MAX_EVICTION_ROUNDS: usize = 50;

/// Admissions and evictions of one cycle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CycleDecisions {
    /// Admissions in order, as `name@flavor`; see [`place`].
    pub(super) admitted: Vec<String>,
    /// Evictions with their reasons, sorted by name: `name InClusterQueue`.
    pub(super) evicted: Vec<String>,
}

/// Cluster in which each ClusterQueue has a LocalQueue of the same name.
#[derive(Debug, Clone)]
pub(super) struct Scene {
    cluster: Cluster,
}

impl Deref for Scene {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl DerefMut for Scene {
    fn deref_mut(&mut self) -> &mut Cluster {
        &mut self.cluster
    }
}

impl Scene {
    pub(super) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(super) fn with(settings: Settings) -> Self {
        let mut cluster = Cluster::default();
        cluster.scheduler = Scheduler::new(settings.clone());
        (cluster.settings, cluster.now) = (settings, NOW);
        Self { cluster }
    }

    /// Restarts the scheduler with other settings.
    pub(super) fn with_settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self.restart();
        self
    }

    /// Creates an empty cluster with fair sharing.
    pub(super) fn fair_sharing() -> Self {
        Self::with(Settings { fair_sharing: Some(FairSharing::default()), ..Settings::default() })
    }

    /// Creates an empty cluster with fair sharing and one preemption strategy.
    pub(super) fn fair_sharing_by(strategy: PreemptionStrategy) -> Self {
        let rules = FairSharing { strategies: vec![strategy] };
        Self::with(Settings { fair_sharing: Some(rules), ..Settings::default() })
    }

    fn put_flavors(&mut self, node: &QueueOrCohort) {
        for flavor in node.flavors() {
            if !self.flavors.contains_key(&flavor) {
                self.put_flavor(&flavor);
            }
        }
    }

    /// Creates or changes a ClusterQueue.
    pub(super) fn put_queue(&mut self, node: QueueOrCohort) {
        self.put_flavors(&node);
        let new = !self.cluster_queues.contains_key(&node.name);
        self.put_cluster_queue(&node.name, Value::Object(node.spec));
        if new {
            self.put_local_queue(&node.name, json!({"clusterQueue": node.name}));
        }
    }

    /// Deletes a ClusterQueue.
    pub(super) fn delete_queue(&mut self, name: &str) {
        self.cluster_queues.remove(name);
        let now = timestamp(self.now);
        self.scheduler.observe(now, &Input::ClusterQueueDeleted(name));
    }

    /// Creates a workload in another namespace, with a LocalQueue of the same name.
    pub(super) fn put_in_namespace(&mut self, namespace: &str, mut workload: Workload) {
        let queue = workload.spec.queue_name.clone().unwrap_or_default();
        let now = timestamp(self.now);
        let mut local_queue = self.local_queues[&object_key(&queue)].clone();
        local_queue.metadata.namespace = Some(namespace.to_owned());
        self.scheduler.observe(now, &Input::LocalQueue(&local_queue));
        self.local_queues.insert(ObjectKey::new(namespace, queue), local_queue);
        workload.metadata.namespace = Some(namespace.to_owned());
        self.put(workload);
    }

    /// Creates or changes a Cohort.
    pub(super) fn put_cohort_node(&mut self, node: QueueOrCohort) {
        self.put_flavors(&node);
        self.put_cohort(&node.name, Value::Object(node.spec));
    }

    /// Adds ClusterQueues.
    pub(super) fn queues(mut self, nodes: impl IntoIterator<Item = QueueOrCohort>) -> Self {
        nodes.into_iter().for_each(|node| self.put_queue(node));
        self
    }

    /// Adds Cohorts.
    pub(super) fn cohorts(mut self, nodes: impl IntoIterator<Item = QueueOrCohort>) -> Self {
        nodes.into_iter().for_each(|node| self.put_cohort_node(node));
        self
    }

    /// Adds admitted workloads of a ClusterQueue.
    pub(super) fn admitted(mut self, queue: &str, workloads: &str) -> Self {
        for words in workloads.split(';').map(WorkloadNotation::parse) {
            let mut workload = words.workload(&self, queue);
            let since = timestamp(words.reserved.or(words.created).unwrap_or(self.now));
            let pod_set_assignments = words.pod_sets.iter().map(PodSetNotation::assignment).collect();
            let status = workload.status.get_or_insert_default();
            status.admission = Some(Admission { cluster_queue: queue.to_owned(), pod_set_assignments });
            for type_ in [names::QUOTA_RESERVED, names::ADMITTED] {
                let update = condition::ConditionUpdate {
                    type_,
                    status: true,
                    reason: type_.to_owned(),
                    message: String::new(),
                    observed_generation: None,
                };
                condition::set(&mut status.conditions, since, update);
            }
            self.put(workload);
        }
        self
    }

    /// Adds pending workloads of a ClusterQueue.
    pub(super) fn pending(mut self, queue: &str, workloads: &str) -> Self {
        self.submit_to(queue, workloads);
        self
    }

    /// Submits workloads to a LocalQueue.
    pub(super) fn submit_to(&mut self, queue: &str, workloads: &str) {
        for words in workloads.split(';').map(WorkloadNotation::parse) {
            let workload = words.workload(self, queue);
            self.put(workload);
        }
    }

    /// Runs one cycle without applying its decisions.
    pub(super) fn decide(&mut self) -> CycleDecisions {
        let effects = self.cycle();
        let mut decided = CycleDecisions::default();
        for effect in &effects {
            match effect {
                Decision::Admit { workload, admission, .. } => {
                    let pod_sets = &self.workloads[workload].spec.pod_sets;
                    let counts: Vec<i32> = pod_sets.iter().map(|set| set.count).collect();
                    decided.admitted.push(format!("{}@{}", workload.name, format_flavors(admission, &counts)));
                }
                Decision::Evict { workload, reason } => {
                    let reason = match reason {
                        EvictionReason::Preempted(preemption) => preemption.reason.as_str(),
                        other => other.as_str(),
                    };
                    decided.evicted.push(format!("{} {reason}", workload.name));
                }
                _ => {}
            }
        }
        decided.evicted.sort();
        decided
    }

    /// Runs cycles until they decide nothing, finishing all evictions of a round simultaneously;
    /// returns the admitted workloads, in order.
    pub(super) fn run_with_evictions(&mut self) -> Vec<String> {
        let mut admitted = self.run_until_stable();
        for _ in 0..MAX_EVICTION_ROUNDS {
            let evicting = self.evicting();
            if evicting.is_empty() {
                return admitted;
            }
            evicting.iter().for_each(|name| self.release_quota(name));
            admitted.extend(self.run_until_stable());
        }
        panic!("preemption does not terminate");
    }

    /// Returns the evicted workloads that still hold quota.
    pub(super) fn evicting(&self) -> Vec<String> {
        let holders = self.holders().into_iter().filter(|name| self.is_true(name, names::EVICTED));
        holders.map(str::to_owned).collect()
    }

    /// Returns the flavors that a workload is admitted to; see [`place`].
    pub(super) fn flavors_of(&self, name: &str) -> String {
        let workload = &self.workloads[&object_key(name)];
        let counts: Vec<i32> = workload.spec.pod_sets.iter().map(|set| set.count).collect();
        let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
        admission.map(|admission| format_flavors(admission, &counts)).unwrap_or_default()
    }
}

/// Formats the flavors of an admission. Pod sets are separated by `|`; each has one flavor if that
/// is the same for all resources, or else `cpu=one,gpu=two`, and `*count` if the count differs from
/// the request.
fn format_flavors(admission: &Admission, requested: &[i32]) -> String {
    let sets = admission.pod_set_assignments.iter().zip(requested).map(|(set, requested)| {
        let first = set.flavors.values().next().cloned().unwrap_or_default();
        let flavors = if set.flavors.values().all(|flavor| *flavor == first) {
            first
        } else {
            let each: Vec<String> =
                set.flavors.iter().map(|(resource, flavor)| format!("{resource}={flavor}")).collect();
            each.join(",")
        };
        let count = set.count.filter(|count| count != requested).map(|count| format!("*{count}"));
        flavors + &count.unwrap_or_default()
    });
    sets.collect::<Vec<String>>().join("|")
}

/// Returns three strict queues: `sales` without cohort; `alpha` and `beta` in one cohort with two
/// flavors of CPU. `beta` also has GPUs and reclaims from any priority.
pub(super) fn three_teams() -> Scene {
    let beta = queue("beta").within_cohort("eng").quota("on-demand", "cpu=50+10").quota("spot", "cpu=0+100");
    Scene::new().queues([
        queue("sales").has("cpu=50").strict(),
        queue("alpha").within_cohort("eng").quota("on-demand", "cpu=50+50").quota("spot", "cpu=100+0").strict(),
        beta.next_group().quota("model-a", "gpu=20+0").preempts_within("LowerPriority").reclaims("Any").strict(),
    ])
}
