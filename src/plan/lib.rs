//! What a planner asks for: writes to the API server, Kubernetes Events, calls to Ray, and a time to be asked again.
//!
//! A planner is a pure function from what was observed to a [`Plan`]. It never waits and never remembers: it names every
//! write that separates what is from what should be, and is asked again when any of them has been answered. A write to an
//! object that still has one in flight is dropped by the engine and planned anew once that one is answered, so a planner
//! never sees its own half-done work.

mod object_key;
pub mod serve_config;
pub mod serve_status;

use std::fmt::Debug;

use jiff::Timestamp;
use kube_core::ObjectMeta;
use kube_core::Resource;
use kube_core::object::HasStatus;
use serde::Serialize;
use serde_json::{Map, Value};

pub use object_key::ObjectKey;
pub use serve_config::ServeConfig;
pub use serve_status::{Application, Deployment, Replica, ServeAnswer, ServeError, ServeReply, ServeStatus};

/// Everything that one planning of one object asks for.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Plan {
    /// Writes to the API server, in the order in which they are to be sent.
    pub writes: Vec<Write>,
    /// Kubernetes Events to be shown to people.
    pub notes: Vec<Note>,
    /// Calls to the dashboards of Ray clusters.
    pub serve_calls: Vec<ServeCall>,
    /// When this object wants to be planned again though nothing changed; absolute time.
    pub wake_at: Option<Timestamp>,
}

impl Plan {
    /// Adds a write, if there is one.
    pub fn write(&mut self, write: impl Into<Option<Write>>) {
        self.writes.extend(write.into());
    }

    /// Asks to be planned again at `at`, or earlier if something else asked for that.
    pub fn wake(&mut self, at: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
    }
}

/// Names one object in the API server.
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
    /// The reference to `object`.
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        Self::named::<K>(object.meta().namespace.clone(), object.meta().name.clone().unwrap_or_default())
    }

    /// The reference to the object of kind `K` with this name.
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
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

/// One write to the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// The object that is written.
    pub target: ObjectRef,
    /// What is done to it.
    pub op: WriteOp,
    /// Other objects that it rests on, or that rest on what it changes: it is sent only while nothing is under way about any
    /// of them, and planned anew after that.
    pub quiet: Vec<ObjectRef>,
}

/// What a write does to its object.
#[derive(Debug, Clone, PartialEq)]
pub enum WriteOp {
    /// Creates the object; the whole of it.
    Create(Value),
    /// A JSON merge patch of metadata and spec, with the resource version that it was computed from.
    Patch(Value),
    /// A JSON merge patch of the status subresource, with the resource version that it was computed from.
    PatchStatus(Value),
    /// Deletes the object, if it still has this uid.
    Delete {
        /// The uid that the object must still have.
        uid: String,
        /// Whether the object stays, with a deletion timestamp, until what it owns is gone.
        foreground: bool,
    },
}

impl WriteOp {
    /// What is done, in a word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Patch(_) => "patch",
            Self::PatchStatus(_) => "patch status",
            Self::Delete { .. } => "delete",
        }
    }
}

impl WriteOp {
    /// What is done, as the reasons of Events have it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Create(_) => "Create",
            Self::Patch(_) | Self::PatchStatus(_) => "Update",
            Self::Delete { .. } => "Delete",
        }
    }
}

impl Write {
    /// Creates `object`.
    pub fn create<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Self {
        Self { target: ObjectRef::of(object), op: WriteOp::Create(manifest(object)), quiet: Vec::new() }
    }

    /// The same, to be sent only while nothing is under way about `others`.
    #[must_use]
    pub fn while_quiet(self, others: impl IntoIterator<Item = ObjectRef>) -> Self {
        Self { quiet: others.into_iter().collect(), ..self }
    }

    /// Whether it was planned for the object that has this metadata, and none newer.
    pub fn is_meant_for(&self, meta: &ObjectMeta) -> bool {
        match &self.op {
            WriteOp::Create(_) => false,
            WriteOp::Patch(body) | WriteOp::PatchStatus(body) => {
                let pinned = body.pointer("/metadata/resourceVersion").and_then(Value::as_str);
                pinned.is_some() && pinned == meta.resource_version.as_deref()
            }
            WriteOp::Delete { uid, .. } => meta.uid.as_ref() == Some(uid),
        }
    }

    /// The merge patch of metadata and spec that turns `old` into `new`; `None` when they do not differ.
    pub fn patch<K: Resource<DynamicType = ()> + Serialize + PartialEq>(old: &K, new: &K) -> Option<Self> {
        if old == new {
            // Most plans find nothing to change, and to compare is far cheaper than to write down.
            return None;
        }
        let (mut from, mut to) = (to_value(old), to_value(new));
        for value in [&mut from, &mut to].into_iter().filter_map(Value::as_object_mut) {
            value.remove("status");
        }
        let body = pinned(old, merge_diff(&from, &to)?);
        Some(Self { target: ObjectRef::of(old), op: WriteOp::Patch(body), quiet: Vec::new() })
    }

    /// The merge patch that gives `old` this status; `None` when it has it already.
    pub fn patch_status<K>(old: &K, status: &K::Status) -> Option<Self>
    where
        K: Resource<DynamicType = ()> + HasStatus,
        K::Status: Serialize + PartialEq,
    {
        Self::patch_status_from(old, old.status(), status)
    }

    /// The same for a kind that doesn't say by itself which its status is: `old` has the status `before`.
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
        let body = pinned(old, Value::Object(Map::from_iter([("status".to_owned(), diff)])));
        Some(Self { target: ObjectRef::of(old), op: WriteOp::PatchStatus(body), quiet: Vec::new() })
    }

    /// Deletes `object`. With `foreground`, it stays visible until everything that it owns (and that blocks its
    /// deletion) is gone.
    pub fn delete<K: Resource<DynamicType = ()>>(object: &K, foreground: bool) -> Self {
        let uid = object.meta().uid.clone().unwrap_or_default();
        Self { target: ObjectRef::of(object), op: WriteOp::Delete { uid, foreground }, quiet: Vec::new() }
    }
}

/// A Kubernetes Event about an object, for people.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// The object that the event is about.
    pub regarding: ObjectRef,
    /// The uid of that object.
    pub uid: String,
    /// Whether it is a warning.
    pub warning: bool,
    /// A short CamelCase reason.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// The object whose change it tells of, if it tells of one: it isn't told if that has to wait. News of a status are no change.
    pub tells_of: Option<ObjectRef>,
}

impl Note {
    /// An event that tells of progress.
    pub fn normal<K: Resource<DynamicType = ()>>(object: &K, reason: &str, message: impl Into<String>) -> Self {
        Self {
            regarding: ObjectRef::of(object),
            uid: object.meta().uid.clone().unwrap_or_default(),
            warning: false,
            reason: reason.to_owned(),
            message: message.into(),
            tells_of: None,
        }
    }

    /// The same, told only if a change of `object` is sent.
    #[must_use]
    pub fn of_write(self, object: &ObjectRef) -> Self {
        Self { tells_of: Some(object.clone()), ..self }
    }

    /// An event that tells of something that a person should look at.
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
    /// Uid of the RayCluster, which tells it from another of the same name.
    pub uid: String,
    /// Uid of the cluster's head pod, if it is known: what is answered is true of that one.
    pub head: Option<String>,
    /// Name of the cluster's head Service.
    pub head_service: String,
    /// The port of the head Service that the dashboard listens on. Through the API server it is asked for by its name.
    pub dashboard_port: u16,
    /// The Secret of the cluster's namespace that holds the token which is asked for, if one is.
    pub token_secret: Option<String>,
    /// What is asked.
    pub request: ServeRequest,
}

/// What is asked of Serve.
#[derive(Debug, Clone, PartialEq)]
pub enum ServeRequest {
    /// Asks for the state of all applications.
    Get,
    /// Applies a declarative configuration.
    Put(ServeConfig),
    /// Asks the Serve proxy on a pod whether it takes requests.
    Healthz {
        /// Name of the pod.
        pod: String,
        /// Its IP.
        ip: String,
        /// The port that the proxy listens on.
        port: u16,
    },
}

impl ServeRequest {
    /// What is asked, in a word.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put(_) => "put",
            Self::Healthz { .. } => "healthz",
        }
    }
}

/// The whole of an object, with its kind.
pub fn manifest<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Value {
    let mut value = to_value(object);
    if let Value::Object(fields) = &mut value {
        fields.insert("apiVersion".into(), K::api_version(&()).into());
        fields.insert("kind".into(), K::kind(&()).into());
    }
    value
}

/// The JSON merge patch (RFC 7386) that turns `from` into `to`; `None` when they are equal.
pub fn merge_diff(from: &Value, to: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (from, to) else {
        return (from != to).then(|| to.clone());
    };
    let mut diff = Map::new();
    for (name, value) in new {
        match old.get(name) {
            Some(before) => diff.extend(merge_diff(before, value).map(|change| (name.clone(), change))),
            None => drop(diff.insert(name.clone(), value.clone())),
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        diff.insert(name.clone(), Value::Null);
    }
    (!diff.is_empty()).then_some(Value::Object(diff))
}

/// Adds the resource version that a patch was computed from, so that the API server refuses it when the object has moved.
fn pinned<K: Resource>(object: &K, mut patch: Value) -> Value {
    if let (Some(fields), Some(version)) = (patch.as_object_mut(), &object.meta().resource_version) {
        let metadata = fields.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.insert("resourceVersion".into(), version.clone().into());
        }
    }
    patch
}

/// Kubernetes types hold only strings, numbers, lists and string-keyed maps, for which serialisation can't fail.
fn to_value<T: Serialize>(object: &T) -> Value {
    serde_json::to_value(object).expect("a Kubernetes object serialises")
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
    fn a_merge_diff_holds_only_what_changed(#[case] from: Value, #[case] to: Value, #[case] expected: Option<Value>) {
        assert_eq!(merge_diff(&from, &to), expected);
    }

    #[test]
    fn a_patch_is_pinned_to_the_version_that_it_was_computed_from() {
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
