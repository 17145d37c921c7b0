//! An API server in memory: a function of requests and time.
//!
//! What Sluice and its users rely on is here as in the real one: uids, versions, generations, statuses with paths of their
//! own, merge and JSON patches, server-side apply, defaults, schemas and their rules, lists in pieces, watches with bookmarks
//! and forgotten history, finalizers and graceful deletion. [`recorded`] holds it against a real one.
//!
//! Not here: who may do what, admission (policies, webhooks, limits, service accounts), rehearsals (`dryRun`), strategic
//! merge patches, discovery, `metadata.managedFields` in answers (owners are kept all the same), and the emptying of
//! namespaces that are deleted.
//!
//! Other controllers of the cluster act on the same objects by the calls below; they are seen by watches like any other.

mod apply;
mod builtin;
mod deletion;
mod fields;
mod handle;
mod identity;
pub mod kinds;
mod list;
mod metadata;
mod patch;
mod refusal;
mod route;
mod schema;
mod selector;
mod store;
mod watch;
mod write;

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response};
use jiff::Timestamp;
use serde_json::{Value, json};

pub use deletion::{DeleteOptions, Propagation};
pub use kinds::Kind;
pub use refusal::Refusal;
pub use route::ProxyTarget;
pub use store::Change;
pub use watch::Watch;

use crate::chance::Chance;
use apply::{Ledger, Manager};
use store::Store;
use write::{Hand, Part};

/// Namespaces that are there from the start.
const NAMESPACES: [&str; 3] = ["default", "kube-system", "sluice-system"];

/// Priorities that are there from the start.
const PRIORITIES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// The API server.
#[derive(Debug)]
pub struct Api {
    store: Store,
    ledger: Ledger,
    /// Objects made so far, which uids and generated names come from.
    made: u64,
    /// What the order of uids is drawn from; they ascend if there is nothing.
    uids: Option<Chance>,
}

/// What a request is answered with.
#[derive(Debug)]
pub enum Answer {
    /// A response.
    Done(Response<Bytes>),
    /// Lines that come as things change.
    Watch(Watch),
    /// What a Service or a pod says.
    Proxy(Proxied),
}

/// A call to something behind the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxied {
    /// Namespace of the Service or pod.
    pub namespace: String,
    /// The Service or pod.
    pub target: ProxyTarget,
    /// Method of the call.
    pub method: Method,
    /// Path and query of the call, without the part that got it there.
    pub path_and_query: String,
    /// Body of the call.
    pub body: Bytes,
}

impl Api {
    /// An API server with nothing but a few namespaces.
    pub fn new(now: Timestamp) -> Self {
        let mut api = Self { store: Store::new(), ledger: Ledger::default(), made: 0, uids: None };
        for name in NAMESPACES {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            api.create(now, namespace).expect("nothing is there yet");
        }
        for (name, value) in PRIORITIES {
            let metadata = json!({"name": name});
            let class = json!({"kind": "PriorityClass", "metadata": metadata, "value": value});
            api.create(now, class).expect("nothing is there yet");
        }
        api
    }

    /// The same with uids in an order that is drawn: a real API server's are in none.
    #[must_use]
    pub fn with_uids_of(self, order: Option<Chance>) -> Self {
        Self { uids: order, ..self }
    }

    /// The changes from the `index`th on, which is the number of those seen before.
    pub fn changes_from(&self, index: usize) -> &[Change] {
        self.store.log().get(index..).unwrap_or_default()
    }

    /// Forgets history: watches and lists that go on from before now are refused from now on.
    pub fn compact(&mut self) {
        self.store.compact();
    }

    /// The lines that are due to a watch since the last call.
    pub fn events(&self, watch: &mut Watch) -> Vec<Bytes> {
        watch.events(&self.store)
    }

    /// A line that tells a watch how far it has come.
    pub fn bookmark(&self, watch: &mut Watch) -> Bytes {
        watch.bookmark(&self.store)
    }

    /// The object of this name; the namespace is empty for kinds without.
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<&Arc<Value>> {
        self.store.get(kinds::named(kind), &store::key(namespace, name)).map(|stored| &stored.object)
    }

    /// All objects of a kind, by key.
    pub fn list(&self, kind: &str) -> impl Iterator<Item = &Arc<Value>> + use<'_> {
        self.store.range(kinds::named(kind), "", "").map(|(_, stored)| &stored.object)
    }

    /// Creates an object.
    ///
    /// # Errors
    /// As the request would be refused.
    pub fn create(&mut self, now: Timestamp, object: Value) -> Result<Arc<Value>, Refusal> {
        let kind = kinds::named(object.get("kind").and_then(Value::as_str).unwrap_or_default());
        let namespace = fields::namespace(&object).to_owned();
        Ok(self.store_new(now, kind, &namespace, object, &own_hand(Part::Main))?.object)
    }

    /// Changes the status of an object.
    ///
    /// # Errors
    /// As the request would be refused.
    pub fn update_status(
        &mut self,
        now: Timestamp,
        kind: &str,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), Refusal> {
        self.change(now, kind, (namespace, name), Part::Status, change)
    }

    /// Changes an object, all but its status.
    ///
    /// # Errors
    /// As the request would be refused.
    pub fn update(
        &mut self,
        now: Timestamp,
        kind: &str,
        namespace: &str,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), Refusal> {
        self.change(now, kind, (namespace, name), Part::Main, change)
    }

    fn change(
        &mut self,
        now: Timestamp,
        kind: &str,
        place: (&str, &str),
        part: Part,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), Refusal> {
        let changed = |old: &Value| {
            let mut new = old.clone();
            change(&mut new);
            Ok(new)
        };
        self.store_changed(now, kinds::named(kind), place, &own_hand(part), changed).map(drop)
    }

    /// Deletes an object, if it has this uid.
    ///
    /// # Errors
    /// As the request would be refused.
    pub fn delete(
        &mut self,
        now: Timestamp,
        kind: &str,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(), Refusal> {
        self.delete_stored(now, kinds::named(kind), (namespace, name), options).map(drop)
    }

    /// Takes an object out that has ended, as the kubelet does with a pod: its grace is over. It stays if a finalizer is left.
    pub fn remove(&mut self, now: Timestamp, kind: &str, namespace: &str, name: &str) {
        let at_once = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
        // It may have gone by itself meanwhile.
        let _ = self.delete_stored(now, kinds::named(kind), (namespace, name), &at_once);
    }
}

/// The hand of the cluster's own controllers.
fn own_hand(part: Part) -> Hand {
    let manager = Manager { name: "cluster".into(), applies: false, status: part == Part::Status };
    Hand { manager, part, trusted: true, strict: false, touches: false }
}

/// The key of an object in the store.
fn key_of(object: &Value) -> String {
    store::key(fields::namespace(object), fields::name(object))
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
