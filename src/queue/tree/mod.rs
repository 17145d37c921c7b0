//! The tree of Cohorts and ClusterQueues: quota, borrowing and usage.
//!
//! Sums are `i128` and cannot overflow, so usage that is added and removed leaves no residue. Quota
//! and structure change rarely: such a change marks the tree as stale, and it is rebuilt before the
//! next use. Usage changes often and is updated in place.

mod capacity;
mod share;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

pub(super) use capacity::UsageView;
pub(super) use share::{DominantShare, FairWeight, LargestShare};

use super::cluster_queue_config::QuotaLimits;

/// One resource of one flavor, the unit of quota accounting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlavorResource {
    pub(super) flavor: String,
    pub(super) resource: String,
}

/// Identifies a [`FlavorResource`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlavorResourceId(u32);

/// Identifies a ClusterQueue or Cohort. A name keeps its id permanently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(u32);

/// The quota-related spec of a ClusterQueue or Cohort.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NodeSpec {
    /// Name of its Cohort. `None` for a root.
    pub(super) parent: Option<String>,
    pub(super) limits: BTreeMap<FlavorResource, QuotaLimits>,
    pub(super) weight: FairWeight,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum NodeKind {
    ClusterQueue,
    Cohort,
}

#[derive(Debug, Clone)]
struct Node {
    kind: NodeKind,
    name: String,
    /// `None` while there is no object: a Cohort that is only referred to, or a deleted
    /// ClusterQueue.
    spec: Option<NodeSpec>,
    parent: Option<NodeId>,
    children: Vec<NodeId>,
    root: NodeId,
    /// Distance to the farthest leaf below.
    height: u32,
    /// True if the node is part of a cycle of Cohorts or below one.
    in_cycle: bool,
    cells: Vec<(FlavorResourceId, QuotaCell)>,
    /// Planned share, computed on demand. Reset when the planned usage changes.
    share: OnceCell<DominantShare>,
    /// Potentially available quota by resource, computed on demand.
    lendable: OnceCell<Vec<(String, i128)>>,
    /// Largest share of its borrowing children, and the tree state that it was computed in.
    largest: std::cell::Cell<Option<(u64, Option<LargestShare>)>>,
}

/// Quota and usage of one flavor resource at one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct QuotaCell {
    borrowing_limit: Option<i128>,
    lending_limit: Option<i128>,
    /// Quota of the node and of its subtree that it can use.
    subtree_quota: i128,
    nominal_quota: i128,
    /// Usage by [`UsageView`]: that of a ClusterQueue, or the usage of a Cohort's quota by its children.
    usage: [i128; 2],
}

/// The cohort forest with quota and usage.
#[derive(Debug, Clone, Default)]
pub(super) struct CohortTree {
    nodes: Vec<Node>,
    cluster_queues: BTreeMap<String, NodeId>,
    cohorts: BTreeMap<String, NodeId>,
    flavor_resources: Vec<FlavorResource>,
    /// Ids by flavor and resource.
    flavor_resource_ids: BTreeMap<String, BTreeMap<String, FlavorResourceId>>,
    stale: bool,
    /// Counts the states of the tree between decisions. Simulated changes are not counted.
    state: u64,
}

impl NodeId {
    /// Returns the id as an index, counted from zero.
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

impl CohortTree {
    /// Returns the id of a flavor resource, assigning one if necessary.
    pub(super) fn flavor_resource_id(&mut self, at: &FlavorResource) -> FlavorResourceId {
        if let Some(fr) = self.known_flavor_resource(&at.flavor, &at.resource) {
            return fr;
        }
        let fr = FlavorResourceId(u32::try_from(self.flavor_resources.len()).unwrap_or(u32::MAX));
        self.flavor_resources.push(at.clone());
        self.flavor_resource_ids.entry(at.flavor.clone()).or_default().insert(at.resource.clone(), fr);
        fr
    }

    /// Returns the id of a flavor resource; `None` if it has none.
    pub(super) fn known_flavor_resource(&self, flavor: &str, resource: &str) -> Option<FlavorResourceId> {
        self.flavor_resource_ids.get(flavor)?.get(resource).copied()
    }

    /// Returns the flavor resource with this id.
    pub(super) fn flavor_resource(&self, fr: FlavorResourceId) -> &FlavorResource {
        &self.flavor_resources[fr.0 as usize]
    }

    /// Returns the id of a ClusterQueue, assigning one if necessary.
    pub(super) fn cluster_queue_id(&mut self, name: &str) -> NodeId {
        self.node_id(NodeKind::ClusterQueue, name)
    }

    /// Returns the id of a Cohort, assigning one if necessary.
    pub(super) fn cohort_id(&mut self, name: &str) -> NodeId {
        self.node_id(NodeKind::Cohort, name)
    }

    /// Returns the id of a ClusterQueue; `None` if it has none.
    pub(super) fn known_cluster_queue(&self, name: &str) -> Option<NodeId> {
        self.cluster_queues.get(name).copied()
    }

    /// Returns the id of a Cohort; `None` if it has none.
    pub(super) fn known_cohort(&self, name: &str) -> Option<NodeId> {
        self.cohorts.get(name).copied()
    }

    /// Reports whether quota or structure changed since the tree was built.
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }

    fn node_id(&mut self, kind: NodeKind, name: &str) -> NodeId {
        let known =
            if kind == NodeKind::ClusterQueue { self.known_cluster_queue(name) } else { self.known_cohort(name) };
        if let Some(id) = known {
            return id;
        }
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(Node {
            kind,
            name: name.to_owned(),
            spec: None,
            parent: None,
            children: Vec::new(),
            root: id,
            height: 0,
            in_cycle: false,
            cells: Vec::new(),
            share: OnceCell::new(),
            lendable: OnceCell::new(),
            largest: std::cell::Cell::default(),
        });
        let ids = if kind == NodeKind::ClusterQueue { &mut self.cluster_queues } else { &mut self.cohorts };
        ids.insert(name.to_owned(), id);
        id
    }

    /// Sets the spec of a node; `None` if its object was deleted.
    pub(super) fn set_spec(&mut self, node: NodeId, spec: Option<NodeSpec>) {
        if self.node(node).spec != spec {
            self.node_mut(node).spec = spec;
            self.stale = true;
        }
    }

    /// Records that usage changed permanently, which invalidates cached largest shares.
    pub(super) fn advance_state(&mut self) {
        self.state += 1;
    }

    /// Rebuilds the tree if quota or structure changed. Returns whether it did.
    pub(super) fn rebuild(&mut self) -> bool {
        if !std::mem::take(&mut self.stale) {
            return false;
        }
        self.advance_state();
        self.link_parents();
        let roots: Vec<NodeId> = self.ids().filter(|id| self.node(*id).parent.is_none()).collect();
        for node in &mut self.nodes {
            (node.share, node.lendable) = (OnceCell::new(), OnceCell::new());
            node.cells.retain(|(_, cell)| node.kind == NodeKind::ClusterQueue && cell.usage != [0, 0]);
            for (_, cell) in &mut node.cells {
                *cell = QuotaCell { usage: cell.usage, ..QuotaCell::default() };
            }
        }
        for id in self.ids().collect::<Vec<_>>() {
            self.apply_limits(id);
        }
        for root in roots {
            self.accumulate(root, root);
        }
        true
    }

    fn link_parents(&mut self) {
        let parents: Vec<(NodeId, String)> =
            self.ids().filter_map(|id| Some((id, self.node(id).spec.as_ref()?.parent.clone()?))).collect();
        let parents: BTreeMap<NodeId, NodeId> =
            parents.into_iter().map(|(id, parent)| (id, self.node_id(NodeKind::Cohort, &parent))).collect();
        let cyclic: BTreeSet<NodeId> = self.ids().filter(|id| is_in_cycle(*id, &parents)).collect();
        for node in &mut self.nodes {
            node.children.clear();
        }
        for id in self.ids().collect::<Vec<_>>() {
            let parent = parents.get(&id).copied().filter(|_| !cyclic.contains(&id));
            let node = self.node_mut(id);
            node.parent = parent;
            node.in_cycle = cyclic.contains(&id);
            if let Some(parent) = parent {
                self.node_mut(parent).children.push(id);
            }
        }
        // Children are ordered by name, independently of the order of observation.
        let names: Vec<String> = self.nodes.iter().map(|node| node.name.clone()).collect();
        for node in &mut self.nodes {
            node.children.sort_by(|a, b| names[a.0 as usize].cmp(&names[b.0 as usize]).then(a.cmp(b)));
        }
    }

    fn apply_limits(&mut self, id: NodeId) {
        let limits = self.node(id).spec.as_ref().map(|spec| spec.limits.clone()).unwrap_or_default();
        for (at, limits) in limits {
            let fr = self.flavor_resource_id(&at);
            let cell = self.cell_mut(id, fr);
            cell.nominal_quota = limits.nominal.get().into();
            cell.borrowing_limit = limits.borrowing_limit.map(|limit| limit.get().into());
            cell.lending_limit = limits.lending_limit.map(|limit| limit.get().into());
        }
    }

    /// Computes subtree quota, usage, height and root of a node and all nodes below it.
    fn accumulate(&mut self, id: NodeId, root: NodeId) {
        for (_, cell) in &mut self.node_mut(id).cells {
            cell.subtree_quota = cell.nominal_quota;
        }
        let mut height = 0;
        for child in self.node(id).children.clone() {
            self.accumulate(child, root);
            height = height.max(self.node(child).height + 1);
            for (fr, below) in self.node(child).cells.clone() {
                let cell = self.cell_mut(id, fr);
                cell.subtree_quota += below.subtree_quota - below.local_quota();
                for view in 0..2 {
                    cell.usage[view] += (below.usage[view] - below.local_quota()).max(0);
                }
            }
        }
        let node = self.node_mut(id);
        (node.height, node.root) = (height, root);
    }

    /// Returns the root of the tree that contains a node.
    pub(super) fn root(&self, node: NodeId) -> NodeId {
        self.node(node).root
    }

    /// Returns the ClusterQueues at or below a node, by id.
    pub(super) fn cluster_queues_below(&self, node: NodeId) -> Vec<NodeId> {
        let (mut found, mut open) = (Vec::new(), vec![node]);
        while let Some(id) = open.pop() {
            let node = self.node(id);
            if node.kind == NodeKind::ClusterQueue {
                found.push(id);
            }
            open.extend(&node.children);
        }
        found.sort_unstable();
        found
    }

    /// Returns the name of a node.
    pub(super) fn name(&self, node: NodeId) -> &str {
        &self.node(node).name
    }

    /// Reports whether a node is a ClusterQueue.
    pub(super) fn is_cluster_queue(&self, node: NodeId) -> bool {
        self.node(node).kind == NodeKind::ClusterQueue
    }

    /// Returns the distance to the farthest leaf below.
    pub(super) fn height(&self, node: NodeId) -> u32 {
        self.node(node).height
    }

    /// Returns the Cohort of a node; `None` for a root.
    pub(super) fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.node(node).parent
    }

    /// Returns the children of a node, by name.
    pub(super) fn children(&self, node: NodeId) -> &[NodeId] {
        &self.node(node).children
    }

    /// Returns the Cohorts above a node, nearest first.
    pub(super) fn ancestors(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors(self.parent(node), |node| self.parent(*node))
    }

    /// Returns the path of a node: `/root/…/name`.
    pub(super) fn path(&self, node: NodeId) -> String {
        let mut names: Vec<&str> = self.ancestors(node).map(|above| self.name(above)).collect();
        names.reverse();
        names.push(self.name(node));
        format!("/{}", names.join("/"))
    }

    /// Returns the cycle of Cohorts that a node is part of or below, as `a -> b -> a`. `None`
    /// without a cycle.
    pub(super) fn cohort_cycle(&self, node: NodeId) -> Option<String> {
        if !self.node(node).in_cycle {
            return None;
        }
        let parent = |id: NodeId| {
            let parent = self.node(id).spec.as_ref()?.parent.clone()?;
            self.known_cohort(&parent)
        };
        let mut path: Vec<NodeId> = Vec::new();
        let mut at = parent(node)?;
        while !path.contains(&at) {
            path.push(at);
            at = parent(at)?;
        }
        let from = path.iter().position(|id| *id == at).unwrap_or_default();
        let names: Vec<&str> = path[from..].iter().chain([&at]).map(|id| self.name(*id)).collect();
        Some(names.join(" -> "))
    }

    fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)).map(NodeId)
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    fn cell(&self, id: NodeId, fr: FlavorResourceId) -> QuotaCell {
        let cells = &self.node(id).cells;
        cells.binary_search_by_key(&fr, |(fr, _)| *fr).map(|index| cells[index].1).unwrap_or_default()
    }

    fn cell_mut(&mut self, id: NodeId, fr: FlavorResourceId) -> &mut QuotaCell {
        let cells = &mut self.node_mut(id).cells;
        let index = match cells.binary_search_by_key(&fr, |(fr, _)| *fr) {
            Ok(index) => index,
            Err(index) => {
                cells.insert(index, (fr, QuotaCell::default()));
                index
            }
        };
        &mut cells[index].1
    }
}

/// Reports whether the chain of parents of a node is cyclic.
fn is_in_cycle(from: NodeId, parents: &BTreeMap<NodeId, NodeId>) -> bool {
    let above = std::iter::successors(Some(from), |id| parents.get(id).copied());
    above.take(parents.len() + 2).count() > parents.len() + 1
}
