//! Flavor, ClusterQueues, namespaces and LocalQueues.

use serde_json::{Value, json};

use super::{CLUSTER_QUEUES, CPU, FLAVOR, LOCAL_QUEUES, NAMESPACES, NewObject, RESOURCE_FLAVORS};
use crate::plan::{LoadPlan, PlannedQueue};
use crate::scenario::Kind;

/// Quota of memory where pods request some: more than any scenario uses.
const PLENTY: &str = "1Pi";

/// Returns everything that Workloads need to be queued, in the order of creation. The cohorts exist
/// because ClusterQueues name them.
pub fn queues(plan: &LoadPlan) -> Vec<NewObject> {
    let flavor = kueue("ResourceFlavor", json!({"name": FLAVOR}), json!({}));
    let mut objects = vec![NewObject { resource: RESOURCE_FLAVORS, namespace: None, body: flavor }];
    for queue in &plan.queues {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": queue.name}});
        let local = json!({"name": queue.name, "namespace": queue.name});
        let local = kueue("LocalQueue", local, json!({"clusterQueue": queue.name}));
        objects.extend([
            NewObject { resource: CLUSTER_QUEUES, namespace: None, body: cluster_queue(plan, queue) },
            NewObject { resource: NAMESPACES, namespace: None, body: namespace },
            NewObject { resource: LOCAL_QUEUES, namespace: Some(queue.name.clone()), body: local },
        ]);
    }
    objects
}

fn cluster_queue(plan: &LoadPlan, queue: &PlannedQueue) -> Value {
    let mut quota = json!({"name": CPU, "nominalQuota": queue.nominal.to_quantity(CPU)});
    if let Some(limit) = queue.borrowing_limit {
        quota["borrowingLimit"] = json!(limit.to_quantity(CPU));
    }
    let (mut resources, mut quotas) = (vec![CPU], vec![quota]);
    // The init container that the operator adds to Ray workers requests memory.
    if plan.kinds().into_iter().any(Kind::is_ray) {
        resources.push("memory");
        quotas.push(json!({"name": "memory", "nominalQuota": PLENTY}));
    }
    let preemption = json!({
        "reclaimWithinCohort": format!("{:?}", queue.preemption.reclaim_within_cohort),
        "withinClusterQueue": format!("{:?}", queue.preemption.within_cluster_queue),
    });
    let spec = json!({
        "cohortName": format!("{}-{}", plan.name, queue.cohort),
        "namespaceSelector": {},
        "preemption": preemption,
        "resourceGroups": [{"coveredResources": resources, "flavors": [{"name": FLAVOR, "resources": quotas}]}],
    });
    kueue("ClusterQueue", json!({"name": queue.name}), spec)
}

fn kueue(kind: &str, metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec})
}
