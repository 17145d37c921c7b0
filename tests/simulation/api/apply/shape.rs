//! How the parts of an object are merged: which lists and maps are one value, and what tells the items of the others apart.

use std::borrow::Cow;

use serde_json::Value;

use super::super::kinds::Kind;
use super::super::schema::{ListType, Schema};

/// How one value of an object is merged.
#[derive(Debug, Clone, Copy)]
pub enum Shape<'a> {
    /// The whole object.
    Root(Option<&'a Schema>),
    /// A value that the schema of a definition speaks of.
    Known(&'a Schema),
    /// The value of a field of this name in one of Kubernetes' own types.
    Named(&'a str),
    /// A value that no schema speaks of: its maps are merged, its lists are one value.
    Free,
}

impl<'a> Shape<'a> {
    /// The shape of a kind's objects.
    pub fn of(kind: &'a Kind) -> Self {
        Self::Root(kind.schema.as_ref())
    }

    /// The shape of a field.
    pub fn field(self, name: &'a str) -> Self {
        match self {
            Self::Root(_) if name == "metadata" => Self::Named(name),
            Self::Root(None) | Self::Named(_) => Self::Named(name),
            Self::Root(Some(schema)) | Self::Known(schema) => schema.field(name).map_or(Self::Free, Self::Known),
            Self::Free => Self::Free,
        }
    }

    /// The shape of the items of a list.
    pub fn item(self) -> Self {
        match self {
            Self::Known(schema) => schema.item().map_or(Self::Free, Self::Known),
            Self::Named(_) => Self::Named(""),
            Self::Root(_) | Self::Free => Self::Free,
        }
    }

    /// Whether a map is one value.
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

    /// What the items of a list are to each other.
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

    /// What each item of the list is told from the others by, as field paths write it; `None` when the list is one value.
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

    /// Whether a field is one that tells the items of this list apart.
    pub fn is_key(self, name: &str) -> bool {
        matches!(self.list().as_ref(), ListType::Map(keys) if keys.iter().any(|key| key == name))
    }

    fn key_default(self, name: &str) -> Option<&'a Value> {
        match self {
            Self::Known(schema) => schema.field(name)?.default_value(),
            _ => None,
        }
    }

    /// Whether the schema names this field, rather than taking any.
    pub fn declares(self, name: &str) -> bool {
        match self {
            Self::Root(_) => true,
            Self::Known(schema) => schema.names(name),
            // Maps of any keys in Kubernetes' own types.
            Self::Named(own) => !["labels", "annotations", "limits", "requests", "data"].contains(&own),
            Self::Free => false,
        }
    }
}
