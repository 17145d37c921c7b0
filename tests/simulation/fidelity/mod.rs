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
            let outcome = match real.perform(&script, &Place::new(format!("s{seed}"))).await {
                Ok(outcome) => outcome,
                Err(error) => {
                    println!("{seed} {error}");
                    return;
                }
            };
            for (name, dump) in [("blocked", &outcome.blocked), ("unblocked", &outcome.unblocked)] {
                let all: Vec<_> = dump.values().collect();
                std::fs::write(format!("/tmp/fid/{seed}.{name}.yaml"), serde_saphyr::to_string(&all).unwrap()).unwrap();
            }
            let mut whole = script.clone();
            whole.steps.extend(
                script
                    .unblock()
                    .into_iter()
                    .map(|act| crate::script::step::Step { after: crate::script::step::Pause::Rest, act }),
            );
            let unmet =
                crate::script::expect::unmet(&whole, &Place::new(format!("s{seed}")), outcome.unblocked.values());
            println!("{seed} {unmet:?}");
            println!("{seed} {:?} {} steps {:?}", start.elapsed(), script.steps.len(), outcome.reasons.len());
        })
        .buffer_unordered(24)
        .collect::<Vec<()>>()
        .await;
}
