//! One ClusterQueue with a long backlog, in which one unit of quota is released at a time.
//!
//! The backlog keeps its length: each admitted workload is replaced by another of the same shape.
//! So each point of the curve is the cost of one released unit at that length. At the end, the
//! longest backlog is drained.

use std::collections::VecDeque;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::json;

use super::objects::queue;
use super::report::Report;
use super::run::starved;
use super::scenario::{Job, Scenario};
use super::scheduler_clock::{histogram, nanoseconds};
use super::simulated_cluster::{SimulatedCluster, WorkloadProgress};
use super::{BenchError, Scale, memory};

const GPU: &str = "nvidia.com/gpu";
const CPU: &str = "cpu";
/// Number of GPUs, each used by one workload at the start.
const GPUS: usize = 64;
/// Lengths of the backlog.
const LENGTHS: [usize; 5] = [1_000, 3_000, 10_000, 30_000, 100_000];
/// Number of units released at each length.
const RELEASES: usize = 1_000;
/// Number of distinct requests of pending workloads.
const SHAPES: usize = 1_000;
/// Largest GPU request. Requests range from one to this, so seven of eight pending workloads do not
/// fit into one released unit.
const MAX_GPUS: usize = 8;

/// Measurements at one length of the backlog.
#[derive(Debug)]
pub(crate) struct BacklogPoint {
    /// Number of pending workloads.
    pub pending: usize,
    /// Time inside the scheduler from a released unit until it makes no more decisions, in
    /// nanoseconds.
    pub release_latency: Histogram<u64>,
    /// Total number of decisions in that time.
    pub decisions: u64,
    /// Total of that time.
    pub inside: Duration,
    /// Bytes that the scheduler keeps for each workload.
    pub bytes: f64,
}

/// Runs the benchmark at all lengths.
pub(super) fn run(scale: Scale) -> Result<Report, BenchError> {
    let mut curve = Vec::new();
    let mut last = None;
    for length in LENGTHS {
        let scenario = scenario(scale.scale(length, MAX_GPUS))?;
        let bytes = memory::bytes_per_workload(&scenario)?;
        let (world, running, point) = release_one_at_a_time(&scenario, scale.scale_root(RELEASES, MAX_GPUS), bytes)?;
        curve.push(point);
        last = Some((world, running, bytes));
    }
    let Some((mut world, running, bytes)) = last else { unreachable!("LENGTHS is not empty") };
    drain(&mut world, running)?;
    Ok(Report {
        name: "backlog",
        workloads: world.workloads.len(),
        totals: world.totals,
        clock: world.clock,
        makespan: None,
        bytes,
        curve,
    })
}

fn scenario(waiting: usize) -> Result<Scenario, BenchError> {
    let units = i64::try_from(GPUS).unwrap_or(i64::MAX);
    let plenty = 1_000_000_000;
    let queues = vec![queue("cq", 0, vec![(GPU, units), (CPU, plenty)], None, json!({}))?];
    let holders = (0..GPUS).map(|number| job(format!("holder-{number}"), 0));
    let line = (0..waiting).map(|number| job(format!("waiting-{number}"), number % SHAPES));
    Ok(Scenario { queues, jobs: holders.chain(line).collect(), ..Scenario::default() })
}

fn job(name: String, shape: usize) -> Job {
    let count = |number: usize| i64::try_from(number + 1).unwrap_or(i64::MAX);
    let requests = vec![(GPU, count(shape % MAX_GPUS)), (CPU, count(shape / MAX_GPUS))];
    Job { queue: 0, name, requests, priority: 0, submit_at: 0, run: 1 }
}

fn release_one_at_a_time(
    scenario: &Scenario,
    times: usize,
    bytes: f64,
) -> Result<(SimulatedCluster, VecDeque<usize>, BacklogPoint), BenchError> {
    let mut world = SimulatedCluster::new(scenario)?;
    let (holders, line) = scenario.jobs.split_at(GPUS);
    for jobs in [holders, line] {
        for job in jobs {
            world.submit(job.clone())?;
        }
        world.run_to_fixpoint()?;
        world.now += 1;
    }
    let mut running: VecDeque<usize> = std::mem::take(&mut world.newly_admitted).into();
    let mut point = BacklogPoint {
        pending: line.len(),
        release_latency: histogram()?,
        decisions: 0,
        inside: Duration::ZERO,
        bytes,
    };
    for time in 0..times {
        let (inside, decisions) = (world.clock.total(), world.clock.decisions);
        finish_oldest(&mut world, &mut running)?;
        let took = world.clock.total() - inside;
        point.release_latency.record(nanoseconds(took))?;
        point.inside += took;
        point.decisions += world.clock.decisions - decisions;
        for admitted in std::mem::take(&mut world.newly_admitted) {
            running.push_back(admitted);
            let like = world.workloads[admitted].job.clone();
            world.submit(Job { name: format!("again-{time}-{admitted}"), ..like })?;
        }
        world.run_to_fixpoint()?;
        running.extend(world.newly_admitted.drain(..));
    }
    Ok((world, running, point))
}

/// Finishes the workload that has run longest.
fn finish_oldest(world: &mut SimulatedCluster, running: &mut VecDeque<usize>) -> Result<(), BenchError> {
    world.now += 1;
    let Some(index) =
        running.pop_front().filter(|index| matches!(world.workloads[*index].progress, WorkloadProgress::Running(_)))
    else {
        return Err(starved(world));
    };
    world.finish(index)?;
    world.run_to_fixpoint()
}

/// Runs until the backlog is empty and all workloads have finished.
fn drain(world: &mut SimulatedCluster, mut running: VecDeque<usize>) -> Result<(), BenchError> {
    while world.totals.finished < world.workloads.len() {
        finish_oldest(world, &mut running)?;
        running.extend(world.newly_admitted.drain(..));
    }
    Ok(())
}
