//! Lists all objects of a namespace.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client};
use serde_json::Value;

use crate::script::executor::api_resource;
use crate::script::manifests::ScriptNamespace;

/// Namespaced kinds that Sluice or users read or write.
pub(super) const NAMESPACED: [&str; 7] =
    ["RayService", "RayCluster", "LocalQueue", "Workload", "Pod", "Service", "EndpointSlice"];
/// Cluster-scoped kinds that Sluice or users read or write.
pub(super) const CLUSTER_SCOPED: [&str; 4] = ["ResourceFlavor", "WorkloadPriorityClass", "Cohort", "ClusterQueue"];

/// Kind and name of an object.
pub(super) type KindAndName = (&'static str, String);
/// Objects by kind and name.
pub(super) type Dump = BTreeMap<KindAndName, Value>;

/// Lists all objects of a namespace, and the cluster-scoped objects with its prefix.
///
/// # Errors
/// When the API server cannot be read.
pub(super) async fn dump(client: &Client, place: &ScriptNamespace) -> Result<Dump, kube::Error> {
    let mut dump = Dump::new();
    for kind in NAMESPACED {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &place.name, &api_resource(kind));
        insert_objects(&mut dump, kind, api.list(&ListParams::default()).await?.items);
    }
    for kind in CLUSTER_SCOPED {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &api_resource(kind));
        let own = place.cluster_scoped_name("");
        let listed = api.list(&ListParams::default()).await?.items.into_iter();
        let is_own = |object: &DynamicObject| object.metadata.name.as_ref().is_some_and(|name| name.starts_with(&own));
        insert_objects(&mut dump, kind, listed.filter(is_own).collect());
    }
    Ok(dump)
}

/// Reason of a job between its release of quota and the next pending reason. Both updates may be
/// merged into one.
const TRANSIENT_REASON: &str = "PendingEvaluation";

/// Placeholder for the pending reasons of insufficient quota. Which of them is reported may be out
/// of date (`src/queue/message_refresh.rs`).
pub(super) const PENDING_FOR_QUOTA: &str = "<pending for quota>";

/// True for the pending reasons of insufficient quota.
pub(super) fn is_pending_for_quota(reason: &str) -> bool {
    matches!(reason, "WaitingForQuota" | "ExceedsMaxQuota")
}

/// Returns the reasons of all Events of Sluice in a namespace, each after the kind of its object.
///
/// # Errors
/// When the API server cannot be read.
pub(super) async fn event_reasons(client: &Client, place: &ScriptNamespace) -> Result<BTreeSet<String>, kube::Error> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &place.name, &api_resource("Event"));
    let listed = api.list(&ListParams::default()).await?;
    let text = |event: &DynamicObject, pointer: &str| {
        event.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let by_sluice = listed.iter().filter(|event| text(event, "/reportingController").contains("sluice"));
    let lasting = by_sluice.filter(|event| text(event, "/reason") != TRANSIENT_REASON);
    let named = lasting.map(|event| {
        let reason = text(event, "/reason");
        let reason = if is_pending_for_quota(&reason) { PENDING_FOR_QUOTA } else { &reason };
        format!("{} {reason}", text(event, "/regarding/kind"))
    });
    Ok(named.collect())
}

fn insert_objects(dump: &mut Dump, kind: &'static str, objects: Vec<DynamicObject>) {
    for object in objects {
        let name = object.metadata.name.clone().unwrap_or_default();
        // Objects in lists may lack kind and apiVersion.
        let mut object = serde_json::to_value(object).unwrap_or_default();
        object["kind"] = kind.into();
        object.as_object_mut().into_iter().for_each(|object| drop(object.remove("apiVersion")));
        dump.insert((kind, name), object);
    }
}
