//! What was refused about the pods of clusters, for as long as it is still wanted: so that a cluster says in its status why pods of it
//! are missing, and each of them is tried again at a pace of its own while all else goes on. It is lost with the process; the next one
//! tries again, and hears the same.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

use super::pace::pause_after;
use super::planners::Planner;
use super::{Engine, WriteError};
use sluice_api::ray::names;
use sluice_plan::ObjectKey;
use sluice_plan::{ObjectRef, Plan, Write, WriteOp};
use sluice_raycluster::{Role, Setback};

/// What stands in the way of clusters, by cluster and pod.
#[derive(Debug, Default)]
pub(super) struct Setbacks {
    by_cluster: BTreeMap<ObjectKey, BTreeMap<ObjectRef, Standing>>,
}

/// A write about a pod that was refused.
#[derive(Debug)]
struct Standing {
    setback: Setback,
    /// How often in a row.
    times: u32,
    /// When it may be tried again.
    until: Timestamp,
}

impl Setbacks {
    /// What stands in the way of a cluster; the first of it, if it is more.
    pub(super) fn of(&self, cluster: &ObjectKey) -> Option<&Setback> {
        self.by_cluster.get(cluster)?.values().next().map(|standing| &standing.setback)
    }

    /// Forgets a cluster that is gone.
    pub(super) fn forget(&mut self, cluster: &ObjectKey) {
        self.by_cluster.remove(cluster);
    }

    fn add(&mut self, cluster: ObjectKey, pod: ObjectRef, setback: Setback, now: Timestamp) {
        let standing = self.by_cluster.entry(cluster).or_default();
        let before = standing.get(&pod).map_or(0, |before| before.times);
        let until = now.saturating_add(pause_after(before)).unwrap_or(Timestamp::MAX);
        standing.insert(pod, Standing { setback, times: before.saturating_add(1), until });
    }

    /// When a pod of a cluster may be tried again, if it was refused.
    fn until(&self, cluster: &ObjectKey, pod: &ObjectRef) -> Option<Timestamp> {
        self.by_cluster.get(cluster)?.get(pod).map(|standing| standing.until)
    }

    /// Keeps what is about pods that something is still wanted of; returns whether that is less than before.
    fn retain(&mut self, cluster: &ObjectKey, is_wanted: impl Fn(&ObjectRef) -> bool) -> bool {
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
    /// Takes in that a write of this planner went through.
    pub(super) fn went_through(&mut self, planner: &Planner, write: &Write) {
        if let Some(cluster) = planner.ray_cluster() {
            self.setbacks.retain(cluster, |pod| *pod != write.target);
        }
        self.pace.succeeded(planner);
    }

    /// Takes in that a write of this planner failed: it is tried again after a pause. If the API server won't have a pod made or
    /// deleted, the pause is that pod's, and nothing else waits.
    pub(super) fn failed(&mut self, planner: Planner, write: &Write, error: &WriteError, now: Timestamp) {
        match (planner.ray_cluster(), self.setback(write, error)) {
            (Some(cluster), Some(setback)) => {
                self.setbacks.add(cluster.clone(), write.target.clone(), setback, now);
                self.pace.mark(planner);
            }
            _ => self.pace.failed(planner, now),
        }
    }

    /// Takes out of a plan what was refused and may not be tried again yet. What it no longer wants is no setback any more, and a
    /// status says so the next time.
    pub(super) fn hold_back(&mut self, planner: &Planner, plan: &mut Plan, now: Timestamp) {
        let Some(cluster) = planner.ray_cluster() else { return };
        if self.setbacks.retain(cluster, |pod| plan.writes.iter().any(|write| write.target == *pod)) {
            self.pace.mark(planner.clone());
        }
        let due = |write: &Write| self.setbacks.until(cluster, &write.target).filter(|until| *until > now);
        if let Some(first) = plan.writes.iter().filter_map(due).min() {
            plan.wake(first);
        }
        plan.writes.retain(|write| due(write).is_none());
    }

    /// What stands in the way of a cluster, if this is a word about one of its pods: it is none if a race was lost, or if the server
    /// had no time.
    fn setback(&self, write: &Write, error: &WriteError) -> Option<Setback> {
        let is_a_word = !error.is_race() && error.code.is_some_and(|code| !matches!(code, 429 | 503 | 504));
        let role = self.role_of(write).filter(|_| is_a_word)?;
        Setback::of(write, role, &error.message)
    }

    /// What the pod is that a write is about; `None` if it is about none.
    fn role_of(&self, write: &Write) -> Option<Role> {
        if write.target.kind != "Pod" {
            return None;
        }
        let key = ObjectKey::new(write.target.namespace.clone().unwrap_or_default(), write.target.name.clone());
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
