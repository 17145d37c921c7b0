//! In-memory Kubernetes API server: a deterministic function of requests and time.
//!
//! Implements what Sluice and its users rely on: uids, resource versions, generations, status
//! subresources, merge and JSON patches, server-side apply, defaulting, CRD schemas and their CEL
//! rules, paginated lists, watches with bookmarks and compaction, finalizers and graceful deletion.
//! The tests in [`recorded`] compare it with recorded responses of a real API server.
//!
//! Not implemented: RBAC, admission (policies, webhooks, limits, service accounts), `dryRun`,
//! strategic merge patches, discovery, `metadata.managedFields` in responses (field owners are
//! still tracked), and deletion of the contents of terminating namespaces.
//!
//! Simulated controllers change objects through the methods of [`Api`]; watches report these
//! changes like any other.

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

/// Namespaces that exist from the start.
const NAMESPACES: [&str; 3] = ["default", "kube-system", "sluice-system"];

/// PriorityClasses that exist from the start, with their values.
const PRIORITIES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// In-memory API server: stored objects, their history and their field owners.
#[derive(Debug)]
pub struct Api {
    store: Store,
    ledger: Ledger,
    /// Number of objects created so far. Uids and generated names derive from it.
    made: u64,
    /// Source of a random uid order; uids ascend if it is `None`.
    uids: Option<Chance>,
}

/// Response to a request.
#[derive(Debug)]
pub enum Answer {
    /// A complete HTTP response.
    Done(Response<Bytes>),
    /// A stream of watch events.
    Watch(Watch),
    /// A request to forward to a Service or a pod.
    Proxy(Proxied),
}

/// Request to forward through the Service or pod proxy subresource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxied {
    /// Namespace of the Service or pod.
    pub namespace: String,
    /// Target Service or pod.
    pub target: ProxyTarget,
    /// HTTP method of the forwarded request.
    pub method: Method,
    /// Path and query of the forwarded request, without the proxy prefix.
    pub path_and_query: String,
    /// Body of the forwarded request.
    pub body: Bytes,
}

impl Api {
    /// Creates an API server that holds only the initial namespaces and PriorityClasses.
    pub fn new(now: Timestamp) -> Self {
        let mut api = Self { store: Store::new(), ledger: Ledger::default(), made: 0, uids: None };
        for name in NAMESPACES {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            api.create(now, namespace).expect("the store is empty");
        }
        for (name, value) in PRIORITIES {
            let metadata = json!({"name": name});
            let class = json!({"kind": "PriorityClass", "metadata": metadata, "value": value});
            api.create(now, class).expect("the store is empty");
        }
        api
    }

    /// Assigns uids in a random order, as a real API server does, if `order` is given.
    #[must_use]
    pub fn with_uids_of(self, order: Option<Chance>) -> Self {
        Self { uids: order, ..self }
    }

    /// Returns all changes from position `index` in the log on. Pass the number of changes already
    /// seen.
    pub fn changes_from(&self, index: usize) -> &[Change] {
        self.store.log().get(index..).unwrap_or_default()
    }

    /// Compacts the history: watches and list continuations from earlier versions then fail with
    /// 410.
    pub fn compact(&mut self) {
        self.store.compact();
    }

    /// Returns the encoded events of a watch since the last call.
    pub fn events(&self, watch: &mut Watch) -> Vec<Bytes> {
        watch.events(&self.store)
    }

    /// Returns a bookmark event with the version up to which the watch has seen all changes.
    pub fn bookmark(&self, watch: &mut Watch) -> Bytes {
        watch.bookmark(&self.store)
    }

    /// Returns an object by name; `namespace` is empty for cluster-scoped kinds.
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<&Arc<Value>> {
        self.store.get(kinds::named(kind), &store::key(namespace, name)).map(|stored| &stored.object)
    }

    /// Returns all objects of a kind, ordered by key.
    pub fn list(&self, kind: &str) -> impl Iterator<Item = &Arc<Value>> + use<'_> {
        self.store.range(kinds::named(kind), "", "").map(|(_, stored)| &stored.object)
    }

    /// Creates an object.
    ///
    /// # Errors
    /// Returns the error that a client would get.
    pub fn create(&mut self, now: Timestamp, object: Value) -> Result<Arc<Value>, Refusal> {
        let kind = kinds::named(object.get("kind").and_then(Value::as_str).unwrap_or_default());
        let namespace = fields::namespace(&object).to_owned();
        Ok(self.store_new(now, kind, &namespace, object, &own_hand(Part::Main))?.object)
    }

    /// Changes the status of an object.
    ///
    /// # Errors
    /// Returns the error that a client would get.
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

    /// Changes an object except for its status.
    ///
    /// # Errors
    /// Returns the error that a client would get.
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
        namespaced_name: (&str, &str),
        part: Part,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), Refusal> {
        let changed = |old: &Value| {
            let mut new = old.clone();
            change(&mut new);
            Ok(new)
        };
        self.store_changed(now, kinds::named(kind), namespaced_name, &own_hand(part), changed).map(drop)
    }

    /// Deletes an object if it meets the preconditions in `options`.
    ///
    /// # Errors
    /// Returns the error that a client would get.
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

    /// Deletes an object with grace period 0, as the kubelet does with a terminated pod. An object
    /// with finalizers stays.
    pub fn remove(&mut self, now: Timestamp, kind: &str, namespace: &str, name: &str) {
        let immediately = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
        // It may have been deleted already.
        let _ = self.delete_stored(now, kinds::named(kind), (namespace, name), &immediately);
    }
}

/// Returns the write context of the cluster's built-in controllers, which bypass immutability
/// checks.
fn own_hand(part: Part) -> Hand {
    let manager = Manager { name: "cluster".into(), applies: false, status: part == Part::Status };
    Hand { manager, part, trusted: true, strict: false, touches: false }
}

/// Returns the store key of an object.
fn key_of(object: &Value) -> String {
    store::key(fields::namespace(object), fields::name(object))
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
