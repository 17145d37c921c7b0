//! Simulated Ray dashboards: accept Serve configurations and report the status of their
//! applications, like testenv/internal/dashboard.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::pace::later;
use super::read::{items, text};
use super::{BoardFate, Fates, Pace};

/// Ray dashboards of all heads, by namespace and name of their Services.
#[derive(Debug, Default)]
pub(super) struct Dashboards {
    boards: BTreeMap<(String, String), Board>,
    /// Number of heads reached so far.
    reached: u64,
    /// Number of deployments of applications and capacity changes so far.
    deployments: u64,
}

/// One run of a Ray head, from its start to its restart or end. Applications live as long as the
/// run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    /// Uid of the head pod.
    pub(super) uid: String,
    /// Restart count of its container.
    pub(super) restarts: u64,
}

/// Ray dashboard of one run of a head.
#[derive(Debug)]
struct Board {
    head: Head,
    ordinal: u64,
    reached_at: Timestamp,
    capacity: Option<f64>,
    /// Applications by name; `None` until the first configuration.
    applications: Option<BTreeMap<String, Application>>,
    /// IPs of the pods that hold replicas, by application and deployment.
    places: BTreeMap<(String, String), Vec<String>>,
}

/// Serve application since its last deployment.
#[derive(Debug, Clone)]
struct Application {
    /// Entry in the Serve configuration.
    entry: Value,
    deployed_at: Timestamp,
    /// Time from deployment until it runs.
    delay: Duration,
    /// Last change of the target capacity since the deployment.
    scaled: Option<Scaled>,
}

/// Change of the target capacity.
#[derive(Debug, Clone)]
struct Scaled {
    /// Target capacity before, in percent; `None` means it was not set.
    before: Option<f64>,
    at: Timestamp,
    /// Time from the change until its replicas run.
    delay: Duration,
}

/// Error of a simulated Ray dashboard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refused {
    /// An HTTP error.
    With {
        /// HTTP status code.
        code: u16,
        /// Response body.
        message: String,
    },
    /// The response never arrives.
    Silence,
}

impl Dashboards {
    /// Returns the status of the applications behind a Service. `workers` has the IPs of the ready
    /// workers.
    ///
    /// # Errors
    /// Returns the error of an injected fault.
    pub(super) fn get(
        &mut self,
        now: Timestamp,
        faults: &mut Fates,
        service: &(String, String),
        head: Head,
        workers: &[String],
    ) -> Result<Value, Refused> {
        self.reach(now, faults, service, head)?;
        if let Some(board) = self.boards.get_mut(service) {
            board.place(workers);
        }
        let board = &self.boards[service];
        let Some(applications) = &board.applications else {
            return Ok(json!({"deploy_mode": "UNSET", "target_capacity": null, "applications": {}}));
        };
        let fault = faults.of_board(board.ordinal).filter(|_| !faults.are_healed());
        let mut shown = serde_json::Map::new();
        for (name, application) in applications {
            let status = application.status(now, fault);
            if let (Some(fault), "DEPLOY_FAILED" | "UNHEALTHY") = (fault, status) {
                faults.strike_board(board.ordinal, fault);
            }
            shown.insert(name.clone(), application.show(name, status, now, board));
        }
        Ok(json!({"deploy_mode": "MULTI_APP", "target_capacity": board.capacity, "applications": shown}))
    }

    /// Accepts a Serve configuration. Changed applications are redeployed; the others keep running,
    /// with a different number of replicas if the target capacity changes.
    ///
    /// # Errors
    /// Returns status 400 for an invalid configuration, or the error of an injected fault.
    pub(super) fn put(
        &mut self,
        now: Timestamp,
        (faults, latencies): (&mut Fates, &Pace),
        service: &(String, String),
        head: Head,
        body: &[u8],
    ) -> Result<(), Refused> {
        self.reach(now, faults, service, head)?;
        let (capacity, entries) = parse(body).map_err(|message| Refused::With { code: 400, message })?;
        let Some(board) = self.boards.get_mut(service) else { return Ok(()) };
        let (old_capacity, before) = (board.capacity, board.applications.take().unwrap_or_default());
        let mut applications = BTreeMap::new();
        for (name, entry) in entries {
            let kept = before.get(&name).filter(|application| application.entry == entry).cloned();
            let mut delay = || {
                self.deployments += 1;
                latencies.draw(&latencies.deploy, "deploy", self.deployments)
            };
            // An unchanged application keeps running; a new target capacity only scales it.
            let application = match kept {
                Some(kept) if old_capacity == capacity => kept,
                Some(kept) => {
                    let scaled = Scaled { before: old_capacity, at: now, delay: delay() };
                    Application { scaled: Some(scaled), ..kept }
                }
                None => Application { entry, deployed_at: now, delay: delay(), scaled: None },
            };
            applications.insert(name, application);
        }
        (board.capacity, board.applications) = (capacity, Some(applications));
        Ok(())
    }

    /// Returns the dashboard behind a Service. A new run of the head starts without applications.
    fn reach(
        &mut self,
        now: Timestamp,
        faults: &mut Fates,
        service: &(String, String),
        head: Head,
    ) -> Result<&Board, Refused> {
        if self.boards.get(service).is_none_or(|board| board.head != head) {
            let board = Board {
                head,
                ordinal: self.reached,
                reached_at: now,
                capacity: None,
                applications: None,
                places: BTreeMap::new(),
            };
            self.reached += 1;
            self.boards.insert(service.clone(), board);
        }
        let board = &self.boards[service];
        let Some(fault) = faults.of_board(board.ordinal).filter(|_| !faults.are_healed()) else { return Ok(board) };
        let refused = match fault {
            BoardFate::Refuses { code, after_ms, for_ms } if within(now, board.reached_at, after_ms, for_ms) => {
                Refused::With { code, message: "steered to fail".to_owned() }
            }
            BoardFate::Babbles => Refused::With { code: 200, message: "<html>Welcome to Ray</html>".to_owned() },
            BoardFate::Hangs => Refused::Silence,
            BoardFate::Refuses { .. } | BoardFate::DeployFails { .. } | BoardFate::Unhealthy { .. } => {
                return Ok(board);
            }
        };
        faults.strike_board(board.ordinal, fault);
        Err(refused)
    }
}

impl Board {
    /// Assigns each replica of a deployment to a different worker, where it stays. The oldest
    /// replicas are removed first.
    fn place(&mut self, workers: &[String]) {
        let applications = self.applications.iter().flatten();
        let deployments = applications.flat_map(|(name, application)| {
            let deployments = items(&application.entry, "/deployments");
            deployments.map(move |deployment| ((name.clone(), text(deployment, "/name").to_owned()), deployment))
        });
        for (id, deployment) in deployments {
            let wanted = adjusted(deployment["num_replicas"].as_u64().unwrap_or(0), self.capacity) as usize;
            let places = self.places.entry(id).or_default();
            places.retain(|place| workers.contains(place));
            places.drain(..places.len().saturating_sub(wanted));
            let free: Vec<&String> = workers.iter().filter(|worker| !places.contains(*worker)).collect();
            places.extend(free.into_iter().take(wanted - places.len()).cloned());
        }
    }
}

impl Application {
    fn status(&self, now: Timestamp, fault: Option<BoardFate>) -> &'static str {
        let up_at = later(self.deployed_at, self.delay);
        match fault {
            _ if now < up_at => "DEPLOYING",
            Some(BoardFate::DeployFails { for_ms }) if within(now, up_at, 0, for_ms) => "DEPLOY_FAILED",
            Some(BoardFate::Unhealthy { after_ms, for_ms }) if within(now, up_at, after_ms, for_ms) => "UNHEALTHY",
            _ => "RUNNING",
        }
    }

    /// Returns the running and the wanted number of replicas, of `full` at 100 percent capacity.
    /// `places` is the number of replicas with a worker.
    fn replicas(&self, full: u64, now: Timestamp, capacity: Option<f64>, places: usize) -> (u64, u64) {
        let wanted = adjusted(full, capacity);
        let running = match &self.scaled {
            Some(scaled) if now < later(scaled.at, scaled.delay) => wanted.min(adjusted(full, scaled.before)),
            _ => wanted,
        };
        (running.min(places as u64), wanted)
    }

    fn show(&self, application: &str, status: &str, now: Timestamp, board: &Board) -> Value {
        let deployment_status = match status {
            "RUNNING" => "HEALTHY",
            "UNHEALTHY" | "DEPLOY_FAILED" => "UNHEALTHY",
            _ => "UPDATING",
        };
        let deployments = items(&self.entry, "/deployments").map(|deployment| {
            let name = text(deployment, "/name");
            let mut shown = json!({"name": name, "status": deployment_status, "message": ""});
            if let Some(full) = deployment["num_replicas"].as_u64() {
                let places = board.places.get(&(application.to_owned(), name.to_owned()));
                let places = places.map(Vec::as_slice).unwrap_or_default();
                let (running, wanted) = self.replicas(full, now, board.capacity, places.len());
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
fn adjusted(full: u64, capacity: Option<f64>) -> u64 {
    match capacity {
        Some(0.0) => 0,
        Some(percent) if full > 0 => ((full as f64 * percent / 100.0).round() as u64).max(1),
        _ => full,
    }
}

/// Returns true if `now` is in the interval of `for_ms` that starts `after_ms` after `since`.
fn within(now: Timestamp, since: Timestamp, after_ms: u64, for_ms: u64) -> bool {
    let from = later(since, Duration::from_millis(after_ms));
    from <= now && now < later(from, Duration::from_millis(for_ms))
}

/// Parses a Serve configuration into target capacity (percent) and applications by name, which
/// defaults to "default".
///
/// # Errors
/// Returns a message that describes what is invalid.
fn parse(body: &[u8]) -> Result<(Option<f64>, BTreeMap<String, Value>), String> {
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
