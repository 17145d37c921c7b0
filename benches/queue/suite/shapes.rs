//! Scenarios with many ClusterQueues.

use serde_json::json;
use sluice_queue::settings::{FairSharing, Settings};

use super::objects::{cohort, queue};
use super::scenario::{Job, Scenario};
use super::{BenchError, Scale};

const CPU: &str = "cpu";

/// Workloads of one size in one ClusterQueue.
struct WorkloadClass {
    name: &'static str,
    count: usize,
    cpu: i64,
    priority: i32,
    /// Run time in milliseconds.
    run: i64,
    /// Submission interval in milliseconds.
    interval: i64,
    /// Start of the first interval, in milliseconds.
    start: i64,
}

impl WorkloadClass {
    /// Generates the jobs as in Kueue's generator, which waits before each one (kueue v0.19.2
    /// `test/performance/scheduler/runner/generator/generator.go`).
    fn jobs(&self, queue: usize, scale: Scale) -> impl Iterator<Item = Job> {
        (0..scale.scale_root(self.count, 1)).map(move |number| Job {
            queue,
            name: format!("{}-{number}", self.name),
            requests: vec![(CPU, self.cpu)],
            priority: self.priority,
            submit_at: self.start + self.interval * (i64::try_from(number).unwrap_or(i64::MAX - 1) + 1),
            run: self.run,
        })
    }
}

/// Kueue's scheduler test (kueue v0.19.2
/// `test/performance/scheduler/configs/baseline/generator.yaml`).
pub(super) fn baseline(scale: Scale) -> Result<Scenario, BenchError> {
    let classes = [
        WorkloadClass { name: "small", count: 350, cpu: 1, priority: 50, run: 200, interval: 100, start: 0 },
        WorkloadClass { name: "medium", count: 100, cpu: 5, priority: 100, run: 500, interval: 500, start: 0 },
        WorkloadClass { name: "large", count: 50, cpu: 20, priority: 200, run: 1000, interval: 1200, start: 0 },
    ];
    cohorts(5, 6, &classes, scale)
}

/// The same with more queues (kueue v0.19.2
/// `test/performance/scheduler/configs/large-scale/generator.yaml`).
pub(super) fn large_scale(scale: Scale) -> Result<Scenario, BenchError> {
    let classes = [
        WorkloadClass { name: "small", count: 35, cpu: 1, priority: 50, run: 150, interval: 60, start: 0 },
        WorkloadClass { name: "medium", count: 11, cpu: 5, priority: 100, run: 350, interval: 300, start: 0 },
        WorkloadClass { name: "large", count: 4, cpu: 20, priority: 200, run: 700, interval: 700, start: 0 },
    ];
    cohorts(10, 100, &classes, scale)
}

fn cohorts(cohorts: usize, queues: usize, classes: &[WorkloadClass], scale: Scale) -> Result<Scenario, BenchError> {
    let mut scenario = Scenario::default();
    for tree in 0..cohorts {
        for number in 0..scale.scale_root(queues, 2) {
            let spec = json!({
                "cohortName": format!("cohort-{tree}"),
                "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
            });
            let index = scenario.queues.len();
            scenario.queues.push(queue(&format!("cq-{tree}-{number}"), tree, vec![(CPU, 20)], Some(100), spec)?);
            scenario.jobs.extend(classes.iter().flat_map(|class| class.jobs(index, scale)));
        }
    }
    Ok(scenario)
}

/// One tree of 10 departments with 100 teams each, with weights at both levels. Every other team
/// requests more than its nominal quota from the start. The others submit later, when their quota
/// is lent out.
pub(super) fn fair_sharing(scale: Scale) -> Result<Scenario, BenchError> {
    let busy = [
        WorkloadClass { name: "narrow", count: 40, cpu: 2, priority: 0, run: 300, interval: 10, start: 0 },
        WorkloadClass { name: "wide", count: 10, cpu: 4, priority: 0, run: 300, interval: 30, start: 0 },
    ];
    let late = [WorkloadClass { name: "late", count: 15, cpu: 4, priority: 0, run: 400, interval: 40, start: 500 }];
    let settings = Settings { fair_sharing: Some(FairSharing::default()), ..Settings::default() };
    let mut scenario = Scenario { settings, ..Scenario::default() };
    scenario.cohorts.push(cohort("company", json!({}))?);
    for department in 0..10 {
        let weight = (1 + department % 3).to_string();
        let name = format!("department-{department}");
        scenario.cohorts.push(cohort(&name, json!({"parentName": "company", "fairSharing": {"weight": weight}}))?);
        for number in 0..scale.scale_root(100, 2) {
            let weight = [1, 2, 4, 1, 3][number % 5].to_string();
            let spec = json!({
                "cohortName": name,
                "fairSharing": {"weight": weight},
                "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
            });
            let index = scenario.queues.len();
            scenario.queues.push(queue(&format!("team-{department}-{number}"), 0, vec![(CPU, 8)], None, spec)?);
            let classes: &[WorkloadClass] = if number % 2 == 0 { &busy } else { &late };
            scenario.jobs.extend(classes.iter().flat_map(|class| class.jobs(index, scale)));
        }
    }
    Ok(scenario)
}
