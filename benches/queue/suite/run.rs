//! Runs a scenario in virtual time until every workload has finished.

use std::collections::BTreeSet;

use super::report::Makespan;
use super::scenario::Scenario;
use super::world::{Progress, World};
use super::{Broken, Report, memory};

/// Limit on consecutive timers without a pending event, for detecting starvation.
const IDLE_WAKE_UPS: usize = 100;

/// Pending events by virtual time in milliseconds.
type Agenda = BTreeSet<(i64, What)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    /// The workload finishes, unless it was evicted since this admission.
    Finish { index: usize, admission: u32 },
    /// The job with this index is submitted.
    Submit(usize),
}

/// Runs a scenario until all workloads have finished.
pub(super) fn to_the_end(name: &'static str, scenario: &Scenario) -> Result<Report, Broken> {
    let mut world = World::of(scenario)?;
    let submissions = scenario.jobs.iter().enumerate().map(|(number, job)| (job.submit_at, What::Submit(number)));
    let mut agenda: Agenda = submissions.collect();
    let mut idle = 0;
    while world.tally.finished < scenario.jobs.len() {
        let next = agenda.first().map(|(time, _)| *time);
        let Some(time) = next.into_iter().chain(world.wake_at()).min() else { return Err(starved(&world)) };
        idle = if agenda.is_empty() { idle + 1 } else { 0 };
        if idle > IDLE_WAKE_UPS {
            return Err(starved(&world));
        }
        world.now = world.now.max(time);
        happen(&mut world, &mut agenda, scenario)?;
        world.settle()?;
        for index in std::mem::take(&mut world.started) {
            let life = &world.lives[index];
            agenda.insert((world.now + life.job.run, What::Finish { index, admission: life.admissions }));
        }
    }
    let end = world.now;
    let bytes = memory::per_workload(scenario)?;
    let makespan =
        Makespan { end, bound: scenario.bound(false), arrivals_bound: scenario.bound(true), quota: scenario.quota() };
    Ok(Report {
        name,
        workloads: scenario.jobs.len(),
        tally: world.tally,
        clock: world.clock,
        makespan: Some(makespan),
        bytes,
        curve: Vec::new(),
    })
}

/// Fires all due events.
fn happen(world: &mut World, agenda: &mut Agenda, scenario: &Scenario) -> Result<(), Broken> {
    while let Some((_, what)) = agenda.first().copied().filter(|(time, _)| *time <= world.now) {
        agenda.pop_first();
        match what {
            What::Submit(number) => {
                world.submit(scenario.jobs[number].clone())?;
            }
            What::Finish { index, admission } => {
                let life = &world.lives[index];
                if life.admissions == admission && matches!(life.progress, Progress::Running(_)) {
                    world.finish(index)?;
                }
            }
        }
    }
    Ok(())
}

pub(super) fn starved(world: &World) -> Broken {
    Broken::Starved { at: world.now, left: world.lives.len() - world.tally.finished }
}
