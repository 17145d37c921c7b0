//! What is to be done when.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// Chores by the time they are due; those that are due together are done in the order in which they were planned.
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
    /// Plans a chore.
    pub(super) fn plan(&mut self, due: Timestamp, chore: C) {
        self.chores.insert((due, self.planned), chore);
        self.planned += 1;
    }

    /// When the next chore is due.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.chores.keys().next().map(|(due, _)| *due)
    }

    /// Takes a chore that is due.
    pub(super) fn take(&mut self, now: Timestamp) -> Option<C> {
        let first = self.chores.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Gives up all chores of this sort.
    pub(super) fn strike_out(&mut self, sort: impl Fn(&C) -> bool) {
        self.chores.retain(|_, chore| !sort(chore));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn chores_are_taken_by_time_and_then_as_planned() {
        let mut agenda = Agenda::default();
        agenda.plan(at(2), "late");
        agenda.plan(at(1), "first");
        agenda.plan(at(1), "second");

        assert_eq!(agenda.next(), Some(at(1)));
        let taken: Vec<_> = std::iter::from_fn(|| agenda.take(at(1))).collect();

        assert_eq!(taken, ["first", "second"]);
        assert_eq!(agenda.next(), Some(at(2)));
    }
}
