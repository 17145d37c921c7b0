//! An incremental upgrade under real requests through a real gateway. `make gateway` runs it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::serve::IncomingStream;
use futures::StreamExt;
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use sluice_testkit::fake_dashboards::set_dashboard_behavior;
use sluice_testkit::fake_gateway::{IncrementalOptions, incremental_service, rollout_position};
use sluice_testkit::http::HttpClient;
use sluice_testkit::objects::QUEUE_SAMPLE;
use sluice_testkit::traefik::{GATEWAY_ADDRESS, Traefik};
use sluice_testkit::{TestEnv, eventually_or_err};

/// Port of Ray Serve in a pod.
const SERVE_PORT: u16 = 8000;
/// Number of requests per measurement.
const SAMPLE_SIZE: usize = 400;
/// Tolerated deviation in requests: a round of the gateway's weighted round robin may be
/// incomplete.
const TOLERANCE: usize = 8;

/// Cluster of each ready pod, by IP address.
type ClusterByAddress = Arc<Mutex<BTreeMap<IpAddr, String>>>;

/// A fake of Ray Serve in all pods: each answers with the name of its cluster once it is ready, and
/// keeps answering after its deletion, like a pod with a grace period. Dropping the value stops it.
struct FakeServe {
    _tasks: JoinSet<()>,
}

/// Destination address of a request.
#[derive(Clone)]
struct LocalAddress(IpAddr);

impl Connected<IncomingStream<'_, TcpListener>> for LocalAddress {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self(stream.io().local_addr().expect("an address").ip())
    }
}

impl FakeServe {
    async fn start(env: &TestEnv) -> Self {
        let clusters = ClusterByAddress::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(track_ready_pods(env.pods(), clusters.clone()));
        let answer = async move |ConnectInfo(LocalAddress(address)): ConnectInfo<LocalAddress>| {
            let cluster = clusters.lock().expect("the pods").get(&address).cloned();
            cluster.ok_or_else(|| (StatusCode::SERVICE_UNAVAILABLE, format!("no pod at {address} is ready")))
        };
        let listener = TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], SERVE_PORT))).await.expect("the port");
        let answers = Router::new().fallback(answer).into_make_service_with_connect_info::<LocalAddress>();
        tasks.spawn(async { axum::serve(listener, answers).await.expect("it serves") });
        Self { _tasks: tasks }
    }
}

async fn track_ready_pods(pods: Api<Pod>, clusters: ClusterByAddress) {
    let mut seen = watcher::watcher(pods, watcher::Config::default()).applied_objects().boxed();
    while let Some(pod) = seen.next().await {
        // The watcher restarts interrupted watches.
        let Ok(pod) = pod else { continue };
        let Some(status) = &pod.status else { continue };
        let ready = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let address = status.pod_ip.as_ref().filter(|_| ready).map(|address| address.parse().expect("an address"));
        if let Some((address, cluster)) = address.zip(pod.labels().get("ray.io/cluster")) {
            clusters.lock().expect("the pods").insert(address, cluster.clone());
        }
    }
}

/// Sends one request after the other and records the cluster that answered each. Dropping the value
/// stops it.
struct TrafficClient {
    answers: Arc<Mutex<Vec<Result<String, String>>>>,
    _task: JoinSet<()>,
}

impl TrafficClient {
    fn start() -> Self {
        let answers = Arc::new(Mutex::new(Vec::new()));
        let (noted, mut task) = (answers.clone(), JoinSet::new());
        task.spawn(async move {
            let http = HttpClient::new();
            loop {
                let answer = send_request(&http).await;
                noted.lock().expect("the visitor").push(answer);
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        Self { answers, _task: task }
    }

    /// Returns how many of the next requests each cluster answers. Panics if any request so far has
    /// failed.
    async fn counts(&self) -> BTreeMap<String, usize> {
        let from = self.answers.lock().expect("the visitor").len();
        let answers = eventually_or_err("requests are answered", async || {
            let answers = self.answers.lock().expect("the visitor").clone();
            if answers.len() >= from + SAMPLE_SIZE { Ok(answers) } else { Err(format!("but {}", answers.len() - from)) }
        })
        .await;
        let failed: Vec<&String> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        let (failures, all) = (failed.len(), answers.len());
        assert!(failed.is_empty(), "{failures} of {all} requests failed, the first one: {}", failed[0]);
        let mut counts = BTreeMap::new();
        for cluster in answers[from..from + SAMPLE_SIZE].iter().flatten() {
            *counts.entry(cluster.clone()).or_default() += 1;
        }
        counts
    }
}

async fn send_request(http: &HttpClient) -> Result<String, String> {
    match http.send("GET", &format!("http://{GATEWAY_ADDRESS}/fruit"), String::new()).await? {
        (StatusCode::OK, cluster) => Ok(cluster),
        (status, body) => Err(format!("{status}: {body}")),
    }
}

/// Waits until an upgrade is at this position, and the gateway applies these weights, in percent,
/// and knows the clusters' pods. (Until then it may confuse a new pod with a previous one of the
/// same address.)
async fn wait_for_position(env: &TestEnv, traefik: &Traefik, at: &str, shares: &[(&String, i64)]) {
    eventually_or_err(&format!("the upgrade is at {at}"), async || {
        let position = rollout_position(&env.get_service().await);
        let mut as_wanted = position.as_deref() == Some(at);
        let mut state = format!("but at {position:?}");
        for (cluster, share) in shares {
            let pods = env.pods_of(cluster).await;
            let addresses = pods.iter().filter_map(|pod| pod.status.as_ref()?.pod_ip.clone()).collect();
            let sends = traefik.routing_to(cluster).await?;
            as_wanted = as_wanted && sends == (*share, addresses);
            state = format!("{state}, {cluster} gets {sends:?}");
        }
        if as_wanted { Ok(()) } else { Err(state) }
    })
    .await;
}

#[tokio::test]
#[ignore = "needs a separate network and Traefik: make gateway"]
async fn requests_follow_the_reported_weights_and_none_fails() {
    // Given a service that answers requests through a gateway,
    let env = TestEnv::start_with_gateway_api().await;
    let traefik = Traefik::start(&env).await;
    let _pods = FakeServe::start(&env).await;
    let _manager = env.manager().await;
    env.apply(QUEUE_SAMPLE).await.expect("the queue");
    env.set_quota("4", "8Gi").await;
    env.apply(&incremental_service(IncrementalOptions { surge: 50, step_size: 25 }).to_string())
        .await
        .expect("the service");
    let first = env.wait_until_serving("2.52.0").await;
    let http = HttpClient::new();
    eventually_or_err("the gateway forwards requests", async || send_request(&http).await).await;
    let visitor = TrafficClient::start();
    assert_eq!(visitor.counts().await, BTreeMap::from([(first.clone(), SAMPLE_SIZE)]));

    // when it is upgraded, then at each step the clusters answer their shares according to the
    // status,
    set_dashboard_behavior(&env, &json!({"runningReplicas": 0})).await;
    env.set_ray_version("2.53.0").await;
    let second = env.wait_for_pending_cluster().await;
    // (each step waits for replicas)
    let steps = [
        (1, "100/75 50/25", vec![(&first, 75), (&second, 25)]),
        (2, "50/50 100/50", vec![(&first, 50), (&second, 50)]),
        (3, "50/25 100/75", vec![(&first, 25), (&second, 75)]),
        (4, "100/100 -", vec![(&second, 100)]),
    ];
    for (running, at, shares) in steps {
        set_dashboard_behavior(&env, &json!({"runningReplicas": running})).await;
        wait_for_position(&env, &traefik, at, &shares).await;
        let counts = visitor.counts().await;
        println!("{at}: {counts:?}");
        for (cluster, share) in shares {
            let answered = counts.get(cluster).copied().unwrap_or_default();
            let expected = SAMPLE_SIZE * usize::try_from(share).expect("a share") / 100;
            assert!(answered.abs_diff(expected) <= TOLERANCE, "{share}% should go to {cluster}: {counts:?}");
        }
    }

    // and in the end only the second cluster answers; no request has failed.
    assert_eq!(env.wait_until_serving("2.53.0").await, second);
    env.wait_for_only_cluster(&second).await;
    assert_eq!(visitor.counts().await, BTreeMap::from([(second, SAMPLE_SIZE)]));
    println!("{} requests, all answered", visitor.answers.lock().expect("the visitor").len());
}
