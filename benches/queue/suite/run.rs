//! Runs a scenario in virtual time until every workload has finished.

use std::collections::BTreeSet;

use super::report::Makespan;
use super::scenario::Scenario;
use super::simulated_cluster::{SimulatedCluster, WorkloadProgress};
use super::{BenchError, Report, memory};

/// Limit on consecutive timers without a pending event, for detecting starvation.
const IDLE_WAKE_UPS: usize = 100;

/// Pending events by virtual time in milliseconds.
type TimerQueue = BTreeSet<(i64, TimedEvent)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TimedEvent {
    /// The workload finishes, unless it was evicted since this admission.
    Finish { index: usize, admission: u32 },
    /// The job with this index is submitted.
    Submit(usize),
}

/// Runs a scenario until all workloads have finished.
pub(super) fn run_scenario(name: &'static str, scenario: &Scenario) -> Result<Report, BenchError> {
    let mut world = SimulatedCluster::new(scenario)?;
    let submissions = scenario.jobs.iter().enumerate().map(|(number, job)| (job.submit_at, TimedEvent::Submit(number)));
    let mut agenda: TimerQueue = submissions.collect();
    let mut idle = 0;
    while world.totals.finished < scenario.jobs.len() {
        let next = agenda.first().map(|(time, _)| *time);
        let Some(time) = next.into_iter().chain(world.wake_at()).min() else { return Err(starved(&world)) };
        idle = if agenda.is_empty() { idle + 1 } else { 0 };
        if idle > IDLE_WAKE_UPS {
            return Err(starved(&world));
        }
        world.now = world.now.max(time);
        fire_due(&mut world, &mut agenda, scenario)?;
        world.run_to_fixpoint()?;
        for index in std::mem::take(&mut world.newly_admitted) {
            let life = &world.workloads[index];
            agenda.insert((world.now + life.job.run, TimedEvent::Finish { index, admission: life.admissions }));
        }
    }
    let end = world.now;
    let bytes = memory::bytes_per_workload(scenario)?;
    let makespan = Makespan {
        end,
        bound: scenario.makespan_bound(false),
        arrivals_bound: scenario.makespan_bound(true),
        quota: scenario.total_quota(),
    };
    Ok(Report {
        name,
        workloads: scenario.jobs.len(),
        totals: world.totals,
        clock: world.clock,
        makespan: Some(makespan),
        bytes,
        curve: Vec::new(),
    })
}

/// Fires all due events.
fn fire_due(world: &mut SimulatedCluster, agenda: &mut TimerQueue, scenario: &Scenario) -> Result<(), BenchError> {
    while let Some((_, what)) = agenda.first().copied().filter(|(time, _)| *time <= world.now) {
        agenda.pop_first();
        match what {
            TimedEvent::Submit(number) => {
                world.submit(scenario.jobs[number].clone())?;
            }
            TimedEvent::Finish { index, admission } => {
                let life = &world.workloads[index];
                if life.admissions == admission && matches!(life.progress, WorkloadProgress::Running(_)) {
                    world.finish(index)?;
                }
            }
        }
    }
    Ok(())
}

pub(super) fn starved(world: &SimulatedCluster) -> BenchError {
    BenchError::Starved { at: world.now, left: world.workloads.len() - world.totals.finished }
}
