//! A cluster with nothing but an API server beside it.

mod dashboards;
mod endpoints;
mod fates;
mod garbage;
mod nodes;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Cluster, Fate, FateList, Fates, Nodes, Pace};
use crate::api::{Api, DeleteOptions, Propagation, Proxied, ProxyTarget};
use crate::chance::Chance;

/// An API server and what else lives in the cluster, at a time.
struct Scene {
    api: Api,
    cluster: Cluster,
    now: Timestamp,
    seen: usize,
}

impl Scene {
    /// Four nodes, on which all goes well at a steady pace.
    fn new() -> Self {
        Self::with(Nodes::alike(4), Pace::steady(Chance::new(0)), Fates::kind())
    }

    /// The pods meet with these fates, in the order in which they are made.
    fn fated<const N: usize>(fates: [Fate; N]) -> Self {
        let pods = (0..).zip(fates).collect();
        let fates = Fates::listed(FateList { pods, ..FateList::default() });
        Self::with(Nodes::alike(4), Pace::steady(Chance::new(0)), fates)
    }

    fn with(nodes: Nodes, pace: Pace, fates: Fates) -> Self {
        let now = Timestamp::from_second(1_800_000_000).expect("a time");
        let mut scene = Self { api: Api::new(now), cluster: Cluster::new(nodes, pace, fates), now, seen: 0 };
        scene.run(0);
        scene
    }

    /// Lets milliseconds pass.
    fn run(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        loop {
            self.tell();
            let Some(due) = self.cluster.next().filter(|due| *due <= end) else { break };
            self.now = self.now.max(due);
            self.cluster.act(self.now, &mut self.api);
        }
        self.now = end;
    }

    /// Tells the cluster what has changed.
    fn tell(&mut self) {
        let changes = self.api.changes_from(self.seen).to_vec();
        self.seen += changes.len();
        for change in changes {
            self.cluster.see(self.now, &change);
        }
    }

    /// Creates an object in the namespace default.
    fn create(&mut self, mut object: Value) -> Arc<Value> {
        object["metadata"]["namespace"] = json!("default");
        let created = self.api.create(self.now, object).expect("it is new and right");
        self.tell();
        created
    }

    fn change(&mut self, kind: &str, name: &str, change: impl FnOnce(&mut Value)) {
        self.api.update(self.now, kind, "default", name, change).expect("it is there");
        self.tell();
    }

    fn delete(&mut self, kind: &str, name: &str, propagation: Propagation) {
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        self.api.delete(self.now, kind, "default", name, &options).expect("it is there");
        self.tell();
    }

    fn find(&self, kind: &str, name: &str) -> Option<&Value> {
        self.api.get(kind, "default", name).map(|object| &**object)
    }

    fn pod(&self, name: &str) -> &Value {
        self.find("Pod", name).expect("the pod is there")
    }

    /// Phase of a pod, and whether it is ready.
    fn state(&self, name: &str) -> (&str, &str) {
        let pod = self.pod(name);
        (super::read::text(pod, "/status/phase"), super::read::condition(pod, "Ready"))
    }

    /// The only slice of a Service.
    fn slice(&self, service: &str) -> Option<&Value> {
        let of_service = |slice: &&Arc<Value>| slice["metadata"]["labels"]["kubernetes.io/service-name"] == service;
        let mut slices = self.api.list("EndpointSlice").filter(of_service);
        let slice = slices.next();
        assert!(slices.next().is_none(), "more than one slice");
        slice.map(|slice| &**slice)
    }

    /// Calls a Service or a pod: the HTTP status and the body.
    fn call(&mut self, method: Method, target: ProxyTarget, path: &str, body: &str) -> (u16, String) {
        let body = Bytes::from(body.to_owned());
        let call = Proxied { namespace: "default".to_owned(), target, method, path_and_query: path.to_owned(), body };
        let response = self.cluster.answer(self.now, &self.api, &call);
        (response.status().as_u16(), String::from_utf8_lossy(response.body()).into_owned())
    }
}

/// A pod with the label app=NAME, one container and one CPU.
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

/// The same object with something else at a JSON pointer whose parent is there.
fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
    object.pointer_mut(parent).expect("a parent")[field] = value;
    object
}

/// A Service for the pods with the label app=APP.
fn service(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": {"team": "ml"}},
        "spec": {
            "selector": {"app": app},
            "ports": [{"name": "dashboard", "port": 80, "targetPort": "dashboard", "protocol": "TCP"}],
        },
    })
}
