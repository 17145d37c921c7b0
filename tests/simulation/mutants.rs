//! Mutation tests: one-line patches that introduce a bug, which the simulator must find.
//!
//! The test copies the source, applies a patch and builds the copy. The copy runs seeds until one
//! violates the invariant that the patch targets.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::case::Case;
use crate::seeds;

/// Number of seeds within which each mutant must be found.
const SEEDS: u64 = 2000;
/// Environment variable that names the invariant the mutant violates.
const INVARIANT_ENV: &str = "BREAKS";
/// Environment variable that names the histories that find the mutant: `job` or `cluster`, or ordinary
/// ones if it is not set.
const HISTORIES_ENV: &str = "MUTANT_OF";
/// Files and directories of the copy.
const SOURCES: [&str; 9] =
    ["Cargo.toml", "Cargo.lock", "src", "tests", "benches", "examples", "config", "testenv/internal", "xtask"];

#[test]
#[ignore = "builds everything once per mutant; run it with make mutants"]
fn every_mutant_is_found() {
    let copy = repository_root().join("target/mutants");
    let mut patches: Vec<PathBuf> = entries(&repository_root().join("tests/simulation/mutants"));
    patches.sort();
    assert!(!patches.is_empty(), "there are no mutants");
    let missed: Vec<String> = patches.iter().filter_map(|patch| run_mutant(&copy, patch)).collect();
    assert!(missed.is_empty(), "not found: {}", missed.join("\n"));
}

#[test]
fn every_mutant_applies_to_the_source() {
    let patches = entries(&repository_root().join("tests/simulation/mutants"));
    for name in patches {
        let tried = apply(&name, repository_root(), &["--dry-run"]);
        assert!(tried.status.success(), "{}: {}", name.display(), String::from_utf8_lossy(&tried.stdout));
    }
}

/// Runs the copy with one mutant. Returns the output if the mutant was not found, else None. The
/// file name of a mutant begins with the invariant that it violates, and goes on with `job-` or `cluster-` if
/// histories of Jobs or of RayClusters find it.
fn run_mutant(copy: &Path, patch: &Path) -> Option<String> {
    let name = patch.file_stem().expect("a name").to_string_lossy().into_owned();
    let (breaks, description) = name.split_once('-').expect("a name like I1-description.patch");
    fs::create_dir_all(copy).expect("the directory of the copy can be created");
    SOURCES.iter().for_each(|part| sync(&repository_root().join(part), &copy.join(part)));
    let applied = apply(patch, copy, &[]);
    assert!(applied.status.success(), "{name}: {}", String::from_utf8_lossy(&applied.stdout));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "test",
        "--locked",
        "--workspace",
        "--test",
        "simulation",
        "a_seed_violates_the_invariant",
        "--",
        "--ignored",
        "--nocapture",
    ]);
    // The build runs for a few seconds only, so it is not optimized.
    cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_TARGET_DIR", repository_root().join("target"));
    let of = ["job", "cluster"].into_iter().find(|of| description.starts_with(&format!("{of}-")));
    cargo.envs(of.map(|of| (HISTORIES_ENV, of)));
    let output = cargo.env(INVARIANT_ENV, breaks).current_dir(copy).output().expect("cargo");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    stdout.lines().filter(|line| line.starts_with("seed ")).for_each(|line| println!("{name}: {line}"));
    let found = output.status.success() && stdout.contains("\nseed ");
    (!found).then(|| format!("{name}:\n{stdout}{}", String::from_utf8_lossy(&output.stderr)))
}

fn apply(bug: &Path, to: &Path, flags: &[&str]) -> Output {
    let mut patch = Command::new("patch");
    patch.args(["--strip=1", "--fuzz=0", "--silent"]).args(flags).arg("--input").arg(bug);
    patch.current_dir(to).output().expect("patch")
}

/// Runs in the copy: finds a seed that violates the invariant of the mutant.
#[test]
#[ignore = "fails unless the source is a mutant"]
fn a_seed_violates_the_invariant() {
    let breaks = std::env::var(INVARIANT_ENV).expect(INVARIANT_ENV);
    let case = match std::env::var(HISTORIES_ENV).as_deref() {
        Ok("job") => Case::jobs,
        Ok("cluster") => Case::clusters,
        _ => Case::from_seed,
    };
    let broken = seeds::find_seed(0..SEEDS, case, |report| {
        let found = report.violations.iter().find(|found| found.violation.invariant.to_string() == breaks);
        found.map(|found| found.violation.to_string())
    });
    let (seed, breach) = broken.unwrap_or_else(|| panic!("no violation of {breaks} in {SEEDS} seeds"));
    println!("\nseed {seed} finds it: {breach}");
}

/// Copies a file or directory. Files with equal content are not rewritten, so that little is
/// rebuilt.
fn sync(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).expect("a directory of the copy can be created");
        for gone in entries(to).iter().filter(|entry| !from.join(entry.file_name().expect("a name")).exists()) {
            if gone.is_dir() { fs::remove_dir_all(gone) } else { fs::remove_file(gone) }.expect("it can be removed");
        }
        for entry in entries(from) {
            sync(&entry, &to.join(entry.file_name().expect("a name")));
        }
        return;
    }
    let source = fs::read(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    if fs::read(to).ok().as_ref() != Some(&source) {
        fs::write(to, source).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
    }
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn repository_root() -> &'static Path {
    sluice_testkit::env::repository_root()
}
