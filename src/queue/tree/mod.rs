//! The tree of ClusterQueues and Cohorts: whose quota may be used by whom, and how much of it is used.
//!
//! Sums are wide enough to never saturate, so that usage that is taken out again leaves no trace. Quota and structure
//! change seldom: they are noted, and the tree is put together anew before it is next looked at. Usage changes all the time,
//! in place.

mod capacity;
mod share;
#[cfg(test)]
mod tests;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

pub(super) use capacity::View;
pub(super) use share::{Largest, Share, Weight};

use super::quota::Limits;

/// One resource of one flavor: what quota is counted in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FlavorResource {
    pub(super) flavor: String,
    pub(super) resource: String,
}

/// Stands for a [`FlavorResource`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fr(u32);

/// Stands for a ClusterQueue or Cohort. A name keeps its number for good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeId(u32);

/// What a node is told of its own spec.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct NodeSpec {
    /// Name of the Cohort that it belongs to.
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
    /// `None` while there is no object: a cohort that is only named, or a ClusterQueue that is gone.
    spec: Option<NodeSpec>,
    parent: Option<NodeId>,
    children: Vec<NodeId>,
    root: NodeId,
    /// Distance to the farthest leaf below.
    height: u32,
    /// The node is below a cycle, or part of one.
    cyclic: bool,
    cells: Vec<(Fr, Cell)>,
    /// Its planned share, once it was asked for; until its planned usage changes.
    share: OnceCell<Share>,
    /// All that it could ever get, by resource; once it was asked for.
    lendable: OnceCell<Vec<(String, i128)>>,
    /// The largest share of its children that borrow, and which state of the tree that is about.
    largest: std::cell::Cell<Option<(u64, Option<Largest>)>>,
}

/// One resource of one flavor at one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cell {
    borrowing_limit: Option<i128>,
    lending_limit: Option<i128>,
    /// Quota of the node and of all below it that it can get at.
    subtree: i128,
    nominal: i128,
    /// By view: the node's own usage, or what its children use of it.
    used: [i128; 2],
}

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    cluster_queues: BTreeMap<String, NodeId>,
    cohorts: BTreeMap<String, NodeId>,
    frs: Vec<FlavorResource>,
    /// By flavor, by resource.
    fr_ids: BTreeMap<String, BTreeMap<String, Fr>>,
    stale: bool,
    /// Counts the states of the tree between decisions. What is only tried out is not a state.
    state: u64,
}

impl NodeId {
    /// Numbers are given out from zero.
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

impl Tree {
    /// The number of a resource of a flavor.
    pub(super) fn fr(&mut self, at: &FlavorResource) -> Fr {
        if let Some(fr) = self.known(&at.flavor, &at.resource) {
            return fr;
        }
        let fr = Fr(u32::try_from(self.frs.len()).unwrap_or(u32::MAX));
        self.frs.push(at.clone());
        self.fr_ids.entry(at.flavor.clone()).or_default().insert(at.resource.clone(), fr);
        fr
    }

    /// The number of a resource of a flavor, if it has one.
    pub(super) fn known(&self, flavor: &str, resource: &str) -> Option<Fr> {
        self.fr_ids.get(flavor)?.get(resource).copied()
    }

    /// What a number stands for.
    pub(super) fn flavor_resource(&self, fr: Fr) -> &FlavorResource {
        &self.frs[fr.0 as usize]
    }

    /// The number of a ClusterQueue.
    pub(super) fn cluster_queue(&mut self, name: &str) -> NodeId {
        self.id(Kind::ClusterQueue, name)
    }

    /// The number of a Cohort.
    pub(super) fn cohort(&mut self, name: &str) -> NodeId {
        self.id(Kind::Cohort, name)
    }

    /// The number of a ClusterQueue, if it has one.
    pub(super) fn known_cluster_queue(&self, name: &str) -> Option<NodeId> {
        self.cluster_queues.get(name).copied()
    }

    /// The number of a Cohort, if it has one.
    pub(super) fn known_cohort(&self, name: &str) -> Option<NodeId> {
        self.cohorts.get(name).copied()
    }

    /// Whether quota or structure changed since the tree was put together.
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

    /// Sets what a node is told of its spec; `None` when its object is gone.
    pub(super) fn set(&mut self, node: NodeId, spec: Option<NodeSpec>) {
        if self.node(node).spec != spec {
            self.node_mut(node).spec = spec;
            self.stale = true;
        }
    }

    /// Usage was changed for good.
    pub(super) fn enter_new_state(&mut self) {
        self.state += 1;
    }

    /// Puts the tree together, if quota or structure changed since it was last done. Returns whether it was.
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
        // By name, whatever came first.
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

    /// Sums up quota and usage below a node.
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

    /// The node at the top of the tree that a node is in.
    pub(super) fn root(&self, node: NodeId) -> NodeId {
        self.node(node).root
    }

    /// The ClusterQueues of a tree or of a part of it, by number.
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

    pub(super) fn name(&self, node: NodeId) -> &str {
        &self.node(node).name
    }

    pub(super) fn is_cluster_queue(&self, node: NodeId) -> bool {
        self.node(node).kind == Kind::ClusterQueue
    }

    /// Distance to the farthest leaf below.
    pub(super) fn height(&self, node: NodeId) -> u32 {
        self.node(node).height
    }

    pub(super) fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.node(node).parent
    }

    pub(super) fn children(&self, node: NodeId) -> &[NodeId] {
        &self.node(node).children
    }

    /// The Cohorts above a node, the nearest first.
    pub(super) fn above(&self, node: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors(self.parent(node), |node| self.parent(*node))
    }

    /// The place of a node in the tree: `/root/…/name`.
    pub(super) fn path(&self, node: NodeId) -> String {
        let mut names: Vec<&str> = self.above(node).map(|above| self.name(above)).collect();
        names.reverse();
        names.push(self.name(node));
        format!("/{}", names.join("/"))
    }

    /// The cycle of Cohorts that a node is part of or below, as a person would write it.
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

/// Whether following the parents from a node leads round in a circle.
fn never_ends(from: NodeId, parents: &BTreeMap<NodeId, NodeId>) -> bool {
    let above = std::iter::successors(Some(from), |id| parents.get(id).copied());
    above.take(parents.len() + 2).count() > parents.len() + 1
}
