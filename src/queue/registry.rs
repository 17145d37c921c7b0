//! Ids for named values: frequent lookups and comparisons use a small id, and each name is stored
//! once.

use std::collections::BTreeMap;

use slotmap::{Key, SlotMap};

/// Values by name and by id. An id that outlives its value finds nothing, also after its slot is
/// reused: it has a generation.
#[derive(Debug, Clone)]
pub(super) struct Registry<K, Id: Key, T> {
    ids: BTreeMap<K, Id>,
    values: SlotMap<Id, Box<T>>,
}

impl<K, Id: Key, T> Default for Registry<K, Id, T> {
    fn default() -> Self {
        Self { ids: BTreeMap::new(), values: SlotMap::with_key() }
    }
}

impl<K: Ord + Clone, Id: Key, T> Registry<K, Id, T> {
    /// Returns the id of a name; `None` if the name is unknown.
    pub(super) fn id(&self, name: &K) -> Option<Id> {
        self.ids.get(name).copied()
    }

    pub(super) fn get(&self, id: Id) -> Option<&T> {
        self.values.get(id).map(Box::as_ref)
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut T> {
        self.values.get_mut(id).map(Box::as_mut)
    }

    pub(super) fn get_by_name(&self, name: &K) -> Option<&T> {
        self.get(self.id(name)?)
    }

    /// Returns the id of a name. Inserts the value of `make` if the name is unknown.
    pub(super) fn get_or_insert_with(&mut self, name: &K, make: impl FnOnce() -> T) -> Id {
        if let Some(id) = self.id(name) {
            return id;
        }
        let id = self.values.insert(Box::new(make()));
        self.ids.insert(name.clone(), id);
        id
    }

    pub(super) fn remove(&mut self, name: &K) -> Option<T> {
        let id = self.ids.remove(name)?;
        self.values.remove(id).map(|value| *value)
    }

    /// Iterates over all values, sorted by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, Id, &T)> {
        self.ids.iter().filter_map(|(name, id)| Some((name, *id, self.get(*id)?)))
    }

    /// Iterates over the values with names from `first` on, sorted by name.
    pub(super) fn range_from(&self, first: &K) -> impl Iterator<Item = (&K, Id, &T)> {
        self.ids.range(first..).filter_map(|(name, id)| Some((name, *id, self.get(*id)?)))
    }
}

#[cfg(test)]
mod tests {
    use slotmap::DefaultKey;

    use super::*;

    #[test]
    fn stale_id_does_not_find_the_value_that_reuses_its_slot() {
        let mut registry: Registry<&str, DefaultKey, u32> = Registry::default();
        let first = registry.get_or_insert_with(&"first", || 1);
        assert_eq!(registry.remove(&"first"), Some(1));
        let second = registry.get_or_insert_with(&"second", || 2);
        assert_eq!((registry.get(first), registry.get(second)), (None, Some(&2)));
    }

    #[test]
    fn ids_are_ordered_by_slot_and_the_last_freed_slot_is_reused_first() {
        let mut registry: Registry<u32, DefaultKey, u32> = Registry::default();
        let ids: Vec<DefaultKey> = (0..4).map(|name| registry.get_or_insert_with(&name, || name)).collect();
        assert!(ids.is_sorted());
        registry.remove(&1);
        registry.remove(&2);
        let reused = registry.get_or_insert_with(&5, || 5);
        assert!(ids[1] < reused && ids[2] < reused && reused < ids[3]);
    }
}
