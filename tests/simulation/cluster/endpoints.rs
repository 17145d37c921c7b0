//! EndpointSlices, as the controller of kube-controller-manager makes them: for each Service with a selector, the pods that
//! it leads to.
//!
//! There is one slice a Service; its ports are those of the first of its pods, where the real controller makes a slice for
//! each way in which pods resolve named ports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::read::{condition, fields, has_ended, is_deleted, items, key, text, uid};
use super::{Chore, Desk};
use crate::api::Api;

/// The label of a slice that names its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// The label of a slice that names who keeps it.
const KEEPER_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
/// Who keeps the slices here.
const KEEPER: &str = "endpointslice-controller.k8s.io";
/// The label of what belongs to a Service without an address of its own.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// Namespace and name.
type Key = (String, String);

/// The controller, and what it knows of pods, Services and slices.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    services: BTreeMap<Key, Arc<Value>>,
    pods: BTreeMap<Key, Arc<Value>>,
    /// The slices of each Service, by their names.
    slices: BTreeMap<Key, BTreeMap<String, Arc<Value>>>,
    /// Services that are about to be looked at.
    due: BTreeSet<Key>,
    /// How often one was.
    rounds: u64,
}

impl Endpoints {
    /// Takes note of a Service as it is now.
    pub(super) fn see_service(&mut self, desk: &mut Desk<'_>, service: &Arc<Value>, gone: bool) {
        let key = key(service);
        if gone {
            self.services.remove(&key);
        } else {
            self.services.insert(key.clone(), service.clone());
            self.plan(desk, key);
        }
    }

    /// Takes note of a pod as it is now, and was.
    pub(super) fn see_pod(&mut self, desk: &mut Desk<'_>, pod: &Arc<Value>, before: Option<&Value>, gone: bool) {
        let key = key(pod);
        let namespace = key.0.clone();
        if gone {
            self.pods.remove(&key);
        } else {
            self.pods.insert(key, pod.clone());
        }
        let leads = |service: &Value| selects(service, pod) || before.is_some_and(|before| selects(service, before));
        let services = in_namespace(&self.services, &namespace).filter(|(_, service)| leads(service));
        let concerned: Vec<Key> = services.map(|(key, _)| key.clone()).collect();
        for service in concerned {
            self.plan(desk, service);
        }
    }

    /// Takes note of a slice as it is now: what was done to it by others is put right.
    pub(super) fn see_slice(&mut self, desk: &mut Desk<'_>, slice: &Arc<Value>, gone: bool) {
        let (namespace, name) = key(slice);
        let service = (namespace, slice["metadata"]["labels"][SERVICE_LABEL].as_str().unwrap_or_default().to_owned());
        let slices = self.slices.entry(service.clone()).or_default();
        if gone {
            slices.remove(&name);
        } else {
            slices.insert(name, slice.clone());
        }
        if self.services.contains_key(&service) {
            self.plan(desk, service);
        }
    }

    fn plan(&mut self, desk: &mut Desk<'_>, service: Key) {
        if self.due.insert(service.clone()) {
            self.rounds += 1;
            let delay = desk.pace.draw(&desk.pace.endpoints, "endpoints", self.rounds);
            desk.after(delay, Chore::Publish(service));
        }
    }

    /// Brings the slice of a Service up to date.
    pub(super) fn publish(&mut self, now: Timestamp, api: &mut Api, key: &Key) {
        self.due.remove(key);
        let Some(service) = self.services.get(key).filter(|service| has_selector(service) && !is_deleted(service))
        else {
            return;
        };
        let pods: Vec<&Value> = in_namespace(&self.pods, &key.0)
            .map(|(_, pod)| &**pod)
            .filter(|pod| selects(service, pod) && is_endpoint(pod))
            .collect();
        let wanted = slice(service, &pods);
        let kept = self.slices.get(key).and_then(|slices| {
            slices.values().find(|slice| slice["metadata"]["labels"][KEEPER_LABEL] == KEEPER && !is_deleted(slice))
        });
        let Some(kept) = kept else {
            // A namespace that is going takes nothing new.
            let made = api.create(now, wanted);
            assert!(made.as_ref().err().is_none_or(|refusal| refusal.code == 403), "{made:?}");
            return;
        };
        let labels = |slice: &Value| slice["metadata"]["labels"].clone();
        if PARTS.iter().all(|part| kept[part] == wanted[part]) && labels(kept) == labels(&wanted) {
            return;
        }
        let renew = |slice: &mut Value| {
            for part in PARTS {
                slice[part] = wanted[part].clone();
            }
            slice["metadata"]["labels"] = labels(&wanted);
        };
        let name = text(kept, "/metadata/name").to_owned();
        if api.get("EndpointSlice", &key.0, &name).is_some_and(|slice| uid(slice) == uid(kept)) {
            api.update(now, "EndpointSlice", &key.0, &name, renew).expect("the slice is there");
        }
    }

    /// The pod with the least uid that is said to be ready behind a port of a Service.
    pub(super) fn ready_pod(&self, namespace: &str, service: &str, port: &str) -> Option<&str> {
        let slices = self.slices.get(&(namespace.to_owned(), service.to_owned()))?;
        let serves = |slice: &&Arc<Value>| items(slice, "/ports").any(|served| text(served, "/name") == port);
        let endpoints = slices.values().filter(serves).flat_map(|slice| items(slice, "/endpoints"));
        endpoints
            .filter(|endpoint| endpoint.pointer("/conditions/ready") != Some(&Value::Bool(false)))
            .filter(|endpoint| text(endpoint, "/targetRef/kind") == "Pod")
            .map(|endpoint| text(endpoint, "/targetRef/uid"))
            .min()
    }

    /// The addresses of those workers of a cluster that are ready.
    pub(super) fn ready_workers(&self, namespace: &str, cluster: &str) -> Vec<String> {
        let is_its = |pod: &&Arc<Value>| {
            let labels = &pod["metadata"]["labels"];
            labels["ray.io/cluster"] == cluster && labels["ray.io/node-type"] == "worker" && !is_deleted(pod)
        };
        let pods = in_namespace(&self.pods, namespace).map(|(_, pod)| pod).filter(is_its);
        let ready = pods.filter(|pod| condition(pod, "Ready") == "True");
        ready.map(|pod| text(pod, "/status/podIP").to_owned()).collect()
    }

    /// The pod of this uid.
    pub(super) fn pod(&self, namespace: &str, wanted: &str) -> Option<&Arc<Value>> {
        in_namespace(&self.pods, namespace).map(|(_, pod)| pod).find(|pod| uid(pod) == wanted)
    }
}

/// What of a slice follows from its Service and the pods, beside its labels.
const PARTS: [&str; 2] = ["endpoints", "ports"];

fn in_namespace<'a>(
    objects: &'a BTreeMap<Key, Arc<Value>>,
    namespace: &str,
) -> impl Iterator<Item = (&'a Key, &'a Arc<Value>)> + use<'a> {
    let namespace = namespace.to_owned();
    objects.range((namespace.clone(), String::new())..).take_while(move |(key, _)| key.0 == namespace)
}

fn has_selector(service: &Value) -> bool {
    text(service, "/spec/type") != "ExternalName" && fields(service, "/spec/selector").next().is_some()
}

fn selects(service: &Value, pod: &Value) -> bool {
    let labels = &pod["metadata"]["labels"];
    has_selector(service) && fields(service, "/spec/selector").all(|(label, value)| labels.get(label) == Some(value))
}

/// Whether a Service that selects the pod leads to it, be it that it is not ready.
fn is_endpoint(pod: &Value) -> bool {
    !has_ended(pod) && !text(pod, "/status/podIP").is_empty()
}

fn slice(service: &Value, pods: &[&Value]) -> Value {
    let name = text(service, "/metadata/name");
    let endpoints: Vec<Value> = pods.iter().map(|pod| endpoint(service, pod)).collect();
    let ports = pods.first().map(|pod| ports(service, pod));
    let mut labels = service["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.insert(SERVICE_LABEL.to_owned(), json!(name));
    labels.insert(KEEPER_LABEL.to_owned(), json!(KEEPER));
    if text(service, "/spec/clusterIP") == "None" {
        labels.insert(HEADLESS_LABEL.to_owned(), json!(""));
    }
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {
            "generateName": format!("{name}-"), "namespace": service["metadata"]["namespace"], "labels": labels,
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": name, "uid": uid(service),
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "addressType": "IPv4",
        // The real ones are null too when there are none.
        "endpoints": if endpoints.is_empty() { Value::Null } else { Value::Array(endpoints) },
        "ports": ports,
    })
}

/// A pod that a Service leads to (Kubernetes 1.36 `staging/src/k8s.io/endpointslice/utils.go`, `podToEndpoint`).
fn endpoint(service: &Value, pod: &Value) -> Value {
    let serving = condition(pod, "Ready") == "True";
    let terminating = is_deleted(pod);
    let anyway = service["spec"]["publishNotReadyAddresses"] == true;
    let mut endpoint = json!({
        "addresses": [text(pod, "/status/podIP")],
        "conditions": {"ready": anyway || serving && !terminating, "serving": serving, "terminating": terminating},
        "targetRef": {
            "kind": "Pod", "namespace": pod["metadata"]["namespace"], "name": pod["metadata"]["name"], "uid": uid(pod),
        },
        "nodeName": pod["spec"]["nodeName"],
    });
    let hostname = text(pod, "/spec/hostname");
    if !hostname.is_empty() && text(pod, "/spec/subdomain") == text(service, "/metadata/name") {
        endpoint["hostname"] = json!(hostname);
    }
    endpoint
}

/// The ports of a Service on a pod; those by a name that the pod doesn't have are left out.
fn ports(service: &Value, pod: &Value) -> Value {
    let resolved = |port: &Value| {
        let protocol = Some(text(port, "/protocol")).filter(|protocol| !protocol.is_empty()).unwrap_or("TCP");
        let number = match port.get("targetPort") {
            Some(Value::String(name)) => container_port(pod, name, protocol)?,
            Some(number @ Value::Number(_)) => number.clone(),
            _ => port["port"].clone(),
        };
        let mut resolved = json!({"name": text(port, "/name"), "port": number, "protocol": protocol});
        if let Some(application) = port.get("appProtocol") {
            resolved["appProtocol"] = application.clone();
        }
        Some(resolved)
    };
    items(service, "/spec/ports").filter_map(resolved).collect()
}

fn container_port(pod: &Value, name: &str, protocol: &str) -> Option<Value> {
    let mut ports = items(pod, "/spec/containers").flat_map(|container| items(container, "/ports"));
    let named = ports.find(|port| {
        text(port, "/name") == name && matches!(text(port, "/protocol"), own if own == protocol || own.is_empty())
    })?;
    named.get("containerPort").cloned()
}
