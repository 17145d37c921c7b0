//! Finalizers that protect objects in use (kueue v0.19.2
//! `pkg/controller/core/clusterqueue_controller.go` and `resourceflavor_controller.go`): a
//! ClusterQueue while workloads hold its quota, a ResourceFlavor while a ClusterQueue lists it.
//! Beyond Kueue, a flavor is also protected while workloads run on it after every ClusterQueue
//! dropped it: their replacement pods need nodes of the same kind.

use std::collections::BTreeSet;

use kube_core::{Resource, ResourceExt};
use serde::Serialize;

use super::cluster_state::ClusterState;
use sluice_api::condition;
use sluice_api::kueue::{ClusterQueue, Workload, names};
use sluice_plan::ObjectKey;
use sluice_plan::{Plan, Write};

/// Returns the write that adds the finalizer to an object, or that releases it once the object is
/// terminating and not in use; `None` if neither is due.
pub(super) fn protect_in_use<K>(object: &K, in_use: bool) -> Option<Write>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + PartialEq,
{
    let held = object.finalizers().iter().any(|finalizer| finalizer == names::RESOURCE_IN_USE_FINALIZER);
    let mut changed = object.clone();
    match (object.meta().deletion_timestamp.is_some(), held) {
        (false, false) => changed.finalizers_mut().push(names::RESOURCE_IN_USE_FINALIZER.to_owned()),
        (true, true) if !in_use => {
            changed.finalizers_mut().retain(|finalizer| finalizer != names::RESOURCE_IN_USE_FINALIZER);
        }
        _ => return None,
    }
    Write::patch(object, &changed)
}

/// Plans the finalizer of a ResourceFlavor.
pub(super) fn plan_resource_flavor(state: &ClusterState, name: &str) -> Plan {
    let mut plan = Plan::default();
    if let Some(flavor) = state.resource_flavors.get(&ObjectKey::global(name)) {
        plan.write(protect_in_use(flavor.as_ref(), is_flavor_in_use(state, name)));
    }
    plan
}

fn is_flavor_in_use(state: &ClusterState, name: &str) -> bool {
    state.cluster_queues.iter().any(|(_, queue)| flavors_of_queue(queue).any(|flavor| flavor == name))
        || state.workloads.iter().any(|(_, workload)| flavors_of_workload(workload).any(|flavor| flavor == name))
}

/// Returns those of `flavors` that are terminating.
pub(super) fn terminating_flavors<'a>(
    state: &ClusterState,
    flavors: impl Iterator<Item = &'a str>,
) -> BTreeSet<String> {
    let is_terminating = |name: &&str| {
        let flavor = state.resource_flavors.get(&ObjectKey::global(*name));
        flavor.is_some_and(|flavor| flavor.metadata.deletion_timestamp.is_some())
    };
    flavors.filter(is_terminating).map(str::to_owned).collect()
}

/// Iterates over the flavors that a ClusterQueue lists.
pub(super) fn flavors_of_queue(queue: &ClusterQueue) -> impl Iterator<Item = &str> {
    queue.spec.resource_groups.iter().flat_map(|group| &group.flavors).map(|flavor| flavor.name.as_str())
}

/// Iterates over the flavors in which a Workload holds quota.
pub(super) fn flavors_of_workload(workload: &Workload) -> impl Iterator<Item = &str> {
    let holding = workload.status.as_ref().filter(|status| {
        condition::is_true(&status.conditions, names::QUOTA_RESERVED)
            && !condition::is_true(&status.conditions, names::FINISHED)
    });
    let admission = holding.and_then(|status| status.admission.as_ref());
    let assignments = admission.into_iter().flat_map(|admission| &admission.pod_set_assignments);
    assignments.flat_map(|assignment| assignment.flavors.values()).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster_state::{WatchedKind, strip_and_wrap};
    use sluice_api::kueue::ResourceFlavor;
    use sluice_plan::WriteOp;

    const HELD: &str = names::RESOURCE_IN_USE_FINALIZER;

    #[rstest]
    #[case::without_finalizer(&[], false, false, Some(json!([HELD])))]
    #[case::with_another_finalizer(&["other"], false, false, Some(json!(["other", HELD])))]
    #[case::with_finalizer(&[HELD], false, false, None)]
    #[case::terminating_in_use(&[HELD, "other"], true, true, None)]
    #[case::terminating_unused(&[HELD, "other"], true, false, Some(json!(["other"])))]
    #[case::already_released(&["other"], true, false, None)]
    fn object_in_use_is_protected_by_a_finalizer(
        #[case] finalizers: &[&str],
        #[case] terminating: bool,
        #[case] in_use: bool,
        #[case] expected: Option<Value>,
    ) {
        let mut flavor = ResourceFlavor::default();
        flavor.metadata.finalizers = Some(finalizers.iter().map(|name| (*name).to_owned()).collect());
        flavor.metadata.deletion_timestamp = terminating.then_some(Time(jiff::Timestamp::UNIX_EPOCH));

        let write = protect_in_use(&flavor, in_use);

        let expected = expected.map(|left| WriteOp::Patch(json!({"metadata": {"finalizers": left}})));
        assert_eq!(write.map(|write| write.op), expected);
    }

    fn observe<K: WatchedKind>(state: &mut ClusterState, mut manifest: Value) {
        manifest["metadata"]["name"] = "x".into();
        manifest["metadata"]["resourceVersion"] = "1".into();
        state.apply(strip_and_wrap(serde_json::from_value::<K>(manifest).expect("an object")));
    }

    fn workload(conditions: &[&str]) -> Value {
        let conditions = conditions.iter().map(|kind| {
            json!({"type": kind, "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        let assignment = json!({"name": "main", "flavors": {"cpu": "spot"}});
        let admission = json!({"clusterQueue": "x", "podSetAssignments": [assignment]});
        let status = json!({"conditions": conditions.collect::<Vec<_>>(), "admission": admission});
        json!({"metadata": {}, "spec": {"podSets": []}, "status": status})
    }

    #[test]
    fn flavor_is_in_use_while_a_queue_lists_it_or_a_workload_holds_its_quota() {
        let mut state = ClusterState::default();
        assert!(!is_flavor_in_use(&state, "spot"));

        let quota = json!({"name": "cpu", "nominalQuota": 1});
        let groups = json!([{"coveredResources": ["cpu"], "flavors": [{"name": "spot", "resources": [quota]}]}]);
        observe::<ClusterQueue>(&mut state, json!({"metadata": {}, "spec": {"resourceGroups": groups}}));
        assert!(is_flavor_in_use(&state, "spot"));

        let mut state = ClusterState::default();
        observe::<Workload>(&mut state, workload(&["QuotaReserved"]));
        assert!(is_flavor_in_use(&state, "spot"));

        let mut state = ClusterState::default();
        observe::<Workload>(&mut state, workload(&["QuotaReserved", "Finished"]));
        assert!(!is_flavor_in_use(&state, "spot"));
    }
}
