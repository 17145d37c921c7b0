//! Interning: equal values of many workloads share one allocation.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

/// An interned value. Equal values share one allocation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Interned<T>(Arc<T>);

impl<T> Clone for Interned<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Interned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Ord> PartialOrd for Interned<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Ord> Ord for Interned<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

/// Set of interned values.
#[derive(Debug, Clone)]
pub(super) struct Interner<T> {
    values: BTreeSet<Interned<T>>,
    /// Number of values above which unreferenced values are removed.
    cleanup_threshold: usize,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { values: BTreeSet::new(), cleanup_threshold: 0 }
    }
}

impl<T: Ord> Interner<T> {
    /// Returns the interned value that equals `value`; interns it if there is none.
    pub(super) fn intern(&mut self, value: T) -> Interned<T> {
        let value = Interned(Arc::new(value));
        if let Some(known) = self.values.get(&value) {
            return known.clone();
        }
        if self.values.len() >= self.cleanup_threshold {
            self.values.retain(|value| Arc::strong_count(&value.0) > 1);
            self.cleanup_threshold = self.values.len() * 2 + 64;
        }
        self.values.insert(value.clone());
        value
    }
}
