//! Who lets requests in: takes Gateways and routes as they are, a while after they have changed, and says so.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::read::{items, key, stamp, text};
use super::{Chore, Desk};
use crate::api::{Api, Change};

/// A Gateway or a route, by its kind, namespace and name.
pub(super) type Way = (&'static str, String, String);

/// The controller of all Gateways.
#[derive(Debug, Default)]
pub(super) struct Gateways {
    /// Those that are there.
    known: BTreeSet<Way>,
    /// Those that are about to be looked at.
    due: BTreeSet<Way>,
    /// How often one was.
    rounds: u64,
}

impl Gateways {
    /// Takes note of a change.
    pub(super) fn see(&mut self, desk: &mut Desk<'_>, change: &Change) {
        let (namespace, name) = key(&change.object);
        let kind = match change.kind.kind.as_str() {
            "Gateway" => "Gateway",
            "HTTPRoute" => "HTTPRoute",
            // A route that leads to it is right or wrong now.
            "Service" => {
                let routes = self.known.iter().filter(|(kind, of, _)| *kind == "HTTPRoute" && *of == namespace);
                let routes: Vec<Way> = routes.cloned().collect();
                return routes.into_iter().for_each(|route| self.plan(desk, route));
            }
            _ => return,
        };
        let way = (kind, namespace, name);
        if change.gone {
            self.known.remove(&way);
        } else {
            self.known.insert(way.clone());
            self.plan(desk, way);
        }
    }

    fn plan(&mut self, desk: &mut Desk<'_>, way: Way) {
        if self.due.insert(way.clone()) {
            self.rounds += 1;
            let delay = desk.pace.draw(&desk.pace.endpoints, "gateways", self.rounds);
            desk.after(delay, Chore::LetIn(way));
        }
    }

    /// Says of a Gateway or a route what became of it.
    pub(super) fn let_in(&mut self, now: Timestamp, api: &mut Api, way: &Way) {
        self.due.remove(way);
        let (kind, namespace, name) = way;
        let Some(object) = api.get(kind, namespace, name).cloned() else { return };
        let wanted = match *kind {
            "Gateway" => {
                let class = api.get("GatewayClass", "", text(&object, "/spec/gatewayClassName")).is_some();
                json!({"conditions": conditions(now, &object, [("Accepted", class), ("Programmed", class)])})
            }
            _ => {
                let leads = |backend: &Value| api.get("Service", namespace, text(backend, "/name")).is_some();
                let mut backends = items(&object, "/spec/rules").flat_map(|rule| items(rule, "/backendRefs"));
                let resolved = backends.all(leads);
                let parents = items(&object, "/spec/parentRefs").map(|parent| {
                    let conditions = conditions(now, &object, [("Accepted", true), ("ResolvedRefs", resolved)]);
                    json!({"parentRef": parent, "controllerName": "sluice.dev/simulated", "conditions": conditions})
                });
                json!({"parents": parents.collect::<Vec<_>>()})
            }
        };
        if without_times(&object["status"]) != without_times(&wanted) {
            let changed = api.update_status(now, kind, namespace, name, |way| way["status"] = wanted);
            changed.expect("it is there");
        }
    }
}

fn conditions(now: Timestamp, object: &Value, wanted: [(&str, bool); 2]) -> Vec<Value> {
    let condition = |(kind, holds): (&str, bool)| {
        json!({
            "type": kind, "status": if holds { "True" } else { "False" }, "reason": if holds { kind } else { "Invalid" },
            "message": "", "observedGeneration": object["metadata"]["generation"], "lastTransitionTime": stamp(now),
        })
    };
    wanted.into_iter().map(condition).collect()
}

fn without_times(status: &Value) -> Value {
    let mut status = status.clone();
    let parents = status.get_mut("parents").and_then(Value::as_array_mut);
    match parents {
        Some(parents) => parents.iter_mut().for_each(forget_times),
        None => forget_times(&mut status),
    }
    status
}

fn forget_times(holder: &mut Value) {
    for condition in holder.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        condition["lastTransitionTime"] = Value::Null;
    }
}
