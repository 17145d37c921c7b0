//! Simulated Ray dashboards: accept Serve configurations and report the status of their
//! applications, like testenv/internal/dashboard.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::latencies::saturating_add;
use super::object_view::{items, text};
use super::{DashboardFault, Latencies, PodFaultInjector};

/// Ray dashboards of all heads, by namespace and name of their Services.
#[derive(Debug, Default)]
pub(super) struct RayDashboards {
    dashboards: BTreeMap<(String, String), RayDashboard>,
    /// Number of heads reached so far.
    reached_heads: u64,
    /// Number of deployments of applications and capacity changes so far.
    deployment_count: u64,
}

/// One run of a Ray head, from its start to its restart or end. Applications live as long as the
/// run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeadRun {
    /// Uid of the head pod.
    pub(super) uid: String,
    /// Restart count of its container.
    pub(super) restarts: u64,
}

/// Ray dashboard of one run of a head.
#[derive(Debug)]
struct RayDashboard {
    head: HeadRun,
    ordinal: u64,
    reached_at: Timestamp,
    target_capacity: Option<f64>,
    /// Applications by name; `None` until the first configuration.
    applications: Option<BTreeMap<String, ServeApplication>>,
    /// IPs of the pods that hold replicas, by application and deployment.
    replica_workers: BTreeMap<(String, String), Vec<String>>,
}

/// Serve application since its last deployment.
#[derive(Debug, Clone)]
struct ServeApplication {
    /// Entry in the Serve configuration.
    entry: Value,
    deployed_at: Timestamp,
    /// Time from deployment until it runs.
    startup_delay: Duration,
    /// Last change of the target capacity since the deployment.
    capacity_change: Option<CapacityChange>,
}

/// Change of the target capacity.
#[derive(Debug, Clone)]
struct CapacityChange {
    /// Target capacity before, in percent; `None` means it was not set.
    before: Option<f64>,
    at: Timestamp,
    /// Time from the change until its replicas run.
    delay: Duration,
}

/// Error of a simulated Ray dashboard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DashboardError {
    /// An HTTP error.
    Http {
        /// HTTP status code.
        code: u16,
        /// Response body.
        message: String,
    },
    /// The response never arrives.
    NoResponse,
}

impl RayDashboards {
    /// Returns the status of the applications behind a Service. `workers` has the IPs of the ready
    /// workers.
    ///
    /// # Errors
    /// Returns the error of an injected fault.
    pub(super) fn get_applications(
        &mut self,
        now: Timestamp,
        faults: &mut PodFaultInjector,
        service: &(String, String),
        head: HeadRun,
        workers: &[String],
    ) -> Result<Value, DashboardError> {
        self.dashboard_for(now, faults, service, head)?;
        if let Some(board) = self.dashboards.get_mut(service) {
            board.assign_replicas(workers);
        }
        let board = &self.dashboards[service];
        let Some(applications) = &board.applications else {
            return Ok(json!({"deploy_mode": "UNSET", "target_capacity": null, "applications": {}}));
        };
        let fault = faults.dashboard_fault(board.ordinal).filter(|_| !faults.is_disabled());
        let mut shown = serde_json::Map::new();
        for (name, application) in applications {
            let status = application.status(now, fault);
            if let (Some(fault), "DEPLOY_FAILED" | "UNHEALTHY") = (fault, status) {
                faults.record_dashboard_fault(board.ordinal, fault);
            }
            shown.insert(name.clone(), application.to_json(name, status, now, board));
        }
        Ok(json!({"deploy_mode": "MULTI_APP", "target_capacity": board.target_capacity, "applications": shown}))
    }

    /// Accepts a Serve configuration. Changed applications are redeployed; the others keep running,
    /// with a different number of replicas if the target capacity changes.
    ///
    /// # Errors
    /// Returns status 400 for an invalid configuration, or the error of an injected fault.
    pub(super) fn put_config(
        &mut self,
        now: Timestamp,
        (faults, latencies): (&mut PodFaultInjector, &Latencies),
        service: &(String, String),
        head: HeadRun,
        body: &[u8],
    ) -> Result<(), DashboardError> {
        self.dashboard_for(now, faults, service, head)?;
        let (capacity, entries) = parse_config(body).map_err(|message| DashboardError::Http { code: 400, message })?;
        let Some(board) = self.dashboards.get_mut(service) else { return Ok(()) };
        let (old_capacity, before) = (board.target_capacity, board.applications.take().unwrap_or_default());
        let mut applications = BTreeMap::new();
        for (name, entry) in entries {
            let kept = before.get(&name).filter(|application| application.entry == entry).cloned();
            let mut delay = || {
                self.deployment_count += 1;
                latencies.sample(&latencies.deploy, "deploy", self.deployment_count)
            };
            // An unchanged application keeps running; a new target capacity only scales it.
            let application = match kept {
                Some(kept) if old_capacity == capacity => kept,
                Some(kept) => {
                    let scaled = CapacityChange { before: old_capacity, at: now, delay: delay() };
                    ServeApplication { capacity_change: Some(scaled), ..kept }
                }
                None => ServeApplication { entry, deployed_at: now, startup_delay: delay(), capacity_change: None },
            };
            applications.insert(name, application);
        }
        (board.target_capacity, board.applications) = (capacity, Some(applications));
        Ok(())
    }

    /// Returns the dashboard behind a Service. A new run of the head starts without applications.
    fn dashboard_for(
        &mut self,
        now: Timestamp,
        faults: &mut PodFaultInjector,
        service: &(String, String),
        head: HeadRun,
    ) -> Result<&RayDashboard, DashboardError> {
        if self.dashboards.get(service).is_none_or(|board| board.head != head) {
            let board = RayDashboard {
                head,
                ordinal: self.reached_heads,
                reached_at: now,
                target_capacity: None,
                applications: None,
                replica_workers: BTreeMap::new(),
            };
            self.reached_heads += 1;
            self.dashboards.insert(service.clone(), board);
        }
        let board = &self.dashboards[service];
        let Some(fault) = faults.dashboard_fault(board.ordinal).filter(|_| !faults.is_disabled()) else {
            return Ok(board);
        };
        let refused = match fault {
            DashboardFault::ReturnsError { code, after_ms, for_ms }
                if is_within(now, board.reached_at, after_ms, for_ms) =>
            {
                DashboardError::Http { code, message: "steered to fail".to_owned() }
            }
            DashboardFault::ReturnsHtml => {
                DashboardError::Http { code: 200, message: "<html>Welcome to Ray</html>".to_owned() }
            }
            DashboardFault::Hangs => DashboardError::NoResponse,
            DashboardFault::ReturnsError { .. }
            | DashboardFault::DeployFails { .. }
            | DashboardFault::Unhealthy { .. } => {
                return Ok(board);
            }
        };
        faults.record_dashboard_fault(board.ordinal, fault);
        Err(refused)
    }
}

impl RayDashboard {
    /// Assigns each replica of a deployment to a different worker, where it stays. The oldest
    /// replicas are removed first.
    fn assign_replicas(&mut self, workers: &[String]) {
        let applications = self.applications.iter().flatten();
        let deployments = applications.flat_map(|(name, application)| {
            let deployments = items(&application.entry, "/deployments");
            deployments.map(move |deployment| ((name.clone(), text(deployment, "/name").to_owned()), deployment))
        });
        for (id, deployment) in deployments {
            let wanted =
                capacity_adjusted_replicas(deployment["num_replicas"].as_u64().unwrap_or(0), self.target_capacity)
                    as usize;
            let places = self.replica_workers.entry(id).or_default();
            places.retain(|place| workers.contains(place));
            places.drain(..places.len().saturating_sub(wanted));
            let free: Vec<&String> = workers.iter().filter(|worker| !places.contains(*worker)).collect();
            places.extend(free.into_iter().take(wanted - places.len()).cloned());
        }
    }
}

impl ServeApplication {
    fn status(&self, now: Timestamp, fault: Option<DashboardFault>) -> &'static str {
        let up_at = saturating_add(self.deployed_at, self.startup_delay);
        match fault {
            _ if now < up_at => "DEPLOYING",
            Some(DashboardFault::DeployFails { for_ms }) if is_within(now, up_at, 0, for_ms) => "DEPLOY_FAILED",
            Some(DashboardFault::Unhealthy { after_ms, for_ms }) if is_within(now, up_at, after_ms, for_ms) => {
                "UNHEALTHY"
            }
            _ => "RUNNING",
        }
    }

    /// Returns the running and the wanted number of replicas, of `full` at 100 percent capacity.
    /// `places` is the number of replicas with a worker.
    fn replicas(&self, full: u64, now: Timestamp, capacity: Option<f64>, places: usize) -> (u64, u64) {
        let wanted = capacity_adjusted_replicas(full, capacity);
        let running = match &self.capacity_change {
            Some(scaled) if now < saturating_add(scaled.at, scaled.delay) => {
                wanted.min(capacity_adjusted_replicas(full, scaled.before))
            }
            _ => wanted,
        };
        (running.min(places as u64), wanted)
    }

    fn to_json(&self, application: &str, status: &str, now: Timestamp, board: &RayDashboard) -> Value {
        let deployment_status = match status {
            "RUNNING" => "HEALTHY",
            "UNHEALTHY" | "DEPLOY_FAILED" => "UNHEALTHY",
            _ => "UPDATING",
        };
        let deployments = items(&self.entry, "/deployments").map(|deployment| {
            let name = text(deployment, "/name");
            let mut shown = json!({"name": name, "status": deployment_status, "message": ""});
            if let Some(full) = deployment["num_replicas"].as_u64() {
                let places = board.replica_workers.get(&(application.to_owned(), name.to_owned()));
                let places = places.map(Vec::as_slice).unwrap_or_default();
                let (running, wanted) = self.replicas(full, now, board.target_capacity, places.len());
                let running = if status == "RUNNING" { running } else { 0 };
                let state = |index| if index < running { "RUNNING" } else { "STARTING" };
                let replica = |index| json!({"state": state(index), "node_ip": places.get(index as usize)});
                shown["replicas"] = (0..wanted).map(replica).collect();
                shown["deployment_config"] = json!({"num_replicas": full});
                shown["target_num_replicas"] = json!(wanted);
            }
            (name.to_owned(), shown)
        });
        let deployments: serde_json::Map<String, Value> = deployments.collect();
        json!({
            "name": application, "status": status, "message": "", "route_prefix": self.entry["route_prefix"], "docs_path": null,
            "deployments": deployments,
        })
    }
}

/// Returns the number of replicas at a target capacity in percent (ray-project/ray
/// `python/ray/serve/_private/utils.py`, `get_capacity_adjusted_num_replicas`, as of Ray 2.53).
fn capacity_adjusted_replicas(full: u64, capacity: Option<f64>) -> u64 {
    match capacity {
        Some(0.0) => 0,
        Some(percent) if full > 0 => ((full as f64 * percent / 100.0).round() as u64).max(1),
        _ => full,
    }
}

/// Returns true if `now` is in the interval of `for_ms` that starts `after_ms` after `since`.
fn is_within(now: Timestamp, since: Timestamp, after_ms: u64, for_ms: u64) -> bool {
    let from = saturating_add(since, Duration::from_millis(after_ms));
    from <= now && now < saturating_add(from, Duration::from_millis(for_ms))
}

/// Parses a Serve configuration into target capacity (percent) and applications by name, which
/// defaults to "default".
///
/// # Errors
/// Returns a message that describes what is invalid.
fn parse_config(body: &[u8]) -> Result<(Option<f64>, BTreeMap<String, Value>), String> {
    let config: Value = serde_json::from_slice(body).map_err(|error| format!("the Serve configuration: {error}"))?;
    let Some(Value::Array(list)) = config.get("applications") else {
        return Err("the Serve configuration: applications is required".to_owned());
    };
    let capacity = config.get("target_capacity").and_then(Value::as_f64);
    if let Some(capacity) = capacity.filter(|capacity| !(0.0..=100.0).contains(capacity)) {
        return Err(format!("the Serve configuration: target_capacity is {capacity}, must be from 0 to 100"));
    }
    let mut applications = BTreeMap::new();
    for entry in list {
        let name = Some(text(entry, "/name")).filter(|name| !name.is_empty()).unwrap_or("default").to_owned();
        if applications.insert(name.clone(), entry.clone()).is_some() {
            return Err(format!("the Serve configuration: the application {name:?} is there twice"));
        }
    }
    Ok((capacity, applications))
}
