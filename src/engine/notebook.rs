//! Remembers which notes were made of late: planners are asked again and again, and people want to read a thing once.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use sluice_plan::Note;

/// For this long the same note about the same object is not made again.
const REMEMBERED: SignedDuration = SignedDuration::from_mins(10);
/// When this many notes are remembered, those that have run out are thrown away.
const TIDY_AT: usize = 4096;

/// The notes that were made of late, and when.
#[derive(Debug, Default)]
pub struct Notebook {
    made: BTreeMap<Note, Timestamp>,
}

impl Notebook {
    /// Whether a note says something that wasn't said of late; remembers it.
    pub fn is_news(&mut self, now: Timestamp, note: &Note) -> bool {
        let is_fresh = |made: &Timestamp| now.duration_since(*made) < REMEMBERED;
        if self.made.get(note).is_some_and(is_fresh) {
            return false;
        }
        if self.made.len() >= TIDY_AT {
            self.made.retain(|_, made| is_fresh(made));
        }
        self.made.insert(note.clone(), now);
        true
    }
}
