//! Detects objects that show pending work.
//!
//! Work in progress is visible in the objects, except between a change and the reaction of its
//! watchers. So a system is quiescent if no object shows pending work and all watchers had time to
//! react to the last change. This module checks the first half; callers check the second.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::Value;
use sluice_api::kueue::Workload;
use sluice_api::kueue::cluster_queue::FlavorUsage;
use sluice_api::quantity::Amount;

use crate::quiescence::reserved_amounts;
use sluice_testkit::history::State;
use sluice_testkit::invariants::usage;

/// Deletion time of a cluster that no longer serves.
const DELETE_AFTER: &str = "/metadata/annotations/sluice.dev~1delete-after";

/// Returns an object with pending work and a description, if any.
pub(super) fn pending_work<'a>(objects: impl Iterator<Item = &'a Value> + Clone) -> Option<String> {
    let uids: BTreeSet<&str> = objects.clone().map(|object| text(object, "/metadata/uid")).collect();
    let workloads = objects.clone().filter(|object| text(object, "/kind") == "Workload").map(decoded::<Workload>);
    let all = ObjectSet { objects, workloads: State::from_workloads(workloads) };
    all.objects.clone().find_map(|object| {
        let why = terminating_reason(object).or_else(|| orphaned_reason(object, &uids)).or_else(|| {
            match text(object, "/kind") {
                "RayService" => all.service(object),
                "RayCluster" => all.cluster(object),
                "ClusterQueue" => all.queue(text(object, "/metadata/name"), &object["status"]),
                "LocalQueue" => all.queue(text(object, "/spec/clusterQueue"), &object["status"]),
                "Workload" => all.workload(object),
                "Pod" => pod(object),
                "Service" => all.endpoints(object),
                _ => None,
            }
        });
        why.map(|why| format!("{} {}: {why}", text(object, "/kind"), text(object, "/metadata/name")))
    })
}

struct ObjectSet<I> {
    objects: I,
    /// Its Workloads, decoded.
    workloads: State,
}

impl<'a, I: Iterator<Item = &'a Value> + Clone> ObjectSet<I> {
    fn named(&self, kind: &'static str, name: &str) -> Option<&'a Value> {
        self.objects.clone().find(|object| text(object, "/kind") == kind && text(object, "/metadata/name") == name)
    }

    fn service(&self, service: &Value) -> Option<String> {
        if is_unobserved(service) {
            return Some("its last change was not observed".into());
        }
        if service.pointer("/spec/suspend") == Some(&Value::Bool(true)) {
            return (!is_true(service, "Suspended")).then(|| "is not suspended yet".into());
        }
        let child = |part| {
            let name = text(service, &format!("/status/{part}ServiceStatus/rayClusterName"));
            (!name.is_empty()).then(|| self.named("RayCluster", name))
        };
        match (child("active"), child("pending")) {
            (None, None) => Some("has no cluster".into()),
            (Some(None), _) | (_, Some(None)) => Some("names a cluster that does not exist".into()),
            (_, Some(Some(pending))) if !is_suspended(pending) => Some("is upgrading to another cluster".into()),
            (Some(Some(active)), _) if !is_suspended(active) => {
                let applications = service.pointer("/status/activeServiceStatus/applicationStatuses");
                let applications = applications.and_then(Value::as_object);
                let run = applications.is_some_and(|all| {
                    !all.is_empty() && all.values().all(|application| text(application, "/status") == "RUNNING")
                });
                (!is_true(service, "Ready") || !run).then(|| "does not serve yet".into())
            }
            _ => None,
        }
    }

    fn cluster(&self, cluster: &Value) -> Option<String> {
        let name = text(cluster, "/metadata/name");
        if is_unobserved(cluster) {
            return Some("its last change was not observed".into());
        }
        if cluster.pointer(DELETE_AFTER).is_some() {
            return Some("will be deleted".into());
        }
        let is_own = |object: &&Value| {
            text(object, "/kind") == "Pod" && text(object, "/metadata/labels/ray.io~1cluster") == name
        };
        let pods = self.objects.clone().filter(is_own).count();
        match (is_suspended(cluster), pods) {
            (true, 0) => None,
            (true, _) => Some("is suspended and has pods".into()),
            (false, 0) => Some("has no pods yet".into()),
            (false, _) => (!is_true(cluster, "HeadPodReady")).then(|| "has no head yet".into()),
        }
    }

    /// Checks the EndpointSlices of a Service: their controller delays updates after a change of
    /// the Service.
    fn endpoints(&self, service: &Value) -> Option<String> {
        let selector = service.pointer("/spec/selector").and_then(Value::as_object)?;
        let name = text(service, "/metadata/name");
        let of_kind = |kind: &'static str| self.objects.clone().filter(move |object| text(object, "/kind") == kind);
        let is_selected =
            |pod: &&Value| selector.iter().all(|(label, value)| pod["metadata"]["labels"].get(label) == Some(value));
        let runs = |pod: &&Value| text(pod, "/status/phase") == "Running" && is_true(pod, "Ready");
        let selected = of_kind("Pod").filter(is_selected).filter(runs).map(|pod| text(pod, "/metadata/uid"));
        let is_its = |slice: &&Value| text(slice, "/metadata/labels/kubernetes.io~1service-name") == name;
        let slices = of_kind("EndpointSlice").filter(is_its).filter_map(|slice| slice["endpoints"].as_array());
        let published = slices.flatten().map(|endpoint| text(endpoint, "/targetRef/uid"));
        let (selected, published): (BTreeSet<&str>, BTreeSet<&str>) = (selected.collect(), published.collect());
        (selected != published).then(|| "its endpoints do not match its selector yet".into())
    }

    /// Checks the status of a queue, which is written at most once a second.
    fn queue(&self, cluster_queue: &str, status: &Value) -> Option<String> {
        let reservation: Vec<FlavorUsage> = status.get("flavorsReservation").map(decoded).unwrap_or_default();
        let mut held = usage(&self.workloads).remove(cluster_queue).unwrap_or_default();
        held.retain(|_, amount| *amount != Amount::ZERO);
        (reserved_amounts(reservation.iter()) != held).then(|| "its status does not have its usage yet".into())
    }

    /// Checks a Workload: when admitted, all of its clusters must be unsuspended.
    fn workload(&self, workload: &Value) -> Option<String> {
        if is_true(workload, "Finished") {
            return None;
        }
        if workload.pointer("/status/conditions").is_none() {
            return Some("has no condition yet".into());
        }
        let (admitted, evicted) = (is_true(workload, "Admitted"), is_true(workload, "Evicted"));
        let releases = evicted || is_true(workload, "sluice.dev/PartiallyPreempted");
        if releases && is_true(workload, "QuotaReserved") {
            return Some("has not released its quota".into());
        }
        if is_true(workload, "QuotaReserved") && !admitted {
            return Some("is not admitted yet".into());
        }
        let record: Value = serde_json::from_str(text(workload, "/metadata/annotations/sluice.dev~1slice")).ok()?;
        let members = record.pointer("/members").and_then(Value::as_array)?;
        let closed = members.iter().filter_map(|member| self.named("RayCluster", text(member, "/name")));
        let closed = closed.filter(|cluster| is_suspended(cluster)).count();
        (admitted && closed > 0).then(|| "is admitted, and a cluster is still suspended".into())
    }
}

fn decoded<T: DeserializeOwned>(value: &Value) -> T {
    T::deserialize(value).unwrap_or_else(|error| panic!("{value}: {error}"))
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|found| found["type"] == condition && found["status"] == "True")
}

fn is_suspended(cluster: &Value) -> bool {
    cluster.pointer("/spec/suspend") == Some(&Value::Bool(true))
}

fn is_unobserved(object: &Value) -> bool {
    object.pointer("/status/observedGeneration") != object.pointer("/metadata/generation")
}

fn terminating_reason(object: &Value) -> Option<String> {
    object.pointer("/metadata/deletionTimestamp").map(|_| "is terminating".into())
}

fn orphaned_reason(object: &Value, uids: &BTreeSet<&str>) -> Option<String> {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array)?;
    let orphaned = owners.iter().any(|owner| !uids.contains(text(owner, "/uid")));
    orphaned.then(|| "has an owner that was deleted".into())
}

fn pod(pod: &Value) -> Option<String> {
    let gated = pod.pointer("/spec/schedulingGates").and_then(Value::as_array).is_some_and(|gates| !gates.is_empty());
    (!gated && !is_true(pod, "Ready")).then(|| "is not ready yet".into())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn slice(conditions: &[(&str, &str)]) -> Value {
        let condition = |(kind, status): &(&str, &str)| {
            json!({"type": kind, "status": status, "reason": "R", "message": "",
                   "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let conditions: Vec<Value> = conditions.iter().map(condition).collect();
        json!({"spec": {"podSets": []}, "status": {"conditions": conditions}})
    }

    fn object(kind: &str, more: Value) -> Value {
        let mut object = json!({"kind": kind, "metadata": {"name": "x", "uid": "u", "generation": 1}});
        let (fields, more) = (object.as_object_mut(), more.as_object().cloned());
        fields.into_iter().for_each(|fields| fields.extend(more.clone().into_iter().flatten()));
        object
    }

    fn condition(kind: &str) -> Value {
        json!([{"type": kind, "status": "True"}])
    }

    #[rstest]
    #[case::starting_pod("Pod", json!({"status": {"conditions": []}}), Some("is not ready yet"))]
    #[case::ready_pod("Pod", json!({"status": {"conditions": condition("Ready")}}), None)]
    #[case::gated_pod("Pod", json!({"spec": {"schedulingGates": [{"name": "g"}]}}), None)]
    #[case::unobserved_change("RayService", json!({"status": {"observedGeneration": 0}}), Some("not observed"))]
    #[case::suspending_service(
        "RayService",
        json!({"spec": {"suspend": true}, "status": {"observedGeneration": 1}}),
        Some("is not suspended yet")
    )]
    #[case::suspended_service(
        "RayService",
        json!({"spec": {"suspend": true}, "status": {"observedGeneration": 1, "conditions": condition("Suspended")}}),
        None
    )]
    #[case::starting_cluster("RayCluster", json!({"status": {"observedGeneration": 1}}), Some("has no pods yet"))]
    #[case::suspended_cluster(
        "RayCluster",
        json!({"spec": {"suspend": true}, "status": {"observedGeneration": 1}}),
        None
    )]
    #[case::evicted_slice(
        "Workload",
        slice(&[("QuotaReserved", "True"), ("Admitted", "True"), ("Evicted", "True")]),
        Some("has not released its quota")
    )]
    #[case::new_slice("Workload", json!({"spec": {"podSets": []}}), Some("has no condition yet"))]
    #[case::pending_slice("Workload", slice(&[("QuotaReserved", "False")]), None)]
    fn pending_work_of_an_object_is_detected(#[case] kind: &str, #[case] more: Value, #[case] expected: Option<&str>) {
        let object = object(kind, more);

        let found = pending_work([&object].into_iter());

        assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
        assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()));
    }

    #[rstest]
    #[case::outdated(json!([]), true)]
    #[case::current(json!([{"name": "f", "resources": [{"name": "cpu", "total": "2"}]}]), false)]
    fn status_of_a_queue_has_the_usage_of_its_workloads(#[case] reservation: Value, #[case] pending: bool) {
        let mut holder = object("Workload", slice(&[("QuotaReserved", "True"), ("Admitted", "True")]));
        let assignment = json!({"name": "main", "flavors": {"cpu": "f"}, "resourceUsage": {"cpu": "2"}, "count": 1});
        holder["status"]["admission"] = json!({"clusterQueue": "c", "podSetAssignments": [assignment]});
        let status = json!({"flavorsReservation": reservation});
        let queue = object("LocalQueue", json!({"spec": {"clusterQueue": "c"}, "status": status}));

        let found = pending_work([&holder, &queue].into_iter());

        assert_eq!(found.is_some(), pending, "{found:?}");
    }

    #[test]
    fn terminating_and_orphaned_objects_are_pending_work() {
        let terminating = json!({"kind": "Service", "metadata": {"name": "x", "uid": "u", "deletionTimestamp": "t"}});
        let orphan =
            json!({"kind": "Service", "metadata": {"name": "x", "uid": "u", "ownerReferences": [{"uid": "v"}]}});

        assert!(pending_work([&terminating].into_iter()).is_some_and(|why| why.contains("is terminating")));
        assert!(pending_work([&orphan].into_iter()).is_some_and(|why| why.contains("has an owner that was deleted")));
    }

    #[rstest]
    #[case::no_endpoint(json!([]), true)]
    #[case::deleted_pod(json!([{"targetRef": {"uid": "pod"}}, {"targetRef": {"uid": "another"}}]), true)]
    #[case::ready_pod(json!([{"targetRef": {"uid": "pod"}}]), false)]
    fn endpoints_of_a_service_must_be_its_ready_pods(#[case] endpoints: Value, #[case] pending: bool) {
        let service =
            json!({"kind": "Service", "metadata": {"name": "x", "uid": "s"}, "spec": {"selector": {"app": "a"}}});
        let status = json!({"phase": "Running", "conditions": condition("Ready")});
        let pod =
            json!({"kind": "Pod", "metadata": {"name": "p", "uid": "pod", "labels": {"app": "a"}}, "status": status});
        let labels = json!({"kubernetes.io/service-name": "x"});
        let slice =
            json!({"kind": "EndpointSlice", "metadata": {"labels": labels, "uid": "e"}, "endpoints": endpoints});

        let found = pending_work([&service, &pod, &slice].into_iter());

        assert_eq!(found.is_some(), pending, "{found:?}");
    }
}
