//! An upgrade in steps, whose process is killed at each of its writes in turn: it goes the same way.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::case::{Case, Trouble};
use crate::faults::Fault;
use crate::run::{Report, run};
use crate::script::step::Script;
use crate::seeds::on_every_core;

/// How it goes: capacity and traffic, in percent.
const COURSE: [&str; 12] = [
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

fn upgrade(faults: BTreeMap<u64, Fault>) -> Case {
    let trouble = Some(Trouble { faults, ..Trouble::default() });
    Case { seed: 9, script: Script::one_in_steps(), trouble }
}

fn course(report: &Report) -> Vec<String> {
    report.course.iter().map(ToString::to_string).collect()
}

#[test]
fn killed_at_any_write_an_upgrade_in_steps_goes_the_same_way() {
    // Given an upgrade that nothing disturbs,
    let undisturbed = run(&upgrade(BTreeMap::new()), false);
    let expected = course(&undisturbed);
    assert!(undisturbed.found.is_empty(), "{}", undisturbed.found[0]);
    assert_eq!(expected, COURSE);

    // when the process is killed before or after a write, then no step is repeated and none is left out.
    let wrong = Mutex::new(Vec::new());
    on_every_core(0..undisturbed.writes.len() as u64, |index| {
        let number = undisturbed.writes[index as usize];
        for fault in [Fault::KilledBefore, Fault::KilledAfter] {
            let report = run(&upgrade([(number, fault)].into()), false);
            let what = format!("{fault:?} write {number}");
            let mut wrong = wrong.lock().expect("no thread has panicked");
            wrong.extend(report.found.iter().map(|found| format!("{what}: {found}")));
            let came = course(&report);
            if came != expected {
                wrong.push(format!("{what}: it went\n  {}", came.join("\n  ")));
            }
        }
        wrong.lock().expect("no thread has panicked").len() < 3
    });
    let wrong = wrong.into_inner().expect("no thread has panicked");
    assert!(wrong.is_empty(), "{}\nUndisturbed it goes\n  {}", wrong.join("\n"), expected.join("\n  "));
}
