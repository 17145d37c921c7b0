//! Prints changes for people, one line per change.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kube::ResourceExt;
use sluice_api::condition;
use sluice_api::kueue::{ClusterQueue, Workload};
use sluice_api::quantity::Amount;
use sluice_api::ray::{RayCluster, RayService};
use sluice_queue::requests::pod_requests;

use super::history::{Change, Object, State};
use super::objects::cluster_name;

/// Time for which a change is buffered, so that earlier changes reported by slower watches sort
/// before it.
pub const REORDER_WINDOW: Duration = Duration::from_millis(300);
/// Maximum width of a line, in bytes.
const LINE_WIDTH: usize = 130;

/// Formats changes in the order in which they happened. Watches report with different delays, so
/// each change is buffered briefly.
pub struct TimelinePrinter {
    start: Instant,
    state: State,
    buffered: BTreeMap<u64, (Instant, Change)>,
}

impl Default for TimelinePrinter {
    fn default() -> Self {
        Self::new()
    }
}

impl TimelinePrinter {
    /// Returns an empty printer whose timestamps count seconds from now.
    pub fn new() -> Self {
        Self { start: Instant::now(), state: State::default(), buffered: BTreeMap::new() }
    }

    /// Adds a change.
    pub fn push(&mut self, change: Change) {
        self.buffered.insert(change.version, (Instant::now(), change));
    }

    /// Removes the changes that have been buffered long enough, and returns their lines.
    pub fn take_lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        while let Some(first) = self.buffered.first_entry().filter(|first| first.get().0.elapsed() > REORDER_WINDOW) {
            let (heard, change) = first.remove();
            let before = self.state.clone();
            self.state.apply(&change);
            if let Some((subject, what)) = describe_change(&before, &self.state, &change) {
                lines.push(wrap((heard - self.start).as_secs_f64(), &subject, &what));
            }
        }
        lines
    }
}

/// Formats one entry, wrapped to the width of a terminal.
fn wrap(seconds: f64, subject: &str, what: &str) -> String {
    let mut line = format!("{seconds:>6.1}s  {subject:<34} ");
    let margin = line.len();
    let mut lines = Vec::new();
    for word in what.split(' ') {
        if line.len() + word.len() > LINE_WIDTH && line.len() > margin {
            lines.push(line.trim_end().to_owned());
            line = " ".repeat(margin);
        }
        line.push_str(word);
        line.push(' ');
    }
    lines.push(line.trim_end().to_owned());
    lines.join("\n")
}

/// Returns subject and description of a change, or `None` if it is of no interest to a reader.
pub fn describe_change(before: &State, after: &State, change: &Change) -> Option<(String, String)> {
    match &change.object {
        Object::ClusterQueue(queue) => describe_cluster_queue(before, after, queue),
        Object::Cohort(_) | Object::HTTPRoute(_) | Object::BatchJob(_) => None,
        Object::Workload(workload) => describe_workload(before, workload, change.deleted),
        Object::RayService(service) => describe_ray_service(before, service, change.deleted),
        Object::RayCluster(cluster) => describe_ray_cluster(before, cluster, change.deleted),
        Object::Pod(pod) => {
            let known =
                before.pods.contains_key(&format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()));
            let what = if change.deleted {
                "deleted"
            } else if known {
                return None;
            } else {
                "created"
            };
            Some((format!("Pod {}", pod.name_any()), format!("{what}; the pods request {}", format_requests(after))))
        }
        Object::Service(service) => {
            let key = format!("{}/{}", service.namespace().unwrap_or_default(), service.name_any());
            let selected = |service: &k8s_openapi::api::core::v1::Service| {
                service.spec.as_ref()?.selector.as_ref()?.get("ray.io/cluster").cloned()
            };
            let was = before.services.get(&key).and_then(selected);
            let is = selected(service)?;
            if change.deleted || was.as_ref() == Some(&is) || !service.name_any().ends_with("-serve-svc") {
                return None;
            }
            let what = match was {
                None => format!("requests go to {is}"),
                Some(was) => format!("requests go to {is}, and no longer to {was}"),
            };
            Some((format!("Service {}", service.name_any()), what))
        }
    }
}

/// Formats the reserved amount and the nominal quota of each resource of a ClusterQueue.
pub fn format_reservations(queue: &ClusterQueue) -> String {
    let mut parts = Vec::new();
    for resource in
        queue.spec.resource_groups.iter().flat_map(|group| &group.flavors).flat_map(|flavor| &flavor.resources)
    {
        let reserved = super::objects::reserved_amount(queue, &resource.name);
        parts.push(format!("{} {reserved} of {}", resource.name, resource.nominal_quota.0));
    }
    parts.join(", ")
}

/// Formats the sum of the requests of all pods, in CPU and memory.
pub fn format_requests(state: &State) -> String {
    let mut sums: BTreeMap<&str, Amount> = BTreeMap::from([("cpu", Amount::ZERO), ("memory", Amount::ZERO)]);
    for spec in state.pods.values().filter_map(|pod| pod.spec.as_ref()) {
        let requests = pod_requests(spec).expect("requests");
        for (resource, sum) in &mut sums {
            *sum = sum.plus(requests.get(resource));
        }
    }
    let parts: Vec<String> =
        sums.iter().map(|(resource, sum)| format!("{resource} {}", sum.display(resource))).collect();
    parts.join(", ")
}

fn describe_cluster_queue(before: &State, after: &State, queue: &ClusterQueue) -> Option<(String, String)> {
    let was = before.cluster_queues.get(&format!("/{}", queue.name_any())).map(format_reservations);
    let is = format_reservations(queue);
    let what = format!("reserved {is}; the pods request {}", format_requests(after));
    (was.as_ref() != Some(&is)).then(|| (format!("ClusterQueue {}", queue.name_any()), what))
}

fn describe_workload(before: &State, workload: &Workload, gone: bool) -> Option<(String, String)> {
    let subject = format!("Workload {}", workload.name_any());
    let key = format!("{}/{}", workload.namespace().unwrap_or_default(), workload.name_any());
    let was = before.workloads.get(&key);
    if gone {
        return was.map(|_| (subject, "deleted".to_owned()));
    }
    let pods = |workload: &Workload| {
        let sets = workload.spec.pod_sets.iter().map(|set| format!("{} {}", set.count, set.name));
        sets.collect::<Vec<_>>().join(", ")
    };
    let Some(was) = was else {
        let replaces = workload.annotations().get("kueue.x-k8s.io/workload-slice-replacement-for");
        let instead = replaces.map(|replaced| format!(", to replace {replaced}")).unwrap_or_default();
        return Some((subject, format!("requests {}{instead}", pods(workload))));
    };
    for (kind, words, explained_by) in [
        ("Finished", "finished, replaced by", "Finished"),
        ("Evicted", "evicted", "Evicted"),
        ("Admitted", "admitted", "QuotaReserved"),
        ("QuotaReserved", "reserved", "QuotaReserved"),
    ] {
        let (old, new) = (is_true(was, kind), is_true(workload, kind));
        if new && !old {
            let why = condition_message(workload, explained_by);
            // Kueue's messages end with identifiers, which are noise here.
            let why = why.rsplit_once("aggregation: ").map_or(why.as_str(), |(_, successor)| successor);
            return Some((subject, format!("{words}: {why}")));
        }
    }
    (pods(was) != pods(workload)).then(|| (subject, format!("now requests {}", pods(workload))))
}

fn describe_ray_service(before: &State, service: &RayService, gone: bool) -> Option<(String, String)> {
    let subject = format!("RayService {}", service.name_any());
    let key = format!("{}/{}", service.namespace().unwrap_or_default(), service.name_any());
    if gone {
        return Some((subject, "deleted".to_owned()));
    }
    let version = |service: &RayService| service.spec.ray_cluster_config.ray_version.clone().unwrap_or_default();
    let Some(was) = before.ray_services.get(&key) else {
        return Some((subject, format!("created, for Ray {}", version(service))));
    };
    if version(was) != version(service) {
        return Some((subject, format!("changed to Ray {}", version(service))));
    }
    let (old, new) = (was.status.clone().unwrap_or_default(), service.status.clone().unwrap_or_default());
    let admitted = |conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition]| {
        condition::get(conditions, "sluice.dev/Admitted").map(|found| (found.status.clone(), found.message.clone()))
    };
    if let Some((status, message)) = admitted(&new.conditions)
        && admitted(&old.conditions) != Some((status.clone(), message.clone()))
    {
        let words = if status == "True" { "admitted" } else { "pending" };
        return Some((subject, format!("{words}: {message}")));
    }
    let (from, to) =
        (cluster_name(old.active_service_status.as_ref()), cluster_name(new.active_service_status.as_ref()));
    if from != to {
        return to.map(|to| (subject, format!("serves from {to}")));
    }
    let ready = |conditions: &[_]| condition::is_true(conditions, "Ready");
    (ready(&old.conditions) != ready(&new.conditions))
        .then(|| (subject, if ready(&new.conditions) { "ready" } else { "not ready" }.to_owned()))
}

fn describe_ray_cluster(before: &State, cluster: &RayCluster, gone: bool) -> Option<(String, String)> {
    let subject = format!("RayCluster {}", cluster.name_any());
    let key = format!("{}/{}", cluster.namespace().unwrap_or_default(), cluster.name_any());
    let is_suspended = |cluster: &RayCluster| cluster.spec.suspend == Some(true);
    if gone {
        return Some((subject, "deleted".to_owned()));
    }
    let Some(was) = before.ray_clusters.get(&key) else {
        let how = if is_suspended(cluster) { "created suspended" } else { "created" };
        return Some((subject, how.to_owned()));
    };
    if is_suspended(was) != is_suspended(cluster) {
        let gate = if is_suspended(cluster) { "gate closed" } else { "gate opened" };
        return Some((subject, gate.to_owned()));
    }
    if was.metadata.deletion_timestamp.is_none() && cluster.metadata.deletion_timestamp.is_some() {
        return Some((subject, "terminating".to_owned()));
    }
    let state = |cluster: &RayCluster| cluster.status.clone().unwrap_or_default().state.unwrap_or_default();
    (state(was) != state(cluster) && !state(cluster).is_empty()).then(|| (subject, state(cluster)))
}

fn is_true(workload: &Workload, kind: &str) -> bool {
    workload.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, kind))
}

fn condition_message(workload: &Workload, kind: &str) -> String {
    let conditions = workload.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    condition::get(conditions, kind).map(|found| found.message.clone()).unwrap_or_default()
}
