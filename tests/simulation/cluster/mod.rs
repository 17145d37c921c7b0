//! What else lives in a cluster: the scheduler, kubelets, the controllers of EndpointSlices and of garbage, and Serve on
//! Ray's heads.
//!
//! All of it is plain data that goes by what it has seen: [`Cluster::see`] notes a change and plans chores, [`Cluster::act`]
//! does those that are due. So it lags behind the API server as the real ones do, by times that a seed gives.

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

/// What lives in a cluster beside the API server and Sluice.
#[derive(Debug)]
pub struct Cluster {
    pace: Pace,
    fates: Fates,
    agenda: Agenda<Chore>,
    /// The pods that are there, by their uids.
    pods: BTreeMap<String, Arc<PodId>>,
    /// How many there have been.
    made: u64,
    scheduler: Scheduler,
    kubelet: Kubelet,
    endpoints: Endpoints,
    garbage: Garbage,
    gateways: Gateways,
    dashboards: Dashboards,
}

/// Something to do at a time.
#[derive(Debug)]
enum Chore {
    /// Make the nodes.
    Furnish,
    /// Bind a new pod.
    Schedule(Arc<PodId>),
    /// Try to bind the pods that fitted nowhere.
    ScheduleAgain,
    /// Carry out the plan of this number for a pod.
    Tend(Arc<PodId>, u64),
    /// Let a pod meet with its fate.
    Strike(Arc<PodId>),
    /// Let a deleted pod go.
    End(Arc<PodId>),
    /// Bring the endpoints of a Service up to date.
    Publish((String, String)),
    /// Say of a Gateway or a route what became of it.
    LetIn(Way),
    /// See whether the object of this uid is garbage.
    Collect(String),
}

/// What everybody works with.
struct Desk<'a> {
    now: Timestamp,
    pace: &'a Pace,
    fates: &'a mut Fates,
    agenda: &'a mut Agenda<Chore>,
}

impl Desk<'_> {
    fn after(&mut self, delay: Duration, chore: Chore) {
        self.agenda.plan(later(self.now, delay), chore);
    }
}

impl Cluster {
    /// A cluster with these nodes, which it makes when it acts first.
    pub fn new(capacity: Nodes, pace: Pace, fates: Fates) -> Self {
        let mut agenda = Agenda::default();
        agenda.plan(Timestamp::UNIX_EPOCH, Chore::Furnish);
        Self {
            pace,
            fates,
            agenda,
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

    /// Takes note of a change of an object, and plans what follows from it. It has to hear of every change, in order, its own
    /// ones too.
    pub fn see(&mut self, now: Timestamp, change: &Change) {
        let desk = &mut Desk { now, pace: &self.pace, fates: &mut self.fates, agenda: &mut self.agenda };
        match change.kind.kind.as_str() {
            // There are many, and nothing follows from them.
            "Event" => return,
            "Pod" => {
                self.endpoints.see_pod(desk, &change.object, change.before.as_deref(), change.gone);
                self.see_pod(now, change);
            }
            "Service" => self.endpoints.see_service(desk, &change.object, change.gone),
            "EndpointSlice" => self.endpoints.see_slice(desk, &change.object, change.gone),
            _ => {}
        }
        let desk = &mut Desk { now, pace: &self.pace, fates: &mut self.fates, agenda: &mut self.agenda };
        self.garbage.see(desk, change);
        self.gateways.see(desk, change);
    }

    fn see_pod(&mut self, now: Timestamp, change: &Change) {
        let desk = &mut Desk { now, pace: &self.pace, fates: &mut self.fates, agenda: &mut self.agenda };
        let pod = &change.object;
        let id = self.pods.entry(uid(pod).to_owned()).or_insert_with(|| {
            let (namespace, name) = key(pod);
            self.made += 1;
            Arc::new(PodId { ordinal: self.made - 1, namespace, name, uid: uid(pod).to_owned() })
        });
        let id = id.clone();
        self.scheduler.see(desk, &id, pod, change.gone);
        if change.gone {
            self.pods.remove(&id.uid);
            self.kubelet.forget(&id);
        } else if let Some(number) = self.scheduler.node_number(text(pod, "/spec/nodeName")) {
            self.kubelet.see(desk, &id, pod, nodes::host_address(number));
        }
    }

    /// When the next chore is due.
    pub fn next(&self) -> Option<Timestamp> {
        self.agenda.next()
    }

    /// Does what is due.
    pub fn act(&mut self, now: Timestamp, api: &mut Api) {
        while let Some(chore) = self.agenda.take(now) {
            match chore {
                Chore::Furnish => self.scheduler.furnish(now, api),
                Chore::Schedule(pod) => self.scheduler.schedule(now, api, &pod),
                Chore::ScheduleAgain => self.scheduler.schedule_again(now, api),
                Chore::Tend(pod, plan) => self.kubelet.tend(now, api, &pod, plan),
                Chore::Strike(pod) => self.kubelet.strike(now, &mut self.fates, api, &pod),
                Chore::End(pod) => {
                    let (pace, fates, agenda) = (&self.pace, &mut self.fates, &mut self.agenda);
                    self.kubelet.end(&mut Desk { now, pace, fates, agenda }, api, &pod);
                }
                Chore::Publish(service) => self.endpoints.publish(now, api, &service),
                Chore::LetIn(way) => self.gateways.let_in(now, api, &way),
                Chore::Collect(uid) => self.garbage.collect(now, api, &uid),
            }
        }
    }

    /// Answers a call to a Service or a pod.
    pub fn answer(&mut self, now: Timestamp, api: &Api, call: &Proxied) -> Response<Bytes> {
        let mut proxy = Proxy {
            now,
            api,
            pace: &self.pace,
            fates: &mut self.fates,
            endpoints: &self.endpoints,
            kubelet: &self.kubelet,
            dashboards: &mut self.dashboards,
        };
        proxy.answer(call)
    }

    /// Lets all go well from now on: pods that were never to be ready get ready, and dashboards do what they are asked.
    pub fn heal(&mut self, now: Timestamp) {
        self.fates.heal();
        self.agenda.strike_out(|chore| matches!(chore, Chore::Strike(_)));
        let desk = &mut Desk { now, pace: &self.pace, fates: &mut self.fates, agenda: &mut self.agenda };
        self.kubelet.heal(desk);
    }

    /// What pods and dashboards met with so far.
    pub fn struck(&self) -> &FateList {
        self.fates.struck()
    }
}
