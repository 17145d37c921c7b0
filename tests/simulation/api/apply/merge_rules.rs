//! Merge rules of objects: atomic lists and maps, and the keys of list items.

use std::borrow::Cow;

use serde_json::Value;

use super::super::kinds::ResourceKind;
use super::super::schema::{ListType, Schema};

/// Merge rules of one value of an object.
#[derive(Debug, Clone, Copy)]
pub enum MergeRules<'a> {
    /// The whole object; with the schema of its CRD, if any.
    Root(Option<&'a Schema>),
    /// Value covered by the schema of a CRD.
    Schema(&'a Schema),
    /// Value of a field with this name in a built-in type.
    BuiltIn(&'a str),
    /// Value without a schema: maps are merged, lists are atomic.
    Untyped,
}

impl<'a> MergeRules<'a> {
    /// Returns the merge rules of the objects of a kind.
    pub fn for_kind(kind: &'a ResourceKind) -> Self {
        Self::Root(kind.schema.as_ref())
    }

    /// Returns the merge rules of a field.
    pub fn field(self, name: &'a str) -> Self {
        match self {
            Self::Root(_) if name == "metadata" => Self::BuiltIn(name),
            Self::Root(None) | Self::BuiltIn(_) => Self::BuiltIn(name),
            Self::Root(Some(schema)) | Self::Schema(schema) => schema.field(name).map_or(Self::Untyped, Self::Schema),
            Self::Untyped => Self::Untyped,
        }
    }

    /// Returns the merge rules of the items of a list.
    pub fn item(self) -> Self {
        match self {
            Self::Schema(schema) => schema.item().map_or(Self::Untyped, Self::Schema),
            Self::BuiltIn(_) => Self::BuiltIn(""),
            Self::Root(_) | Self::Untyped => Self::Untyped,
        }
    }

    /// Returns true if the map is atomic.
    pub fn is_atomic_map(self) -> bool {
        match self {
            Self::Schema(schema) => schema.is_atomic_map,
            Self::BuiltIn(name) => {
                let selectors = ["selector", "labelSelector", "namespaceSelector", "nodeSelector"];
                let references = ["fieldRef", "resourceFieldRef", "secretKeyRef", "configMapKeyRef", "claimRef"];
                selectors.contains(&name) || references.contains(&name)
            }
            Self::Root(_) | Self::Untyped => false,
        }
    }

    /// Returns the list type.
    fn list_type(self) -> Cow<'a, ListType> {
        let keyed = |keys: &[&str]| Cow::Owned(ListType::Map(keys.iter().map(|&key| key.to_owned()).collect()));
        match self {
            Self::Schema(schema) => Cow::Borrowed(&schema.list_type),
            Self::BuiltIn("finalizers") => Cow::Owned(ListType::Set),
            Self::BuiltIn("ownerReferences") => keyed(&["uid"]),
            Self::BuiltIn("conditions") => keyed(&["type"]),
            Self::BuiltIn("ports") => keyed(&["containerPort", "port", "protocol"]),
            Self::BuiltIn("volumeMounts") => keyed(&["mountPath"]),
            Self::BuiltIn("hostAliases") => keyed(&["ip"]),
            Self::BuiltIn("topologySpreadConstraints") => keyed(&["topologyKey", "whenUnsatisfiable"]),
            Self::BuiltIn(
                "containers"
                | "initContainers"
                | "ephemeralContainers"
                | "env"
                | "volumes"
                | "imagePullSecrets"
                | "resourceClaims"
                | "schedulingGates",
            ) => keyed(&["name"]),
            Self::Root(_) | Self::BuiltIn(_) | Self::Untyped => Cow::Owned(ListType::Atomic),
        }
    }

    /// Returns the key of each list item, as written in field paths; `None` if the list is atomic.
    pub fn item_keys(self, items: &[Value]) -> Option<Vec<String>> {
        match self.list_type().as_ref() {
            ListType::Atomic => None,
            ListType::Set => Some(items.iter().map(|item| format!("[={item}]")).collect()),
            ListType::Map(keys) => Some(items.iter().map(|item| self.item_key(keys, item)).collect()),
        }
    }

    fn item_key(self, keys: &[String], item: &Value) -> String {
        let parts = keys.iter().filter_map(|key| {
            let value = item.get(key).or_else(|| self.item().key_default(key));
            match (value, self) {
                (Some(value), _) => Some(format!("{key}={value}")),
                (None, Self::BuiltIn("ports")) if key == "protocol" => Some("protocol=\"TCP\"".to_owned()),
                (None, _) => None,
            }
        });
        format!("[{}]", parts.collect::<Vec<_>>().join(","))
    }

    /// Returns true if a field is one of the list map keys.
    pub fn is_key(self, name: &str) -> bool {
        matches!(self.list_type().as_ref(), ListType::Map(keys) if keys.iter().any(|key| key == name))
    }

    fn key_default(self, name: &str) -> Option<&'a Value> {
        match self {
            Self::Schema(schema) => schema.field(name)?.default_value(),
            _ => None,
        }
    }

    /// Returns true if the field is declared by name, false if it is a key of a free-form map.
    pub fn declares(self, name: &str) -> bool {
        match self {
            Self::Root(_) => true,
            Self::Schema(schema) => schema.declares(name),
            // Free-form maps in built-in types.
            Self::BuiltIn(map) => !["labels", "annotations", "limits", "requests", "data"].contains(&map),
            Self::Untyped => false,
        }
    }
}
