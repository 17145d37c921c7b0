//! Deduplicates Kubernetes Events: planners run again and again and return the same Events each
//! time.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use sluice_plan::Note;

/// Time during which an equal Event about the same object is suppressed.
const REMEMBERED: SignedDuration = SignedDuration::from_mins(10);
/// Number of remembered Events at which expired ones are removed.
const TIDY_AT: usize = 4096;

/// The recently emitted Events, with the time of emission.
#[derive(Debug, Default)]
pub struct Notebook {
    made: BTreeMap<Note, Timestamp>,
}

impl Notebook {
    /// Reports whether an Event was not emitted recently, and remembers it as emitted now.
    pub fn is_news(&mut self, now: Timestamp, note: &Note) -> bool {
        let is_recent = |made: &Timestamp| now.duration_since(*made) < REMEMBERED;
        if self.made.get(note).is_some_and(is_recent) {
            return false;
        }
        if self.made.len() >= TIDY_AT {
            self.made.retain(|_, made| is_recent(made));
        }
        self.made.insert(note.clone(), now);
        true
    }
}
