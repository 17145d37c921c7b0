//! The simulated environment of Sluice: API server, cluster and observer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use http::{Method, Request, Response};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;

use crate::api::{Answer, Api, Kind, Watch, kinds};
use crate::cluster::Cluster;
use crate::observer::Observer;
use crate::time::Time;

/// The state behind the wire.
pub struct World {
    /// The API server.
    pub api: Api,
    /// Nodes, controllers and Ray dashboards.
    pub cluster: Cluster,
    /// Checker of the invariants.
    pub observer: Observer,
    /// Number of changes delivered to the cluster and the observer.
    seen: usize,
    changed_at: Timestamp,
    /// Number of write requests, including those that changed nothing.
    pub writes: u64,
    /// Wakes waiters in the order of their arrival, which a watch channel does not guarantee.
    changed: Arc<Notify>,
    /// The same for waiters on one kind, by the index of the kind.
    changed_kinds: Vec<Arc<Notify>>,
}

impl World {
    /// Returns kind and name of the objects changed since a time, without Events.
    pub fn changed_since(&self, since: Timestamp) -> Vec<String> {
        let changes = self.api.changes_from(0).iter().rev().take_while(|change| change.at > since);
        let named = changes.filter(|change| change.kind.kind != "Event").map(|change| {
            let metadata = &change.object["metadata"];
            format!("{} {}", change.kind.kind, metadata["name"].as_str().unwrap_or_default())
        });
        named.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn hand_on(&mut self, now: Timestamp) {
        let mut kinds = BTreeSet::new();
        while let Some(change) = self.api.changes_from(self.seen).first() {
            self.seen += 1;
            kinds.insert(change.kind.index);
            self.cluster.see(now, change);
            self.observer.see(now, change);
            // Events do not defer quiescence: nothing reacts to them.
            if change.kind.kind != "Event" {
                self.changed_at = now;
            }
        }
        if !kinds.is_empty() {
            self.changed.notify_waiters();
        }
        kinds.into_iter().for_each(|kind| self.changed_kinds[kind].notify_waiters());
    }
}

/// Result of a request.
pub enum Outcome {
    /// A complete response.
    Done(Response<Bytes>),
    /// An open watch.
    Watch(Watch),
}

/// A handle that the tasks share. There is a single thread, so the lock is never contended.
#[derive(Clone)]
pub struct Shared {
    world: Arc<Mutex<World>>,
    /// The virtual time.
    pub time: Time,
}

impl Shared {
    /// Creates an environment from its parts.
    pub fn new(time: Time, api: Api, cluster: Cluster, observer: Observer) -> Self {
        let changed_at = time.now();
        let changed_kinds = kinds::all().iter().map(|_| Arc::default()).collect();
        let (changed, writes) = (Arc::default(), 0);
        let world = World { api, cluster, observer, seen: 0, changed_at, writes, changed, changed_kinds };
        Self { world: Arc::new(Mutex::new(world)), time }
    }

    /// Executes a request.
    pub fn carry_out(&self, request: Request<Bytes>) -> Outcome {
        let (now, mut world) = (self.time.now(), self.lock());
        let is_write = request.method() != Method::GET;
        let outcome = match world.api.handle(now, request) {
            Answer::Done(response) => {
                world.writes += u64::from(is_write);
                Outcome::Done(response)
            }
            Answer::Watch(watch) => Outcome::Watch(watch),
            Answer::Proxy(call) => {
                let World { api, cluster, .. } = &mut *world;
                Outcome::Done(cluster.answer(now, api, &call))
            }
        };
        world.hand_on(now);
        outcome
    }

    /// Reads or changes the state from outside, and delivers the changes.
    pub fn with<T>(&self, look: impl FnOnce(&mut World) -> T) -> T {
        let (now, mut world) = (self.time.now(), self.lock());
        let result = look(&mut world);
        world.hand_on(now);
        result
    }

    /// Returns a future that completes on the next change.
    pub fn next_change(&self) -> OwnedNotified {
        self.lock().changed.clone().notified_owned()
    }

    /// Returns a future that completes on the next change of a kind.
    pub fn next_change_of(&self, kind: &Kind) -> OwnedNotified {
        self.lock().changed_kinds[kind.index].clone().notified_owned()
    }

    /// Returns the time of the last change that was not an Event.
    pub fn changed_at(&self) -> Timestamp {
        self.lock().changed_at
    }

    /// Runs nodes, controllers and Ray dashboards when they are due. Never returns.
    pub async fn live(self) {
        loop {
            let changed = self.next_change();
            let next = self.lock().cluster.next().map(|at| self.time.instant(at));
            let due = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = due => self.with(|world| world.cluster.act(self.time.now(), &mut world.api)),
                () = changed => {}
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no task has panicked")
    }
}
