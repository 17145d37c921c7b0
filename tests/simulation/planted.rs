//! Bugs that are put in on purpose, each a patch of one line, to see whether they are found.
//!
//! The source is copied, patched and built beside the rest; the copy then runs seeds until one breaks what the patch is to
//! break.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::seeds;

/// Within so many seeds each has to be found.
const SEEDS: u64 = 200;
/// Tells the copy which invariant its bug breaks.
const BREAKS: &str = "BREAKS";
/// What a copy is made of.
const PARTS: [&str; 8] =
    ["Cargo.toml", "Cargo.lock", "src", "tests", "benches", "examples", "config", "testenv/internal"];

#[test]
#[ignore = "builds everything once for each planted bug; make planted runs it"]
fn every_planted_bug_is_found() {
    let copy = root().join("target/planted");
    let mut patches: Vec<PathBuf> = entries(&root().join("tests/simulation/planted"));
    patches.sort();
    assert!(!patches.is_empty(), "there is nothing to find");
    let missed: Vec<String> = patches.iter().filter_map(|patch| missed(&copy, patch)).collect();
    assert!(missed.is_empty(), "not found: {}", missed.join("\n"));
}

#[test]
fn every_planted_bug_fits_the_source() {
    let patches = entries(&root().join("tests/simulation/planted"));
    for name in patches {
        let tried = apply(&name, root(), &["--dry-run"]);
        assert!(tried.status.success(), "{}: {}", name.display(), String::from_utf8_lossy(&tried.stdout));
    }
}

/// Plants a bug in the copy; what the copy says when it doesn't find it. Its name begins with the invariant that it breaks.
fn missed(copy: &Path, patch: &Path) -> Option<String> {
    let name = patch.file_stem().expect("a name").to_string_lossy().into_owned();
    let (breaks, _) = name.split_once('-').expect("I1-what-it-does.patch");
    fs::create_dir_all(copy).expect("a folder for the copy");
    PARTS.iter().for_each(|part| renew(&root().join(part), &copy.join(part)));
    let applied = apply(patch, copy, &[]);
    assert!(applied.status.success(), "{name}: {}", String::from_utf8_lossy(&applied.stdout));
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--locked", "--test", "simulation", "a_seed_breaks", "--", "--ignored", "--nocapture"]);
    // What is built for a few seconds of running isn't worth being optimised.
    cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_TARGET_DIR", root().join("target"));
    let output = cargo.env(BREAKS, breaks).current_dir(copy).output().expect("cargo");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    told.lines().filter(|line| line.starts_with("seed ")).for_each(|line| println!("{name}: {line}"));
    let found = output.status.success() && told.contains("\nseed ");
    (!found).then(|| format!("{name}:\n{told}{}", String::from_utf8_lossy(&output.stderr)))
}

fn apply(bug: &Path, to: &Path, flags: &[&str]) -> Output {
    let mut patch = Command::new("patch");
    patch.args(["--strip=1", "--silent"]).args(flags).arg("--input").arg(bug);
    patch.current_dir(to).output().expect("patch")
}

/// What the copy does.
#[test]
#[ignore = "fails where no bug is planted"]
fn a_seed_breaks() {
    let breaks = std::env::var(BREAKS).expect(BREAKS);
    let broken = seeds::first(0..SEEDS, |report| {
        let found = report.found.iter().find(|found| found.breach.invariant.to_string() == breaks);
        found.map(|found| found.breach.to_string())
    });
    let (seed, breach) = broken.unwrap_or_else(|| panic!("{SEEDS} seeds don't break {breaks}"));
    println!("\nseed {seed} finds it: {breach}");
}

/// Makes a file or folder what the source is, leaving alone what is the same, so that little is built anew.
fn renew(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir_all(to).expect("a folder of the copy");
        for gone in entries(to).iter().filter(|entry| !from.join(entry.file_name().expect("a name")).exists()) {
            if gone.is_dir() { fs::remove_dir_all(gone) } else { fs::remove_file(gone) }.expect("it can be removed");
        }
        for entry in entries(from) {
            renew(&entry, &to.join(entry.file_name().expect("a name")));
        }
        return;
    }
    let source = fs::read(from).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
    if fs::read(to).ok().as_ref() != Some(&source) {
        fs::write(to, source).unwrap_or_else(|error| panic!("{}: {error}", to.display()));
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn root() -> &'static Path {
    sluice_testkit::env::repository()
}
