//! Kubelets: pod lifecycle from binding to removal.
//!
//! Pods follow testenv/internal/supervisor/stages.yaml, including its steering annotations, unless
//! an injected fault triggers first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::latencies::saturating_add;
use super::object_view::{PodId, condition_status, has_ended, is_terminating, items, set_condition, text};
use super::pod_status::{self, PodRuntime, PodState};
use super::{ControllerContext, PodFault, PodFaultInjector, Task};
use crate::api::{ApiServer, DeleteOptions};

/// Annotation that steers a pod to a state: never-ready, failed or succeeded.
const PHASE_ANNOTATION: &str = "testenv.sluice.dev/phase";
/// Annotation with the time from scheduling until ready, in seconds, like `5s`.
const READY_AFTER_ANNOTATION: &str = "testenv.sluice.dev/ready-after";
/// Annotation with the time from ready until the containers end, in milliseconds, like `2500ms`.
const RUNS_FOR_ANNOTATION: &str = "simulation.sluice.dev/runs-for";
/// Annotation with the probability that the containers fail when they end, in percent.
const FAILS_ANNOTATION: &str = "simulation.sluice.dev/fails-percent";
/// Time until a steered pod changes its state.
const STEERED_DELAY: Duration = Duration::from_millis(200);

/// Kubelets of all nodes.
#[derive(Debug, Default)]
pub(super) struct Kubelet {
    /// Bound pods by ordinal.
    pods: BTreeMap<u64, BoundPod>,
    /// Number of pod IPs assigned so far.
    assigned_ips: usize,
}

/// Bound pod.
#[derive(Debug)]
struct BoundPod {
    id: Arc<PodId>,
    /// Last observed state.
    pod: Arc<Value>,
    bound_at: Timestamp,
    /// Time from binding until ready, without faults.
    startup_delay: Duration,
    /// Number below 100 that decides whether the containers fail when they end.
    end_draw: u64,
    fault: Option<PodFault>,
    restarts: u64,
    /// End of the downtime of its containers.
    down_until: Option<Timestamp>,
    /// Next planned state, with the number of the plan; a timer of an earlier plan is ignored.
    next_state: Option<PodState>,
    plan_number: u64,
    host_ip: String,
}

impl Kubelet {
    /// Observes the current state of a pod; `host_ip` is the IP of its node.
    pub(super) fn observe(
        &mut self,
        context: &mut ControllerContext<'_>,
        id: &Arc<PodId>,
        pod: &Arc<Value>,
        host_ip: String,
    ) {
        // A terminating pod is new after a restore from a backup.
        let was_terminating = self.pods.get(&id.ordinal).is_some_and(BoundPod::is_terminating);
        let bound_pod = self.pods.entry(id.ordinal).or_insert_with(|| BoundPod::on_bound(context, id, pod, host_ip));
        let starts_terminating = is_terminating(pod) && !was_terminating;
        bound_pod.pod = pod.clone();
        if starts_terminating {
            bound_pod.begin_termination(context);
        } else {
            bound_pod.plan_next(context);
        }
    }

    /// Removes a deleted pod.
    pub(super) fn remove(&mut self, id: &PodId) {
        self.pods.remove(&id.ordinal);
    }

    /// Executes a plan: writes the planned state of the pod.
    pub(super) fn execute_plan(&mut self, now: Timestamp, api: &mut ApiServer, id: &PodId, plan: u64) {
        let Some(bound_pod) = self.pods.get(&id.ordinal).filter(|bound_pod| bound_pod.plan_number == plan) else {
            return;
        };
        let Some(pod_state) = bound_pod.next_state else { return };
        if id.find(api).is_some_and(|pod| !is_terminating(pod) && !has_ended(pod)) {
            self.write_state(now, api, id, pod_state);
        }
    }

    fn write_state(&mut self, now: Timestamp, api: &mut ApiServer, id: &PodId, pod_state: PodState) {
        let Some(bound_pod) = self.pods.get(&id.ordinal) else { return };
        let pod_ip = format!("198.19.{}.{}", self.assigned_ips / 250, 1 + self.assigned_ips % 250);
        self.assigned_ips += usize::from(text(&bound_pod.pod, "/status/podIP").is_empty());
        let runtime = PodRuntime { pod_ip, host_ip: bound_pod.host_ip.clone(), restarts: bound_pod.restarts };
        let written = |pod: &mut Value| pod_status::write_status(pod, now, pod_state, &runtime);
        api.update_status(now, "Pod", &id.namespace, &id.name, written).expect("the pod exists");
    }

    /// Triggers the fault of a pod.
    pub(super) fn trigger_fault(
        &mut self,
        now: Timestamp,
        faults: &mut PodFaultInjector,
        api: &mut ApiServer,
        id: &PodId,
    ) {
        let Some(bound_pod) = self.pods.get_mut(&id.ordinal) else { return };
        let Some(pod) = id.find(api).cloned().filter(|pod| !is_terminating(pod) && !has_ended(pod)) else { return };
        let Some(fault) = bound_pod.fault.filter(|_| !faults.is_disabled() && !is_steered(&pod)) else { return };
        match fault {
            PodFault::Fails { .. } => self.write_state(now, api, id, PodState::Failed),
            PodFault::Restarts { .. } if text(&pod, "/spec/restartPolicy") == "Never" => {
                self.write_state(now, api, id, PodState::Failed);
            }
            PodFault::Restarts { for_ms, .. } => {
                bound_pod.restarts += 1;
                bound_pod.down_until = Some(saturating_add(now, Duration::from_millis(for_ms)));
                self.write_state(now, api, id, PodState::Down);
            }
            PodFault::Evicted { .. } => evict(now, api, id),
            PodFault::NodeDrained { .. } => self.drain(now, api, id),
            _ => return,
        }
        faults.record_pod_fault(id.ordinal, fault);
    }

    /// Evicts all pods on the node of a pod.
    fn drain(&self, now: Timestamp, api: &mut ApiServer, id: &PodId) {
        let Some(node) = self.pods.get(&id.ordinal).map(|bound_pod| &bound_pod.host_ip) else { return };
        for neighbor in self.pods.values().filter(|bound_pod| bound_pod.host_ip == *node) {
            if neighbor.id.find(api).is_some_and(|pod| !is_terminating(pod) && !has_ended(pod)) {
                evict(now, api, &neighbor.id);
            }
        }
    }

    /// Ends a terminating pod. With `Latencies::removal` set, the kubelet first reports that the
    /// containers have ended and removes the pod some time later.
    pub(super) fn finish_termination(
        &mut self,
        context: &mut ControllerContext<'_>,
        api: &mut ApiServer,
        id: &Arc<PodId>,
    ) {
        let Some(pod) = id.find(api).filter(|pod| is_terminating(pod)) else { return };
        // What holds a pod by a finalizer waits for its end.
        let is_awaited = has_finalizers(pod) && !has_ended(pod);
        let is_running = text(pod, "/status/phase") == "Running";
        match context.latencies.removal.as_ref().filter(|_| is_running || is_awaited) {
            None => {
                if is_awaited {
                    self.write_state(context.now, api, id, PodState::Failed);
                }
                api.delete_immediately(context.now, "Pod", &id.namespace, &id.name);
            }
            Some(gone) => {
                let succeeds = context.latencies.rng.rng_for("ends well", id.ordinal).bool();
                self.write_state(context.now, api, id, if succeeds { PodState::Succeeded } else { PodState::Failed });
                context.schedule_after(
                    context.latencies.sample(gone, "gone", id.ordinal),
                    Task::FinishTermination(id.clone()),
                );
            }
        }
    }

    /// Plans all pods again, now that no fault keeps them from becoming ready or from terminating.
    pub(super) fn disable_faults(&mut self, context: &mut ControllerContext<'_>) {
        for bound_pod in self.pods.values_mut() {
            bound_pod.down_until = None;
            if bound_pod.is_terminating() {
                bound_pod.begin_termination(context);
            } else {
                bound_pod.plan_next(context);
            }
        }
    }

    /// Returns true if the pod is ready but refuses connections; records the fault if so.
    pub(super) fn is_unreachable(&self, now: Timestamp, faults: &mut PodFaultInjector, uid: &str) -> bool {
        let Some(bound_pod) = self.pods.values().find(|bound_pod| bound_pod.id.uid == uid) else { return false };
        let Some(fault @ PodFault::ProxyUnreachable { after_ms, for_ms }) = bound_pod.fault else { return false };
        let from = saturating_add(bound_pod.bound_at, Duration::from_millis(after_ms));
        let unreachable =
            !faults.is_disabled() && from <= now && now < saturating_add(from, Duration::from_millis(for_ms));
        if unreachable {
            faults.record_pod_fault(bound_pod.id.ordinal, fault);
        }
        unreachable
    }
}

impl BoundPod {
    /// Starts tracking a newly bound pod.
    fn on_bound(context: &mut ControllerContext<'_>, id: &Arc<PodId>, pod: &Arc<Value>, host_ip: String) -> Self {
        let fault = context.faults.pod_fault(id.ordinal).filter(|_| !context.faults.is_disabled());
        if let Some(after) = fault.and_then(PodFault::triggers_after) {
            context.schedule_after(after, Task::TriggerFault(id.clone()));
        }
        Self {
            id: id.clone(),
            // No earlier state: a pod may be deleted before its binding is observed.
            pod: Arc::new(Value::Null),
            bound_at: context.now,
            startup_delay: context.latencies.sample(&context.latencies.startup, "start", id.ordinal),
            end_draw: context.latencies.rng.rng_for("run ends", id.ordinal).u64(0..100),
            fault,
            restarts: restart_count(pod),
            down_until: None,
            next_state: None,
            plan_number: 0,
            host_ip,
        }
    }

    fn is_terminating(&self) -> bool {
        is_terminating(&self.pod)
    }

    /// Plans the end of the terminating pod.
    fn begin_termination(&mut self, context: &mut ControllerContext<'_>) {
        (self.next_state, self.plan_number) = (None, self.plan_number + 1);
        let delay = match self.fault {
            Some(fault @ PodFault::SlowTermination { for_ms }) if !context.faults.is_disabled() => {
                context.faults.record_pod_fault(self.id.ordinal, fault);
                Duration::from_millis(for_ms)
            }
            _ => context.latencies.sample(&context.latencies.termination, "end", self.id.ordinal),
        };
        context.schedule_after(delay, Task::FinishTermination(self.id.clone()));
    }

    /// Plans the next state of the pod.
    fn plan_next(&mut self, context: &mut ControllerContext<'_>) {
        self.plan_number += 1;
        let next = self.next_planned_state(&self.pod, context.now, context.faults);
        self.next_state = next.map(|(pod_state, _)| pod_state);
        if let Some((_, due)) = next {
            if let Some(fault @ (PodFault::SlowStart { .. } | PodFault::NeverReady | PodFault::NeverStarts)) =
                self.fault.filter(|_| !context.faults.is_disabled())
            {
                context.faults.record_pod_fault(self.id.ordinal, fault);
            }
            context.timers.schedule(due, Task::ExecutePodPlan(self.id.clone(), self.plan_number));
        }
    }

    /// Returns the next state of the pod and its time; `None` if it stays as it is.
    fn next_planned_state(
        &self,
        pod: &Value,
        now: Timestamp,
        faults: &PodFaultInjector,
    ) -> Option<(PodState, Timestamp)> {
        if is_terminating(pod) || !matches!(text(pod, "/status/phase"), "" | "Pending" | "Running") {
            return None;
        }
        let ready = condition_status(pod, "Ready");
        // Steering annotations take precedence over faults.
        match steered_phase(pod) {
            "never-ready" => (ready != "False").then(|| (PodState::NeverReady, saturating_add(now, STEERED_DELAY))),
            "failed" => Some((PodState::Failed, saturating_add(now, STEERED_DELAY))),
            "succeeded" => Some((PodState::Succeeded, saturating_add(now, STEERED_DELAY))),
            _ if ready == "True" => self.end_of_run(pod, now),
            _ => self.faulty_state(faults).map_or_else(
                || Some((PodState::Ready, self.ready_at(pod, faults).max(now))),
                |faulty| (ready != "False").then(|| (faulty, self.after_binding(self.startup_delay).max(now))),
            ),
        }
    }

    /// Returns how and when the containers of a ready pod end by themselves; `None` if they run on.
    fn end_of_run(&self, pod: &Value, now: Timestamp) -> Option<(PodState, Timestamp)> {
        let annotation = |name: &str| pod["metadata"]["annotations"][name].as_str();
        let runs_for: u64 = annotation(RUNS_FOR_ANNOTATION)?.trim_end_matches("ms").parse().ok()?;
        let fails_percent: u64 = annotation(FAILS_ANNOTATION).and_then(|percent| percent.parse().ok()).unwrap_or(0);
        let ready = items(pod, "/status/conditions").find(|condition| condition["type"] == "Ready")?;
        let since = text(ready, "/lastTransitionTime").parse().ok()?;
        let end = if self.end_draw < fails_percent { PodState::Failed } else { PodState::Succeeded };
        Some((end, saturating_add(since, Duration::from_millis(runs_for)).max(now)))
    }

    /// Returns the state in which a fault keeps the pod; `None` without such a fault.
    fn faulty_state(&self, faults: &PodFaultInjector) -> Option<PodState> {
        match self.fault {
            _ if faults.is_disabled() => None,
            Some(PodFault::NeverReady) => Some(PodState::NeverReady),
            Some(PodFault::NeverStarts) => Some(PodState::NeverStarts),
            _ => None,
        }
    }

    /// Returns the time at which the pod becomes ready.
    fn ready_at(&self, pod: &Value, faults: &PodFaultInjector) -> Timestamp {
        if let Some(end) = self.down_until {
            return end;
        }
        match self.fault {
            Some(PodFault::SlowStart { after_ms }) if !faults.is_disabled() => {
                self.after_binding(Duration::from_millis(after_ms))
            }
            _ => steered_ready_at(pod).unwrap_or_else(|| self.after_binding(self.startup_delay)),
        }
    }

    fn after_binding(&self, after: Duration) -> Timestamp {
        saturating_add(self.bound_at, after)
    }
}

/// Evicts a pod like the Eviction API of a node drain.
fn evict(now: Timestamp, api: &mut ApiServer, id: &PodId) {
    let message = "Eviction API: evicting";
    let disrupted = |pod: &mut Value| {
        set_condition(pod, now, "DisruptionTarget", "True", "EvictionByEvictionAPI", message);
    };
    api.update_status(now, "Pod", &id.namespace, &id.name, disrupted).expect("the pod exists");
    let options = DeleteOptions { uid: Some(id.uid.clone()), ..DeleteOptions::default() };
    api.delete(now, "Pod", &id.namespace, &id.name, &options).expect("the pod exists");
}

fn has_finalizers(pod: &Value) -> bool {
    items(pod, "/metadata/finalizers").next().is_some()
}

fn steered_phase(pod: &Value) -> &str {
    pod["metadata"]["annotations"][PHASE_ANNOTATION].as_str().unwrap_or_default()
}

fn is_steered(pod: &Value) -> bool {
    matches!(steered_phase(pod), "never-ready" | "failed" | "succeeded")
}

/// Returns the ready time by annotation: seconds after the pod was scheduled. `None` without a
/// valid annotation.
fn steered_ready_at(pod: &Value) -> Option<Timestamp> {
    let value = pod["metadata"]["annotations"][READY_AFTER_ANNOTATION].as_str()?;
    let seconds: u64 = value.trim_end_matches('s').parse().ok()?;
    let scheduled = items(pod, "/status/conditions").find(|condition| condition["type"] == "PodScheduled");
    let since = scheduled.map(|condition| text(condition, "/lastTransitionTime"));
    let since = since.unwrap_or_else(|| text(pod, "/metadata/creationTimestamp"));
    Some(saturating_add(since.parse().ok()?, Duration::from_secs(seconds)))
}

fn restart_count(pod: &Value) -> u64 {
    items(pod, "/status/containerStatuses").filter_map(|status| status["restartCount"].as_u64()).max().unwrap_or(0)
}
