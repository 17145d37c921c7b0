//! What happens: a service that fills its queue is upgraded in steps while quota is short, and goes through once there is more.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::screen::Screen;
use sluice_testkit::gateways::{Steps, service_in_steps};
use sluice_testkit::http::Http;
use sluice_testkit::load::{Load, version_of};
use sluice_testkit::objects::{QUEUE_SAMPLE, cluster_name};
use sluice_testkit::process_node::image;
use sluice_testkit::traefik::{ADDRESS, Traefik};
use sluice_testkit::{TestEnv, within};

/// How many requests come in a second.
pub const RATE: u32 = 20;
/// The version that serves first, and the one that it is upgraded to.
pub const VERSIONS: [&str; 2] = ["1", "2"];

/// How an upgrade goes: half of the capacity beside what serves, and a quarter of the traffic at a time.
const STEPS: Steps = Steps { surge: 50, step: 25 };
/// The time between two steps.
const INTERVAL_SECONDS: u32 = 6;
/// How many workers the service has, each with a replica of both deployments.
const WORKERS: u32 = 2;
/// What a head and two workers of one core each hold, and what the surge takes beside it: a head and one worker.
const QUOTA: (&str, &str) = ("3", "6Gi");
const MORE_QUOTA: (&str, &str) = ("5", "10Gi");
/// How long a cluster of Ray may take to serve on a small machine.
const START: Duration = Duration::from_secs(400);
/// For how long all is left as it is: to see what is usual before the upgrade, that it waits, and that nothing follows at the end.
const BEFORE: Duration = Duration::from_secs(20);
const WAITING: Duration = Duration::from_secs(20);
const AFTER: Duration = Duration::from_secs(12);

/// Where requests are sent.
pub fn url() -> String {
    format!("http://{ADDRESS}/fruit?amount=2")
}

/// Both versions of the application.
pub fn images() -> Value {
    let images = VERSIONS.map(|version| {
        let environment =
            [("FRUIT_VERSION", version), ("FRUIT_STARTUP_SECONDS", "2"), ("RAY_USAGE_STATS_ENABLED", "0")];
        (format!("fruit:{version}"), image(&environment))
    });
    Value::Object(images.into_iter().collect())
}

/// The queue, and the service that fills it; returns once that answers.
pub async fn serves(env: &TestEnv, screen: &Screen) {
    screen.title("1. A RayService fills its queue: a head of Ray and two workers, behind Traefik");
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota(QUOTA.0, QUOTA.1).await;
    env.apply(&service(VERSIONS[0]).to_string()).await.expect("the service");
    let http = Http::new();
    within(START, "the service answers", async || version_of(&http, &url()).await).await;
    within(START, "all of its workers serve", async || {
        let pods = env.pods_of(&active(env).await.ok_or("no cluster serves")?).await;
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        if ready == 1 + WORKERS as usize { Ok(()) } else { Err(format!("but {ready} pods are ready")) }
    })
    .await;
}

/// The upgrade, with requests coming in; returns from when on the gateway has sent all of them to the new version, as the load's time
/// goes. It takes a change in a while after it was made.
pub async fn is_upgraded(env: &TestEnv, traefik: &Traefik, load: &Load, screen: &Screen) -> Duration {
    screen.title(&format!("2. {RATE} requests a second"));
    sleep(BEFORE).await;
    screen.title("3. An upgrade in steps: a head and a worker more than there is quota for, so it waits");
    env.apply(&service(VERSIONS[1]).to_string()).await.expect("the service");
    let (pending, _) = env.waits_for_quota().await;
    sleep(WAITING).await;
    assert!(env.pods_of(&pending).await.is_empty(), "the pending cluster has no pod");

    screen.title(&format!(
        "4. Quota is raised to {} CPU and {}: it goes through, a step at a time",
        MORE_QUOTA.0, MORE_QUOTA.1
    ));
    env.set_quota(MORE_QUOTA.0, MORE_QUOTA.1).await;
    within(START, "the new version is promoted", async || {
        let active = active(env).await;
        if active.as_ref() == Some(&pending) { Ok(()) } else { Err(format!("but {active:?}")) }
    })
    .await;
    let switched = within(START, "the gateway sends everything to the new version", async || {
        let (share, _) = traefik.sends(&pending).await?;
        if share == 100 { Ok(load.elapsed()) } else { Err(format!("but {share} %")) }
    })
    .await;
    screen.title("5. The new version serves alone; the old cluster goes after its delay, and its quota is released");
    env.only_cluster(&pending).await;
    env.reserves_cpu(QUOTA.0).await;
    env.one_slice_is_left().await;
    sleep(AFTER).await;
    switched
}

/// The cluster that serves, as the service says.
async fn active(env: &TestEnv) -> Option<String> {
    cluster_name(env.service().await.status?.active_service_status.as_ref())
}

fn is_ready(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|of| of.type_ == "Ready" && of.status == "True")
}

/// The service with this version of its application. Its head runs no replica of Serve, as one that is to last; each worker has the
/// core that a replica of both deployments takes.
fn service(version: &str) -> Value {
    let mut service = service_in_steps(STEPS);
    let spec = &mut service["spec"];
    spec["upgradeStrategy"]["clusterUpgradeOptions"]["intervalSeconds"] = INTERVAL_SECONDS.into();
    let deployments = ["MangoStand", "FruitMarket"]
        .map(|name| json!({"name": name, "num_replicas": WORKERS, "ray_actor_options": {"num_cpus": 0.5}}));
    let application = json!({
        "name": "fruit", "import_path": "fruit:deployment_graph", "route_prefix": "/fruit", "deployments": deployments,
    });
    spec["serveConfigV2"] = json!({"applications": [application]}).to_string().into();
    let cluster = &mut spec["rayClusterConfig"];
    cluster["headGroupSpec"]["rayStartParams"] = json!({"num-cpus": "0"});
    cluster["workerGroupSpecs"][0]["replicas"] = WORKERS.into();
    let resources = json!({"cpu": "1", "memory": "2Gi"});
    for group in ["/headGroupSpec", "/workerGroupSpecs/0"] {
        let container = cluster.pointer_mut(&format!("{group}/template/spec/containers/0")).expect("a container");
        container["image"] = format!("fruit:{version}").into();
        container["resources"] = json!({"requests": resources, "limits": resources});
    }
    service
}
