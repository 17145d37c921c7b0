//! Who lets requests in. Nobody does that in the test environment by itself: here its part is played, without any request.

use std::collections::BTreeMap;

use futures::StreamExt;
use futures::stream::select_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sluice_api::condition::{self, ConditionUpdate};
use sluice_api::gateway_api::{ACCEPTED, Gateway, GatewayClass, HTTPRoute, PROGRAMMED, RESOLVED_REFS};
use sluice_api::ray::{RayService, RayServiceStatus};
use tokio::task::JoinSet;

use super::TestEnv;
use super::history::{Change, Object};
use super::objects::{NAMESPACE, SERVICE, SERVICE_SAMPLE};

/// The class of Gateways of the scenarios.
pub const CLASS: &str = "front";
/// How the controller that is played here calls itself.
const CONTROLLER: &str = "sluice.dev/played";

/// How an upgrade goes in steps.
#[derive(Debug, Clone, Copy)]
pub struct Steps {
    /// How much capacity there may be above 100 percent, in percent.
    pub surge: u8,
    /// How much traffic moves in a step, in percent.
    pub step: u8,
}

/// The sample's service with four workers, and a replica of Serve on each; upgraded in steps, a second apart. It takes 2500m CPU and
/// 5 GiB.
pub fn service_in_steps(Steps { surge, step }: Steps) -> Value {
    let mut service: Value = serde_saphyr::from_str(SERVICE_SAMPLE).expect("YAML");
    let spec = &mut service["spec"];
    let config = spec["serveConfigV2"].as_str().expect("a Serve configuration").replace("replicas: 1", "replicas: 4");
    spec["serveConfigV2"] = config.into();
    spec["rayClusterConfig"]["workerGroupSpecs"][0]["replicas"] = 4.into();
    spec["upgradeStrategy"] = json!({
        "type": "NewClusterWithIncrementalUpgrade",
        "clusterUpgradeOptions": {
            "maxSurgePercent": surge, "stepSizePercent": step, "intervalSeconds": 1, "gatewayClassName": CLASS,
        },
    });
    service
}

/// The class of Gateways, and the controller that takes care of them.
pub fn gateway_class(controller: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": CLASS},
        "spec": {"controllerName": controller},
    })
}

/// The shares of a route's requests, in percent, by the cluster that gets them.
pub fn weights(route: &HTTPRoute) -> BTreeMap<String, i32> {
    let backends = route.spec.rules.iter().flat_map(|rule| &rule.backend_refs);
    let cluster = |name: &str| name.trim_end_matches("-serve-svc").to_owned();
    backends.map(|backend| (cluster(&backend.name), backend.weight.unwrap_or(1))).collect()
}

/// Where the service stood in the course of an upgrade, each place once.
pub fn course(history: &[Change]) -> Vec<String> {
    let services = history.iter().filter_map(|change| match &change.object {
        Object::RayService(service) if !change.gone => Some(service),
        _ => None,
    });
    let mut course: Vec<String> = services.filter_map(position).collect();
    course.dedup();
    course
}

/// Where an upgrade stands: how much capacity and how much traffic the active and the pending cluster have, in percent.
pub fn position(service: &RayService) -> Option<String> {
    let status = service.status.as_ref()?;
    let side = |entry: &Option<RayServiceStatus>| {
        let entry = entry.as_ref()?;
        Some(format!("{}/{}", entry.target_capacity?, entry.traffic_routed_percent?))
    };
    let (active, pending) = (side(&status.active_service_status), side(&status.pending_service_status));
    let or_none = |side: Option<String>| side.unwrap_or_else(|| "-".to_owned());
    (active.is_some() || pending.is_some()).then(|| format!("{} {}", or_none(active), or_none(pending)))
}

impl TestEnv {
    /// Returns the API of HTTPRoutes in the test namespace.
    pub fn http_routes(&self) -> Api<HTTPRoute> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// The shares of the requests, in percent, by the cluster that gets them.
    pub async fn weights(&self) -> BTreeMap<String, i32> {
        let route = self.http_routes().get_opt(&format!("{SERVICE}-httproute")).await.expect("the route");
        route.as_ref().map(weights).unwrap_or_default()
    }
}

/// The controller of the class: it takes every Gateway and every route as it is, and says so. It ends with this value.
pub struct PlayedGateways {
    _task: JoinSet<()>,
}

impl PlayedGateways {
    /// Makes the class, and starts.
    pub async fn start(env: &TestEnv) -> Self {
        env.apply(&gateway_class(CONTROLLER).to_string()).await.expect("the class");
        let mut task = JoinSet::new();
        task.spawn(play(env.client.clone()));
        Self { _task: task }
    }
}

/// Looks at everything anew whenever something has changed: there is little of it.
async fn play(client: Client) {
    let mut changes = select_all([
        changes_of(Api::<GatewayClass>::all(client.clone())),
        changes_of(Api::<Gateway>::all(client.clone())),
        changes_of(Api::<HTTPRoute>::all(client.clone())),
        changes_of(Api::<Service>::all(client.clone())),
    ]);
    while changes.next().await.is_some() {
        say_of_all(&client).await;
    }
}

fn changes_of<K>(api: Api<K>) -> futures::stream::BoxStream<'static, ()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    watcher::watcher(api, watcher::Config::default()).map(|_| ()).boxed()
}

async fn say_of_all(client: &Client) {
    let all = ListParams::default();
    let services = Api::<Service>::all(client.clone()).list(&all).await.expect("the Services").items;
    for class in Api::<GatewayClass>::all(client.clone()).list(&all).await.expect("the classes") {
        let known = class.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        if let Some(next) = conditions(&class, known, [(ACCEPTED, true)]) {
            write(&Api::<GatewayClass>::all(client.clone()), &class, json!({"conditions": next})).await;
        }
    }
    for gateway in Api::<Gateway>::all(client.clone()).list(&all).await.expect("the Gateways") {
        let known = gateway.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        if let Some(next) = conditions(&gateway, known, [(ACCEPTED, true), (PROGRAMMED, true)]) {
            write(&of(client, &gateway), &gateway, json!({"conditions": next})).await;
        }
    }
    for route in Api::<HTTPRoute>::all(client.clone()).list(&all).await.expect("the routes") {
        let backends = weights(&route);
        let is_there = |cluster: &String| services.iter().any(|of| of.name_any() == format!("{cluster}-serve-svc"));
        let resolved = backends.keys().all(is_there);
        let known = route.status.as_ref().and_then(|status| status.parents.first());
        let known = known.map(|parent| parent.conditions.clone()).unwrap_or_default();
        if let Some(next) = conditions(&route, known, [(ACCEPTED, true), (RESOLVED_REFS, resolved)]) {
            let parents = route
                .spec
                .parent_refs
                .iter()
                .map(|parent| json!({"parentRef": parent, "controllerName": CONTROLLER, "conditions": next}));
            write(&of(client, &route), &route, json!({"parents": parents.collect::<Vec<_>>()})).await;
        }
    }
}

fn of<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(client: &Client, object: &K) -> Api<K> {
    Api::namespaced(client.clone(), &object.namespace().unwrap_or_default())
}

/// What is to be said of an object, if that is anything new.
fn conditions<K: Resource, const N: usize>(
    object: &K,
    mut conditions: Vec<Condition>,
    wanted: [(&'static str, bool); N],
) -> Option<Vec<Condition>> {
    let changed = wanted.map(|(type_, status)| {
        let verdict = ConditionUpdate {
            type_,
            status,
            reason: if status { type_ } else { "BackendNotFound" }.to_owned(),
            message: String::new(),
            observed_generation: object.meta().generation,
        };
        condition::set(&mut conditions, Timestamp::now(), verdict)
    });
    changed.contains(&true).then_some(conditions)
}

async fn write<K>(api: &Api<K>, object: &K, status: Value)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let patch = Patch::Merge(json!({"status": status}));
    match api.patch_status(&object.name_any(), &PatchParams::default(), &patch).await {
        Ok(_) => {}
        // It is gone meanwhile.
        Err(kube::Error::Api(error)) if error.code == 404 => {}
        Err(error) => panic!("the status of {}: {error}", object.name_any()),
    }
}
