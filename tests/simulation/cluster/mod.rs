//! Simulated cluster components: scheduler, kubelets, EndpointSlice, Gateway and garbage collection
//! controllers, and Ray Serve on head pods.
//!
//! The components are plain data and act on observed changes: [`Cluster::see`] observes a change
//! and schedules tasks, [`Cluster::act`] runs the due ones. Like real components they lag behind
//! the API server, by latencies from a seed.

mod agenda;
mod dashboards;
mod endpoints;
mod fates;
mod garbage;
mod gateways;
mod kubelet;
mod nodes;
mod pace;
mod proxy;
mod read;
mod scheduler;
mod status;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use jiff::Timestamp;

use crate::api::{Api, Change, Proxied};
use agenda::Agenda;
use dashboards::Dashboards;
use endpoints::Endpoints;
pub use fates::{BoardFate, Fate, FateList, Fates, Odds};
use garbage::Garbage;
use gateways::{Gateways, Way};
use kubelet::Kubelet;
pub use nodes::{Node, Nodes};
pub use pace::Pace;
use pace::later;
use proxy::Proxy;
pub use proxy::Silence;
use read::{PodId, key, text, uid};
use scheduler::Scheduler;

/// All cluster components except the API server and Sluice.
#[derive(Debug)]
pub struct Cluster {
    latencies: Pace,
    faults: Fates,
    timers: Agenda<Chore>,
    /// Existing pods by uid.
    pods: BTreeMap<String, Arc<PodId>>,
    /// Number of pods created so far.
    made: u64,
    scheduler: Scheduler,
    kubelet: Kubelet,
    endpoints: Endpoints,
    garbage: Garbage,
    gateways: Gateways,
    dashboards: Dashboards,
}

/// Scheduled task of a component.
#[derive(Debug)]
enum Chore {
    /// Create the nodes.
    Furnish,
    /// Bind a new pod.
    Schedule(Arc<PodId>),
    /// Retry the unschedulable pods.
    ScheduleAgain,
    /// Execute the plan with this number for a pod.
    Tend(Arc<PodId>, u64),
    /// Trigger the fault of a pod.
    Strike(Arc<PodId>),
    /// End a terminating pod.
    End(Arc<PodId>),
    /// Sync the EndpointSlice of a Service.
    Publish((String, String)),
    /// Write the status of a Gateway or an HTTPRoute.
    LetIn(Way),
    /// Process the object with this uid in the garbage collector.
    Collect(String),
}

/// Context shared by the components while they observe a change.
struct Desk<'a> {
    now: Timestamp,
    latencies: &'a Pace,
    faults: &'a mut Fates,
    timers: &'a mut Agenda<Chore>,
}

impl Desk<'_> {
    fn after(&mut self, delay: Duration, task: Chore) {
        self.timers.plan(later(self.now, delay), task);
    }
}

impl Cluster {
    /// Creates a cluster. The nodes are created by the first call of [`Self::act`].
    pub fn new(capacity: Nodes, latencies: Pace, faults: Fates) -> Self {
        let mut timers = Agenda::default();
        timers.plan(Timestamp::UNIX_EPOCH, Chore::Furnish);
        Self {
            latencies,
            faults,
            timers,
            pods: BTreeMap::new(),
            made: 0,
            scheduler: Scheduler::new(capacity),
            kubelet: Kubelet::default(),
            endpoints: Endpoints::default(),
            garbage: Garbage::default(),
            gateways: Gateways::default(),
            dashboards: Dashboards::default(),
        }
    }

    /// Observes a change of an object and schedules the resulting tasks. All changes have to be
    /// observed in order, including those that the cluster itself makes.
    pub fn see(&mut self, now: Timestamp, change: &Change) {
        let context = &mut Desk { now, latencies: &self.latencies, faults: &mut self.faults, timers: &mut self.timers };
        match change.kind.kind.as_str() {
            // Events are frequent and no component reacts to them.
            "Event" => return,
            "Pod" => {
                self.endpoints.see_pod(context, &change.object, change.before.as_deref(), change.gone);
                self.see_pod(now, change);
            }
            "Service" => self.endpoints.see_service(context, &change.object, change.gone),
            "EndpointSlice" => self.endpoints.see_slice(context, &change.object, change.gone),
            _ => {}
        }
        let context = &mut Desk { now, latencies: &self.latencies, faults: &mut self.faults, timers: &mut self.timers };
        self.garbage.see(context, change);
        self.gateways.see(context, change);
    }

    fn see_pod(&mut self, now: Timestamp, change: &Change) {
        let context = &mut Desk { now, latencies: &self.latencies, faults: &mut self.faults, timers: &mut self.timers };
        let pod = &change.object;
        let id = self.pods.entry(uid(pod).to_owned()).or_insert_with(|| {
            let (namespace, name) = key(pod);
            self.made += 1;
            Arc::new(PodId { ordinal: self.made - 1, namespace, name, uid: uid(pod).to_owned() })
        });
        let id = id.clone();
        self.scheduler.see(context, &id, pod, change.gone);
        if change.gone {
            self.pods.remove(&id.uid);
            self.kubelet.forget(&id);
        } else if let Some(number) = self.scheduler.node_number(text(pod, "/spec/nodeName")) {
            self.kubelet.see(context, &id, pod, nodes::host_address(number));
        }
    }

    /// Returns the due time of the next task; `None` if there is none.
    pub fn next(&self) -> Option<Timestamp> {
        self.timers.next()
    }

    /// Runs all due tasks.
    pub fn act(&mut self, now: Timestamp, api: &mut Api) {
        while let Some(task) = self.timers.take(now) {
            match task {
                Chore::Furnish => self.scheduler.furnish(now, api),
                Chore::Schedule(pod) => self.scheduler.schedule(now, api, &pod),
                Chore::ScheduleAgain => self.scheduler.schedule_again(now, api),
                Chore::Tend(pod, plan) => self.kubelet.tend(now, api, &pod, plan),
                Chore::Strike(pod) => self.kubelet.strike(now, &mut self.faults, api, &pod),
                Chore::End(pod) => {
                    let (latencies, faults, timers) = (&self.latencies, &mut self.faults, &mut self.timers);
                    self.kubelet.end(&mut Desk { now, latencies, faults, timers }, api, &pod);
                }
                Chore::Publish(service) => self.endpoints.publish(now, api, &service),
                Chore::LetIn(way) => self.gateways.let_in(now, api, &way),
                Chore::Collect(uid) => self.garbage.collect(now, api, &uid),
            }
        }
    }

    /// Responds to a proxied request to a Service or a pod.
    pub fn answer(&mut self, now: Timestamp, api: &Api, call: &Proxied) -> Response<Bytes> {
        let mut proxy = Proxy {
            now,
            api,
            latencies: &self.latencies,
            faults: &mut self.faults,
            endpoints: &self.endpoints,
            kubelet: &self.kubelet,
            dashboards: &mut self.dashboards,
        };
        proxy.answer(call)
    }

    /// Disables faults from now on: pods with a lasting fault become ready, and Ray dashboards
    /// respond.
    pub fn heal(&mut self, now: Timestamp) {
        self.faults.heal();
        self.timers.strike_out(|task| matches!(task, Chore::Strike(_)));
        let context = &mut Desk { now, latencies: &self.latencies, faults: &mut self.faults, timers: &mut self.timers };
        self.kubelet.heal(context);
    }

    /// Returns the faults triggered so far.
    pub fn struck(&self) -> &FateList {
        self.faults.struck()
    }
}
