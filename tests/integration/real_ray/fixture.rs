//! Fixture of the scenarios on real Ray: a control plane, a node that runs pods as processes,
//! Traefik and Sluice.

use std::time::Duration;

use serde_json::{Value, json};

use sluice_testkit::fake_gateway::GATEWAY_CLASS;
use sluice_testkit::history::Recorder;
use sluice_testkit::http::HttpClient;
use sluice_testkit::load::{LoadGenerator, request_version};
use sluice_testkit::objects::{QUEUE_SAMPLE, SERVICE_SAMPLE};
use sluice_testkit::process_node::{ProcessNode, ray_image};
use sluice_testkit::traefik::{GATEWAY_ADDRESS, Traefik};
use sluice_testkit::{Manager, TestEnv, invariants, poll_until};

/// Requests per second.
pub(super) const REQUESTS_PER_SECOND: u32 = 10;
/// Number of responses that establish which version answers.
pub(super) const SAMPLE_SIZE: usize = 50;
/// Timeout for a Ray cluster to serve, on a machine that is busy with another one.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(400);

/// The environment of a scenario. Dropping it stops everything, dependents first.
pub(super) struct RealRayFixture {
    manager: Option<Manager>,
    recorder: Recorder,
    pub(super) traefik: Traefik,
    _node: ProcessNode,
    pub(super) env: TestEnv,
}

impl RealRayFixture {
    pub(super) async fn start() -> Self {
        let env = TestEnv::start_bare().await;
        let node = ProcessNode::start(&env, images()).await;
        let traefik = Traefik::start(&env).await;
        let recorder = Recorder::start(env.client.clone(), None).await;
        env.apply(QUEUE_SAMPLE).await.expect("the queue");
        let manager = Some(env.manager().await);
        Self { manager, recorder, traefik, _node: node, env }
    }

    /// Kills the manager with SIGKILL and starts another.
    pub(super) async fn kill_manager(&mut self) {
        if let Some(manager) = self.manager.take() {
            manager.kill().await;
        }
        self.manager = Some(self.env.manager().await);
    }

    /// Asserts that no invariant was violated at any point.
    pub(super) async fn end(self) {
        let breaches = invariants::violations(&self.recorder.history().await);
        assert!(breaches.is_empty(), "{}", breaches.join("\n"));
    }

    /// Returns the history so far.
    pub(super) async fn history(&self) -> Vec<sluice_testkit::history::Change> {
        self.recorder.history().await
    }

    /// Applies the service.
    pub(super) async fn apply(&self, service: &Value) {
        self.env.apply(&service.to_string()).await.expect("the service");
    }

    /// Waits until the service answers, then starts sending requests to it.
    pub(super) async fn start_load(&self) -> LoadGenerator {
        let http = HttpClient::new();
        poll_until(START_TIMEOUT, "the service answers", async || request_version(&http, &url()).await).await;
        LoadGenerator::start(url(), REQUESTS_PER_SECOND)
    }

    /// Waits until this version answered the last request.
    pub(super) async fn wait_for_version(&self, version: &str, load: &LoadGenerator) {
        poll_until(START_TIMEOUT, &format!("version {version} answers"), async || {
            let last = load.requests().pop().map(|request| request.outcome);
            if last == Some(Ok(version.to_owned())) { Ok(()) } else { Err(format!("but {last:?}")) }
        })
        .await;
    }

    /// Creates a Gateway and a route to the serve Service.
    pub(super) async fn create_gateway(&self) {
        let api = "gateway.networking.k8s.io/v1";
        let listener = json!({"name": "http", "port": 80, "protocol": "HTTP"});
        let gateway = json!({
            "apiVersion": api, "kind": "Gateway", "metadata": {"name": "public", "namespace": "default"},
            "spec": {"gatewayClassName": GATEWAY_CLASS, "listeners": [listener]},
        });
        let rule = json!({"backendRefs": [{"name": "fruit-serve-svc", "port": 8000}]});
        let route = json!({
            "apiVersion": api, "kind": "HTTPRoute", "metadata": {"name": "shop", "namespace": "default"},
            "spec": {"parentRefs": [{"name": "public"}], "rules": [rule]},
        });
        for object in [gateway, route] {
            self.env.apply_object(object).await;
        }
    }
}

/// Returns the URL of the requests.
pub(super) fn url() -> String {
    format!("http://{GATEWAY_ADDRESS}/fruit?amount=2")
}

/// Returns the images of the application's versions. `slow` delays each response, and `rotten`
/// never starts.
fn images() -> Value {
    let of = |version: &str, more: &[(&str, &str)]| {
        let mut all =
            vec![("FRUIT_VERSION", version), ("FRUIT_STARTUP_SECONDS", "2"), ("RAY_USAGE_STATS_ENABLED", "0")];
        all.extend_from_slice(more);
        ray_image(&all)
    };
    json!({
        "fruit:1": of("1", &[]),
        "fruit:2": of("2", &[]),
        "fruit:3": of("3", &[]),
        "fruit:slow": of("slow", &[("FRUIT_ANSWER_SECONDS", "0.3")]),
        "fruit:rotten": of("rotten", &[("FRUIT_ROTTEN", "the mangos are rotten")]),
    })
}

/// Returns the sample RayService with this version of its application, whose replicas all fit on
/// any node.
pub(super) fn service(version: &str) -> Value {
    let text = SERVICE_SAMPLE.replace("rayproject/ray:2.52.0", &format!("fruit:{version}"));
    let mut service: Value = serde_saphyr::from_str(&text).expect("YAML");
    configure(&mut service, |deployment| deployment["ray_actor_options"] = json!({"num_cpus": 0.2}));
    service
}

/// Applies a change to each deployment of a service's Serve configuration.
pub(super) fn configure(service: &mut Value, change: impl Fn(&mut Value)) {
    let text = service["spec"]["serveConfigV2"].as_str().expect("a Serve configuration");
    let mut config: Value = serde_saphyr::from_str(text).expect("YAML");
    let deployments = config["applications"][0]["deployments"].as_array_mut().expect("deployments");
    deployments.iter_mut().for_each(change);
    service["spec"]["serveConfigV2"] = config.to_string().into();
}
