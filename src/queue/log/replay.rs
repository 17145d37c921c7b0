//! Feeds a log to a fresh engine, and compares what it decides with what was decided then.

use std::fmt;

use jiff::Timestamp;
use serde_json::error::Category;

use super::{Decision, FORMAT, Line};
use crate::Engine;

/// What came of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replay {
    /// Processes that wrote into the log.
    pub sections: usize,
    /// Events that the queue was told.
    pub events: usize,
    /// Cycles.
    pub cycles: usize,
    /// Recorded decisions.
    pub decisions: usize,
    /// Cycles whose decisions differ.
    pub differences: usize,
    /// The first difference.
    pub first: Option<Difference>,
    /// Lines that are cut off, because their process was.
    pub cut_off: usize,
}

/// The first decision of a cycle that was not made again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The line of the cycle, counted from 1.
    pub line: usize,
    /// When the cycle was.
    pub at: Timestamp,
    /// Which decision of the cycle, counted from 1.
    pub decision: usize,
    /// What the log says; `None` when it has fewer decisions.
    pub recorded: Option<Decision>,
    /// What was decided now; `None` when fewer decisions were.
    pub replayed: Option<Decision>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |decision: &Option<Decision>| decision.as_ref().map_or("nothing".to_owned(), ToString::to_string);
        let Self { line, at, decision, .. } = self;
        writeln!(f, "line {line}: the cycle at {at} differs in decision {decision}")?;
        write!(f, "  recorded: {}\n  replayed: {}", text(&self.recorded), text(&self.replayed))
    }
}

/// Why a log can't be replayed. Lines are counted from 1.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A line is not one of the log.
    #[error("line {line}, column {column}: {problem}")]
    Malformed {
        /// The line.
        line: usize,
        /// The byte of the line, counted from 1.
        column: usize,
        /// What is wrong there.
        problem: String,
    },
    /// The log does not begin with the settings.
    #[error("line {line}: an event or a cycle before the line with the settings that begins a section")]
    NoStart {
        /// The line.
        line: usize,
    },
    /// The lines have a form that isn't known.
    #[error("line {line}: the log has format {found}; this version reads format {FORMAT}")]
    Format {
        /// The line.
        line: usize,
        /// The format of the section.
        found: u32,
    },
    /// There is nothing in it.
    #[error("the log is empty")]
    Empty,
}

impl ReplayError {
    fn malformed(line: usize, error: &serde_json::Error) -> Self {
        let text = error.to_string();
        // The line that the decoder speaks of is always the first.
        let problem = text.rsplit_once(" at line ").map_or(text.as_str(), |(problem, _)| problem).to_owned();
        Self::Malformed { line, column: error.column(), problem }
    }
}

/// Replays a log, a line at a time and without the newlines. A section whose last line is cut off was written by a process
/// that was killed; it counts up to there.
///
/// # Errors
/// When a line can't be understood, or the log has no lines.
pub fn replay(lines: impl IntoIterator<Item: AsRef<[u8]>>) -> Result<Replay, ReplayError> {
    let mut replay = Replay::default();
    let mut engine: Option<Engine> = None;
    let mut unfinished: Option<ReplayError> = None;
    for (line, bytes) in (1..).zip(lines) {
        let read = match serde_json::from_slice::<Line<'_>>(bytes.as_ref()) {
            Ok(read) => read,
            Err(error) if error.classify() == Category::Eof && unfinished.is_none() && engine.is_some() => {
                unfinished = Some(ReplayError::malformed(line, &error));
                continue;
            }
            Err(error) => return Err(unfinished.unwrap_or_else(|| ReplayError::malformed(line, &error))),
        };
        if let Some(error) = unfinished.take() {
            if !matches!(read, Line::Start { .. }) {
                return Err(error);
            }
            replay.cut_off += 1;
        }
        match (read, &mut engine) {
            (Line::Start { format: FORMAT, settings }, engine) => {
                replay.sections += 1;
                *engine = Some(Engine::new(settings.into_owned()));
            }
            (Line::Start { format: found, .. }, _) => return Err(ReplayError::Format { line, found }),
            (_, None) => return Err(ReplayError::NoStart { line }),
            (Line::Event { at, told }, Some(engine)) => {
                replay.events += 1;
                engine.step(at, &told.event());
            }
            (Line::Cycle { at, decisions }, Some(engine)) => replay.compare(line, at, decisions, engine),
        }
    }
    replay.cut_off += usize::from(unfinished.is_some());
    if engine.is_none() { Err(ReplayError::Empty) } else { Ok(replay) }
}

impl Replay {
    fn compare(&mut self, line: usize, at: Timestamp, recorded: Vec<Decision>, engine: &mut Engine) {
        self.cycles += 1;
        self.decisions += recorded.len();
        let replayed: Vec<Decision> = engine.cycle(at).iter().filter_map(Decision::of).collect();
        let longest = recorded.len().max(replayed.len());
        let Some(differing) = (0..longest).find(|index| recorded.get(*index) != replayed.get(*index)) else { return };
        self.differences += 1;
        self.first.get_or_insert_with(|| Difference {
            line,
            at,
            decision: differing + 1,
            recorded: recorded.get(differing).cloned(),
            replayed: replayed.get(differing).cloned(),
        });
    }
}
