//! Tests of the whole scheduler through its inputs and decisions.

use proptest::test_runner::{Config, RngSeed};

mod admission;
mod behaviors;
mod cluster_properties;
mod conditions;
mod feasibility;
mod fixture;
mod generators;
mod limit_range_properties;
mod oracle;
mod oracle_comparison;
mod partial_preemption;
mod regressions;
mod single_queue_properties;
mod slices;

/// Random cases for each property unless PROPTEST_CASES is set: a few seconds in an unoptimized
/// build.
const DEFAULT_CASES: u32 = 100;

/// Returns a configuration with a fixed seed, so that the result of a commit is reproducible.
/// PROPTEST_RNG_SEED selects other cases.
fn proptest_config() -> Config {
    let is_set = |variable: &str| std::env::var_os(variable).is_some();
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if !is_set("PROPTEST_CASES") {
        config.cases = DEFAULT_CASES;
    }
    if !is_set("PROPTEST_RNG_SEED") {
        config.rng_seed = RngSeed::Fixed(1);
    }
    config
}
