//! Deduplicates Kubernetes Events: planners run again and again and return the same Events each
//! time.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use sluice_plan::EventRecord;

/// Time during which an equal Event about the same object is suppressed.
const DEDUPLICATION_WINDOW: SignedDuration = SignedDuration::from_mins(10);
/// Number of remembered Events at which expired ones are removed.
const PRUNE_THRESHOLD: usize = 4096;

/// The recently emitted Events, with the time of emission.
#[derive(Debug, Clone, Default)]
pub struct EventDeduplicator {
    emitted_at: BTreeMap<EventRecord, Timestamp>,
}

impl EventDeduplicator {
    /// Reports whether an Event was not emitted recently, and remembers it as emitted now.
    pub fn is_new(&mut self, now: Timestamp, note: &EventRecord) -> bool {
        let is_recent = |made: &Timestamp| now.duration_since(*made) < DEDUPLICATION_WINDOW;
        if self.emitted_at.get(note).is_some_and(is_recent) {
            return false;
        }
        if self.emitted_at.len() >= PRUNE_THRESHOLD {
            self.emitted_at.retain(|_, made| is_recent(made));
        }
        self.emitted_at.insert(note.clone(), now);
        true
    }
}
