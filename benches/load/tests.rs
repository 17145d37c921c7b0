//! Small runs of the tool against a manager: quota is never exceeded, preempted Workloads run
//! again, RayServices are upgraded, and every file is written.

use std::path::{Path, PathBuf};

use serde_json::Value;
use sluice_testkit::{TestEnv, TestEnvOptions};
use tokio::process::Command;

const SCENARIO: &str = "
shortScale: 1
cohorts:
  count: 1
  clusterQueues:
    count: 2
    nominalCpu: 4
    preemption: {reclaimWithinCohort: Any, withinClusterQueue: LowerPriority}
classes:
- {name: low, count: 10, cpu: 1, run: 300ms}
- {name: high, count: 1, cpu: 4, priority: 1, run: 100ms, after: {class: low, is: created}}
";

#[tokio::test]
async fn small_run_completes() {
    let env = TestEnv::start_with(TestEnvOptions { flags: &["--nodes=0"], ..TestEnvOptions::default() }).await;
    let scenario = env.dir.join("small.yaml");
    std::fs::write(&scenario, SCENARIO).expect("the scenario");

    let output = run(&env, &scenario, "1").await;

    let report = read_report(&output.join("small-run.json"));
    assert_eq!((&report["objects"], &report["finished"]), (&22.into(), &22.into()), "{report}");
    for chart in ["admission", "quota", "requests", "memory"] {
        assert!(output.join(format!("small-run-{chart}.svg")).is_file(), "no chart of {chart}");
    }
}

#[tokio::test]
async fn rayservices_start_and_are_upgraded() {
    let env = TestEnv::start().await;

    let scenario = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/services.yaml");
    let output = run(&env, &scenario, "0.004").await;

    let report = read_report(&output.join("services-run.json"));
    let classes = report["timeToAdmission"].as_array().expect("the classes").iter();
    let admitted: Vec<_> = classes.map(|class| (class["class"].as_str(), class["admitted"].as_u64())).collect();
    assert_eq!(admitted, [(Some("service"), Some(2)), (Some("upgrade"), Some(2))], "{report}");
}

/// Runs a part of a scenario with a manager; returns the folder of the results.
async fn run(env: &TestEnv, scenario: &Path, scale: &str) -> PathBuf {
    let manager = env.manager().await;
    let output = env.dir.join("load");
    let mut command = Command::new(env!("CARGO_BIN_EXE_load"));
    command.arg("run").arg(scenario).args(["--scale", scale]).arg("--kubeconfig").arg(&env.kubeconfig);
    command.args(["--manager-pid", &manager.id().to_string(), "--timeout=1m", "--output"]).arg(&output);
    let finished = command.output().await.expect("the tool");
    assert!(finished.status.success(), "{}", String::from_utf8_lossy(&finished.stderr));
    output
}

fn read_report(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).expect("a report")
}
