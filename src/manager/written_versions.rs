//! Resource versions of this process's own writes, which a watch may observe later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sluice_engine::cluster_state::Object;

/// Newest resource version in the response to a write, by kind.
#[derive(Debug, Clone, Default)]
pub(super) struct WrittenVersions(Arc<Mutex<BTreeMap<String, u64>>>);

impl WrittenVersions {
    /// Records the object in the response to a write.
    pub(super) fn record(&self, object: &Object) {
        let version = object.meta().resource_version.as_deref().and_then(|version| version.parse::<u64>().ok());
        let Some(version) = version else { return };
        // Nothing panics while it holds the lock.
        let mut versions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = versions.entry(object.reference().kind).or_default();
        *newest = version.max(*newest);
    }

    /// Returns the newest version of a kind; 0 if none was written.
    pub(super) fn newest(&self, kind: &str) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(kind).copied().unwrap_or(0)
    }
}
