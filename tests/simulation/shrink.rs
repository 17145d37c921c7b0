//! Makes a failure short: leaves out whatever it happens without.

use crate::case::{Case, Trouble};
use crate::run::run;
use crate::support::invariants::Invariant;

/// As many shorter cases are tried.
const TRIES: usize = 600;

/// A case that breaks the same invariant with less: fewer steps, fewer faults, kinder fates.
pub fn shrunk(case: &Case, invariant: Invariant) -> Case {
    let mut shrinking = Shrinking { invariant, tries: TRIES };
    let mut short = case.clone();
    short.trouble = Some(short.trouble.unwrap_or_else(|| run(case, false).trouble));
    loop {
        let before = short.clone();
        short = shrinking.without(
            short,
            |case| case.script.steps.len(),
            |case, range| {
                drop(case.script.steps.drain(range));
            },
        );
        short = shrinking.without(
            short,
            |case| trouble(case).faults.len(),
            |case, range| {
                let Trouble { faults, .. } = trouble_of(case);
                let gone: Vec<u64> = faults.keys().copied().skip(range.start).take(range.len()).collect();
                faults.retain(|number, _| !gone.contains(number));
            },
        );
        short = shrinking.without(
            short,
            |case| trouble(case).fates.pods.len(),
            |case, range| {
                let pods = &mut trouble_of(case).fates.pods;
                let gone: Vec<u64> = pods.keys().copied().skip(range.start).take(range.len()).collect();
                pods.retain(|number, _| !gone.contains(number));
            },
        );
        short = shrinking.without(
            short,
            |case| trouble(case).fates.boards.len(),
            |case, range| {
                let boards = &mut trouble_of(case).fates.boards;
                let gone: Vec<u64> = boards.keys().copied().skip(range.start).take(range.len()).collect();
                boards.retain(|number, _| !gone.contains(number));
            },
        );
        if short == before || shrinking.tries == 0 {
            return short;
        }
    }
}

struct Shrinking {
    invariant: Invariant,
    tries: usize,
}

impl Shrinking {
    /// Leaves out half of something, then quarters, down to one at a time, wherever the failure stays.
    fn without(
        &mut self,
        mut case: Case,
        length: impl Fn(&Case) -> usize,
        leave_out: impl Fn(&mut Case, std::ops::Range<usize>),
    ) -> Case {
        let mut size = length(&case);
        while size > 0 {
            let mut start = 0;
            while start < length(&case) {
                let mut shorter = case.clone();
                leave_out(&mut shorter, start..(start + size).min(length(&case)));
                if self.fails(&shorter) { case = shorter } else { start += size }
            }
            size /= 2;
        }
        case
    }

    fn fails(&mut self, case: &Case) -> bool {
        let Some(left) = self.tries.checked_sub(1) else { return false };
        self.tries = left;
        run(case, false).found.iter().any(|found| found.breach.invariant == self.invariant)
    }
}

fn trouble(case: &Case) -> Trouble {
    case.trouble.clone().unwrap_or_default()
}

fn trouble_of(case: &mut Case) -> &mut Trouble {
    case.trouble.get_or_insert_default()
}
