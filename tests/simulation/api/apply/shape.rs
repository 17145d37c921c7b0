//! Merge rules of objects: atomic lists and maps, and the keys of list items.

use std::borrow::Cow;

use serde_json::Value;

use super::super::kinds::Kind;
use super::super::schema::{ListType, Schema};

/// Merge rules of one value of an object.
#[derive(Debug, Clone, Copy)]
pub enum Shape<'a> {
    /// The whole object; with the schema of its CRD, if any.
    Root(Option<&'a Schema>),
    /// Value covered by the schema of a CRD.
    Known(&'a Schema),
    /// Value of a field with this name in a built-in type.
    Named(&'a str),
    /// Value without a schema: maps are merged, lists are atomic.
    Free,
}

impl<'a> Shape<'a> {
    /// Returns the merge rules of the objects of a kind.
    pub fn of(kind: &'a Kind) -> Self {
        Self::Root(kind.schema.as_ref())
    }

    /// Returns the merge rules of a field.
    pub fn field(self, name: &'a str) -> Self {
        match self {
            Self::Root(_) if name == "metadata" => Self::Named(name),
            Self::Root(None) | Self::Named(_) => Self::Named(name),
            Self::Root(Some(schema)) | Self::Known(schema) => schema.field(name).map_or(Self::Free, Self::Known),
            Self::Free => Self::Free,
        }
    }

    /// Returns the merge rules of the items of a list.
    pub fn item(self) -> Self {
        match self {
            Self::Known(schema) => schema.item().map_or(Self::Free, Self::Known),
            Self::Named(_) => Self::Named(""),
            Self::Root(_) | Self::Free => Self::Free,
        }
    }

    /// Returns true if the map is atomic.
    pub fn is_atomic_map(self) -> bool {
        match self {
            Self::Known(schema) => schema.is_atomic_map,
            Self::Named(name) => {
                let selectors = ["selector", "labelSelector", "namespaceSelector", "nodeSelector"];
                let references = ["fieldRef", "resourceFieldRef", "secretKeyRef", "configMapKeyRef", "claimRef"];
                selectors.contains(&name) || references.contains(&name)
            }
            Self::Root(_) | Self::Free => false,
        }
    }

    /// Returns the list type.
    fn list(self) -> Cow<'a, ListType> {
        let keyed = |keys: &[&str]| Cow::Owned(ListType::Map(keys.iter().map(|&key| key.to_owned()).collect()));
        match self {
            Self::Known(schema) => Cow::Borrowed(&schema.list),
            Self::Named("finalizers") => Cow::Owned(ListType::Set),
            Self::Named("ownerReferences") => keyed(&["uid"]),
            Self::Named("conditions") => keyed(&["type"]),
            Self::Named("ports") => keyed(&["containerPort", "port", "protocol"]),
            Self::Named("volumeMounts") => keyed(&["mountPath"]),
            Self::Named("hostAliases") => keyed(&["ip"]),
            Self::Named("topologySpreadConstraints") => keyed(&["topologyKey", "whenUnsatisfiable"]),
            Self::Named(
                "containers"
                | "initContainers"
                | "ephemeralContainers"
                | "env"
                | "volumes"
                | "imagePullSecrets"
                | "resourceClaims"
                | "schedulingGates",
            ) => keyed(&["name"]),
            Self::Root(_) | Self::Named(_) | Self::Free => Cow::Owned(ListType::Atomic),
        }
    }

    /// Returns the key of each list item, as written in field paths; `None` if the list is atomic.
    pub fn keys(self, items: &[Value]) -> Option<Vec<String>> {
        match self.list().as_ref() {
            ListType::Atomic => None,
            ListType::Set => Some(items.iter().map(|item| format!("[={item}]")).collect()),
            ListType::Map(keys) => Some(items.iter().map(|item| self.key(keys, item)).collect()),
        }
    }

    fn key(self, keys: &[String], item: &Value) -> String {
        let parts = keys.iter().filter_map(|key| {
            let value = item.get(key).or_else(|| self.item().key_default(key));
            match (value, self) {
                (Some(value), _) => Some(format!("{key}={value}")),
                (None, Self::Named("ports")) if key == "protocol" => Some("protocol=\"TCP\"".to_owned()),
                (None, _) => None,
            }
        });
        format!("[{}]", parts.collect::<Vec<_>>().join(","))
    }

    /// Returns true if a field is one of the list map keys.
    pub fn is_key(self, name: &str) -> bool {
        matches!(self.list().as_ref(), ListType::Map(keys) if keys.iter().any(|key| key == name))
    }

    fn key_default(self, name: &str) -> Option<&'a Value> {
        match self {
            Self::Known(schema) => schema.field(name)?.default_value(),
            _ => None,
        }
    }

    /// Returns true if the field is declared by name, false if it is a key of a free-form map.
    pub fn declares(self, name: &str) -> bool {
        match self {
            Self::Root(_) => true,
            Self::Known(schema) => schema.names(name),
            // Free-form maps in built-in types.
            Self::Named(map) => !["labels", "annotations", "limits", "requests", "data"].contains(&map),
            Self::Free => false,
        }
    }
}
