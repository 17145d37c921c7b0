//! Who owns which fields. What writes changed is only worked out when somebody applies, which is rare.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::super::kinds::Kind;
use super::paths::{Difference, Fields};
use super::shape::Shape;

/// Someone who owns fields.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Manager {
    /// How the writer calls itself.
    pub name: Arc<str>,
    /// Whether the fields were applied, rather than written.
    pub applies: bool,
    /// Whether they were written by way of the status.
    pub status: bool,
}

/// The owners of one object's fields.
#[derive(Debug, Clone, Default)]
pub struct Ownership {
    owners: BTreeMap<Manager, Fields>,
    /// Writes that were not counted yet: who, from what, to what.
    writes: Vec<(Manager, Option<Arc<Value>>, Arc<Value>)>,
}

/// The owners of all fields, by kind and key.
#[derive(Debug, Default)]
pub struct Ledger(BTreeMap<(usize, String), Ownership>);

impl Ledger {
    /// Notes a write.
    pub fn wrote(&mut self, kind: &Kind, key: &str, by: Manager, before: Option<Arc<Value>>, after: Arc<Value>) {
        self.0.entry((kind.index, key.to_owned())).or_default().writes.push((by, before, after));
    }

    /// The owners of an object's fields as of now.
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

    /// Sets the owners of an object's fields.
    pub fn set(&mut self, kind: &Kind, key: &str, owners: BTreeMap<Manager, Fields>) {
        self.0.insert((kind.index, key.to_owned()), Ownership { owners, writes: Vec::new() });
    }

    /// Forgets an object that is gone.
    pub fn forget(&mut self, kind: &Kind, key: &str) {
        self.0.remove(&(kind.index, key.to_owned()));
    }
}

/// Who writes a field owns it alone; what is gone has no owner.
fn count(owners: &mut BTreeMap<Manager, Fields>, manager: Manager, difference: &Difference) {
    for fields in owners.values_mut() {
        fields.remove(&difference.set);
        fields.remove(&difference.gone);
    }
    owners.entry(manager).or_default().add(&difference.set);
    owners.retain(|_, fields| !fields.is_empty());
}
