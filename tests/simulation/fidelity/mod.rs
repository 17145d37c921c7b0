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
mod simulated;

use std::collections::BTreeSet;
use std::path::PathBuf;

use futures::StreamExt;

use crate::chance::Chance;
use crate::script::expect::unmet;
use crate::script::generate::Shape;
use crate::script::manifests::Place;
use crate::script::step::{Act, Script};
use dump::Dump;
use normal::{normalised, without_numbers};
use real::Real;

/// What a script leaves behind.
struct Outcome {
    /// The objects before each step.
    between: Vec<Dump>,
    /// The objects after its last step.
    blocked: Dump,
    /// The objects after there was quota for everything.
    unblocked: Dump,
    /// What Sluice told in Events on the way.
    reasons: BTreeSet<String>,
}

/// How many scripts are performed if nobody says: as many as a few minutes allow.
const SCRIPTS: u64 = 24;
/// How many are performed at the same time on the real control plane.
const AT_ONCE: usize = 24;

/// So many orders of uids are tried for a script that differs.
const UID_ORDERS: u64 = 8;

/// What is wrong with one script, if anything.
async fn judged(real: &Real, seed: u64) -> Vec<String> {
    let script = Script::random(&Chance::new(seed), Shape::RESTING);
    let place = Place::new(format!("script{seed:04}"));
    let simulated = in_simulator(&script, &place, seed, None).await;
    let expected = simulated.as_ref().map_or_else(|_| BTreeSet::new(), |simulated| simulated.reasons.clone());
    match (real.perform(&script, &place, &expected).await, simulated) {
        (Ok(real), Ok(simulated)) => {
            let mut wrong = differences(&script, &place, &real, &simulated);
            for order in 0..UID_ORDERS {
                if wrong.is_empty() {
                    break;
                }
                // Among equals the lesser uid goes first, and a real API server's uids are in no order.
                if let Ok(other) = in_simulator(&script, &place, seed, Some(Chance::new(order))).await {
                    wrong = fewer(wrong, differences(&script, &place, &real, &other));
                }
            }
            wrong.extend(unmet(&script.unblocked(), &place, real.unblocked.values()));
            println!("script {seed}, {} steps: {:#?}", script.steps.len(), &wrong[..wrong.len().min(5)]);
            wrong
        }
        (real, simulated) => {
            let told = |side: &str, result: Result<_, String>| result.err().map(|error| format!("{side}: {error}"));
            told("really", real.map(drop)).into_iter().chain(told("simulated", simulated.map(drop))).collect()
        }
    }
}

async fn in_simulator(script: &Script, place: &Place, seed: u64, uids: Option<Chance>) -> Result<Outcome, String> {
    let (script, place) = (script.clone(), place.clone());
    let performed = tokio::task::spawn_blocking(move || simulated::perform(&script, &place, seed, uids));
    performed.await.expect("it doesn't panic")
}

/// Whichever is shorter.
fn fewer(one: Vec<String>, other: Vec<String>) -> Vec<String> {
    if other.len() < one.len() { other } else { one }
}

fn differences(script: &Script, place: &Place, real: &Outcome, simulated: &Outcome) -> Vec<String> {
    let between = real.between.iter().zip(&simulated.between).enumerate().map(|(step, (real, simulated))| {
        (format!("before step {step}"), [real, simulated].map(|dump| without_numbers(normalised(dump, place))))
    });
    let ends =
        [("in the end", &real.blocked, &simulated.blocked), ("unblocked", &real.unblocked, &simulated.unblocked)];
    let ends = ends
        .into_iter()
        .map(|(when, real, simulated)| (when.to_owned(), [real, simulated].map(|dump| normalised(dump, place))));
    let objects = between.chain(ends).flat_map(|(when, [real, simulated])| {
        let lines = difference::between(&real, &simulated);
        lines.into_iter().map(move |line| format!("{when}: {line}"))
    });
    // Of a service that is deleted in the foreground, the clusters are deleted by Sluice or by the garbage collector, whoever
    // is faster, and only one of them tells.
    let foreground = script.steps.iter().any(|step| matches!(step.act, Act::DeleteService { foreground: true, .. }));
    let either_way = |event: &&String| foreground && *event == "RayService DeletedRayCluster";
    let only = |side: &'static str, here: &BTreeSet<String>, there: &BTreeSet<String>| {
        let only = here.difference(there).filter(|event| !either_way(event));
        only.map(|event| format!("Event {event}: only {side}")).collect::<Vec<_>>()
    };
    let really = only("on the real control plane", &real.reasons, &simulated.reasons);
    objects.chain(really).chain(only("in the simulator", &simulated.reasons, &real.reasons)).collect()
}

/// Keeps a script in a file.
fn kept(seed: u64) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fidelity");
    let file = folder.join(format!("script-{seed}.yaml"));
    std::fs::create_dir_all(&folder).expect("a folder for scripts");
    let script = Script::random(&Chance::new(seed), Shape::RESTING);
    std::fs::write(&file, serde_saphyr::to_string(&script).expect("a script is plain data"))
        .expect("a file for a script");
    file
}

/// What is found wrong in many scripts: CONFORMANCE_SCRIPTS of them, from the seed CONFORMANCE_SEED on.
#[ignore = "needs the test environment: make fidelity runs it"]
#[tokio::test]
async fn a_script_leaves_the_same_on_a_real_control_plane() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let (first, count): (u64, u64) =
        (number("CONFORMANCE_SEED").unwrap_or(0), number("CONFORMANCE_SCRIPTS").unwrap_or(SCRIPTS));
    let real = &Real::start().await;
    let judging =
        futures::stream::iter(first..first + count).map(|seed| async move { (seed, judged(real, seed).await) });

    let wrong: Vec<_> =
        judging.buffer_unordered(AT_ONCE).filter(|(_, wrong)| std::future::ready(!wrong.is_empty())).collect().await;

    let told = wrong.iter().map(|(seed, wrong)| format!("{}:\n  {}\n", kept(*seed).display(), wrong.join("\n  ")));
    assert!(wrong.is_empty(), "{} of {count} scripts differ:\n{}", wrong.len(), told.collect::<String>());
}
