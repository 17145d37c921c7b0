//! The objects of a cluster as plain values.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::Value;

use super::quota_tree::{FlavorResource, Limits, Node, NodeSpec, Tree, Usage, WorkloadUsage};
use crate::cached_workload::ReservedAssignment;
use crate::node_affinity::NodeRequirements;
use crate::partial_preemption::{PreemptiblePart, PreemptionScope};
use crate::requests::template_requests;
use crate::settings::PreemptionStrategy;
use crate::tests::fixture::Cluster;
use sluice_api::condition;
use sluice_api::kueue::cluster_queue::{
    BorrowWithinCohortPolicy, FlavorFungibilityPolicy, FlavorFungibilityPreference, QueueingStrategy, ReclaimPolicy,
    ResourceGroup, WithinClusterQueuePolicy,
};
use sluice_api::kueue::{Admission, ClusterQueue, FairSharing, ResourceFlavorSpec, Workload, names};
use sluice_api::quantity::{Amount, Exact, Quantity};
use sluice_plan::ObjectKey;

/// A ClusterQueue.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    pub(super) name: String,
    /// Covered resources and flavors of each resource group, in order.
    pub(super) groups: Vec<(Vec<String>, Vec<String>)>,
    pub(super) strict: bool,
    pub(super) within_cluster_queue: WithinClusterQueuePolicy,
    pub(super) reclaim_within_cohort: ReclaimPolicy,
    pub(super) borrow_within_cohort: bool,
    pub(super) priority_threshold: Option<i32>,
    /// `whenCanBorrow` is TryNextFlavor.
    pub(super) try_next_if_borrowing: bool,
    /// `whenCanPreempt` is TryNextFlavor.
    pub(super) try_next_if_preempting: bool,
    pub(super) preemption_over_borrowing: bool,
}

impl Queue {
    pub(super) fn node(&self) -> Node {
        Node::Queue(self.name.clone())
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct PodSet {
    pub(super) name: String,
    pub(super) count: i32,
    pub(super) min_count: i32,
    pub(super) per_pod: BTreeMap<String, i128>,
    pub(super) node_requirements: NodeRequirements,
}

/// Growth plan of a slice: the pod counts that may be admitted.
#[derive(Debug, Clone)]
pub(super) struct GrowthPlan {
    pub(super) base: Vec<i32>,
    /// Pods that each step adds to each pod set.
    pub(super) steps: Vec<Vec<i32>>,
}

/// A pending or admitted workload.
#[derive(Debug, Clone)]
pub(super) struct OracleWorkload {
    pub(super) key: ObjectKey,
    pub(super) uid: String,
    pub(super) queue: String,
    /// Growth plan; `None` if the pods are admitted all together.
    pub(super) growth_plan: Option<GrowthPlan>,
    pub(super) priority: i32,
    pub(super) created: Timestamp,
    pub(super) pod_sets: Vec<PodSet>,
    pub(super) replaces: Option<ObjectKey>,
    /// Assignment reserved by preemption.
    pub(super) reserved_assignment: Option<ReservedAssignment>,
}

/// A workload that holds quota.
#[derive(Debug, Clone)]
pub(super) struct AdmittedWorkload {
    pub(super) job: OracleWorkload,
    pub(super) quota_reserved_at: Timestamp,
    /// Accounted usage.
    pub(super) usage: Usage,
    pub(super) admission: Admission,
    /// Usage lost with each preemption scope, the smallest scope first.
    pub(super) usage_by_scope: Vec<(PreemptionScope, Usage)>,
    /// Scope that it is already releasing.
    pub(super) releasing_up_to: Option<PreemptionScope>,
    /// Its admission was observed, not decided in this cycle.
    pub(super) observed: bool,
    /// Usage of the slices that it replaced in this cycle, held until they are observed as
    /// finished.
    pub(super) minimum_usage: Usage,
}

impl AdmittedWorkload {
    /// Returns the usage that can still be preempted, the smallest scope first.
    pub(super) fn preemptible_usage(&self) -> impl Iterator<Item = &(PreemptionScope, Usage)> {
        self.usage_by_scope.iter().filter(|(loss, _)| self.releasing_up_to < Some(*loss))
    }

    /// Returns its usage; the planned view omits what it is releasing.
    pub(super) fn workload_usages(&self, planned: bool) -> impl Iterator<Item = WorkloadUsage> {
        let held = self.usage_by_scope.iter().filter(move |(loss, _)| !planned || self.releasing_up_to < Some(*loss));
        held.map(|(loss, usage)| WorkloadUsage {
            queue: self.job.queue.clone(),
            workload: self.job.key.clone(),
            scope: *loss,
            usage: usage.clone(),
        })
    }

    /// Returns the usage lost with this scope only.
    pub(super) fn usage_of_scope(&self, loss: PreemptionScope) -> &Usage {
        &self.usage_by_scope.iter().find(|(other, _)| *other == loss).expect("a loss").1
    }
}

/// State of a cluster at the beginning of a cycle.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(super) tree: Tree,
    pub(super) queues: Vec<Queue>,
    pub(super) flavors: BTreeMap<String, ResourceFlavorSpec>,
    /// `None` without fair sharing.
    pub(super) fair_sharing_strategies: Option<Vec<PreemptionStrategy>>,
    pub(super) pending: Vec<OracleWorkload>,
    pub(super) admitted: Vec<AdmittedWorkload>,
    /// The slice that each workload replaces, by workload.
    replacement_claims: BTreeMap<ObjectKey, ObjectKey>,
}

impl Snapshot {
    pub(crate) fn of(cluster: &Cluster) -> Self {
        let mut tree = Tree::new();
        for (name, cohort) in &cluster.cohorts {
            let spec = &cohort.spec;
            let node = node_spec(spec.parent_name.as_ref(), &spec.resource_groups, spec.fair_sharing.as_ref());
            tree.insert(Node::Cohort(name.clone()), node);
        }
        for (name, queue) in &cluster.cluster_queues {
            let spec = &queue.spec;
            let node = node_spec(spec.cohort_name.as_ref(), &spec.resource_groups, spec.fair_sharing.as_ref());
            tree.insert(Node::Queue(name.clone()), node);
        }
        let named: Vec<Node> = tree.values().filter_map(|spec| spec.parent.clone()).map(Node::Cohort).collect();
        for cohort in named {
            tree.entry(cohort).or_insert_with(|| NodeSpec { weight: 1.0, ..NodeSpec::default() });
        }
        let mut snapshot = Self {
            tree,
            queues: cluster.cluster_queues.values().map(queue_of).collect(),
            flavors: cluster.flavors.iter().map(|(name, flavor)| (name.clone(), flavor.spec.clone())).collect(),
            fair_sharing_strategies: cluster.settings.fair_sharing.as_ref().map(|rules| rules.strategies.clone()),
            pending: Vec::new(),
            admitted: Vec::new(),
            replacement_claims: BTreeMap::new(),
        };
        for workload in cluster.workloads.values() {
            snapshot.add(workload, cluster);
        }
        for job in &mut snapshot.pending {
            job.reserved_assignment = cluster.scheduler.reserved_assignment_of(&job.key);
        }
        snapshot.remove_replaced_slices();
        snapshot
    }

    fn add(&mut self, workload: &Workload, cluster: &Cluster) {
        let status = workload.status.clone().unwrap_or_default();
        let is_true = |type_| condition::is_true(&status.conditions, type_);
        self.replacement_claims.extend(replaced_workload(workload).map(|claimed| (ObjectKey::of(workload), claimed)));
        if is_true(names::FINISHED) {
            return;
        }
        let local_queue =
            ObjectKey::new(&ObjectKey::of(workload).namespace, workload.spec.queue_name.as_deref().unwrap_or(""));
        let queue = cluster.local_queues.get(&local_queue).and_then(|queue| queue.spec.cluster_queue.clone());
        let job = oracle_workload_of(workload, queue.unwrap_or_default());
        match &status.admission {
            Some(admission) if is_true(names::QUOTA_RESERVED) => {
                let reserved = condition::get(&status.conditions, names::QUOTA_RESERVED).expect("it is reserved");
                self.admitted.push(AdmittedWorkload {
                    quota_reserved_at: reserved.last_transition_time.0,
                    usage: usage_of(admission),
                    admission: admission.clone(),
                    usage_by_scope: usage_by_scope(workload, admission),
                    releasing_up_to: releasing_scope(workload),
                    observed: true,
                    minimum_usage: Usage::new(),
                    job: OracleWorkload { queue: admission.cluster_queue.clone(), ..job },
                });
            }
            _ if workload.spec.active != Some(false) && workload.metadata.deletion_timestamp.is_none() => {
                self.pending.push(job);
            }
            _ => {}
        }
    }

    /// Removes slices whose replacement holds quota; the replacement's usage is at least that of
    /// the slices.
    fn remove_replaced_slices(&mut self) {
        for index in 0..self.admitted.len() {
            let mut claimed = self.admitted[index].job.replaces.clone();
            while let Some(key) = claimed {
                if let Some(before) = self.admitted.iter().find(|holder| holder.job.key == key).cloned() {
                    let usage = elementwise_max(&self.admitted[index].usage, &before.usage);
                    self.admitted[index].usage_by_scope = merge_usage_by_scope(
                        &usage,
                        self.admitted[index].releasing_up_to,
                        &self.admitted[index].usage_by_scope,
                    );
                    self.admitted[index].usage = usage;
                    claimed = before.job.replaces.clone();
                } else if let Some(before) = self.pending.iter().find(|job| job.key == key) {
                    claimed = before.replaces.clone();
                } else {
                    break;
                }
            }
        }
        let claims: Vec<ObjectKey> =
            self.admitted.iter().flat_map(|holder| self.replaced_slices(&holder.job)).collect();
        self.admitted.retain(|holder| !claims.contains(&holder.job.key));
        self.pending.retain(|job| !claims.contains(&job.key));
    }

    /// Returns the slices that a job replaces, directly and indirectly.
    pub(super) fn replaced_slices(&self, job: &OracleWorkload) -> Vec<ObjectKey> {
        std::iter::successors(self.replacement_claims.get(&job.key), |key| self.replacement_claims.get(key))
            .cloned()
            .collect()
    }

    /// Formats the snapshot for failure messages.
    pub(crate) fn summary(&self) -> String {
        use std::fmt::Write;
        let (mut text, usage) = (String::new(), |usage: &Usage| {
            usage
                .iter()
                .map(|((flavor, resource), amount)| format!("{flavor}/{resource}:{amount}"))
                .collect::<Vec<_>>()
                .join(" ")
        });
        for (node, spec) in &self.tree {
            let limits = spec.limits.iter().filter(|(_, limits)| limits.nominal > 0 || limits.borrowing.is_some());
            let limits: Vec<String> = limits
                .map(|((flavor, resource), limits)| {
                    format!("{flavor}/{resource}={}b{:?}l{:?}", limits.nominal, limits.borrowing, limits.lending)
                })
                .collect();
            let _ = writeln!(text, "{node:?} in {:?} weight {}: {}", spec.parent, spec.weight, limits.join(" "));
        }
        for queue in &self.queues {
            let _ = writeln!(text, "{queue:?}");
        }
        for holder in &self.admitted {
            let OracleWorkload { key, queue, priority, created: since, .. } = &holder.job;
            let losses = holder.usage_by_scope.iter().map(|(loss, lost)| format!("{loss:?} {}", usage(lost)));
            let _ = writeln!(
                text,
                "{} admitted in {queue} priority {priority} created {since} reserved {} releasing {:?}: {}",
                key.name,
                holder.quota_reserved_at,
                holder.releasing_up_to,
                losses.collect::<Vec<_>>().join("; ")
            );
        }
        for job in &self.pending {
            let sets: Vec<String> = job
                .pod_sets
                .iter()
                .map(|set| format!("{}x{:?} min {}", set.count, set.per_pod, set.min_count))
                .collect();
            let _ = writeln!(
                text,
                "{} pending in {} priority {} created {} replaces {:?}: {}",
                job.key.name,
                job.queue,
                job.priority,
                job.created,
                job.replaces,
                sets.join(", ")
            );
        }
        text
    }

    pub(super) fn queue(&self, name: &str) -> &Queue {
        self.queues.iter().find(|queue| queue.name == name).expect("the ClusterQueue exists")
    }
}

/// Returns the element-wise maximum.
pub(super) fn elementwise_max(a: &Usage, b: &Usage) -> Usage {
    let amount = |usage: &Usage, fr: &FlavorResource| usage.get(fr).copied().unwrap_or(0);
    a.keys().chain(b.keys()).map(|fr| (fr.clone(), amount(a, fr).max(amount(b, fr)))).collect()
}

fn amount(resource: &str, quantity: &Quantity) -> i128 {
    Amount::from_quantity(resource, quantity).expect("a quantity").get().into()
}

fn node_spec(parent: Option<&String>, groups: &[ResourceGroup], fair_sharing: Option<&FairSharing>) -> NodeSpec {
    let mut limits = BTreeMap::new();
    for flavor in groups.iter().flat_map(|group| &group.flavors) {
        for quota in &flavor.resources {
            let limit = |quantity: &Option<Quantity>| quantity.as_ref().map(|limit| amount(&quota.name, limit));
            let quota_limits = Limits {
                nominal: amount(&quota.name, &quota.nominal_quota),
                borrowing: limit(&quota.borrowing_limit),
                lending: limit(&quota.lending_limit),
            };
            limits.insert((flavor.name.clone(), quota.name.clone()), quota_limits);
        }
    }
    let weight = fair_sharing.and_then(|sharing| sharing.weight.as_ref());
    let weight = weight.map_or(1.0, |weight| Exact::parse(&weight.0).expect("a weight").nano() as f64 / 1e9);
    NodeSpec { parent: parent.cloned(), limits, weight }
}

fn queue_of(object: &ClusterQueue) -> Queue {
    let spec = &object.spec;
    let preemption = spec.preemption.clone().unwrap_or_default();
    let borrow = preemption.borrow_within_cohort.unwrap_or_default();
    let fungibility = spec.flavor_fungibility.clone().unwrap_or_default();
    let flavors = |group: &ResourceGroup| group.flavors.iter().map(|flavor| flavor.name.clone()).collect();
    Queue {
        name: object.metadata.name.clone().unwrap_or_default(),
        groups: spec.resource_groups.iter().map(|group| (group.covered_resources.clone(), flavors(group))).collect(),
        strict: spec.queueing_strategy == Some(QueueingStrategy::StrictFIFO),
        within_cluster_queue: preemption.within_cluster_queue.unwrap_or_default(),
        reclaim_within_cohort: preemption.reclaim_within_cohort.unwrap_or_default(),
        borrow_within_cohort: borrow.policy.unwrap_or_default() != BorrowWithinCohortPolicy::Never,
        priority_threshold: borrow.max_priority_threshold,
        try_next_if_borrowing: fungibility.when_can_borrow == Some(FlavorFungibilityPolicy::TryNextFlavor),
        try_next_if_preempting: fungibility.when_can_preempt != Some(FlavorFungibilityPolicy::MayStopSearch),
        preemption_over_borrowing: fungibility.preference == Some(FlavorFungibilityPreference::PreemptionOverBorrowing),
    }
}

/// Reads the growth plan from the slice record; `None` without at least two steps.
fn growth_plan_of(workload: &Workload) -> Option<GrowthPlan> {
    let annotation = workload.metadata.annotations.as_ref()?.get("sluice.dev/slice")?;
    let record: Value = serde_json::from_str(annotation).expect("JSON");
    let sets = &workload.spec.pod_sets;
    let mut steps = Vec::new();
    for step in record["steps"].as_array()? {
        let mut adds = vec![0; sets.len()];
        for pods in step["pods"].as_array().expect("pods") {
            let set = sets.iter().position(|set| set.name == pods["podSet"]).expect("a pod set");
            adds[set] += i32::try_from(pods["count"].as_i64().expect("a number")).expect("a small number");
        }
        (0..step["times"].as_u64().expect("a number")).for_each(|_| steps.push(adds.clone()));
    }
    let added = |index: usize| steps.iter().map(|adds| adds[index]).sum::<i32>();
    let foot = sets.iter().enumerate().map(|(index, set)| set.count - added(index)).collect();
    (steps.len() > 1).then_some(GrowthPlan { base: foot, steps })
}

fn oracle_workload_of(workload: &Workload, queue: String) -> OracleWorkload {
    let meta = &workload.metadata;
    let growth_plan = growth_plan_of(workload);
    let least = |index: usize| {
        let growth_plan = growth_plan.as_ref()?;
        Some(growth_plan.base[index] + growth_plan.steps.iter().map(|adds| adds[index]).min()?)
    };
    let pod_sets = workload.spec.pod_sets.iter().enumerate().map(|(index, set)| PodSet {
        name: set.name.clone(),
        count: set.count,
        min_count: least(index).or(set.min_count).unwrap_or(set.count),
        per_pod: template_requests(&set.template)
            .expect("requests")
            .iter()
            .map(|(resource, amount)| (resource.to_owned(), amount.get().into()))
            .collect(),
        node_requirements: NodeRequirements::from_template(&set.template).expect("a placement"),
    });
    let pod_sets = pod_sets.collect();
    OracleWorkload {
        key: ObjectKey::of(workload),
        uid: meta.uid.clone().unwrap_or_default(),
        queue,
        growth_plan,
        priority: workload.spec.priority.unwrap_or(0),
        created: meta.creation_timestamp.as_ref().expect("a time").0,
        pod_sets,
        replaces: replaced_workload(workload),
        reserved_assignment: None,
    }
}

/// Returns the scope that a workload is releasing; `None` if it is not evicted.
fn releasing_scope(workload: &Workload) -> Option<PreemptionScope> {
    let conditions = &workload.status.as_ref()?.conditions;
    if condition::is_true(conditions, names::EVICTED) {
        return Some(PreemptionScope::Whole);
    }
    let preempted = condition::get_true(conditions, "sluice.dev/PartiallyPreempted")?;
    Some(PreemptionScope::Part(if preempted.reason == "Surge" {
        PreemptiblePart::Surge
    } else {
        PreemptiblePart::Replicas
    }))
}

/// Returns the usage lost with each preemption scope, the smallest scope first.
fn usage_by_scope(workload: &Workload, admission: &Admission) -> Vec<(PreemptionScope, Usage)> {
    let annotation = workload.metadata.annotations.as_ref().and_then(|all| all.get("sluice.dev/slice"));
    let record: Value = annotation.map_or(Value::Null, |text| serde_json::from_str(text).expect("JSON"));
    let declared = record["parts"].as_array().cloned().unwrap_or_default();
    let (mut losses, mut left) = (Vec::new(), usage_of(admission));
    let mut kept: BTreeMap<&str, i128> = BTreeMap::new();
    for set in &admission.pod_set_assignments {
        let asked = workload.spec.pod_sets.iter().find(|other| other.name == set.name).map_or(0, |set| set.count);
        kept.insert(&set.name, asked.min(set.count.unwrap_or(asked)).into());
    }
    for part in [PreemptiblePart::Surge, PreemptiblePart::Replicas] {
        let of_part = declared.iter().find(|other| other["part"] == part.as_str());
        if of_part.is_none() && releasing_scope(workload) < Some(PreemptionScope::Part(part)) {
            continue;
        }
        for (name, count) in &mut kept {
            let taken = of_part.and_then(|part| part["pods"][name].as_i64()).unwrap_or(0);
            *count = (*count - i128::from(taken)).max(0);
        }
        let next = usage_of_pods(admission, &kept);
        losses.push((PreemptionScope::Part(part), subtract_usage(&left, &next)));
        left = next;
    }
    losses.push((PreemptionScope::Whole, left));
    losses
}

/// Returns the usage of these pod counts, rounded up.
fn usage_of_pods(admission: &Admission, pods: &BTreeMap<&str, i128>) -> Usage {
    let mut usage = Usage::new();
    for set in &admission.pod_set_assignments {
        let granted = i128::from(set.count.expect("a count")).max(1);
        for (resource, quantity) in &set.resource_usage {
            let held = amount(resource, quantity) * pods[set.name.as_str()];
            *usage.entry((set.flavors[resource].clone(), resource.clone())).or_default() +=
                held.div_euclid(granted) + i128::from(held.rem_euclid(granted) != 0);
        }
    }
    usage
}

fn subtract_usage(usage: &Usage, other: &Usage) -> Usage {
    usage.iter().map(|(fr, amount)| (fr.clone(), amount - other.get(fr).copied().unwrap_or(0))).collect()
}

/// Returns the whole usage as one loss, except for the part that is already being released: the
/// usage is that of several slices, so further parts are unknown.
fn merge_usage_by_scope(
    usage: &Usage,
    gives_back: Option<PreemptionScope>,
    losses: &[(PreemptionScope, Usage)],
) -> Vec<(PreemptionScope, Usage)> {
    let Some(loss @ PreemptionScope::Part(_)) = gives_back else {
        return vec![(PreemptionScope::Whole, usage.clone())];
    };
    let mut kept = Usage::new();
    for (fr, amount) in losses.iter().filter(|(other, _)| *other > loss).flat_map(|(_, usage)| usage) {
        *kept.entry(fr.clone()).or_default() += amount;
    }
    vec![(loss, subtract_usage(usage, &kept)), (PreemptionScope::Whole, kept)]
}

fn replaced_workload(workload: &Workload) -> Option<ObjectKey> {
    let claimed = workload.metadata.annotations.as_ref()?.get(names::SLICE_REPLACEMENT_FOR_ANNOTATION)?;
    claimed.split_once('/').map(|(namespace, name)| ObjectKey::new(namespace, name))
}

pub(super) fn usage_of(admission: &Admission) -> Usage {
    let mut usage = Usage::new();
    for set in &admission.pod_set_assignments {
        for (resource, quantity) in &set.resource_usage {
            let fr = (set.flavors[resource].clone(), resource.clone());
            *usage.entry(fr).or_default() += amount(resource, quantity);
        }
    }
    usage
}

/// Returns the names of the ClusterQueues below each root.
pub(super) fn queues_by_root(snapshot: &Snapshot) -> BTreeMap<Node, BTreeSet<String>> {
    let tree = super::quota_tree::QuotaTree { tree: &snapshot.tree, usages: Vec::new() };
    let mut trees: BTreeMap<Node, BTreeSet<String>> = BTreeMap::new();
    for queue in &snapshot.queues {
        trees.entry(tree.root(&queue.node())).or_default().insert(queue.name.clone());
    }
    trees
}
