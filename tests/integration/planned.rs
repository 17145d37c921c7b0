//! `sluice plan upgrade`: what it says of an upgrade on a real control plane comes true.

use std::path::Path;

use serde_json::{Value, json};
use sluice_api::condition;
use sluice_jobframework::upgrade_feasibility::UPGRADE_ADMISSIBLE;
use tokio::process::Command;

use crate::explain::{give, keep};
use sluice_testkit::env::{TestEnv, eventually, eventually_or_tell, sluice};
use sluice_testkit::objects::SERVICE_SAMPLE;

/// What the command prints, and the code that it exits with.
async fn plan(env: &TestEnv, file: &Path, arguments: &[&str]) -> (i32, String) {
    let mut command = Command::new(sluice());
    command.args(["plan", "upgrade", "--filename"]).arg(file).args(arguments).env("KUBECONFIG", &env.kubeconfig);
    let output = command.output().await.expect("an answer");
    let code = output.status.code().expect("it ends by itself");
    let said = if code == 1 { output.stderr } else { output.stdout };
    (code, String::from_utf8(said).expect("text"))
}

/// The same, to be read by a program.
async fn planned(env: &TestEnv, file: &Path, arguments: &[&str]) -> (i32, Value) {
    let (code, said) = plan(env, file, &[arguments, &["--output=json"]].concat()).await;
    (code, serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}")))
}

#[tokio::test]
async fn with_the_least_quota_of_the_plan_an_upgrade_goes_through_and_with_a_unit_less_it_waits() {
    // Given a service that serves with all the quota of its queue, and a manifest of its next version,
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    env.serves_from("2.52.0").await;
    let next = SERVICE_SAMPLE.replace("2.52.0", "2.53.0");
    let file = &env.dir.join("next.yaml");
    std::fs::write(file, &next).expect("a file");

    // when nothing is applied yet, then the plan says that it never fits, and what would be enough;
    let (code, told) = planned(&env, file, &[]).await;
    assert_eq!((code, &told["verdict"]), (4, &json!("never")), "{told}");
    let way = &told["ways"][0];
    assert_eq!((&way["strategy"], &way["asked"]), (&json!("NewCluster"), &json!(true)), "{told}");
    let needed: Vec<(&str, &str)> = way["leastQuota"]
        .as_array()
        .expect("a least quota")
        .iter()
        .map(|change| (change["resource"].as_str().unwrap_or_default(), change["to"].as_str().unwrap_or_default()))
        .collect();
    assert_eq!(needed, [("cpu", "2"), ("memory", "4Gi")], "{told}");
    let (_, text) = plan(&env, file, &[]).await;
    assert!(text.starts_with("RayService default/fruit: never\nRayCluster fruit-"), "{text}");
    assert!(text.contains("cpu 2 in default-flavor (now 1)"), "{text}");

    // and the same of the objects in files;
    let folder = env.dir.join("kept");
    keep(&env, &folder).await;
    let (code, of_files) = planned(&env, file, &["--from", folder.to_str().expect("a path")]).await;
    assert_eq!((code, &of_files), (4, &told));

    // with a unit less the upgrade waits,
    let mut less = way["leastQuota"].clone();
    less[0]["to"] = "1999m".into();
    give(&env, &less).await;
    env.apply(&next).await.expect("it is upgraded");
    eventually_or_tell("it never fits", async || {
        let conditions = env.service().await.status.unwrap_or_default().conditions;
        let found = condition::get(&conditions, UPGRADE_ADMISSIBLE).filter(|found| found.message.contains("1999m"));
        found.filter(|found| found.status == "False").map(drop).ok_or_else(|| format!("{conditions:?}"))
    })
    .await;
    assert_eq!(planned(&env, file, &[]).await.0, 4);

    // and with what the plan says it goes through.
    give(&env, &way["leastQuota"]).await;
    env.serves_from("2.53.0").await;
    let (code, told) = planned(&env, file, &[]).await;
    assert_eq!((code, &told["ways"][0]["strategy"]), (0, &json!("InPlace")), "there is nothing left to do: {told}");
}

#[tokio::test]
async fn an_upgrade_waits_for_others_and_a_manifest_without_a_service_is_refused() {
    // Given a service that serves, with room for another cluster of it, which another service has taken,
    let env = TestEnv::start().await;
    let _manager = env.manager().await;
    env.apply_samples().await;
    env.serves_from("2.52.0").await;
    let quota = |cpu: &str, memory: &str| {
        let change = |resource: &str, to: &str| json!({"clusterQueue": "team-a", "flavor": "default-flavor", "resource": resource, "to": to});
        json!([change("cpu", cpu), change("memory", memory)])
    };
    give(&env, &quota("2", "4Gi")).await;
    let file = &env.dir.join("next.yaml");
    std::fs::write(file, SERVICE_SAMPLE.replace("2.52.0", "2.53.0")).expect("a file");
    eventually("it fits", async || (planned(&env, file, &[]).await.0 == 0).then_some(())).await;
    env.apply(&SERVICE_SAMPLE.replace("name: fruit\n  namespace", "name: chat\n  namespace")).await.expect("another");

    // then an upgrade waits for that one, and needs quota beside it.
    let (_, told) = eventually_or_tell("it waits", async || {
        let (code, told) = planned(&env, file, &[]).await;
        if code == 3 { Ok((code, told)) } else { Err(told.to_string()) }
    })
    .await;
    assert!(told["why"].as_str().is_some_and(|why| why.contains("chat")), "{told}");
    assert_eq!(told["ways"][0]["leastQuota"][0]["to"], "3", "{told}");

    // And a manifest that is none of a service is refused by name.
    std::fs::write(file, "kind: RayService").expect("a file");
    let (code, said) = plan(&env, file, &[]).await;
    assert!(code == 1 && said.contains("next.yaml: an object has no apiVersion or kind"), "{said}");
}
