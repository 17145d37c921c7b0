//! Stores objects by kind and key, with one global version counter and a log of all changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;

use super::kinds::{self, ResourceKind};
use super::object_meta;

/// Number of writes of other objects after a backup.
const OTHER_WRITES: u64 = 10_000;

/// Change of one object.
#[derive(Debug, Clone)]
pub struct ObjectChange {
    /// Resource version of the change.
    pub version: u64,
    /// Time of the change.
    pub time: Timestamp,
    /// Kind of the object.
    pub kind: &'static ResourceKind,
    /// Object after the change; for a deletion its last state, with the version of the deletion.
    pub object: Arc<Value>,
    /// Object before the change; `None` if it was created.
    pub before: Option<Arc<Value>>,
    /// Set if the change deleted the object.
    pub deleted: bool,
    /// `object` encoded as JSON.
    pub body: Bytes,
}

/// Current state of an object.
#[derive(Debug, Clone)]
pub struct StoredObject {
    /// Decoded object.
    pub object: Arc<Value>,
    /// Object encoded as JSON.
    pub body: Bytes,
}

impl StoredObject {
    /// Encodes an object once and keeps the bytes with it.
    pub fn new(object: Value) -> Self {
        let body = Bytes::from(serde_json::to_vec(&object).expect("keys are text"));
        Self { object: Arc::new(object), body }
    }
}

/// All objects at one version.
#[derive(Debug, Clone)]
pub struct StoreBackup {
    /// Objects by kind and key.
    objects: Vec<BTreeMap<String, StoredObject>>,
    version: u64,
}

/// Objects of one kind by key, and the log indices of their changes.
#[derive(Debug, Default)]
struct KindStore {
    objects: BTreeMap<String, StoredObject>,
    change_indices: Vec<usize>,
}

/// All stored objects. A key is `namespace/name` or, for cluster-scoped kinds, the name, so objects
/// sort as in etcd.
#[derive(Debug)]
pub struct Store {
    kinds: Vec<KindStore>,
    log: Vec<ObjectChange>,
    version: u64,
    compacted: u64,
    /// Number of restored backups.
    restores: u64,
}

/// Returns the key of an object; `namespace` is empty for cluster-scoped kinds.
pub fn object_key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

impl Store {
    /// Creates an empty store.
    pub fn new() -> Self {
        let shelves = kinds::all().iter().map(|_| KindStore::default()).collect();
        Self { kinds: shelves, log: Vec::new(), version: 1, compacted: 0, restores: 0 }
    }

    /// Returns the version of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the version up to which the history is compacted.
    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Compacts the history: states before the current one can no longer be listed or watched.
    pub fn compact(&mut self) {
        self.compacted = self.version;
    }

    /// Returns the number of backups that were restored. Watches opened before the last one are broken.
    pub fn restores(&self) -> u64 {
        self.restores
    }

    /// Returns a copy of all objects. Many other objects are written afterwards, so that the versions after
    /// a restore stay behind those before it for long.
    pub fn back_up(&mut self) -> StoreBackup {
        let version = self.version;
        self.version += OTHER_WRITES;
        StoreBackup { objects: self.kinds.iter().map(|kind| kind.objects.clone()).collect(), version }
    }

    /// Restores a backup: the version falls, and no history is left. The differences are appended to the
    /// log.
    pub fn restore(&mut self, now: Timestamp, backup: &StoreBackup) {
        (self.version, self.compacted) = (backup.version, backup.version);
        self.restores += 1;
        for (kind, objects) in kinds::all().iter().zip(&backup.objects) {
            let lost = std::mem::replace(&mut self.kinds[kind.index].objects, objects.clone());
            for (key, old) in &lost {
                match objects.get(key) {
                    Some(kept) if kept.body == old.body => {}
                    Some(restored) => self.record(now, kind, restored.clone(), Some(old.object.clone()), false),
                    None => self.record(now, kind, old.clone(), Some(old.object.clone()), true),
                }
            }
            for restored in objects.iter().filter(|(key, _)| !lost.contains_key(*key)).map(|(_, restored)| restored) {
                self.record(now, kind, restored.clone(), None, false);
            }
            self.kinds[kind.index].change_indices.clear();
        }
    }

    /// Returns all changes in order.
    pub fn log(&self) -> &[ObjectChange] {
        &self.log
    }

    /// Returns the object with a key.
    pub fn get(&self, kind: &ResourceKind, key: &str) -> Option<&StoredObject> {
        self.kinds[kind.index].objects.get(key)
    }

    /// Returns the objects of a kind in a namespace (in all if it is empty), ordered by key,
    /// beginning with the first key that is at least `from`.
    pub fn range<'a>(
        &'a self,
        kind: &ResourceKind,
        namespace: &str,
        from: &str,
    ) -> impl Iterator<Item = (&'a str, &'a StoredObject)> + use<'a> {
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        let start = if from > prefix.as_str() { from.to_owned() } else { prefix.clone() };
        let objects = self.kinds[kind.index].objects.range(start..);
        objects.take_while(move |(key, _)| key.starts_with(&prefix)).map(|(key, stored)| (key.as_str(), stored))
    }

    /// Returns the number of changes of a kind so far.
    pub fn change_count(&self, kind: &ResourceKind) -> usize {
        self.kinds[kind.index].change_indices.len()
    }

    /// Returns the number of changes of a kind up to and including `version`.
    pub fn changes_up_to(&self, kind: &ResourceKind, version: u64) -> usize {
        self.kinds[kind.index].change_indices.partition_point(|&index| self.log[index].version <= version)
    }

    /// Returns the changes of a kind, beginning with index `from`.
    pub fn changes_of(&self, kind: &ResourceKind, from: usize) -> impl Iterator<Item = &ObjectChange> {
        self.kinds[kind.index].change_indices.iter().skip(from).map(|&index| &self.log[index])
    }

    /// Stores a new or changed object under the next version and writes that version into it.
    pub fn put(&mut self, now: Timestamp, kind: &'static ResourceKind, key: String, object: Value) -> StoredObject {
        let version = self.next_version();
        let stored = with_version(object, version);
        let before = self.kinds[kind.index].objects.insert(key, stored.clone()).map(|old| old.object);
        self.record(now, kind, stored.clone(), before, false);
        stored
    }

    /// Removes an object under the next version. Returns its last state; `None` if there is none.
    pub fn remove(&mut self, now: Timestamp, kind: &'static ResourceKind, key: &str) -> Option<StoredObject> {
        let old = self.kinds[kind.index].objects.remove(key)?;
        let version = self.next_version();
        let last = with_version(Value::clone(&old.object), version);
        self.record(now, kind, last.clone(), Some(old.object), true);
        Some(last)
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn record(
        &mut self,
        at: Timestamp,
        kind: &'static ResourceKind,
        stored: StoredObject,
        before: Option<Arc<Value>>,
        gone: bool,
    ) {
        let StoredObject { object, body } = stored;
        self.kinds[kind.index].change_indices.push(self.log.len());
        self.log.push(ObjectChange { version: self.version, time: at, kind, object, before, deleted: gone, body });
    }
}

/// Writes the version into an object.
fn with_version(mut object: Value, version: u64) -> StoredObject {
    object_meta::set_metadata(&mut object, "resourceVersion", version.to_string());
    StoredObject::new(object)
}
