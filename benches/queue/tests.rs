//! Small-scale runs of the scheduler benchmark: quota is never exceeded and every workload
//! finishes.

use rstest::rstest;
use sluice_bench::{Scale, Shape};

#[rstest]
#[case::baseline(Shape::Baseline)]
#[case::large_scale(Shape::LargeScale)]
#[case::backlog(Shape::Backlog)]
#[case::fair_sharing(Shape::FairSharing)]
fn small_run_completes(#[case] shape: Shape) {
    let report = sluice_bench::run(shape, Scale(0.005)).unwrap_or_else(|error| panic!("{error}"));
    println!("{}", sluice_bench::table(&report));
}
