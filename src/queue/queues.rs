//! State of all ClusterQueues that exist or are named by workloads, by tree node and by name.

use std::collections::BTreeMap;

use super::engine::ClusterQueueState;
use super::tree::NodeId;

/// State of all ClusterQueues that exist or are named by workloads.
#[derive(Debug, Clone, Default)]
pub(super) struct Queues {
    numbers: BTreeMap<String, NodeId>,
    /// Indexed by tree node.
    states: Vec<Option<Box<ClusterQueueState>>>,
}

impl Queues {
    pub(super) fn get(&self, node: NodeId) -> Option<&ClusterQueueState> {
        self.states.get(node.index())?.as_deref()
    }

    pub(super) fn get_mut(&mut self, node: NodeId) -> Option<&mut ClusterQueueState> {
        self.states.get_mut(node.index())?.as_deref_mut()
    }

    pub(super) fn named(&self, name: &str) -> Option<&ClusterQueueState> {
        self.get(*self.numbers.get(name)?)
    }

    pub(super) fn named_mut(&mut self, name: &str) -> Option<&mut ClusterQueueState> {
        self.get_mut(*self.numbers.get(name)?)
    }

    /// Returns the state of a ClusterQueue, creating an empty one if there is none.
    pub(super) fn place(&mut self, name: &str, node: NodeId) -> &mut ClusterQueueState {
        if !self.numbers.contains_key(name) {
            self.numbers.insert(name.to_owned(), node);
        }
        if self.states.len() <= node.index() {
            self.states.resize_with(node.index() + 1, || None);
        }
        self.states[node.index()]
            .get_or_insert_with(|| Box::new(ClusterQueueState { name: name.to_owned(), node, ..Default::default() }))
    }

    pub(super) fn remove(&mut self, node: NodeId) {
        if let Some(state) = self.states.get_mut(node.index()).and_then(Option::take) {
            self.numbers.remove(&state.name);
        }
    }

    /// Iterates over all ClusterQueues, sorted by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = &ClusterQueueState> {
        self.numbers.values().filter_map(|node| self.get(*node))
    }
}
