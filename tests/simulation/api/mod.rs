//! In-memory Kubernetes API server: a deterministic function of requests and time.
//!
//! Implements what Sluice and its users rely on: uids, resource versions, generations, status
//! subresources, merge and JSON patches, server-side apply, defaulting, CRD schemas and their CEL
//! rules, our ValidatingAdmissionPolicies, paginated lists, watches with bookmarks and compaction,
//! finalizers and graceful deletion.
//! The tests in [`recorded`] compare it with recorded responses of a real API server.
//!
//! Not implemented: RBAC, other admission (webhooks, service accounts), `dryRun` except of creations,
//! strategic merge patches, discovery, `metadata.managedFields` in responses (field owners are
//! still tracked), and deletion of the contents of terminating namespaces.
//!
//! Simulated controllers change objects through the methods of [`Api`]; watches report these
//! changes like any other.

mod apply;
mod builtin;
mod cel;
mod deletion;
mod handle;
mod identity;
pub mod kinds;
mod list;
mod metadata;
mod object_meta;
mod patch;
mod policies;
mod route;
mod schema;
mod selector;
mod status_error;
mod store;
mod watch;
mod write;

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response};
use jiff::Timestamp;
use serde_json::{Value, json};

pub use deletion::{DeleteOptions, Propagation};
pub use kinds::ResourceKind;
pub use policies::{InstalledPolicies, UserName};
pub use route::ProxyTarget;
pub use status_error::StatusError;
pub use store::ObjectChange;
pub use watch::Watch;

use crate::rng::SeededRandom;
use apply::{FieldManager, ManagedFields};
use store::{Store, StoreBackup};
use write::{WriteContext, WriteScope};

/// Namespaces that exist from the start.
const INITIAL_NAMESPACES: [&str; 3] = ["default", "kube-system", "sluice-system"];

/// PriorityClasses that exist from the start, with their values.
const INITIAL_PRIORITY_CLASSES: [(&str, i64); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];

/// In-memory API server: stored objects, their history and their field owners.
#[derive(Debug)]
pub struct ApiServer {
    store: Store,
    managed_fields: ManagedFields,
    /// Number of objects created so far. Uids and generated names derive from it.
    created_count: u64,
    /// Source of a random uid order; uids ascend if it is `None`.
    uid_rng: Option<SeededRandom>,
    policies: InstalledPolicies,
    backup: Option<(StoreBackup, ManagedFields)>,
}

/// Response to a request.
#[derive(Debug)]
pub enum ApiResponse {
    /// A complete HTTP response.
    Complete(Response<Bytes>),
    /// A stream of watch events.
    Watch(Watch),
    /// A request to forward to a Service or a pod.
    Proxy(ProxyRequest),
}

/// Request to forward through the Service or pod proxy subresource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProxyRequest {
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

impl ApiServer {
    /// Creates an API server that holds only the initial namespaces and PriorityClasses.
    pub fn new(now: Timestamp) -> Self {
        let mut api = Self {
            store: Store::new(),
            managed_fields: ManagedFields::default(),
            created_count: 0,
            uid_rng: None,
            policies: InstalledPolicies::All,
            backup: None,
        };
        for name in INITIAL_NAMESPACES {
            let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            api.create(now, namespace).expect("the store is empty");
        }
        for (name, value) in INITIAL_PRIORITY_CLASSES {
            let metadata = json!({"name": name});
            let class = json!({"kind": "PriorityClass", "metadata": metadata, "value": value});
            api.create(now, class).expect("the store is empty");
        }
        api
    }

    /// Installs these admission policies. The default is all of them.
    pub fn with_policies(self, policies: InstalledPolicies) -> Self {
        Self { policies, ..self }
    }

    /// Assigns uids in a random order, as a real API server does, if `order` is given.
    #[must_use]
    pub fn with_uid_order(self, order: Option<SeededRandom>) -> Self {
        Self { uid_rng: order, ..self }
    }

    /// Returns all changes from position `index` in the log on. Pass the number of changes already
    /// seen.
    pub fn changes_from(&self, index: usize) -> &[ObjectChange] {
        self.store.log().get(index..).unwrap_or_default()
    }

    /// Compacts the history: watches and list continuations from earlier versions then fail with
    /// 410.
    pub fn compact(&mut self) {
        self.store.compact();
    }

    /// Backs up the database, instead of an earlier backup.
    pub fn back_up(&mut self) {
        self.backup = Some((self.store.back_up(), self.managed_fields.clone()));
    }

    /// Restores the backup. Open watches are broken then. Returns false if there is none.
    pub fn restore(&mut self, now: Timestamp) -> bool {
        let Some((store, managed_fields)) = &self.backup else { return false };
        self.store.restore(now, store);
        self.managed_fields = managed_fields.clone();
        true
    }

    /// Returns the number of restored backups.
    pub fn restores(&self) -> u64 {
        self.store.restores()
    }

    /// Returns true if a backup was restored since a watch was opened.
    pub fn is_broken(&self, watch: &Watch) -> bool {
        watch.is_broken(&self.store)
    }

    /// Returns the version that was current at a time; the oldest one that can still be listed if that
    /// version was compacted.
    pub fn version_at(&self, at: Timestamp) -> u64 {
        let log = self.store.log();
        let later = log.partition_point(|change| change.time <= at);
        let version = later.checked_sub(1).map_or(0, |last| log[last].version);
        version.min(self.store.version()).max(self.store.compacted()).max(1)
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
        self.store.get(kinds::by_name(kind), &store::object_key(namespace, name)).map(|stored| &stored.object)
    }

    /// Returns all objects of a kind, ordered by key.
    pub fn list(&self, kind: &str) -> impl Iterator<Item = &Arc<Value>> + use<'_> {
        self.store.range(kinds::by_name(kind), "", "").map(|(_, stored)| &stored.object)
    }

    /// Creates an object.
    ///
    /// # Errors
    /// Returns the error that a client would get.
    pub fn create(&mut self, now: Timestamp, object: Value) -> Result<Arc<Value>, StatusError> {
        let kind = kinds::by_name(object.get("kind").and_then(Value::as_str).unwrap_or_default());
        let namespace = object_meta::namespace(&object).to_owned();
        Ok(self.create_object(now, kind, &namespace, object, &trusted_writer(WriteScope::Main))?.object)
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
    ) -> Result<(), StatusError> {
        self.modify(now, kind, (namespace, name), WriteScope::Status, change)
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
    ) -> Result<(), StatusError> {
        self.modify(now, kind, (namespace, name), WriteScope::Main, change)
    }

    fn modify(
        &mut self,
        now: Timestamp,
        kind: &str,
        namespaced_name: (&str, &str),
        part: WriteScope,
        change: impl FnOnce(&mut Value),
    ) -> Result<(), StatusError> {
        let changed = |old: &Value| {
            let mut new = old.clone();
            change(&mut new);
            Ok(new)
        };
        self.update_object(now, kinds::by_name(kind), namespaced_name, &trusted_writer(part), changed).map(drop)
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
    ) -> Result<(), StatusError> {
        self.delete_object(now, kinds::by_name(kind), (namespace, name), options).map(drop)
    }

    /// Deletes an object with grace period 0, as the kubelet does with a terminated pod. An object
    /// with finalizers stays.
    pub fn delete_immediately(&mut self, now: Timestamp, kind: &str, namespace: &str, name: &str) {
        let immediately = DeleteOptions { grace_seconds: Some(0), ..DeleteOptions::default() };
        // It may have been deleted already.
        let _ = self.delete_object(now, kinds::by_name(kind), (namespace, name), &immediately);
    }
}

/// Returns the write context of the cluster's built-in controllers, which bypass immutability
/// checks.
fn trusted_writer(part: WriteScope) -> WriteContext {
    let manager = FieldManager { name: "cluster".into(), is_apply: false, is_status: part == WriteScope::Status };
    WriteContext {
        manager,
        scope: part,
        is_trusted: true,
        user: None,
        rejects_unknown_fields: false,
        is_dry_run: false,
        forces_new_version: false,
    }
}

/// Returns the store key of an object.
fn store_key(object: &Value) -> String {
    store::object_key(object_meta::namespace(object), object_meta::name(object))
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
