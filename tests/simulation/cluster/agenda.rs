//! Queue of timed tasks.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// Tasks ordered by due time; tasks with the same due time run in the order in which they were
/// scheduled.
#[derive(Debug)]
pub(super) struct Agenda<C> {
    chores: BTreeMap<(Timestamp, u64), C>,
    planned: u64,
}

impl<C> Default for Agenda<C> {
    fn default() -> Self {
        Self { chores: BTreeMap::new(), planned: 0 }
    }
}

impl<C> Agenda<C> {
    /// Schedules a task.
    pub(super) fn plan(&mut self, due: Timestamp, task: C) {
        self.chores.insert((due, self.planned), task);
        self.planned += 1;
    }

    /// Returns the due time of the next task; `None` if the queue is empty.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.chores.keys().next().map(|(due, _)| *due)
    }

    /// Removes and returns the next due task; `None` if no task is due.
    pub(super) fn take(&mut self, now: Timestamp) -> Option<C> {
        let first = self.chores.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Cancels all tasks that match.
    pub(super) fn strike_out(&mut self, matches: impl Fn(&C) -> bool) {
        self.chores.retain(|_, task| !matches(task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn tasks_run_by_due_time_and_then_in_scheduling_order() {
        let mut queue = Agenda::default();
        queue.plan(at(2), "late");
        queue.plan(at(1), "first");
        queue.plan(at(1), "second");

        assert_eq!(queue.next(), Some(at(1)));
        let taken: Vec<_> = std::iter::from_fn(|| queue.take(at(1))).collect();

        assert_eq!(taken, ["first", "second"]);
        assert_eq!(queue.next(), Some(at(2)));
    }
}
