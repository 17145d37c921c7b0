//! Compact notation for ClusterQueues, Cohorts and workloads.
//!
//! Workloads are written as `name cpu=2 p=1`, separated by `;`. After the name, `resource=quantity`
//! is the request of each pod (for admitted workloads with `@flavor`, by default `@default`), `p=`
//! the priority, `t=` the second of creation and of quota reservation, `r=` that of quota
//! reservation only, `n=` the number of pods, `min=` the minimum count, and `+name` begins another
//! pod set.
//!
//! Quotas are written as `cpu=6 memory=3Gi`; `cpu=6+2` has a borrowing limit of 2, `cpu=6-4` a
//! lending limit of 4.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};

use super::super::fixture::{Cluster, pod_set, timestamp};
use sluice_api::kueue::{PodSetAssignment, Workload};
use sluice_api::quantity::{Amount, Quantity};

/// Name and spec of a ClusterQueue or Cohort.
#[derive(Debug, Clone)]
pub(super) struct QueueOrCohort {
    pub(super) name: String,
    pub(super) spec: Map<String, Value>,
}

/// Returns a ClusterQueue without quota and preemption.
pub(super) fn queue(name: &str) -> QueueOrCohort {
    QueueOrCohort { name: name.to_owned(), spec: Map::new() }.set("namespaceSelector", json!({}))
}

/// Returns a Cohort without quota.
pub(super) fn cohort(name: &str) -> QueueOrCohort {
    QueueOrCohort { name: name.to_owned(), spec: Map::new() }
}

impl QueueOrCohort {
    fn set(mut self, field: &str, value: Value) -> Self {
        self.spec.insert(field.to_owned(), value);
        self
    }

    fn preemption(mut self, field: &str, value: Value) -> Self {
        let rules = self.spec.entry("preemption").or_insert_with(|| json!({}));
        rules[field] = value;
        self
    }

    /// Sets the Cohort of a ClusterQueue.
    pub(super) fn within_cohort(self, name: &str) -> Self {
        self.set("cohortName", json!(name))
    }

    /// Sets the parent of a Cohort.
    pub(super) fn with_parent(self, parent: &str) -> Self {
        self.set("parentName", json!(parent))
    }

    /// Adds a flavor with these quotas to the last resource group.
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

    /// Begins another resource group.
    pub(super) fn next_group(mut self) -> Self {
        let groups = self.spec.entry("resourceGroups").or_insert_with(|| json!([]));
        groups.as_array_mut().expect("groups").push(json!({"flavors": []}));
        self
    }

    /// Adds the flavor `default` with these quotas.
    pub(super) fn has(self, quotas: &str) -> Self {
        self.quota("default", quotas)
    }

    /// Sets `preemption.withinClusterQueue`.
    pub(super) fn preempts_within(self, policy: &str) -> Self {
        self.preemption("withinClusterQueue", json!(policy))
    }

    /// Sets `preemption.reclaimWithinCohort`.
    pub(super) fn reclaims(self, policy: &str) -> Self {
        self.preemption("reclaimWithinCohort", json!(policy))
    }

    /// Sets `preemption.borrowWithinCohort` to LowerPriority, with an optional priority threshold.
    pub(super) fn preempts_while_borrowing(self, threshold: Option<i32>) -> Self {
        let rules = match threshold {
            Some(threshold) => json!({"policy": "LowerPriority", "maxPriorityThreshold": threshold}),
            None => json!({"policy": "LowerPriority"}),
        };
        self.preemption("borrowWithinCohort", rules)
    }

    /// Sets `flavorFungibility`.
    pub(super) fn flavor_fungibility(self, when_can_borrow: &str, when_can_preempt: &str) -> Self {
        self.set("flavorFungibility", json!({"whenCanBorrow": when_can_borrow, "whenCanPreempt": when_can_preempt}))
    }

    /// Sets `flavorFungibility` with the preference PreemptionOverBorrowing.
    pub(super) fn prefers_preemption_over_borrowing(self, when_can_borrow: &str, when_can_preempt: &str) -> Self {
        let preference = "PreemptionOverBorrowing";
        self.set(
            "flavorFungibility",
            json!({"whenCanBorrow": when_can_borrow, "whenCanPreempt": when_can_preempt, "preference": preference}),
        )
    }

    /// Sets `fairSharing.weight`.
    pub(super) fn weight(self, weight: &str) -> Self {
        self.set("fairSharing", json!({"weight": weight}))
    }

    /// Sets `namespaceSelector`.
    pub(super) fn namespace_selector(self, selector: Value) -> Self {
        self.set("namespaceSelector", selector)
    }

    /// Sets `stopPolicy`.
    pub(super) fn stop_policy(self, policy: &str) -> Self {
        self.set("stopPolicy", json!(policy))
    }

    /// Sets `queueingStrategy` to StrictFIFO.
    pub(super) fn strict(self) -> Self {
        self.set("queueingStrategy", json!("StrictFIFO"))
    }

    /// Returns the names of the flavors in the resource groups.
    pub(super) fn flavors(&self) -> Vec<String> {
        let groups = self.spec.get("resourceGroups").and_then(Value::as_array).into_iter().flatten();
        let flavors = groups.flat_map(|group| group["flavors"].as_array().cloned().unwrap_or_default());
        flavors.filter_map(|flavor| flavor["name"].as_str().map(str::to_owned)).collect()
    }
}

/// Parses a quota: `cpu=6+2-4` has nominal quota 6, borrowing limit 2 and lending limit 4.
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

/// Parsed notation of a workload.
#[derive(Debug, Clone, Default)]
pub(super) struct WorkloadNotation {
    name: String,
    priority: i32,
    pub(super) created: Option<i64>,
    pub(super) reserved: Option<i64>,
    pub(super) pod_sets: Vec<PodSetNotation>,
}

#[derive(Debug, Clone)]
pub(super) struct PodSetNotation {
    name: String,
    count: i32,
    min_count: Option<i32>,
    /// Resource, request of one pod, flavor.
    requests: Vec<(String, String, String)>,
}

impl PodSetNotation {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), count: 1, min_count: None, requests: Vec::new() }
    }
}

impl WorkloadNotation {
    pub(super) fn parse(text: &str) -> Self {
        let mut tokens = text.split_whitespace();
        let name = tokens.next().expect("a name").to_owned();
        let mut words = Self { name, ..Self::default() };
        for token in tokens {
            if let Some(name) = token.strip_prefix('+') {
                words.pod_sets.push(PodSetNotation::new(name));
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
                        words.pod_sets.push(PodSetNotation::new("main"));
                    }
                    let set = words.pod_sets.last_mut().expect("a pod set");
                    match word {
                        "n" => set.count = small(),
                        "min" => set.min_count = Some(small()),
                        resource => {
                            let (amount, flavor) = value.split_once('@').unwrap_or((value, "default"));
                            set.requests.push((resource.to_owned(), amount.to_owned(), flavor.to_owned()));
                        }
                    }
                }
            }
        }
        words
    }

    /// Returns the workload to create.
    pub(super) fn workload(&self, cluster: &Cluster, queue: &str) -> Workload {
        let mut workload = cluster.workload(&self.name, &[]);
        workload.spec.pod_sets = self.pod_sets.iter().map(PodSetNotation::pod_set).collect();
        workload.spec.queue_name = Some(queue.to_owned());
        workload.spec.priority = Some(self.priority);
        workload.metadata.creation_timestamp = Some(Time(timestamp(self.created.unwrap_or(cluster.now))));
        workload
    }
}

impl PodSetNotation {
    fn pod_set(&self) -> sluice_api::kueue::PodSet {
        let requests: Map<String, Value> =
            self.requests.iter().map(|(resource, amount, _)| (resource.clone(), json!(amount))).collect();
        let mut set = pod_set(&self.name, self.count, &Value::Object(requests));
        set.min_count = self.min_count;
        set
    }

    /// Returns the assignment of the pod set when it is admitted to the written flavors.
    pub(super) fn assignment(&self) -> PodSetAssignment {
        let usage = self.requests.iter().map(|(resource, amount, _)| {
            let amount = Amount::from_quantity(resource, &Quantity(amount.clone())).expect("a quantity");
            (resource.clone(), amount.times(self.count.into()).to_quantity(resource))
        });
        PodSetAssignment {
            name: self.name.clone(),
            flavors: self.requests.iter().map(|(resource, _, flavor)| (resource.clone(), flavor.clone())).collect(),
            resource_usage: usage.collect(),
            count: Some(self.count),
            ..PodSetAssignment::default()
        }
    }
}
