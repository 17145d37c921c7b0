//! Scenarios with many ClusterQueues.

use serde_json::json;
use sluice_queue::settings::{FairSharing, Settings};

use super::objects::{cohort, queue};
use super::scenario::{Job, Scenario};
use super::{Broken, Scale};

const CPU: &str = "cpu";

/// Workloads of one size in one ClusterQueue.
struct Class {
    name: &'static str,
    count: usize,
    cpu: i64,
    priority: i32,
    /// Run time in milliseconds.
    run: i64,
    /// Submission interval in milliseconds.
    every: i64,
    /// Start of the first interval, in milliseconds.
    from: i64,
}

impl Class {
    /// Generates the jobs as in Kueue's generator, which waits before each one (kueue v0.19.2
    /// `test/performance/scheduler/runner/generator/generator.go`).
    fn jobs(&self, queue: usize, scale: Scale) -> impl Iterator<Item = Job> {
        (0..scale.root_of(self.count, 1)).map(move |number| Job {
            queue,
            name: format!("{}-{number}", self.name),
            requests: vec![(CPU, self.cpu)],
            priority: self.priority,
            submit_at: self.from + self.every * (i64::try_from(number).unwrap_or(i64::MAX - 1) + 1),
            run: self.run,
        })
    }
}

/// Kueue's scheduler test (kueue v0.19.2
/// `test/performance/scheduler/configs/baseline/generator.yaml`).
pub(super) fn baseline(scale: Scale) -> Result<Scenario, Broken> {
    let classes = [
        Class { name: "small", count: 350, cpu: 1, priority: 50, run: 200, every: 100, from: 0 },
        Class { name: "medium", count: 100, cpu: 5, priority: 100, run: 500, every: 500, from: 0 },
        Class { name: "large", count: 50, cpu: 20, priority: 200, run: 1000, every: 1200, from: 0 },
    ];
    cohorts(5, 6, &classes, scale)
}

/// The same with more queues (kueue v0.19.2
/// `test/performance/scheduler/configs/large-scale/generator.yaml`).
pub(super) fn large_scale(scale: Scale) -> Result<Scenario, Broken> {
    let classes = [
        Class { name: "small", count: 35, cpu: 1, priority: 50, run: 150, every: 60, from: 0 },
        Class { name: "medium", count: 11, cpu: 5, priority: 100, run: 350, every: 300, from: 0 },
        Class { name: "large", count: 4, cpu: 20, priority: 200, run: 700, every: 700, from: 0 },
    ];
    cohorts(10, 100, &classes, scale)
}

fn cohorts(cohorts: usize, queues: usize, classes: &[Class], scale: Scale) -> Result<Scenario, Broken> {
    let mut scenario = Scenario::default();
    for tree in 0..cohorts {
        for number in 0..scale.root_of(queues, 2) {
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
pub(super) fn fair_sharing(scale: Scale) -> Result<Scenario, Broken> {
    let busy = [
        Class { name: "narrow", count: 40, cpu: 2, priority: 0, run: 300, every: 10, from: 0 },
        Class { name: "wide", count: 10, cpu: 4, priority: 0, run: 300, every: 30, from: 0 },
    ];
    let late = [Class { name: "late", count: 15, cpu: 4, priority: 0, run: 400, every: 40, from: 500 }];
    let settings = Settings { fair_sharing: Some(FairSharing::default()), ..Settings::default() };
    let mut scenario = Scenario { settings, ..Scenario::default() };
    scenario.cohorts.push(cohort("company", json!({}))?);
    for department in 0..10 {
        let weight = (1 + department % 3).to_string();
        let name = format!("department-{department}");
        scenario.cohorts.push(cohort(&name, json!({"parentName": "company", "fairSharing": {"weight": weight}}))?);
        for number in 0..scale.root_of(100, 2) {
            let weight = [1, 2, 4, 1, 3][number % 5].to_string();
            let spec = json!({
                "cohortName": name,
                "fairSharing": {"weight": weight},
                "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
            });
            let index = scenario.queues.len();
            scenario.queues.push(queue(&format!("team-{department}-{number}"), 0, vec![(CPU, 8)], None, spec)?);
            let classes: &[Class] = if number % 2 == 0 { &busy } else { &late };
            scenario.jobs.extend(classes.iter().flat_map(|class| class.jobs(index, scale)));
        }
    }
    Ok(scenario)
}
