//! All that Sluice would look at, as it is at one moment: in a cluster, or in files that somebody has kept of one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thiserror::Error;

use super::defaults;
use sluice_engine::world::Object;
use sluice_plan::ObjectRef;

/// Where objects are whose manifests name no namespace.
const DEFAULT_NAMESPACE: &str = "default";
/// Kinds that are in no namespace.
const GLOBAL: [&str; 7] =
    ["ClusterQueue", "Cohort", "Namespace", "PriorityClass", "ResourceFlavor", "RuntimeClass", "WorkloadPriorityClass"];

/// Why there is no snapshot.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// A file or folder can't be read.
    #[error("reading {}: {source}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        source: std::io::Error,
    },
    /// A file doesn't hold what it should.
    #[error("{}: {problem}", path.display())]
    Content {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// Objects of the kinds that are watched.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    objects: Vec<Object>,
}

impl Snapshot {
    /// What the YAML and JSON files of a folder and its subfolders hold, like those that `kubectl get --output=yaml` writes. Objects
    /// of other kinds are left out.
    ///
    /// # Errors
    /// When a file can't be read, isn't YAML, or holds an object of a kind that Sluice knows which isn't as it should be; and when
    /// two files hold the same object.
    pub fn of_folder(folder: &Path) -> Result<Self, SnapshotError> {
        let mut files = Vec::new();
        collect(folder, &mut files)?;
        files.sort();
        let mut snapshot = Self::default();
        let mut found: BTreeMap<(String, String, String), PathBuf> = BTreeMap::new();
        for path in files {
            let text =
                std::fs::read_to_string(&path).map_err(|source| SnapshotError::Read { path: path.clone(), source })?;
            let wrong = |problem: String| SnapshotError::Content { path: path.clone(), problem };
            for object in documents(&text).map_err(wrong)? {
                let Some(object) = known(object).map_err(wrong)? else { continue };
                let reference = object.reference();
                let key =
                    (reference.kind.clone(), reference.namespace.clone().unwrap_or_default(), reference.name.clone());
                if let Some(other) = found.insert(key, path.clone()) {
                    return Err(wrong(format!("{reference} is in {} as well", other.display())));
                }
                snapshot.objects.push(object);
            }
        }
        Ok(snapshot)
    }

    /// These objects.
    pub fn of(objects: impl IntoIterator<Item = Object>) -> Self {
        Self { objects: objects.into_iter().collect() }
    }

    /// All of them.
    pub fn objects(&self) -> &[Object] {
        &self.objects
    }

    /// The object that this names.
    pub fn get(&self, reference: &ObjectRef) -> Option<&Object> {
        let is_named = |object: &&Object| {
            let held = object.reference();
            (held.kind, held.namespace, held.name)
                == (reference.kind.clone(), reference.namespace.clone(), reference.name.clone())
        };
        self.objects.iter().find(is_named)
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), SnapshotError> {
    let failed = |source| SnapshotError::Read { path: folder.to_owned(), source };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if path.is_dir() {
            collect(&path, files)?;
        } else if matches!(extension, Some("yaml" | "yml" | "json")) {
            files.push(path);
        }
    }
    Ok(())
}

/// The objects of a text with several documents, those of lists one by one.
fn documents(text: &str) -> Result<Vec<Value>, String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| format!("it isn't YAML: {error}"))?;
    let items = documents.into_iter().flat_map(|mut document| match document.get_mut("items") {
        Some(Value::Array(items)) => std::mem::take(items),
        _ => vec![document],
    });
    Ok(items.filter(|item| !item.is_null()).collect())
}

/// The manifests of a text with several documents; those that name no namespace, and are in one, get this one.
///
/// # Errors
/// When the text isn't YAML, or a document is no object.
pub fn manifests(text: &str, namespace: &str) -> Result<Vec<Value>, String> {
    let mut manifests = documents(text)?;
    for manifest in &mut manifests {
        let reference = reference_of(manifest)?;
        if reference.namespace.is_some() && manifest["metadata"]["namespace"].is_null() {
            manifest["metadata"]["namespace"] = json!(namespace);
        }
    }
    Ok(manifests)
}

/// The object, if it is of a kind that is known. What only an API server gives it is made up.
pub(super) fn known(mut object: Value) -> Result<Option<Object>, String> {
    let reference = reference_of(&object)?;
    defaults::fill(&reference.kind, &mut object);
    let meta = &mut object["metadata"];
    meta["namespace"] = json!(reference.namespace);
    if meta["uid"].is_null() {
        meta["uid"] = json!(reference.to_string());
    }
    if meta["resourceVersion"].is_null() {
        meta["resourceVersion"] = json!("1");
    }
    Object::decode(&reference, object).map_err(|error| format!("{reference}: {error}"))
}

/// The reference to an object in a manifest.
pub(super) fn reference_of(object: &Value) -> Result<ObjectRef, String> {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let (Some(api_version), Some(kind)) = (text("/apiVersion"), text("/kind")) else {
        return Err("an object names no apiVersion or no kind".to_owned());
    };
    let Some(name) = text("/metadata/name") else { return Err(format!("a {kind} has no metadata.name")) };
    let namespace = (!GLOBAL.contains(&kind.as_str()))
        .then(|| text("/metadata/namespace").unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned()));
    Ok(ObjectRef { api_version, kind, plural: String::new(), namespace, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let objects = documents(text).expect("YAML").into_iter();
        let objects = objects.filter_map(|object| known(object).expect("objects"));
        objects.map(|object| object.reference().to_string()).collect()
    }

    #[test]
    fn objects_of_known_kinds_are_taken_from_documents_and_lists() {
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
    fn what_is_wrong_is_told_with_the_object() {
        let problem = |text: &str| {
            let object = documents(text).expect("YAML").remove(0);
            known(object).expect_err("a problem")
        };
        assert_eq!(problem("kind: Pod"), "an object names no apiVersion or no kind");
        assert_eq!(problem("{apiVersion: v1, kind: Pod, metadata: {}}"), "a Pod has no metadata.name");
        let wrong =
            "{apiVersion: kueue.x-k8s.io/v1beta2, kind: LocalQueue, metadata: {name: a}, spec: {clusterQueue: 7}}";
        assert!(problem(wrong).starts_with("LocalQueue default/a: "), "{}", problem(wrong));
    }
}
