//! A cluster in few words (`words.rs`), and what one cycle of decisions makes of it.

use std::ops::{Deref, DerefMut};

use serde_json::{Value, json};

use super::super::fixture::{Cluster, at, key};
pub(super) use super::words::{Node, cohort, queue};
use super::words::{PodSetWords, Words};
use crate::settings::{FairSharing, PreemptionStrategy};
use crate::{Decision, EvictionReason, Input, ObjectKey, Scheduler, Settings};
use sluice_api::condition;
use sluice_api::kueue::{Admission, Workload, names};

/// When everything happens that does not say otherwise, in seconds.
const NOW: i64 = 1000;

/// Rounds of evictions after which there will always be more.
const MANY_EVICTIONS: usize = 50;

/// What one cycle decided.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Decided {
    /// Who is admitted and where, in order: `name@flavor`; see [`place`].
    pub(super) admitted: Vec<String>,
    /// Who has to go and by which right, by name: `name InClusterQueue`.
    pub(super) evicted: Vec<String>,
}

/// A cluster whose ClusterQueues have a LocalQueue each, of the same name.
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
        cluster.engine = Scheduler::new(settings.clone());
        (cluster.settings, cluster.now) = (settings, NOW);
        Self { cluster }
    }

    /// The same objects, told to an engine with other settings.
    pub(super) fn under(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self.restart();
        self
    }

    /// Under fair sharing.
    pub(super) fn fair() -> Self {
        Self::with(Settings { fair_sharing: Some(FairSharing::default()), ..Settings::default() })
    }

    /// Under fair sharing with one rule of preemption.
    pub(super) fn fair_by(strategy: PreemptionStrategy) -> Self {
        let rules = FairSharing { strategies: vec![strategy] };
        Self::with(Settings { fair_sharing: Some(rules), ..Settings::default() })
    }

    fn put_flavors(&mut self, node: &Node) {
        for flavor in node.flavors() {
            if !self.flavors.contains_key(&flavor) {
                self.put_flavor(&flavor);
            }
        }
    }

    /// Creates or changes a ClusterQueue.
    pub(super) fn put_queue(&mut self, node: Node) {
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
        let now = at(self.now);
        self.engine.observe(now, &Input::ClusterQueueDeleted(name));
    }

    /// Creates a workload in another namespace, where every LocalQueue has its namesake.
    pub(super) fn put_elsewhere(&mut self, namespace: &str, mut workload: Workload) {
        let queue = workload.spec.queue_name.clone().unwrap_or_default();
        let now = at(self.now);
        let mut local_queue = self.local_queues[&key(&queue)].clone();
        local_queue.metadata.namespace = Some(namespace.to_owned());
        self.engine.observe(now, &Input::LocalQueue(&local_queue));
        self.local_queues.insert(ObjectKey::new(namespace, queue), local_queue);
        workload.metadata.namespace = Some(namespace.to_owned());
        self.put(workload);
    }

    /// Creates or changes a Cohort.
    pub(super) fn put_group(&mut self, node: Node) {
        self.put_flavors(&node);
        self.put_cohort(&node.name, Value::Object(node.spec));
    }

    /// A tree: all of its nodes.
    pub(super) fn queues(mut self, nodes: impl IntoIterator<Item = Node>) -> Self {
        nodes.into_iter().for_each(|node| self.put_queue(node));
        self
    }

    pub(super) fn cohorts(mut self, nodes: impl IntoIterator<Item = Node>) -> Self {
        nodes.into_iter().for_each(|node| self.put_group(node));
        self
    }

    /// These hold quota of a ClusterQueue.
    pub(super) fn holds(mut self, queue: &str, workloads: &str) -> Self {
        for words in workloads.split(';').map(Words::of) {
            let mut workload = words.workload(&self, queue);
            let since = at(words.reserved.or(words.created).unwrap_or(self.now));
            let pod_set_assignments = words.pod_sets.iter().map(PodSetWords::assignment).collect();
            let status = workload.status.get_or_insert_default();
            status.admission = Some(Admission { cluster_queue: queue.to_owned(), pod_set_assignments });
            for type_ in [names::QUOTA_RESERVED, names::ADMITTED] {
                let verdict = condition::ConditionUpdate {
                    type_,
                    status: true,
                    reason: type_.to_owned(),
                    message: String::new(),
                    observed_generation: None,
                };
                condition::set(&mut status.conditions, since, verdict);
            }
            self.put(workload);
        }
        self
    }

    /// These wait for a ClusterQueue.
    pub(super) fn waits(mut self, queue: &str, workloads: &str) -> Self {
        self.submit_to(queue, workloads);
        self
    }

    /// The same, later on.
    pub(super) fn submit_to(&mut self, queue: &str, workloads: &str) {
        for words in workloads.split(';').map(Words::of) {
            let workload = words.workload(self, queue);
            self.put(workload);
        }
    }

    /// Decides once and carries nothing out.
    pub(super) fn decide(&mut self) -> Decided {
        let effects = self.cycle();
        let mut decided = Decided::default();
        for effect in &effects {
            match effect {
                Decision::Admit { workload, admission, .. } => {
                    let asked = &self.workloads[workload].spec.pod_sets;
                    let counts: Vec<i32> = asked.iter().map(|set| set.count).collect();
                    decided.admitted.push(format!("{}@{}", workload.name, place(admission, &counts)));
                }
                Decision::Evict { workload, reason } => {
                    let right = match reason {
                        EvictionReason::Preempted(preemption) => preemption.reason.as_str(),
                        other => other.as_str(),
                    };
                    decided.evicted.push(format!("{} {right}", workload.name));
                }
                _ => {}
            }
        }
        decided.evicted.sort();
        decided
    }

    /// Decides and carries out until all is quiet, with every eviction through at once; returns who was admitted, in order.
    pub(super) fn settle(&mut self) -> Vec<String> {
        let mut admitted = self.run();
        for _ in 0..MANY_EVICTIONS {
            let going = self.going();
            if going.is_empty() {
                return admitted;
            }
            going.iter().for_each(|name| self.release(name));
            admitted.extend(self.run());
        }
        panic!("there is no end to evictions");
    }

    /// Those that are evicted and have not given their quota back.
    pub(super) fn going(&self) -> Vec<String> {
        let holders = self.holders().into_iter().filter(|name| self.is_true(name, names::EVICTED));
        holders.map(str::to_owned).collect()
    }

    /// Where a workload runs.
    pub(super) fn place_of(&self, name: &str) -> String {
        let workload = &self.workloads[&key(name)];
        let counts: Vec<i32> = workload.spec.pod_sets.iter().map(|set| set.count).collect();
        let admission = workload.status.as_ref().and_then(|status| status.admission.as_ref());
        admission.map(|admission| place(admission, &counts)).unwrap_or_default()
    }
}

/// The flavors of an admission: of each pod set, separated by `|`, the flavor if it is the same for all resources, or else
/// `cpu=one,gpu=two`; with `*count` where that is not what was asked for.
fn place(admission: &Admission, asked: &[i32]) -> String {
    let sets = admission.pod_set_assignments.iter().zip(asked).map(|(set, asked)| {
        let first = set.flavors.values().next().cloned().unwrap_or_default();
        let flavors = if set.flavors.values().all(|flavor| *flavor == first) {
            first
        } else {
            let each: Vec<String> =
                set.flavors.iter().map(|(resource, flavor)| format!("{resource}={flavor}")).collect();
            each.join(",")
        };
        let count = set.count.filter(|count| count != asked).map(|count| format!("*{count}"));
        flavors + &count.unwrap_or_default()
    });
    sets.collect::<Vec<String>>().join("|")
}

/// Teams that share, all strict: `sales` alone; `alpha` and `beta` in one cohort with two flavors of CPU, of which `beta` has
/// GPUs besides and reclaims what is its own.
pub(super) fn company() -> Scene {
    let beta = queue("beta").within_cohort("eng").quota("on-demand", "cpu=50+10").quota("spot", "cpu=0+100");
    Scene::new().queues([
        queue("sales").has("cpu=50").strict(),
        queue("alpha").within_cohort("eng").quota("on-demand", "cpu=50+50").quota("spot", "cpu=100+0").strict(),
        beta.and_group().quota("model-a", "gpu=20+0").within("LowerPriority").reclaim("Any").strict(),
    ])
}
