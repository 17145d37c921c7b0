//! `sluice plan upgrade`: its predictions hold on a real control plane.

use std::path::Path;

use serde_json::{Value, json};
use sluice_api::condition;
use sluice_jobframework::upgrade_feasibility::UPGRADE_ADMISSIBLE;
use tokio::process::Command;

use crate::explain::{apply_quotas, dump_objects};
use sluice_testkit::env::{TestEnv, eventually, eventually_or_err, sluice_binary};
use sluice_testkit::objects::SERVICE_SAMPLE;

/// Runs the command. Returns its exit code, and stderr for exit code 1 or else stdout.
async fn run_plan(env: &TestEnv, file: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(sluice_binary());
    command.args(["plan", "upgrade", "--filename"]).arg(file).args(arguments).env("KUBECONFIG", &env.kubeconfig);
    let output = command.output().await.expect("an answer");
    let code = output.status.code().expect("it ends by itself");
    let output_text = if code == 1 { output.stderr } else { output.stdout };
    (code, String::from_utf8(output_text).expect("text"))
}

/// Runs the command with JSON output.
async fn run_plan_json(env: &TestEnv, file: &Path, arguments: &[&str]) -> (i32, Value) {
    let (code, output_text) = run_plan(env, file, &[arguments, &["--output=json"]].concat()).await;
    (code, serde_json::from_str(&output_text).unwrap_or_else(|error| panic!("{error}: {output_text}")))
}

#[tokio::test]
async fn upgrade_completes_with_the_planned_min_quota_and_waits_with_one_unit_less() {
    // Given a service that uses all the quota of its queue, and a manifest of its next version,
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    env.wait_until_serving("2.52.0").await;
    let next = SERVICE_SAMPLE.replace("2.52.0", "2.53.0");
    let file = &env.dir.join("next.yaml");
    std::fs::write(file, &next).expect("a file");

    // when nothing is applied yet, then the plan reports that it never fits, and the quota it
    // needs;
    let (code, plan_json) = run_plan_json(&env, file, &[]).await;
    assert_eq!((code, &plan_json["verdict"]), (4, &json!("never")), "{plan_json}");
    let strategy = &plan_json["strategies"][0];
    assert_eq!((&strategy["strategy"], &strategy["requested"]), (&json!("NewCluster"), &json!(true)), "{plan_json}");
    let needed: Vec<(&str, &str)> = strategy["minQuota"]
        .as_array()
        .expect("a least quota")
        .iter()
        .map(|change| (change["resource"].as_str().unwrap_or_default(), change["to"].as_str().unwrap_or_default()))
        .collect();
    assert_eq!(needed, [("cpu", "2"), ("memory", "4Gi")], "{plan_json}");
    let (_, text) = run_plan(&env, file, &[]).await;
    assert!(text.starts_with("RayService default/fruit: never\nActive RayCluster fruit-"), "{text}");
    assert!(text.contains("cpu 2 in default-flavor (now 1)"), "{text}");

    // and reports the same for the objects in files;
    let folder = env.dir.join("kept");
    dump_objects(&env, &folder).await;
    let (code, of_files) = run_plan_json(&env, file, &["--from", folder.to_str().expect("a path")]).await;
    assert_eq!((code, &of_files), (4, &plan_json));

    // with one unit less the upgrade waits,
    let mut less = strategy["minQuota"].clone();
    less[0]["to"] = "1999m".into();
    apply_quotas(&env, &less).await;
    env.apply(&next).await.expect("it is upgraded");
    eventually_or_err("the upgrade exceeds the quota", async || {
        let conditions = env.get_service().await.status.unwrap_or_default().conditions;
        let found = condition::get(&conditions, UPGRADE_ADMISSIBLE).filter(|found| found.message.contains("1999m"));
        found.filter(|found| found.status == "False").map(drop).ok_or_else(|| format!("{conditions:?}"))
    })
    .await;
    assert_eq!(run_plan_json(&env, file, &[]).await.0, 4);

    // and with the planned quota it completes.
    apply_quotas(&env, &strategy["minQuota"]).await;
    env.wait_until_serving("2.53.0").await;
    let (code, plan_json) = run_plan_json(&env, file, &[]).await;
    assert_eq!(
        (code, &plan_json["strategies"][0]["strategy"]),
        (0, &json!("InPlace")),
        "no change is left: {plan_json}"
    );
}

#[tokio::test]
async fn plan_reports_competing_service_and_rejects_manifest_without_service() {
    // Given a service with quota for a second cluster, which another service uses,
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    env.wait_until_serving("2.52.0").await;
    let quota = |cpu: &str, memory: &str| {
        let change = |resource: &str, to: &str| json!({"clusterQueue": "team-a", "flavor": "default-flavor", "resource": resource, "to": to});
        json!([change("cpu", cpu), change("memory", memory)])
    };
    apply_quotas(&env, &quota("2", "4Gi")).await;
    let file = &env.dir.join("next.yaml");
    std::fs::write(file, SERVICE_SAMPLE.replace("2.52.0", "2.53.0")).expect("a file");
    eventually("it fits", async || (run_plan_json(&env, file, &[]).await.0 == 0).then_some(())).await;
    env.apply(&SERVICE_SAMPLE.replace("name: fruit\n  namespace", "name: chat\n  namespace")).await.expect("another");

    // then an upgrade waits for that service, and the planned quota comes on top of it.
    let (_, plan_json) = eventually_or_err("the upgrade waits for the other service", async || {
        let (code, plan_json) = run_plan_json(&env, file, &[]).await;
        if code == 3 { Ok((code, plan_json)) } else { Err(plan_json.to_string()) }
    })
    .await;
    assert!(plan_json["message"].as_str().is_some_and(|why| why.contains("chat")), "{plan_json}");
    assert_eq!(plan_json["strategies"][0]["minQuota"][0]["to"], "3", "{plan_json}");

    // And a manifest without a service is rejected with its file name.
    std::fs::write(file, "kind: RayService").expect("a file");
    let (code, output_text) = run_plan(&env, file, &[]).await;
    assert!(code == 1 && output_text.contains("next.yaml: an object has no apiVersion or kind"), "{output_text}");
}
