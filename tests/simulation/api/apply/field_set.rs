//! Field paths, sets of fields, and the difference between two states of an object.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};

use super::merge_rules::MergeRules;

/// Path of a field or list item; each segment is written as in error messages: `.spec`,
/// `[name="a"]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldPath(Vec<String>);

/// Set of fields and list items.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet(BTreeSet<FieldPath>);

impl FieldPath {
    /// Returns the path of a field of the value at this path.
    pub fn field(&self, name: &str) -> Self {
        self.child(format!(".{name}"))
    }

    /// Returns the path of an item of the list at this path.
    pub fn item(&self, key: &str) -> Self {
        self.child(key.to_owned())
    }

    fn child(&self, segment: String) -> Self {
        Self(self.0.iter().cloned().chain([segment]).collect())
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.concat())
    }
}

impl FieldSet {
    /// Returns the fields that an object sets, without those that cannot have owners.
    pub fn set_by(shape: MergeRules<'_>, object: &Value) -> Self {
        let mut fields = Self::default();
        fields.collect(shape, object, &FieldPath::default());
        fields
    }

    /// Returns true if the set contains the path or anything below it.
    pub fn contains_subtree(&self, path: &FieldPath) -> bool {
        self.0.range(path..).next().is_some_and(|next| next.0.starts_with(&path.0))
    }

    /// Adds all fields of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
    }

    /// Removes all fields of `other`.
    pub fn remove(&mut self, other: &Self) {
        self.0.retain(|path| !other.0.contains(path));
    }

    /// Returns the fields in both sets.
    pub fn intersection<'a>(&'a self, other: &'a Self) -> Vec<&'a FieldPath> {
        self.0.intersection(&other.0).collect()
    }

    /// Returns true if the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn insert(&mut self, path: FieldPath) {
        self.0.insert(path);
    }

    fn collect(&mut self, shape: MergeRules<'_>, value: &Value, path: &FieldPath) {
        match value {
            Value::Object(fields) if !shape.is_atomic_map() => {
                for (name, value) in fields.iter().filter(|(name, _)| is_ownable(shape, name)) {
                    let inner = path.field(name);
                    self.collect(shape.field(name), value, &inner);
                    if !shape.declares(name) || value.as_object().is_some_and(Map::is_empty) {
                        self.insert(inner);
                    }
                }
            }
            Value::Array(items) => match shape.item_keys(items) {
                None => self.insert(path.clone()),
                Some(keys) => {
                    for (key, item) in keys.iter().zip(items) {
                        let inner = path.item(key);
                        self.collect(shape.item(), item, &inner);
                        self.insert(inner);
                    }
                }
            },
            _ => self.insert(path.clone()),
        }
    }
}

/// Returns true if a field can have an owner: not the identity of the object, nor fields that only
/// the API server writes.
pub fn is_ownable(shape: MergeRules<'_>, name: &str) -> bool {
    match shape {
        MergeRules::Root(_) => name != "apiVersion" && name != "kind",
        MergeRules::BuiltIn("metadata") => ["labels", "annotations", "finalizers", "ownerReferences"].contains(&name),
        _ => true,
    }
}

/// Difference between two states of an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Fields that are added or changed.
    pub set: FieldSet,
    /// Fields that are removed.
    pub removed: FieldSet,
}

impl Difference {
    /// Computes the difference between `old` and `new`.
    pub fn between(shape: MergeRules<'_>, old: &Value, new: &Value) -> Self {
        let mut difference = Self::default();
        difference.compare(shape, old, new, &FieldPath::default());
        difference
    }

    fn compare(&mut self, shape: MergeRules<'_>, old: &Value, new: &Value, path: &FieldPath) {
        if old == new {
            return;
        }
        match (old, new) {
            (Value::Object(old), Value::Object(new)) if !shape.is_atomic_map() => {
                for name in old.keys().chain(new.keys().filter(|name| !old.contains_key(*name))) {
                    if is_ownable(shape, name) {
                        let (old, new) = (old.get(name), new.get(name));
                        self.compare_child(shape.field(name), old, new, &path.field(name), !shape.declares(name));
                    }
                }
            }
            (Value::Array(old_items), Value::Array(new_items)) => {
                let (Some(old_keys), Some(new_keys)) = (shape.item_keys(old_items), shape.item_keys(new_items)) else {
                    return self.set.insert(path.clone());
                };
                let find = |keys: &[String], key: &String| keys.iter().position(|known| known == key);
                for (key, old) in old_keys.iter().zip(old_items) {
                    let new = find(&new_keys, key).and_then(|index| new_items.get(index));
                    self.compare_child(shape.item(), Some(old), new, &path.item(key), true);
                }
                for (key, new) in new_keys.iter().zip(new_items).filter(|(key, _)| !old_keys.contains(key)) {
                    self.compare_child(shape.item(), None, Some(new), &path.item(key), true);
                }
            }
            _ => {
                self.removed.collect(shape, old, path);
                self.set.collect(shape, new, path);
                self.removed.remove(&self.set.clone());
            }
        }
    }

    /// Compares a field or a list item. With `counts`, its path is itself a member of the sets, in
    /// addition to its leaves.
    fn compare_child(
        &mut self,
        shape: MergeRules<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
        path: &FieldPath,
        counts: bool,
    ) {
        let is_empty = |value: &Value| value.as_object().is_some_and(Map::is_empty);
        let (fields, value) = match (old, new) {
            (Some(old), Some(new)) => return self.compare(shape, old, new, path),
            (Some(old), None) => (&mut self.removed, old),
            (None, Some(new)) => (&mut self.set, new),
            (None, None) => return,
        };
        fields.collect(shape, value, path);
        if counts || is_empty(value) {
            fields.insert(path.clone());
        }
    }
}
