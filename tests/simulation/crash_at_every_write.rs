//! Kills the process at each write of an incremental upgrade and checks that the rollout takes the
//! same states.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::case::{Case, FaultSchedule};
use crate::faults::Fault;
use crate::run::{Report, run};
use crate::script::step::Script;
use crate::seeds::for_each_seed;

/// Expected states: capacity/traffic in percent.
const EXPECTED_STATES: [&str; 12] = [
    "active -/-, pending 100/0",
    "active 100/100, pending -/-",
    "active 100/100, pending 0/0",
    "active 100/100, pending 50/0",
    "active 100/75, pending 50/25",
    "active 100/50, pending 50/50",
    "active 50/50, pending 50/50",
    "active 50/50, pending 100/50",
    "active 50/25, pending 100/75",
    "active 50/0, pending 100/100",
    "active 0/0, pending 100/100",
    "active 100/100, pending -/-",
];

fn upgrade_case(faults: BTreeMap<u64, Fault>) -> Case {
    let trouble = Some(FaultSchedule { requests: faults, ..FaultSchedule::default() });
    Case { seed: 9, script: Script::single_incremental(), without_policies: false, faults: trouble }
}

fn rollout_states(report: &Report) -> Vec<String> {
    report.rollout_trace.iter().map(ToString::to_string).collect()
}

#[test]
fn incremental_upgrade_survives_a_crash_at_any_write() {
    // Given an upgrade without faults,
    let fault_free = run(&upgrade_case(BTreeMap::new()), false);
    let expected = rollout_states(&fault_free);
    assert!(fault_free.violations.is_empty(), "{}", fault_free.violations[0]);
    assert_eq!(expected, EXPECTED_STATES);

    // when the process is killed before or after a write, then no step is repeated or skipped.
    let wrong = Mutex::new(Vec::new());
    for_each_seed(0..fault_free.writes.len() as u64, |index| {
        let number = fault_free.writes[index as usize];
        for fault in [Fault::KilledBefore, Fault::KilledAfter] {
            let report = run(&upgrade_case([(number, fault)].into()), false);
            let what = format!("{fault:?} write {number}");
            let mut wrong = wrong.lock().expect("no thread has panicked");
            wrong.extend(report.violations.iter().map(|found| format!("{what}: {found}")));
            let actual = rollout_states(&report);
            if actual != expected {
                wrong.push(format!("{what}: states\n  {}", actual.join("\n  ")));
            }
        }
        wrong.lock().expect("no thread has panicked").len() < 3
    });
    let wrong = wrong.into_inner().expect("no thread has panicked");
    assert!(wrong.is_empty(), "{}\nexpected states\n  {}", wrong.join("\n"), expected.join("\n  "));
}
