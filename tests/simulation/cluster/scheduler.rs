//! The scheduler: binds pods to nodes that have room for them.
//!
//! Of kube-scheduler it has what decides whether a pod runs: requests, node selectors, taints, scheduling gates, priority
//! among those that wait. It does not preempt, and knows nothing of affinity, topology or volumes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::nodes::{Amounts, Nodes, Rooms, requests};
use super::read::{PodId, has_ended, is_deleted, items, set_condition, text};
use super::{Chore, Desk};
use crate::api::Api;

/// The scheduler, and what it knows of nodes and pods.
#[derive(Debug)]
pub(super) struct Scheduler {
    rooms: Rooms,
    /// What bound pods take up on which node, by their ordinals.
    bound: BTreeMap<u64, (usize, Amounts)>,
    /// Pods that are to be looked at for the first time, by their ordinals.
    fresh: BTreeSet<u64>,
    /// Pods that fit nowhere, the more important and then the older ones first.
    waiting: BTreeMap<(Reverse<i64>, u64), Arc<PodId>>,
    /// Whether those that wait are about to be tried again.
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

    /// Makes the objects of the nodes.
    pub(super) fn furnish(&self, now: Timestamp, api: &mut Api) {
        for node in self.rooms.objects() {
            let (name, status) = (text(&node, "/metadata/name").to_owned(), node["status"].clone());
            api.create(now, node).expect("a node that is new and right");
            let comes_up = |node: &mut Value| node["status"] = status;
            api.update_status(now, "Node", "", &name, comes_up).expect("the node is there");
        }
    }

    /// The number of the node with this name.
    pub(super) fn node_number(&self, name: &str) -> Option<usize> {
        self.rooms.number(name)
    }

    /// Takes note of a pod as it is now.
    pub(super) fn see(&mut self, desk: &mut Desk<'_>, id: &Arc<PodId>, pod: &Value, gone: bool) {
        if gone || has_ended(pod) {
            return self.release(desk, id, pod);
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
            let delay = desk.pace.draw(&desk.pace.schedule, "schedule", id.ordinal);
            desk.after(delay, Chore::Schedule(id.clone()));
        }
    }

    fn charge(&mut self, ordinal: u64, number: usize, requests: Amounts) {
        self.rooms.take(number, &requests);
        self.bound.insert(ordinal, (number, requests));
    }

    /// A pod takes up no room any more: others may fit now.
    fn release(&mut self, desk: &mut Desk<'_>, id: &PodId, pod: &Value) {
        self.fresh.remove(&id.ordinal);
        self.waiting.remove(&rank(id, pod));
        let Some((number, requests)) = self.bound.remove(&id.ordinal) else { return };
        self.rooms.give_back(number, &requests);
        if !self.waiting.is_empty() && !self.retries {
            self.retries = true;
            let delay = desk.pace.draw(&desk.pace.schedule, "schedule again", id.ordinal);
            desk.after(delay, Chore::ScheduleAgain);
        }
    }

    /// Tries to bind a pod for the first time.
    pub(super) fn schedule(&mut self, now: Timestamp, api: &mut Api, id: &Arc<PodId>) {
        if self.fresh.remove(&id.ordinal) {
            self.try_pod(now, api, id);
        }
    }

    /// Tries those again that fitted nowhere.
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
                api.update_status(now, "Pod", &id.namespace, &id.name, unschedulable).expect("the pod is there");
            }
        }
    }
}

fn bind(now: Timestamp, api: &mut Api, id: &PodId, node: &str) {
    let bound = |pod: &mut Value| pod["spec"]["nodeName"] = json!(node);
    api.update(now, "Pod", &id.namespace, &id.name, bound).expect("the pod is there");
    let scheduled = |pod: &mut Value| set_condition(pod, now, "PodScheduled", "True", "", "");
    api.update_status(now, "Pod", &id.namespace, &id.name, scheduled).expect("the pod is there");
}

/// Whether the pod may be bound: nothing holds it, and it is not on its way out.
fn is_schedulable(pod: &Value) -> bool {
    let gated = items(pod, "/spec/schedulingGates").next().is_some();
    !gated && !is_deleted(pod) && text(pod, "/spec/nodeName").is_empty()
}

/// Where the pod stands among those that wait.
fn rank(id: &PodId, pod: &Value) -> (Reverse<i64>, u64) {
    (Reverse(pod.pointer("/spec/priority").and_then(Value::as_i64).unwrap_or(0)), id.ordinal)
}
