//! EndpointSlice controller, like that of kube-controller-manager: lists the selected pods of each
//! Service with a selector.
//!
//! Each Service has one slice, with the ports of its first pod. The real controller makes one slice
//! for each distinct set of resolved ports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::label_index::LabelIndex;
use super::object_view::{condition_status, has_ended, is_terminating, items, map_entries, namespaced_name, text, uid};
use super::{ControllerContext, Task};
use crate::api::ApiServer;

/// Label of a slice with the name of its Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Label of a slice with the name of its controller.
const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
/// Name of this controller.
const CONTROLLER_NAME: &str = "endpointslice-controller.k8s.io";
/// Label of slices of headless Services.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

/// Namespace and name.
type NamespacedName = (String, String);

/// EndpointSlice controller with its caches of pods, Services and slices.
#[derive(Debug, Default)]
pub(super) struct EndpointSliceController {
    services: BTreeMap<NamespacedName, Arc<Value>>,
    /// Services by the first label of their selector.
    services_by_selector: LabelIndex,
    pods: BTreeMap<NamespacedName, Arc<Value>>,
    pods_by_label: LabelIndex,
    /// Keys of the pods by uid.
    pods_by_uid: BTreeMap<String, NamespacedName>,
    /// Slices of each Service, by slice name.
    slices: BTreeMap<NamespacedName, BTreeMap<String, Arc<Value>>>,
    /// Services with a pending sync.
    queued: BTreeSet<NamespacedName>,
    /// Number of syncs scheduled so far.
    sync_count: u64,
}

impl EndpointSliceController {
    /// Observes the current state of a Service.
    pub(super) fn observe_service(&mut self, context: &mut ControllerContext<'_>, service: &Arc<Value>, gone: bool) {
        let key = namespaced_name(service);
        let before = if gone { self.services.remove(&key) } else { self.services.insert(key.clone(), service.clone()) };
        if let Some(before) = before {
            self.services_by_selector.remove(&key, first_selected_label(&before).into_iter());
        }
        if !gone {
            self.services_by_selector.insert(&key, first_selected_label(service).into_iter());
            self.enqueue(context, key);
        }
    }

    /// Observes the current state of a pod, and the one before.
    pub(super) fn observe_pod(
        &mut self,
        context: &mut ControllerContext<'_>,
        pod: &Arc<Value>,
        before: Option<&Value>,
        gone: bool,
    ) {
        let key = namespaced_name(pod);
        let cached = if gone { self.pods.remove(&key) } else { self.pods.insert(key.clone(), pod.clone()) };
        if let Some(cached) = cached {
            self.pods_by_label.remove(&key, labels(&cached));
            self.pods_by_uid.remove(uid(&cached));
        }
        if !gone {
            self.pods_by_label.insert(&key, labels(pod));
            self.pods_by_uid.insert(uid(pod).to_owned(), key.clone());
        }
        let versions = || std::iter::once(&**pod).chain(before);
        let candidates = versions().flat_map(labels).flat_map(|(label, value)| {
            self.services_by_selector.names(&key.0, label, value).map(|name| (key.0.clone(), name.to_owned()))
        });
        let is_selected = |service: &NamespacedName| {
            let service = self.services.get(service);
            service.is_some_and(|service| versions().any(|version| selects(service, version)))
        };
        let affected: BTreeSet<NamespacedName> = candidates.filter(is_selected).collect();
        for service in affected {
            self.enqueue(context, service);
        }
    }

    /// Observes the current state of a slice. Changes by other writers are corrected.
    pub(super) fn observe_slice(&mut self, context: &mut ControllerContext<'_>, slice: &Arc<Value>, gone: bool) {
        let (namespace, name) = namespaced_name(slice);
        let service = (namespace, slice["metadata"]["labels"][SERVICE_LABEL].as_str().unwrap_or_default().to_owned());
        let slices = self.slices.entry(service.clone()).or_default();
        if gone {
            slices.remove(&name);
        } else {
            slices.insert(name, slice.clone());
        }
        if self.services.contains_key(&service) {
            self.enqueue(context, service);
        }
    }

    fn enqueue(&mut self, context: &mut ControllerContext<'_>, service: NamespacedName) {
        if self.queued.insert(service.clone()) {
            self.sync_count += 1;
            let delay = context.latencies.sample(&context.latencies.endpoints, "endpoints", self.sync_count);
            context.schedule_after(delay, Task::SyncEndpoints(service));
        }
    }

    /// Creates or updates the slice of a Service.
    pub(super) fn sync(&mut self, now: Timestamp, api: &mut ApiServer, key: &NamespacedName) {
        self.queued.remove(key);
        let Some(service) = self.services.get(key).filter(|service| has_selector(service) && !is_terminating(service))
        else {
            return;
        };
        let candidates = first_selected_label(service).into_iter();
        let candidates = candidates.flat_map(|(label, value)| self.pods_with_label(&key.0, label, value));
        let pods: Vec<&Value> =
            candidates.map(AsRef::as_ref).filter(|pod| selects(service, pod) && is_endpoint(pod)).collect();
        let wanted = desired_slice(service, &pods);
        let existing = self.slices.get(key).and_then(|slices| {
            slices.values().find(|slice| {
                slice["metadata"]["labels"][MANAGED_BY_LABEL] == CONTROLLER_NAME && !is_terminating(slice)
            })
        });
        let Some(existing) = existing else {
            // A terminating namespace rejects new objects (403).
            let created = api.create(now, wanted);
            assert!(created.as_ref().err().is_none_or(|error| error.code == 403), "{created:?}");
            return;
        };
        let labels = |slice: &Value| slice["metadata"]["labels"].clone();
        if SYNCED_FIELDS.iter().all(|part| existing[part] == wanted[part]) && labels(existing) == labels(&wanted) {
            return;
        }
        let sync = |slice: &mut Value| {
            for part in SYNCED_FIELDS {
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
    pub(super) fn ready_pod_uid(&self, namespace: &str, service: &str, port: &str) -> Option<&str> {
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
    pub(super) fn ready_worker_ips(&self, namespace: &str, cluster: &str) -> Vec<String> {
        let is_worker =
            |pod: &&Arc<Value>| pod["metadata"]["labels"]["ray.io/node-type"] == "worker" && !is_terminating(pod);
        let pods = self.pods_with_label(namespace, "ray.io/cluster", cluster).filter(is_worker);
        let ready = pods.filter(|pod| condition_status(pod, "Ready") == "True");
        ready.map(|pod| text(pod, "/status/podIP").to_owned()).collect()
    }

    /// Returns the pod with a uid; `None` if there is none in the namespace.
    pub(super) fn pod_by_uid(&self, namespace: &str, wanted: &str) -> Option<&Arc<Value>> {
        self.pods.get(self.pods_by_uid.get(wanted).filter(|key| key.0 == namespace)?)
    }

    fn pods_with_label<'a>(
        &'a self,
        namespace: &'a str,
        label: &str,
        value: &str,
    ) -> impl Iterator<Item = &'a Arc<Value>> + use<'a> {
        let names: Vec<&str> = self.pods_by_label.names(namespace, label, value).collect();
        names.into_iter().filter_map(|name| self.pods.get(&(namespace.to_owned(), name.to_owned())))
    }
}

/// Fields of a slice that the controller syncs in addition to labels.
const SYNCED_FIELDS: [&str; 2] = ["endpoints", "ports"];

fn labels(object: &Value) -> impl Iterator<Item = (&str, &str)> {
    map_entries(object, "/metadata/labels").filter_map(|(label, value)| Some((label, value.as_str()?)))
}

/// Returns a label that each pod of a Service has; `None` if it selects no pods.
fn first_selected_label(service: &Value) -> Option<(&str, &str)> {
    let (label, value) = map_entries(service, "/spec/selector").next()?;
    Some((label, value.as_str()?))
}

fn has_selector(service: &Value) -> bool {
    text(service, "/spec/type") != "ExternalName" && map_entries(service, "/spec/selector").next().is_some()
}

fn selects(service: &Value, pod: &Value) -> bool {
    let labels = &pod["metadata"]["labels"];
    has_selector(service)
        && map_entries(service, "/spec/selector").all(|(label, value)| labels.get(label) == Some(value))
}

/// Returns true if a selected pod is an endpoint, ready or not.
fn is_endpoint(pod: &Value) -> bool {
    !has_ended(pod) && !text(pod, "/status/podIP").is_empty()
}

fn desired_slice(service: &Value, pods: &[&Value]) -> Value {
    let name = text(service, "/metadata/name");
    let endpoints: Vec<Value> = pods.iter().map(|pod| pod_to_endpoint(service, pod)).collect();
    let ports = pods.first().map(|pod| resolve_ports(service, pod));
    let mut labels = service["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    labels.insert(SERVICE_LABEL.to_owned(), json!(name));
    labels.insert(MANAGED_BY_LABEL.to_owned(), json!(CONTROLLER_NAME));
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
fn pod_to_endpoint(service: &Value, pod: &Value) -> Value {
    let serving = condition_status(pod, "Ready") == "True";
    let terminating = is_terminating(pod);
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
fn resolve_ports(service: &Value, pod: &Value) -> Value {
    let resolved = |port: &Value| {
        let protocol = Some(text(port, "/protocol")).filter(|protocol| !protocol.is_empty()).unwrap_or("TCP");
        let number = match port.get("targetPort") {
            Some(Value::String(name)) => resolve_named_port(pod, name, protocol)?,
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

fn resolve_named_port(pod: &Value, name: &str, protocol: &str) -> Option<Value> {
    let mut ports = items(pod, "/spec/containers").flat_map(|container| items(container, "/ports"));
    let named = ports.find(|port| {
        text(port, "/name") == name && matches!(text(port, "/protocol"), own if own == protocol || own.is_empty())
    })?;
    named.get("containerPort").cloned()
}
