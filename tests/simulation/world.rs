//! The simulated environment of Sluice: API server, cluster and observer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http::{Request, Response};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::api::{ApiResponse, ApiServer, ResourceKind, UserName, Watch, kinds};
use crate::cluster::SimulatedCluster;
use crate::observer::Observer;
use crate::time::VirtualTime;
use crate::wire_log::{is_dry_run, write_kind};

/// The state behind the wire.
pub struct SimulatedWorld {
    /// The API server.
    pub api: ApiServer,
    /// Nodes, controllers and Ray dashboards.
    pub cluster: SimulatedCluster,
    /// Checker of the invariants.
    pub observer: Observer,
    /// Number of changes delivered to the cluster and the observer.
    delivered: usize,
    last_change: Timestamp,
    /// Numbers of the write requests of Sluice by verb and plural, such as `create pods`, including
    /// those that failed or changed nothing, without dry runs.
    pub writes: BTreeMap<String, u64>,
    /// Wakes waiters in the order of their arrival, which a watch channel does not guarantee.
    change_notify: Arc<Notify>,
    /// The same for waiters on one kind, by the index of the kind.
    kind_notifies: Vec<Arc<Notify>>,
}

impl SimulatedWorld {
    /// Returns kind and name of the objects changed since a time, without Events.
    pub fn changed_since(&self, since: Timestamp) -> Vec<String> {
        let changes = self.api.changes_from(0).iter().rev().take_while(|change| change.time > since);
        let named = changes.filter(|change| change.kind.kind != "Event").map(|change| {
            let metadata = &change.object["metadata"];
            format!("{} {}", change.kind.kind, metadata["name"].as_str().unwrap_or_default())
        });
        named.collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Restores the backup of the database. The controllers see the differences as changes; the observer
    /// starts again, since the state has jumped.
    pub fn restore(&mut self, now: Timestamp) {
        if !self.api.restore(now) {
            return;
        }
        let changes = self.api.changes_from(self.delivered);
        self.cluster.observe_restore(now, &self.api, changes);
        self.delivered += changes.len();
        self.observer.restart(now, &self.api);
        self.last_change = now;
        self.change_notify.notify_waiters();
        self.kind_notifies.iter().for_each(|kind| kind.notify_waiters());
    }

    fn deliver_changes(&mut self, now: Timestamp) {
        let mut kinds = BTreeSet::new();
        while let Some(change) = self.api.changes_from(self.delivered).first() {
            self.delivered += 1;
            kinds.insert(change.kind.index);
            self.cluster.observe(now, change);
            self.observer.observe(now, change);
            // Events do not defer quiescence: nothing reacts to them.
            if change.kind.kind != "Event" {
                self.last_change = now;
            }
        }
        if !kinds.is_empty() {
            self.change_notify.notify_waiters();
        }
        kinds.into_iter().for_each(|kind| self.kind_notifies[kind].notify_waiters());
    }
}

/// Result of a request.
pub enum RequestOutcome {
    /// A complete response.
    Response(Response<Bytes>),
    /// An open watch.
    Watch(Watch),
}

/// A handle that the tasks share. There is a single thread, so the lock is never contended.
#[derive(Clone)]
pub struct SharedWorld {
    world: Arc<Mutex<SimulatedWorld>>,
    /// The virtual time.
    pub time: VirtualTime,
}

impl SharedWorld {
    /// Creates an environment from its parts.
    pub fn new(time: VirtualTime, api: ApiServer, cluster: SimulatedCluster, observer: Observer) -> Self {
        let changed_at = time.now();
        let changed_kinds = kinds::all().iter().map(|_| Arc::default()).collect();
        let changed = Arc::default();
        let world = SimulatedWorld {
            api,
            cluster,
            observer,
            delivered: 0,
            last_change: changed_at,
            writes: BTreeMap::new(),
            change_notify: changed,
            kind_notifies: changed_kinds,
        };
        Self { world: Arc::new(Mutex::new(world)), time }
    }

    /// Executes a request.
    pub fn handle_request(&self, request: Request<Bytes>) -> RequestOutcome {
        let (now, mut world) = (self.time.now(), self.lock());
        let is_from_sluice = request.extensions().get() == Some(&UserName::SLUICE);
        let counts = is_from_sluice && !is_dry_run(request.uri());
        if let Some(write) = write_kind(request.method(), request.uri().path()).filter(|_| counts) {
            *world.writes.entry(write).or_default() += 1;
        }
        let outcome = match world.api.handle(now, request) {
            ApiResponse::Complete(response) => RequestOutcome::Response(response),
            ApiResponse::Watch(watch) => RequestOutcome::Watch(watch),
            ApiResponse::Proxy(call) => {
                let SimulatedWorld { api, cluster, .. } = &mut *world;
                RequestOutcome::Response(cluster.handle_proxy_request(now, api, &call))
            }
        };
        world.deliver_changes(now);
        outcome
    }

    /// Reads or changes the state from outside, and delivers the changes.
    pub fn with<T>(&self, look: impl FnOnce(&mut SimulatedWorld) -> T) -> T {
        let (now, mut world) = (self.time.now(), self.lock());
        let result = look(&mut world);
        world.deliver_changes(now);
        result
    }

    /// Returns a future that completes on the next change.
    pub fn next_change(&self) -> OwnedNotified {
        self.lock().change_notify.clone().notified_owned()
    }

    /// Returns a future that completes on the next change of a kind.
    pub fn next_change_of(&self, kind: &ResourceKind) -> OwnedNotified {
        self.lock().kind_notifies[kind.index].clone().notified_owned()
    }

    /// Returns the time of the last change that was not an Event.
    pub fn last_change(&self) -> Timestamp {
        self.lock().last_change
    }

    /// Runs nodes, controllers and Ray dashboards when they are due. Never returns.
    pub async fn run_cluster(self) {
        loop {
            let changed = self.next_change();
            let next = self.lock().cluster.next_deadline().map(|at| self.time.instant(at));
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = due => self.with(|world| world.cluster.run_due(self.time.now(), &mut world.api)),
                () = changed => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, SimulatedWorld> {
        self.world.lock().expect("no task has panicked")
    }
}
