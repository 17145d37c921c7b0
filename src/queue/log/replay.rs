//! Replays a decision log in a new scheduler and compares the decisions with the recorded ones.

use std::fmt;

use jiff::Timestamp;
use serde_json::error::Category;

use super::{DecisionRecord, FORMAT, LogLine};
use crate::Scheduler;

/// Result of a replay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplaySummary {
    /// Number of sections, one for each process that wrote to the log.
    pub sections: usize,
    /// Number of inputs.
    pub inputs: usize,
    /// Number of scheduling cycles.
    pub cycles: usize,
    /// Number of recorded decisions.
    pub decisions: usize,
    /// Number of cycles whose decisions differ.
    pub differences: usize,
    /// The first difference; `None` if there is none.
    pub first_difference: Option<Difference>,
    /// Number of lines truncated when their process was killed.
    pub truncated_lines: usize,
}

/// First decision of a cycle that the replay did not reproduce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The line of the cycle, counted from 1.
    pub line: usize,
    /// Time of the cycle.
    pub at: Timestamp,
    /// Index of the decision in the cycle, counted from 1.
    pub decision: usize,
    /// The recorded decision; `None` if the log has fewer decisions.
    pub recorded: Option<DecisionRecord>,
    /// The replayed decision; `None` if the replay made fewer decisions.
    pub replayed: Option<DecisionRecord>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text =
            |decision: &Option<DecisionRecord>| decision.as_ref().map_or("nothing".to_owned(), ToString::to_string);
        let Self { line, at, decision, .. } = self;
        writeln!(f, "line {line}: the cycle at {at} differs in decision {decision}")?;
        write!(f, "  recorded: {}\n  replayed: {}", text(&self.recorded), text(&self.replayed))
    }
}

/// Error in replaying a log. Lines are counted from 1.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A line is not valid.
    #[error("line {line}, column {column}: {problem}")]
    Malformed {
        /// Number of the line.
        line: usize,
        /// Byte in the line, counted from 1.
        column: usize,
        /// Description of the error.
        problem: String,
    },
    /// The log does not start with a start line.
    #[error("line {line}: input or cycle before the start line with the settings")]
    MissingStart {
        /// Number of the line.
        line: usize,
    },
    /// The section has an unknown format version.
    #[error("line {line}: the log has format {found}; this version reads format {FORMAT}")]
    Format {
        /// Number of the line.
        line: usize,
        /// Format version of the section.
        found: u32,
    },
    /// The log has no lines.
    #[error("the log is empty")]
    Empty,
}

impl ReplayError {
    fn malformed(line: usize, error: &serde_json::Error) -> Self {
        let text = error.to_string();
        // The decoder always reports line 1, so its position is removed from the message.
        let problem = text.rsplit_once(" at line ").map_or(text.as_str(), |(problem, _)| problem).to_owned();
        Self::Malformed { line, column: error.column(), problem }
    }
}

/// Replays a log, given line by line without newlines. A truncated last line of a section, left by
/// a killed process, is skipped and counted.
///
/// # Errors
/// If a line is invalid or the log has no lines.
pub fn replay(lines: impl IntoIterator<Item: AsRef<[u8]>>) -> Result<ReplaySummary, ReplayError> {
    let mut replay = ReplaySummary::default();
    let mut engine: Option<Scheduler> = None;
    let mut unfinished: Option<ReplayError> = None;
    for (line, bytes) in (1..).zip(lines) {
        let read = match serde_json::from_slice::<LogLine<'_>>(bytes.as_ref()) {
            Ok(read) => read,
            Err(error) if error.classify() == Category::Eof && unfinished.is_none() && engine.is_some() => {
                unfinished = Some(ReplayError::malformed(line, &error));
                continue;
            }
            Err(error) => return Err(unfinished.unwrap_or_else(|| ReplayError::malformed(line, &error))),
        };
        if let Some(error) = unfinished.take() {
            if !matches!(read, LogLine::Start { .. }) {
                return Err(error);
            }
            replay.truncated_lines += 1;
        }
        match (read, &mut engine) {
            (LogLine::Start { format: FORMAT, settings }, engine) => {
                replay.sections += 1;
                *engine = Some(Scheduler::new(settings.into_owned()));
            }
            (LogLine::Start { format: found, .. }, _) => return Err(ReplayError::Format { line, found }),
            (_, None) => return Err(ReplayError::MissingStart { line }),
            (LogLine::Input { at, input }, Some(engine)) => {
                replay.inputs += 1;
                engine.observe(at, &input.to_input());
            }
            (LogLine::Cycle { at, decisions }, Some(engine)) => replay.compare(line, at, decisions, engine),
        }
    }
    replay.truncated_lines += usize::from(unfinished.is_some());
    if engine.is_none() { Err(ReplayError::Empty) } else { Ok(replay) }
}

impl ReplaySummary {
    /// Runs a cycle and compares its decisions with the recorded ones.
    fn compare(&mut self, line: usize, at: Timestamp, recorded: Vec<DecisionRecord>, engine: &mut Scheduler) {
        self.cycles += 1;
        self.decisions += recorded.len();
        let replayed: Vec<DecisionRecord> =
            engine.run_cycle(at).iter().filter_map(DecisionRecord::from_decision).collect();
        let longest = recorded.len().max(replayed.len());
        let Some(differing) = (0..longest).find(|index| recorded.get(*index) != replayed.get(*index)) else { return };
        self.differences += 1;
        self.first_difference.get_or_insert_with(|| Difference {
            line,
            at,
            decision: differing + 1,
            recorded: recorded.get(differing).cloned(),
            replayed: replayed.get(differing).cloned(),
        });
    }
}
