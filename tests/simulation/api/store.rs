//! Objects by kind and key, the one counter of versions, and the log of all changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use serde_json::Value;

use super::fields;
use super::kinds::{self, Kind};

/// One change of one object.
#[derive(Debug, Clone)]
pub struct Change {
    /// The version that the change made.
    pub version: u64,
    /// When it was made.
    pub at: Timestamp,
    /// The kind of the object.
    pub kind: &'static Kind,
    /// The object after the change; when it is gone, its last state with the version of the deletion.
    pub object: Arc<Value>,
    /// The object before the change.
    pub before: Option<Arc<Value>>,
    /// Whether the object is gone.
    pub gone: bool,
    /// `object` as JSON.
    pub body: Bytes,
}

/// An object as it is now.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The object.
    pub object: Arc<Value>,
    /// The object as JSON.
    pub body: Bytes,
}

impl Stored {
    /// An object with its bytes, which are made once.
    pub fn of(object: Value) -> Self {
        let body = Bytes::from(serde_json::to_vec(&object).expect("keys are text"));
        Self { object: Arc::new(object), body }
    }
}

/// Objects of one kind by key, and where in the log their changes are.
#[derive(Debug, Default)]
struct Shelf {
    objects: BTreeMap<String, Stored>,
    changes: Vec<usize>,
}

/// Everything that is stored. A key is `namespace/name`, or the name alone, which is the order of the real store.
#[derive(Debug)]
pub struct Store {
    shelves: Vec<Shelf>,
    log: Vec<Change>,
    version: u64,
    compacted: u64,
}

/// The key of an object.
pub fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

impl Store {
    /// An empty store.
    pub fn new() -> Self {
        let shelves = kinds::all().iter().map(|_| Shelf::default()).collect();
        Self { shelves, log: Vec::new(), version: 1, compacted: 0 }
    }

    /// The version of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The version up to which history is forgotten.
    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Forgets history: what was before now can't be listed or watched any more.
    pub fn compact(&mut self) {
        self.compacted = self.version;
    }

    /// All changes, in order.
    pub fn log(&self) -> &[Change] {
        &self.log
    }

    /// The object of a key.
    pub fn get(&self, kind: &Kind, key: &str) -> Option<&Stored> {
        self.shelves[kind.index].objects.get(key)
    }

    /// The objects of a kind, in one namespace or (when it is empty) in all, by key, from the first key that is not before
    /// `from`.
    pub fn range<'a>(
        &'a self,
        kind: &Kind,
        namespace: &str,
        from: &str,
    ) -> impl Iterator<Item = (&'a str, &'a Stored)> + use<'a> {
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        let start = if from > prefix.as_str() { from.to_owned() } else { prefix.clone() };
        let objects = self.shelves[kind.index].objects.range(start..);
        objects.take_while(move |(key, _)| key.starts_with(&prefix)).map(|(key, stored)| (key.as_str(), stored))
    }

    /// The number of changes of a kind so far.
    pub fn change_count(&self, kind: &Kind) -> usize {
        self.shelves[kind.index].changes.len()
    }

    /// How many of a kind's changes made a version that is not above `version`.
    pub fn changes_up_to(&self, kind: &Kind, version: u64) -> usize {
        self.shelves[kind.index].changes.partition_point(|&index| self.log[index].version <= version)
    }

    /// The changes of a kind, from the one with this number on.
    pub fn changes_of(&self, kind: &Kind, from: usize) -> impl Iterator<Item = &Change> {
        self.shelves[kind.index].changes.iter().skip(from).map(|&index| &self.log[index])
    }

    /// Stores `object`, new or in place of `before`, under the next version; the last thing done to it is to write that
    /// version into it.
    pub fn put(&mut self, now: Timestamp, kind: &'static Kind, key: String, object: Value) -> Stored {
        let version = self.next_version();
        let stored = versioned(object, version);
        let before = self.shelves[kind.index].objects.insert(key, stored.clone()).map(|old| old.object);
        self.record(now, kind, stored.clone(), before, false);
        stored
    }

    /// Takes an object out, under the next version; returns its last state.
    pub fn take(&mut self, now: Timestamp, kind: &'static Kind, key: &str) -> Option<Stored> {
        let old = self.shelves[kind.index].objects.remove(key)?;
        let version = self.next_version();
        let last = versioned(Value::clone(&old.object), version);
        self.record(now, kind, last.clone(), Some(old.object), true);
        Some(last)
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn record(&mut self, at: Timestamp, kind: &'static Kind, stored: Stored, before: Option<Arc<Value>>, gone: bool) {
        let Stored { object, body } = stored;
        self.shelves[kind.index].changes.push(self.log.len());
        self.log.push(Change { version: self.version, at, kind, object, before, gone, body });
    }
}

/// The object with its version in it.
fn versioned(mut object: Value, version: u64) -> Stored {
    fields::set_metadata(&mut object, "resourceVersion", version.to_string());
    Stored::of(object)
}
