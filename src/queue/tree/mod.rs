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

pub(super) use capacity::View;
pub(super) use share::{Largest, Share, Weight};

use super::quota::Limits;

/// One resource of one flavor, the unit of quota accounting.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlavorResource {
    pub(super) flavor: String,
    pub(super) resource: String,
}

/// Identifies a [`FlavorResource`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fr(u32);

/// Identifies a ClusterQueue or Cohort. A name keeps its id permanently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(u32);

/// The quota-related spec of a ClusterQueue or Cohort.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NodeSpec {
    /// Name of its Cohort. `None` for a root.
    pub(super) parent: Option<String>,
    pub(super) limits: BTreeMap<FlavorResource, Limits>,
    pub(super) weight: Weight,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    ClusterQueue,
    Cohort,
}

#[derive(Debug, Clone)]
struct Node {
    kind: Kind,
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
    cyclic: bool,
    cells: Vec<(Fr, Cell)>,
    /// Planned share, computed on demand. Reset when the planned usage changes.
    share: OnceCell<Share>,
    /// Potentially available quota by resource, computed on demand.
    lendable: OnceCell<Vec<(String, i128)>>,
    /// Largest share of its borrowing children, and the tree state that it was computed in.
    largest: std::cell::Cell<Option<(u64, Option<Largest>)>>,
}

/// Quota and usage of one flavor resource at one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cell {
    borrowing_limit: Option<i128>,
    lending_limit: Option<i128>,
    /// Quota of the node and of its subtree that it can use.
    subtree: i128,
    nominal: i128,
    /// Usage by [`View`]: that of a ClusterQueue, or the usage of a Cohort's quota by its children.
    used: [i128; 2],
}

/// The cohort forest with quota and usage.
#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    cluster_queues: BTreeMap<String, NodeId>,
    cohorts: BTreeMap<String, NodeId>,
    frs: Vec<FlavorResource>,
    /// Ids by flavor and resource.
    fr_ids: BTreeMap<String, BTreeMap<String, Fr>>,
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

impl Tree {
    /// Returns the id of a flavor resource, assigning one if necessary.
    pub(super) fn fr(&mut self, at: &FlavorResource) -> Fr {
        if let Some(fr) = self.known(&at.flavor, &at.resource) {
            return fr;
        }
        let fr = Fr(u32::try_from(self.frs.len()).unwrap_or(u32::MAX));
        self.frs.push(at.clone());
        self.fr_ids.entry(at.flavor.clone()).or_default().insert(at.resource.clone(), fr);
        fr
    }

    /// Returns the id of a flavor resource; `None` if it has none.
    pub(super) fn known(&self, flavor: &str, resource: &str) -> Option<Fr> {
        self.fr_ids.get(flavor)?.get(resource).copied()
    }

    /// Returns the flavor resource with this id.
    pub(super) fn flavor_resource(&self, fr: Fr) -> &FlavorResource {
        &self.frs[fr.0 as usize]
    }

    /// Returns the id of a ClusterQueue, assigning one if necessary.
    pub(super) fn cluster_queue(&mut self, name: &str) -> NodeId {
        self.id(Kind::ClusterQueue, name)
    }

    /// Returns the id of a Cohort, assigning one if necessary.
    pub(super) fn cohort(&mut self, name: &str) -> NodeId {
        self.id(Kind::Cohort, name)
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

    fn id(&mut self, kind: Kind, name: &str) -> NodeId {
        let known = if kind == Kind::ClusterQueue { self.known_cluster_queue(name) } else { self.known_cohort(name) };
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
            cyclic: false,
            cells: Vec::new(),
            share: OnceCell::new(),
            lendable: OnceCell::new(),
            largest: std::cell::Cell::default(),
        });
        let ids = if kind == Kind::ClusterQueue { &mut self.cluster_queues } else { &mut self.cohorts };
        ids.insert(name.to_owned(), id);
        id
    }

    /// Sets the spec of a node; `None` if its object was deleted.
    pub(super) fn set(&mut self, node: NodeId, spec: Option<NodeSpec>) {
        if self.node(node).spec != spec {
            self.node_mut(node).spec = spec;
            self.stale = true;
        }
    }

    /// Records that usage changed permanently, which invalidates cached largest shares.
    pub(super) fn enter_new_state(&mut self) {
        self.state += 1;
    }

    /// Rebuilds the tree if quota or structure changed. Returns whether it did.
    pub(super) fn refresh(&mut self) -> bool {
        if !std::mem::take(&mut self.stale) {
            return false;
        }
        self.enter_new_state();
        self.link();
        let roots: Vec<NodeId> = self.ids().filter(|id| self.node(*id).parent.is_none()).collect();
        for node in &mut self.nodes {
            (node.share, node.lendable) = (OnceCell::new(), OnceCell::new());
            node.cells.retain(|(_, cell)| node.kind == Kind::ClusterQueue && cell.used != [0, 0]);
            for (_, cell) in &mut node.cells {
                *cell = Cell { used: cell.used, ..Cell::default() };
            }
        }
        for id in self.ids().collect::<Vec<_>>() {
            self.read_limits(id);
        }
        for root in roots {
            self.accumulate(root, root);
        }
        true
    }

    fn link(&mut self) {
        let parents: Vec<(NodeId, String)> =
            self.ids().filter_map(|id| Some((id, self.node(id).spec.as_ref()?.parent.clone()?))).collect();
        let parents: BTreeMap<NodeId, NodeId> =
            parents.into_iter().map(|(id, parent)| (id, self.id(Kind::Cohort, &parent))).collect();
        let cyclic: BTreeSet<NodeId> = self.ids().filter(|id| never_ends(*id, &parents)).collect();
        for node in &mut self.nodes {
            node.children.clear();
        }
        for id in self.ids().collect::<Vec<_>>() {
            let parent = parents.get(&id).copied().filter(|_| !cyclic.contains(&id));
            let node = self.node_mut(id);
            node.parent = parent;
            node.cyclic = cyclic.contains(&id);
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

    fn read_limits(&mut self, id: NodeId) {
        let limits = self.node(id).spec.as_ref().map(|spec| spec.limits.clone()).unwrap_or_default();
        for (at, limits) in limits {
            let fr = self.fr(&at);
            let cell = self.cell_mut(id, fr);
            cell.nominal = limits.nominal.get().into();
            cell.borrowing_limit = limits.borrowing.map(|limit| limit.get().into());
            cell.lending_limit = limits.lending.map(|limit| limit.get().into());
        }
    }

    /// Computes subtree quota, usage, height and root of a node and all nodes below it.
    fn accumulate(&mut self, id: NodeId, root: NodeId) {
        for (_, cell) in &mut self.node_mut(id).cells {
            cell.subtree = cell.nominal;
        }
        let mut height = 0;
        for child in self.node(id).children.clone() {
            self.accumulate(child, root);
            height = height.max(self.node(child).height + 1);
            for (fr, below) in self.node(child).cells.clone() {
                let cell = self.cell_mut(id, fr);
                cell.subtree += below.subtree - below.local();
                for view in 0..2 {
                    cell.used[view] += (below.used[view] - below.local()).max(0);
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
            if node.kind == Kind::ClusterQueue {
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
        self.node(node).kind == Kind::ClusterQueue
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
    pub(super) fn above(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors(self.parent(node), |node| self.parent(*node))
    }

    /// Returns the path of a node: `/root/…/name`.
    pub(super) fn path(&self, node: NodeId) -> String {
        let mut names: Vec<&str> = self.above(node).map(|above| self.name(above)).collect();
        names.reverse();
        names.push(self.name(node));
        format!("/{}", names.join("/"))
    }

    /// Returns the cycle of Cohorts that a node is part of or below, as `a -> b -> a`. `None`
    /// without a cycle.
    pub(super) fn cycle_above(&self, node: NodeId) -> Option<String> {
        if !self.node(node).cyclic {
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

    fn cell(&self, id: NodeId, fr: Fr) -> Cell {
        let cells = &self.node(id).cells;
        cells.binary_search_by_key(&fr, |(fr, _)| *fr).map(|index| cells[index].1).unwrap_or_default()
    }

    fn cell_mut(&mut self, id: NodeId, fr: Fr) -> &mut Cell {
        let cells = &mut self.node_mut(id).cells;
        let index = match cells.binary_search_by_key(&fr, |(fr, _)| *fr) {
            Ok(index) => index,
            Err(index) => {
                cells.insert(index, (fr, Cell::default()));
                index
            }
        };
        &mut cells[index].1
    }
}

/// Reports whether the chain of parents of a node is cyclic.
fn never_ends(from: NodeId, parents: &BTreeMap<NodeId, NodeId>) -> bool {
    let above = std::iter::successors(Some(from), |id| parents.get(id).copied());
    above.take(parents.len() + 2).count() > parents.len() + 1
}
