//! `cargo bench --bench queue -- [SHAPE...] [--scale FACTOR]`: scheduler benchmark of speed and
//! decision quality.

use std::process::ExitCode;

use clap::Parser;
use sluice_bench::{Scale, Shape};

/// Benchmark the scheduler.
#[derive(Debug, Parser)]
struct Options {
    /// Shapes to run; all if omitted.
    shapes: Vec<Shape>,
    /// Fraction of each shape to run, above 0 and at most 1.
    #[arg(long, default_value_t = 1.0, value_parser = factor)]
    scale: f64,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor: f64 = text.parse().map_err(|error| format!("{error}"))?;
    if factor > 0.0 && factor <= 1.0 { Ok(factor) } else { Err("must be above 0 and at most 1".to_owned()) }
}

fn main() -> ExitCode {
    let options = Options::parse();
    let all = [Shape::Baseline, Shape::LargeScale, Shape::Backlog, Shape::FairSharing];
    let shapes = if options.shapes.is_empty() { all.to_vec() } else { options.shapes };
    for shape in shapes {
        match sluice_bench::run(shape, Scale(options.scale)) {
            Ok(report) => println!("{}", sluice_bench::table(&report)),
            Err(error) => {
                eprintln!("{shape:?}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
