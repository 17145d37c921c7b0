//! A fake Gateway controller: writes the statuses that a real one would, without routing any
//! request.

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

/// Name of the GatewayClass of the tests.
pub const GATEWAY_CLASS: &str = "front";
/// Controller name of the fake.
const CONTROLLER: &str = "sluice.dev/played";

/// Options of an incremental upgrade.
#[derive(Debug, Clone, Copy)]
pub struct IncrementalOptions {
    /// Maximum capacity above 100%, in percent.
    pub surge: u8,
    /// Traffic moved in each step, in percent.
    pub step_size: u8,
}

/// Returns the sample RayService with four workers and one Serve replica on each, upgraded
/// incrementally with one second between steps. It requests 2500m CPU and 5 GiB.
pub fn incremental_service(IncrementalOptions { surge, step_size: step }: IncrementalOptions) -> Value {
    let mut service: Value = serde_saphyr::from_str(SERVICE_SAMPLE).expect("YAML");
    let spec = &mut service["spec"];
    let config = spec["serveConfigV2"].as_str().expect("a Serve configuration").replace("replicas: 1", "replicas: 4");
    spec["serveConfigV2"] = config.into();
    spec["rayClusterConfig"]["workerGroupSpecs"][0]["replicas"] = 4.into();
    spec["upgradeStrategy"] = json!({
        "type": "NewClusterWithIncrementalUpgrade",
        "clusterUpgradeOptions": {
            "maxSurgePercent": surge, "stepSizePercent": step, "intervalSeconds": 1, "gatewayClassName": GATEWAY_CLASS,
        },
    });
    service
}

/// Returns the GatewayClass with this controller.
pub fn gateway_class(controller: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": GATEWAY_CLASS},
        "spec": {"controllerName": controller},
    })
}

/// Returns the weight of each cluster in an HTTPRoute, in percent.
pub fn route_weights(route: &HTTPRoute) -> BTreeMap<String, i32> {
    let backends = route.spec.rules.iter().flat_map(|rule| &rule.backend_refs);
    let cluster = |name: &str| name.trim_end_matches("-serve-svc").to_owned();
    backends.map(|backend| (cluster(&backend.name), backend.weight.unwrap_or(1))).collect()
}

/// Returns the rollout positions of the RayService in a history, without consecutive duplicates.
pub fn rollout_positions(history: &[Change]) -> Vec<String> {
    let services = history.iter().filter_map(|change| match &change.object {
        Object::RayService(service) if !change.deleted => Some(service),
        _ => None,
    });
    let mut course: Vec<String> = services.filter_map(rollout_position).collect();
    course.dedup();
    course
}

/// Formats the rollout position of a RayService: `CAPACITY/TRAFFIC` of the active and of the
/// pending cluster, in percent, or `-` for a cluster without them. `None` if both have none.
pub fn rollout_position(service: &RayService) -> Option<String> {
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

    /// Returns the weight of each cluster in the service's HTTPRoute, in percent.
    pub async fn route_weights(&self) -> BTreeMap<String, i32> {
        let route = self.http_routes().get_opt(&format!("{SERVICE}-httproute")).await.expect("the route");
        route.as_ref().map(route_weights).unwrap_or_default()
    }
}

/// Controller of the GatewayClass, which accepts every Gateway and HTTPRoute. Dropping the value
/// stops it.
pub struct FakeGatewayController {
    _task: JoinSet<()>,
}

impl FakeGatewayController {
    /// Creates the GatewayClass and starts the controller.
    pub async fn start(env: &TestEnv) -> Self {
        env.apply(&gateway_class(CONTROLLER).to_string()).await.expect("the class");
        let mut task = JoinSet::new();
        task.spawn(run(env.client.clone()));
        Self { _task: task }
    }
}

/// Updates the statuses of all objects after every change. There are few of them.
async fn run(client: Client) {
    let mut changes = select_all([
        changes_of(Api::<GatewayClass>::all(client.clone())),
        changes_of(Api::<Gateway>::all(client.clone())),
        changes_of(Api::<HTTPRoute>::all(client.clone())),
        changes_of(Api::<Service>::all(client.clone())),
    ]);
    while changes.next().await.is_some() {
        update_statuses(&client).await;
    }
}

fn changes_of<K>(api: Api<K>) -> futures::stream::BoxStream<'static, ()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    watcher::watcher(api, watcher::Config::default()).map(|_| ()).boxed()
}

async fn update_statuses(client: &Client) {
    let all = ListParams::default();
    let services = Api::<Service>::all(client.clone()).list(&all).await.expect("the Services").items;
    for class in Api::<GatewayClass>::all(client.clone()).list(&all).await.expect("the classes") {
        let known = class.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        if let Some(next) = changed_conditions(&class, known, [(ACCEPTED, true)]) {
            patch_status(&Api::<GatewayClass>::all(client.clone()), &class, json!({"conditions": next})).await;
        }
    }
    for gateway in Api::<Gateway>::all(client.clone()).list(&all).await.expect("the Gateways") {
        let known = gateway.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        if let Some(next) = changed_conditions(&gateway, known, [(ACCEPTED, true), (PROGRAMMED, true)]) {
            patch_status(&namespaced_api(client, &gateway), &gateway, json!({"conditions": next})).await;
        }
    }
    for route in Api::<HTTPRoute>::all(client.clone()).list(&all).await.expect("the routes") {
        let backends = route_weights(&route);
        let is_there =
            |cluster: &String| services.iter().any(|service| service.name_any() == format!("{cluster}-serve-svc"));
        let resolved = backends.keys().all(is_there);
        let known = route.status.as_ref().and_then(|status| status.parents.first());
        let known = known.map(|parent| parent.conditions.clone()).unwrap_or_default();
        if let Some(next) = changed_conditions(&route, known, [(ACCEPTED, true), (RESOLVED_REFS, resolved)]) {
            let parents = route
                .spec
                .parent_refs
                .iter()
                .map(|parent| json!({"parentRef": parent, "controllerName": CONTROLLER, "conditions": next}));
            patch_status(&namespaced_api(client, &route), &route, json!({"parents": parents.collect::<Vec<_>>()}))
                .await;
        }
    }
}

fn namespaced_api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(
    client: &Client,
    object: &K,
) -> Api<K> {
    Api::namespaced(client.clone(), &object.namespace().unwrap_or_default())
}

/// Returns the updated conditions of an object, or `None` if none has changed.
fn changed_conditions<K: Resource, const N: usize>(
    object: &K,
    mut conditions: Vec<Condition>,
    wanted: [(&'static str, bool); N],
) -> Option<Vec<Condition>> {
    let changed = wanted.map(|(type_, status)| {
        let update = ConditionUpdate {
            type_,
            status,
            reason: if status { type_ } else { "BackendNotFound" }.to_owned(),
            message: String::new(),
            observed_generation: object.meta().generation,
        };
        condition::set(&mut conditions, Timestamp::now(), update)
    });
    changed.contains(&true).then_some(conditions)
}

async fn patch_status<K>(api: &Api<K>, object: &K, status: Value)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let patch = Patch::Merge(json!({"status": status}));
    match api.patch_status(&object.name_any(), &PatchParams::default(), &patch).await {
        Ok(_) => {}
        // The object was deleted in the meantime.
        Err(kube::Error::Api(error)) if error.code == 404 => {}
        Err(error) => panic!("the status of {}: {error}", object.name_any()),
    }
}
