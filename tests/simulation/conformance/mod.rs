//! Conformance of the simulator: the same scripts run in it and on a real control plane, and must
//! leave equal objects.

mod difference;
mod dump;
mod latency_probe;
mod names;
mod normalize;
mod observer;
mod quiescence;
mod real;
mod simulated;

use std::collections::BTreeSet;
use std::path::PathBuf;

use futures::StreamExt;

use crate::rng::SeededRandom;
use crate::script::expected_state::deviations;
use crate::script::generate::ScriptOptions;
use crate::script::manifests::ScriptNamespace;
use crate::script::step::{Script, UserAction};
use dump::Dump;
use normalize::{normalized, without_pending_numbers};
use real::RealControlPlane;

/// Objects and Events after a script.
struct ScriptOutcome {
    /// Objects before each step.
    before_steps: Vec<Dump>,
    /// Objects after the last step.
    blocked: Dump,
    /// Objects after the script was unblocked.
    unblocked: Dump,
    /// Kinds and reasons of the Events of Sluice.
    reasons: BTreeSet<String>,
}

/// Policy that neither side has: it rejects moves of services that hold quota to other queues, which
/// scripts make.
const REMOVED_POLICY: &str = "sluice-queue-names";
/// Default number of scripts, for a run of a few minutes.
const SCRIPTS: u64 = 24;
/// Number of scripts that run in parallel on the real control plane.
const PARALLELISM: usize = 24;

/// Number of uid orders to try for a script that differs.
const UID_ORDERS: u64 = 8;

/// Returns the differences of one script.
async fn compare_script(real: &RealControlPlane, seed: u64) -> Vec<String> {
    let script = Script::random(&SeededRandom::new(seed), ScriptOptions::QUIESCENT);
    let place = ScriptNamespace::new(format!("script{seed:04}"));
    let simulated = in_simulator(&script, &place, seed, None).await;
    let mut expected = simulated.as_ref().map_or_else(|_| BTreeSet::new(), |simulated| simulated.reasons.clone());
    expected.retain(|event| !may_go_unreported(event));
    match (real.execute(&script, &place, &expected).await, simulated) {
        (Ok(real), Ok(simulated)) => {
            let mut wrong = differences(&script, &place, &real, &simulated);
            for order in 0..UID_ORDERS {
                if wrong.is_empty() {
                    break;
                }
                // Ties are broken by uid, and the uids of a real API server are random.
                if let Ok(other) = in_simulator(&script, &place, seed, Some(SeededRandom::new(order))).await {
                    wrong = shorter(wrong, differences(&script, &place, &real, &other));
                }
            }
            wrong.extend(deviations(&script.with_unblocking(), &place, real.unblocked.values()));
            println!("script {seed}, {} steps: {:#?}", script.steps.len(), &wrong[..wrong.len().min(5)]);
            wrong
        }
        (real, simulated) => {
            let failure = |side: &str, result: Result<_, String>| result.err().map(|error| format!("{side}: {error}"));
            failure("real", real.map(drop)).into_iter().chain(failure("simulated", simulated.map(drop))).collect()
        }
    }
}

async fn in_simulator(
    script: &Script,
    place: &ScriptNamespace,
    seed: u64,
    uids: Option<SeededRandom>,
) -> Result<ScriptOutcome, String> {
    let (script, place) = (script.clone(), place.clone());
    let performed = tokio::task::spawn_blocking(move || simulated::execute(&script, &place, seed, uids));
    performed.await.expect("the simulation does not panic")
}

/// Reports whether an Event of the simulator may be missing on the real control plane: a wait for
/// preemption targets that stop at once ends before its condition, which gives way to decisions
/// (`src/engine/writes/write_budget.rs`), is written.
fn may_go_unreported(event: &str) -> bool {
    event.ends_with(" WaitingForPreemptedWorkloads")
}

/// Returns the shorter list.
fn shorter(one: Vec<String>, other: Vec<String>) -> Vec<String> {
    if other.len() < one.len() { other } else { one }
}

fn differences(
    script: &Script,
    place: &ScriptNamespace,
    real: &ScriptOutcome,
    simulated: &ScriptOutcome,
) -> Vec<String> {
    let between = real.before_steps.iter().zip(&simulated.before_steps).enumerate().map(|(step, (real, simulated))| {
        (format!("before step {step}"), [real, simulated].map(|dump| without_pending_numbers(normalized(dump, place))))
    });
    let ends =
        [("in the end", &real.blocked, &simulated.blocked), ("unblocked", &real.unblocked, &simulated.unblocked)];
    let ends = ends
        .into_iter()
        .map(|(when, real, simulated)| (when.to_owned(), [real, simulated].map(|dump| normalized(dump, place))));
    let objects = between.chain(ends).flat_map(|(when, [real, simulated])| {
        let lines = difference::between(&real, &simulated);
        lines.into_iter().map(move |line| format!("{when}: {line}"))
    });
    // In a foreground deletion, either Sluice or the garbage collector deletes the clusters, and
    // only Sluice emits Events.
    let foreground =
        script.steps.iter().any(|step| matches!(step.act, UserAction::DeleteService { foreground: true, .. }));
    let either_way = |event: &&String| foreground && *event == "RayService DeletedRayCluster";
    let only = |side: &'static str, here: &BTreeSet<String>, there: &BTreeSet<String>| {
        let only = here.difference(there).filter(|event| !either_way(event));
        only.map(|event| format!("Event {event}: only {side}")).collect::<Vec<_>>()
    };
    let real_only = only("on the real control plane", &real.reasons, &simulated.reasons);
    let mut expected = simulated.reasons.clone();
    expected.retain(|event| !may_go_unreported(event));
    objects.chain(real_only).chain(only("in the simulator", &expected, &real.reasons)).collect()
}

/// Writes a script to a file and returns its path.
fn write_script(seed: u64) -> PathBuf {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("conformance");
    let file = directory.join(format!("script-{seed}.yaml"));
    std::fs::create_dir_all(&directory).expect("the script directory can be created");
    let script = Script::random(&SeededRandom::new(seed), ScriptOptions::QUIESCENT);
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
    let real = &RealControlPlane::start().await;
    let judging =
        futures::stream::iter(first..first + count).map(|seed| async move { (seed, compare_script(real, seed).await) });

    let wrong: Vec<_> = judging
        .buffer_unordered(PARALLELISM)
        .filter(|(_, wrong)| std::future::ready(!wrong.is_empty()))
        .collect()
        .await;

    let failures =
        wrong.iter().map(|(seed, wrong)| format!("{}:\n  {}\n", write_script(*seed).display(), wrong.join("\n  ")));
    assert!(wrong.is_empty(), "{} of {count} scripts differ:\n{}", wrong.len(), failures.collect::<String>());
}
