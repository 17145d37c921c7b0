//! Naive computation of the capacity available to a ClusterQueue from its Cohorts and the usage of
//! all ClusterQueues, by the rules of kueue v0.19.2 `pkg/cache/scheduler/resource_node.go`.

use std::collections::{BTreeMap, BTreeSet};

use sluice_api::kueue::cluster_queue::ResourceGroup;
use sluice_api::kueue::{ClusterQueue, Cohort};
use sluice_api::quantity::{Amount, Quantity};

/// Flavor and resource name.
pub type FlavorResource = (String, String);
/// Usage of each ClusterQueue by flavor and resource.
pub type Usage = BTreeMap<String, BTreeMap<FlavorResource, Amount>>;

/// Quotas from the specs of all ClusterQueues and Cohorts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Quotas {
    nodes: BTreeMap<NodeName, Node>,
}

/// Name of a node. ClusterQueues and Cohorts have separate namespaces.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum NodeName {
    ClusterQueue(String),
    Cohort(String),
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Node {
    parent: Option<String>,
    quotas: BTreeMap<FlavorResource, Quota>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Quota {
    nominal: i128,
    borrowing: Option<i128>,
    lending: Option<i128>,
}

impl Quotas {
    /// Reads the quotas of ClusterQueues and Cohorts.
    pub fn new<'a>(
        queues: impl IntoIterator<Item = &'a ClusterQueue>,
        cohorts: impl IntoIterator<Item = &'a Cohort>,
    ) -> Self {
        let mut nodes = BTreeMap::new();
        for queue in queues {
            let node = Node::of(queue.spec.cohort_name.as_ref(), &queue.spec.resource_groups);
            nodes.insert(NodeName::ClusterQueue(queue.metadata.name.clone().unwrap_or_default()), node);
        }
        for cohort in cohorts {
            let node = Node::of(cohort.spec.parent_name.as_ref(), &cohort.spec.resource_groups);
            nodes.insert(NodeName::Cohort(cohort.metadata.name.clone().unwrap_or_default()), node);
        }
        Self { nodes }
    }

    /// Returns the amount that a ClusterQueue may use in addition to `usage`, in the base unit of
    /// the resource. Zero if an ancestor Cohort is part of a cycle.
    pub fn available(&self, queue: &str, pair: &FlavorResource, usage: &Usage) -> i128 {
        let name = NodeName::ClusterQueue(queue.to_owned());
        let mut above = BTreeSet::new();
        let mut at = self.parent(&name);
        while let Some(cohort) = at {
            if !above.insert(cohort.clone()) {
                return 0;
            }
            at = self.parent(&cohort);
        }
        self.available_at(&name, pair, usage)
    }

    fn available_at(&self, name: &NodeName, pair: &FlavorResource, usage: &Usage) -> i128 {
        let (subtree, used, local) =
            (self.subtree_quota(name, pair), self.usage_at(name, pair, usage), self.local_quota(name, pair));
        let Some(parent) = self.parent(name) else { return subtree - used };
        let mut from_parent = self.available_at(&parent, pair, usage);
        if let Some(limit) = self.quota(name, pair).borrowing {
            from_parent = from_parent.min(subtree - local - (used - local).max(0) + limit);
        }
        (local - used).max(0) + from_parent
    }

    /// Returns the quota of a node and its descendants that the node can use.
    fn subtree_quota(&self, name: &NodeName, pair: &FlavorResource) -> i128 {
        let lent = self.children(name).map(|child| self.subtree_quota(child, pair) - self.local_quota(child, pair));
        self.quota(name, pair).nominal + lent.sum::<i128>()
    }

    /// Returns the part of the subtree quota that the lending limit reserves for the node.
    fn local_quota(&self, name: &NodeName, pair: &FlavorResource) -> i128 {
        self.quota(name, pair).lending.map_or(0, |lending| (self.subtree_quota(name, pair) - lending).max(0))
    }

    fn usage_at(&self, name: &NodeName, pair: &FlavorResource, usage: &Usage) -> i128 {
        match name {
            NodeName::ClusterQueue(queue) => {
                usage.get(queue).and_then(|used| used.get(pair)).map_or(0, |amount| amount.get().into())
            }
            NodeName::Cohort(_) => {
                let children = self.children(name);
                children.map(|child| (self.usage_at(child, pair, usage) - self.local_quota(child, pair)).max(0)).sum()
            }
        }
    }

    fn parent(&self, name: &NodeName) -> Option<NodeName> {
        self.nodes.get(name)?.parent.clone().map(NodeName::Cohort)
    }

    fn children<'a>(&'a self, name: &'a NodeName) -> impl Iterator<Item = &'a NodeName> {
        self.nodes.keys().filter(move |child| self.parent(child).as_ref() == Some(name))
    }

    fn quota(&self, name: &NodeName, pair: &FlavorResource) -> Quota {
        self.nodes.get(name).and_then(|node| node.quotas.get(pair)).cloned().unwrap_or_default()
    }
}

impl Node {
    fn of(parent: Option<&String>, groups: &[ResourceGroup]) -> Self {
        let mut quotas = BTreeMap::new();
        for flavor in groups.iter().flat_map(|group| &group.flavors) {
            for resource in &flavor.resources {
                let read = |quantity: &Quantity| {
                    i128::from(
                        Amount::from_quantity(&resource.name, quantity)
                            .expect("a quantity accepted by the API server")
                            .get(),
                    )
                };
                let quota = Quota {
                    nominal: read(&resource.nominal_quota),
                    borrowing: resource.borrowing_limit.as_ref().map(read),
                    lending: resource.lending_limit.as_ref().map(read),
                };
                quotas.insert((flavor.name.clone(), resource.name.clone()), quota);
            }
        }
        Self { parent: parent.cloned(), quotas }
    }
}
