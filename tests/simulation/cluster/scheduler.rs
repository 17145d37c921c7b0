//! Scheduler: binds pods to nodes with free capacity.
//!
//! Implements the parts of kube-scheduler that decide whether a pod runs: requests, node selectors,
//! taints, scheduling gates, and priority among pending pods. No preemption, affinity, topology or
//! volumes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::nodes::{Amounts, NodeStates, Nodes, pod_requests};
use super::object_view::{PodId, has_ended, is_terminating, items, set_condition, text};
use super::{ControllerContext, Task};
use crate::api::ApiServer;

/// Scheduler with its view of nodes and pods.
#[derive(Debug)]
pub(super) struct Scheduler {
    nodes: NodeStates,
    /// Node index and requests of bound pods, by pod ordinal.
    bound: BTreeMap<u64, (usize, Amounts)>,
    /// Ordinals of pods with a pending first attempt.
    new_pods: BTreeSet<u64>,
    /// Unschedulable pods, by descending priority and then by age.
    unschedulable: BTreeMap<(Reverse<i64>, u64), Arc<PodId>>,
    /// Set if a retry of the unschedulable pods is scheduled.
    retry_scheduled: bool,
}

impl Scheduler {
    pub(super) fn new(nodes: Nodes) -> Self {
        Self {
            nodes: NodeStates::new(nodes),
            bound: BTreeMap::new(),
            new_pods: BTreeSet::new(),
            unschedulable: BTreeMap::new(),
            retry_scheduled: false,
        }
    }

    /// Creates the Node objects.
    pub(super) fn create_nodes(&self, now: Timestamp, api: &mut ApiServer) {
        for node in self.nodes.objects() {
            let (name, status) = (text(&node, "/metadata/name").to_owned(), node["status"].clone());
            api.create(now, node).expect("a new and valid node");
            let set_status = |node: &mut Value| node["status"] = status;
            api.update_status(now, "Node", "", &name, set_status).expect("the node exists");
        }
    }

    /// Returns the index of a node; `None` if the name is unknown.
    pub(super) fn node_index(&self, name: &str) -> Option<usize> {
        self.nodes.index_of(name)
    }

    /// Observes the current state of a pod.
    pub(super) fn observe(&mut self, context: &mut ControllerContext<'_>, id: &Arc<PodId>, pod: &Value, gone: bool) {
        if gone || has_ended(pod) {
            return self.release(context, id, pod);
        }
        let node = text(pod, "/spec/nodeName");
        if !node.is_empty() {
            if !self.bound.contains_key(&id.ordinal)
                && let Some(number) = self.nodes.index_of(node)
            {
                self.reserve(id.ordinal, number, pod_requests(pod));
            }
            return;
        }
        let rank = queue_position(id, pod);
        if is_schedulable(pod) && !self.unschedulable.contains_key(&rank) && self.new_pods.insert(id.ordinal) {
            let delay = context.latencies.sample(&context.latencies.schedule, "schedule", id.ordinal);
            context.schedule_after(delay, Task::Schedule(id.clone()));
        }
    }

    fn reserve(&mut self, ordinal: u64, number: usize, requests: Amounts) {
        self.nodes.reserve(number, &requests);
        self.bound.insert(ordinal, (number, requests));
    }

    /// Releases the capacity of a pod and schedules a retry of unschedulable pods.
    fn release(&mut self, context: &mut ControllerContext<'_>, id: &PodId, pod: &Value) {
        self.new_pods.remove(&id.ordinal);
        self.unschedulable.remove(&queue_position(id, pod));
        let Some((number, requests)) = self.bound.remove(&id.ordinal) else { return };
        self.nodes.release(number, &requests);
        if !self.unschedulable.is_empty() && !self.retry_scheduled {
            self.retry_scheduled = true;
            let delay = context.latencies.sample(&context.latencies.schedule, "schedule again", id.ordinal);
            context.schedule_after(delay, Task::RetryScheduling);
        }
    }

    /// Makes the first attempt to bind a pod.
    pub(super) fn schedule(&mut self, now: Timestamp, api: &mut ApiServer, id: &Arc<PodId>) {
        if self.new_pods.remove(&id.ordinal) {
            self.try_bind(now, api, id);
        }
    }

    /// Retries all unschedulable pods.
    pub(super) fn retry_unschedulable(&mut self, now: Timestamp, api: &mut ApiServer) {
        self.retry_scheduled = false;
        for id in std::mem::take(&mut self.unschedulable).into_values() {
            self.try_bind(now, api, &id);
        }
    }

    fn try_bind(&mut self, now: Timestamp, api: &mut ApiServer, id: &Arc<PodId>) {
        let Some(pod) = id.find(api).cloned() else { return };
        if !is_schedulable(&pod) {
            return;
        }
        let requests = pod_requests(&pod);
        match self.nodes.find_node(&pod, &requests) {
            Ok(number) => {
                let node = self.nodes.name(number).to_owned();
                self.reserve(id.ordinal, number, requests);
                bind(now, api, id, &node);
            }
            Err(why) => {
                self.unschedulable.insert(queue_position(id, &pod), id.clone());
                let unschedulable = |pod: &mut Value| {
                    set_condition(pod, now, "PodScheduled", "False", "Unschedulable", &why);
                };
                api.update_status(now, "Pod", &id.namespace, &id.name, unschedulable).expect("the pod exists");
            }
        }
    }
}

fn bind(now: Timestamp, api: &mut ApiServer, id: &PodId, node: &str) {
    let bound = |pod: &mut Value| pod["spec"]["nodeName"] = json!(node);
    api.update(now, "Pod", &id.namespace, &id.name, bound).expect("the pod exists");
    let scheduled = |pod: &mut Value| set_condition(pod, now, "PodScheduled", "True", "", "");
    api.update_status(now, "Pod", &id.namespace, &id.name, scheduled).expect("the pod exists");
}

/// Returns true if the pod may be bound: not gated, not terminating and not bound yet.
fn is_schedulable(pod: &Value) -> bool {
    let gated = items(pod, "/spec/schedulingGates").next().is_some();
    !gated && !is_terminating(pod) && text(pod, "/spec/nodeName").is_empty()
}

/// Returns the position of a pod among the unschedulable pods.
fn queue_position(id: &PodId, pod: &Value) -> (Reverse<i64>, u64) {
    (Reverse(pod.pointer("/spec/priority").and_then(Value::as_i64).unwrap_or(0)), id.ordinal)
}
