//! Bugs that were put in on purpose, each a patch of one line, to see whether they are found.
//!
//! The source is copied, patched and built beside the rest; the copy then runs its own simulation.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Within so many seeds each has to be found.
const SEEDS: u32 = 200;

/// A bug that was put in.
struct Planted {
    /// The invariant that it breaks.
    breaks: &'static str,
    /// The patch.
    patch: PathBuf,
}

/// All of them, by name.
fn planted() -> Vec<Planted> {
    let folder = root().join("tests/simulation/planted");
    let mut patches: Vec<PathBuf> = std::fs::read_dir(folder).expect("the patches").map(|entry| entry.expect("a patch").path()).collect();
    patches.sort();
    let breaks = |patch: &Path| {
        let name = patch.file_stem().expect("a name").to_string_lossy().into_owned();
        ["I1", "I2", "I3", "I4", "I5", "I7"].into_iter().find(|invariant| name.starts_with(invariant)).expect("I1-what.patch")
    };
    patches.into_iter().map(|patch| Planted { breaks: breaks(&patch), patch }).collect()
}

#[test]
#[ignore = "builds the whole once for each planted bug; make planted runs it"]
fn every_planted_bug_is_found() {
    let copy = root().join("target/planted");
    let mut missed = Vec::new();
    for bug in planted() {
        renew(&copy);
        succeed(Command::new("git").arg("apply").arg("--unidiff-zero").arg(&bug.patch).current_dir(&copy));

        let output = simulate(&copy);

        let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let first = told.lines().find(|line| line.trim_start().starts_with(bug.breaks));
        match first {
            Some(first) => println!("{}: {}", bug.patch.display(), first.trim()),
            None => missed.push(format!("{} in {SEEDS} seeds:\n{told}", bug.patch.display())),
        }
    }
    assert!(missed.is_empty(), "not found: {}", missed.join("\n"));
}

/// Makes the copy what the source is, leaving alone what hasn't changed, so that little is built anew.
fn renew(copy: &Path) {
    std::fs::create_dir_all(copy).expect("a folder for the copy");
    let from = format!("{}/", root().display());
    let parts = ["--include=/Cargo.*", "--include=/rustfmt.toml", "--include=/src/***", "--include=/tests/***", "--include=/benches/***"];
    let more = ["--include=/examples/***", "--include=/config/***", "--exclude=*"];
    let mut rsync = Command::new("rsync");
    succeed(rsync.args(["-a", "--checksum", "--delete"]).args(parts).args(more).arg(from).arg(copy));
    // Without a repository of its own, the patch would be applied to ours.
    succeed(Command::new("git").args(["init", "--quiet"]).current_dir(copy));
}

fn simulate(copy: &Path) -> Output {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--locked", "--offline", "--test", "simulation", "whatever_goes_wrong", "--", "--nocapture"]);
    cargo.env("SEEDS", SEEDS.to_string()).env("CARGO_TARGET_DIR", root().join("target"));
    cargo.current_dir(copy).output().expect("cargo")
}

fn succeed(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
