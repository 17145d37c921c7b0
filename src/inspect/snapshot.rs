//! Point-in-time copy of the objects that Sluice reads, from a cluster or from manifest files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kube_core::TypeMeta;
use serde_json::{Value, json};
use thiserror::Error;

use super::schema_defaults;
use sluice_engine::cluster_state::Object;
use sluice_plan::ObjectId;

/// Namespace of objects whose manifests name none.
const DEFAULT_NAMESPACE: &str = "default";
/// Cluster-scoped kinds.
const CLUSTER_SCOPED_KINDS: [&str; 7] =
    ["ClusterQueue", "Cohort", "Namespace", "PriorityClass", "ResourceFlavor", "RuntimeClass", "WorkloadPriorityClass"];

/// Error of reading a snapshot.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// A file or directory can't be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// Path of the file or directory.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// A file is invalid.
    #[error("{}: {source}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: ManifestError,
    },
    /// Two files contain the same object.
    #[error("{}: {object} is also in {}", path.display(), other.display())]
    Duplicate {
        /// Path of the file.
        path: PathBuf,
        /// Reference to the object.
        object: Box<ObjectId>,
        /// Path of the other file.
        other: PathBuf,
    },
}

/// Error in a manifest.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// The text isn't YAML.
    #[error("invalid YAML: {0}")]
    Yaml(#[source] Box<serde_saphyr::Error>),
    /// It is a value other than an object.
    #[error("not an object")]
    NotAnObject,
    /// `apiVersion` or `kind` is missing.
    #[error("an object has no apiVersion or kind")]
    KindMissing,
    /// `metadata.name` is missing.
    #[error("a {kind} has no metadata.name")]
    NameMissing {
        /// Kind of the object.
        kind: String,
    },
    /// A field is invalid.
    #[error("{object}: {source}")]
    Field {
        /// Reference to the object.
        object: Box<ObjectId>,
        /// Cause.
        source: serde_json::Error,
    },
}

/// Objects of the watched kinds.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    objects: Vec<Object>,
}

impl Snapshot {
    /// Reads the YAML and JSON files of a directory and its subdirectories, such as the output of
    /// `kubectl get --output=yaml`. Objects of other kinds are skipped.
    ///
    /// # Errors
    /// If a file can't be read or isn't YAML, an object of a watched kind is invalid, or two files
    /// contain the same object.
    pub fn from_directory(folder: &Path) -> Result<Self, SnapshotError> {
        let mut files = Vec::new();
        collect_files(folder, &mut files)?;
        files.sort();
        let mut snapshot = Self::default();
        let mut seen: BTreeMap<ObjectId, PathBuf> = BTreeMap::new();
        for path in files {
            let text =
                std::fs::read_to_string(&path).map_err(|source| SnapshotError::Read { path: path.clone(), source })?;
            let invalid = |source| SnapshotError::Content { path: path.clone(), source };
            for object in parse_documents(&text).map_err(invalid)? {
                let Some(object) = decode_watched(object).map_err(invalid)? else { continue };
                let id = ObjectId::from(&object.reference());
                if let Some(other) = seen.insert(id.clone(), path.clone()) {
                    return Err(SnapshotError::Duplicate { path, object: Box::new(id), other });
                }
                snapshot.objects.push(object);
            }
        }
        Ok(snapshot)
    }

    /// Creates a snapshot of these objects.
    pub fn new(objects: impl IntoIterator<Item = Object>) -> Self {
        Self { objects: objects.into_iter().collect() }
    }

    /// Returns the objects.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// Returns the object with this kind, namespace and name; None if there is none.
    pub fn get(&self, id: impl Into<ObjectId>) -> Option<&Object> {
        let id = id.into();
        self.objects.iter().find(|object| ObjectId::from(&object.reference()) == id)
    }
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), SnapshotError> {
    let failed = |source| SnapshotError::Read { path: folder.to_owned(), source };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            collect_files(&path, files)?;
        } else if matches!(extension, Some("yaml" | "yml" | "json")) {
            files.push(path);
        }
    }
    Ok(())
}

/// Parses a multi-document text into its objects; the items of a List count as separate objects.
fn parse_documents(text: &str) -> Result<Vec<Value>, ManifestError> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| ManifestError::Yaml(Box::new(error)))?;
    let items = documents.into_iter().flat_map(|mut document| match document.get_mut("items") {
        Some(Value::Array(items)) => std::mem::take(items),
        _ => vec![document],
    });
    Ok(items.filter(|item| !item.is_null()).collect())
}

/// Parses a multi-document text into manifests. Namespaced ones that name no namespace get
/// `namespace`.
///
/// # Errors
/// If the text isn't YAML, or a document isn't an object.
pub fn parse_manifests(text: &str, namespace: &str) -> Result<Vec<Value>, ManifestError> {
    let mut manifests = parse_documents(text)?;
    for manifest in &mut manifests {
        let ManifestHeader { id, .. } = ManifestHeader::read(manifest)?;
        if id.namespace.is_some() && manifest["metadata"]["namespace"].is_null() {
            manifest["metadata"]["namespace"] = json!(namespace);
        }
    }
    Ok(manifests)
}

/// Decodes an object, with defaults and generated metadata in place of the API server's; None if
/// its kind isn't watched.
///
/// # Errors
/// If the object is invalid.
pub(super) fn decode_watched(mut object: Value) -> Result<Option<Object>, ManifestError> {
    let ManifestHeader { types, id } = ManifestHeader::read(&object)?;
    schema_defaults::apply_defaults(&id.kind, &mut object);
    let meta = &mut object["metadata"];
    meta["namespace"] = json!(id.namespace);
    if meta["uid"].is_null() {
        meta["uid"] = json!(id.to_string());
    }
    if meta["resourceVersion"].is_null() {
        meta["resourceVersion"] = json!("1");
    }
    Object::decode(&types, object).map_err(|source| ManifestError::Field { object: Box::new(id), source })
}

/// Type and name in a manifest.
pub(super) struct ManifestHeader {
    types: TypeMeta,
    pub(super) id: ObjectId,
}

impl ManifestHeader {
    /// Reads the type and the name.
    ///
    /// # Errors
    /// If `apiVersion`, `kind` or `metadata.name` is missing.
    pub(super) fn read(manifest: &Value) -> Result<Self, ManifestError> {
        let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let (Some(api_version), Some(kind)) = (text("/apiVersion"), text("/kind")) else {
            return Err(ManifestError::KindMissing);
        };
        let Some(name) = text("/metadata/name") else { return Err(ManifestError::NameMissing { kind }) };
        let namespace = (!CLUSTER_SCOPED_KINDS.contains(&kind.as_str()))
            .then(|| text("/metadata/namespace").unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()));
        Ok(Self { types: TypeMeta { api_version, kind: kind.clone() }, id: ObjectId { kind, namespace, name } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let objects = parse_documents(text).expect("YAML").into_iter();
        let objects = objects.filter_map(|object| decode_watched(object).expect("objects"));
        objects.map(|object| object.reference().to_string()).collect()
    }

    #[test]
    fn objects_of_watched_kinds_are_read_from_documents_and_lists() {
        let text = "
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: team-a}
spec: {}
---
apiVersion: v1
kind: List
items:
- {apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: a, namespace: team}, spec: {clusterQueue: team-a}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}
---
";
        assert_eq!(names(text), ["ClusterQueue team-a", "LocalQueue team/a"]);
    }

    #[test]
    fn error_names_the_object() {
        let problem = |text: &str| {
            let object = parse_documents(text).expect("YAML").remove(0);
            decode_watched(object).expect_err("an invalid object").to_string()
        };
        assert_eq!(problem("kind: Pod"), "an object has no apiVersion or kind");
        assert_eq!(problem("{apiVersion: v1, kind: Pod, metadata: {}}"), "a Pod has no metadata.name");
        let invalid =
            "{apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: a}, spec: {clusterQueue: 7}}";
        assert!(problem(invalid).starts_with("LocalQueue default/a: "), "{}", problem(invalid));
    }
}
