//! Queue of timed tasks.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// Tasks ordered by due time; tasks with the same due time run in the order in which they were
/// scheduled.
#[derive(Debug)]
pub(super) struct TimerQueue<C> {
    tasks: BTreeMap<(Timestamp, u64), C>,
    scheduled_count: u64,
}

impl<C> Default for TimerQueue<C> {
    fn default() -> Self {
        Self { tasks: BTreeMap::new(), scheduled_count: 0 }
    }
}

impl<C> TimerQueue<C> {
    /// Schedules a task.
    pub(super) fn schedule(&mut self, due: Timestamp, task: C) {
        self.tasks.insert((due, self.scheduled_count), task);
        self.scheduled_count += 1;
    }

    /// Returns the due time of the next task; `None` if the queue is empty.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.tasks.keys().next().map(|(due, _)| *due)
    }

    /// Returns the due time of the next task that matches; `None` if there is none.
    pub(super) fn next_deadline_of(&self, matches: impl Fn(&C) -> bool) -> Option<Timestamp> {
        self.tasks.iter().find(|(_, task)| matches(task)).map(|((due, _), _)| *due)
    }

    /// Removes and returns the next due task; `None` if no task is due.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<C> {
        let first = self.tasks.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Cancels all tasks that match.
    pub(super) fn cancel(&mut self, matches: impl Fn(&C) -> bool) {
        self.tasks.retain(|_, task| !matches(task));
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
        let mut queue = TimerQueue::default();
        queue.schedule(at(2), "late");
        queue.schedule(at(1), "first");
        queue.schedule(at(1), "second");

        assert_eq!(queue.next_deadline(), Some(at(1)));
        assert_eq!(queue.next_deadline_of(|task| *task == "late"), Some(at(2)));
        let taken: Vec<_> = std::iter::from_fn(|| queue.pop_due(at(1))).collect();

        assert_eq!(taken, ["first", "second"]);
        assert_eq!(queue.next_deadline(), Some(at(2)));
    }
}
