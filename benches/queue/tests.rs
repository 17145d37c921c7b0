//! The benchmark of the queue core, in small: it works, quota is never exceeded in it, and everyone finishes.

use rstest::rstest;
use sluice_bench::{Scale, Shape};

#[rstest]
#[case::baseline(Shape::Baseline)]
#[case::large_scale(Shape::LargeScale)]
#[case::backlog(Shape::Backlog)]
#[case::fair_sharing(Shape::FairSharing)]
fn a_small_run_goes_to_its_end(#[case] shape: Shape) {
    let report = sluice_bench::run(shape, Scale(0.005)).unwrap_or_else(|error| panic!("{error}"));
    println!("{}", sluice_bench::table(&report));
}
