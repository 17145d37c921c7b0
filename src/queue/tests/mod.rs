//! Tests of the queue as a whole, through its events and effects.

use proptest::test_runner::{Config, RngSeed};

mod additions;
mod behaviours;
mod conditions;
mod fixture;
mod histories;
mod oracle;
mod parts;
mod properties;
mod prospects;
mod random;
mod regressions;
mod rules;
mod slices;
mod worlds;

/// How many random worlds each property is tried on, unless PROPTEST_CASES says so: what takes an unoptimised build seconds.
const CASES: u32 = 100;

/// The same worlds on every run, so that a commit passes or does not. PROPTEST_RNG_SEED makes others.
fn config() -> Config {
    let named = |variable: &str| std::env::var_os(variable).is_some();
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if !named("PROPTEST_CASES") {
        config.cases = CASES;
    }
    if !named("PROPTEST_RNG_SEED") {
        config.rng_seed = RngSeed::Fixed(1);
    }
    config
}
