//! A cluster in few words, and what one cycle of decisions makes of it.
//!
//! Workloads are written as `name cpu=2 p=1`, several in a row separated by `;`. Words after the name:
//! `resource=quantity` is asked for by each pod (for who holds quota, `resource=quantity@flavor` says where; flavor
//! `default` if not said), `p=` is the priority, `t=` the second of creation and of the reservation, `r=` that of the
//! reservation alone, `n=` the number of pods, `min=` the fewest that it can do with, and `+name` begins another pod set.
//!
//! Quotas are written as `cpu=6 memory=3Gi`; `cpu=6+2` may borrow 2, `cpu=6-4` lends at most 4.

use std::ops::{Deref, DerefMut};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};

use super::super::fixture::{Cluster, at, key, pod_set};
use crate::api::condition;
use crate::api::kueue::{Admission, PodSetAssignment, Workload, names};
use crate::api::quantity::{Amount, Quantity};
use crate::queue::settings::{FairSharing, PreemptionStrategy};
use crate::queue::{Effect, Engine, Event, EvictReason, Key, Settings};

/// When everything happens that does not say otherwise, in seconds.
const NOW: i64 = 1000;

/// The spec of a ClusterQueue or of a Cohort.
#[derive(Debug, Clone)]
pub(super) struct Node {
    name: String,
    spec: Map<String, Value>,
}

/// A ClusterQueue without quota that preempts nobody.
pub(super) fn queue(name: &str) -> Node {
    Node { name: name.to_owned(), spec: Map::new() }.set("namespaceSelector", json!({}))
}

/// A Cohort without quota.
pub(super) fn cohort(name: &str) -> Node {
    Node { name: name.to_owned(), spec: Map::new() }
}

impl Node {
    fn set(mut self, field: &str, value: Value) -> Self {
        self.spec.insert(field.to_owned(), value);
        self
    }

    fn preemption(mut self, field: &str, value: Value) -> Self {
        let rules = self.spec.entry("preemption").or_insert_with(|| json!({}));
        rules[field] = value;
        self
    }

    /// The Cohort that it is in.
    pub(super) fn within_cohort(self, name: &str) -> Self {
        self.set("cohortName", json!(name))
    }

    /// The Cohort above.
    pub(super) fn under(self, parent: &str) -> Self {
        self.set("parentName", json!(parent))
    }

    /// Quota in one more flavor of the last resource group.
    pub(super) fn quota(mut self, flavor: &str, quotas: &str) -> Self {
        let resources: Vec<Value> = quotas.split_whitespace().map(resource_quota).collect();
        let names: Vec<Value> = resources.iter().map(|quota| quota["name"].clone()).collect();
        let groups = self.spec.entry("resourceGroups").or_insert_with(|| json!([{"flavors": []}]));
        let group = groups.as_array_mut().and_then(|groups| groups.last_mut()).expect("a group");
        group["coveredResources"] = json!(names);
        let flavors = group["flavors"].as_array_mut().expect("flavors");
        flavors.push(json!({"name": flavor, "resources": resources}));
        self
    }

    /// What follows is of another resource group.
    pub(super) fn and_group(mut self) -> Self {
        let groups = self.spec.entry("resourceGroups").or_insert_with(|| json!([]));
        groups.as_array_mut().expect("groups").push(json!({"flavors": []}));
        self
    }

    /// Quota of the flavor `default`.
    pub(super) fn has(self, quotas: &str) -> Self {
        self.quota("default", quotas)
    }

    /// `withinClusterQueue`.
    pub(super) fn within(self, policy: &str) -> Self {
        self.preemption("withinClusterQueue", json!(policy))
    }

    /// `reclaimWithinCohort`.
    pub(super) fn reclaim(self, policy: &str) -> Self {
        self.preemption("reclaimWithinCohort", json!(policy))
    }

    /// `borrowWithinCohort` of lower priority, up to a threshold.
    pub(super) fn while_borrowing(self, threshold: Option<i32>) -> Self {
        let rules = match threshold {
            Some(threshold) => json!({"policy": "LowerPriority", "maxPriorityThreshold": threshold}),
            None => json!({"policy": "LowerPriority"}),
        };
        self.preemption("borrowWithinCohort", rules)
    }

    /// `flavorFungibility`.
    pub(super) fn fungible(self, when_can_borrow: &str, when_can_preempt: &str) -> Self {
        self.set("flavorFungibility", json!({"whenCanBorrow": when_can_borrow, "whenCanPreempt": when_can_preempt}))
    }

    /// `flavorFungibility`, preferring preemption to borrowing.
    pub(super) fn preempts_rather_than_borrows(self, when_can_borrow: &str, when_can_preempt: &str) -> Self {
        let preference = "PreemptionOverBorrowing";
        self.set(
            "flavorFungibility",
            json!({"whenCanBorrow": when_can_borrow, "whenCanPreempt": when_can_preempt, "preference": preference}),
        )
    }

    /// `fairSharing.weight`.
    pub(super) fn weight(self, weight: &str) -> Self {
        self.set("fairSharing", json!({"weight": weight}))
    }

    /// `namespaceSelector`.
    pub(super) fn selecting(self, selector: Value) -> Self {
        self.set("namespaceSelector", selector)
    }

    /// StrictFIFO.
    pub(super) fn strict(self) -> Self {
        self.set("queueingStrategy", json!("StrictFIFO"))
    }

    fn flavors(&self) -> Vec<String> {
        let groups = self.spec.get("resourceGroups").and_then(Value::as_array).into_iter().flatten();
        let flavors = groups.flat_map(|group| group["flavors"].as_array().cloned().unwrap_or_default());
        flavors.filter_map(|flavor| flavor["name"].as_str().map(str::to_owned)).collect()
    }
}

/// `cpu=6+2-4` is 6 of its own, 2 to borrow and 4 to lend.
fn resource_quota(text: &str) -> Value {
    let (name, amounts) = text.split_once('=').expect("resource=quantity");
    let (amounts, lend) = amounts.split_once('-').map_or((amounts, None), |(amounts, lend)| (amounts, Some(lend)));
    let (nominal, borrow) =
        amounts.split_once('+').map_or((amounts, None), |(nominal, borrow)| (nominal, Some(borrow)));
    let mut quota = json!({"name": name, "nominalQuota": nominal});
    for (field, limit) in [("borrowingLimit", borrow), ("lendingLimit", lend)] {
        if let Some(limit) = limit {
            quota[field] = json!(limit);
        }
    }
    quota
}

/// A workload as it was written.
#[derive(Debug, Clone, Default)]
struct Words {
    name: String,
    priority: i32,
    created: Option<i64>,
    reserved: Option<i64>,
    pod_sets: Vec<PodSetWords>,
}

#[derive(Debug, Clone)]
struct PodSetWords {
    name: String,
    count: i32,
    least: Option<i32>,
    /// Resource, amount for one pod, flavor.
    asks: Vec<(String, String, String)>,
}

impl PodSetWords {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), count: 1, least: None, asks: Vec::new() }
    }
}

impl Words {
    fn of(text: &str) -> Self {
        let mut tokens = text.split_whitespace();
        let name = tokens.next().expect("a name").to_owned();
        let mut words = Self { name, ..Self::default() };
        for token in tokens {
            if let Some(name) = token.strip_prefix('+') {
                words.pod_sets.push(PodSetWords::new(name));
                continue;
            }
            let (word, value) = token.split_once('=').expect("word=value");
            let number = || value.parse::<i64>().expect("a number");
            let small = || i32::try_from(number()).expect("a small number");
            match word {
                "p" => words.priority = small(),
                "t" => words.created = Some(number()),
                "r" => words.reserved = Some(number()),
                _ => {
                    if words.pod_sets.is_empty() {
                        words.pod_sets.push(PodSetWords::new("main"));
                    }
                    let set = words.pod_sets.last_mut().expect("a pod set");
                    match word {
                        "n" => set.count = small(),
                        "min" => set.least = Some(small()),
                        resource => {
                            let (amount, flavor) = value.split_once('@').unwrap_or((value, "default"));
                            set.asks.push((resource.to_owned(), amount.to_owned(), flavor.to_owned()));
                        }
                    }
                }
            }
        }
        words
    }

    fn workload(&self, cluster: &Cluster, queue: &str) -> Workload {
        let mut workload = cluster.workload(&self.name, &[]);
        workload.spec.pod_sets = self.pod_sets.iter().map(PodSetWords::pod_set).collect();
        workload.spec.queue_name = Some(queue.to_owned());
        workload.spec.priority = Some(self.priority);
        workload.metadata.creation_timestamp = Some(Time(at(self.created.unwrap_or(cluster.now))));
        workload
    }
}

impl PodSetWords {
    fn pod_set(&self) -> crate::api::kueue::PodSet {
        let requests: Map<String, Value> =
            self.asks.iter().map(|(resource, amount, _)| (resource.clone(), json!(amount))).collect();
        let mut set = pod_set(&self.name, self.count, &Value::Object(requests));
        set.min_count = self.least;
        set
    }

    fn assignment(&self) -> PodSetAssignment {
        let usage = self.asks.iter().map(|(resource, amount, _)| {
            let amount = Amount::of(resource, &Quantity(amount.clone())).expect("a quantity");
            (resource.clone(), amount.times(self.count.into()).quantity(resource))
        });
        PodSetAssignment {
            name: self.name.clone(),
            flavors: self.asks.iter().map(|(resource, _, flavor)| (resource.clone(), flavor.clone())).collect(),
            resource_usage: usage.collect(),
            count: Some(self.count),
            ..PodSetAssignment::default()
        }
    }
}

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
        cluster.engine = Engine::new(settings.clone());
        (cluster.settings, cluster.now) = (settings, NOW);
        Self { cluster }
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
        self.engine.step(now, &Event::ClusterQueueGone(name));
    }

    /// Creates a workload in another namespace, where every LocalQueue has its namesake.
    pub(super) fn put_elsewhere(&mut self, namespace: &str, mut workload: Workload) {
        let queue = workload.spec.queue_name.clone().unwrap_or_default();
        let now = at(self.now);
        let mut local_queue = self.local_queues[&key(&queue)].clone();
        local_queue.metadata.namespace = Some(namespace.to_owned());
        self.engine.step(now, &Event::LocalQueue(&local_queue));
        self.local_queues.insert(Key::new(namespace, queue), local_queue);
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
                let verdict = condition::Verdict {
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
                Effect::Admit { workload, admission, .. } => {
                    let asked = &self.workloads[workload].spec.pod_sets;
                    let counts: Vec<i32> = asked.iter().map(|set| set.count).collect();
                    decided.admitted.push(format!("{}@{}", workload.name, place(admission, &counts)));
                }
                Effect::Evict { workload, reason } => {
                    let right = match reason {
                        EvictReason::Preempted(preemption) => preemption.right.as_str(),
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
        loop {
            let going = self.going();
            if going.is_empty() {
                return admitted;
            }
            going.iter().for_each(|name| self.release(name));
            admitted.extend(self.run());
        }
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
