//! The Ray autoscaler requests a worker because Serve requests a replica.

use kube::ResourceExt;
use serde_json::{Value, json};
use sluice_api::kueue::scheduling_gate::is_gated;

use super::fixture::{configure, url};
use super::{RealRayFixture, SAMPLE_SIZE, START_TIMEOUT, print_summary, service};
use crate::explain::explain_json;
use sluice_testkit::http::HttpClient;
use sluice_testkit::load::assert_all_answered;
use sluice_testkit::poll_until;

/// Returns the service with the Ray autoscaler and one worker for each replica of its slow market.
/// It requests 1500m CPU and 2.5 GiB, plus 500m and 1 GiB for each additional worker.
fn autoscaled() -> Value {
    let mut service = service("slow");
    configure(&mut service, |deployment| {
        let is_market = deployment["name"] == "FruitMarket";
        deployment["ray_actor_options"] = json!({"num_cpus": if is_market { 1 } else { 0 }});
        if is_market {
            deployment.as_object_mut().expect("a deployment").remove("num_replicas");
            deployment["autoscaling_config"] = json!({
                "min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 1,
                "upscale_delay_s": 2, "metrics_interval_s": 1, "look_back_period_s": 2,
            });
        }
    });
    let cluster = &mut service["spec"]["rayClusterConfig"];
    cluster["enableInTreeAutoscaling"] = true.into();
    cluster["headGroupSpec"]["rayStartParams"] = json!({"num-cpus": "0"});
    cluster["workerGroupSpecs"][0]["maxReplicas"] = 2.into();
    service
}

/// Waits for a gated worker. Returns its name.
async fn waiting_worker(fixture: &RealRayFixture, cluster: &str) -> String {
    poll_until(START_TIMEOUT, "a worker waits for quota", async || {
        let pods = fixture.env.pods_of(cluster).await;
        let waiting = pods.iter().find(|pod| is_gated(pod)).map(ResourceExt::name_any);
        waiting.ok_or_else(|| format!("but {} pods", pods.len()))
    })
    .await
}

pub(super) async fn a_worker_that_ray_asks_for_waits_for_quota_and_serves(fixture: &RealRayFixture) {
    // Given a service with one worker and the Ray autoscaler that uses all of its queue's quota,
    let env = &fixture.env;
    env.set_quota("1500m", "2560Mi").await;
    fixture.apply(&autoscaled()).await;
    fixture.create_gateway().await;

    // when there are more requests than one replica should handle, then Ray requests another
    // worker,
    let load = fixture.start_load().await;
    let cluster = env.wait_until_serving("2.52.0").await;
    let worker = waiting_worker(fixture, &cluster).await;
    let group = env.ray_clusters().get(&cluster).await.expect("the cluster").spec.worker_group_specs.remove(0);
    assert_eq!(group.replicas, Some(2));

    // which waits for quota, and explain reports it, while the first one answers everything;
    let explanation = explain_json(env, &format!("pod/{worker}")).await;
    let slices = explanation["slices"].as_array().expect("slices");
    let waiting = slices.iter().find(|slice| slice["state"] == "pending").unwrap_or_else(|| panic!("{explanation}"));
    assert_eq!(waiting["pending"]["shortfalls"][0]["resource"], "cpu", "{explanation}");
    load.count_next(SAMPLE_SIZE).await;

    // and once the quota is raised, it answers too.
    env.set_quota("2", "3584Mi").await;
    let http = HttpClient::new();
    poll_until(START_TIMEOUT, "the new worker answers", async || {
        let (_, body) = http.send("GET", &url(), String::new()).await?;
        let answer: Value = serde_json::from_str(&body).map_err(|error| format!("{error}: {body}"))?;
        if answer["pod"] == worker.as_str() { Ok(()) } else { Err(format!("but {answer}")) }
    })
    .await;
    let requests = load.stop().await;
    print_summary("Autoscaling that waits for quota", &requests);
    assert_all_answered(&requests);
}
