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

use sluice_testkit::gateways::weights;
use sluice_testkit::history::{Change, Object, State};
use sluice_testkit::invariants::may_run;
use sluice_testkit::objects::{cluster_name, reserved, waits_for_quota};

const CPU: &str = "cpu";

/// The state from one point in time on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Standing {
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
pub struct Event {
    /// Seconds since the first request.
    pub at: f64,
    /// Kind of the event.
    pub what: What,
}

/// Kind of an event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum What {
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
    pub fn sees(&mut self, change: &Change) -> Vec<What> {
        self.state.apply(change);
        match &change.object {
            Object::RayCluster(cluster) => {
                let Some(version) = version_of(&cluster.spec) else { return Vec::new() };
                self.versions.insert(cluster.name_any(), version.clone());
                if change.gone { vec![What::Gone(version)] } else { Vec::new() }
            }
            Object::ClusterQueue(queue) => {
                let before = self.quota.replace(quota(queue));
                self.quota.filter(|now| self.is_upgraded && before < Some(*now)).map(What::Raised).into_iter().collect()
            }
            Object::RayService(service) if !change.gone => self.sees_service(service),
            _ => Vec::new(),
        }
    }

    fn sees_service(&mut self, service: &RayService) -> Vec<What> {
        let mut happened = Vec::new();
        let wanted = version_of(&service.spec.ray_cluster_config);
        if self.wanted.is_some() && wanted != self.wanted {
            self.is_upgraded = true;
            happened.extend(wanted.clone().map(What::Applied));
        }
        self.wanted = wanted;
        let Some(status) = &service.status else { return happened };
        let admitted = condition::get(&status.conditions, "sluice.dev/Admitted");
        let why =
            admitted.filter(|found| self.is_upgraded && found.status == "False" && waits_for_quota(&found.reason));
        if why.is_some() != self.waits {
            happened.push(why.map_or(What::Admitted, |found| What::Waits(found.message.clone())));
        }
        self.waits = why.is_some();
        let active = cluster_name(status.active_service_status.as_ref());
        if self.active.is_some() && active != self.active {
            let version = active.as_ref().and_then(|cluster| self.versions.get(cluster)).cloned();
            happened.extend(version.map(What::Promoted));
        }
        self.active = active.or(self.active.take());
        happened
    }

    /// Returns the state at this time, in seconds since the first request.
    pub fn standing(&self, at: f64) -> Standing {
        let queue = self.state.cluster_queues.values().next();
        let mut standing = Standing { at, quota: self.quota.unwrap_or_default(), ..Standing::default() };
        standing.held = queue.map(|queue| cores(&Quantity(reserved(queue, CPU)))).unwrap_or_default();
        let shares = self.state.http_routes.values().flat_map(weights);
        standing.traffic = self.by_version(shares.map(|(cluster, share)| (cluster, share.into())));
        let statuses = self.state.ray_services.values().filter_map(|service| service.status.as_ref());
        let sides = statuses.flat_map(|status| [&status.active_service_status, &status.pending_service_status]);
        let capacity = |side: &RayServiceStatus| Some((cluster_name(Some(side))?, side.target_capacity?.into()));
        standing.capacity = self.by_version(sides.flatten().filter_map(capacity));
        let pods = self.state.pods.values().filter(|pod| may_run(pod)).filter_map(|pod| {
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
pub fn course(history: &[Change], start: Timestamp) -> (Vec<Standing>, Vec<Event>) {
    let mut observer = Observer::default();
    let (mut standings, mut events): (Vec<Standing>, Vec<Event>) = (Vec::new(), Vec::new());
    let mut at = 0_f64;
    for change in history {
        // The history is in order, so a change is never earlier than the one before it.
        at = at.max(change.heard.duration_since(start).as_secs_f64());
        events.extend(observer.sees(change).into_iter().map(|what| Event { at, what }));
        let standing = observer.standing(at);
        match standings.last_mut() {
            Some(last) if last.at >= at => *last = standing,
            Some(last) if (Standing { at: last.at, ..standing.clone() }) == *last => {}
            _ => standings.push(standing),
        }
    }
    (standings, events)
}

/// Returns the application version of a cluster: the image tag of its head.
fn version_of(cluster: &RayClusterSpec) -> Option<String> {
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

#[allow(clippy::cast_precision_loss, reason = "a few cores")]
fn in_cores(milli: i64) -> f64 {
    milli as f64 / 1000.0
}

#[cfg(test)]
mod tests;
