//! Kubelets: pod lifecycle from binding to removal.
//!
//! Pods follow testenv/internal/supervisor/stages.yaml, including its steering annotations, unless
//! an injected fault triggers first.

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
    fault: Option<Fate>,
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
    pub(super) fn see(&mut self, context: &mut Desk<'_>, id: &Arc<PodId>, pod: &Arc<Value>, host_ip: String) {
        let bound_pod = self.pods.entry(id.ordinal).or_insert_with(|| Lodger::move_in(context, id, pod, host_ip));
        let starts_terminating = is_deleted(pod) && !bound_pod.is_leaving();
        bound_pod.pod = pod.clone();
        if starts_terminating {
            bound_pod.leave(context);
        } else {
            bound_pod.tend(context);
        }
    }

    /// Removes a deleted pod.
    pub(super) fn forget(&mut self, id: &PodId) {
        self.pods.remove(&id.ordinal);
    }

    /// Executes a plan: writes the planned state of the pod.
    pub(super) fn tend(&mut self, now: Timestamp, api: &mut Api, id: &PodId, plan: u64) {
        let Some(bound_pod) = self.pods.get(&id.ordinal).filter(|bound_pod| bound_pod.plan == plan) else { return };
        let Some(stage) = bound_pod.next else { return };
        if id.find(api).is_some_and(|pod| !is_deleted(pod) && !has_ended(pod)) {
            self.bring(now, api, id, stage);
        }
    }

    fn bring(&mut self, now: Timestamp, api: &mut Api, id: &PodId, stage: Stage) {
        let Some(bound_pod) = self.pods.get(&id.ordinal) else { return };
        let pod_ip = format!("198.19.{}.{}", self.addresses / 250, 1 + self.addresses % 250);
        self.addresses += usize::from(text(&bound_pod.pod, "/status/podIP").is_empty());
        let lodging = Lodging { pod_ip, host_ip: bound_pod.host_ip.clone(), restarts: bound_pod.restarts };
        let written = |pod: &mut Value| status::write(pod, now, stage, &lodging);
        api.update_status(now, "Pod", &id.namespace, &id.name, written).expect("the pod exists");
    }

    /// Triggers the fault of a pod.
    pub(super) fn strike(&mut self, now: Timestamp, faults: &mut Fates, api: &mut Api, id: &PodId) {
        let Some(bound_pod) = self.pods.get_mut(&id.ordinal) else { return };
        let Some(pod) = id.find(api).cloned().filter(|pod| !is_deleted(pod) && !has_ended(pod)) else { return };
        let Some(fault) = bound_pod.fault.filter(|_| !faults.are_healed() && !is_steered(&pod)) else { return };
        match fault {
            Fate::Fails { .. } => self.bring(now, api, id, Stage::Failed),
            Fate::Restarts { .. } if text(&pod, "/spec/restartPolicy") == "Never" => {
                self.bring(now, api, id, Stage::Failed);
            }
            Fate::Restarts { for_ms, .. } => {
                bound_pod.restarts += 1;
                bound_pod.down_until = Some(later(now, Duration::from_millis(for_ms)));
                self.bring(now, api, id, Stage::Down);
            }
            Fate::Evicted { .. } => evict(now, api, id),
            Fate::Drained { .. } => self.drain(now, api, id),
            _ => return,
        }
        faults.strike_pod(id.ordinal, fault);
    }

    /// Evicts all pods on the node of a pod.
    fn drain(&self, now: Timestamp, api: &mut Api, id: &PodId) {
        let Some(node) = self.pods.get(&id.ordinal).map(|bound_pod| &bound_pod.host_ip) else { return };
        for neighbor in self.pods.values().filter(|bound_pod| bound_pod.host_ip == *node) {
            if neighbor.id.find(api).is_some_and(|pod| !is_deleted(pod) && !has_ended(pod)) {
                evict(now, api, &neighbor.id);
            }
        }
    }

    /// Ends a terminating pod. With `Latencies::removal` set, the kubelet first reports that the
    /// containers have ended and removes the pod some time later.
    pub(super) fn end(&mut self, context: &mut Desk<'_>, api: &mut Api, id: &Arc<PodId>) {
        let Some(pod) = id.find(api).filter(|pod| is_deleted(pod)) else { return };
        match context.latencies.gone.as_ref().filter(|_| text(pod, "/status/phase") == "Running") {
            None => api.remove(context.now, "Pod", &id.namespace, &id.name),
            Some(gone) => {
                let succeeds = context.latencies.chance.about("ends well", id.ordinal).bool();
                self.bring(context.now, api, id, if succeeds { Stage::Succeeded } else { Stage::Failed });
                context.after(context.latencies.draw(gone, "gone", id.ordinal), Chore::End(id.clone()));
            }
        }
    }

    /// Plans all pods again, now that no fault keeps them from becoming ready or from terminating.
    pub(super) fn heal(&mut self, context: &mut Desk<'_>) {
        for bound_pod in self.pods.values_mut() {
            bound_pod.down_until = None;
            if bound_pod.is_leaving() {
                bound_pod.leave(context);
            } else {
                bound_pod.tend(context);
            }
        }
    }

    /// Returns true if the pod is ready but refuses connections; records the fault if so.
    pub(super) fn is_deaf(&self, now: Timestamp, faults: &mut Fates, uid: &str) -> bool {
        let Some(bound_pod) = self.pods.values().find(|bound_pod| bound_pod.id.uid == uid) else { return false };
        let Some(fault @ Fate::Deaf { after_ms, for_ms }) = bound_pod.fault else { return false };
        let from = later(bound_pod.bound_at, Duration::from_millis(after_ms));
        let unreachable = !faults.are_healed() && from <= now && now < later(from, Duration::from_millis(for_ms));
        if unreachable {
            faults.strike_pod(bound_pod.id.ordinal, fault);
        }
        unreachable
    }
}

impl Lodger {
    /// Starts tracking a newly bound pod.
    fn move_in(context: &mut Desk<'_>, id: &Arc<PodId>, pod: &Arc<Value>, host_ip: String) -> Self {
        let fault = context.faults.of_pod(id.ordinal).filter(|_| !context.faults.are_healed());
        if let Some(after) = fault.and_then(Fate::strikes_after) {
            context.after(after, Chore::Strike(id.clone()));
        }
        Self {
            id: id.clone(),
            // No earlier state: a pod may be deleted before its binding is observed.
            pod: Arc::new(Value::Null),
            bound_at: context.now,
            start: context.latencies.draw(&context.latencies.start, "start", id.ordinal),
            fault,
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
    fn leave(&mut self, context: &mut Desk<'_>) {
        (self.next, self.plan) = (None, self.plan + 1);
        let delay = match self.fault {
            Some(fault @ Fate::Lingers { for_ms }) if !context.faults.are_healed() => {
                context.faults.strike_pod(self.id.ordinal, fault);
                Duration::from_millis(for_ms)
            }
            _ => context.latencies.draw(&context.latencies.end, "end", self.id.ordinal),
        };
        context.after(delay, Chore::End(self.id.clone()));
    }

    /// Plans the next state of the pod.
    fn tend(&mut self, context: &mut Desk<'_>) {
        self.plan += 1;
        let next = self.next_stage(&self.pod, context.now, context.faults);
        self.next = next.map(|(stage, _)| stage);
        if let Some((_, due)) = next {
            if let Some(fault @ (Fate::Slow { .. } | Fate::NeverReady | Fate::NeverStarts)) =
                self.fault.filter(|_| !context.faults.are_healed())
            {
                context.faults.strike_pod(self.id.ordinal, fault);
            }
            context.timers.plan(due, Chore::Tend(self.id.clone(), self.plan));
        }
    }

    /// Returns the next state of the pod and its time; `None` if it stays as it is.
    fn next_stage(&self, pod: &Value, now: Timestamp, faults: &Fates) -> Option<(Stage, Timestamp)> {
        if is_deleted(pod) || !matches!(text(pod, "/status/phase"), "" | "Pending" | "Running") {
            return None;
        }
        let ready = condition(pod, "Ready");
        // Steering annotations take precedence over faults.
        match steering(pod) {
            "never-ready" => (ready != "False").then(|| (Stage::NeverReady, later(now, STEERED))),
            "failed" => Some((Stage::Failed, later(now, STEERED))),
            "succeeded" => Some((Stage::Succeeded, later(now, STEERED))),
            _ if ready == "True" => None,
            _ => self.troubled_stage(faults).map_or_else(
                || Some((Stage::Ready, self.ready_at(pod, faults).max(now))),
                |faulty| (ready != "False").then(|| (faulty, self.started(self.start).max(now))),
            ),
        }
    }

    /// Returns the state in which a fault keeps the pod; `None` without such a fault.
    fn troubled_stage(&self, faults: &Fates) -> Option<Stage> {
        match self.fault {
            _ if faults.are_healed() => None,
            Some(Fate::NeverReady) => Some(Stage::NeverReady),
            Some(Fate::NeverStarts) => Some(Stage::NeverStarts),
            _ => None,
        }
    }

    /// Returns the time at which the pod becomes ready.
    fn ready_at(&self, pod: &Value, faults: &Fates) -> Timestamp {
        if let Some(end) = self.down_until {
            return end;
        }
        match self.fault {
            Some(Fate::Slow { after_ms }) if !faults.are_healed() => self.started(Duration::from_millis(after_ms)),
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
    api.update_status(now, "Pod", &id.namespace, &id.name, disrupted).expect("the pod exists");
    let options = DeleteOptions { uid: Some(id.uid.clone()), ..DeleteOptions::default() };
    api.delete(now, "Pod", &id.namespace, &id.name, &options).expect("the pod exists");
}

fn steering(pod: &Value) -> &str {
    pod["metadata"]["annotations"][PHASE_ANNOTATION].as_str().unwrap_or_default()
}

fn is_steered(pod: &Value) -> bool {
    matches!(steering(pod), "never-ready" | "failed" | "succeeded")
}

/// Returns the ready time by annotation: seconds after the pod was scheduled. `None` without a
/// valid annotation.
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
