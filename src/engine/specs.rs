//! What follows from the spec of an object, worked out once for as long as the spec stays as it is.
//!
//! An object's status changes far more often than its spec, and pods, requests and hashes follow from the spec alone.

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

/// What follows from the specs of all RayClusters, RayServices and RayJobs.
#[derive(Debug, Default)]
pub(super) struct Specs {
    makeups: Derived<Makeup>,
    goals: Derived<Result<Goal, Vec<Problem>>>,
    needs: Derived<Needs>,
    revisions: Derived<Option<Content>>,
    serve_configs: Derived<Option<ServeConfig>>,
}

impl Specs {
    /// Takes in a change.
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

    /// What a RayCluster is made of.
    pub(super) fn makeup(&self, cluster: &ObjectKey) -> Option<&Makeup> {
        self.makeups.of(cluster)
    }

    /// What is kept in a ControllerRevision; `None` if that is nothing of ours.
    pub(super) fn revision(&self, revision: &ObjectKey) -> Option<&Content> {
        self.revisions.of(revision)?.as_ref()
    }

    /// The Serve configuration that is kept in a ControllerRevision; `None` if that is something else.
    pub(super) fn serve_config(&self, revision: &ObjectKey) -> Option<&ServeConfig> {
        self.serve_configs.of(revision)?.as_ref()
    }

    /// What a RayJob needs.
    pub(super) fn needs(&self, job: &ObjectKey) -> Option<&Needs> {
        self.needs.of(job)
    }

    /// What a RayService asks for, or what is wrong with that.
    pub(super) fn goal(&self, service: &ObjectKey) -> Option<&Result<Goal, Vec<Problem>>> {
        self.goals.of(service)
    }
}

/// What a RayCluster is made of, by its spec.
#[derive(Debug)]
pub(super) struct Makeup {
    /// Its groups of pods, as our own operator makes them.
    pub(super) groups: Result<Vec<PodGroup>, Vec<Problem>>,
    /// What of that is to be paid for.
    pub(super) wanted: Arc<Groups>,
    /// What of the spec its pods are made from.
    pub(super) essence: Essence,
}

impl Makeup {
    /// A spec that our own operator refuses says of no pods: nobody would make them. But another operator may (`ours` is
    /// false).
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

/// What follows from each object of a kind.
#[derive(Debug)]
struct Derived<T> {
    by_key: BTreeMap<ObjectKey, (Origin, T)>,
}

/// All of an object but its status, as far as it takes to tell that it has changed: the API server counts changes of the spec.
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
    /// Takes in an object as it is now.
    fn see<K: Resource>(&mut self, object: &K, derive: impl FnOnce(&K) -> T) {
        let (key, origin) = (ObjectKey::of(object), Origin::of(object));
        if self.by_key.get(&key).is_none_or(|(known, _)| *known != origin) {
            self.by_key.insert(key, (origin, derive(object)));
        }
    }

    /// Takes in that an object is gone.
    fn forget(&mut self, key: &ObjectKey) {
        self.by_key.remove(key);
    }

    /// What follows from the object with this key; `None` for one that was not seen.
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
    #[case::its_status(json!({"name": "a", "uid": "u", "generation": 1, "resourceVersion": "2"}), 1)]
    #[case::its_spec(json!({"name": "a", "uid": "u", "generation": 2}), 2)]
    #[case::a_label(json!({"name": "a", "uid": "u", "generation": 1, "labels": {"a": "b"}}), 2)]
    #[case::another_object(json!({"name": "a", "uid": "v", "generation": 1}), 2)]
    fn what_follows_from_an_object_is_worked_out_anew_when_that_may_have_changed(
        #[case] changed: Value,
        #[case] worked_out: i32,
    ) {
        let mut derived = Derived::default();
        derived.see(&pod(json!({"name": "a", "uid": "u", "generation": 1})), |_| 1);

        derived.see(&pod(changed), |_| 2);

        assert_eq!(derived.of(&ObjectKey::global("a")), Some(&worked_out));
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let mut derived = Derived::default();
        derived.see(&pod(json!({"name": "a"})), |_| 1);

        derived.forget(&ObjectKey::global("a"));

        assert_eq!(derived.of(&ObjectKey::global("a")), None);
    }
}
