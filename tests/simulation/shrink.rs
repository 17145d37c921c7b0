//! Shrinks a failing case by removing what the failure does not need.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::case::{Case, Trouble};
use crate::run::run;
use sluice_testkit::invariants::Invariant;

/// Maximum number of shorter cases to try.
const TRIES: usize = 600;

/// Returns a shorter case that violates the same invariant with fewer script steps and fewer
/// faults.
pub fn shrunk(case: &Case, invariant: Invariant) -> Case {
    let mut shrinking = Shrinking { invariant, tries: TRIES };
    let mut short = case.clone();
    short.trouble = Some(short.trouble.unwrap_or_else(|| run(case, false).trouble));
    loop {
        let before = short.clone();
        let steps = |case: &mut Case, range: Range<usize>| drop(case.script.steps.drain(range));
        short = shrinking.without(short, |case| case.script.steps.len(), steps);
        let faults = |case: &mut Case, range| leave_out(&mut trouble_of(case).faults, range);
        short = shrinking.without(short, |case| trouble_of(case).faults.len(), faults);
        let pods = |case: &mut Case, range| leave_out(&mut trouble_of(case).fates.pods, range);
        short = shrinking.without(short, |case| trouble_of(case).fates.pods.len(), pods);
        let boards = |case: &mut Case, range| leave_out(&mut trouble_of(case).fates.boards, range);
        short = shrinking.without(short, |case| trouble_of(case).fates.boards.len(), boards);
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
    /// Removes elements in chunks of half, then a quarter, down to one, as long as the failure
    /// stays.
    fn without(
        &mut self,
        mut case: Case,
        length: impl Fn(&mut Case) -> usize,
        leave_out: impl Fn(&mut Case, Range<usize>),
    ) -> Case {
        let mut size = length(&mut case);
        while size > 0 {
            let mut start = 0;
            while start < length(&mut case) {
                let mut shorter = case.clone();
                let end = (start + size).min(length(&mut case));
                leave_out(&mut shorter, start..end);
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

fn trouble_of(case: &mut Case) -> &mut Trouble {
    case.trouble.get_or_insert_default()
}

fn leave_out<T>(numbered: &mut BTreeMap<u64, T>, range: Range<usize>) {
    let gone: Vec<u64> = numbered.keys().copied().skip(range.start).take(range.len()).collect();
    numbered.retain(|number, _| !gone.contains(number));
}
