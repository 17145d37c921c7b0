//! Field owners of all objects. The fields that writes changed are computed lazily: only
//! server-side apply needs them, and it is rare.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::super::kinds::Kind;
use super::paths::{Difference, Fields};
use super::shape::Shape;

/// Field manager, as in `metadata.managedFields`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Manager {
    /// Name of the manager.
    pub name: Arc<str>,
    /// Set if the fields were applied (operation Apply) rather than updated.
    pub applies: bool,
    /// Set if they were written through the status subresource.
    pub status: bool,
}

/// Field owners of one object.
#[derive(Debug, Clone, Default)]
pub struct Ownership {
    owners: BTreeMap<Manager, Fields>,
    /// Writes not yet reflected in `owners`: manager, object before and after.
    writes: Vec<(Manager, Option<Arc<Value>>, Arc<Value>)>,
}

/// Field owners of all objects, by kind and key.
#[derive(Debug, Default)]
pub struct Ledger(BTreeMap<(usize, String), Ownership>);

impl Ledger {
    /// Records a write.
    pub fn wrote(&mut self, kind: &Kind, key: &str, by: Manager, before: Option<Arc<Value>>, after: Arc<Value>) {
        self.0.entry((kind.index, key.to_owned())).or_default().writes.push((by, before, after));
    }

    /// Returns the current field owners of an object.
    pub fn owners(&mut self, kind: &Kind, key: &str) -> BTreeMap<Manager, Fields> {
        let Some(ownership) = self.0.get_mut(&(kind.index, key.to_owned())) else { return BTreeMap::new() };
        for (manager, before, after) in std::mem::take(&mut ownership.writes) {
            let difference = match before {
                None => Difference { set: Fields::of(Shape::of(kind), &after), gone: Fields::default() },
                Some(before) => Difference::between(Shape::of(kind), &before, &after),
            };
            count(&mut ownership.owners, manager, &difference);
        }
        ownership.owners.clone()
    }

    /// Replaces the field owners of an object.
    pub fn set(&mut self, kind: &Kind, key: &str, owners: BTreeMap<Manager, Fields>) {
        self.0.insert((kind.index, key.to_owned()), Ownership { owners, writes: Vec::new() });
    }

    /// Removes a deleted object.
    pub fn forget(&mut self, kind: &Kind, key: &str) {
        self.0.remove(&(kind.index, key.to_owned()));
    }
}

/// Makes the manager of a write the only owner of the written fields; removed fields have no owner.
fn count(owners: &mut BTreeMap<Manager, Fields>, manager: Manager, difference: &Difference) {
    for fields in owners.values_mut() {
        fields.remove(&difference.set);
        fields.remove(&difference.gone);
    }
    owners.entry(manager).or_default().add(&difference.set);
    owners.retain(|_, fields| !fields.is_empty());
}
