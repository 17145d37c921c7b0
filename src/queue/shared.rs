//! Interning: equal values of many workloads share one allocation.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

/// An interned value. Equal values share one allocation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shared<T>(Arc<T>);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Ord> PartialOrd for Shared<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord> Ord for Shared<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

/// Set of interned values.
#[derive(Debug, Clone)]
pub(super) struct Pool<T> {
    known: BTreeSet<Shared<T>>,
    /// Number of values above which unreferenced values are removed.
    limit: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self { known: BTreeSet::new(), limit: 0 }
    }
}

impl<T: Ord> Pool<T> {
    /// Returns the interned value that equals `value`; interns it if there is none.
    pub(super) fn shared(&mut self, value: T) -> Shared<T> {
        let value = Shared(Arc::new(value));
        if let Some(known) = self.known.get(&value) {
            return known.clone();
        }
        if self.known.len() >= self.limit {
            self.known.retain(|value| Arc::strong_count(&value.0) > 1);
            self.limit = self.known.len() * 2 + 64;
        }
        self.known.insert(value.clone());
        value
    }
}
