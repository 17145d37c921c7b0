//! State of all ClusterQueues that exist or are named by workloads, by tree node and by name.

use std::collections::BTreeMap;

use super::scheduler::CachedClusterQueue;
use super::tree::NodeId;

/// State of all ClusterQueues that exist or are named by workloads.
#[derive(Debug, Clone, Default)]
pub(super) struct ClusterQueues {
    nodes: BTreeMap<String, NodeId>,
    /// Indexed by tree node.
    states: Vec<Option<Box<CachedClusterQueue>>>,
}

impl ClusterQueues {
    pub(super) fn get(&self, node: NodeId) -> Option<&CachedClusterQueue> {
        self.states.get(node.index())?.as_deref()
    }

    pub(super) fn get_mut(&mut self, node: NodeId) -> Option<&mut CachedClusterQueue> {
        self.states.get_mut(node.index())?.as_deref_mut()
    }

    pub(super) fn get_by_name(&self, name: &str) -> Option<&CachedClusterQueue> {
        self.get(*self.nodes.get(name)?)
    }

    pub(super) fn get_by_name_mut(&mut self, name: &str) -> Option<&mut CachedClusterQueue> {
        self.get_mut(*self.nodes.get(name)?)
    }

    /// Returns the state of a ClusterQueue, creating an empty one if there is none.
    pub(super) fn get_or_insert(&mut self, name: &str, node: NodeId) -> &mut CachedClusterQueue {
        if !self.nodes.contains_key(name) {
            self.nodes.insert(name.to_owned(), node);
        }
        if self.states.len() <= node.index() {
            self.states.resize_with(node.index() + 1, || None);
        }
        self.states[node.index()]
            .get_or_insert_with(|| Box::new(CachedClusterQueue { name: name.to_owned(), node, ..Default::default() }))
    }

    pub(super) fn remove(&mut self, node: NodeId) {
        if let Some(state) = self.states.get_mut(node.index()).and_then(Option::take) {
            self.nodes.remove(&state.name);
        }
    }

    /// Iterates over all ClusterQueues, sorted by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = &CachedClusterQueue> {
        self.nodes.values().filter_map(|node| self.get(*node))
    }
}
