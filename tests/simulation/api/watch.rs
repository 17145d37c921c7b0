//! Watches: the changes of one kind as lines of JSON, as one client sees them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::fields;
use super::kinds::Kind;
use super::refusal::Refusal;
use super::selector::Selector;
use super::store::{Change, Store};

/// What a client watches, and how far it has come.
#[derive(Debug)]
pub struct Watch {
    kind: &'static Kind,
    namespace: String,
    selector: Selector,
    /// Lines that are due before any change.
    first: Vec<Bytes>,
    /// Number of the kind's next change that was not looked at.
    next: usize,
    timeout: Option<Duration>,
    bookmarks: bool,
    over: bool,
}

/// Where a watch starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With all objects as they are now, and a bookmark after them if it is asked for.
    Now {
        /// Whether a bookmark tells the end of these.
        announced: bool,
    },
    /// With what was changed after this version.
    After(u64),
}

impl Watch {
    /// Opens a watch.
    pub fn open(
        store: &Store,
        kind: &'static Kind,
        namespace: String,
        selector: Selector,
        start: Start,
        (timeout, bookmarks): (Option<Duration>, bool),
    ) -> Self {
        let next = store.change_count(kind);
        let mut watch = Self { kind, namespace, selector, first: Vec::new(), next, timeout, bookmarks, over: false };
        match start {
            Start::Now { announced } => {
                let matching =
                    store.range(kind, &watch.namespace, "").filter(|(_, one)| watch.selector.matches(&one.object));
                watch.first = matching.map(|(_, stored)| line("ADDED", &stored.body)).collect();
                if announced {
                    watch.first.push(bookmark(kind, store.version(), true));
                }
            }
            Start::After(version) if version < store.compacted() => {
                watch.first.push(too_old(version, store.compacted()));
                watch.over = true;
            }
            Start::After(version) => watch.next = store.changes_up_to(kind, version),
        }
        watch
    }

    /// The kind that is watched.
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// How long the client wants to watch.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Whether the client takes bookmarks.
    pub fn wants_bookmarks(&self) -> bool {
        self.bookmarks
    }

    /// Whether the API server ends this watch, after what `events` has returned.
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The lines that are due since the last call.
    pub fn events(&mut self, store: &Store) -> Vec<Bytes> {
        let mut lines = std::mem::take(&mut self.first);
        if self.over {
            return lines;
        }
        for change in store.changes_of(self.kind, self.next) {
            if change.version <= store.compacted() {
                lines.push(too_old(change.version - 1, store.compacted()));
                self.over = true;
                break;
            }
            lines.extend(self.line_of(change));
        }
        self.next = store.change_count(self.kind);
        lines
    }

    /// A line that tells the version up to which everything was told.
    pub fn bookmark(&self, store: &Store) -> Bytes {
        let missing = store.changes_of(self.kind, self.next).next();
        bookmark(self.kind, missing.map_or(store.version(), |change| change.version - 1), false)
    }

    /// What a change is for this watch: an object that comes to match is new to it, one that matches no more is gone.
    fn line_of(&self, change: &Change) -> Option<Bytes> {
        if !self.namespace.is_empty() && fields::namespace(&change.object) != self.namespace {
            return None;
        }
        let was = change.before.as_ref().is_some_and(|before| self.selector.matches(before));
        let is = !change.gone && self.selector.matches(&change.object);
        match (was, is) {
            (false, false) => None,
            (false, true) => Some(line("ADDED", &change.body)),
            (true, true) => Some(line("MODIFIED", &change.body)),
            (true, false) if change.gone => Some(line("DELETED", &change.body)),
            (true, false) => change.before.as_ref().map(|before| line("DELETED", &as_of(before, change.version))),
        }
    }
}

/// The last state that matched, with the version of the change that took it out.
fn as_of(object: &Arc<Value>, version: u64) -> Vec<u8> {
    let mut object = Value::clone(object);
    fields::set_metadata(&mut object, "resourceVersion", version.to_string());
    object.to_string().into_bytes()
}

fn line(change: &str, body: &[u8]) -> Bytes {
    let mut line = Vec::with_capacity(body.len() + 40);
    line.extend_from_slice(b"{\"type\":\"");
    line.extend_from_slice(change.as_bytes());
    line.extend_from_slice(b"\",\"object\":");
    line.extend_from_slice(body);
    line.extend_from_slice(b"}\n");
    line.into()
}

fn bookmark(kind: &Kind, version: u64, ends_the_first: bool) -> Bytes {
    let mut object = json!({
        "kind": kind.kind,
        "apiVersion": kind.api_version(),
        "metadata": {"resourceVersion": version.to_string()},
    });
    if ends_the_first {
        object["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    line("BOOKMARK", object.to_string().as_bytes())
}

fn too_old(version: u64, compacted: u64) -> Bytes {
    let refusal = Refusal::expired(format!("too old resource version: {version} ({compacted})"));
    line("ERROR", refusal.status().to_string().as_bytes())
}
