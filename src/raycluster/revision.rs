//! Revisions of a RayCluster's spec, stored as ControllerRevisions.
//!
//! A standalone RayCluster has a ControllerRevision with the spec that its pods were created from.
//! With `upgradeStrategy: Recreate` it determines which pods to recreate, and what the existing
//! pods look like until then. The spec is stored as written, and specs are compared by [`PodAffectingSpec`]
//! on use. A release that considers other fields therefore neither recreates pods needlessly nor
//! misses an edit.
//!
//! The first revision of a cluster has no name: its pods have no revision label, and its quota
//! belongs to the cluster's uid. This also applies to all pods created by KubeRay or by an earlier
//! release.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube_core::ObjectMeta;
use kube_core::ResourceExt;
use serde_json::{Value, json};

use super::{auth, canonical_json, names as naming, pod_builder};
use sluice_api::canonical_hash;
use sluice_api::ray::options::RayClusterUpgradeType;
use sluice_api::ray::{RayCluster, RayClusterSpec, WorkerGroupSpec, core_defaults, names};
use sluice_plan::{Plan, Write};

/// Name of a revision of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RevisionName {
    /// The first revision: its pods have no revision label.
    #[default]
    Initial,
    /// A later revision, named by the hash of the part of its spec that affects pods.
    Named(String),
}

impl RevisionName {
    fn from_labels(labels: &BTreeMap<String, String>) -> Self {
        labels.get(names::REVISION_LABEL).map_or(Self::Initial, |name| Self::Named(name.clone()))
    }

    /// Returns the value of the revision label; `None` if there is no label.
    fn label(&self) -> Option<&str> {
        match self {
            Self::Initial => None,
            Self::Named(name) => Some(name),
        }
    }
}

/// Content of a stored revision: the spec, and the part of it that affects pods.
#[derive(Debug)]
pub struct RevisionContent {
    spec: RayClusterSpec,
    pod_affecting: PodAffectingSpec,
}

impl RevisionContent {
    /// Parses the content of `object`; `None` if it has no valid spec.
    pub fn of(object: &ControllerRevision) -> Option<Self> {
        let spec: RayClusterSpec = serde_json::from_value(object.data.as_ref()?.0.get("spec")?.clone()).ok()?;
        let essence = PodAffectingSpec::of(&spec);
        Some(Self { spec, pod_affecting: essence })
    }
}

/// Stored revision.
#[derive(Debug)]
struct StoredRevision<'a> {
    object: &'a ControllerRevision,
    name: RevisionName,
    content: &'a RevisionContent,
}

/// Stored revisions of a cluster, newest last.
#[derive(Debug, Default)]
pub struct History<'a> {
    revisions: Vec<StoredRevision<'a>>,
}

/// State of a cluster's pods relative to its newest revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RevisionState {
    /// All pods belong to the newest revision, or no revision is stored.
    Current(RevisionName),
    /// Pods of an earlier revision exist.
    Recreating {
        /// Revision of these pods.
        old: RevisionName,
        /// Newest revision.
        new: RevisionName,
    },
}

impl<'a> History<'a> {
    /// Returns the history of these objects.
    pub fn of(objects: impl IntoIterator<Item = (&'a ControllerRevision, &'a RevisionContent)>) -> Self {
        let named = objects.into_iter().map(|(object, content)| StoredRevision {
            object,
            name: RevisionName::from_labels(object.labels()),
            content,
        });
        let mut kept: Vec<StoredRevision<'a>> = named.collect();
        kept.sort_by_key(|kept| (kept.object.revision, kept.object.name_any()));
        Self { revisions: kept }
    }

    /// Reports whether no revision is stored.
    pub fn is_empty(&self) -> bool {
        self.revisions.is_empty()
    }

    /// Compares the cluster's pods with the newest revision. Without pods, the revision that holds
    /// quota (`with_quota`) counts instead. A finished pod counts until it is deleted, since it
    /// still occupies its name and may still report status. If all revisions were deleted or orphaned,
    /// existing pods have the only one.
    pub fn state<'p>(
        &self,
        pods: impl IntoIterator<Item = &'p Pod>,
        with_quota: Option<RevisionName>,
    ) -> RevisionState {
        let mut pods = pods.into_iter().map(pod_revision).peekable();
        let Some(newest) = self.revisions.last() else {
            return RevisionState::Current(only_revision(pods));
        };
        let has_none = pods.peek().is_none();
        let fallback = with_quota.filter(|name| has_none && self.spec_of(name).is_some());
        match pods.chain(fallback).find(|name| *name != newest.name) {
            Some(old) => RevisionState::Recreating { old, new: newest.name.clone() },
            None => RevisionState::Current(newest.name.clone()),
        }
    }

    /// Reports whether the newest revision covers `wanted`, so that no pods have to be recreated.
    pub fn is_current(&self, cluster: &RayCluster, wanted: &PodAffectingSpec) -> bool {
        let covers = |known: &PodAffectingSpec| known == wanted || known.differs_in_groups_only(wanted);
        !has_recreate_strategy(cluster)
            || self.revisions.last().is_some_and(|newest| covers(&newest.content.pod_affecting))
    }

    /// Returns the cluster with the pod-affecting part of its spec from `revision`, and the rest
    /// from its current spec; `None` if the revision is not stored.
    pub fn effective_cluster(&self, cluster: &RayCluster, revision: &RevisionName) -> Option<RayCluster> {
        let spec = with_in_place_changes(&cluster.spec, self.spec_of(revision)?);
        Some(RayCluster { metadata: cluster.metadata.clone(), spec, status: cluster.status.clone() })
    }

    fn spec_of(&self, revision: &RevisionName) -> Option<&RayClusterSpec> {
        self.revisions.iter().rev().find(|kept| kept.name == *revision).map(|kept| &kept.content.spec)
    }

    /// Stores the current spec as the newest revision, if its pod-affecting part `wanted` is new,
    /// and deletes revisions that no pod uses.
    pub fn plan(&self, cluster: &RayCluster, wanted: &PodAffectingSpec, pods: &[&Pod], plan: &mut Plan) {
        let in_use: Vec<RevisionName> = pods.iter().map(|pod| pod_revision(pod)).collect();
        plan.write(self.next_write(cluster, wanted, &in_use));
        let older = self.revisions.split_last().map(|(_, older)| older).unwrap_or_default();
        let newer =
            |index: usize, name: &RevisionName| self.revisions[index + 1..].iter().any(|kept| kept.name == *name);
        for (index, kept) in older.iter().enumerate() {
            if newer(index, &kept.name) || (!in_use.is_empty() && !in_use.contains(&kept.name)) {
                plan.write(Write::delete(kept.object));
            }
        }
    }

    /// Returns the write that makes `wanted` the newest revision; `None` if it is already. If all
    /// revisions were deleted, existing pods count as created from the current spec.
    fn next_write(&self, cluster: &RayCluster, wanted: &PodAffectingSpec, in_use: &[RevisionName]) -> Option<Write> {
        let Some(newest) = self.revisions.last() else {
            return Some(Write::create(&controller_revision(cluster, &only_revision(in_use.iter().cloned()), 1)));
        };
        let known = &newest.content.pod_affecting;
        let number = newest.object.revision + 1;
        if wanted == known {
            return None;
        }
        if known.differs_in_groups_only(wanted) {
            return Some(Write::create(&controller_revision(cluster, &newest.name, number)));
        }
        if !has_recreate_strategy(cluster) {
            return None;
        }
        match self.revisions.iter().rev().find(|kept| kept.content.pod_affecting == *wanted) {
            // A reverted spec reuses its earlier revision, as a Deployment's rollback does.
            Some(earlier) => {
                let renumbered = ControllerRevision { revision: number, ..earlier.object.clone() };
                Write::patch(earlier.object, &renumbered)
            }
            None => {
                let name = RevisionName::Named(canonical_hash::hash(&wanted.0));
                Some(Write::create(&controller_revision(cluster, &name, number)))
            }
        }
    }
}

/// Reports whether a spec change recreates pods (`upgradeStrategy: Recreate`).
pub fn has_recreate_strategy(cluster: &RayCluster) -> bool {
    let strategy = cluster.spec.upgrade_strategy.as_ref().and_then(|strategy| strategy.type_);
    strategy == Some(RayClusterUpgradeType::Recreate)
}

/// Returns the revision of a cluster whose pods have these, if none is stored: a later one, if there is any.
fn only_revision(of_pods: impl IntoIterator<Item = RevisionName>) -> RevisionName {
    of_pods.into_iter().find(|name| *name != RevisionName::Initial).unwrap_or_default()
}

/// Returns the revision that a pod was created from.
pub fn pod_revision(pod: &Pod) -> RevisionName {
    RevisionName::from_labels(pod.labels())
}

/// Sets the revision label of a new pod.
pub(super) fn label_revision(pod: &mut Pod, revision: &RevisionName) {
    if let Some(name) = revision.label() {
        pod.labels_mut().insert(names::REVISION_LABEL.to_owned(), name.to_owned());
    }
}

/// Returns the id under which a revision of a cluster holds quota: `<cluster uid>@<revision>`, or
/// just the uid for the first revision.
pub fn member_uid(cluster_uid: &str, revision: &RevisionName) -> String {
    revision.label().map_or_else(|| cluster_uid.to_owned(), |name| format!("{cluster_uid}@{name}"))
}

/// Splits an id returned by [`member_uid`] into cluster uid and revision.
pub fn parse_member_uid(member: &str) -> (&str, RevisionName) {
    match member.split_once('@') {
        Some((uid, name)) => (uid, RevisionName::Named(name.to_owned())),
        None => (member, RevisionName::Initial),
    }
}

fn controller_revision(cluster: &RayCluster, name: &RevisionName, number: i64) -> ControllerRevision {
    let mut labels = BTreeMap::from([(names::CLUSTER_LABEL.to_owned(), cluster.name_any())]);
    labels.extend(name.label().map(|name| (names::REVISION_LABEL.to_owned(), name.to_owned())));
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(naming::revision(cluster, number)),
            namespace: cluster.namespace(),
            labels: Some(labels),
            owner_references: Some(vec![pod_builder::owner_reference(cluster)]),
            ..ObjectMeta::default()
        },
        // Strings, numbers, lists and string-keyed maps: serialization can't fail.
        data: Some(RawExtension(json!({"spec": serde_json::to_value(&cluster.spec).unwrap_or_default()}))),
        revision: number,
    }
}

/// Part of a spec that affects pods, in canonical JSON: `cluster`, `head`, `headService` (its name)
/// and `workers` by group. It excludes fields that apply to running pods, fields that other
/// controllers set (tolerations and scheduling gates), and differences of notation. KubeRay 1.7
/// excludes less (`ray-operator/controllers/ray/utils/util.go`,
/// `GenerateHashWithoutReplicasAndWorkersToDelete`).
#[derive(Debug, PartialEq)]
pub struct PodAffectingSpec(Value);

impl PodAffectingSpec {
    /// Returns the pod-affecting part of a spec.
    pub fn of(spec: &RayClusterSpec) -> Self {
        // Workers connect to the head by this name.
        let head_service = naming::user_head_service(&spec.head_group_spec).map(str::to_owned);
        let mut spec = with_in_place_changes(&RayClusterSpec::default(), spec);
        auth::set_default_mode(&mut spec);
        let groups = std::mem::take(&mut spec.worker_group_specs).into_iter();
        let workers: serde_json::Map<String, Value> = groups
            .map(|group| {
                (
                    group.group_name.clone(),
                    pod_affecting_group(group_with_in_place_changes(&WorkerGroupSpec::default(), group)),
                )
            })
            .collect();
        let head = pod_affecting_group(std::mem::take(&mut spec.head_group_spec));
        let mut cluster = serde_json::to_value(spec).unwrap_or_default();
        core_defaults::set_in_cluster_spec(&mut cluster);
        let cluster = canonical_json::canonical(cluster);
        Self(json!({"cluster": cluster, "head": head, "headService": head_service, "workers": workers}))
    }

    /// Reports whether `other` differs only in the set of worker groups.
    fn differs_in_groups_only(&self, other: &Self) -> bool {
        let same = |part: &str| self.0[part] == other.0[part];
        let groups = self.0["workers"].as_object().into_iter().flatten();
        let mut common = groups.filter_map(|(name, group)| Some((group, other.0["workers"].get(name)?)));
        same("cluster") && same("head") && same("headService") && common.all(|(group, other)| group == other)
    }
}

/// Returns `before` with the fields that apply in place taken from `now`.
fn with_in_place_changes(now: &RayClusterSpec, before: &RayClusterSpec) -> RayClusterSpec {
    let mut spec = before.clone();
    spec.upgrade_strategy = now.upgrade_strategy.clone();
    spec.suspend = now.suspend;
    spec.managed_by = now.managed_by.clone();
    spec.head_service_annotations = now.head_service_annotations.clone();
    spec.network_policy = now.network_policy.clone();
    if let Some(options) = &mut spec.autoscaler_options {
        let now = now.autoscaler_options.clone().unwrap_or_default();
        options.idle_timeout_seconds = now.idle_timeout_seconds;
        options.upscaling_mode = now.upscaling_mode;
    }
    let (head, now_head) = (&mut spec.head_group_spec, &now.head_group_spec);
    head.head_service = now_head.head_service.clone();
    head.enable_ingress = now_head.enable_ingress;
    head.ingress_options = now_head.ingress_options.clone();
    head.service_type = now_head.service_type.clone();
    for group in &mut spec.worker_group_specs {
        if let Some(now) = now.worker_group_specs.iter().find(|now| now.group_name == group.group_name) {
            *group = group_with_in_place_changes(now, group.clone());
        }
    }
    spec
}

/// Returns the group `before` with the fields that apply in place taken from `now`.
fn group_with_in_place_changes(now: &WorkerGroupSpec, before: WorkerGroupSpec) -> WorkerGroupSpec {
    WorkerGroupSpec {
        suspend: now.suspend,
        replicas: now.replicas,
        min_replicas: now.min_replicas,
        max_replicas: now.max_replicas,
        idle_timeout_seconds: now.idle_timeout_seconds,
        priority: now.priority,
        scale_strategy: now.scale_strategy.clone(),
        ..before
    }
}

/// Returns a group in canonical JSON, with all defaults set and without the pod fields that other
/// controllers set.
fn pod_affecting_group(group: impl serde::Serialize) -> Value {
    let mut value = serde_json::to_value(group).unwrap_or_default();
    core_defaults::set_in_group(&mut value);
    if let Some(spec) = value.pointer_mut("/template/spec").and_then(Value::as_object_mut) {
        spec.remove("tolerations");
        spec.remove("schedulingGates");
    }
    canonical_json::canonical(value)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::fixtures::{cluster_with_workers, worker};

    fn edited(edit: impl FnOnce(&mut Value)) -> RayClusterSpec {
        let mut spec = serde_json::to_value(cluster_with_workers(2).spec).expect("JSON");
        spec["workerGroupSpecs"][0]["template"]["spec"]["volumes"] = json!([{"name": "data", "rbd": {}}]);
        spec["autoscalerOptions"] = json!({"envFrom": [{"secretRef": {}}]});
        edit(&mut spec);
        serde_json::from_value(spec).expect("a spec")
    }

    fn container(spec: &mut Value, group: Option<usize>) -> &mut Value {
        let group = match group {
            Some(group) => &mut spec["workerGroupSpecs"][group],
            None => &mut spec["headGroupSpec"],
        };
        &mut group["template"]["spec"]["containers"][0]
    }

    #[rstest]
    #[case::no_pod(&[], RevisionName::Initial)]
    #[case::first_revision(&[None], RevisionName::Initial)]
    #[case::later_revision(&[None, Some("v1-a")], RevisionName::Named("v1-a".into()))]
    fn pods_keep_their_revision_if_none_is_stored(#[case] pods: &[Option<&str>], #[case] expected: RevisionName) {
        let pod = |revision: &Option<&str>| {
            let labels = revision.map(|name| (names::REVISION_LABEL.to_owned(), name.to_owned()));
            let metadata = ObjectMeta { labels: Some(labels.into_iter().collect()), ..ObjectMeta::default() };
            Pod { metadata, ..Pod::default() }
        };
        let pods: Vec<Pod> = pods.iter().map(pod).collect();
        assert_eq!(History::default().state(&pods, None), RevisionState::Current(expected));
    }

    #[rstest]
    #[case::image_of_the_head(|spec: &mut Value| container(spec, None)["image"] = json!("other"))]
    #[case::environment(|spec: &mut Value| container(spec, Some(0))["env"] = json!([{"name": "A", "value": ""}]))]
    #[case::resources(|spec: &mut Value| container(spec, Some(0))["resources"]["requests"]["cpu"] = json!("501m"))]
    #[case::ray_start_param(|spec: &mut Value| spec["headGroupSpec"]["rayStartParams"] = json!({"num-cpus": "0"}))]
    #[case::a_label(|spec: &mut Value| spec["workerGroupSpecs"][0]["labels"] = json!({"zone": "a"}))]
    #[case::hosts(|spec: &mut Value| spec["workerGroupSpecs"][0]["numOfHosts"] = json!(2))]
    #[case::version(|spec: &mut Value| spec["rayVersion"] = json!("2.54.0"))]
    #[case::autoscaler(|spec: &mut Value| spec["enableInTreeAutoscaling"] = json!(true))]
    #[case::autoscaler_image(|spec: &mut Value| spec["autoscalerOptions"] = json!({"image": "other"}))]
    #[case::head_service_name(|spec: &mut Value| {
        spec["headGroupSpec"]["headService"] = json!({"metadata": {"name": "other"}});
    })]
    #[case::restart_annotation(|spec: &mut Value| {
        spec["headGroupSpec"]["template"]["metadata"] = json!({"annotations": {"restartedAt": "now"}});
    })]
    fn change_of_a_pod_affecting_field_makes_a_new_revision(#[case] edit: fn(&mut Value)) {
        let (before, after) = (PodAffectingSpec::of(&edited(|_| ())), PodAffectingSpec::of(&edited(edit)));
        assert_ne!(before, after);
        assert!(!before.differs_in_groups_only(&after));
    }

    #[rstest]
    #[case::replicas(|spec: &mut Value| spec["workerGroupSpecs"][0]["replicas"] = json!(5))]
    #[case::bounds(|spec: &mut Value| spec["workerGroupSpecs"][0]["maxReplicas"] = json!(5))]
    #[case::a_suspended_group(|spec: &mut Value| spec["workerGroupSpecs"][0]["suspend"] = json!(true))]
    #[case::workers_to_delete(|spec: &mut Value| {
        spec["workerGroupSpecs"][0]["scaleStrategy"] = json!({"workersToDelete": ["a"]});
    })]
    #[case::suspend(|spec: &mut Value| spec["suspend"] = json!(true))]
    #[case::upgrade_strategy(|spec: &mut Value| spec["upgradeStrategy"] = json!({"type": "Recreate"}))]
    #[case::a_service(|spec: &mut Value| spec["headGroupSpec"]["headService"] = json!({"spec": {"type": "NodePort"}}))]
    #[case::an_ingress(|spec: &mut Value| spec["headGroupSpec"]["enableIngress"] = json!(true))]
    #[case::tolerations(|spec: &mut Value| {
        spec["workerGroupSpecs"][0]["template"]["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    })]
    #[case::default_of_a_volume(|spec: &mut Value| {
        spec["workerGroupSpecs"][0]["template"]["spec"]["volumes"][0]["rbd"]["pool"] = json!("rbd");
    })]
    #[case::default_of_the_autoscaler(|spec: &mut Value| {
        spec["autoscalerOptions"]["envFrom"][0]["secretRef"]["name"] = json!("");
    })]
    #[case::empty_value(|spec: &mut Value| spec["headGroupSpec"]["rayStartParams"] = json!({}))]
    #[case::another_notation(|spec: &mut Value| {
        let resources = &mut container(spec, Some(0))["resources"]["requests"];
        (resources["cpu"], resources["memory"]) = (json!(0.5), json!("1024Mi"));
    })]
    #[case::another_order(|spec: &mut Value| {
        let groups = spec["workerGroupSpecs"].as_array_mut().expect("groups");
        groups.reverse();
    })]
    fn change_that_applies_in_place_makes_no_new_revision(#[case] edit: fn(&mut Value)) {
        assert_eq!(PodAffectingSpec::of(&edited(|_| ())), PodAffectingSpec::of(&edited(edit)));
    }

    #[test]
    fn worker_groups_are_added_and_removed_in_place() {
        let before = cluster_with_workers(2).spec;
        let mut after = before.clone();
        after.worker_group_specs = vec![worker("more", 1)];
        assert!(PodAffectingSpec::of(&before).differs_in_groups_only(&PodAffectingSpec::of(&after)));
    }

    #[test]
    fn running_pods_keep_their_revision_and_are_scaled() {
        let before = cluster_with_workers(2).spec;
        let mut now = before.clone();
        now.ray_version = Some("2.54.0".to_owned());
        now.worker_group_specs[0] = WorkerGroupSpec { num_of_hosts: Some(4), ..worker("small", 3) };

        let spec = with_in_place_changes(&now, &before);

        assert_eq!(spec.ray_version.as_deref(), Some("2.53.0"));
        let group = &spec.worker_group_specs[0];
        assert_eq!((group.replicas, group.num_of_hosts), (Some(3), Some(1)));
    }
}
