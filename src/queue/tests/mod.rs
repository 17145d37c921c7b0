//! Tests of the whole scheduler through its inputs and decisions.

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

/// Random cases for each property unless PROPTEST_CASES is set: a few seconds in an unoptimized
/// build.
const CASES: u32 = 100;

/// Returns a configuration with a fixed seed, so that the result of a commit is reproducible.
/// PROPTEST_RNG_SEED selects other cases.
fn config() -> Config {
    let is_set = |variable: &str| std::env::var_os(variable).is_some();
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if !is_set("PROPTEST_CASES") {
        config.cases = CASES;
    }
    if !is_set("PROPTEST_RNG_SEED") {
        config.rng_seed = RngSeed::Fixed(1);
    }
    config
}
