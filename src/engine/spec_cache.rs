//! Caches values derived from object specs.
//!
//! The status of an object changes far more often than its spec, and pods, requests and hashes
//! depend on the spec alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube_core::Resource;

use super::Components;
use super::cluster_state::{Change, Object};
use sluice_api::ray::RayCluster;
use sluice_jobframework::ray_job::RayJobRequirements;
use sluice_jobframework::{PodGroupDemands, ray_cluster};
use sluice_plan::ObjectKey;
use sluice_plan::ServeConfig;
use sluice_raycluster::revision::{PodAffectingSpec, RevisionContent};
use sluice_raycluster::{self as raycluster, FieldError, PodGroup};
use sluice_rayservice::{DesiredService, serve_config_history};

/// Values derived from RayClusters, RayServices, RayJobs and ControllerRevisions.
#[derive(Debug, Clone, Default)]
pub(super) struct SpecCache {
    cluster_infos: Memo<ClusterSpecInfo>,
    desired_services: Memo<Result<DesiredService, Vec<FieldError>>>,
    ray_job_requirements: Memo<RayJobRequirements>,
    revisions: Memo<Option<RevisionContent>>,
    serve_configs: Memo<Option<ServeConfig>>,
}

impl SpecCache {
    /// Updates the derived values after a change.
    pub(super) fn observe(&mut self, change: &Change, components: Components) {
        match (&change.before, &change.after) {
            (_, Some(Object::RayCluster(cluster))) => {
                self.cluster_infos.observe(cluster.as_ref(), |cluster| {
                    ClusterSpecInfo::from_cluster(cluster, components.ray_operator)
                });
            }
            (_, Some(Object::RayService(service))) => {
                self.desired_services.observe(service.as_ref(), DesiredService::from_service);
            }
            (_, Some(Object::RayJob(job))) => {
                self.ray_job_requirements.observe(job.as_ref(), RayJobRequirements::from_spec);
            }
            (_, Some(Object::ControllerRevision(revision))) => {
                self.revisions.observe(revision.as_ref(), RevisionContent::of);
                self.serve_configs.observe(revision.as_ref(), serve_config_history::read_stored_config);
            }
            (Some(Object::ControllerRevision(gone)), None) => {
                self.revisions.forget(&ObjectKey::of(gone.as_ref()));
                self.serve_configs.forget(&ObjectKey::of(gone.as_ref()));
            }
            (Some(Object::RayJob(gone)), None) => self.ray_job_requirements.forget(&ObjectKey::of(gone.as_ref())),
            (Some(Object::RayCluster(gone)), None) => self.cluster_infos.forget(&ObjectKey::of(gone.as_ref())),
            (Some(Object::RayService(gone)), None) => self.desired_services.forget(&ObjectKey::of(gone.as_ref())),
            _ => {}
        }
    }

    /// Returns the derived values of a RayCluster; `None` if it was not observed.
    pub(super) fn cluster_info(&self, cluster: &ObjectKey) -> Option<&ClusterSpecInfo> {
        self.cluster_infos.get(cluster)
    }

    /// Returns the RayCluster revision in a ControllerRevision; `None` if it has different content.
    pub(super) fn revision_content(&self, revision: &ObjectKey) -> Option<&RevisionContent> {
        self.revisions.get(revision)?.as_ref()
    }

    /// Returns the Serve configuration in a ControllerRevision; `None` if it has different content.
    pub(super) fn serve_config(&self, revision: &ObjectKey) -> Option<&ServeConfig> {
        self.serve_configs.get(revision)?.as_ref()
    }

    /// Returns the quota requirements of a RayJob; `None` if it was not observed.
    pub(super) fn ray_job_requirements(&self, job: &ObjectKey) -> Option<&RayJobRequirements> {
        self.ray_job_requirements.get(job)
    }

    /// Returns the desired state of a RayService, or the errors in its spec; `None` if it was not
    /// observed.
    pub(super) fn desired_service(&self, service: &ObjectKey) -> Option<&Result<DesiredService, Vec<FieldError>>> {
        self.desired_services.get(service)
    }
}

/// Values derived from the spec of a RayCluster.
#[derive(Debug)]
pub(super) struct ClusterSpecInfo {
    /// Pod groups that our own operator creates, or the errors in the spec.
    pub(super) pod_groups: Result<Vec<PodGroup>, Vec<FieldError>>,
    /// Pod groups that need quota.
    pub(super) quota_groups: Arc<PodGroupDemands>,
    /// Part of the spec that determines the pods.
    pub(super) pod_affecting_spec: PodAffectingSpec,
}

impl ClusterSpecInfo {
    /// Derives the values of a cluster. An invalid spec yields no pods if our own operator
    /// reconciles it (`ours`); another operator may create them, so their quota is derived without
    /// full validation.
    pub(super) fn from_cluster(cluster: &RayCluster, ours: bool) -> Self {
        let groups = raycluster::validate::validated_groups(cluster);
        let wanted = if ours {
            ray_cluster::pod_group_demands(cluster, &groups)
        } else {
            let groups = raycluster::pod_groups_of_kuberay(cluster).map_err(|problem| vec![problem]);
            ray_cluster::pod_group_demands(cluster, &groups)
        };
        Self {
            pod_groups: groups,
            quota_groups: Arc::new(wanted),
            pod_affecting_spec: PodAffectingSpec::of(&cluster.spec),
        }
    }
}

/// Derived value of each object of a kind, computed when its spec or metadata changes. Clones share
/// the values.
#[derive(Debug)]
struct Memo<T> {
    by_key: BTreeMap<ObjectKey, Arc<(MemoKey, T)>>,
}

/// Identifies an object version except for its status: `generation` counts the changes of the spec.
#[derive(Debug, PartialEq)]
struct MemoKey {
    uid: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl MemoKey {
    fn from_object<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self {
            uid: meta.uid.clone(),
            generation: meta.generation,
            labels: meta.labels.clone(),
            annotations: meta.annotations.clone(),
        }
    }
}

impl<T> Default for Memo<T> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new() }
    }
}

impl<T> Clone for Memo<T> {
    fn clone(&self) -> Self {
        Self { by_key: self.by_key.clone() }
    }
}

impl<T> Memo<T> {
    /// Recomputes the value of an object if more than its status changed.
    fn observe<K: Resource>(&mut self, object: &K, derive: impl FnOnce(&K) -> T) {
        let (key, origin) = (ObjectKey::of(object), MemoKey::from_object(object));
        if self.by_key.get(&key).is_none_or(|known| known.0 != origin) {
            self.by_key.insert(key, Arc::new((origin, derive(object))));
        }
    }

    /// Drops the value of a deleted object.
    fn forget(&mut self, key: &ObjectKey) {
        self.by_key.remove(key);
    }

    /// Returns the value of the object with this key; `None` if it was not observed.
    fn get(&self, key: &ObjectKey) -> Option<&T> {
        self.by_key.get(key).map(|derived| &derived.1)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pod(metadata: Value) -> Pod {
        serde_json::from_value(json!({"metadata": metadata})).expect("a pod")
    }

    #[rstest]
    #[case::status(json!({"name": "a", "uid": "u", "generation": 1, "resourceVersion": "2"}), 1)]
    #[case::spec(json!({"name": "a", "uid": "u", "generation": 2}), 2)]
    #[case::label(json!({"name": "a", "uid": "u", "generation": 1, "labels": {"a": "b"}}), 2)]
    #[case::recreated_object(json!({"name": "a", "uid": "v", "generation": 1}), 2)]
    fn derived_value_is_recomputed_unless_only_the_status_changed(#[case] changed: Value, #[case] expected: i32) {
        let mut derived = Memo::default();
        derived.observe(&pod(json!({"name": "a", "uid": "u", "generation": 1})), |_| 1);

        derived.observe(&pod(changed), |_| 2);

        assert_eq!(derived.get(&ObjectKey::global("a")), Some(&expected));
    }

    #[test]
    fn value_of_deleted_object_is_dropped() {
        let mut derived = Memo::default();
        derived.observe(&pod(json!({"name": "a"})), |_| 1);

        derived.forget(&ObjectKey::global("a"));

        assert_eq!(derived.get(&ObjectKey::global("a")), None);
    }
}
