//! Whether the simulator is what it pretends to be: the same scripts are performed in it and on a real control plane, and
//! have to leave the same objects.

mod canary;
mod difference;
mod dump;
mod names;
mod normal;
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
            let places = ["a", "b"].map(|side| Place::new(format!("script{seed:04}{side}")));
            let (one, two) = tokio::join!(real.perform(&script, &places[0]), real.perform(&script, &places[1]));
            let (one, two) = match (one, two) {
                (Ok(one), Ok(two)) => (one, two),
                (one, two) => {
                    println!("{seed} {:?} {:?}", one.err(), two.err());
                    return;
                }
            };
            let mut whole = script.clone();
            whole.steps.extend(
                script
                    .unblock()
                    .into_iter()
                    .map(|act| crate::script::step::Step { after: crate::script::step::Pause::Rest, act }),
            );
            let unmet = crate::script::expect::unmet(&whole, &places[0], one.unblocked.values());
            println!("{seed} {unmet:?} {:?} {} steps", start.elapsed(), script.steps.len());
            for (name, a, b) in [("blocked", &one.blocked, &two.blocked), ("unblocked", &one.unblocked, &two.unblocked)]
            {
                let all: Vec<_> = a.values().collect();
                std::fs::write(format!("/tmp/fid/{seed}.{name}.a.yaml"), serde_saphyr::to_string(&all).unwrap())
                    .unwrap();
                let all: Vec<_> = b.values().collect();
                std::fs::write(format!("/tmp/fid/{seed}.{name}.b.yaml"), serde_saphyr::to_string(&all).unwrap())
                    .unwrap();
                for line in difference::between(&normal::normalised(a, &places[0]), &normal::normalised(b, &places[1]))
                {
                    println!("{seed} {name} {line}");
                }
            }
            for only in one.reasons.symmetric_difference(&two.reasons) {
                println!("{seed} event {only}");
            }
        })
        .buffer_unordered(12)
        .collect::<Vec<()>>()
        .await;
}
