//! Layers: crates that decide depend on no client, runtime or HTTP stack, not even through another crate.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::Failure;

/// Crates that decide: pure functions of values.
const DECIDING: &[&str] = &[
    "sluice-api",
    "sluice-plan",
    "sluice-queue",
    "sluice-raycluster",
    "sluice-rayservice",
    "sluice-jobframework",
    "sluice-engine",
    "sluice-inspect",
    "sluice-config",
];

/// Crates that do I/O, schedule tasks or read the wall clock.
const SHELL: &[&str] =
    &["axum", "hyper", "kube", "kube-client", "kube-runtime", "reqwest", "sluice-clock", "sluice-manager", "tokio"];

/// Returns every path from a deciding crate to a crate of the shell.
///
/// # Errors
/// If `cargo metadata` fails.
pub(crate) fn check(root: &Path) -> Result<Vec<String>, Failure> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(["metadata", "--format-version=1", "--locked"]).current_dir(root).output()?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let graph = dependencies(&serde_json::from_slice(&output.stdout)?);
    Ok(DECIDING.iter().flat_map(|name| crossings(&graph, name)).collect())
}

/// Returns the direct dependencies of each package by name, without those of tests and build scripts.
fn dependencies(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let names: BTreeMap<String, String> =
        list(&metadata["packages"]).iter().map(|package| (text(&package["id"]), text(&package["name"]))).collect();
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let Some(name) = names.get(&text(&node["id"])) else { continue };
        for dependency in list(&node["deps"]) {
            let is_normal = list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
            if let Some(target) = names.get(&text(&dependency["pkg"])).filter(|_| is_normal) {
                graph.entry(name.clone()).or_default().insert(target.clone());
            }
        }
    }
    graph
}

/// Returns one message for each crate of the shell that `from` reaches, with the path to it.
fn crossings(graph: &BTreeMap<String, BTreeSet<String>>, from: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut seen = BTreeSet::from([from.to_owned()]);
    let mut paths = vec![vec![from.to_owned()]];
    while let Some(path) = paths.pop() {
        let Some(last) = path.last() else { continue };
        for next in graph.get(last).into_iter().flatten() {
            if !seen.insert(next.clone()) {
                continue;
            }
            let longer: Vec<String> = path.iter().cloned().chain([next.clone()]).collect();
            if SHELL.contains(&next.as_str()) {
                problems.push(format!("{from} decides and may not depend on {next}: {}", longer.join(" -> ")));
            } else {
                paths.push(longer);
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_found_behind_another_crate() {
        let edge = |from: &str, to: &str| (from.to_owned(), BTreeSet::from([to.to_owned()]));
        let graph = BTreeMap::from([edge("sluice-queue", "helper"), edge("helper", "kube-client")]);
        let problems = crossings(&graph, "sluice-queue");
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].ends_with("sluice-queue -> helper -> kube-client"), "{problems:?}");
    }
}
