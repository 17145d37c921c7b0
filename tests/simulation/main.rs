//! Deterministic simulation of Sluice in virtual time, with injected faults, from a seed.
//!
//! It runs the code of `sluice manager` with its real client. The API server, the nodes and the Ray
//! dashboards behind the client are plain data and handle one request at a time, so a seed yields
//! the same history on every machine.
#![allow(unreachable_pub, reason = "in a test program, `pub` marks the interface between modules")]

mod api;
mod availability;
mod case;
mod cluster;
mod conformance;
mod coverage;
mod crash_at_every_write;
mod explain_truth;
mod fault_free;
mod faults;
mod idle_cost;
mod job_quiescence;
mod mutants;
mod observer;
mod panic_capture;
mod plan_truth;
mod process;
mod quiescence;
mod regressions;
mod rng;
mod rollout_trace;
mod run;
mod script;
mod seeds;
mod shrink;
mod strict_fifo_reservation;
mod time;
mod transport;
mod wire_log;
mod world;
mod write_costs;

use std::time::Instant;

use case::Case;
use mimalloc::MiMalloc;
use run::run;

/// A run allocates and frees millions of small objects, which mimalloc does faster.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Number of seeds to run when the environment sets none.
const DEFAULT_SEEDS: u64 = 200;
/// Minimum number of seeds from which every expected history must be common.
const COVERAGE_MIN_SEEDS: u64 = 2000;

/// Number of upgrades in a history of repeated upgrades.
const UPGRADES_PER_HISTORY: u32 = 20;

#[test]
fn invariants_hold_under_faults() {
    let summary = run_seeds(("FIRST", "SEEDS"), Case::from_seed);

    assert!(
        summary.seeds < COVERAGE_MIN_SEEDS || summary.rare_histories().is_empty(),
        "histories seen too rarely: {}",
        summary.rare_histories().join(", ")
    );
}

#[test]
fn invariants_hold_under_faults_in_incremental_upgrades() {
    run_seeds(("INCREMENTAL_FIRST", "INCREMENTAL_SEEDS"), Case::incremental);
}

#[test]
fn invariants_hold_under_faults_in_repeated_upgrades() {
    run_seeds(("REPEATED_FIRST", "REPEATED_SEEDS"), |seed| Case::repeated_upgrades(seed, UPGRADES_PER_HISTORY));
}

#[test]
fn invariants_hold_under_faults_in_jobs() {
    run_seeds(("JOB_FIRST", "JOB_SEEDS"), Case::jobs);
}

#[test]
fn invariants_hold_under_faults_in_clusters() {
    run_seeds(("CLUSTER_FIRST", "CLUSTER_SEEDS"), Case::clusters);
}

/// Runs the cases of the seeds that the two environment variables select (first seed and count) and
/// fails on any violation.
fn run_seeds((first, count): (&str, &str), case: fn(u64) -> Case) -> seeds::Summary {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse().expect(name));
    let (first, count): (u64, u64) = (number(first).unwrap_or(0), number(count).unwrap_or(DEFAULT_SEEDS));
    let started = Instant::now();

    let summary = seeds::run_all(first..first + count, case);

    println!("\n{}", summary.table(started.elapsed()));
    let failures: Vec<String> =
        summary.failed.iter().map(|(seed, report)| seeds::shrink_and_describe(&case(*seed), report)).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    summary
}

#[test]
fn repeated_upgrades_leave_as_many_objects_as_a_first_start() {
    for seed in 0..10 {
        // Given a service that was upgraded many times under faults,
        let case = Case::repeated_upgrades(seed, UPGRADES_PER_HISTORY);
        let upgraded = run(&case, false);

        // and a service that was created with its final spec, without faults,
        let fresh = run(&case.with_final_spec(), false);

        // then both leave the same number of objects of each kind.
        assert!(
            upgraded.coverage.upgrades > UPGRADES_PER_HISTORY as usize / 2,
            "seed {seed}: {}",
            upgraded.coverage.upgrades
        );
        assert!(upgraded.remaining_objects.contains_key("RayCluster"), "seed {seed}: {:?}", upgraded.remaining_objects);
        assert_eq!(upgraded.remaining_objects, fresh.remaining_objects, "seed {seed}");
    }
}

#[test]
fn a_seed_determines_its_history() {
    for seed in 0..10 {
        let case = Case::from_seed(seed);

        let (first, second) = (run(&case, false), run(&case, false));

        assert_eq!((first.requests, first.fingerprint), (second.requests, second.fingerprint), "seed {seed}");
    }
}

#[test]
fn listed_faults_replay_the_drawn_history() {
    for seed in 0..10 {
        let case = Case::from_seed(seed);
        let drawn = run(&case, false);

        let listed = run(&Case { faults: Some(drawn.faults.clone()), ..case }, false);

        assert_eq!(drawn.fingerprint, listed.fingerprint, "seed {seed}");
    }
}

#[test]
#[ignore = "prints the history of one SEED (7, incremental-7, repeated-7, job-7, cluster-7 or the file of a case); run it with make simulate SEED=7"]
fn print_history_of_seed() {
    let selector = std::env::var("SEED").expect("SEED");
    let case_of = |prefix: &str, case: fn(u64) -> Case| selector.strip_prefix(prefix)?.parse().ok().map(case);
    let incremental = || case_of("incremental-", Case::incremental);
    let repeated = || case_of("repeated-", |seed| Case::repeated_upgrades(seed, UPGRADES_PER_HISTORY));
    let jobs = || case_of("job-", Case::jobs);
    let clusters = || case_of("cluster-", Case::clusters);
    let case = case_of("", Case::from_seed)
        .or_else(incremental)
        .or_else(repeated)
        .or_else(jobs)
        .or_else(clusters)
        .unwrap_or_else(|| Case::read(selector.as_ref()));
    let report = run(&case, true);
    println!("{}", report.text);
    report.violations.iter().for_each(|found| println!("{found}"));
    println!("{} requests in {:?}", report.requests, report.virtual_time);
}
