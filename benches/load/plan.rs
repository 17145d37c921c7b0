//! The objects that a scenario stands for: queues, classes, and when each object is created.

use std::ops::Range;
use std::time::Duration;

use sluice_api::quantity::Amount;

use super::scenario::{Class, Kind, Preemption, Scenario, Stage};

/// Everything that a run creates, in the order of creation within each class.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadPlan {
    /// Name of the scenario.
    pub name: String,
    /// ClusterQueues.
    pub queues: Vec<PlannedQueue>,
    /// Classes of objects.
    pub classes: Vec<PlannedClass>,
    /// The objects, class by class.
    pub items: Vec<Item>,
    /// Class of which all objects are created before the first Workload is finished.
    pub finish_after_created: Option<usize>,
    /// Number of finished Workloads after which the run ends.
    pub stop_after_finished: Option<usize>,
}

/// A ClusterQueue. Its namespace and its LocalQueue have the same name.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedQueue {
    /// Name.
    pub name: String,
    /// Number of its cohort.
    pub cohort: usize,
    /// Nominal quota, in milli-CPU.
    pub nominal: Amount,
    /// Maximum that it borrows, in milli-CPU. `None`: no limit.
    pub borrowing_limit: Option<Amount>,
    /// Workloads that may be preempted.
    pub preemption: Preemption,
}

/// A class of objects.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedClass {
    /// Name.
    pub name: String,
    /// Kind of the objects.
    pub kind: Kind,
    /// Request of each pod, in milli-CPU.
    pub cpu: Amount,
    /// Priority of the Workloads.
    pub priority: i32,
    /// Number of the class, and its stage, after which this one starts.
    pub after: Option<(usize, Stage)>,
    /// Its objects, by their place in [`LoadPlan::items`].
    pub items: Range<usize>,
}

/// An object to create.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Number of its class.
    pub class: usize,
    /// Number of its ClusterQueue.
    pub queue: usize,
    /// Name; it is in the namespace of its ClusterQueue.
    pub name: String,
    /// Time of creation, since the start of its class.
    pub due: Duration,
    /// Time from the admission until the Workload is finished. `None`: it runs until the end.
    pub run: Option<Duration>,
}

impl LoadPlan {
    /// Returns the objects of a scenario. Times are those of Kueue's generator, which waits before
    /// each creation (kueue v0.19.2 `test/performance/scheduler/runner/generator/generator.go`).
    pub fn new(name: &str, scenario: &Scenario) -> Self {
        let queues = queues(name, scenario);
        let mut random = fastrand::Rng::with_seed(scenario.seed);
        let mut items = Vec::new();
        let mut classes = Vec::new();
        for (number, class) in scenario.classes.iter().enumerate() {
            let from = items.len();
            items.extend((0..queues.len()).flat_map(|queue| objects(number, class, queue, &mut random)));
            items[from..].sort_by_key(|item| item.due);
            classes.push(planned(scenario, class, from..items.len()));
        }
        let class_named = |name: &String| scenario.classes.iter().position(|class| class.name == *name);
        Self {
            name: name.to_owned(),
            queues,
            classes,
            items,
            finish_after_created: scenario.finish_after_created.as_ref().and_then(class_named),
            stop_after_finished: scenario.stop_after_finished,
        }
    }

    /// Returns the number of cohorts.
    pub fn cohorts(&self) -> usize {
        self.queues.iter().map(|queue| queue.cohort + 1).max().unwrap_or(0)
    }

    /// Returns the kinds of its objects, each once.
    pub fn kinds(&self) -> Vec<Kind> {
        let mut kinds = Vec::new();
        for class in &self.classes {
            if !kinds.contains(&class.kind) {
                kinds.push(class.kind);
            }
        }
        kinds
    }

    /// Returns the class of an object.
    pub fn class_of(&self, item: &Item) -> &PlannedClass {
        &self.classes[item.class]
    }

    /// Returns the namespace of an object, which is also the name of its queue.
    pub fn namespace_of(&self, item: &Item) -> &str {
        &self.queues[item.queue].name
    }
}

fn queues(name: &str, scenario: &Scenario) -> Vec<PlannedQueue> {
    let alike = &scenario.cohorts.cluster_queues;
    let of_cohort = |cohort: usize| {
        (0..alike.count).map(move |number| PlannedQueue {
            name: format!("{name}-{cohort}-{number}"),
            cohort,
            nominal: milli(alike.nominal_cpu),
            borrowing_limit: alike.borrowing_limit_cpu.map(milli),
            preemption: alike.preemption,
        })
    };
    (0..scenario.cohorts.count).flat_map(of_cohort).collect()
}

fn planned(scenario: &Scenario, class: &Class, items: Range<usize>) -> PlannedClass {
    let after = class.after.as_ref().and_then(|after| {
        let other = scenario.classes.iter().position(|other| other.name == after.class)?;
        Some((other, after.is))
    });
    PlannedClass {
        name: class.name.clone(),
        kind: class.kind,
        cpu: milli(class.cpu),
        priority: class.priority,
        after,
        items,
    }
}

fn objects(number: usize, class: &Class, queue: usize, random: &mut fastrand::Rng) -> Vec<Item> {
    let mut due = Duration::ZERO;
    // An upgrade has the name of its RayService.
    let prefix = class.upgrades.as_ref().unwrap_or(&class.name);
    let object = |index| {
        due += class.every.map_or(Duration::ZERO, |every| every.next(random));
        let run = class.run.map(|run| run.next(random));
        Item { class: number, queue, name: format!("{prefix}-{index}"), due, run }
    };
    (0..class.count).map(object).collect()
}

fn milli(cpu: f64) -> Amount {
    Amount::new((cpu * 1000.0).round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
shortScale: 1
seed: 7
cohorts: {count: 2, clusterQueues: {count: 2, nominalCpu: 20, borrowingLimitCpu: 0.5}}
classes:
- {name: small, count: 2, cpu: 1, every: 100ms, run: 1s}
- {name: late, count: 1, cpu: 5, every: random 1s, after: {class: small, is: admitted}}
finishAfterCreated: late
";

    fn plan() -> LoadPlan {
        LoadPlan::new("test", &serde_saphyr::from_str(TEXT).expect("a scenario"))
    }

    #[test]
    fn every_queue_gets_all_classes_in_order_of_creation() {
        let plan = plan();

        assert_eq!(plan.queues.iter().map(|queue| queue.cohort).collect::<Vec<_>>(), [0, 0, 1, 1]);
        assert_eq!(plan.queues[3].name, "test-1-1");
        assert_eq!(plan.queues[3].borrowing_limit, Some(Amount::new(500)));
        assert_eq!(plan.classes[0].items, 0..8);
        let due: Vec<u128> = plan.items[..8].iter().map(|item| item.due.as_millis()).collect();
        assert_eq!(due, [100, 100, 100, 100, 200, 200, 200, 200]);
        assert_eq!((plan.classes[1].after, plan.finish_after_created), (Some((0, Stage::Admitted)), Some(1)));
    }

    #[test]
    fn seed_determines_random_times() {
        assert_eq!(plan(), plan());
    }
}
