//! Shrinks a failing case by removing what the failure does not need.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::case::{Case, FaultSchedule};
use crate::run::run;
use sluice_testkit::invariants::Invariant;

/// Maximum number of shorter cases to try.
const MAX_TRIES: usize = 600;

/// Returns a shorter case that violates the same invariant with fewer script steps and fewer
/// faults.
pub fn shrunk(case: &Case, invariant: Invariant) -> Case {
    let mut shrinking = Shrinker { invariant, tries: MAX_TRIES };
    let mut short = case.clone();
    short.faults = Some(short.faults.unwrap_or_else(|| run(case, false).faults));
    loop {
        let before = short.clone();
        let steps = |case: &mut Case, range: Range<usize>| drop(case.script.steps.drain(range));
        short = shrinking.minimize(short, |case| case.script.steps.len(), steps);
        let faults = |case: &mut Case, range| remove_range(&mut faults_mut(case).requests, range);
        short = shrinking.minimize(short, |case| faults_mut(case).requests.len(), faults);
        let pods = |case: &mut Case, range| remove_range(&mut faults_mut(case).cluster.pods, range);
        short = shrinking.minimize(short, |case| faults_mut(case).cluster.pods.len(), pods);
        let boards = |case: &mut Case, range| remove_range(&mut faults_mut(case).cluster.dashboards, range);
        short = shrinking.minimize(short, |case| faults_mut(case).cluster.dashboards.len(), boards);
        if short == before || shrinking.tries == 0 {
            return short;
        }
    }
}

struct Shrinker {
    invariant: Invariant,
    tries: usize,
}

impl Shrinker {
    /// Removes elements in chunks of half, then a quarter, down to one, as long as the failure
    /// stays.
    fn minimize(
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
        run(case, false).violations.iter().any(|found| found.violation.invariant == self.invariant)
    }
}

fn faults_mut(case: &mut Case) -> &mut FaultSchedule {
    case.faults.get_or_insert_default()
}

fn remove_range<T>(numbered: &mut BTreeMap<u64, T>, range: Range<usize>) {
    let gone: Vec<u64> = numbered.keys().copied().skip(range.start).take(range.len()).collect();
    numbered.retain(|number, _| !gone.contains(number));
}
