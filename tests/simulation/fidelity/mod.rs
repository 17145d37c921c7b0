//! Conformance of the simulator: the same scripts run in it and on a real control plane, and must
//! leave equal objects.

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

/// Objects and Events after a script.
struct Outcome {
    /// Objects before each step.
    between: Vec<Dump>,
    /// Objects after the last step.
    blocked: Dump,
    /// Objects after the script was unblocked.
    unblocked: Dump,
    /// Kinds and reasons of the Events of Sluice.
    reasons: BTreeSet<String>,
}

/// Default number of scripts, for a run of a few minutes.
const SCRIPTS: u64 = 24;
/// Number of scripts that run in parallel on the real control plane.
const AT_ONCE: usize = 24;

/// Number of uid orders to try for a script that differs.
const UID_ORDERS: u64 = 8;

/// Returns the differences of one script.
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
                // Ties are broken by uid, and the uids of a real API server are random.
                if let Ok(other) = in_simulator(&script, &place, seed, Some(Chance::new(order))).await {
                    wrong = fewer(wrong, differences(&script, &place, &real, &other));
                }
            }
            wrong.extend(unmet(&script.unblocked(), &place, real.unblocked.values()));
            println!("script {seed}, {} steps: {:#?}", script.steps.len(), &wrong[..wrong.len().min(5)]);
            wrong
        }
        (real, simulated) => {
            let failure = |side: &str, result: Result<_, String>| result.err().map(|error| format!("{side}: {error}"));
            failure("real", real.map(drop)).into_iter().chain(failure("simulated", simulated.map(drop))).collect()
        }
    }
}

async fn in_simulator(script: &Script, place: &Place, seed: u64, uids: Option<Chance>) -> Result<Outcome, String> {
    let (script, place) = (script.clone(), place.clone());
    let performed = tokio::task::spawn_blocking(move || simulated::perform(&script, &place, seed, uids));
    performed.await.expect("the simulation does not panic")
}

/// Returns the shorter list.
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
    // In a foreground deletion, either Sluice or the garbage collector deletes the clusters, and
    // only Sluice emits Events.
    let foreground = script.steps.iter().any(|step| matches!(step.act, Act::DeleteService { foreground: true, .. }));
    let either_way = |event: &&String| foreground && *event == "RayService DeletedRayCluster";
    let only = |side: &'static str, here: &BTreeSet<String>, there: &BTreeSet<String>| {
        let only = here.difference(there).filter(|event| !either_way(event));
        only.map(|event| format!("Event {event}: only {side}")).collect::<Vec<_>>()
    };
    let real_only = only("on the real control plane", &real.reasons, &simulated.reasons);
    objects.chain(real_only).chain(only("in the simulator", &simulated.reasons, &real.reasons)).collect()
}

/// Writes a script to a file and returns its path.
fn kept(seed: u64) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("conformance");
    let file = directory.join(format!("script-{seed}.yaml"));
    std::fs::create_dir_all(&directory).expect("the script directory can be created");
    let script = Script::random(&Chance::new(seed), Shape::RESTING);
    std::fs::write(&file, serde_saphyr::to_string(&script).expect("a script is plain data"))
        .expect("the script can be written");
    file
}

/// Compares CONFORMANCE_SCRIPTS scripts, from seed CONFORMANCE_SEED on.
#[ignore = "needs the test environment; run it with make conformance"]
#[tokio::test]
async fn a_script_leaves_equal_objects_on_a_real_control_plane() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let (first, count): (u64, u64) =
        (number("CONFORMANCE_SEED").unwrap_or(0), number("CONFORMANCE_SCRIPTS").unwrap_or(SCRIPTS));
    let real = &Real::start().await;
    let judging =
        futures::stream::iter(first..first + count).map(|seed| async move { (seed, judged(real, seed).await) });

    let wrong: Vec<_> =
        judging.buffer_unordered(AT_ONCE).filter(|(_, wrong)| std::future::ready(!wrong.is_empty())).collect().await;

    let failures = wrong.iter().map(|(seed, wrong)| format!("{}:\n  {}\n", kept(*seed).display(), wrong.join("\n  ")));
    assert!(wrong.is_empty(), "{} of {count} scripts differ:\n{}", wrong.len(), failures.collect::<String>());
}
