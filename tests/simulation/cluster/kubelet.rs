//! Kubelets: pod lifecycle from binding to removal.
//!
//! Pods follow testenv/internal/supervisor/stages.yaml, including its steering annotations, unless an
//! injected fault triggers first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::pace::later;
use super::read::{PodId, condition, has_ended, is_deleted, items, set_condition, text};
use super::status::{self, Lodging, Stage};
use super::{Chore, Desk, Fate, Fates};
use crate::api::{Api, DeleteOptions};

/// Annotation that steers a pod to a state: never-ready, failed or succeeded.
const PHASE_ANNOTATION: &str = "testenv.sluice.dev/phase";
/// Annotation with the time from scheduling until ready, in seconds, like `5s`.
const READY_AFTER_ANNOTATION: &str = "testenv.sluice.dev/ready-after";
/// Time until a steered pod changes its state.
const STEERED: Duration = Duration::from_millis(200);

/// Kubelets of all nodes.
#[derive(Debug, Default)]
pub(super) struct Kubelet {
    /// Bound pods by ordinal.
    pods: BTreeMap<u64, Lodger>,
    /// Number of pod IPs assigned so far.
    addresses: usize,
}

/// Bound pod.
#[derive(Debug)]
struct Lodger {
    id: Arc<PodId>,
    /// Last observed state.
    pod: Arc<Value>,
    bound_at: Timestamp,
    /// Time from binding until ready, without faults.
    start: Duration,
    fate: Option<Fate>,
    restarts: u64,
    /// End of the downtime of its containers.
    down_until: Option<Timestamp>,
    /// Next planned state, with the number of the plan; a timer of an earlier plan is ignored.
    next: Option<Stage>,
    plan: u64,
    host_ip: String,
}

impl Kubelet {
    /// Observes the current state of a pod; `host_ip` is the IP of its node.
    pub(super) fn see(&mut self, desk: &mut Desk<'_>, id: &Arc<PodId>, pod: &Arc<Value>, host_ip: String) {
        let lodger = self.pods.entry(id.ordinal).or_insert_with(|| Lodger::move_in(desk, id, pod, host_ip));
        let starts_terminating = is_deleted(pod) && !lodger.is_leaving();
        lodger.pod = pod.clone();
        if starts_terminating {
            lodger.leave(desk);
        } else {
            lodger.tend(desk);
        }
    }

    /// Removes a deleted pod.
    pub(super) fn forget(&mut self, id: &PodId) {
        self.pods.remove(&id.ordinal);
    }

    /// Executes a plan: writes the planned state of the pod.
    pub(super) fn tend(&mut self, now: Timestamp, api: &mut Api, id: &PodId, plan: u64) {
        let Some(lodger) = self.pods.get(&id.ordinal).filter(|lodger| lodger.plan == plan) else { return };
        let Some(stage) = lodger.next else { return };
        if id.find(api).is_some_and(|pod| !is_deleted(pod) && !has_ended(pod)) {
            self.bring(now, api, id, stage);
        }
    }

    fn bring(&mut self, now: Timestamp, api: &mut Api, id: &PodId, stage: Stage) {
        let Some(lodger) = self.pods.get(&id.ordinal) else { return };
        let pod_ip = format!("198.19.{}.{}", self.addresses / 250, 1 + self.addresses % 250);
        self.addresses += usize::from(text(&lodger.pod, "/status/podIP").is_empty());
        let lodging = Lodging { pod_ip, host_ip: lodger.host_ip.clone(), restarts: lodger.restarts };
        let written = |pod: &mut Value| status::write(pod, now, stage, &lodging);
        api.update_status(now, "Pod", &id.namespace, &id.name, written).expect("the pod is there");
    }

    /// Triggers the fault of a pod.
    pub(super) fn strike(&mut self, now: Timestamp, fates: &mut Fates, api: &mut Api, id: &PodId) {
        let Some(lodger) = self.pods.get_mut(&id.ordinal) else { return };
        let Some(pod) = id.find(api).cloned().filter(|pod| !is_deleted(pod) && !has_ended(pod)) else { return };
        let Some(fate) = lodger.fate.filter(|_| !fates.are_healed() && !is_steered(&pod)) else { return };
        match fate {
            Fate::Fails { .. } => self.bring(now, api, id, Stage::Failed),
            Fate::Restarts { .. } if text(&pod, "/spec/restartPolicy") == "Never" => {
                self.bring(now, api, id, Stage::Failed);
            }
            Fate::Restarts { for_ms, .. } => {
                lodger.restarts += 1;
                lodger.down_until = Some(later(now, Duration::from_millis(for_ms)));
                self.bring(now, api, id, Stage::Down);
            }
            Fate::Evicted { .. } => evict(now, api, id),
            Fate::Drained { .. } => self.drain(now, api, id),
            _ => return,
        }
        fates.strike_pod(id.ordinal, fate);
    }

    /// Evicts all pods on the node of a pod.
    fn drain(&self, now: Timestamp, api: &mut Api, id: &PodId) {
        let Some(node) = self.pods.get(&id.ordinal).map(|lodger| &lodger.host_ip) else { return };
        for neighbor in self.pods.values().filter(|lodger| lodger.host_ip == *node) {
            if neighbor.id.find(api).is_some_and(|pod| !is_deleted(pod) && !has_ended(pod)) {
                evict(now, api, &neighbor.id);
            }
        }
    }

    /// Ends a terminating pod. With `Pace::gone` set, the kubelet first reports that the containers have
    /// ended and removes the pod some time later.
    pub(super) fn end(&mut self, desk: &mut Desk<'_>, api: &mut Api, id: &Arc<PodId>) {
        let Some(pod) = id.find(api).filter(|pod| is_deleted(pod)) else { return };
        match desk.pace.gone.as_ref().filter(|_| text(pod, "/status/phase") == "Running") {
            None => api.remove(desk.now, "Pod", &id.namespace, &id.name),
            Some(gone) => {
                let succeeds = desk.pace.chance.about("ends well", id.ordinal).bool();
                self.bring(desk.now, api, id, if succeeds { Stage::Succeeded } else { Stage::Failed });
                desk.after(desk.pace.draw(gone, "gone", id.ordinal), Chore::End(id.clone()));
            }
        }
    }

    /// Plans all pods again, now that no fault keeps them from becoming ready or from terminating.
    pub(super) fn heal(&mut self, desk: &mut Desk<'_>) {
        for lodger in self.pods.values_mut() {
            lodger.down_until = None;
            if lodger.is_leaving() {
                lodger.leave(desk);
            } else {
                lodger.tend(desk);
            }
        }
    }

    /// Returns true if the pod is ready but refuses connections; records the fault if so.
    pub(super) fn is_deaf(&self, now: Timestamp, fates: &mut Fates, uid: &str) -> bool {
        let Some(lodger) = self.pods.values().find(|lodger| lodger.id.uid == uid) else { return false };
        let Some(fate @ Fate::Deaf { after_ms, for_ms }) = lodger.fate else { return false };
        let from = later(lodger.bound_at, Duration::from_millis(after_ms));
        let unreachable = !fates.are_healed() && from <= now && now < later(from, Duration::from_millis(for_ms));
        if unreachable {
            fates.strike_pod(lodger.id.ordinal, fate);
        }
        unreachable
    }
}

impl Lodger {
    /// Starts tracking a newly bound pod.
    fn move_in(desk: &mut Desk<'_>, id: &Arc<PodId>, pod: &Arc<Value>, host_ip: String) -> Self {
        let fate = desk.fates.of_pod(id.ordinal).filter(|_| !desk.fates.are_healed());
        if let Some(after) = fate.and_then(Fate::strikes_after) {
            desk.after(after, Chore::Strike(id.clone()));
        }
        Self {
            id: id.clone(),
            // No earlier state: a pod may be deleted before its binding is observed.
            pod: Arc::new(Value::Null),
            bound_at: desk.now,
            start: desk.pace.draw(&desk.pace.start, "start", id.ordinal),
            fate,
            restarts: restarts(pod),
            down_until: None,
            next: None,
            plan: 0,
            host_ip,
        }
    }

    fn is_leaving(&self) -> bool {
        is_deleted(&self.pod)
    }

    /// Plans the end of the terminating pod.
    fn leave(&mut self, desk: &mut Desk<'_>) {
        (self.next, self.plan) = (None, self.plan + 1);
        let delay = match self.fate {
            Some(fate @ Fate::Lingers { for_ms }) if !desk.fates.are_healed() => {
                desk.fates.strike_pod(self.id.ordinal, fate);
                Duration::from_millis(for_ms)
            }
            _ => desk.pace.draw(&desk.pace.end, "end", self.id.ordinal),
        };
        desk.after(delay, Chore::End(self.id.clone()));
    }

    /// Plans the next state of the pod.
    fn tend(&mut self, desk: &mut Desk<'_>) {
        self.plan += 1;
        let next = self.next_stage(&self.pod, desk.now, desk.fates);
        self.next = next.map(|(stage, _)| stage);
        if let Some((_, due)) = next {
            if let Some(fate @ (Fate::Slow { .. } | Fate::NeverReady | Fate::NeverStarts)) =
                self.fate.filter(|_| !desk.fates.are_healed())
            {
                desk.fates.strike_pod(self.id.ordinal, fate);
            }
            desk.agenda.plan(due, Chore::Tend(self.id.clone(), self.plan));
        }
    }

    /// Returns the next state of the pod and its time; `None` if it stays as it is.
    fn next_stage(&self, pod: &Value, now: Timestamp, fates: &Fates) -> Option<(Stage, Timestamp)> {
        if is_deleted(pod) || !matches!(text(pod, "/status/phase"), "" | "Pending" | "Running") {
            return None;
        }
        let ready = condition(pod, "Ready");
        match steering(pod) {
            "never-ready" => (ready != "False").then(|| (Stage::NeverReady, later(now, STEERED))),
            "failed" => Some((Stage::Failed, later(now, STEERED))),
            "succeeded" => Some((Stage::Succeeded, later(now, STEERED))),
            _ if ready == "True" => None,
            _ => self.troubled_stage(fates).map_or_else(
                || Some((Stage::Ready, self.ready_at(pod, fates).max(now))),
                |faulty| (ready != "False").then(|| (faulty, self.started(self.start).max(now))),
            ),
        }
    }

    /// Returns the state in which a fault keeps the pod; `None` without such a fault.
    fn troubled_stage(&self, fates: &Fates) -> Option<Stage> {
        match self.fate {
            _ if fates.are_healed() => None,
            Some(Fate::NeverReady) => Some(Stage::NeverReady),
            Some(Fate::NeverStarts) => Some(Stage::NeverStarts),
            _ => None,
        }
    }

    /// Returns the time at which the pod becomes ready.
    fn ready_at(&self, pod: &Value, fates: &Fates) -> Timestamp {
        if let Some(end) = self.down_until {
            return end;
        }
        match self.fate {
            Some(Fate::Slow { after_ms }) if !fates.are_healed() => self.started(Duration::from_millis(after_ms)),
            _ => steered_ready_at(pod).unwrap_or_else(|| self.started(self.start)),
        }
    }

    fn started(&self, after: Duration) -> Timestamp {
        later(self.bound_at, after)
    }
}

/// Evicts a pod like the Eviction API of a node drain.
fn evict(now: Timestamp, api: &mut Api, id: &PodId) {
    let message = "Eviction API: evicting";
    let disrupted = |pod: &mut Value| {
        set_condition(pod, now, "DisruptionTarget", "True", "EvictionByEvictionAPI", message);
    };
    api.update_status(now, "Pod", &id.namespace, &id.name, disrupted).expect("the pod is there");
    let options = DeleteOptions { uid: Some(id.uid.clone()), ..DeleteOptions::default() };
    api.delete(now, "Pod", &id.namespace, &id.name, &options).expect("the pod is there");
}

fn steering(pod: &Value) -> &str {
    pod["metadata"]["annotations"][PHASE_ANNOTATION].as_str().unwrap_or_default()
}

fn is_steered(pod: &Value) -> bool {
    matches!(steering(pod), "never-ready" | "failed" | "succeeded")
}

/// Returns the ready time by annotation: seconds after the pod was scheduled. `None` without a valid
/// annotation.
fn steered_ready_at(pod: &Value) -> Option<Timestamp> {
    let value = pod["metadata"]["annotations"][READY_AFTER_ANNOTATION].as_str()?;
    let seconds: u64 = value.trim_end_matches('s').parse().ok()?;
    let scheduled = items(pod, "/status/conditions").find(|condition| condition["type"] == "PodScheduled");
    let since = scheduled.map(|condition| text(condition, "/lastTransitionTime"));
    let since = since.unwrap_or_else(|| text(pod, "/metadata/creationTimestamp"));
    Some(later(since.parse().ok()?, Duration::from_secs(seconds)))
}

fn restarts(pod: &Value) -> u64 {
    items(pod, "/status/containerStatuses").filter_map(|status| status["restartCount"].as_u64()).max().unwrap_or(0)
}
