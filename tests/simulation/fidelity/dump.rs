//! All objects of a place.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::Value;

use crate::script::manifests::Place;
use crate::script::perform::resource;

/// Every kind that Sluice reads or writes, or people do, of which there are some in a namespace.
pub(super) const NAMESPACED: [&str; 7] =
    ["RayService", "RayCluster", "LocalQueue", "Workload", "Pod", "Service", "EndpointSlice"];
/// The same, of those which are in no namespace.
pub(super) const GLOBAL: [&str; 4] = ["ResourceFlavor", "WorkloadPriorityClass", "Cohort", "ClusterQueue"];

/// An object's kind and name.
pub(super) type Key = (&'static str, String);
/// Objects by kind and name.
pub(super) type Dump = BTreeMap<Key, Value>;

/// Reads all objects of a place.
///
/// # Errors
/// When the API server can't be asked.
pub(super) async fn dump(client: &Client, place: &Place) -> Result<Dump, kube::Error> {
    let mut dump = Dump::new();
    for kind in NAMESPACED {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &place.namespace, &resource(kind));
        put(&mut dump, kind, api.list(&ListParams::default()).await?.items);
    }
    for kind in GLOBAL {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
        let own = place.global("");
        let listed = api.list(&ListParams::default()).await?.items.into_iter();
        let is_own = |object: &DynamicObject| object.metadata.name.as_ref().is_some_and(|name| name.starts_with(&own));
        put(&mut dump, kind, listed.filter(is_own).collect());
    }
    Ok(dump)
}

/// What a job is told between giving quota back and being told why it waits now. The news of both may come together.
const MOMENTARY: &str = "Pending";

/// What stands for a reason to wait for quota: whether it is more than there is in all may be told as it was up to ten seconds ago
/// (`REFRESH_AFTER` in `src/queue/cycle.rs`).
pub(super) const WAITS_FOR_QUOTA: &str = "<waits for quota>";

/// Whether this is a reason to wait for quota.
pub(super) fn waits_for_quota(reason: &str) -> bool {
    matches!(reason, "WaitingForQuota" | "ExceedsMaxQuota")
}

/// The reasons of all Events of Sluice in a place, each with the kind that it is about.
///
/// # Errors
/// When the API server can't be asked.
pub(super) async fn reasons(client: &Client, place: &Place) -> Result<BTreeSet<String>, kube::Error> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &place.namespace, &resource("Event"));
    let listed = api.list(&ListParams::default()).await?;
    let text = |event: &DynamicObject, pointer: &str| {
        event.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let by_sluice = listed.iter().filter(|event| text(event, "/reportingController").contains("sluice"));
    let lasting = by_sluice.filter(|event| text(event, "/reason") != MOMENTARY);
    let told = lasting.map(|event| {
        let reason = text(event, "/reason");
        let reason = if waits_for_quota(&reason) { WAITS_FOR_QUOTA } else { &reason };
        format!("{} {reason}", text(event, "/regarding/kind"))
    });
    Ok(told.collect())
}

fn put(dump: &mut Dump, kind: &'static str, objects: Vec<DynamicObject>) {
    for object in objects {
        let name = object.metadata.name.clone().unwrap_or_default();
        // Objects in lists don't say their kind, and whether they do is no matter of theirs.
        let mut object = serde_json::to_value(object).unwrap_or_default();
        object["kind"] = kind.into();
        object.as_object_mut().into_iter().for_each(|object| drop(object.remove("apiVersion")));
        dump.insert((kind, name), object);
    }
}
