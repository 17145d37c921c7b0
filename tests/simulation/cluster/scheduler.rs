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

use super::nodes::{Amounts, Nodes, Rooms, requests};
use super::read::{PodId, has_ended, is_deleted, items, set_condition, text};
use super::{Chore, Desk};
use crate::api::Api;

/// Scheduler with its view of nodes and pods.
#[derive(Debug)]
pub(super) struct Scheduler {
    rooms: Rooms,
    /// Node index and requests of bound pods, by pod ordinal.
    bound: BTreeMap<u64, (usize, Amounts)>,
    /// Ordinals of pods with a pending first attempt.
    fresh: BTreeSet<u64>,
    /// Unschedulable pods, by descending priority and then by age.
    waiting: BTreeMap<(Reverse<i64>, u64), Arc<PodId>>,
    /// Set if a retry of the unschedulable pods is scheduled.
    retries: bool,
}

impl Scheduler {
    pub(super) fn new(nodes: Nodes) -> Self {
        Self {
            rooms: Rooms::new(nodes),
            bound: BTreeMap::new(),
            fresh: BTreeSet::new(),
            waiting: BTreeMap::new(),
            retries: false,
        }
    }

    /// Creates the Node objects.
    pub(super) fn furnish(&self, now: Timestamp, api: &mut Api) {
        for node in self.rooms.objects() {
            let (name, status) = (text(&node, "/metadata/name").to_owned(), node["status"].clone());
            api.create(now, node).expect("a new and valid node");
            let set_status = |node: &mut Value| node["status"] = status;
            api.update_status(now, "Node", "", &name, set_status).expect("the node exists");
        }
    }

    /// Returns the index of a node; `None` if the name is unknown.
    pub(super) fn node_number(&self, name: &str) -> Option<usize> {
        self.rooms.number(name)
    }

    /// Observes the current state of a pod.
    pub(super) fn see(&mut self, context: &mut Desk<'_>, id: &Arc<PodId>, pod: &Value, gone: bool) {
        if gone || has_ended(pod) {
            return self.release(context, id, pod);
        }
        let node = text(pod, "/spec/nodeName");
        if !node.is_empty() {
            if !self.bound.contains_key(&id.ordinal)
                && let Some(number) = self.rooms.number(node)
            {
                self.charge(id.ordinal, number, requests(pod));
            }
            return;
        }
        let rank = rank(id, pod);
        if is_schedulable(pod) && !self.waiting.contains_key(&rank) && self.fresh.insert(id.ordinal) {
            let delay = context.latencies.draw(&context.latencies.schedule, "schedule", id.ordinal);
            context.after(delay, Chore::Schedule(id.clone()));
        }
    }

    fn charge(&mut self, ordinal: u64, number: usize, requests: Amounts) {
        self.rooms.take(number, &requests);
        self.bound.insert(ordinal, (number, requests));
    }

    /// Releases the capacity of a pod and schedules a retry of unschedulable pods.
    fn release(&mut self, context: &mut Desk<'_>, id: &PodId, pod: &Value) {
        self.fresh.remove(&id.ordinal);
        self.waiting.remove(&rank(id, pod));
        let Some((number, requests)) = self.bound.remove(&id.ordinal) else { return };
        self.rooms.give_back(number, &requests);
        if !self.waiting.is_empty() && !self.retries {
            self.retries = true;
            let delay = context.latencies.draw(&context.latencies.schedule, "schedule again", id.ordinal);
            context.after(delay, Chore::ScheduleAgain);
        }
    }

    /// Makes the first attempt to bind a pod.
    pub(super) fn schedule(&mut self, now: Timestamp, api: &mut Api, id: &Arc<PodId>) {
        if self.fresh.remove(&id.ordinal) {
            self.try_pod(now, api, id);
        }
    }

    /// Retries all unschedulable pods.
    pub(super) fn schedule_again(&mut self, now: Timestamp, api: &mut Api) {
        self.retries = false;
        for id in std::mem::take(&mut self.waiting).into_values() {
            self.try_pod(now, api, &id);
        }
    }

    fn try_pod(&mut self, now: Timestamp, api: &mut Api, id: &Arc<PodId>) {
        let Some(pod) = id.find(api).cloned() else { return };
        if !is_schedulable(&pod) {
            return;
        }
        let requests = requests(&pod);
        match self.rooms.place(&pod, &requests) {
            Ok(number) => {
                let node = self.rooms.name(number).to_owned();
                self.charge(id.ordinal, number, requests);
                bind(now, api, id, &node);
            }
            Err(why) => {
                self.waiting.insert(rank(id, &pod), id.clone());
                let unschedulable = |pod: &mut Value| {
                    set_condition(pod, now, "PodScheduled", "False", "Unschedulable", &why);
                };
                api.update_status(now, "Pod", &id.namespace, &id.name, unschedulable).expect("the pod exists");
            }
        }
    }
}

fn bind(now: Timestamp, api: &mut Api, id: &PodId, node: &str) {
    let bound = |pod: &mut Value| pod["spec"]["nodeName"] = json!(node);
    api.update(now, "Pod", &id.namespace, &id.name, bound).expect("the pod exists");
    let scheduled = |pod: &mut Value| set_condition(pod, now, "PodScheduled", "True", "", "");
    api.update_status(now, "Pod", &id.namespace, &id.name, scheduled).expect("the pod exists");
}

/// Returns true if the pod may be bound: not gated, not terminating and not bound yet.
fn is_schedulable(pod: &Value) -> bool {
    let gated = items(pod, "/spec/schedulingGates").next().is_some();
    !gated && !is_deleted(pod) && text(pod, "/spec/nodeName").is_empty()
}

/// Returns the position of a pod among the unschedulable pods.
fn rank(id: &PodId, pod: &Value) -> (Reverse<i64>, u64) {
    (Reverse(pod.pointer("/spec/priority").and_then(Value::as_i64).unwrap_or(0)), id.ordinal)
}
