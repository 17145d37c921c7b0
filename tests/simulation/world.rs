//! The world that Sluice acts in: an API server, a cluster, and somebody who watches what comes of it.

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

/// Everything behind the wire.
pub struct World {
    /// The API server.
    pub api: Api,
    /// Nodes, controllers and dashboards.
    pub cluster: Cluster,
    /// Who watches.
    pub observer: Observer,
    /// How many changes were handed on.
    seen: usize,
    changed_at: Timestamp,
    /// How many requests there were that ask for a change, whether or not they made one.
    pub writes: u64,
    /// Wakes those who wait in the order in which they came, which a watch channel doesn't.
    changed: Arc<Notify>,
    /// The same for those who wait for a kind, by its index.
    changed_kinds: Vec<Arc<Notify>>,
}

impl World {
    /// What has changed since then, but for Events.
    pub fn changed_since(&self, since: Timestamp) -> Vec<String> {
        let changes = self.api.changes_from(0).iter().rev().take_while(|change| change.at > since);
        let said = changes.filter(|change| change.kind.kind != "Event").map(|change| {
            let metadata = &change.object["metadata"];
            format!("{} {}", change.kind.kind, metadata["name"].as_str().unwrap_or_default())
        });
        said.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn hand_on(&mut self, now: Timestamp) {
        let mut kinds = BTreeSet::new();
        while let Some(change) = self.api.changes_from(self.seen).first() {
            self.seen += 1;
            kinds.insert(change.kind.index);
            self.cluster.see(now, change);
            self.observer.see(now, change);
            // Nobody waits for the Events that tell what happened.
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

/// What a request comes to.
pub enum Outcome {
    /// An answer.
    Done(Response<Bytes>),
    /// A watch that goes on.
    Watch(Watch),
}

/// A world that several tasks share. They take turns: there is one thread.
#[derive(Clone)]
pub struct Shared {
    world: Arc<Mutex<World>>,
    /// What time it is there.
    pub time: Time,
}

impl Shared {
    /// A new world, in which time starts to pass.
    pub fn new(time: Time, api: Api, cluster: Cluster, observer: Observer) -> Self {
        let changed_at = time.now();
        let changed_kinds = kinds::all().iter().map(|_| Arc::default()).collect();
        let (changed, writes) = (Arc::default(), 0);
        let world = World { api, cluster, observer, seen: 0, changed_at, writes, changed, changed_kinds };
        Self { world: Arc::new(Mutex::new(world)), time }
    }

    /// Has a request carried out.
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

    /// Looks at the world, or changes it from outside.
    pub fn with<T>(&self, look: impl FnOnce(&mut World) -> T) -> T {
        let (now, mut world) = (self.time.now(), self.lock());
        let result = look(&mut world);
        world.hand_on(now);
        result
    }

    /// Waits for the first change from now on.
    pub fn next_change(&self) -> OwnedNotified {
        self.lock().changed.clone().notified_owned()
    }

    /// Waits for the first change of a kind from now on.
    pub fn next_change_of(&self, kind: &Kind) -> OwnedNotified {
        self.lock().changed_kinds[kind.index].clone().notified_owned()
    }

    /// When anything changed last.
    pub fn changed_at(&self) -> Timestamp {
        self.lock().changed_at
    }

    /// Lets nodes, controllers and dashboards do what is due, for ever.
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
