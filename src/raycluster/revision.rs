//! What a RayCluster's pods are made from, kept in the API server: its revisions.
//!
//! A cluster of its own has a ControllerRevision for the spec that its pods are made from, so that with
//! `upgradeStrategy: Recreate` it is known which pods are to be made anew, and what the others look like until then. What is kept
//! is the spec as it was written. Two specs are compared by [`Essence`] at the time when it matters, so another release that looks
//! at other fields neither makes pods anew nor misses an edit.
//!
//! The first revision of a cluster has no name: its pods carry no label, and its quota is held for the cluster's own uid. So it is
//! with all pods of a cluster that KubeRay or an earlier release has made.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube_core::ObjectMeta;
use kube_core::ResourceExt;
use serde_json::{Value, json};

use super::{auth, names as naming, plain, pod_builder};
use sluice_api::fingerprint;
use sluice_api::ray::options::RayClusterUpgradeType;
use sluice_api::ray::{RayCluster, RayClusterSpec, WorkerGroupSpec, names};
use sluice_plan::{Plan, Write};

/// A revision of a cluster, by its name; `None` is the first one.
pub type Name = Option<String>;

/// What is kept of a revision.
#[derive(Debug)]
pub struct Content {
    spec: RayClusterSpec,
    essence: Essence,
}

impl Content {
    /// Reads it; `None` if it can't be read.
    pub fn of(object: &ControllerRevision) -> Option<Self> {
        let spec: RayClusterSpec = serde_json::from_value(object.data.as_ref()?.0.get("spec")?.clone()).ok()?;
        let essence = Essence::of(&spec);
        Some(Self { spec, essence })
    }
}

/// One revision that is kept.
#[derive(Debug)]
struct Kept<'a> {
    object: &'a ControllerRevision,
    name: Name,
    content: &'a Content,
}

/// All revisions of a cluster that are kept, the newest last.
#[derive(Debug, Default)]
pub struct History<'a> {
    kept: Vec<Kept<'a>>,
}

/// How a cluster's pods compare with its newest revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stand {
    /// They are of the newest, or of none that is known.
    Whole(Name),
    /// There are pods of an earlier one.
    Renewing {
        /// What they are of.
        old: Name,
        /// The newest.
        new: Name,
    },
}

impl<'a> History<'a> {
    /// The revisions in these objects.
    pub fn of(objects: impl IntoIterator<Item = (&'a ControllerRevision, &'a Content)>) -> Self {
        let named = objects.into_iter().map(|(object, content)| Kept { object, name: name(object.labels()), content });
        let mut kept: Vec<Kept<'a>> = named.collect();
        kept.sort_by_key(|kept| (kept.object.revision, kept.object.name_any()));
        Self { kept }
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// How the cluster's pods compare with the newest. Where there are none, `paid` is what quota is held for. One that has ended is
    /// still there, with its name and what it writes last, until it is gone.
    pub fn stand<'p>(&self, pods: impl IntoIterator<Item = &'p Pod>, paid: Option<Name>) -> Stand {
        let Some(newest) = self.kept.last() else { return Stand::Whole(None) };
        let mut pods = pods.into_iter().map(of_pod).peekable();
        let has_none = pods.peek().is_none();
        let of_none = paid.filter(|paid| has_none && self.spec(paid).is_some());
        match pods.chain(of_none).find(|name| *name != newest.name) {
            Some(old) => Stand::Renewing { old, new: newest.name.clone() },
            None => Stand::Whole(newest.name.clone()),
        }
    }

    /// Whether the newest is of what a cluster's spec comes down to, as far as that asks for pods to be made anew.
    pub fn has(&self, cluster: &RayCluster, wanted: &Essence) -> bool {
        let is_it = |known: &Essence| known == wanted || known.differs_in_groups_only(wanted);
        !is_recreated(cluster) || self.kept.last().is_some_and(|newest| is_it(&newest.content.essence))
    }

    /// The cluster as it was in a revision, with what of its present spec needs no new pods; `None` for one that isn't kept.
    pub fn in_effect(&self, cluster: &RayCluster, revision: &Name) -> Option<RayCluster> {
        let spec = revised(&cluster.spec, self.spec(revision)?);
        Some(RayCluster { metadata: cluster.metadata.clone(), spec, status: cluster.status.clone() })
    }

    fn spec(&self, revision: &Name) -> Option<&RayClusterSpec> {
        self.kept.iter().rev().find(|kept| kept.name == *revision).map(|kept| &kept.content.spec)
    }

    /// Keeps the spec that the cluster's pods are made from, which comes down to `wanted`, and lets go what no pod is of any more.
    pub fn plan(&self, cluster: &RayCluster, wanted: &Essence, pods: &[&Pod], plan: &mut Plan) {
        let in_use: Vec<Name> = pods.iter().map(|pod| of_pod(pod)).collect();
        plan.write(self.next(cluster, wanted, &in_use));
        let older = self.kept.split_last().map(|(_, older)| older).unwrap_or_default();
        let newer = |index: usize, name: &Name| self.kept[index + 1..].iter().any(|kept| kept.name == *name);
        for (index, kept) in older.iter().enumerate() {
            if newer(index, &kept.name) || (!in_use.is_empty() && !in_use.contains(&kept.name)) {
                plan.write(Write::delete(kept.object, false));
            }
        }
    }

    /// What has to be written for the newest revision to be the one that is wanted. If somebody has deleted all of them, pods count as
    /// made from the spec as it is.
    fn next(&self, cluster: &RayCluster, wanted: &Essence, in_use: &[Name]) -> Option<Write> {
        let Some(newest) = self.kept.last() else {
            return Some(Write::create(&object(cluster, in_use.iter().flatten().next().cloned(), 1)));
        };
        let known = &newest.content.essence;
        let number = newest.object.revision + 1;
        if wanted == known {
            return None;
        }
        if known.differs_in_groups_only(wanted) {
            return Some(Write::create(&object(cluster, newest.name.clone(), number)));
        }
        if !is_recreated(cluster) {
            return None;
        }
        match self.kept.iter().rev().find(|kept| kept.content.essence == *wanted) {
            Some(back) => {
                let again = ControllerRevision { revision: number, ..back.object.clone() };
                Write::patch(back.object, &again)
            }
            None => Some(Write::create(&object(cluster, Some(fingerprint::of(&wanted.0)), number))),
        }
    }
}

/// Whether pods are made anew when the spec asks for other ones.
pub fn is_recreated(cluster: &RayCluster) -> bool {
    let strategy = cluster.spec.upgrade_strategy.as_ref().and_then(|strategy| strategy.type_);
    strategy == Some(RayClusterUpgradeType::Recreate)
}

/// The revision that a pod was made from.
pub fn of_pod(pod: &Pod) -> Name {
    name(pod.labels())
}

fn name(labels: &BTreeMap<String, String>) -> Name {
    labels.get(names::REVISION_LABEL).cloned()
}

/// Tells a new pod what it is made from.
pub(super) fn stamp(pod: &mut Pod, revision: &Name) {
    if let Some(name) = revision {
        pod.labels_mut().insert(names::REVISION_LABEL.to_owned(), name.clone());
    }
}

/// The name of the share of a cluster's quota that a revision has: the cluster's uid, and the revision's name unless it is the first.
pub fn share(cluster_uid: &str, revision: &Name) -> String {
    revision.as_ref().map_or_else(|| cluster_uid.to_owned(), |name| format!("{cluster_uid}@{name}"))
}

/// The uid of the cluster that a share of quota is of, and its revision.
pub fn of_share(share: &str) -> (&str, Name) {
    share.split_once('@').map_or((share, None), |(uid, name)| (uid, Some(name.to_owned())))
}

fn object(cluster: &RayCluster, name: Name, number: i64) -> ControllerRevision {
    let mut labels = BTreeMap::from([(names::CLUSTER_LABEL.to_owned(), cluster.name_any())]);
    labels.extend(name.map(|name| (names::REVISION_LABEL.to_owned(), name)));
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(naming::revision(cluster, number)),
            namespace: cluster.namespace(),
            labels: Some(labels),
            owner_references: Some(vec![pod_builder::owner(cluster)]),
            ..ObjectMeta::default()
        },
        // Strings, numbers, lists and string-keyed maps: serialisation can't fail.
        data: Some(RawExtension(json!({"spec": serde_json::to_value(&cluster.spec).unwrap_or_default()}))),
        revision: number,
    }
}

/// Of a spec, what pods are made from: by `cluster`, by `head` and how that is reached, and by `workers` by group. Left out is what can be applied while
/// they run, what others write into a spec (tolerations and scheduling gates), and how the same is written in another way. KubeRay
/// 1.7 leaves out less (`ray-operator/controllers/ray/utils/util.go`, `GenerateHashWithoutReplicasAndWorkersToDelete`).
#[derive(Debug, PartialEq)]
pub struct Essence(Value);

impl Essence {
    /// That of a spec.
    pub fn of(spec: &RayClusterSpec) -> Self {
        // Workers reach the head by it.
        let head_service = naming::own_head_service(&spec.head_group_spec).map(str::to_owned);
        let mut spec = revised(&RayClusterSpec::default(), spec);
        auth::spell_out(&mut spec);
        let groups = std::mem::take(&mut spec.worker_group_specs).into_iter();
        let workers: serde_json::Map<String, Value> = groups
            .map(|group| (group.group_name.clone(), essence(revised_group(&WorkerGroupSpec::default(), group))))
            .collect();
        let head = essence(std::mem::take(&mut spec.head_group_spec));
        Self(json!({"cluster": essence(spec), "head": head, "headService": head_service, "workers": workers}))
    }

    /// Whether the other differs in nothing but which groups there are.
    fn differs_in_groups_only(&self, other: &Self) -> bool {
        let same = |part: &str| self.0[part] == other.0[part];
        let groups = self.0["workers"].as_object().into_iter().flatten();
        let mut kept = groups.filter_map(|(name, group)| Some((group, other.0["workers"].get(name)?)));
        same("cluster") && same("head") && same("headService") && kept.all(|(group, other)| group == other)
    }
}

/// What pods are made from as in `before`, and the rest as it is `now`.
fn revised(now: &RayClusterSpec, before: &RayClusterSpec) -> RayClusterSpec {
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
            *group = revised_group(now, group.clone());
        }
    }
    spec
}

fn revised_group(now: &WorkerGroupSpec, before: WorkerGroupSpec) -> WorkerGroupSpec {
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

/// A group, or what clusters have beside groups, without what others write into it.
fn essence(part: impl serde::Serialize) -> Value {
    let mut value = serde_json::to_value(part).unwrap_or_default();
    if let Some(spec) = value.pointer_mut("/template/spec").and_then(Value::as_object_mut) {
        spec.remove("tolerations");
        spec.remove("schedulingGates");
    }
    plain::of(value)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::fixtures::{cluster_with_workers, worker};

    fn edited(edit: impl FnOnce(&mut Value)) -> RayClusterSpec {
        let mut spec = serde_json::to_value(cluster_with_workers(2).spec).expect("JSON");
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
    #[case::image_of_the_head(|spec: &mut Value| container(spec, None)["image"] = json!("other"))]
    #[case::environment(|spec: &mut Value| container(spec, Some(0))["env"] = json!([{"name": "A", "value": ""}]))]
    #[case::resources(|spec: &mut Value| container(spec, Some(0))["resources"]["requests"]["cpu"] = json!("501m"))]
    #[case::a_flag(|spec: &mut Value| spec["headGroupSpec"]["rayStartParams"] = json!({"num-cpus": "0"}))]
    #[case::a_label(|spec: &mut Value| spec["workerGroupSpecs"][0]["labels"] = json!({"zone": "a"}))]
    #[case::hosts(|spec: &mut Value| spec["workerGroupSpecs"][0]["numOfHosts"] = json!(2))]
    #[case::version(|spec: &mut Value| spec["rayVersion"] = json!("2.54.0"))]
    #[case::autoscaler(|spec: &mut Value| spec["enableInTreeAutoscaling"] = json!(true))]
    #[case::its_image(|spec: &mut Value| spec["autoscalerOptions"] = json!({"image": "other"}))]
    #[case::the_name_of_the_head(|spec: &mut Value| {
        spec["headGroupSpec"]["headService"] = json!({"metadata": {"name": "other"}});
    })]
    #[case::restart(|spec: &mut Value| {
        spec["headGroupSpec"]["template"]["metadata"] = json!({"annotations": {"restartedAt": "now"}});
    })]
    fn what_pods_are_made_from_needs_new_ones(#[case] edit: fn(&mut Value)) {
        let (before, after) = (Essence::of(&edited(|_| ())), Essence::of(&edited(edit)));
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
    #[case::the_gate(|spec: &mut Value| spec["suspend"] = json!(true))]
    #[case::the_strategy(|spec: &mut Value| spec["upgradeStrategy"] = json!({"type": "Recreate"}))]
    #[case::a_service(|spec: &mut Value| spec["headGroupSpec"]["headService"] = json!({"spec": {"type": "NodePort"}}))]
    #[case::an_ingress(|spec: &mut Value| spec["headGroupSpec"]["enableIngress"] = json!(true))]
    #[case::tolerations(|spec: &mut Value| {
        spec["workerGroupSpecs"][0]["template"]["spec"]["tolerations"] = json!([{"operator": "Exists"}]);
    })]
    #[case::nothing_said(|spec: &mut Value| spec["headGroupSpec"]["rayStartParams"] = json!({}))]
    #[case::another_notation(|spec: &mut Value| {
        let resources = &mut container(spec, Some(0))["resources"]["requests"];
        (resources["cpu"], resources["memory"]) = (json!(0.5), json!("1024Mi"));
    })]
    #[case::another_order(|spec: &mut Value| {
        let groups = spec["workerGroupSpecs"].as_array_mut().expect("groups");
        groups.reverse();
    })]
    fn what_can_be_applied_in_place_is_no_other_revision(#[case] edit: fn(&mut Value)) {
        assert_eq!(Essence::of(&edited(|_| ())), Essence::of(&edited(edit)));
    }

    #[test]
    fn groups_come_and_go_in_place() {
        let before = cluster_with_workers(2).spec;
        let mut after = before.clone();
        after.worker_group_specs = vec![worker("more", 1)];
        assert!(Essence::of(&before).differs_in_groups_only(&Essence::of(&after)));
    }

    #[test]
    fn what_runs_keeps_what_it_was_made_from_and_is_scaled_all_the_same() {
        let before = cluster_with_workers(2).spec;
        let mut now = before.clone();
        now.ray_version = Some("2.54.0".to_owned());
        now.worker_group_specs[0] = WorkerGroupSpec { num_of_hosts: Some(4), ..worker("small", 3) };

        let spec = revised(&now, &before);

        assert_eq!(spec.ray_version.as_deref(), Some("2.53.0"));
        let group = &spec.worker_group_specs[0];
        assert_eq!((group.replicas, group.num_of_hosts), (Some(3), Some(1)));
    }
}
