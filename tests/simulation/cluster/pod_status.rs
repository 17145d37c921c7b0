//! Pod statuses as kubelets write them, in the form of testenv/internal/supervisor/stages.yaml.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::object_view::{items, rfc3339_seconds, set_condition, text};

/// State of a pod that decides its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodState {
    /// Running and ready.
    Ready,
    /// Running and not ready.
    NeverReady,
    /// Containers cannot start: the image cannot be pulled.
    NeverStarts,
    /// Containers have failed and restart later.
    Down,
    /// Containers have failed and do not restart.
    Failed,
    /// Containers have completed.
    Succeeded,
}

impl PodState {
    /// Returns the pod phase.
    pub(super) fn phase(self) -> &'static str {
        match self {
            Self::Ready | Self::NeverReady | Self::Down => "Running",
            Self::NeverStarts => "Pending",
            Self::Failed => "Failed",
            Self::Succeeded => "Succeeded",
        }
    }

    /// Returns true if the containers have ended and do not restart.
    fn has_ended(self) -> bool {
        matches!(self, Self::Failed | Self::Succeeded)
    }

    /// Returns reason and message of the conditions that are False.
    fn false_condition_reason(self) -> (&'static str, &'static str) {
        match self {
            Self::Ready => ("", ""),
            Self::NeverReady => ("ContainersNotReady", "steered to be never ready"),
            Self::NeverStarts | Self::Down => ("ContainersNotReady", "containers with unready status"),
            Self::Failed => ("PodFailed", ""),
            Self::Succeeded => ("PodCompleted", ""),
        }
    }
}

/// State of a pod that the kubelet adds to the object.
#[derive(Debug, Clone)]
pub(super) struct PodRuntime {
    /// IP for the pod, used if it has none yet.
    pub(super) pod_ip: String,
    /// IP of the node.
    pub(super) host_ip: String,
    /// Restart count of its containers.
    pub(super) restarts: u64,
}

/// Writes the status of a pod that enters this state.
pub(super) fn write_status(pod: &mut Value, now: Timestamp, pod_state: PodState, runtime: &PodRuntime) {
    if !pod["status"].is_object() {
        pod["status"] = json!({});
    }
    pod["status"]["phase"] = json!(pod_state.phase());
    if text(pod, "/status/startTime").is_empty() {
        pod["status"]["startTime"] = json!(rfc3339_seconds(now));
    }
    write_conditions(pod, now, pod_state);
    let containers: Vec<Value> =
        items(pod, "/spec/containers").map(|spec| container_status(spec, now, pod_state, runtime.restarts)).collect();
    pod["status"]["containerStatuses"] = Value::Array(containers);
    if pod_state.has_ended() {
        return;
    }
    let init: Vec<Value> = items(pod, "/spec/initContainers").map(|spec| init_container_status(spec, now)).collect();
    if !init.is_empty() && pod_state == PodState::Ready {
        pod["status"]["initContainerStatuses"] = Value::Array(init);
    }
    if text(pod, "/status/podIP").is_empty() {
        pod["status"]["hostIP"] = json!(runtime.host_ip);
        pod["status"]["hostIPs"] = json!([{"ip": runtime.host_ip}]);
        pod["status"]["podIP"] = json!(runtime.pod_ip);
        pod["status"]["podIPs"] = json!([{"ip": runtime.pod_ip}]);
    }
}

fn write_conditions(pod: &mut Value, now: Timestamp, pod_state: PodState) {
    if !pod_state.has_ended() {
        set_condition(pod, now, "PodReadyToStartContainers", "True", "", "");
    }
    set_condition(
        pod,
        now,
        "Initialized",
        "True",
        if pod_state == PodState::Succeeded { "PodCompleted" } else { "" },
        "",
    );
    let (reason, message) = pod_state.false_condition_reason();
    let status = if pod_state == PodState::Ready { "True" } else { "False" };
    set_condition(pod, now, "ContainersReady", status, reason, message);
    set_condition(pod, now, "Ready", status, reason, message);
    if pod_state == PodState::Ready {
        let gate = |gate: &Value| text(gate, "/conditionType").to_owned();
        let gates: Vec<String> = items(pod, "/spec/readinessGates").map(gate).collect();
        for gate in gates {
            set_condition(pod, now, &gate, "True", "", "");
        }
    }
}

fn container_status(spec: &Value, now: Timestamp, pod_state: PodState, restarts: u64) -> Value {
    let now = rfc3339_seconds(now);
    let ended =
        |code: u8, reason: &str| json!({"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now});
    let state = match pod_state {
        PodState::Ready | PodState::NeverReady => json!({"running": {"startedAt": now}}),
        PodState::NeverStarts => {
            json!({"waiting": {"reason": "ImagePullBackOff", "message": "the image can't be pulled"}})
        }
        PodState::Down => json!({"waiting": {"reason": "CrashLoopBackOff", "message": "restarting failed container"}}),
        PodState::Failed => json!({"terminated": ended(1, "Error")}),
        PodState::Succeeded => json!({"terminated": ended(0, "Completed")}),
    };
    let mut status = json!({
        "name": spec["name"], "image": spec["image"], "imageID": "", "ready": pod_state == PodState::Ready,
        "started": matches!(pod_state, PodState::Ready | PodState::NeverReady), "restartCount": restarts, "state": state,
    });
    if restarts > 0 {
        status["lastState"] = json!({"terminated": ended(1, "Error")});
    }
    status
}

fn init_container_status(spec: &Value, now: Timestamp) -> Value {
    let now = rfc3339_seconds(now);
    let sidecar = text(spec, "/restartPolicy") == "Always";
    let state = if sidecar {
        json!({"running": {"startedAt": now}})
    } else {
        json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}})
    };
    json!({
        "name": spec["name"], "image": spec["image"], "imageID": "", "ready": true, "restartCount": 0,
        "started": sidecar, "state": state,
    })
}
