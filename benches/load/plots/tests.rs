use super::*;
use crate::report::tests::report;
use crate::report::{ClassReport, Form, Sample};

/// Returns a report of two seconds.
fn two_seconds() -> Report {
    let sample = |second| Sample {
        second,
        quota_used: 0.5,
        pending: 7,
        running: 3,
        created: 10,
        workloads: 10,
        manager_bytes: Some(40 << 20),
    };
    let curve = vec![(5.0, 0.0), (5.0, 0.5), (2000.0, 1.0)];
    let class = ClassReport {
        class: "small".into(),
        count: 10,
        admitted: 10,
        mean: 5.0,
        p50: 5.0,
        p99: 2000.0,
        max: 2000.0,
        curve,
    };
    Report { time_to_admission: vec![class], samples: vec![sample(0.0), sample(1.0)], ..report(Form::Run) }
}

#[test]
fn every_chart_has_a_title_and_its_labels() {
    let words = ["small (p50 5 ms, p99 2 s)", "pending Workloads", "PATCH workloads/status", "created objects"];
    for ((name, draw), words) in CHARTS.iter().zip(words) {
        let svg = render(&two_seconds(), *draw).unwrap_or_else(|error| panic!("{name}: {error}"));
        let svg = svg.unwrap_or_else(|| panic!("{name} is drawn"));
        assert!(svg.contains(words) && svg.contains("test: "), "{name}: {svg}");
    }
}

#[test]
fn chart_without_data_is_omitted() {
    let mut empty = report(Form::Floor);
    empty.requests.clear();
    empty.own_requests.clear();
    for (name, draw) in CHARTS {
        assert_eq!(render(&empty, draw).unwrap_or_else(|error| panic!("{name}: {error}")), None);
    }
}
