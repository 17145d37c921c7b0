//! Simulated Serve dashboards.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::Harness;
use super::controllers::FakeWorker;
use sluice_plan::{ServeAnswer, ServeCall, ServeError, ServeReply, ServeRequest};

/// Simulated Serve dashboard of one cluster.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeDashboard {
    /// Applied configurations, newest last.
    pub(crate) applied: Vec<Value>,
    deployed_at: Option<Timestamp>,
    /// Running replicas of each deployment while others start.
    running_before_scaling: u64,
    scaled_at: Option<Timestamp>,
    /// IP addresses of the workers that hold its replicas.
    pub(super) locations: Vec<String>,
}

/// Returns how many replicas Serve runs of `full` at a capacity in percent; rounded as in Ray.
pub(super) fn replicas_at_capacity(full: u64, capacity: &Value) -> u64 {
    match capacity.as_u64() {
        None => full,
        Some(0) => 0,
        Some(percent) => ((full as f64 * percent as f64 / 100.0).round() as u64).max(1),
    }
}

impl FakeDashboard {
    /// Returns true if its applications are running.
    pub(super) fn is_running(&self, harness: &Harness) -> bool {
        self.deployed_at.is_some_and(|at| at + harness.deploy_time <= harness.now)
    }

    /// Applies a configuration. A different one redeploys the applications; a different capacity
    /// only changes the number of replicas.
    pub(super) fn apply_config(&mut self, config: Value, now: Timestamp, deploy: SignedDuration) {
        let without_capacity = |config: &Value| {
            let mut config = config.clone();
            config.as_object_mut().expect("a mapping").remove("target_capacity");
            config
        };
        self.running_before_scaling = self.running_replicas(now, deploy);
        if self.applied.last().map(without_capacity) != Some(without_capacity(&config)) {
            self.deployed_at = Some(now);
            self.running_before_scaling = 0;
        }
        self.scaled_at = Some(now);
        self.applied.push(config);
    }

    /// Returns the number of running replicas of each deployment.
    pub(super) fn running_replicas(&self, now: Timestamp, deploy: SignedDuration) -> u64 {
        let wanted = self.target_replicas();
        let is_settled = self.scaled_at.is_some_and(|at| at + deploy <= now);
        // Scaling down is immediate, scaling up takes the deploy time.
        if is_settled { wanted } else { self.running_before_scaling.min(wanted) }
    }

    pub(super) fn full_replicas(&self) -> Option<u64> {
        self.applied.last()?.pointer("/applications/0/deployments/0/num_replicas")?.as_u64()
    }

    fn target_replicas(&self) -> u64 {
        let capacity = self.applied.last().map(|config| config["target_capacity"].clone()).unwrap_or_default();
        replicas_at_capacity(self.full_replicas().unwrap_or(0), &capacity)
    }

    /// Places each replica on a worker, where it stays. The oldest replicas stop first; they are on
    /// the workers that the operator would remove last.
    pub(super) fn place_replicas(&mut self, workers: &[FakeWorker]) {
        self.locations.retain(|place| workers.iter().any(|worker| worker.ip == *place));
        let wanted = usize::try_from(self.target_replicas()).expect("few");
        self.locations.drain(..self.locations.len().saturating_sub(wanted));
        while self.locations.len() < wanted {
            let load = |worker: &&FakeWorker| self.locations.iter().filter(|place| **place == worker.ip).count();
            let Some(worker) = workers.iter().filter(|worker| !worker.is_terminating).min_by_key(load) else { break };
            self.locations.push(worker.ip.clone());
        }
    }

    /// Returns the deployment statuses; empty if the configuration has no deployments.
    pub(super) fn deployments(&self, now: Timestamp, deploy: SignedDuration, places: bool) -> BTreeMap<String, Value> {
        let Some(full) = self.full_replicas() else { return BTreeMap::new() };
        let running = self.running_replicas(now, deploy);
        let state = |index: u64| {
            let place = usize::try_from(index).ok().and_then(|index| self.locations.get(index)).filter(|_| places);
            json!({"state": if index < running { "RUNNING" } else { "STARTING" }, "node_ip": place})
        };
        let replicas: Vec<Value> = (0..self.target_replicas()).map(state).collect();
        let deployment = json!({
            "status": "HEALTHY", "deployment_config": {"num_replicas": full}, "target_num_replicas": self.target_replicas(),
            "replicas": replicas,
        });
        BTreeMap::from([("model".to_owned(), deployment)])
    }
}

impl Harness {
    /// Returns the reply of a dashboard to a call.
    pub(super) fn serve_reply(&mut self, call: &ServeCall) -> ServeReply {
        let reply = |answer| ServeReply {
            namespace: call.namespace.clone(),
            cluster: call.cluster.clone(),
            uid: call.uid.clone(),
            head_uid: call.head_uid.clone(),
            called_at: self.now,
            answered_at: self.now,
            answer,
        };
        assert_eq!(call.head_service, format!("{}-head-svc", call.cluster));
        let uid = self.uid_of(&call.cluster).expect("an existing cluster");
        let workers = self.worker_pods.get(&call.cluster).cloned().unwrap_or_default();
        let dashboard = self.dashboards.entry(uid).or_default();
        let runs = dashboard.deployed_at.is_some_and(|at| at + self.deploy_time <= self.now);
        let refused = |code| ServeError::Rejected { doing: "calling".into(), code, body: "no".into() };
        match &call.request {
            ServeRequest::Get
                if self.only_responding_dashboard.as_ref().is_some_and(|answering| *answering != call.cluster) =>
            {
                let silence = ServeError::Timeout { doing: "asking".into(), seconds: 2 };
                reply(ServeAnswer::Status(Err(silence)))
            }
            ServeRequest::Get => {
                let mut state = json!({"status": if runs { "RUNNING" } else { "DEPLOYING" }});
                if self.failing_clusters.contains(&call.cluster) {
                    state = json!({"status": "DEPLOY_FAILED", "message": "no module named one"});
                }
                let capacity = dashboard.applied.last().and_then(|config| config.get("target_capacity")).cloned();
                dashboard.place_replicas(&workers);
                let deployments = dashboard.deployments(self.now, self.deploy_time, self.reports_locations);
                if !deployments.is_empty() {
                    state["deployments"] = json!(deployments);
                }
                let names = dashboard.applied.last().map(|config| config["applications"].clone()).unwrap_or_default();
                let names = names.as_array().cloned().unwrap_or_default();
                let apps = names.iter().map(|app| (app["name"].as_str().unwrap_or_default().to_owned(), state.clone()));
                let apps: BTreeMap<_, _> = apps.collect();
                let status = json!({"applications": apps, "target_capacity": capacity});
                reply(ServeAnswer::Status(Ok(serde_json::from_value(status).expect("a status"))))
            }
            ServeRequest::Put(config) => {
                let is_refused = self.rejected_app.is_some_and(|name| config.body()["applications"][0]["name"] == name);
                let refusal = self.rejection_code.or_else(|| is_refused.then_some(400));
                let result = refusal.map_or(Ok(()), |code| Err(refused(code)));
                if result.is_ok() {
                    dashboard.apply_config(config.body().clone(), self.now, self.deploy_time);
                }
                reply(ServeAnswer::Applied { config_hash: config.hash().to_owned(), result })
            }
            ServeRequest::Healthz { pod, .. } => {
                let result = if runs && !self.clusters_with_unhealthy_proxy.contains(&call.cluster) {
                    Ok(())
                } else {
                    Err(refused(503))
                };
                reply(ServeAnswer::Health { pod: pod.clone(), result })
            }
        }
    }
}
