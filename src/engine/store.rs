//! What is known of one kind: the newest version of each object that was observed or written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube_core::Resource;

use super::Scope;
use sluice_plan::ObjectKey;

/// So many deletions of one kind are remembered.
const REMEMBERED: usize = 8192;

/// Under which other objects an object is looked up, like the cluster that a pod belongs to.
type IndexFn<K> = fn(&K) -> Under;

/// The objects under which one object is looked up: two at most.
pub type Under = [Option<ObjectKey>; 2];

/// The objects of one kind, as new as anything that was seen of them.
///
/// Versions arrive twice, from the watch and from the answers to our own writes, and in any order. A version older than
/// the one that is held is ignored, and so is a late version of an object that is known to be gone.
#[derive(Debug)]
pub struct Store<K> {
    objects: BTreeMap<ObjectKey, Arc<K>>,
    /// The resource version at which an object was deleted, until the next relist.
    gone: BTreeMap<ObjectKey, u64>,
    index_by: IndexFn<K>,
    index: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
}

impl<K: Resource> Store<K> {
    /// An empty store whose objects can be looked up by what `index_by` says.
    pub fn new(index_by: IndexFn<K>) -> Self {
        Self { objects: BTreeMap::new(), gone: BTreeMap::new(), index_by, index: BTreeMap::new() }
    }

    /// The object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        self.objects.get(key)
    }

    /// All objects, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&ObjectKey, &Arc<K>)> {
        self.objects.iter()
    }

    /// The objects that are indexed under `key`, in the order of their own keys.
    pub fn under<'a>(&'a self, key: &ObjectKey) -> impl Iterator<Item = &'a Arc<K>> + use<'a, K> {
        self.index.get(key).into_iter().flatten().filter_map(|member| self.objects.get(member))
    }

    /// Takes in a version; returns whether it was news, and the version that it replaced.
    pub fn apply(&mut self, object: Arc<K>) -> Applied<K> {
        let key = ObjectKey::of(object.as_ref());
        let version = version_of(object.as_ref());
        if self.gone.get(&key).is_some_and(|deleted_at| version <= *deleted_at) {
            return Applied::Stale;
        }
        if self.objects.get(&key).is_some_and(|held| version <= version_of(held.as_ref())) {
            return Applied::Stale;
        }
        self.gone.remove(&key);
        let replaced = self.take(&key);
        for under in (self.index_by)(&object).into_iter().flatten() {
            self.index.entry(under).or_default().insert(key.clone());
        }
        self.objects.insert(key, object);
        Applied::News { replaced }
    }

    /// Takes in that an object is gone, as of the last version of it; returns what was held of it.
    pub fn remove(&mut self, last: &K) -> Option<Arc<K>> {
        let key = ObjectKey::of(last);
        let version = version_of(last);
        if self.objects.get(&key).is_some_and(|held| version < version_of(held.as_ref())) {
            return None;
        }
        self.gone.insert(key.clone(), version);
        if self.gone.len() > REMEMBERED {
            self.forget_older_half();
        }
        self.take(&key)
    }

    /// Takes in a complete list of what is in a scope; returns what it shows to be gone.
    pub fn absent_from(&mut self, listed: &BTreeSet<ObjectKey>, scope: &Scope) -> Vec<Arc<K>> {
        let is_known = |key: &ObjectKey| scope.namespace.as_ref().is_none_or(|namespace| key.namespace == *namespace);
        // Which labels those had that are gone is not remembered.
        self.gone.retain(|key, _| scope.label.is_some() || !is_known(key));
        let is_absent = |(key, held): &(&ObjectKey, &Arc<K>)| scope.sees(held.meta()) && !listed.contains(*key);
        let absent: Vec<ObjectKey> = self.objects.iter().filter(is_absent).map(|(key, _)| key.clone()).collect();
        absent.iter().filter_map(|key| self.take(key)).collect()
    }

    /// Only the answer to a write that is under way can be late, so what went long ago need not be remembered.
    fn forget_older_half(&mut self) {
        let mut versions: Vec<u64> = self.gone.values().copied().collect();
        versions.sort_unstable();
        let middle = versions[versions.len() / 2];
        self.gone.retain(|_, version| *version >= middle);
    }

    fn take(&mut self, key: &ObjectKey) -> Option<Arc<K>> {
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

/// What became of a version that was handed to a [`Store`].
#[derive(Debug)]
pub enum Applied<K> {
    /// It is no newer than what is known.
    Stale,
    /// It is now what is known.
    News {
        /// The version that was held before.
        replaced: Option<Arc<K>>,
    },
}

/// Resource versions are ordered numbers (Kubernetes 1.35 made that part of the API; etcd revisions were so before).
pub(super) fn version_of<K: Resource>(object: &K) -> u64 {
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
        store.under(&ObjectKey::global(under)).filter_map(|object| object.metadata.name.clone()).collect()
    }

    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        let mut store = store();
        store.apply(config_map("a", 5, "x"));

        assert!(matches!(store.apply(config_map("a", 4, "y")), Applied::Stale));
        assert!(matches!(store.apply(config_map("a", 5, "y")), Applied::Stale));
        assert_eq!(names_under(&store, "x"), ["a"]);
    }

    #[test]
    fn the_answer_to_a_write_that_arrives_after_the_deletion_does_not_bring_the_object_back() {
        let mut store = store();
        store.apply(config_map("a", 5, "x"));
        store.remove(&config_map("a", 9, "x"));

        assert!(matches!(store.apply(config_map("a", 7, "x")), Applied::Stale));
        assert!(matches!(store.apply(config_map("a", 11, "x")), Applied::News { .. }), "made anew under the same name");
    }

    #[test]
    fn deletions_of_long_ago_are_forgotten_and_those_of_late_are_not() {
        let mut store = store();
        let last = REMEMBERED as u64 + 10;
        for version in 1..=last {
            let name = format!("c{version}");
            store.apply(config_map(&name, version, "x"));
            store.remove(&config_map(&name, version, "x"));
        }

        assert!(store.gone.len() <= REMEMBERED);
        assert!(matches!(store.apply(config_map(&format!("c{last}"), last, "x")), Applied::Stale));
    }

    #[test]
    fn a_late_deletion_does_not_remove_what_was_made_anew() {
        let mut store = store();
        store.apply(config_map("a", 11, "x"));

        assert!(store.remove(&config_map("a", 9, "x")).is_none());
        assert!(store.get(&ObjectKey::global("a")).is_some());
    }

    fn scope(label: Option<&'static str>) -> Scope {
        Scope { kind: "ConfigMap".to_owned(), namespace: None, label }
    }

    #[test]
    fn a_list_of_those_that_have_a_label_says_nothing_of_others() {
        let mut store = store();
        store.apply(config_map("labelled", 1, "x"));
        store.apply(config_map("other", 2, "x"));
        let labels = Some([("team".to_owned(), "a".to_owned())].into());
        let mut labelled = config_map("labelled", 3, "x").as_ref().clone();
        labelled.metadata.labels = labels;
        store.apply(Arc::new(labelled));

        let gone = store.absent_from(&BTreeSet::new(), &scope(Some("team")));

        assert_eq!(
            gone.iter().map(|gone| ObjectKey::of(gone.as_ref())).collect::<Vec<_>>(),
            [ObjectKey::global("labelled")]
        );
        assert!(store.get(&ObjectKey::global("other")).is_some());
    }

    #[test]
    fn the_index_follows_an_object_that_moves_and_one_that_goes() {
        let mut store = store();
        store.apply(config_map("a", 1, "x"));
        store.apply(config_map("b", 2, "x"));

        store.apply(config_map("a", 3, "y"));
        assert_eq!(names_under(&store, "x"), ["b"]);
        assert_eq!(names_under(&store, "y"), ["a"]);

        let gone = store.absent_from(&BTreeSet::from([ObjectKey::global("a")]), &scope(None));
        assert_eq!(gone.len(), 1);
        assert!(names_under(&store, "x").is_empty());
    }
}
