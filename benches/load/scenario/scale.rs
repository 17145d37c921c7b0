//! Smaller forms of a scenario.

use super::Scenario;

impl Scenario {
    /// Returns the scenario with this fraction of its load, above 0 and at most 1. First there are
    /// fewer cohorts, at least one; the rest of the factor goes to the number of objects, or to the
    /// requests and quotas that scale with the load.
    pub fn scaled(&self, factor: f64) -> Self {
        let mut scenario = self.clone();
        scenario.cohorts.count = scaled(self.cohorts.count, factor);
        let rest = factor * self.cohorts.count as f64 / scenario.cohorts.count as f64;
        let queues = &mut scenario.cohorts.cluster_queues;
        if queues.scale_quota {
            queues.nominal_cpu = scaled_cpu(queues.nominal_cpu, rest);
        }
        for class in &mut scenario.classes {
            if class.scale_cpu {
                class.cpu = scaled_cpu(class.cpu, rest);
            } else {
                class.count = scaled(class.count, rest);
            }
        }
        scenario.stop_after_finished = self.stop_after_finished.map(|stop| scaled(stop, factor));
        scenario
    }
}

fn scaled(number: usize, factor: f64) -> usize {
    ((number as f64 * factor).round() as usize).max(1)
}

/// Scales a number of CPUs; returns at least one CPU.
fn scaled_cpu(cpu: f64, factor: f64) -> f64 {
    (cpu * factor).round().max(1.0)
}
