//! Generators of random small clusters and their histories.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::fixture::{Cluster, edit_pod_spec, object_key, pod_set, replacing};
use crate::partial_admission::SLICE_ANNOTATION;
use crate::partial_preemption::{PARTIALLY_PREEMPTED, part_to_release, preemptible_parts};
use crate::settings::{FairSharing, PreemptionStrategy, Settings};
use crate::shortfall::Shortfall;
use crate::{Decision, ObjectKey, Scheduler};
use sluice_api::kueue::{Workload, names};

/// Nominal quota, borrowing limit and lending limit, by resource and flavor.
type Quotas = Vec<(u8, Option<u8>, Option<u8>)>;

#[derive(Debug, Clone)]
pub(super) struct CohortPlan {
    parent: Option<u8>,
    /// `None` for a Cohort without quota; without a parent and a weight too, it has no object.
    quotas: Option<Quotas>,
    weight: Option<&'static str>,
}

#[derive(Debug, Clone)]
pub(super) struct QueuePlan {
    cohort: Option<u8>,
    quotas: Quotas,
    weight: Option<&'static str>,
    strict: bool,
    within_cluster_queue: &'static str,
    reclaim_within_cohort: &'static str,
    borrow_within_cohort: Option<Option<i32>>,
    fungibility: (bool, bool, bool),
}

#[derive(Debug, Clone)]
pub(super) struct ClusterPlan {
    flavors: u8,
    resources: u8,
    /// Each resource has its own resource group and flavors.
    separate_groups: bool,
    fair_sharing: Option<Vec<PreemptionStrategy>>,
    cohorts: Vec<CohortPlan>,
    queues: Vec<QueuePlan>,
    /// Number of workloads created so far.
    workloads_created: u32,
}

#[derive(Debug, Clone)]
pub(super) struct PodSetPlan {
    count: u8,
    reducible: u8,
    per_pod: (u8, u8),
    /// Required node pool, which is that of one flavor; `None` if any flavor matches.
    required_pool: Option<u8>,
    /// Pods of the surge, and pods of replicas above the minimum.
    parts: (u8, u8),
}

/// Change of a cluster. Numbers select queues and workloads, modulo their count.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Submit {
        queue: u8,
        priority: i8,
        sets: Vec<PodSetPlan>,
    },
    /// Creates a replacement slice that grows by `hosts` pods at a time, or in one step if that is
    /// 0.
    Replace {
        predecessor: u8,
        count: u8,
        hosts: u8,
    },
    /// Releases the preempted part of a workload.
    ReleasePart(u8),
    Finish(u8),
    Delete(u8),
    ReleaseQuota(u8),
    SetNominal {
        queue: u8,
        quota: u8,
        nominal: u8,
    },
    SetLimits {
        queue: u8,
        quota: u8,
        borrowing: Option<u8>,
        lending: Option<u8>,
    },
}

fn quotas() -> impl Strategy<Value = Quotas> {
    let limit = || prop_oneof![2 => Just(None), 1 => (0..4_u8).prop_map(Some)];
    prop::collection::vec((0..6_u8, limit(), limit()), 6)
}

fn weights() -> impl Strategy<Value = Option<&'static str>> {
    prop_oneof![4 => Just(None), 1 => Just(Some("0")), 1 => Just(Some("2")), 1 => Just(Some("500m"))]
}

fn cohorts() -> impl Strategy<Value = Vec<CohortPlan>> {
    let cohort = (prop::option::of(0..3_u8), prop::option::of(quotas()), weights());
    let cohort = cohort.prop_map(|(parent, quotas, weight)| CohortPlan { parent, quotas, weight });
    prop::collection::vec(cohort, 1..4)
}

fn queues() -> impl Strategy<Value = QueuePlan> {
    let borrow =
        prop_oneof![3 => Just(None), 1 => Just(Some(None)), 1 => (-1..2_i32).prop_map(|most| Some(Some(most)))];
    (
        prop::option::weighted(0.85, 0..3_u8),
        quotas(),
        weights(),
        prop::bool::weighted(0.3),
        prop_oneof![Just("Never"), Just("LowerPriority"), Just("LowerOrNewerEqualPriority")],
        prop_oneof![Just("Never"), Just("LowerPriority"), Just("Any")],
        borrow,
        any::<(bool, bool, bool)>(),
    )
        .prop_map(|(cohort, quotas, weight, strict, within, reclaim, borrow, fungibility)| QueuePlan {
            cohort,
            quotas,
            weight,
            strict,
            within_cluster_queue: within,
            reclaim_within_cohort: reclaim,
            borrow_within_cohort: borrow.filter(|_| reclaim != "Never"),
            fungibility,
        })
}

pub(super) fn cluster_plans() -> impl Strategy<Value = ClusterPlan> {
    use PreemptionStrategy::{LessThanInitialShare as Initial, LessThanOrEqualToFinalShare as Final};
    let fair_sharing = prop_oneof![
        3 => Just(None),
        2 => Just(Some(vec![Final, Initial])),
        1 => Just(Some(vec![Final])),
        1 => Just(Some(vec![Initial])),
    ];
    (1..4_u8, 1..3_u8, any::<bool>(), fair_sharing, cohorts(), prop::collection::vec(queues(), 2..6)).prop_map(
        |(flavors, resources, split, fair_sharing, cohorts, queues)| ClusterPlan {
            flavors,
            resources,
            separate_groups: split,
            fair_sharing,
            cohorts,
            queues,
            workloads_created: 0,
        },
    )
}

fn pod_sets() -> impl Strategy<Value = Vec<PodSetPlan>> {
    let spare = prop_oneof![4 => Just(0_u8), 1 => 1..3_u8];
    let parts = prop_oneof![3 => Just((0, 0)), 2 => (0..3_u8, 0..2_u8)];
    let set = (1..4_u8, spare, (0..4_u8, 0..3_u8), prop::option::weighted(0.1, 0..3_u8), parts);
    let set = set.prop_map(|(count, spare, per_pod, pool, parts)| PodSetPlan {
        count,
        reducible: spare.min(count),
        per_pod,
        required_pool: pool,
        parts,
    });
    prop_oneof![2 => prop::collection::vec(set.clone(), 1), 1 => prop::collection::vec(set, 1..4)]
}

fn changes() -> impl Strategy<Value = Change> {
    let id = || 0..16_u8;
    let limit = || prop::option::of(0..4_u8);
    prop_oneof![
        12 => (0..5_u8, -1..2_i8, pod_sets()).prop_map(|(queue, priority, sets)| Change::Submit { queue, priority, sets }),
        3 => (id(), 0..6_u8, 0..3_u8)
            .prop_map(|(predecessor, count, hosts)| Change::Replace { predecessor, count, hosts }),
        3 => id().prop_map(Change::ReleasePart),
        3 => id().prop_map(Change::Finish),
        1 => id().prop_map(Change::Delete),
        5 => id().prop_map(Change::ReleaseQuota),
        1 => (0..5_u8, 0..6_u8, 0..8_u8).prop_map(|(queue, quota, nominal)| Change::SetNominal { queue, quota, nominal }),
        1 => (0..5_u8, 0..6_u8, limit(), limit())
            .prop_map(|(queue, quota, borrowing, lending)| Change::SetLimits { queue, quota, borrowing, lending }),
    ]
}

/// Generates histories: each group of changes is followed by one cycle.
pub(super) fn histories() -> impl Strategy<Value = Vec<Vec<Change>>> {
    prop::collection::vec(prop::collection::vec(changes(), 1..4), 1..12)
}

const RESOURCES: [&str; 2] = ["gpu", "tpu"];

impl ClusterPlan {
    fn resource_groups(&self, quotas: &Quotas, has_parent: bool) -> Value {
        let quota = |resource: usize, flavor: usize| {
            let (nominal, borrowing, lending) = quotas[resource * 3 + flavor];
            let mut quota = json!({"name": RESOURCES[resource], "nominalQuota": nominal.to_string()});
            if has_parent {
                quota["borrowingLimit"] = borrowing.map_or(Value::Null, |limit| limit.to_string().into());
                quota["lendingLimit"] = lending.map_or(Value::Null, |limit| limit.min(nominal).to_string().into());
            }
            quota
        };
        let group = |resources: Vec<usize>, prefix: &str| {
            let flavors: Vec<Value> = (0..usize::from(self.flavors))
                .map(|flavor| {
                    let quotas: Vec<Value> = resources.iter().map(|resource| quota(*resource, flavor)).collect();
                    json!({"name": format!("{prefix}{flavor}"), "resources": quotas})
                })
                .collect();
            let names: Vec<&str> = resources.iter().map(|resource| RESOURCES[*resource]).collect();
            json!({"coveredResources": names, "flavors": flavors})
        };
        match (self.resources, self.separate_groups) {
            (1, _) => json!([group(vec![0], "f")]),
            (_, false) => json!([group(vec![0, 1], "f")]),
            (_, true) => json!([group(vec![0], "f"), group(vec![1], "g")]),
        }
    }

    fn cohort_name(&self, index: u8) -> String {
        format!("c{}", usize::from(index) % self.cohorts.len())
    }

    pub(super) fn new_cluster(&self) -> Cluster {
        let fair_sharing = self.fair_sharing.clone().map(|strategies| FairSharing { strategies });
        let settings = Settings { fair_sharing, ..Settings::default() };
        let mut cluster = Cluster::default();
        cluster.scheduler = Scheduler::new(settings.clone());
        cluster.settings = settings;
        for flavor in 0..self.flavors {
            cluster.put_flavor_with(&format!("f{flavor}"), json!({"nodeLabels": {"pool": flavor.to_string()}}));
            cluster.put_flavor_with(&format!("g{flavor}"), json!({"nodeLabels": {"pool": flavor.to_string()}}));
        }
        for (index, plan) in self.cohorts.iter().enumerate() {
            let parent = plan.parent.map(usize::from).filter(|parent| *parent < index);
            if parent.is_none() && plan.quotas.is_none() && plan.weight.is_none() {
                continue;
            }
            let mut spec = json!({"fairSharing": fair_sharing_spec(plan.weight)});
            if let Some(parent) = parent {
                spec["parentName"] = json!(format!("c{parent}"));
            }
            if let Some(quotas) = &plan.quotas {
                spec["resourceGroups"] = self.resource_groups(quotas, parent.is_some());
            }
            cluster.put_cohort(&format!("c{index}"), spec);
        }
        for index in 0..self.queues.len() {
            self.put_queue(&mut cluster, index);
            cluster.put_local_queue(&format!("lq{index}"), json!({"clusterQueue": format!("q{index}")}));
        }
        cluster
    }

    fn put_queue(&self, cluster: &mut Cluster, index: usize) {
        let plan = &self.queues[index];
        let fungibility_policy = |next: bool| if next { "TryNextFlavor" } else { "MayStopSearch" };
        let (borrow, preempt, over_borrowing) = plan.fungibility;
        let mut fungibility =
            json!({"whenCanBorrow": fungibility_policy(borrow), "whenCanPreempt": fungibility_policy(preempt)});
        if borrow && preempt && over_borrowing {
            fungibility["preference"] = json!("PreemptionOverBorrowing");
        }
        let mut preemption =
            json!({"withinClusterQueue": plan.within_cluster_queue, "reclaimWithinCohort": plan.reclaim_within_cohort});
        if let Some(most) = plan.borrow_within_cohort {
            preemption["borrowWithinCohort"] = json!({"policy": "LowerPriority", "maxPriorityThreshold": most});
        }
        let mut spec = json!({
            "namespaceSelector": {},
            "queueingStrategy": if plan.strict { "StrictFIFO" } else { "BestEffortFIFO" },
            "resourceGroups": self.resource_groups(&plan.quotas, plan.cohort.is_some()),
            "preemption": preemption,
            "flavorFungibility": fungibility,
            "fairSharing": fair_sharing_spec(plan.weight),
        });
        if let Some(cohort) = plan.cohort {
            spec["cohortName"] = json!(self.cohort_name(cohort));
        }
        cluster.put_cluster_queue(&format!("q{index}"), spec);
    }

    /// Reduces the plan to one flavor, so that the usage of a workload is unambiguous.
    pub(super) fn with_one_flavor(mut self) -> Self {
        self.flavors = 1;
        self
    }

    /// Reduces the plan to one flavor and to BestEffortFIFO, whose heads reserve no quota.
    pub(super) fn with_one_flavor_and_best_effort(mut self) -> Self {
        self.queues.iter_mut().for_each(|queue| queue.strict = false);
        self.with_one_flavor()
    }

    /// Raises one nominal quota of a ClusterQueue.
    pub(super) fn raise_quota(&mut self, cluster: &mut Cluster, queue: u8, quota: usize, more: u8) {
        let index = usize::from(queue) % self.queues.len();
        self.queues[index].quotas[quota].0 += more;
        self.put_queue(cluster, index);
    }

    /// Raises the quota of a LocalQueue's ClusterQueue by the shortfall, in the only flavor.
    pub(super) fn cover_shortfall(&mut self, cluster: &mut Cluster, local_queue: &str, short: &Shortfall) {
        let index: u8 = local_queue.trim_start_matches("lq").parse().expect("a number");
        let resource = RESOURCES.iter().position(|name| *name == short.resource).expect("a resource");
        let more = u8::try_from(short.missing.get()).expect("a small number");
        self.raise_quota(cluster, index, resource * 3, more);
    }

    /// Applies a change to the cluster.
    pub(super) fn apply(&mut self, cluster: &mut Cluster, act: &Change) {
        match act {
            Change::Submit { queue, priority, sets } => self.submit(cluster, *queue, *priority, sets),
            Change::Replace { predecessor, count, hosts } => self.replace(cluster, *predecessor, *count, *hosts),
            Change::ReleasePart(id) => {
                if let Some(key) = select_workload(cluster, *id, is_releasing_part) {
                    release_part(cluster, &key.name);
                }
            }
            Change::Finish(id) => {
                if let Some(key) = select_workload(cluster, *id, holds_quota_alone) {
                    cluster.finish(&key.name);
                }
            }
            Change::Delete(id) => {
                if let Some(key) =
                    select_workload(cluster, *id, |cluster, name| !cluster.is_true(name, names::QUOTA_RESERVED))
                {
                    cluster.delete(&key.name);
                }
            }
            Change::ReleaseQuota(id) => {
                if let Some(key) = select_workload(cluster, *id, is_being_evicted) {
                    cluster.release_quota(&key.name);
                }
            }
            Change::SetNominal { queue, quota, nominal } => {
                let index = usize::from(*queue) % self.queues.len();
                self.queues[index].quotas[usize::from(*quota)].0 = *nominal;
                self.put_queue(cluster, index);
            }
            Change::SetLimits { queue, quota, borrowing, lending } => {
                let index = usize::from(*queue) % self.queues.len();
                let limits = &mut self.queues[index].quotas[usize::from(*quota)];
                (limits.1, limits.2) = (*borrowing, *lending);
                self.put_queue(cluster, index);
            }
        }
    }

    fn submit(&mut self, cluster: &mut Cluster, queue: u8, priority: i8, sets: &[PodSetPlan]) {
        let mut workload = cluster.workload(&self.new_name(), &[]);
        workload.spec.queue_name = Some(format!("lq{}", usize::from(queue) % self.queues.len()));
        workload.spec.priority = Some(priority.into());
        workload.spec.pod_sets = sets
            .iter()
            .enumerate()
            .map(|(index, plan)| {
                let mut requests = BTreeMap::from([("gpu", plan.per_pod.0.to_string())]);
                if self.resources > 1 {
                    requests.insert("tpu", plan.per_pod.1.to_string());
                }
                let mut set = pod_set(&format!("s{index}"), plan.count.into(), &json!(requests));
                set.min_count = (plan.reducible > 0).then(|| (plan.count - plan.reducible).into());
                if let Some(pool) = plan.required_pool {
                    let selector = json!({"pool": (pool % self.flavors).to_string()});
                    edit_pod_spec(&mut set, |spec| spec["nodeSelector"] = selector);
                }
                set
            })
            .collect();
        let part = |name: &str, pods: fn(&PodSetPlan) -> u8| {
            let pods = sets.iter().enumerate().map(|(index, plan)| (format!("s{index}"), pods(plan)));
            json!({"part": name, "pods": pods.filter(|(_, count)| *count > 0).collect::<BTreeMap<_, _>>()})
        };
        let mut parts = vec![part("Surge", |plan| plan.parts.0), part("Replicas", |plan| plan.parts.1)];
        parts.retain(|part| part["pods"] != json!({}));
        let annotation = (SLICE_ANNOTATION.to_owned(), json!({"parts": parts}).to_string());
        workload.metadata.annotations.get_or_insert_default().extend([annotation]);
        cluster.put(workload);
    }

    fn new_name(&mut self) -> String {
        self.workloads_created += 1;
        format!("w{:03}", self.workloads_created)
    }

    /// Creates a slice that replaces one without a replacement.
    fn replace(&mut self, cluster: &mut Cluster, predecessor: u8, count: u8, hosts: u8) {
        let claimed = |cluster: &Cluster, name: &str| {
            let claim = format!("{}/{name}", object_key(name).namespace);
            cluster.workloads.values().any(|workload| {
                let annotations = workload.metadata.annotations.as_ref();
                annotations.is_some_and(|all| all.get(names::SLICE_REPLACEMENT_FOR_ANNOTATION) == Some(&claim))
            })
        };
        let Some(before) = select_workload(cluster, predecessor, |cluster, name| !claimed(cluster, name)) else {
            return;
        };
        let mut workload = cluster.workload(&self.new_name(), &[]);
        let predecessor = &cluster.workloads[&before];
        workload.spec = predecessor.spec.clone();
        workload.metadata.annotations = slice_record_annotation(predecessor);
        for set in &mut workload.spec.pod_sets {
            set.min_count = None;
        }
        if let Some(set) = workload.spec.pod_sets.last_mut() {
            let more = u32::try_from(i32::from(count) - set.count).unwrap_or(0);
            set.count = count.into();
            let steps = growth_steps(&set.name, more, hosts.into());
            let parts = preemptible_parts(&workload);
            let annotation = (SLICE_ANNOTATION.to_owned(), json!({"steps": steps, "parts": parts}).to_string());
            workload.metadata.annotations.get_or_insert_default().extend([annotation]);
        }
        cluster.put(replacing(workload, &before.name));
    }
}

/// Returns the annotation with the slice record of a slice.
fn slice_record_annotation(slice: &Workload) -> Option<BTreeMap<String, String>> {
    let (name, record) = slice.metadata.annotations.as_ref()?.get_key_value(SLICE_ANNOTATION)?;
    Some(BTreeMap::from([(name.clone(), record.clone())]))
}

/// Returns the steps of a scale-up by `more` pods: first the remainder, then whole replicas of
/// `hosts` pods. Without hosts there are no steps: the scale-up is all or nothing.
fn growth_steps(pod_set: &str, more: u32, hosts: u32) -> Vec<Value> {
    let Some(replicas) = more.checked_div(hosts) else { return Vec::new() };
    let steps = [(1, more - replicas * hosts), (replicas, hosts)].into_iter();
    let nonempty = steps.filter(|(times, count)| *times > 0 && *count > 0);
    nonempty.map(|(times, count)| {
        json!({"times": times, "pods": [{"member": "", "group": "", "podSet": pod_set, "count": count}]})
    })
    .collect()
}

fn fair_sharing_spec(weight: Option<&str>) -> Value {
    weight.map_or(Value::Null, |weight| json!({"weight": weight}))
}

/// Selects one of the unfinished workloads that match `holds`; `None` if there is none.
fn select_workload(cluster: &Cluster, number: u8, holds: impl Fn(&Cluster, &str) -> bool) -> Option<ObjectKey> {
    let matches = |key: &&ObjectKey| !cluster.is_true(&key.name, names::FINISHED) && holds(cluster, &key.name);
    let keys: Vec<&ObjectKey> = cluster.workloads.keys().filter(matches).collect();
    (!keys.is_empty()).then(|| keys[usize::from(number) % keys.len()].clone())
}

/// Reports whether a workload holds quota and the slice that it replaces, if any, is finished or
/// deleted.
fn holds_quota_alone(cluster: &Cluster, name: &str) -> bool {
    let annotations = cluster.workloads[&object_key(name)].metadata.annotations.as_ref();
    let claimed = annotations.and_then(|all| all.get(names::SLICE_REPLACEMENT_FOR_ANNOTATION));
    let claimed = claimed.and_then(|name| name.split_once('/')).map(|(_, name)| object_key(name));
    let over =
        claimed.is_none_or(|key| !cluster.workloads.contains_key(&key) || cluster.is_true(&key.name, names::FINISHED));
    over && cluster.is_true(name, names::QUOTA_RESERVED)
}

/// Reports whether a workload has to release part of its quota, but not all.
pub(super) fn is_releasing_part(cluster: &Cluster, name: &str) -> bool {
    let over = [names::FINISHED, names::EVICTED].iter().any(|condition| cluster.is_true(name, condition));
    !over && cluster.is_true(name, names::QUOTA_RESERVED) && cluster.is_true(name, PARTIALLY_PREEMPTED)
}

/// Reduces the pod counts of a partially preempted workload to the pods that it keeps.
pub(super) fn release_part(cluster: &mut Cluster, name: &str) {
    cluster.update(name, |workload| {
        let status = workload.status.clone().unwrap_or_default();
        let (lost, admission) = (part_to_release(&status), status.admission.unwrap_or_default());
        let (taken, kept): (Vec<_>, Vec<_>) =
            preemptible_parts(workload).into_iter().partition(|part| Some(part.part) <= lost);
        for set in &mut workload.spec.pod_sets {
            let granted = admission.pod_set_assignments.iter().find(|granted| granted.name == set.name);
            let granted = granted.and_then(|granted| granted.count).unwrap_or(set.count);
            let taken: u32 = taken.iter().filter_map(|part| part.pods.get(&set.name)).sum();
            set.count = (set.count.min(granted) - i32::try_from(taken).expect("a few")).max(0);
        }
        let annotation = (SLICE_ANNOTATION.to_owned(), json!({ "parts": kept }).to_string());
        workload.metadata.annotations.get_or_insert_default().extend([annotation]);
    });
}

/// Reports whether a workload is evicted and still holds its quota.
pub(super) fn is_being_evicted(cluster: &Cluster, name: &str) -> bool {
    let done = cluster.is_true(name, names::FINISHED);
    !done && cluster.is_true(name, names::EVICTED) && cluster.is_true(name, names::QUOTA_RESERVED)
}

/// Applies all decisions.
pub(super) fn apply_decisions(cluster: &mut Cluster, effects: &[Decision]) {
    effects.iter().for_each(|effect| cluster.apply_decision(effect));
}
