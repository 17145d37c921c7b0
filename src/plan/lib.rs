//! The output of a planner: API writes, dry runs of pods, Kubernetes Events, Ray Serve calls, and
//! the next wake-up time.
//!
//! A planner is a pure function from the observed state to a [`Plan`]. It neither blocks nor keeps
//! state: it returns every write that separates the actual from the desired state, and runs again
//! when any of them completes. The engine drops a write to an object that already has one in flight
//! and replans after that one completes, so a planner never sees its own half-done work.

mod object_key;
mod pod_dry_run;
pub mod serve_config;
pub mod serve_status;

use std::fmt::Debug;

use jiff::Timestamp;
use kube_core::object::HasStatus;
use kube_core::{ObjectMeta, Resource, TypeMeta};
use serde::Serialize;
use serde_json::{Map, Value};

pub use object_key::ObjectKey;
pub use pod_dry_run::{PodDryRun, PodDryRunId, PodVerdict};
pub use serve_config::ServeConfig;
pub use serve_status::{Application, Deployment, Replica, ServeAnswer, ServeError, ServeReply, ServeStatus};

/// The output of one planner run for one object.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Plan {
    /// Writes to the API server, in sending order.
    pub writes: Vec<Write>,
    /// Kubernetes Events to emit.
    pub events: Vec<EventRecord>,
    /// Calls to the Serve REST API of Ray clusters.
    pub serve_calls: Vec<ServeCall>,
    /// Pods whose creation the API server has to check.
    pub pod_dry_runs: Vec<PodDryRun>,
    /// Absolute time at which to replan this object even if nothing changed; `None` for never.
    pub wake_at: Option<Timestamp>,
}

impl Plan {
    /// Appends a write; `None` adds nothing.
    pub fn write(&mut self, write: impl Into<Option<Write>>) {
        self.writes.extend(write.into());
    }

    /// Replans at `at` at the latest: an earlier `wake_at` stays.
    pub fn wake_by(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }
}

/// Identifies one object in the API server.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// API group and version, like `ray.io/v1` or `v1`.
    pub api_version: String,
    /// Kind, like `RayCluster`.
    pub kind: String,
    /// Plural resource name, like `rayclusters`.
    pub plural: String,
    /// Namespace; `None` for a cluster-scoped object.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
}

impl ObjectRef {
    /// Returns the reference to `object`.
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self::named::<K>(object.meta().namespace.clone(), object.meta().name.clone().unwrap_or_default())
    }

    /// Returns the type of the object.
    pub fn types(&self) -> TypeMeta {
        TypeMeta { api_version: self.api_version.clone(), kind: self.kind.clone() }
    }

    /// Returns the reference to the object of kind `K` with this name.
    pub fn named<K: Resource<DynamicType = ()>>(namespace: Option<String>, name: String) -> Self {
        Self {
            api_version: K::api_version(&()).into_owned(),
            kind: K::kind(&()).into_owned(),
            plural: K::plural(&()).into_owned(),
            namespace,
            name,
        }
    }
}

impl std::fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fmt_object(f, &self.kind, self.namespace.as_deref(), &self.name)
    }
}

/// Identifies one object among those of all kinds that Sluice watches: no two have the same name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectId {
    /// Kind, like `RayCluster`.
    pub kind: String,
    /// Namespace; `None` for a cluster-scoped object.
    pub namespace: Option<String>,
    /// Name of the object.
    pub name: String,
}

impl From<&ObjectRef> for ObjectId {
    fn from(object: &ObjectRef) -> Self {
        Self { kind: object.kind.clone(), namespace: object.namespace.clone(), name: object.name.clone() }
    }
}

impl std::fmt::Display for ObjectId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        fmt_object(f, &self.kind, self.namespace.as_deref(), &self.name)
    }
}

fn fmt_object(f: &mut std::fmt::Formatter<'_>, kind: &str, namespace: Option<&str>, name: &str) -> std::fmt::Result {
    match namespace {
        Some(namespace) => write!(f, "{kind} {namespace}/{name}"),
        None => write!(f, "{kind} {name}"),
    }
}

/// A single write to the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// Object to write.
    pub target: ObjectRef,
    /// Operation to perform on the target.
    pub op: WriteOp,
    /// Other objects that this write depends on, or that depend on what it changes. The write is
    /// sent only while no write to any of them is in flight; otherwise its planner runs again.
    pub blocked_by: Vec<ObjectRef>,
    /// Precedence over other writes.
    pub rank: WriteRank,
    /// Priority of the Workload that the write admits or requests quota with: of two such writes
    /// that wait, the one of the higher priority is sent first. 0 for all others.
    pub priority: i32,
}

/// Precedence of a write, the first one highest. A write that only reports or cleans up gives way to
/// those that let a job run, stop it, or release its quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WriteRank {
    /// Lets a job run, stops it, or releases quota, or something waits for it that does.
    #[default]
    Decision,
    /// Admits a Workload, after which its job can be started.
    Admission,
    /// Creates the Workload by which a job requests quota.
    QuotaRequest,
    /// Reports the numbers of a queue in its status.
    QueueStatus,
    /// Reports in a status how far an object is on its way to a state that something waits for.
    Progress,
    /// Reports why a Workload is pending.
    PendingCondition,
    /// Reports new numbers in the message of a pending Workload, whose reason is unchanged.
    PendingMessage,
    /// Deletes an object that has outlived its retention.
    Cleanup,
}

impl WriteRank {
    /// Returns true if the write decides, and false if it only reports or cleans up.
    pub fn decides(self) -> bool {
        self <= Self::QuotaRequest
    }
}

/// The operation of a write.
#[derive(Debug, Clone, PartialEq)]
pub enum WriteOp {
    /// Creates the object from this complete manifest.
    Create(Value),
    /// Applies a JSON merge patch to metadata and spec; it carries the resource version it was
    /// computed from.
    Patch(Value),
    /// Applies a JSON merge patch to the status subresource; it carries the resource version it was
    /// computed from.
    PatchStatus(Value),
    /// Deletes the object if it still has this uid.
    Delete {
        /// Precondition: uid of the object.
        uid: String,
        /// Use foreground deletion: the object stays, with a deletion timestamp, until its
        /// dependents are deleted.
        foreground: bool,
    },
}

impl WriteOp {
    /// Returns the operation in lower case, as messages name it.
    pub fn operation(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Patch(_) => "patch",
            Self::PatchStatus(_) => "patch status",
            Self::Delete { .. } => "delete",
        }
    }
}

impl WriteOp {
    /// Returns the operation in CamelCase, as Event reasons name it.
    pub fn event_verb(&self) -> &'static str {
        match self {
            Self::Create(_) => "Create",
            Self::Patch(_) | Self::PatchStatus(_) => "Update",
            Self::Delete { .. } => "Delete",
        }
    }
}

impl Write {
    /// Returns a write that nothing else blocks, of the highest rank.
    pub fn new(target: ObjectRef, op: WriteOp) -> Self {
        Self { target, op, blocked_by: Vec::new(), rank: WriteRank::default(), priority: 0 }
    }

    /// Returns a write that creates `object`.
    pub fn create<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Self {
        Self::new(ObjectRef::of(object), WriteOp::Create(manifest(object)))
    }

    /// Returns this write, sent only while no write to any of `others` is in flight.
    #[must_use]
    pub fn blocked_while_in_flight(self, others: impl IntoIterator<Item = ObjectRef>) -> Self {
        Self { blocked_by: others.into_iter().collect(), ..self }
    }

    /// Returns this write with another rank.
    #[must_use]
    pub fn ranked(self, rank: WriteRank) -> Self {
        Self { rank, ..self }
    }

    /// Returns this write with the priority of the Workload that it starts.
    #[must_use]
    pub fn with_priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// Reports whether this write was planned for exactly the object version with this metadata.
    /// A delete matches by uid; a create never matches.
    pub fn targets_version(&self, meta: &ObjectMeta) -> bool {
        match &self.op {
            WriteOp::Create(_) => false,
            WriteOp::Patch(body) | WriteOp::PatchStatus(body) => {
                let pinned = body.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                pinned.is_some() && pinned == meta.resource_version.as_deref()
            }
            WriteOp::Delete { uid, .. } => meta.uid.as_ref() == Some(uid),
        }
    }

    /// Returns the merge patch of metadata and spec that turns `old` into `new`; `None` if they are
    /// equal.
    pub fn patch<K: Resource<DynamicType = ()> + Serialize + PartialEq>(old: &K, new: &K) -> Option<Self> {
        if old == new {
            // Most plans change nothing, and comparing is far cheaper than serializing.
            return None;
        }
        let (mut from, mut to) = (to_value(old), to_value(new));
        for value in [&mut from, &mut to].into_iter().filter_map(Value::as_object_mut) {
            value.remove("status");
        }
        let body = with_resource_version(old, merge_diff(&from, &to)?);
        Some(Self::new(ObjectRef::of(old), WriteOp::Patch(body)))
    }

    /// Returns the merge patch that sets the status of `old`; `None` if it already has this status.
    pub fn patch_status<K>(old: &K, status: &K::Status) -> Option<Self>
    where
        K: Resource<DynamicType = ()> + HasStatus,
        K::Status: Serialize + PartialEq,
    {
        Self::patch_status_from(old, old.status(), status)
    }

    /// Does the same as [`Self::patch_status`] for a kind without `HasStatus`: `before` is the
    /// status of `old`.
    pub fn patch_status_from<K, S>(old: &K, before: Option<&S>, status: &S) -> Option<Self>
    where
        K: Resource<DynamicType = ()>,
        S: Serialize + PartialEq,
    {
        if before == Some(status) {
            return None;
        }
        let before = before.map_or_else(|| Value::Object(Map::new()), to_value);
        let diff = merge_diff(&before, &to_value(status))?;
        let body = with_resource_version(old, Value::Object(Map::from_iter([("status".to_owned(), diff)])));
        Some(Self::new(ObjectRef::of(old), WriteOp::PatchStatus(body)))
    }

    /// Returns a write that deletes `object`, and its dependents in the background.
    pub fn delete<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self::delete_with(object, false)
    }

    /// Returns a write that deletes `object`, which stays visible until its dependents that block
    /// owner deletion are deleted.
    pub fn delete_in_foreground<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self::delete_with(object, true)
    }

    fn delete_with<K: Resource<DynamicType = ()>>(object: &K, foreground: bool) -> Self {
        let uid = object.meta().uid.clone().unwrap_or_default();
        Self::new(ObjectRef::of(object), WriteOp::Delete { uid, foreground })
    }
}

/// A Kubernetes Event to emit for an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventRecord {
    /// Object that the Event is about.
    pub regarding: ObjectRef,
    /// Uid of that object.
    pub uid: String,
    /// Use the type `Warning` instead of `Normal`.
    pub warning: bool,
    /// Reason in CamelCase.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// Emit only if this plan sends a write to the metadata or spec of this object; `None` to emit
    /// unconditionally. A status write does not count.
    pub only_if_written: Option<ObjectRef>,
}

impl EventRecord {
    /// Returns an Event of type `Normal` about `object`.
    pub fn normal<K: Resource<DynamicType = ()>>(object: &K, reason: &str, message: impl Into<String>) -> Self {
        Self {
            regarding: ObjectRef::of(object),
            uid: object.meta().uid.clone().unwrap_or_default(),
            warning: false,
            reason: reason.to_owned(),
            message: message.into(),
            only_if_written: None,
        }
    }

    /// Returns this Event, emitted only if a write to the metadata or spec of `object` is sent.
    #[must_use]
    pub fn only_if_written(self, object: &ObjectRef) -> Self {
        Self { only_if_written: Some(object.clone()), ..self }
    }

    /// Returns an Event of type `Warning` about `object`.
    pub fn warning<K: Resource<DynamicType = ()>>(object: &K, reason: &str, message: impl Into<String>) -> Self {
        Self { warning: true, ..Self::normal(object, reason, message) }
    }
}

/// One call to the Serve REST API of a Ray cluster's dashboard.
#[derive(Debug, Clone, PartialEq)]
pub struct ServeCall {
    /// Namespace of the RayCluster.
    pub namespace: String,
    /// Name of the RayCluster.
    pub cluster: String,
    /// Uid of the RayCluster; distinguishes it from another one of the same name.
    pub uid: String,
    /// Uid of the head pod for which the reply holds; `None` if no head pod was observed.
    pub head_uid: Option<String>,
    /// Name of the head Service.
    pub head_service: String,
    /// Dashboard port of the head Service. Calls proxied by the API server use the port name
    /// instead.
    pub dashboard_port: u16,
    /// Secret with the auth token, in the namespace of the cluster; `None` without token auth.
    pub token_secret: Option<String>,
    /// Request to send.
    pub request: ServeRequest,
}

/// A request to Serve.
#[derive(Debug, Clone, PartialEq)]
pub enum ServeRequest {
    /// Gets the state of all applications.
    Get,
    /// Puts a declarative configuration.
    Put(ServeConfig),
    /// Checks the health of the Serve proxy on a pod.
    Healthz {
        /// Name of the pod.
        pod: String,
        /// IP of the pod.
        ip: String,
        /// Port of the proxy.
        port: u16,
    },
}

impl ServeRequest {
    /// Returns the request type in lower case; at most one of a type is in flight for a cluster.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put(_) => "put",
            Self::Healthz { .. } => "healthz",
        }
    }
}

/// Serializes an object, with `apiVersion` and `kind`.
pub fn manifest<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Value {
    let mut value = to_value(object);
    if let Value::Object(fields) = &mut value {
        fields.insert("apiVersion".into(), K::api_version(&()).into());
        fields.insert("kind".into(), K::kind(&()).into());
    }
    value
}

/// Returns the JSON merge patch (RFC 7386) that turns `from` into `to`; `None` if they are equal.
pub fn merge_diff(from: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (from, to) else {
        return (from != to).then(|| to.clone());
    };
    let mut diff = Map::new();
    for (name, value) in new {
        match old.get(name) {
            Some(before) => diff.extend(merge_diff(before, value).map(|change| (name.clone(), change))),
            None => {
                diff.insert(name.clone(), value.clone());
            }
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        diff.insert(name.clone(), Value::Null);
    }
    (!diff.is_empty()).then_some(Value::Object(diff))
}

/// Adds the resource version that a patch was computed from, so that the API server rejects the
/// patch with a conflict if the object has changed since.
fn with_resource_version<K: Resource>(object: &K, mut patch: Value) -> Value {
    if let (Some(fields), Some(version)) = (patch.as_object_mut(), &object.meta().resource_version) {
        let metadata = fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("resourceVersion".into(), version.clone().into());
        }
    }
    patch
}

/// Serializes a Kubernetes type. These hold only strings, numbers, lists and string-keyed maps, for
/// which serialization cannot fail.
fn to_value<T: Serialize>(object: &T) -> Value {
    serde_json::to_value(object).expect("a Kubernetes object serializes")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::equal(json!({"a": 1}), json!({"a": 1}), None)]
    #[case::changed(json!({"a": 1, "b": 2}), json!({"a": 1, "b": 3}), Some(json!({"b": 3})))]
    #[case::added_and_removed(json!({"a": 1}), json!({"b": 1}), Some(json!({"a": null, "b": 1})))]
    #[case::nested(json!({"m": {"x": 1, "y": 2}}), json!({"m": {"x": 1}}), Some(json!({"m": {"y": null}})))]
    #[case::lists_whole(json!({"l": [1, 2]}), json!({"l": [1]}), Some(json!({"l": [1]})))]
    fn merge_diff_contains_only_changed_fields(
        #[case] from: Value,
        #[case] to: Value,
        #[case] expected: Option<Value>,
    ) {
        assert_eq!(merge_diff(&from, &to), expected);
    }

    #[test]
    fn patch_carries_the_resource_version_it_was_computed_from() {
        let mut old = ConfigMap::default();
        old.metadata.name = Some("m".into());
        old.metadata.resource_version = Some("7".into());
        let mut new = old.clone();
        new.data = Some([("k".to_owned(), "v".to_owned())].into());

        let write = Write::patch(&old, &new).expect("they differ");

        assert_eq!(write.op, WriteOp::Patch(json!({"data": {"k": "v"}, "metadata": {"resourceVersion": "7"}})));
        assert_eq!(Write::patch(&old, &old), None);
    }
}
