//! Server-side apply by the rules of structured-merge-diff (kubernetes-sigs/structured-merge-diff
//! v6, `merge/update.go`): the applier owns the applied fields; fields of its earlier apply that
//! have no owner left are removed; a value owned by another manager is only changed with force.
//! Responses have no `metadata.managedFields`.

mod field_set;
mod managed_fields;
mod merge_rules;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::status_error::StatusError;

pub use field_set::FieldSet;
pub use managed_fields::{FieldManager, ManagedFields};
pub use merge_rules::MergeRules;

use field_set::{Difference, FieldPath, is_ownable};

/// Result of a server-side apply.
#[derive(Debug)]
pub struct ApplyResult {
    /// Merged object.
    pub object: Value,
    /// New field owners.
    pub owners: BTreeMap<FieldManager, FieldSet>,
}

/// Applies a configuration to an object on behalf of `manager`.
///
/// # Errors
/// Returns a conflict if that changes fields of other managers, unless `force` is set.
pub fn apply(
    shape: MergeRules<'_>,
    live: &Value,
    wanted: &Value,
    mut owners: BTreeMap<FieldManager, FieldSet>,
    manager: &FieldManager,
    force: bool,
) -> Result<ApplyResult, StatusError> {
    let mut object = live.clone();
    merge(shape, &mut object, wanted);
    let last = owners.insert(manager.clone(), FieldSet::set_by(shape, wanted)).unwrap_or_default();
    let mut owned = FieldSet::default();
    owners.values().for_each(|fields| owned.add(fields));
    prune(shape, &mut object, &FieldPath::default(), &last, &owned);

    let difference = Difference::between(shape, live, &object);
    let mut conflicts = Vec::new();
    for (other, fields) in owners.iter_mut().filter(|(other, _)| *other != manager) {
        let taken = fields.intersection(&difference.set);
        conflicts.extend(taken.iter().map(|path| (other.clone(), path.to_string())));
        fields.remove(&difference.set);
        fields.remove(&difference.removed);
    }
    if !conflicts.is_empty() && !force {
        return Err(conflict_error(live, &conflicts));
    }
    owners.retain(|_, fields| !fields.is_empty());
    Ok(ApplyResult { object, owners })
}

/// Merges an applied configuration into a value.
fn merge(shape: MergeRules<'_>, value: &mut Value, wanted: &Value) {
    match (value, wanted) {
        (Value::Object(fields), Value::Object(wanted)) if !shape.is_atomic_map() => {
            for (name, wanted) in wanted {
                match fields.get_mut(name) {
                    Some(value) => merge(shape.field(name), value, wanted),
                    None => {
                        fields.insert(name.clone(), wanted.clone());
                    }
                }
            }
        }
        (Value::Array(items), Value::Array(wanted)) => match (shape.item_keys(items), shape.item_keys(wanted)) {
            (Some(keys), Some(wanted_keys)) => {
                // Applied items come first, in the order of the configuration; the others follow.
                let mut rest: Vec<Option<Value>> = std::mem::take(items).into_iter().map(Some).collect();
                for (key, wanted) in wanted_keys.iter().zip(wanted) {
                    let position = keys.iter().position(|known| known == key);
                    let found = position.and_then(|position| rest.get_mut(position)?.take());
                    let mut item = found.unwrap_or_else(|| wanted.clone());
                    merge(shape.item(), &mut item, wanted);
                    items.push(item);
                }
                items.extend(rest.into_iter().flatten());
            }
            _ => wanted.clone_into(items),
        },
        (value, wanted) => *value = wanted.clone(),
    }
}

/// Removes fields of the last apply (`last`) that have no owner left.
fn prune(shape: MergeRules<'_>, value: &mut Value, path: &FieldPath, last: &FieldSet, owned: &FieldSet) {
    let lost_owner = |path: &FieldPath| last.contains_subtree(path) && !owned.contains_subtree(path);
    match value {
        Value::Object(fields) if !shape.is_atomic_map() => {
            // Metadata itself is never removed: every configuration has a name.
            let stays =
                |name: &str| !is_ownable(shape, name) || matches!(shape.field(name), MergeRules::BuiltIn("metadata"));
            fields.retain(|name, _| stays(name) || !lost_owner(&path.field(name)));
            for (name, value) in fields.iter_mut().filter(|(name, _)| is_ownable(shape, name)) {
                let inner = path.field(name);
                if last.contains_subtree(&inner) {
                    prune(shape.field(name), value, &inner, last, owned);
                }
            }
        }
        Value::Array(items) => {
            let Some(keys) = shape.item_keys(items) else { return };
            let paths: Vec<FieldPath> = keys.iter().map(|key| path.item(key)).collect();
            let parts = std::mem::take(items).into_iter().zip(&paths).filter(|(_, path)| !lost_owner(path));
            items.extend(parts.map(|(mut item, path)| {
                prune_item(shape, &mut item, path, last, owned);
                item
            }));
        }
        _ => {}
    }
}

/// Prunes a list item, but keeps its key fields.
fn prune_item(list: MergeRules<'_>, item: &mut Value, path: &FieldPath, last: &FieldSet, owned: &FieldSet) {
    let keys: Vec<(String, Value)> = item
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| list.is_key(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    prune(list.item(), item, path, last, owned);
    if let Some(fields) = item.as_object_mut() {
        fields.extend(keys);
    }
}

fn conflict_error(live: &Value, conflicts: &[(FieldManager, String)]) -> StatusError {
    let version = live.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    let describe = |manager: &FieldManager| {
        let path = if manager.is_status { " with subresource \"status\"" } else { "" };
        let using = if manager.is_apply { String::new() } else { format!(" using {version}") };
        format!("\"{}\"{path}{using}", manager.name)
    };
    let summary = match conflicts {
        [(manager, path)] => format!("conflict with {}: {path}", describe(manager)),
        _ => {
            let mut by_manager: BTreeMap<String, Vec<&str>> = BTreeMap::new();
            for (manager, path) in conflicts {
                by_manager.entry(describe(manager)).or_default().push(path);
            }
            let each = by_manager
                .iter()
                .map(|(manager, paths)| format!("conflicts with {manager}:\n- {}", paths.join("\n- ")));
            each.collect::<Vec<_>>().join("\n")
        }
    };
    let plural = if conflicts.len() == 1 { "" } else { "s" };
    let cause = |(manager, path): &(FieldManager, String)| {
        let message = format!("conflict with {}", describe(manager));
        json!({"reason": "FieldManagerConflict", "message": message, "field": path})
    };
    StatusError {
        code: 409,
        reason: "Conflict",
        message: format!("Apply failed with {} conflict{plural}: {summary}", conflicts.len()),
        details: json!({"causes": conflicts.iter().map(cause).collect::<Vec<_>>()}),
        continue_token: None,
    }
}

#[cfg(test)]
mod tests;
