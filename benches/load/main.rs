//! `load`: measures a queue manager under load on a real API server, against the floor that the API
//! server sets, and checks at every change that quota is not exceeded.
//!
//! Only the API `kueue.x-k8s.io/v1beta2` is used, so that it works with any manager that serves it.
//! The parts that decide are pure: [`scenario`], [`plan`], [`progress`], [`report`] and [`ratios`]. The
//! [`session`] connects it to an API server.

#![allow(clippy::disallowed_methods, reason = "load is measured in real time")]
#![allow(unreachable_pub, reason = "in a binary, `pub` marks the interface between modules")]

mod api;
mod commands;
mod error;
mod objects;
mod observed;
mod plan;
mod plots;
mod process;
mod progress;
mod ratios;
mod report;
mod scenario;
mod session;
mod suite;

use std::process::ExitCode;

use clap::Parser;

use commands::CommandLine;

#[tokio::main]
async fn main() -> ExitCode {
    match commands::execute(CommandLine::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
