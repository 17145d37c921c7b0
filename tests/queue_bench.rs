//! The benchmark of the queue core, in small: it works, quota is never exceeded in it, and everyone finishes.

#[path = "../benches/queue/suite/mod.rs"]
mod suite;

use rstest::rstest;
use suite::{Scale, Shape};

#[rstest]
#[case::baseline(Shape::Baseline)]
#[case::large_scale(Shape::LargeScale)]
#[case::backlog(Shape::Backlog)]
#[case::fair_sharing(Shape::FairSharing)]
fn a_small_run_goes_to_its_end(#[case] shape: Shape) {
    let report = suite::run(shape, Scale(0.005)).unwrap_or_else(|error| panic!("{error}"));
    println!("{}", suite::table(&report));
}
