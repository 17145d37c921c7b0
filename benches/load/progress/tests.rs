use serde_json::{Value, json};

use super::*;

/// One ClusterQueue with 2 CPU; two Workloads of one CPU that run for a second, and `more` of the scenario.
fn progress(more: &str) -> Progress {
    let text = format!(
        "
shortScale: 1
cohorts: {{count: 1, clusterQueues: {{count: 1, nominalCpu: 2}}}}
classes:
- {{name: a, count: 2, cpu: 1, run: 1s}}
{more}
"
    );
    let plan = Arc::new(LoadPlan::new("t", &serde_saphyr::from_str(&text).expect("a scenario")));
    let invariants = QuotaInvariants::new(&plan);
    Progress::new(plan, invariants)
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns a Workload with these conditions, which are true if `+` precedes them and else false.
fn workload(name: &str, conditions: &[&str]) -> ObservedWorkload {
    let condition = |text: &&str| {
        let status = if text.starts_with('+') { "True" } else { "False" };
        json!({"type": &text[1..], "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let conditions: Vec<Value> = conditions.iter().map(condition).collect();
    let admission = json!({"clusterQueue": "t-0-0", "podSetAssignments": [{"resourceUsage": {"cpu": "1"}}]});
    let metadata = json!({"namespace": "t-0-0", "name": name, "resourceVersion": "7"});
    let status = json!({"conditions": conditions, "admission": admission});
    serde_json::from_value(json!({"metadata": metadata, "status": status})).expect("a Workload")
}

const ADMITTED: &[&str] = &["+QuotaReserved", "+Admitted"];
const EVICTED: &[&str] = &["+QuotaReserved", "+Admitted", "+Evicted"];
const RELEASED: &[&str] = &["-QuotaReserved", "-Admitted", "+Evicted"];
const FINISHED: &[&str] = &["+QuotaReserved", "+Admitted", "+Finished"];

#[test]
fn workload_is_finished_after_its_run_time() {
    let mut progress = progress("");
    progress.created(at(10), 0);
    progress.workload_changed(at(100), &workload("a-0", ADMITTED)).expect("no violation");
    assert_eq!((progress.next_deadline(), progress.take_due(at(1099))), (Some(at(1100)), vec![]));

    assert_eq!(progress.take_due(at(1100)), [0]);

    assert_eq!((progress.next_deadline(), progress.take_due(at(9999))), (None, vec![]));
    progress.workload_changed(at(1200), &workload("a-0", FINISHED)).expect("no violation");
    assert_eq!(progress.snapshot().running, 0);
    assert_eq!(progress.totals(at(1200)).finished, 1);
}

#[test]
fn evicted_workload_is_released_and_runs_again_for_the_whole_time() {
    let mut progress = progress("");
    progress.created(at(10), 0);
    progress.workload_changed(at(100), &workload("a-0", ADMITTED)).expect("no violation");

    let release = progress.workload_changed(at(500), &workload("a-0", EVICTED)).expect("no violation");

    let release = release.expect("a release");
    assert_eq!((release.name.as_str(), release.version.as_str(), release.conditions.len()), ("a-0", "7", 3));
    assert_eq!(progress.next_deadline(), None);
    let released = progress.workload_changed(at(600), &workload("a-0", RELEASED)).expect("no violation");
    assert_eq!(released, None);
    progress.workload_changed(at(700), &workload("a-0", ADMITTED)).expect("no violation");
    assert_eq!(progress.next_deadline(), Some(at(1700)));
    let totals = progress.totals(at(700));
    assert_eq!((totals.admissions, totals.evictions), (2, 1));
}

#[test]
fn run_ends_when_everything_is_created_and_finished() {
    let mut progress = progress("");
    progress.created(at(10), 0);
    progress.workload_changed(at(50), &workload("a-0", FINISHED)).expect("no violation");
    progress.workload_changed(at(60), &workload("a-1", FINISHED)).expect("no violation");
    assert!(!progress.is_done(), "the creation of a-1 is not answered");

    progress.created(at(70), 1);

    assert!(progress.is_done());
    assert_eq!(progress.totals(at(99)).last_done, at(60));
}

#[test]
fn run_can_end_after_a_number_of_finished_workloads() {
    let mut progress = progress("stopAfterFinished: 1");
    progress.created(at(10), 0);

    progress.workload_changed(at(50), &workload("a-0", FINISHED)).expect("no violation");

    assert!(progress.is_done());
}

#[test]
fn workload_without_run_time_is_done_only_while_it_is_admitted() {
    let mut progress = progress("- {name: b, count: 1, cpu: 1}");
    progress.workload_changed(at(10), &workload("b-0", ADMITTED)).expect("no violation");
    assert!(progress.missing().contains("2 are not done"), "{}", progress.missing());

    progress.workload_changed(at(20), &workload("b-0", EVICTED)).expect("no violation");

    assert!(progress.missing().contains("3 are not done"), "{}", progress.missing());
}

#[test]
fn class_starts_once_the_other_has_reached_its_stage() {
    let mut progress = progress("- {name: b, count: 1, cpu: 1, after: {class: a, is: admitted}}");
    assert_eq!(progress.start_classes(), [0]);
    progress.workload_changed(at(10), &workload("a-0", ADMITTED)).expect("no violation");
    assert_eq!(progress.start_classes(), [0; 0]);

    progress.workload_changed(at(20), &workload("a-1", ADMITTED)).expect("no violation");

    assert_eq!(progress.start_classes(), [1]);
    assert_eq!(progress.start_classes(), [0; 0]);
}

#[test]
fn held_workloads_run_from_the_creation_of_the_last_of_the_class() {
    let mut progress = progress("- {name: b, count: 1, cpu: 1}\nfinishAfterCreated: b");
    progress.workload_changed(at(10), &workload("a-0", ADMITTED)).expect("no violation");
    assert_eq!(progress.next_deadline(), None);

    progress.created(at(5000), 2);

    assert_eq!(progress.next_deadline(), Some(at(6000)));
}

#[test]
fn time_to_admission_is_from_the_answer_to_the_first_admission() {
    let mut progress = progress("");
    progress.created(at(10), 0);
    progress.workload_changed(at(110), &workload("a-0", ADMITTED)).expect("no violation");
    progress.workload_changed(at(210), &workload("a-0", RELEASED)).expect("no violation");
    progress.workload_changed(at(910), &workload("a-0", ADMITTED)).expect("no violation");

    let classes = latencies(&progress.plan.clone(), &progress).expect("times");

    assert_eq!((classes[0].count, classes[0].times.len()), (2, 1));
    assert_eq!(classes[0].times.max() / 1000, 100);
}

#[test]
fn usage_above_the_quota_ends_the_run() {
    let mut progress = progress("- {name: b, count: 1, cpu: 1}");
    for name in ["a-0", "a-1"] {
        progress.workload_changed(at(10), &workload(name, ADMITTED)).expect("no violation");
    }

    let violation = progress.workload_changed(at(20), &workload("b-0", ADMITTED)).expect_err("above the quota");

    assert!(violation.to_string().contains("uses 3 CPU, more than its nominal quota of 2"), "{violation}");
}

#[test]
fn workload_of_another_namespace_is_ignored() {
    let mut progress = progress("");
    let mut other = workload("a-0", ADMITTED);
    other.metadata.namespace = "other".into();

    progress.workload_changed(at(20), &other).expect("no violation");

    assert_eq!(progress.snapshot().workloads, 0);
}

#[test]
fn job_is_admitted_when_its_gate_is_open() {
    let mut progress = progress("- {name: j, kind: Job, count: 1, cpu: 1}");
    let job = ObservedMeta { namespace: "t-0-0".into(), name: "j-0".into(), ..ObservedMeta::default() };
    progress.gate_changed(at(10), Kind::Job, &job, false);
    assert_eq!(progress.snapshot().running, 0);

    progress.gate_changed(at(20), Kind::Job, &job, true);

    assert_eq!(progress.snapshot().running, 1);
}
