//! Caches values derived from object specs.
//!
//! The status of an object changes far more often than its spec, and pods, requests and hashes
//! depend on the spec alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube_core::Resource;

use super::Halves;
use super::world::{Change, Object};
use sluice_api::ray::RayCluster;
use sluice_jobframework::ray_job::Needs;
use sluice_jobframework::{Groups, ray_cluster};
use sluice_plan::ObjectKey;
use sluice_plan::ServeConfig;
use sluice_raycluster::revision::{Content, Essence};
use sluice_raycluster::{self as raycluster, PodGroup, Problem};
use sluice_rayservice::{Goal, kept};

/// Values derived from RayClusters, RayServices, RayJobs and ControllerRevisions.
#[derive(Debug, Default)]
pub(super) struct Specs {
    makeups: Derived<Makeup>,
    goals: Derived<Result<Goal, Vec<Problem>>>,
    needs: Derived<Needs>,
    revisions: Derived<Option<Content>>,
    serve_configs: Derived<Option<ServeConfig>>,
}

impl Specs {
    /// Updates the derived values after a change.
    pub(super) fn see(&mut self, change: &Change, halves: Halves) {
        match (&change.was, &change.is) {
            (_, Some(Object::RayCluster(cluster))) => {
                self.makeups.see(cluster.as_ref(), |cluster| Makeup::of(cluster, halves.ray_operator));
            }
            (_, Some(Object::RayService(service))) => self.goals.see(service.as_ref(), Goal::of),
            (_, Some(Object::RayJob(job))) => self.needs.see(job.as_ref(), Needs::of),
            (_, Some(Object::ControllerRevision(revision))) => {
                self.revisions.see(revision.as_ref(), Content::of);
                self.serve_configs.see(revision.as_ref(), kept::read);
            }
            (Some(Object::ControllerRevision(gone)), None) => {
                self.revisions.forget(&ObjectKey::of(gone.as_ref()));
                self.serve_configs.forget(&ObjectKey::of(gone.as_ref()));
            }
            (Some(Object::RayJob(gone)), None) => self.needs.forget(&ObjectKey::of(gone.as_ref())),
            (Some(Object::RayCluster(gone)), None) => self.makeups.forget(&ObjectKey::of(gone.as_ref())),
            (Some(Object::RayService(gone)), None) => self.goals.forget(&ObjectKey::of(gone.as_ref())),
            _ => {}
        }
    }

    /// Returns the derived values of a RayCluster; `None` if it was not observed.
    pub(super) fn makeup(&self, cluster: &ObjectKey) -> Option<&Makeup> {
        self.makeups.of(cluster)
    }

    /// Returns the RayCluster revision in a ControllerRevision; `None` if it has different content.
    pub(super) fn revision(&self, revision: &ObjectKey) -> Option<&Content> {
        self.revisions.of(revision)?.as_ref()
    }

    /// Returns the Serve configuration in a ControllerRevision; `None` if it has different content.
    pub(super) fn serve_config(&self, revision: &ObjectKey) -> Option<&ServeConfig> {
        self.serve_configs.of(revision)?.as_ref()
    }

    /// Returns the quota requirements of a RayJob; `None` if it was not observed.
    pub(super) fn needs(&self, job: &ObjectKey) -> Option<&Needs> {
        self.needs.of(job)
    }

    /// Returns the desired state of a RayService, or the errors in its spec; `None` if it was not
    /// observed.
    pub(super) fn goal(&self, service: &ObjectKey) -> Option<&Result<Goal, Vec<Problem>>> {
        self.goals.of(service)
    }
}

/// Values derived from the spec of a RayCluster.
#[derive(Debug)]
pub(super) struct Makeup {
    /// Pod groups that our own operator creates, or the errors in the spec.
    pub(super) groups: Result<Vec<PodGroup>, Vec<Problem>>,
    /// Pod groups that need quota.
    pub(super) wanted: Arc<Groups>,
    /// Part of the spec that determines the pods.
    pub(super) essence: Essence,
}

impl Makeup {
    /// Derives the values of a cluster. An invalid spec yields no pods if our own operator
    /// reconciles it (`ours`); another operator may create them, so their quota is derived without
    /// full validation.
    pub(super) fn of(cluster: &RayCluster, ours: bool) -> Self {
        let groups = raycluster::validate::groups(cluster);
        let wanted = match &groups {
            Err(_) if !ours => {
                ray_cluster::groups(cluster, &raycluster::pod_groups(cluster).map_err(|problem| vec![problem]))
            }
            groups => ray_cluster::groups(cluster, groups),
        };
        Self { groups, wanted: Arc::new(wanted), essence: Essence::of(&cluster.spec) }
    }
}

/// Derived value of each object of a kind, computed when its spec or metadata changes.
#[derive(Debug)]
struct Derived<T> {
    by_key: BTreeMap<ObjectKey, (Origin, T)>,
}

/// Identifies an object version except for its status: `generation` counts the changes of the spec.
#[derive(Debug, PartialEq)]
struct Origin {
    uid: Option<String>,
    generation: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

impl Origin {
    fn of<K: Resource>(object: &K) -> Self {
        let meta = object.meta();
        Self {
            uid: meta.uid.clone(),
            generation: meta.generation,
            labels: meta.labels.clone(),
            annotations: meta.annotations.clone(),
        }
    }
}

impl<T> Default for Derived<T> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new() }
    }
}

impl<T> Derived<T> {
    /// Recomputes the value of an object if more than its status changed.
    fn see<K: Resource>(&mut self, object: &K, derive: impl FnOnce(&K) -> T) {
        let (key, origin) = (ObjectKey::of(object), Origin::of(object));
        if self.by_key.get(&key).is_none_or(|(known, _)| *known != origin) {
            self.by_key.insert(key, (origin, derive(object)));
        }
    }

    /// Drops the value of a deleted object.
    fn forget(&mut self, key: &ObjectKey) {
        self.by_key.remove(key);
    }

    /// Returns the value of the object with this key; `None` if it was not observed.
    fn of(&self, key: &ObjectKey) -> Option<&T> {
        self.by_key.get(key).map(|(_, derived)| derived)
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
        let mut derived = Derived::default();
        derived.see(&pod(json!({"name": "a", "uid": "u", "generation": 1})), |_| 1);

        derived.see(&pod(changed), |_| 2);

        assert_eq!(derived.of(&ObjectKey::global("a")), Some(&expected));
    }

    #[test]
    fn value_of_deleted_object_is_dropped() {
        let mut derived = Derived::default();
        derived.see(&pod(json!({"name": "a"})), |_| 1);

        derived.forget(&ObjectKey::global("a"));

        assert_eq!(derived.of(&ObjectKey::global("a")), None);
    }
}
