//! Field owners of all objects. The fields that writes changed are computed lazily: only
//! server-side apply needs them, and it is rare.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::super::kinds::ResourceKind;
use super::field_set::{Difference, FieldSet};
use super::merge_rules::MergeRules;

/// Field manager, as in `metadata.managedFields`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldManager {
    /// Name of the manager.
    pub name: Arc<str>,
    /// Set if the fields were applied (operation Apply) rather than updated.
    pub is_apply: bool,
    /// Set if they were written through the status subresource.
    pub is_status: bool,
}

/// Field owners of one object.
#[derive(Debug, Clone, Default)]
pub struct ObjectFieldOwners {
    owners: BTreeMap<FieldManager, FieldSet>,
    /// Writes not yet reflected in `owners`: manager, object before and after.
    pending_writes: Vec<(FieldManager, Option<Arc<Value>>, Arc<Value>)>,
}

/// Field owners of all objects, by kind and key.
#[derive(Debug, Clone, Default)]
pub struct ManagedFields(BTreeMap<(usize, String), ObjectFieldOwners>);

impl ManagedFields {
    /// Records a write.
    pub fn record_write(
        &mut self,
        kind: &ResourceKind,
        key: &str,
        by: FieldManager,
        before: Option<Arc<Value>>,
        after: Arc<Value>,
    ) {
        self.0.entry((kind.index, key.to_owned())).or_default().pending_writes.push((by, before, after));
    }

    /// Returns the current field owners of an object.
    pub fn owners(&mut self, kind: &ResourceKind, key: &str) -> BTreeMap<FieldManager, FieldSet> {
        let Some(ownership) = self.0.get_mut(&(kind.index, key.to_owned())) else { return BTreeMap::new() };
        for (manager, before, after) in std::mem::take(&mut ownership.pending_writes) {
            let difference = match before {
                None => Difference {
                    set: FieldSet::set_by(MergeRules::for_kind(kind), &after),
                    removed: FieldSet::default(),
                },
                Some(before) => Difference::between(MergeRules::for_kind(kind), &before, &after),
            };
            transfer_ownership(&mut ownership.owners, manager, &difference);
        }
        ownership.owners.clone()
    }

    /// Replaces the field owners of an object.
    pub fn set_owners(&mut self, kind: &ResourceKind, key: &str, owners: BTreeMap<FieldManager, FieldSet>) {
        self.0.insert((kind.index, key.to_owned()), ObjectFieldOwners { owners, pending_writes: Vec::new() });
    }

    /// Removes a deleted object.
    pub fn remove(&mut self, kind: &ResourceKind, key: &str) {
        self.0.remove(&(kind.index, key.to_owned()));
    }
}

/// Makes the manager of a write the only owner of the written fields; removed fields have no owner.
fn transfer_ownership(owners: &mut BTreeMap<FieldManager, FieldSet>, manager: FieldManager, difference: &Difference) {
    for fields in owners.values_mut() {
        fields.remove(&difference.set);
        fields.remove(&difference.removed);
    }
    owners.entry(manager).or_default().add(&difference.set);
    owners.retain(|_, fields| !fields.is_empty());
}
