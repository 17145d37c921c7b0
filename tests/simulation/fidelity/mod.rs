//! Whether the simulator is what it pretends to be: the same scripts are performed in it and on a real control plane, and
//! have to leave the same objects.

mod canary;
mod dump;
mod observer;
mod real;
mod rest;

use std::collections::BTreeSet;

use futures::StreamExt;

use crate::chance::Chance;
use crate::script::generate::Shape;
use crate::script::manifests::Place;
use crate::script::step::Script;
use dump::Dump;
use real::Real;

/// What a script leaves behind.
struct Outcome {
    /// The objects after its last step.
    blocked: Dump,
    /// The objects after there was quota for everything.
    unblocked: Dump,
    /// What Sluice told in Events on the way.
    reasons: BTreeSet<String>,
}

#[ignore = "a look at the real side"]
#[tokio::test]
async fn peek() {
    let real = Real::start().await;
    let first: u64 = std::env::var("FIDELITY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let count: u64 = std::env::var("FIDELITY_SCRIPTS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let real = &real;
    let start = std::time::Instant::now();
    futures::stream::iter(first..first + count)
        .map(|seed| async move {
            let script = Script::random(&Chance::new(seed), Shape::RESTING);
            std::fs::write(format!("/tmp/fid/{seed}.script.yaml"), serde_saphyr::to_string(&script).unwrap()).unwrap();
            let outcome = real.perform(&script, &Place::new(format!("s{seed}"))).await;
            for (name, dump) in [("blocked", &outcome.blocked), ("unblocked", &outcome.unblocked)] {
                let all: Vec<_> = dump.values().collect();
                std::fs::write(format!("/tmp/fid/{seed}.{name}.yaml"), serde_saphyr::to_string(&all).unwrap()).unwrap();
            }
            println!("{seed} {:?} {} steps {:?}", start.elapsed(), script.steps.len(), outcome.reasons);
        })
        .buffer_unordered(24)
        .collect::<Vec<()>>()
        .await;
}
