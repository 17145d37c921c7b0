//! Updates of sets that index other values.

use std::collections::BTreeSet;

/// Direction of an update of an index: the same code finds the entries in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IndexUpdate {
    /// Inserts the entries.
    Insert,
    /// Removes the entries.
    Remove,
}

impl IndexUpdate {
    /// Inserts an entry into the set, or removes it.
    pub(super) fn apply_to<T: Ord>(self, set: &mut BTreeSet<T>, entry: T) {
        match self {
            Self::Insert => set.insert(entry),
            Self::Remove => set.remove(&entry),
        };
    }
}
