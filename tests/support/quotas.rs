//! Fixtures for queues, cohorts, and Workloads without a job: the test plays the part of the job.

use jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use sluice_api::condition;
use sluice_api::kueue::{Cohort, LocalQueue, ResourceFlavor, Workload, WorkloadStatus};
use sluice_queue::status;

use super::objects::{NAMESPACE, is_quota_reason};
use super::{TestEnv, eventually, eventually_or_err};

/// Name of the ResourceFlavor of these fixtures.
pub const FLAVOR: &str = "on-demand";

fn kueue_object(kind: &str, namespaced: bool, name: &str, spec: Value) -> Value {
    let mut metadata = json!({"name": name});
    if namespaced {
        metadata["namespace"] = NAMESPACE.into();
    }
    json!({"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec})
}

/// Returns the resource groups with a CPU quota in the one flavor. `more` is merged into the quota.
pub fn cpu_quota(nominal: &str, more: Value) -> Value {
    let mut quota = json!({"name": "cpu", "nominalQuota": nominal});
    quota.as_object_mut().expect("a quota").extend(more.as_object().cloned().unwrap_or_default());
    json!([{"coveredResources": ["cpu"], "flavors": [{"name": FLAVOR, "resources": [quota]}]}])
}

/// Returns the resource groups with a CPU quota, and memory without limit, in the one flavor.
pub fn cpu_and_memory_quota(cpu: &str) -> Value {
    let resources = json!([{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": "1Ti"}]);
    json!([{"coveredResources": ["cpu", "memory"], "flavors": [{"name": FLAVOR, "resources": resources}]}])
}

/// Returns the ResourceFlavor.
pub fn resource_flavor() -> Value {
    kueue_object("ResourceFlavor", false, FLAVOR, json!({}))
}

/// Returns a ClusterQueue for all namespaces. `more` is merged into its spec.
pub fn cluster_queue(name: &str, cohort: Option<&str>, quota: Value, more: Value) -> Value {
    let mut spec = json!({"resourceGroups": quota, "namespaceSelector": {}});
    if let Some(cohort) = cohort {
        spec["cohortName"] = cohort.into();
    }
    spec.as_object_mut().expect("a spec").extend(more.as_object().cloned().unwrap_or_default());
    kueue_object("ClusterQueue", false, name, spec)
}

/// Returns a Cohort.
pub fn cohort(name: &str, parent: Option<&str>, quota: Value) -> Value {
    let mut spec = json!({"resourceGroups": quota});
    if let Some(parent) = parent {
        spec["parentName"] = parent.into();
    }
    kueue_object("Cohort", false, name, spec)
}

/// Returns a LocalQueue with the name of its ClusterQueue.
pub fn local_queue(name: &str) -> Value {
    kueue_object("LocalQueue", true, name, json!({"clusterQueue": name}))
}

/// Returns a Workload of one pod that requests CPU.
pub fn workload(name: &str, queue: &str, cpu: &str, priority: i32) -> Value {
    let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
    let pod_sets = json!([{"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}]);
    kueue_object("Workload", true, name, json!({"queueName": queue, "priority": priority, "podSets": pod_sets}))
}

impl TestEnv {
    /// Returns the API of LocalQueues in the test namespace.
    pub fn local_queues(&self) -> Api<LocalQueue> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Returns the API of ResourceFlavors.
    pub fn resource_flavors(&self) -> Api<ResourceFlavor> {
        Api::all(self.client.clone())
    }

    /// Returns the API of Cohorts.
    pub fn cohorts(&self) -> Api<Cohort> {
        Api::all(self.client.clone())
    }

    /// Applies an object.
    pub async fn apply_object(&self, object: Value) {
        self.apply(&object.to_string()).await.unwrap_or_else(|error| panic!("{object}: {error}"));
    }

    /// Applies a ClusterQueue and its LocalQueue.
    pub async fn apply_queue(&self, name: &str, cohort: Option<&str>, quota: Value, more: Value) {
        self.apply_object(cluster_queue(name, cohort, quota, more)).await;
        self.apply_object(local_queue(name)).await;
    }

    /// Merges `spec` into the spec of a ClusterQueue.
    pub async fn patch_queue(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.cluster_queues().patch(name, &PatchParams::default(), &patch).await.expect("the queue is changed");
    }

    /// Waits until a Workload is admitted.
    pub async fn wait_until_admitted(&self, name: &str) {
        self.wait_for_condition(name, "Admitted", "True", &[]).await;
    }

    /// Waits until a Workload is pending for lack of quota. Returns the condition as text.
    pub async fn wait_until_pending(&self, name: &str) -> String {
        self.wait_for_condition_matching(name, "QuotaReserved", "False", |reason, _| is_quota_reason(reason)).await
    }

    /// Waits until a Workload has a condition with this status whose reason or message contains
    /// each of
    /// `words`. Returns the condition as text.
    pub async fn wait_for_condition(&self, name: &str, kind: &str, status: &str, words: &[&str]) -> String {
        let has_words =
            |reason: &str, message: &str| words.iter().all(|word| reason.contains(word) || message.contains(word));
        self.wait_for_condition_matching(name, kind, status, has_words).await
    }

    async fn wait_for_condition_matching(
        &self,
        name: &str,
        kind: &str,
        status: &str,
        is_it: impl Fn(&str, &str) -> bool,
    ) -> String {
        eventually_or_err(&format!("Workload {name} has {kind} {status}"), async || {
            let workload = self.workloads().get(name).await.expect("the Workload");
            let conditions = workload.status.unwrap_or_default().conditions;
            let Some(found) = condition::get(&conditions, kind) else { return Err(format!("but {conditions:?}")) };
            let text = format!("{} {}: {}", found.status, found.reason, found.message);
            let fits = found.status == status && is_it(&found.reason, &found.message);
            if fits { Ok(text) } else { Err(format!("but {text}")) }
        })
        .await
    }

    /// Waits until a Workload is evicted, then releases its quota as a stopped job would.
    pub async fn release_evicted(&self, name: &str, reason: &str) {
        self.wait_for_condition(name, "Evicted", "True", &[reason]).await;
        self.update_status(name, |workload| status::released(workload, Timestamp::now())).await;
    }

    /// Marks a Workload as finished.
    pub async fn mark_finished(&self, name: &str) {
        self.update_status(name, |workload| {
            let mut status = workload.status.clone().unwrap_or_default();
            let update = condition::ConditionUpdate {
                type_: "Finished",
                status: true,
                reason: "Succeeded".to_owned(),
                message: String::new(),
                observed_generation: None,
            };
            condition::set(&mut status.conditions, Timestamp::now(), update);
            status
        })
        .await;
    }

    /// Deletes a Workload, as garbage collection does after its owner is deleted.
    pub async fn delete_workload(&self, name: &str) {
        self.workloads().delete(name, &DeleteParams::default()).await.expect("the Workload is deleted");
    }

    async fn update_status(&self, name: &str, change: impl Fn(&Workload) -> WorkloadStatus) {
        eventually(&format!("the status of {name} is written"), async || {
            let mut workload = self.workloads().get(name).await.expect("the Workload");
            workload.status = Some(change(&workload));
            match self.workloads().replace_status(name, &PostParams::default(), &workload).await {
                Ok(_) => Some(()),
                // Conflict with another writer: retry.
                Err(kube::Error::Api(error)) if error.code == 409 => None,
                Err(error) => panic!("the status of {name}: {error}"),
            }
        })
        .await;
    }
}
