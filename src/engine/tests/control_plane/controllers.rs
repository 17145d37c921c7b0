//! Simulated Kubernetes controllers: kubelet, garbage collector, Job and EndpointSlice controllers.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{ControlPlane, Name, is_deleted_in_foreground, is_gated, owner_uid};
use sluice_api::condition;
use sluice_api::ray::names;

impl ControlPlane {
    /// Runs every controller once.
    pub(super) fn run_controllers(&mut self) {
        let all: Vec<Name> = self.objects.keys().cloned().collect();
        for name in &all {
            self.finish_deletion(name);
            if self.collects_garbage {
                self.collect_garbage(name);
            }
        }
        for name in all.iter().filter(|(kind, _)| kind == "Pod") {
            let runs = |pod: &&Value| !is_gated(pod) && pod["status"]["phase"] != "Succeeded";
            let Some(pod) = self.objects.get(name).filter(runs) else { continue };
            let contains_any = |parts: &BTreeSet<String>| parts.iter().any(|part| name.1.contains(part.as_str()));
            if contains_any(&self.unscheduled_pods) {
                continue;
            }
            let ready = !contains_any(&self.unready_pods);
            let ready = if ready { "True" } else { "False" };
            if pod.pointer("/status/conditions/0/status") != Some(&json!(ready)) {
                let status = json!({"spec": {"nodeName": "node-a"}, "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": ready}]}});
                self.patch(name, &status);
            }
        }
        self.accept_gateways_and_routes();
        let running = self.of_kind("Pod").filter(|pod| !is_gated(pod) && pod["status"]["phase"] != "Succeeded");
        self.most_running = self.most_running.max(running.count());
        for (_, job) in all.iter().filter(|(kind, _)| kind == "Job") {
            self.run_job(job);
        }
        for (_, service) in all.iter().filter(|(kind, name)| kind == "Service" && name.ends_with("-serve-svc")) {
            self.publish_endpoints(service);
        }
    }

    /// Garbage-collects an object whose owner is deleted or is deleted in the foreground; releases
    /// the foreground finalizer of an object without dependents.
    fn collect_garbage(&mut self, name: &Name) {
        let Some(object) = self.objects.get(name) else { return };
        if let Some(owner) = owner_uid(object) {
            let owner = self.objects.values().find(|other| other["metadata"]["uid"] == *owner);
            if owner.is_none_or(is_deleted_in_foreground) {
                return self.begin_deletion(name, false);
            }
        }
        let uid = &object["metadata"]["uid"];
        if is_deleted_in_foreground(object) && !self.objects.values().any(|other| owner_uid(other) == Some(uid)) {
            let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
            let others: Vec<Value> = finalizers.filter(|name| **name != "foregroundDeletion").cloned().collect();
            self.patch(name, &json!({"metadata": {"finalizers": others}}));
        }
    }

    /// Acts as the Job controller: creates and deletes pods, and updates the status.
    fn run_job(&mut self, job: &str) {
        let name = ("Job".to_owned(), job.to_owned());
        let is_terminating = |object: &&Value| !object["metadata"]["deletionTimestamp"].is_null();
        let Some(object) = self.objects.get(&name).filter(|object| !is_terminating(object)) else { return };
        let (uid, spec) = (object["metadata"]["uid"].clone(), object["spec"].clone());
        let of_job = |(of, pod): &(&Name, &Value)| of.0 == "Pod" && owner_uid(pod) == Some(&uid);
        let pods: Vec<(Name, String)> = self
            .objects
            .iter()
            .filter(of_job)
            .map(|(name, pod)| (name.clone(), pod["status"]["phase"].as_str().unwrap_or("Pending").to_owned()))
            .collect();
        let succeeded = pods.iter().filter(|(_, phase)| phase == "Succeeded").count();
        let active: Vec<&Name> = pods.iter().filter(|(_, phase)| phase != "Succeeded").map(|(name, _)| name).collect();
        let wanted = |field: &str| spec[field].as_u64().map(|count| usize::try_from(count).expect("few"));
        let parallelism = wanted("parallelism").unwrap_or(1);
        // Without completions, no pod is created after the first success.
        let (left, is_complete) = match wanted("completions") {
            Some(completions) => (completions.saturating_sub(succeeded), succeeded >= completions),
            None if succeeded > 0 => (active.len(), active.is_empty()),
            None => (parallelism, false),
        };
        let is_suspended = spec["suspend"] == true;
        let running = if is_suspended { 0 } else { parallelism.min(left) };
        for name in active.iter().skip(running) {
            self.begin_deletion(name, false);
        }
        let created = if self.forbidden_creation == Some("Pod") { active.len() } else { running };
        for number in active.len()..created {
            let mut pod = spec["template"].clone();
            let name = format!("{job}-{}-{number}", self.versions);
            pod["metadata"]["name"] = json!(name);
            pod["metadata"]["labels"]["batch.kubernetes.io/job-name"] = json!(job);
            pod["metadata"]["labels"]["batch.kubernetes.io/controller-uid"] = uid.clone();
            pod["metadata"]["ownerReferences"] =
                json!([{"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid, "controller": true}]);
            self.create(("Pod".to_owned(), name), pod);
        }
        let mut status = json!({"active": running.min(created), "succeeded": succeeded});
        if !is_suspended && self.objects[&name].pointer("/status/startTime").is_none() {
            status["startTime"] = json!(condition::whole_seconds(self.now));
        }
        // A Job whose pods are done while it is suspended is complete only once it has a start time.
        let has_started = !is_suspended || wanted("completions") == Some(0);
        if is_complete && !has_started {
            status["startTime"] = Value::Null;
            status["conditions"] =
                json!([{"type": "SuccessCriteriaMet", "status": "True", "message": "all pods are done"}]);
        } else if is_complete {
            status["conditions"] = json!([{"type": "Complete", "status": "True", "message": "all pods are done"}]);
        } else if let Some(conditions) = suspended_condition(&self.objects[&name], is_suspended) {
            status["conditions"] = conditions;
        }
        self.patch(&name, &json!({"status": status}));
    }

    /// Writes the EndpointSlice of a Service from the readiness of its pods.
    fn publish_endpoints(&mut self, service: &str) {
        let Some(object) = self.objects.get(&("Service".to_owned(), service.to_owned())) else { return };
        let selector = &object["spec"]["selector"][names::CLUSTER_LABEL];
        let pods = self.of_kind("Pod").filter(|pod| pod["metadata"]["labels"][names::CLUSTER_LABEL] == *selector);
        let endpoints = pods.map(|pod| {
            let ready = pod.pointer("/status/conditions/0/status") == Some(&json!("True"));
            json!({
                "addresses": ["10.0.0.1"], "conditions": {"ready": ready},
                "targetRef": {"kind": "Pod", "uid": pod["metadata"]["uid"]},
            })
        });
        let endpoints: Vec<Value> = endpoints.collect();
        let name = format!("{service}-1");
        let labels = json!({"kubernetes.io/service-name": service});
        self.apply(
            "EndpointSlice",
            json!({
                "metadata": {"name": name, "labels": labels}, "addressType": "IPv4", "endpoints": endpoints,
            }),
        );
    }
}

/// Returns the conditions of a Job with a changed condition Suspended; `None` if it does not change.
fn suspended_condition(job: &Value, is_suspended: bool) -> Option<Value> {
    let conditions = job.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let (shown, mut others): (Vec<Value>, Vec<Value>) =
        conditions.into_iter().partition(|condition| condition["type"] == "Suspended");
    let before = shown.first().map(|condition| condition["status"] == "True");
    if before == Some(is_suspended) || (before.is_none() && !is_suspended) {
        return None;
    }
    let status = if is_suspended { "True" } else { "False" };
    others.push(json!({"type": "Suspended", "status": status}));
    Some(others.into())
}
