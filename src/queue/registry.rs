//! Ids for named values: frequent lookups and comparisons use a small integer, and each name is
//! stored once.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// Id of a value in a [`Registry`]. The id of a removed value is reused.
pub(super) struct Id<T> {
    number: u32,
    marker: PhantomData<fn() -> T>,
}

impl<T> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Id<T> {}

impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<T> Eq for Id<T> {}

impl<T> PartialOrd for Id<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Id<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.number.cmp(&other.number)
    }
}

impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.number)
    }
}

impl<T> Id<T> {
    fn index(self) -> usize {
        self.number as usize
    }
}

/// Values by name and by id.
#[derive(Debug, Clone)]
pub(super) struct Registry<K, T> {
    ids: BTreeMap<K, Id<T>>,
    values: Vec<Option<Box<T>>>,
    free: Vec<Id<T>>,
}

impl<K, T> Default for Registry<K, T> {
    fn default() -> Self {
        Self { ids: BTreeMap::new(), values: Vec::new(), free: Vec::new() }
    }
}

impl<K: Ord + Clone, T> Registry<K, T> {
    /// Returns the id of a name; `None` if the name is unknown.
    pub(super) fn id(&self, name: &K) -> Option<Id<T>> {
        self.ids.get(name).copied()
    }

    pub(super) fn get(&self, id: Id<T>) -> Option<&T> {
        self.values.get(id.index())?.as_deref()
    }

    pub(super) fn get_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        self.values.get_mut(id.index())?.as_deref_mut()
    }

    pub(super) fn get_by_name(&self, name: &K) -> Option<&T> {
        self.get(self.id(name)?)
    }

    /// Returns the id of a name. Inserts the value of `make` if the name is unknown.
    pub(super) fn get_or_insert_with(&mut self, name: &K, make: impl FnOnce() -> T) -> Id<T> {
        if let Some(id) = self.id(name) {
            return id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.values.push(None);
            Id { number: u32::try_from(self.values.len() - 1).unwrap_or(u32::MAX), marker: PhantomData }
        });
        self.values[id.index()] = Some(Box::new(make()));
        self.ids.insert(name.clone(), id);
        id
    }

    pub(super) fn remove(&mut self, name: &K) -> Option<T> {
        let id = self.ids.remove(name)?;
        self.free.push(id);
        self.values.get_mut(id.index())?.take().map(|thing| *thing)
    }

    /// Iterates over all values, sorted by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, Id<T>, &T)> {
        self.ids.iter().filter_map(|(name, id)| Some((name, *id, self.get(*id)?)))
    }

    /// Iterates over the values with names from `first` on, sorted by name.
    pub(super) fn range_from(&self, first: &K) -> impl Iterator<Item = (&K, Id<T>, &T)> {
        self.ids.range(first..).filter_map(|(name, id)| Some((name, *id, self.get(*id)?)))
    }
}
