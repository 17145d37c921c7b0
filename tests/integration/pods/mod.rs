//! Compares the objects created for RayClusters with those that KubeRay creates for the same
//! RayClusters (`tests/support/pod_corpus`). `differences.yaml` has the intentional differences and
//! their reasons.

use std::collections::BTreeSet;

use regex::Regex;
use serde::Deserialize;

use sluice_testkit::pod_corpus::{Facts, PodCorpus, diff, kuberay_facts, read};
use sluice_testkit::{TestEnv, eventually_or_err};

/// An intentional difference.
#[derive(Deserialize)]
struct IntendedDifference {
    /// Regular expression for the paths.
    at: String,
    /// The reason.
    #[serde(rename = "why")]
    _why: String,
}

#[tokio::test]
async fn clusters_get_the_same_objects_as_from_kuberay() {
    let corpus = PodCorpus::apply(TestEnv::start().await).await;
    let _manager = corpus.env.manager().await;
    let plain = kuberay_facts(&corpus.cases[0].name, &Facts::new());
    let differences: Vec<IntendedDifference> = read("differences.yaml");
    let places: Vec<Regex> = differences.iter().map(|known| Regex::new(&known.at).expect("an expression")).collect();

    let found = eventually_or_err("the objects are the same, except for intentional differences", async || {
        let ours = corpus.facts_by_cluster().await;
        let (mut found, mut others) = (BTreeSet::new(), Vec::new());
        for (name, (_, ours)) in &ours {
            let base = if *name == corpus.cases[0].name { Facts::new() } else { plain.clone() };
            for change in diff(&kuberay_facts(name, &base), ours).iter().map(|change| format!("{name} {change}")) {
                let known: Vec<usize> = (0..places.len()).filter(|known| places[*known].is_match(&change)).collect();
                if known.is_empty() {
                    others.push(change);
                }
                found.extend(known);
            }
        }
        if others.is_empty() { Ok(found) } else { Err(format!("\n{}", others.join("\n"))) }
    });
    let found = found.await;

    let stale = (0..places.len()).filter(|known| !found.contains(known)).map(|known| &differences[known].at);
    assert_eq!(stale.collect::<Vec<_>>(), Vec::<&String>::new(), "these differences no longer exist");
}
