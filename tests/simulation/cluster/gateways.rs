//! Gateway controller: accepts Gateways and HTTPRoutes some time after they change, and writes
//! their status.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::object_view::{items, namespaced_name, rfc3339_seconds, text};
use super::{ControllerContext, Task};
use crate::api::{ApiServer, ObjectChange};

/// Kind, namespace and name of a Gateway or an HTTPRoute.
pub(super) type GatewayObjectKey = (&'static str, String, String);

/// Controller of all Gateways and HTTPRoutes.
#[derive(Debug, Default)]
pub(super) struct GatewayController {
    /// Existing Gateways and HTTPRoutes.
    known: BTreeSet<GatewayObjectKey>,
    /// Objects with a pending status update.
    queued: BTreeSet<GatewayObjectKey>,
    /// Number of status updates scheduled so far.
    sync_count: u64,
}

impl GatewayController {
    /// Observes a change of a Gateway, an HTTPRoute or a Service.
    pub(super) fn observe(&mut self, context: &mut ControllerContext<'_>, change: &ObjectChange) {
        let (namespace, name) = namespaced_name(&change.object);
        let kind = match change.kind.kind.as_str() {
            "Gateway" => "Gateway",
            "HTTPRoute" => "HTTPRoute",
            // The backends of routes in the namespace may resolve differently now.
            "Service" => {
                let routes = self
                    .known
                    .iter()
                    .filter(|(kind, route_namespace, _)| *kind == "HTTPRoute" && *route_namespace == namespace);
                let routes: Vec<GatewayObjectKey> = routes.cloned().collect();
                for route in routes {
                    self.enqueue(context, route);
                }
                return;
            }
            _ => return,
        };
        let way = (kind, namespace, name);
        if change.deleted {
            self.known.remove(&way);
        } else {
            self.known.insert(way.clone());
            self.enqueue(context, way);
        }
    }

    fn enqueue(&mut self, context: &mut ControllerContext<'_>, way: GatewayObjectKey) {
        if self.queued.insert(way.clone()) {
            self.sync_count += 1;
            let delay = context.latencies.sample(&context.latencies.endpoints, "gateways", self.sync_count);
            context.schedule_after(delay, Task::SyncGatewayStatus(way));
        }
    }

    /// Writes the status of a Gateway or an HTTPRoute.
    pub(super) fn sync_status(&mut self, now: Timestamp, api: &mut ApiServer, way: &GatewayObjectKey) {
        self.queued.remove(way);
        let (kind, namespace, name) = way;
        let Some(object) = api.get(kind, namespace, name).cloned() else { return };
        let wanted = match *kind {
            "Gateway" => {
                let class = api.get("GatewayClass", "", text(&object, "/spec/gatewayClassName")).is_some();
                json!({"conditions": conditions(now, &object, [("Accepted", class), ("Programmed", class)])})
            }
            _ => {
                let exists = |backend: &Value| api.get("Service", namespace, text(backend, "/name")).is_some();
                let mut backends = items(&object, "/spec/rules").flat_map(|rule| items(rule, "/backendRefs"));
                let resolved = backends.all(exists);
                let parents = items(&object, "/spec/parentRefs").map(|parent| {
                    let conditions = conditions(now, &object, [("Accepted", true), ("ResolvedRefs", resolved)]);
                    json!({"parentRef": parent, "controllerName": "sluice.dev/simulated", "conditions": conditions})
                });
                json!({"parents": parents.collect::<Vec<_>>()})
            }
        };
        if without_times(&object["status"]) != without_times(&wanted) {
            let changed = api.update_status(now, kind, namespace, name, |way| way["status"] = wanted);
            changed.expect("the object exists");
        }
    }
}

fn conditions(now: Timestamp, object: &Value, wanted: [(&str, bool); 2]) -> Vec<Value> {
    let condition = |(kind, holds): (&str, bool)| {
        json!({
            "type": kind, "status": if holds { "True" } else { "False" }, "reason": if holds { kind } else { "Invalid" },
            "message": "", "observedGeneration": object["metadata"]["generation"], "lastTransitionTime": rfc3339_seconds(now),
        })
    };
    wanted.into_iter().map(condition).collect()
}

fn without_times(status: &Value) -> Value {
    let mut status = status.clone();
    let parents = status.get_mut("parents").and_then(Value::as_array_mut);
    match parents {
        Some(parents) => parents.iter_mut().for_each(clear_times),
        None => clear_times(&mut status),
    }
    status
}

fn clear_times(holder: &mut Value) {
    for condition in holder.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        condition["lastTransitionTime"] = Value::Null;
    }
}
