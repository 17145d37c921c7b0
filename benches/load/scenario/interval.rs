//! Times between events: fixed, or random with a mean.

use std::time::Duration;

use serde::Deserialize;
use sluice_api::duration;

/// A time between two events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Interval {
    /// Always the same.
    Fixed(Duration),
    /// Exponentially distributed with this mean, as times between independent events are.
    Random(Duration),
}

/// The text is not an interval.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an interval: must be a duration like 200ms, or a random one by its mean, like random 200ms")]
pub struct IntervalError(String);

impl TryFrom<String> for Interval {
    type Error = IntervalError;

    fn try_from(text: String) -> Result<Self, IntervalError> {
        let (is_random, time) = match text.strip_prefix("random ") {
            Some(mean) => (true, mean),
            None => (false, text.as_str()),
        };
        let time = duration::parse(time).and_then(|time| Duration::try_from(time).ok());
        match (time, is_random) {
            (Some(time), false) => Ok(Self::Fixed(time)),
            (Some(mean), true) => Ok(Self::Random(mean)),
            (None, _) => Err(IntervalError(text)),
        }
    }
}

impl Interval {
    /// Returns the next time.
    pub fn next(self, random: &mut fastrand::Rng) -> Duration {
        match self {
            Self::Fixed(time) => time,
            // 1 - f64 is above 0, so that its logarithm is finite.
            Self::Random(mean) => mean.mul_f64(-(1.0 - random.f64()).ln()),
        }
    }
}
