//! The kubelets: what becomes of a pod from its binding until it is gone.
//!
//! A pod goes the way of testenv/internal/supervisor/stages.yaml, annotations that steer it included, unless it meets with
//! a fate first.

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

/// Where a pod is steered to: never-ready, failed or succeeded.
const PHASE_ANNOTATION: &str = "testenv.sluice.dev/phase";
/// How long a pod takes to get ready, in seconds, like `5s`.
const READY_AFTER_ANNOTATION: &str = "testenv.sluice.dev/ready-after";
/// How long a pod that is steered takes.
const STEERED: Duration = Duration::from_millis(200);

/// The kubelets of all nodes.
#[derive(Debug, Default)]
pub(super) struct Kubelet {
    /// The pods that are bound, by their ordinals.
    pods: BTreeMap<u64, Lodger>,
    /// How many addresses were given out.
    addresses: usize,
}

/// A pod that is bound.
#[derive(Debug)]
struct Lodger {
    id: Arc<PodId>,
    /// As it was seen last.
    pod: Arc<Value>,
    bound_at: Timestamp,
    /// From its binding until it is ready, if nothing happens.
    start: Duration,
    fate: Option<Fate>,
    restarts: u64,
    /// Until when its containers don't run.
    down_until: Option<Timestamp>,
    /// The stage that it comes to next, and the number of this plan; earlier plans are void.
    next: Option<Stage>,
    plan: u64,
    host_ip: String,
}

impl Kubelet {
    /// Takes note of a pod as it is now; `host_ip` is the address of its node.
    pub(super) fn see(&mut self, desk: &mut Desk<'_>, id: &Arc<PodId>, pod: &Arc<Value>, host_ip: String) {
        let lodger = self.pods.entry(id.ordinal).or_insert_with(|| Lodger::move_in(desk, id, pod, host_ip));
        let leaves = is_deleted(pod) && !lodger.is_leaving();
        lodger.pod = pod.clone();
        if leaves {
            lodger.leave(desk);
        } else {
            lodger.tend(desk);
        }
    }

    /// Forgets a pod that is gone.
    pub(super) fn forget(&mut self, id: &PodId) {
        self.pods.remove(&id.ordinal);
    }

    /// Carries out a plan: brings the pod to the stage that is due.
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

    /// Lets a pod meet with its fate.
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

    /// Evicts all that run on the node of a pod.
    fn drain(&self, now: Timestamp, api: &mut Api, id: &PodId) {
        let Some(node) = self.pods.get(&id.ordinal).map(|lodger| &lodger.host_ip) else { return };
        for neighbour in self.pods.values().filter(|lodger| lodger.host_ip == *node) {
            if neighbour.id.find(api).is_some_and(|pod| !is_deleted(pod) && !has_ended(pod)) {
                evict(now, api, &neighbour.id);
            }
        }
    }

    /// Ends a pod that was deleted. A kubelet tells that its containers have ended a while before it lets it go.
    pub(super) fn end(&mut self, desk: &mut Desk<'_>, api: &mut Api, id: &Arc<PodId>) {
        let Some(pod) = id.find(api).filter(|pod| is_deleted(pod)) else { return };
        match desk.pace.gone.as_ref().filter(|_| text(pod, "/status/phase") == "Running") {
            None => api.remove(desk.now, "Pod", &id.namespace, &id.name),
            Some(gone) => {
                let well = desk.pace.chance.about("ends well", id.ordinal).bool();
                self.bring(desk.now, api, id, if well { Stage::Succeeded } else { Stage::Failed });
                desk.after(desk.pace.draw(gone, "gone", id.ordinal), Chore::End(id.clone()));
            }
        }
    }

    /// Looks at all pods anew: nothing keeps them from being ready, or from ending, any more.
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

    /// Whether nobody answers on the ports of this pod, though it is ready; notes it if so.
    pub(super) fn is_deaf(&self, now: Timestamp, fates: &mut Fates, uid: &str) -> bool {
        let Some(lodger) = self.pods.values().find(|lodger| lodger.id.uid == uid) else { return false };
        let Some(fate @ Fate::Deaf { after_ms, for_ms }) = lodger.fate else { return false };
        let from = later(lodger.bound_at, Duration::from_millis(after_ms));
        let deaf = !fates.are_healed() && from <= now && now < later(from, Duration::from_millis(for_ms));
        if deaf {
            fates.strike_pod(lodger.id.ordinal, fate);
        }
        deaf
    }
}

impl Lodger {
    /// A pod that has just been bound.
    fn move_in(desk: &mut Desk<'_>, id: &Arc<PodId>, pod: &Arc<Value>, host_ip: String) -> Self {
        let fate = desk.fates.of_pod(id.ordinal).filter(|_| !desk.fates.are_healed());
        if let Some(after) = fate.and_then(Fate::strikes_after) {
            desk.after(after, Chore::Strike(id.clone()));
        }
        Self {
            id: id.clone(),
            // Of its state before, nothing counts: a pod may be bound and deleted in one breath.
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

    /// Plans the end of the pod, which was deleted.
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

    /// Plans what becomes of the pod next.
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

    /// The stage that the pod comes to next, and when.
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
                |trouble| (ready != "False").then(|| (trouble, self.started(self.start).max(now))),
            ),
        }
    }

    /// The stage that the pod doesn't get beyond, as long as nothing is healed.
    fn troubled_stage(&self, fates: &Fates) -> Option<Stage> {
        match self.fate {
            _ if fates.are_healed() => None,
            Some(Fate::NeverReady) => Some(Stage::NeverReady),
            Some(Fate::NeverStarts) => Some(Stage::NeverStarts),
            _ => None,
        }
    }

    /// When the pod is ready, if nobody steers it elsewhere.
    fn ready_at(&self, pod: &Value, fates: &Fates) -> Timestamp {
        if let Some(up) = self.down_until {
            return up;
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

/// Evicts a pod as the API server does when its node is drained.
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

/// When the annotation lets the pod be ready: so many seconds after it was scheduled.
fn steered_ready_at(pod: &Value) -> Option<Timestamp> {
    let asked = pod["metadata"]["annotations"][READY_AFTER_ANNOTATION].as_str()?;
    let seconds: u64 = asked.trim_end_matches('s').parse().ok()?;
    let scheduled = items(pod, "/status/conditions").find(|condition| condition["type"] == "PodScheduled");
    let since = scheduled.map(|condition| text(condition, "/lastTransitionTime"));
    let since = since.unwrap_or_else(|| text(pod, "/metadata/creationTimestamp"));
    Some(later(since.parse().ok()?, Duration::from_secs(seconds)))
}

fn restarts(pod: &Value) -> u64 {
    items(pod, "/status/containerStatuses").filter_map(|status| status["restartCount"].as_u64()).max().unwrap_or(0)
}
