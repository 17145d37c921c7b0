//! State of the upgrade over time, from the objects of the control plane.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use sluice_api::condition;
use sluice_api::kueue::ClusterQueue;
use sluice_api::quantity::Amount;
use sluice_api::ray::{RayClusterSpec, RayService, RayServiceStatus};
use sluice_queue::requests::pod_requests;

use sluice_testkit::fake_gateway::route_weights;
use sluice_testkit::history::{Change, Object, State};
use sluice_testkit::invariants::is_runnable;
use sluice_testkit::objects::{cluster_name, is_quota_reason, reserved_amount};

const CPU: &str = "cpu";

/// The state from one point in time on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UpgradeState {
    /// Seconds since the first request.
    pub at: f64,
    /// HTTPRoute weight of each version, in percent.
    pub traffic: BTreeMap<String, f64>,
    /// Target capacity of each version, in percent.
    pub capacity: BTreeMap<String, f64>,
    /// CPU quota of the queue, in cores.
    pub quota: f64,
    /// Reserved CPU, in cores.
    pub held: f64,
    /// CPU requests of the pods of each version, in cores, without gated and finished pods.
    pub used: BTreeMap<String, f64>,
}

/// An event of the upgrade.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UpgradeEvent {
    /// Seconds since the first request.
    pub at: f64,
    /// Kind of the event.
    pub what: UpgradeEventKind,
}

/// Kind of an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum UpgradeEventKind {
    /// The service was changed to another version.
    Applied(String),
    /// The upgrade is pending for lack of quota, with the message of the condition.
    Waits(String),
    /// The CPU quota was raised to this, in cores.
    Raised(f64),
    /// The upgrade was admitted.
    Admitted,
    /// Another version became active.
    Promoted(String),
    /// The cluster of a version was deleted.
    Gone(String),
}

/// Follows the changes of the control plane.
#[derive(Default)]
pub struct Observer {
    state: State,
    /// Version of each cluster, including deleted ones.
    versions: BTreeMap<String, String>,
    quota: Option<f64>,
    wanted: Option<String>,
    active: Option<String>,
    is_upgraded: bool,
    waits: bool,
}

impl Observer {
    /// Applies a change. Returns the events it causes.
    pub fn observe(&mut self, change: &Change) -> Vec<UpgradeEventKind> {
        self.state.apply(change);
        match &change.object {
            Object::RayCluster(cluster) => {
                let Some(version) = application_version(&cluster.spec) else { return Vec::new() };
                self.versions.insert(cluster.name_any(), version.clone());
                if change.deleted { vec![UpgradeEventKind::Gone(version)] } else { Vec::new() }
            }
            Object::ClusterQueue(queue) => {
                let before = self.quota.replace(quota(queue));
                self.quota
                    .filter(|now| self.is_upgraded && before < Some(*now))
                    .map(UpgradeEventKind::Raised)
                    .into_iter()
                    .collect()
            }
            Object::RayService(service) if !change.deleted => self.observe_service(service),
            _ => Vec::new(),
        }
    }

    fn observe_service(&mut self, service: &RayService) -> Vec<UpgradeEventKind> {
        let mut happened = Vec::new();
        let wanted = application_version(&service.spec.ray_cluster_config);
        if self.wanted.is_some() && wanted != self.wanted {
            self.is_upgraded = true;
            happened.extend(wanted.clone().map(UpgradeEventKind::Applied));
        }
        self.wanted = wanted;
        let Some(status) = &service.status else { return happened };
        let admitted = condition::get(&status.conditions, "sluice.dev/Admitted");
        let why =
            admitted.filter(|found| self.is_upgraded && found.status == "False" && is_quota_reason(&found.reason));
        if why.is_some() != self.waits {
            happened
                .push(why.map_or(UpgradeEventKind::Admitted, |found| UpgradeEventKind::Waits(found.message.clone())));
        }
        self.waits = why.is_some();
        let active = cluster_name(status.active_service_status.as_ref());
        if self.active.is_some() && active != self.active {
            let version = active.as_ref().and_then(|cluster| self.versions.get(cluster)).cloned();
            happened.extend(version.map(UpgradeEventKind::Promoted));
        }
        self.active = active.or(self.active.take());
        happened
    }

    /// Returns the state at this time, in seconds since the first request.
    pub fn state_at(&self, at: f64) -> UpgradeState {
        let queue = self.state.cluster_queues.values().next();
        let mut standing = UpgradeState { at, quota: self.quota.unwrap_or_default(), ..UpgradeState::default() };
        standing.held = queue.map(|queue| cores(&Quantity(reserved_amount(queue, CPU)))).unwrap_or_default();
        let shares = self.state.http_routes.values().flat_map(route_weights);
        standing.traffic = self.by_version(shares.map(|(cluster, share)| (cluster, share.into())));
        let statuses = self.state.ray_services.values().filter_map(|service| service.status.as_ref());
        let sides = statuses.flat_map(|status| [&status.active_service_status, &status.pending_service_status]);
        let capacity = |side: &RayServiceStatus| Some((cluster_name(Some(side))?, side.target_capacity?.into()));
        standing.capacity = self.by_version(sides.flatten().filter_map(capacity));
        let pods = self.state.pods.values().filter(|pod| is_runnable(pod)).filter_map(|pod| {
            let cores = pod_requests(pod.spec.as_ref()?).ok()?.get(CPU).get();
            Some((pod.labels().get("ray.io/cluster")?.clone(), in_cores(cores)))
        });
        standing.used = self.by_version(pods);
        standing
    }

    fn by_version(&self, amounts: impl Iterator<Item = (String, f64)>) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for (cluster, amount) in amounts {
            let Some(version) = self.versions.get(&cluster) else { continue };
            *sums.entry(version.clone()).or_default() += amount;
        }
        sums
    }
}

/// Returns the states and events from `start` on.
pub fn states_and_events(history: &[Change], start: Timestamp) -> (Vec<UpgradeState>, Vec<UpgradeEvent>) {
    let mut observer = Observer::default();
    let (mut standings, mut events): (Vec<UpgradeState>, Vec<UpgradeEvent>) = (Vec::new(), Vec::new());
    let mut at = 0_f64;
    for change in history {
        // The history is in order, so a change is never earlier than the one before it.
        at = at.max(change.observed_at.duration_since(start).as_secs_f64());
        events.extend(observer.observe(change).into_iter().map(|what| UpgradeEvent { at, what }));
        let standing = observer.state_at(at);
        match standings.last_mut() {
            Some(last) if last.at >= at => *last = standing,
            Some(last) if (UpgradeState { at: last.at, ..standing.clone() }) == *last => {}
            _ => standings.push(standing),
        }
    }
    (standings, events)
}

/// Returns the application version of a cluster: the image tag of its head.
fn application_version(cluster: &RayClusterSpec) -> Option<String> {
    let template = cluster.head_group_spec.template.parse().ok()?;
    let image = template.spec?.containers.into_iter().next()?.image?;
    image.rsplit_once(':').map(|(_, tag)| tag.to_owned())
}

fn quota(queue: &ClusterQueue) -> f64 {
    let flavors = queue.spec.resource_groups.iter().flat_map(|group| &group.flavors);
    let quotas = flavors.flat_map(|flavor| &flavor.resources).filter(|quota| quota.name == CPU);
    quotas.map(|quota| cores(&quota.nominal_quota)).sum()
}

fn cores(quantity: &Quantity) -> f64 {
    in_cores(Amount::from_quantity(CPU, quantity).unwrap_or_default().get())
}

fn in_cores(milli: i64) -> f64 {
    milli as f64 / 1000.0
}

#[cfg(test)]
mod tests;
