//! What was refused about the pods of clusters, for as long as it is still wanted: so that a cluster says in its status why pods of it
//! are missing. It is lost with the process; the next one tries again, and hears the same.

use std::collections::BTreeMap;

use serde_json::Value;

use super::plan::{ObjectRef, Write, WriteOp};
use super::planners::Planner;
use super::store::Key;
use super::{Engine, WriteError};
use crate::api::ray::names;
use crate::raycluster::{Role, Setback};

/// What stands in the way of clusters, by cluster and pod.
#[derive(Debug, Default)]
pub(super) struct Setbacks {
    by_cluster: BTreeMap<Key, BTreeMap<ObjectRef, Setback>>,
}

impl Setbacks {
    /// What stands in the way of a cluster; the first of it, if it is more.
    pub(super) fn of(&self, cluster: &Key) -> Option<&Setback> {
        self.by_cluster.get(cluster)?.values().next()
    }

    /// Forgets a cluster that is gone.
    pub(super) fn forget(&mut self, cluster: &Key) {
        self.by_cluster.remove(cluster);
    }

    fn add(&mut self, cluster: Key, pod: ObjectRef, setback: Setback) {
        self.by_cluster.entry(cluster).or_default().insert(pod, setback);
    }

    /// Keeps what is about pods that something is still wanted of; returns whether that is less than before.
    fn retain(&mut self, cluster: &Key, is_wanted: impl Fn(&ObjectRef) -> bool) -> bool {
        let Some(standing) = self.by_cluster.get_mut(cluster) else { return false };
        let before = standing.len();
        standing.retain(|pod, _| is_wanted(pod));
        let is_less = standing.len() < before;
        if standing.is_empty() {
            self.by_cluster.remove(cluster);
        }
        is_less
    }
}

impl Engine {
    /// Takes in that a write of this planner went through. What a status says is no sign that what failed before works now.
    pub(super) fn went_through(&mut self, planner: &Planner, write: &Write) {
        if let Some(cluster) = planner.ray_cluster() {
            self.setbacks.retain(cluster, |pod| *pod != write.target);
            if matches!(write.op, WriteOp::PatchStatus(_)) && self.setbacks.of(cluster).is_some() {
                return;
            }
        }
        self.pace.succeeded(planner);
    }

    /// Takes in that a write of this planner was refused. A race says nothing, nor does a server that had no answer or no time.
    pub(super) fn was_refused(&mut self, planner: &Planner, write: &Write, error: &WriteError) {
        let is_a_word = !error.is_race() && error.code.is_some_and(|code| code != 429);
        if let Some(cluster) = planner.ray_cluster().filter(|_| is_a_word)
            && let Some(role) = self.role_of(write)
        {
            self.setbacks.add(cluster.clone(), write.target.clone(), Setback::of(write, role, &error.message));
        }
    }

    /// Takes in what this planner wants now: what it no longer wants is no setback, and its status says so the next time.
    pub(super) fn wants_now(&mut self, planner: &Planner, writes: &[Write]) {
        let Some(cluster) = planner.ray_cluster() else { return };
        if self.setbacks.retain(cluster, |pod| writes.iter().any(|write| write.target == *pod)) {
            self.pace.mark(planner.clone());
        }
    }

    /// What the pod is that a write is about; `None` if it is about none.
    fn role_of(&self, write: &Write) -> Option<Role> {
        if write.target.kind != "Pod" {
            return None;
        }
        let key = Key::new(write.target.namespace.clone().unwrap_or_default(), write.target.name.clone());
        let known = || self.world.pods.get(&key)?.metadata.labels.as_ref()?.get(names::NODE_TYPE_LABEL).cloned();
        let node_type = match &write.op {
            WriteOp::Create(pod) => {
                let labels = pod.pointer("/metadata/labels").and_then(Value::as_object);
                labels.and_then(|labels| labels.get(names::NODE_TYPE_LABEL)?.as_str().map(str::to_owned))
            }
            WriteOp::Patch(_) | WriteOp::PatchStatus(_) | WriteOp::Delete { .. } => known(),
        };
        Some(if node_type? == Role::Head.to_string() { Role::Head } else { Role::Worker })
    }
}
