//! Tests of the cluster components against the API server, without Sluice.

mod endpoint_slices;
mod garbage_collector;
mod jobs;
mod nodes;
mod pod_faults;
mod ray_dashboard;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{FaultList, Latencies, Nodes, PodFault, PodFaultInjector, SimulatedCluster};
use crate::api::{ApiServer, DeleteOptions, Propagation, ProxyRequest, ProxyTarget};
use crate::rng::SeededRandom;

/// API server and cluster components with a virtual clock.
struct ClusterFixture {
    api: ApiServer,
    cluster: SimulatedCluster,
    now: Timestamp,
    seen: usize,
}

impl ClusterFixture {
    /// Creates four nodes with fixed latencies and no faults.
    fn new() -> Self {
        Self::with(Nodes::uniform(4), Latencies::fixed(SeededRandom::new(0)), PodFaultInjector::none())
    }

    /// Injects these faults into pods, in order of their creation.
    fn with_pod_faults<const N: usize>(faults: [PodFault; N]) -> Self {
        let pods = (0..).zip(faults).collect();
        let faults = PodFaultInjector::listed(FaultList { pods, ..FaultList::default() });
        Self::with(Nodes::uniform(4), Latencies::fixed(SeededRandom::new(0)), faults)
    }

    fn with(nodes: Nodes, latencies: Latencies, faults: PodFaultInjector) -> Self {
        let now = Timestamp::from_second(1_800_000_000).expect("a time");
        let mut scene =
            Self { api: ApiServer::new(now), cluster: SimulatedCluster::new(nodes, latencies, faults), now, seen: 0 };
        scene.run(0);
        scene
    }

    /// Advances the clock by milliseconds and runs all due tasks.
    fn run(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        loop {
            self.deliver_changes();
            let Some(due) = self.cluster.next_deadline().filter(|due| *due <= end) else { break };
            self.now = self.now.max(due);
            self.cluster.run_due(self.now, &mut self.api);
        }
        self.now = end;
    }

    /// Delivers pending changes to the cluster.
    fn deliver_changes(&mut self) {
        let changes = self.api.changes_from(self.seen).to_vec();
        self.seen += changes.len();
        for change in changes {
            self.cluster.observe(self.now, &change);
        }
    }

    /// Creates an object in namespace `default`.
    fn create(&mut self, mut object: Value) -> Arc<Value> {
        object["metadata"]["namespace"] = json!("default");
        let created = self.api.create(self.now, object).expect("a new and valid object");
        self.deliver_changes();
        created
    }

    fn change(&mut self, kind: &str, name: &str, change: impl FnOnce(&mut Value)) {
        self.api.update(self.now, kind, "default", name, change).expect("the object exists");
        self.deliver_changes();
    }

    fn delete(&mut self, kind: &str, name: &str, propagation: Propagation) {
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        self.api.delete(self.now, kind, "default", name, &options).expect("the object exists");
        self.deliver_changes();
    }

    fn find(&self, kind: &str, name: &str) -> Option<&Value> {
        self.api.get(kind, "default", name).map(|object| &**object)
    }

    fn pod(&self, name: &str) -> &Value {
        self.find("Pod", name).expect("the pod exists")
    }

    /// Returns phase and Ready condition of a pod.
    fn state(&self, name: &str) -> (&str, &str) {
        let pod = self.pod(name);
        (super::object_view::text(pod, "/status/phase"), super::object_view::condition_status(pod, "Ready"))
    }

    /// Returns the only EndpointSlice of a Service; `None` if there is none.
    fn slice(&self, service: &str) -> Option<&Value> {
        let belongs_to_service =
            |slice: &&Arc<Value>| slice["metadata"]["labels"]["kubernetes.io/service-name"] == service;
        let mut slices = self.api.list("EndpointSlice").filter(belongs_to_service);
        let slice = slices.next();
        assert!(slices.next().is_none(), "more than one slice");
        slice.map(|slice| &**slice)
    }

    /// Sends a proxied request to a Service or a pod; returns HTTP status and body.
    fn call(&mut self, method: Method, target: ProxyTarget, path: &str, body: &str) -> (u16, String) {
        let body = Bytes::from(body.to_owned());
        let call =
            ProxyRequest { namespace: "default".to_owned(), target, method, path_and_query: path.to_owned(), body };
        let response = self.cluster.handle_proxy_request(self.now, &self.api, &call);
        (response.status().as_u16(), String::from_utf8_lossy(response.body()).into_owned())
    }
}

/// Builds a pod with label `app=NAME` and one container that requests one CPU.
fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{
            "name": "ray", "image": "ray:1", "resources": {"requests": {"cpu": "1"}},
            "ports": [{"name": "dashboard", "containerPort": 8265}],
        }]},
    })
}

/// Sets the value at a JSON pointer, the parent of which must exist.
fn set_at(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    object.pointer_mut(parent).expect("a parent")[field] = value;
    object
}

/// Builds a Service that selects pods with label `app=APP`.
fn service(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": {"team": "ml"}},
        "spec": {
            "selector": {"app": app},
            "ports": [{"name": "dashboard", "port": 80, "targetPort": "dashboard", "protocol": "TCP"}],
        },
    })
}
