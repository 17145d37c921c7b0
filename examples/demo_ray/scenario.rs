//! The scenario: a service that uses all of its queue's quota is upgraded incrementally. The
//! upgrade waits for quota, and completes once it is raised.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use crate::screen::Screen;
use sluice_testkit::fake_gateway::{IncrementalOptions, incremental_service};
use sluice_testkit::http::HttpClient;
use sluice_testkit::load::{LoadGenerator, request_version};
use sluice_testkit::objects::{QUEUE_SAMPLE, cluster_name};
use sluice_testkit::process_node::ray_image;
use sluice_testkit::traefik::{GATEWAY_ADDRESS, Traefik};
use sluice_testkit::{TestEnv, poll_until};

/// Requests per second.
pub const REQUESTS_PER_SECOND: u32 = 20;
/// Application versions before and after the upgrade.
pub const VERSIONS: [&str; 2] = ["1", "2"];

/// Upgrade options: a surge of half the capacity, and a quarter of the traffic per step.
const OPTIONS: IncrementalOptions = IncrementalOptions { surge: 50, step_size: 25 };
/// Time between two steps, in seconds.
const INTERVAL_SECONDS: u32 = 6;
/// Number of workers, each with a replica of both deployments.
const WORKERS: u32 = 2;
/// CPU and memory of a head and two workers of one core each.
const INITIAL_QUOTA: (&str, &str) = ("3", "6Gi");
/// Quota with the surge: another head and one worker.
const RAISED_QUOTA: (&str, &str) = ("5", "10Gi");
/// Timeout for a Ray cluster to serve on a small machine.
const START_TIMEOUT: Duration = Duration::from_secs(400);
/// Observation periods: the baseline before the upgrade, the pending upgrade, and the end.
const BASELINE_PERIOD: Duration = Duration::from_secs(20);
const PENDING_PERIOD: Duration = Duration::from_secs(20);
const FINAL_PERIOD: Duration = Duration::from_secs(12);

/// Returns the URL of the requests.
pub fn request_url() -> String {
    format!("http://{GATEWAY_ADDRESS}/fruit?amount=2")
}

/// Returns the images of both versions of the application.
pub fn images() -> Value {
    let images = VERSIONS.map(|version| {
        let environment =
            [("FRUIT_VERSION", version), ("FRUIT_STARTUP_SECONDS", "2"), ("RAY_USAGE_STATS_ENABLED", "0")];
        (format!("fruit:{version}"), ray_image(&environment))
    });
    Value::Object(images.into_iter().collect())
}

/// Creates the queue and the service. Returns once the service answers with all workers.
pub async fn start_service(env: &TestEnv, screen: &Screen) {
    screen.title("1. A RayService uses all of its queue's quota: a Ray head and two workers, behind Traefik");
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota(INITIAL_QUOTA.0, INITIAL_QUOTA.1).await;
    env.apply(&service(VERSIONS[0]).to_string()).await.expect("the service");
    let http = HttpClient::new();
    poll_until(START_TIMEOUT, "the service answers", async || request_version(&http, &request_url()).await).await;
    poll_until(START_TIMEOUT, "all of its workers are ready", async || {
        let pods = env.pods_of(&active_cluster(env).await.ok_or("no active cluster")?).await;
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        if ready == 1 + WORKERS as usize { Ok(()) } else { Err(format!("but {ready} pods are ready")) }
    })
    .await;
}

/// Runs the upgrade under load. Returns the load time at which the gateway had switched to the new
/// version, which lags behind the HTTPRoute.
pub async fn run_upgrade(env: &TestEnv, traefik: &Traefik, load: &LoadGenerator, screen: &Screen) -> Duration {
    screen.title(&format!("2. {REQUESTS_PER_SECOND} requests per second"));
    sleep(BASELINE_PERIOD).await;
    screen.title("3. An incremental upgrade: it needs a head and a worker more than the quota, so it is pending");
    env.apply(&service(VERSIONS[1]).to_string()).await.expect("the service");
    let (pending, _) = env.wait_for_pending_upgrade().await;
    sleep(PENDING_PERIOD).await;
    assert!(env.pods_of(&pending).await.is_empty(), "the pending cluster has no pod");

    screen.title(&format!(
        "4. Quota is raised to {} CPU and {}: the upgrade completes step by step",
        RAISED_QUOTA.0, RAISED_QUOTA.1
    ));
    env.set_quota(RAISED_QUOTA.0, RAISED_QUOTA.1).await;
    poll_until(START_TIMEOUT, "the new version is promoted", async || {
        let active = active_cluster(env).await;
        if active.as_ref() == Some(&pending) { Ok(()) } else { Err(format!("but {active:?}")) }
    })
    .await;
    let switched = poll_until(START_TIMEOUT, "the gateway sends everything to the new version", async || {
        let (share, _) = traefik.routing_to(&pending).await?;
        if share == 100 { Ok(load.elapsed()) } else { Err(format!("but {share}%")) }
    })
    .await;
    screen.title(
        "5. The new version serves alone; the old cluster is deleted after its delay, and its quota is released",
    );
    env.wait_for_only_cluster(&pending).await;
    env.wait_for_reserved_cpu(INITIAL_QUOTA.0).await;
    env.wait_for_single_slice().await;
    sleep(FINAL_PERIOD).await;
    switched
}

/// Returns the active cluster in the service's status.
async fn active_cluster(env: &TestEnv) -> Option<String> {
    cluster_name(env.get_service().await.status?.active_service_status.as_ref())
}

fn is_ready(pod: &k8s_openapi::api::core::v1::Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns the service with this version of its application. Its head runs no Serve replica, as
/// recommended for production; each worker has the core that a replica of both deployments needs.
fn service(version: &str) -> Value {
    let mut service = incremental_service(OPTIONS);
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
