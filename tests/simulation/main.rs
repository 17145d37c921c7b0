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
#[path = "../integration/support/mod.rs"]
mod support;
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

#[test]
fn whatever_goes_wrong_the_invariants_hold() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse().expect(name));
    let (first, count): (u64, u64) = (number("FIRST").unwrap_or(0), number("SEEDS").unwrap_or(SEEDS));
    let begun = Instant::now();

    let summary = seeds::run_all(first..first + count, Case::of);

    println!("{}", summary.table(begun.elapsed()));
    let told: Vec<String> = summary.failed.iter().map(|(seed, report)| seeds::told(&Case::of(*seed), report)).collect();
    assert!(told.is_empty(), "{}", told.join("\n\n"));
    assert!(count < MANY || summary.rare().is_empty(), "too rare: {}", summary.rare().join(", "));
}

#[test]
fn whatever_goes_wrong_in_steps_the_invariants_hold() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse().expect(name));
    let (first, count): (u64, u64) = (number("STEPS_FIRST").unwrap_or(0), number("STEPS").unwrap_or(SEEDS));
    let begun = Instant::now();

    let summary = seeds::run_all(first..first + count, Case::in_steps);

    println!("{}", summary.table(begun.elapsed()));
    let told = summary.failed.iter().map(|(seed, report)| seeds::told(&Case::in_steps(*seed), report));
    let told: Vec<String> = told.collect();
    assert!(told.is_empty(), "{}", told.join("\n\n"));
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
#[ignore = "shows one seed (7, or steps-7) or the file of a case, SHOW, to a person: what was said over the wire, and what it broke"]
fn a_seed_is_shown() {
    let wanted = std::env::var("SHOW").expect("SHOW");
    let in_steps = wanted.strip_prefix("steps-").and_then(|seed| seed.parse().ok()).map(Case::in_steps);
    let of_seed = || wanted.parse().ok().map(Case::of);
    let case = in_steps.or_else(of_seed).unwrap_or_else(|| Case::read(wanted.as_ref()));
    let report = run(&case, true);
    println!("{}", report.text);
    report.found.iter().for_each(|found| println!("{found}"));
    println!("{} requests in {:?}", report.requests, report.lasted);
}
