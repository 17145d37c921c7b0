//! Waiting time of a Job after failed pods (kubernetes 1.36 `pkg/controller/job/backoff_utils.go`).

use std::time::Duration;

use jiff::Timestamp;

use crate::cluster::latencies::saturating_add;

/// Waiting time after the first failure; it doubles with each further one.
const FIRST: Duration = Duration::from_secs(10);
/// Maximum waiting time.
pub const MAX: Duration = Duration::from_secs(600);

/// Failures of a Job's pods since the last success.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    failures: u32,
    last_failure: Option<Timestamp>,
}

impl Backoff {
    /// Returns the record after more pods succeeded and failed at these times
    /// (`newBackoffRecord`).
    pub(super) fn after(self, succeeded: &[Timestamp], failed: &[Timestamp]) -> Self {
        let last_success = succeeded.iter().max();
        let (before, counted): (Self, Vec<&Timestamp>) = match last_success {
            None => (self, failed.iter().collect()),
            Some(success) => (Self::default(), failed.iter().filter(|failure| *failure > success).collect()),
        };
        let more = u32::try_from(counted.len()).unwrap_or(u32::MAX);
        let last_failure = counted.into_iter().max().copied().or(before.last_failure);
        Self { failures: before.failures.saturating_add(more), last_failure }
    }

    /// Returns the end of the waiting time; `None` without a failure.
    pub(super) fn end(self) -> Option<Timestamp> {
        let doublings = self.failures.checked_sub(1)?;
        let delay = FIRST.saturating_mul(2_u32.saturating_pow(doublings)).min(MAX);
        Some(saturating_add(self.last_failure?, delay))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn waiting_time_doubles_until_a_pod_succeeds() {
        let backoff = Backoff::default().after(&[], &[at(5)]);
        assert_eq!(backoff.end(), Some(at(15)));

        let backoff = backoff.after(&[], &[at(20), at(18)]);
        assert_eq!(backoff.end(), Some(at(60)));

        assert_eq!(backoff.after(&[at(70)], &[at(69)]).end(), None);
        assert_eq!(backoff.after(&[at(70)], &[at(71)]).end(), Some(at(81)));
    }
}
