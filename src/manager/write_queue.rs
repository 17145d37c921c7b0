//! Order of the writes that wait until fewer are in flight.
//!
//! Writes of a higher rank precede those of a lower one, so a job that can be started is started
//! before another one requests quota: jobs start one after the other, instead of all at the end.
//! Among writes of one rank, those for Workloads of a higher priority come first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use sluice_plan::WriteRank;

/// One of so many writes is the one that has waited longest, whatever its rank, so that none waits
/// for ever.
const OLDEST_EVERY: u64 = 8;

/// Rank of a write, and the priority of its Workload. The lowest value is sent first.
type Precedence = (WriteRank, Reverse<i32>);

/// Writes that wait. `T` is a write.
#[derive(Debug)]
pub(super) struct WriteQueue<T> {
    /// Those of each precedence in the order of their arrival, each with its number. No list is
    /// empty.
    waiting: BTreeMap<Precedence, VecDeque<(u64, T)>>,
    arrivals: u64,
    taken: u64,
}

impl<T> Default for WriteQueue<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), arrivals: 0, taken: 0 }
    }
}

impl<T> WriteQueue<T> {
    /// Adds a write of this rank, for a Workload of this priority.
    pub(super) fn push(&mut self, rank: WriteRank, priority: i32, write: T) {
        self.arrivals += 1;
        self.waiting.entry((rank, Reverse(priority))).or_default().push_back((self.arrivals, write));
    }

    /// Removes the next write; `None` if none waits.
    pub(super) fn pop(&mut self) -> Option<T> {
        let first = self.waiting.first_key_value();
        let oldest = || self.waiting.iter().min_by_key(|(_, writes)| writes.front().map(|(arrival, _)| *arrival));
        self.taken += 1;
        let precedence = *if self.taken.is_multiple_of(OLDEST_EVERY) { oldest() } else { first }?.0;
        let writes = self.waiting.get_mut(&precedence)?;
        let next = writes.pop_front();
        if writes.is_empty() {
            self.waiting.remove(&precedence);
        }
        next.map(|(_, write)| write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(writes: impl IntoIterator<Item = (WriteRank, u32)>) -> WriteQueue<u32> {
        let mut queue = WriteQueue::default();
        writes.into_iter().for_each(|(rank, write)| queue.push(rank, 0, write));
        queue
    }

    fn drain<T>(mut queue: WriteQueue<T>) -> Vec<T> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn higher_rank_precedes_and_equal_ranks_keep_their_order() {
        let writes = [
            (WriteRank::QueueStatus, 1),
            (WriteRank::QuotaRequest, 2),
            (WriteRank::Decision, 3),
            (WriteRank::Admission, 4),
            (WriteRank::Decision, 5),
        ];

        assert_eq!(drain(queue(writes)), [3, 5, 4, 2, 1]);
    }

    #[test]
    fn higher_priority_precedes_within_its_rank() {
        let mut queue = WriteQueue::default();
        queue.push(WriteRank::Admission, -1, "low");
        queue.push(WriteRank::Admission, 100, "high");
        queue.push(WriteRank::QuotaRequest, 1000, "request");
        queue.push(WriteRank::Admission, 100, "high, later");

        assert_eq!(drain(queue), ["high", "high, later", "low", "request"]);
    }

    #[test]
    fn lowest_rank_is_not_starved() {
        // Given one report, and more decisions with each write that is sent,
        let mut queue = queue([(WriteRank::PendingMessage, 0), (WriteRank::Decision, 1)]);
        let mut sent = Vec::new();
        for next in 2..20 {
            queue.push(WriteRank::Decision, 0, next);
            sent.extend(queue.pop());
        }

        // then the report is the eighth write, and nothing is lost.
        assert_eq!(sent.iter().position(|write| *write == 0), Some(7));
        sent.extend(drain(queue));
        sent.sort_unstable();
        assert_eq!(sent, (0..20).collect::<Vec<_>>());
    }
}
