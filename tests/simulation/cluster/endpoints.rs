//! EndpointSlice controller, like that of kube-controller-manager: lists the selected pods of each
//! Service with a selector.
//!
//! Each Service has one slice, with the ports of its first pod. The real controller makes one slice
//! for each distinct set of resolved ports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::read::{condition, fields, has_ended, is_deleted, items, key, text, uid};
use super::{Chore, Desk};
use crate::api::Api;

/// Label of a slice with the name of its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Label of a slice with the name of its controller.
const KEEPER_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
/// Name of this controller.
const KEEPER: &str = "endpointslice-controller.k8s.io";
/// Label of slices of headless Services.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// Namespace and name.
type Key = (String, String);

/// EndpointSlice controller with its caches of pods, Services and slices.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    services: BTreeMap<Key, Arc<Value>>,
    pods: BTreeMap<Key, Arc<Value>>,
    /// Slices of each Service, by slice name.
    slices: BTreeMap<Key, BTreeMap<String, Arc<Value>>>,
    /// Services with a pending sync.
    due: BTreeSet<Key>,
    /// Number of syncs scheduled so far.
    rounds: u64,
}

impl Endpoints {
    /// Observes the current state of a Service.
    pub(super) fn see_service(&mut self, context: &mut Desk<'_>, service: &Arc<Value>, gone: bool) {
        let key = key(service);
        if gone {
            self.services.remove(&key);
        } else {
            self.services.insert(key.clone(), service.clone());
            self.plan(context, key);
        }
    }

    /// Observes the current state of a pod, and the one before.
    pub(super) fn see_pod(&mut self, context: &mut Desk<'_>, pod: &Arc<Value>, before: Option<&Value>, gone: bool) {
        let key = key(pod);
        let namespace = key.0.clone();
        if gone {
            self.pods.remove(&key);
        } else {
            self.pods.insert(key, pod.clone());
        }
        let is_selected =
            |service: &Value| selects(service, pod) || before.is_some_and(|before| selects(service, before));
        let services = in_namespace(&self.services, &namespace).filter(|(_, service)| is_selected(service));
        let affected: Vec<Key> = services.map(|(key, _)| key.clone()).collect();
        for service in affected {
            self.plan(context, service);
        }
    }

    /// Observes the current state of a slice. Changes by other writers are corrected.
    pub(super) fn see_slice(&mut self, context: &mut Desk<'_>, slice: &Arc<Value>, gone: bool) {
        let (namespace, name) = key(slice);
        let service = (namespace, slice["metadata"]["labels"][SERVICE_LABEL].as_str().unwrap_or_default().to_owned());
        let slices = self.slices.entry(service.clone()).or_default();
        if gone {
            slices.remove(&name);
        } else {
            slices.insert(name, slice.clone());
        }
        if self.services.contains_key(&service) {
            self.plan(context, service);
        }
    }

    fn plan(&mut self, context: &mut Desk<'_>, service: Key) {
        if self.due.insert(service.clone()) {
            self.rounds += 1;
            let delay = context.latencies.draw(&context.latencies.endpoints, "endpoints", self.rounds);
            context.after(delay, Chore::Publish(service));
        }
    }

    /// Creates or updates the slice of a Service.
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
        let existing = self.slices.get(key).and_then(|slices| {
            slices.values().find(|slice| slice["metadata"]["labels"][KEEPER_LABEL] == KEEPER && !is_deleted(slice))
        });
        let Some(existing) = existing else {
            // A terminating namespace rejects new objects (403).
            let created = api.create(now, wanted);
            assert!(created.as_ref().err().is_none_or(|error| error.code == 403), "{created:?}");
            return;
        };
        let labels = |slice: &Value| slice["metadata"]["labels"].clone();
        if PARTS.iter().all(|part| existing[part] == wanted[part]) && labels(existing) == labels(&wanted) {
            return;
        }
        let sync = |slice: &mut Value| {
            for part in PARTS {
                slice[part] = wanted[part].clone();
            }
            slice["metadata"]["labels"] = labels(&wanted);
        };
        let name = text(existing, "/metadata/name").to_owned();
        if api.get("EndpointSlice", &key.0, &name).is_some_and(|slice| uid(slice) == uid(existing)) {
            api.update(now, "EndpointSlice", &key.0, &name, sync).expect("the slice exists");
        }
    }

    /// Returns the smallest uid of the ready endpoints of a Service port; `None` if there is none.
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

    /// Returns the IPs of the ready workers of a RayCluster.
    pub(super) fn ready_workers(&self, namespace: &str, cluster: &str) -> Vec<String> {
        let is_worker = |pod: &&Arc<Value>| {
            let labels = &pod["metadata"]["labels"];
            labels["ray.io/cluster"] == cluster && labels["ray.io/node-type"] == "worker" && !is_deleted(pod)
        };
        let pods = in_namespace(&self.pods, namespace).map(|(_, pod)| pod).filter(is_worker);
        let ready = pods.filter(|pod| condition(pod, "Ready") == "True");
        ready.map(|pod| text(pod, "/status/podIP").to_owned()).collect()
    }

    /// Returns the pod with a uid; `None` if there is none in the namespace.
    pub(super) fn pod(&self, namespace: &str, wanted: &str) -> Option<&Arc<Value>> {
        in_namespace(&self.pods, namespace).map(|(_, pod)| pod).find(|pod| uid(pod) == wanted)
    }
}

/// Fields of a slice that the controller syncs in addition to labels.
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

/// Returns true if a selected pod is an endpoint, ready or not.
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
        // Like the real controller: null if there are no endpoints.
        "endpoints": if endpoints.is_empty() { Value::Null } else { Value::Array(endpoints) },
        "ports": ports,
    })
}

/// Returns the endpoint of a pod (Kubernetes 1.36 `staging/src/k8s.io/endpointslice/utils.go`,
/// `podToEndpoint`).
fn endpoint(service: &Value, pod: &Value) -> Value {
    let serving = condition(pod, "Ready") == "True";
    let terminating = is_deleted(pod);
    let publish_not_ready = service["spec"]["publishNotReadyAddresses"] == true;
    let mut endpoint = json!({
        "addresses": [text(pod, "/status/podIP")],
        "conditions": {"ready": publish_not_ready || serving && !terminating, "serving": serving, "terminating": terminating},
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

/// Resolves the ports of a Service on a pod; named ports that the pod does not have are left out.
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
