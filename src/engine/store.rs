//! Store of one kind: the newest observed or written version of each object.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube_core::Resource;

use super::Scope;
use sluice_plan::ObjectKey;

/// Maximum number of remembered deletions per kind.
const MAX_TOMBSTONES: usize = 8192;

/// Returns the index keys of an object, like the cluster that owns a pod.
type IndexFn<K> = fn(&K) -> IndexKeys;

/// Keys under which one object is indexed: two at most.
pub type IndexKeys = [Option<ObjectKey>; 2];

/// The newest known version of each object of one kind.
///
/// Versions arrive twice, from the watch and from the responses to our own writes, and in any
/// order. The store ignores a version older than the stored one, and a late version of a deleted
/// object.
#[derive(Debug, Clone)]
pub struct Store<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    /// Resource version at which each object was deleted, until the next relist.
    tombstones: BTreeMap<ObjectKey, u64>,
    index_by: IndexFn<K>,
    index: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl<K: Resource> Store<K> {
    /// Creates an empty store that indexes its objects by `index_by`.
    pub fn new(index_by: IndexFn<K>) -> Self {
        Self { objects: BTreeMap::new(), tombstones: BTreeMap::new(), index_by, index: BTreeMap::new() }
    }

    /// Returns the object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        self.objects.get(key)
    }

    /// Iterates over all objects in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<K>)> {
        self.objects.iter()
    }

    /// Iterates over the objects indexed under `key`, in order of their object keys.
    pub fn by_index<'a>(&'a self, key: &ObjectKey) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.index.get(key).into_iter().flatten().filter_map(|member| self.objects.get(member))
    }

    /// Applies a version of an object; reports whether it was newer, and the version it replaced.
    pub fn apply(&mut self, object: Arc<K>) -> Applied<K> {
        let key = ObjectKey::of(object.as_ref());
        let version = numeric_resource_version(object.as_ref());
        if self.tombstones.get(&key).is_some_and(|deleted_at| version <= *deleted_at) {
            return Applied::Stale;
        }
        if self.objects.get(&key).is_some_and(|held| version <= numeric_resource_version(held.as_ref())) {
            return Applied::Stale;
        }
        self.tombstones.remove(&key);
        let replaced = self.detach(&key);
        for under in (self.index_by)(&object).into_iter().flatten() {
            self.index.entry(under).or_default().insert(key.clone());
        }
        self.objects.insert(key, object);
        Applied::Updated { replaced }
    }

    /// Removes an object that was deleted at version `last`; returns the stored version. Returns
    /// `None` if it was not stored, or if a newer version is.
    pub fn remove(&mut self, last: &K) -> Option<Arc<K>> {
        let key = ObjectKey::of(last);
        let version = numeric_resource_version(last);
        if self.objects.get(&key).is_some_and(|held| version < numeric_resource_version(held.as_ref())) {
            return None;
        }
        self.tombstones.insert(key.clone(), version);
        if self.tombstones.len() > MAX_TOMBSTONES {
            self.prune_tombstones();
        }
        self.detach(&key)
    }

    /// Removes the objects of a scope that are missing from its complete list, taken at `version`; returns
    /// them. An object with a later version was written while the list was under way.
    pub fn remove_unlisted(&mut self, listed: &BTreeSet<ObjectKey>, scope: &Scope, version: u64) -> Vec<Arc<K>> {
        let is_known = |key: &ObjectKey| scope.namespace.as_ref().is_none_or(|namespace| key.namespace == *namespace);
        // Tombstones carry no labels, so a list filtered by label does not say which ones it
        // covers.
        self.tombstones.retain(|key, deleted_at| scope.label.is_some() || !is_known(key) || *deleted_at > version);
        let is_absent = |(key, held): &(&ObjectKey, &Arc<K>)| {
            scope.covers(held.meta()) && !listed.contains(*key) && numeric_resource_version(held.as_ref()) <= version
        };
        let absent: Vec<ObjectKey> = self.objects.iter().filter(is_absent).map(|(key, _)| key.clone()).collect();
        absent.iter().filter_map(|key| self.detach(key)).collect()
    }

    /// Forgets the older half of the deletions. Only the response to a write in flight can be late,
    /// so old deletions need not be remembered.
    fn prune_tombstones(&mut self) {
        let mut versions: Vec<u64> = self.tombstones.values().copied().collect();
        versions.sort_unstable();
        let middle = versions[versions.len() / 2];
        self.tombstones.retain(|_, version| *version >= middle);
    }

    /// Removes an object together with its index entries.
    fn detach(&mut self, key: &ObjectKey) -> Option<Arc<K>> {
        let object = self.objects.remove(key)?;
        for under in (self.index_by)(&object).into_iter().flatten() {
            if let Some(members) = self.index.get_mut(&under) {
                members.remove(key);
                if members.is_empty() {
                    self.index.remove(&under);
                }
            }
        }
        Some(object)
    }
}

/// Result of applying a version to a [`Store`].
#[derive(Debug, Clone)]
pub enum Applied<K> {
    /// The version is not newer than the stored one and was ignored.
    Stale,
    /// The version is now stored.
    Updated {
        /// Version stored before; `None` for a new object.
        replaced: Option<Arc<K>>,
    },
}

/// Returns the resource version as a number; 0 if there is none. Resource versions are ordered
/// numbers (part of the API since Kubernetes 1.35; etcd revisions were ordered before).
pub(super) fn numeric_resource_version<K: Resource>(object: &K) -> u64 {
    object.meta().resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube_core::ResourceExt;

    use super::*;

    fn config_map(name: &str, version: u64, under: &str) -> Arc<ConfigMap> {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.into());
        object.metadata.resource_version = Some(version.to_string());
        object.metadata.labels = Some([("under".to_owned(), under.to_owned())].into());
        Arc::new(object)
    }

    fn store() -> Store<ConfigMap> {
        Store::new(|object| [object.labels().get("under").map(ObjectKey::global), None])
    }

    fn names_under(store: &Store<ConfigMap>, under: &str) -> Vec<String> {
        store.by_index(&ObjectKey::global(under)).filter_map(|object| object.metadata.name.clone()).collect()
    }

    #[test]
    fn older_version_never_replaces_a_newer_one() {
        let mut store = store();
        store.apply(config_map("a", 5, "x"));

        assert!(matches!(store.apply(config_map("a", 4, "y")), Applied::Stale));
        assert!(matches!(store.apply(config_map("a", 5, "y")), Applied::Stale));
        assert_eq!(names_under(&store, "x"), ["a"]);
    }

    #[test]
    fn late_write_response_does_not_resurrect_a_deleted_object() {
        let mut store = store();
        store.apply(config_map("a", 5, "x"));
        store.remove(&config_map("a", 9, "x"));

        assert!(matches!(store.apply(config_map("a", 7, "x")), Applied::Stale));
        assert!(
            matches!(store.apply(config_map("a", 11, "x")), Applied::Updated { .. }),
            "recreated under the same name"
        );
    }

    #[test]
    fn old_deletions_are_forgotten_and_recent_ones_are_not() {
        let mut store = store();
        let last = MAX_TOMBSTONES as u64 + 10;
        for version in 1..=last {
            let name = format!("c{version}");
            store.apply(config_map(&name, version, "x"));
            store.remove(&config_map(&name, version, "x"));
        }

        assert!(store.tombstones.len() <= MAX_TOMBSTONES);
        assert!(matches!(store.apply(config_map(&format!("c{last}"), last, "x")), Applied::Stale));
    }

    #[test]
    fn late_deletion_does_not_remove_a_recreated_object() {
        let mut store = store();
        store.apply(config_map("a", 11, "x"));

        assert!(store.remove(&config_map("a", 9, "x")).is_none());
        assert!(store.get(&ObjectKey::global("a")).is_some());
    }

    fn scope(label: Option<&'static str>) -> Scope {
        Scope { kind: "ConfigMap".to_owned(), namespace: None, label }
    }

    #[test]
    fn list_filtered_by_label_does_not_remove_unlabeled_objects() {
        let mut store = store();
        store.apply(config_map("labeled", 1, "x"));
        store.apply(config_map("other", 2, "x"));
        let labels = Some([("team".to_owned(), "a".to_owned())].into());
        let mut labeled = config_map("labeled", 3, "x").as_ref().clone();
        labeled.metadata.labels = labels;
        store.apply(Arc::new(labeled));

        let gone = store.remove_unlisted(&BTreeSet::new(), &scope(Some("team")), 3);

        assert_eq!(
            gone.iter().map(|gone| ObjectKey::of(gone.as_ref())).collect::<Vec<_>>(),
            [ObjectKey::global("labeled")]
        );
        assert!(store.get(&ObjectKey::global("other")).is_some());
    }

    #[test]
    fn objects_written_or_deleted_after_a_list_was_taken_stay_so() {
        // Given an object created and one deleted after version 5, and one that is older,
        let mut store = store();
        store.apply(config_map("created", 6, "x"));
        store.apply(config_map("deleted", 4, "x"));
        store.remove(&config_map("deleted", 7, "x"));
        store.apply(config_map("gone", 3, "x"));

        // when a list of version 5 arrives, which has neither the created nor the older one,
        let listed = BTreeSet::from([ObjectKey::global("deleted")]);
        let gone = store.remove_unlisted(&listed, &scope(None), 5);

        // then only the older one is removed, and the deleted one is not stored again.
        assert_eq!(
            gone.iter().map(|gone| ObjectKey::of(gone.as_ref())).collect::<Vec<_>>(),
            [ObjectKey::global("gone")]
        );
        assert!(store.get(&ObjectKey::global("created")).is_some());
        assert!(matches!(store.apply(config_map("deleted", 4, "x")), Applied::Stale));
    }

    #[test]
    fn index_follows_objects_that_change_keys_or_are_removed() {
        let mut store = store();
        store.apply(config_map("a", 1, "x"));
        store.apply(config_map("b", 2, "x"));

        store.apply(config_map("a", 3, "y"));
        assert_eq!(names_under(&store, "x"), ["b"]);
        assert_eq!(names_under(&store, "y"), ["a"]);

        let gone = store.remove_unlisted(&BTreeSet::from([ObjectKey::global("a")]), &scope(None), 3);
        assert_eq!(gone.len(), 1);
        assert!(names_under(&store, "x").is_empty());
    }
}
