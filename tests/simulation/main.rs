//! The whole of Sluice in virtual time, with faults, from a seed.
//!
//! What runs is what `sluice manager` runs, with its real client. Behind the client are an API server, nodes and Ray
//! dashboards that are plain data and do one thing at a time, so that a seed is a history, the same one on any machine.
// In a program of its own, `pub` says what other rooms may use.
#![allow(unreachable_pub)]

mod api;
mod calm;
mod case;
mod chance;
mod cluster;
mod course;
mod coverage;
mod ending;
mod explained;
mod faults;
mod fidelity;
mod found;
mod kept_back;
mod killed;
mod observer;
mod panics;
mod planned;
mod planted;
mod process;
mod run;
mod script;
mod seeds;
mod serving;
mod shrink;
mod still;
mod time;
mod trace;
mod transport;
mod world;

use std::time::Instant;

use case::Case;
use mimalloc::MiMalloc;
use run::run;

/// Histories are small objects, made and dropped by the million.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// How many seeds are run if nobody says.
const SEEDS: u64 = 200;
/// With so many seeds, no history that matters may be rare.
const MANY: u64 = 2000;

/// How often one service is upgraded in a history that is about that.
const UPGRADES: u32 = 20;

#[test]
fn whatever_goes_wrong_the_invariants_hold() {
    let summary = whatever_goes_wrong(("FIRST", "SEEDS"), Case::of);

    assert!(summary.seeds < MANY || summary.rare().is_empty(), "too rare: {}", summary.rare().join(", "));
}

#[test]
fn whatever_goes_wrong_in_steps_the_invariants_hold() {
    whatever_goes_wrong(("INCREMENTAL_FIRST", "INCREMENTAL_SEEDS"), Case::in_steps);
}

#[test]
fn whatever_goes_wrong_again_and_again_the_invariants_hold() {
    whatever_goes_wrong(("REPEATED_FIRST", "REPEATED_SEEDS"), |seed| Case::again_and_again(seed, UPGRADES));
}

/// Runs the cases of as many seeds as the environment says, from the first that it says, and tells what came of them.
fn whatever_goes_wrong((first, count): (&str, &str), case: fn(u64) -> Case) -> seeds::Summary {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse().expect(name));
    let (first, count): (u64, u64) = (number(first).unwrap_or(0), number(count).unwrap_or(SEEDS));
    let begun = Instant::now();

    let summary = seeds::run_all(first..first + count, case);

    println!("\n{}", summary.table(begun.elapsed()));
    let told: Vec<String> = summary.failed.iter().map(|(seed, report)| seeds::told(&case(*seed), report)).collect();
    assert!(told.is_empty(), "{}", told.join("\n\n"));
    summary
}

#[test]
fn after_many_upgrades_there_is_as_much_as_after_the_first_start() {
    for seed in 0..10 {
        // Given a service that has been upgraded again and again, while things went wrong,
        let case = Case::again_and_again(seed, UPGRADES);
        let upgraded = run(&case, false);

        // and one like it that was put there at once, while nothing went wrong,
        let fresh = run(&case.as_in_the_end(), false);

        // then there are as many objects of each kind.
        assert!(upgraded.coverage.upgrades > UPGRADES as usize / 2, "seed {seed}: {}", upgraded.coverage.upgrades);
        assert!(upgraded.left.contains_key("RayCluster"), "seed {seed}: {:?}", upgraded.left);
        assert_eq!(upgraded.left, fresh.left, "seed {seed}");
    }
}

#[test]
fn a_seed_is_one_history() {
    for seed in 0..10 {
        let case = Case::of(seed);

        let (once, again) = (run(&case, false), run(&case, false));

        assert_eq!((once.requests, once.fingerprint), (again.requests, again.fingerprint), "seed {seed}");
    }
}

#[test]
fn what_was_drawn_can_be_listed() {
    for seed in 0..10 {
        let case = Case::of(seed);
        let drawn = run(&case, false);

        let listed = run(&Case { trouble: Some(drawn.trouble.clone()), ..case }, false);

        assert_eq!(drawn.fingerprint, listed.fingerprint, "seed {seed}");
    }
}

#[test]
#[ignore = "prints the history of one SEED (7, incremental-7, repeated-7 or the file of a case): make simulate SEED=7"]
fn a_seed_is_shown() {
    let wanted = std::env::var("SEED").expect("SEED");
    let of_seed = |prefix: &str, case: fn(u64) -> Case| wanted.strip_prefix(prefix)?.parse().ok().map(case);
    let in_steps = || of_seed("incremental-", Case::in_steps);
    let again = || of_seed("repeated-", |seed| Case::again_and_again(seed, UPGRADES));
    let case = of_seed("", Case::of).or_else(in_steps).or_else(again).unwrap_or_else(|| Case::read(wanted.as_ref()));
    let report = run(&case, true);
    println!("{}", report.text);
    report.found.iter().for_each(|found| println!("{found}"));
    println!("{} requests in {:?}", report.requests, report.lasted);
}
