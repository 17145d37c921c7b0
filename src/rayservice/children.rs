//! The clusters of a service: how one is made, kept, and given up.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube_core::{Resource, ResourceExt};
use sha2::{Digest, Sha256};

use super::family::{Child, active_name, is_going};
use super::incremental::routes::route_name;
use super::upgrade::Step;
use super::{Scene, View, failed, hash, incremental, services};
use sluice_api::gateway::HTTPRoute;
use sluice_api::ray::step_choices::{FAILED_ANNOTATION, UPGRADE_ANNOTATION};
use sluice_api::ray::upgrade_choices::GIVEN_UP_ANNOTATION;
use sluice_api::ray::way_choices::ADOPTED_ROUTE_ANNOTATION;
use sluice_api::ray::{RayCluster, RayService, names};
use sluice_api::{LAST_APPLIED_ANNOTATION, condition};
use sluice_plan::{Note, ObjectRef, Plan, Write};

/// For how long a cluster that no longer serves is kept, unless the service says otherwise, in seconds
/// (KubeRay 1.7 `ray-operator/controllers/ray/rayservice_controller.go`).
const DELETION_DELAY: i32 = 60;
/// Letters and digits that can't spell a word, nor be taken for one another.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// The cluster that a service asks for, under this name.
pub(super) fn draft(service: &RayService, name: &str) -> RayCluster {
    let mut labels = service.labels().clone();
    labels.insert(names::ORIGIN_NAME_LABEL.to_owned(), service.name_any());
    labels.insert(names::ORIGIN_KIND_LABEL.to_owned(), RayService::kind(&()).into_owned());
    let mut annotations = service.annotations().clone();
    annotations.remove(LAST_APPLIED_ANNOTATION);
    annotations.remove(GIVEN_UP_ANNOTATION);
    annotations.remove(UPGRADE_ANNOTATION);
    annotations.remove(FAILED_ANNOTATION);
    annotations.remove(ADOPTED_ROUTE_ANNOTATION);
    let mut cluster = RayCluster::new(name, service.spec.ray_cluster_config.clone());
    cluster.metadata = ObjectMeta {
        namespace: service.namespace(),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![owner(service)]),
        ..cluster.metadata
    };
    cluster
}

/// The reference from what a service consists of to the service.
pub(super) fn owner(service: &RayService) -> OwnerReference {
    OwnerReference {
        api_version: RayService::api_version(&()).into_owned(),
        kind: RayService::kind(&()).into_owned(),
        name: service.name_any(),
        uid: service.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The name of the cluster with this hash. Whoever plans twice from the same, or from something old, asks for the same name
/// again, and the API server refuses the second object. Not used are the names of clusters that are not gone yet, and the one
/// that serves according to the serve Service or the status: who gets it would count as active before it can serve.
fn name(view: &View<'_>, hash: &str) -> String {
    let service = view.service;
    let uid = service.uid().unwrap_or_default();
    let candidate = |attempt: usize| {
        let digest = Sha256::digest(format!("{uid}/{hash}/{attempt}"));
        let letters = digest.iter().take(5).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
        format!("{}-{}", service.name_any(), letters.collect::<String>())
    };
    let former = [services::serving(view), active_name(service)];
    let is_free = |name: &String| {
        let is_former = former.contains(&Some(name.as_str()));
        !is_former && !view.ways.mentions(name) && view.children.iter().all(|cluster| cluster.name_any() != *name)
    };
    (0..).map(candidate).find(is_free).unwrap_or_default()
}

/// Plans what is written to the children.
pub(super) fn plan(scene: &Scene<'_>, plan: &mut Plan) {
    if scene.step == Step::Create {
        create(scene, plan);
    }
    if let Some(active) = &scene.family.active {
        keep(scene, active, scene.step == Step::UpdateActive, plan);
    }
    for (index, child) in scene.family.others.iter().enumerate() {
        if scene.step.pending() == Some(index) {
            keep(scene, child, matches!(scene.step, Step::UpdatePending(_)), plan);
        } else {
            give_up(scene, child, plan);
        }
    }
}

fn create(scene: &Scene<'_>, plan: &mut Plan) {
    let (service, Ok(goal)) = (scene.view.service, &scene.goal) else { return };
    let mut cluster = draft(service, &name(scene.view, &goal.hash));
    hash::stamp(&mut cluster, &goal.hash, service.spec.ray_cluster_config.worker_group_specs.len());
    if scene.view.gated {
        cluster.spec.suspend = Some(true);
    }
    incremental::shrink(scene, &mut cluster);
    let name = place(&cluster);
    if let Some(active) = &scene.family.active {
        let text = format!("RayCluster {name} is to take the place of {}", place(active.cluster));
        plan.notes.push(Note::normal(service, "UpgradeStarted", text));
    }
    plan.notes.push(Note::normal(service, "CreatedRayCluster", format!("RayCluster {name} is made")));
    plan.write(Write::create(&cluster));
}

/// Notes on a child what has to outlive this process, and brings it up to what is wanted if that takes no other cluster.
fn keep(scene: &Scene<'_>, child: &Child<'_>, append: bool, plan: &mut Plan) {
    let service = scene.view.service;
    let mut kept = child.cluster.clone();
    let (hash, groups) = hash::origin(child.cluster);
    let stamped = child.cluster.annotations().get(names::SPEC_HASH_ANNOTATION);
    if stamped.is_none_or(|hash| !hash::is_comparable(hash)) {
        hash::stamp(&mut kept, &hash, groups);
    }
    if let (true, Ok(goal)) = (append, &scene.goal) {
        // Groups that are there already keep what the autoscaler and the queue have made of them.
        let wanted = &service.spec.ray_cluster_config.worker_group_specs;
        kept.spec.worker_group_specs.extend(wanted.iter().skip(groups).cloned());
        hash::stamp(&mut kept, &goal.hash, wanted.len());
        let text = format!("RayCluster {} gets more worker groups", place(child.cluster));
        plan.notes.push(Note::normal(service, "UpdatedRayCluster", text));
    }
    incremental::scale(scene, child, &mut kept);
    failed::note(scene, child, &mut kept);
    if let Some(applied) = child.serve.applied_config() {
        let noted = kept.annotations_mut().insert(names::SERVE_CONFIG_HASH_ANNOTATION.to_owned(), applied.to_owned());
        if noted.as_deref() != Some(applied) {
            let text = format!("Serve on RayCluster {} took the configuration", place(child.cluster));
            plan.notes.push(Note::normal(service, "UpdatedServeApplications", text));
        }
    }
    let is_active = scene.family.active.as_ref().is_some_and(|active| active.name() == child.name());
    if is_active || incremental::is_gaining(scene, child) {
        kept.annotations_mut().remove(names::DELETE_AFTER_ANNOTATION);
    } else if is_unmarked_predecessor(service, child) {
        // It is wanted back before the status could tell that it was replaced.
        mark(scene, &mut kept);
    } else if scene.transition.as_ref().is_some_and(incremental::Transition::is_back) {
        // It has taken requests, and is kept for those who still talk to it.
        mark(scene, &mut kept);
    }
    plan.write(Write::patch(child.cluster, &kept));
}

/// Deletes a child that isn't wanted: at once if it has never served, and else after a while in which those who still talk
/// to it can finish.
fn give_up(scene: &Scene<'_>, child: &Child<'_>, plan: &mut Plan) {
    let service = scene.view.service;
    let due = match child.delete_after() {
        Some(due) => due,
        None if child.has_served(service) => return plan.write(retire(scene, child)),
        None => Timestamp::MIN,
    };
    if due > scene.view.now {
        return plan.wake(due);
    }
    if due == Timestamp::MIN && matches!(scene.step, Step::Keep | Step::UpdateActive) {
        let text = format!(
            "The spec is that of the active cluster again, so RayCluster {} is not needed",
            place(child.cluster)
        );
        plan.notes.push(Note::normal(service, "UpgradeCancelled", text));
    }
    delete(service, child.cluster, plan);
}

fn retire(scene: &Scene<'_>, child: &Child<'_>) -> Option<Write> {
    let mut retired = child.cluster.clone();
    mark(scene, &mut retired);
    Write::patch(child.cluster, &retired)
}

/// Notes on a cluster that it has served, and until when it is kept for those who still talk to it.
fn mark(scene: &Scene<'_>, cluster: &mut RayCluster) {
    let delay = scene.view.service.spec.ray_cluster_deletion_delay_seconds.unwrap_or(DELETION_DELAY).max(0);
    let now = condition::whole_seconds(scene.view.now);
    let due = now.saturating_add(SignedDuration::from_secs(delay.into())).unwrap_or(Timestamp::MAX);
    cluster.annotations_mut().insert(names::DELETE_AFTER_ANNOTATION.to_owned(), due.to_string());
}

/// Deletes all children that aren't being deleted yet.
pub(super) fn delete_all(service: &RayService, children: &[&RayCluster], plan: &mut Plan) {
    for child in children.iter().filter(|child| !is_going(child)) {
        delete(service, child, plan);
    }
}

/// A cluster that is deleted in the foreground stays, and keeps its quota, until its last pod is gone. While the Service that says
/// where requests go is being written, that may be to this cluster: whether it is wanted is asked again after that.
fn delete(service: &RayService, cluster: &RayCluster, plan: &mut Plan) {
    let text = format!("RayCluster {} goes", place(cluster));
    plan.notes.push(Note::normal(service, "DeletedRayCluster", text));
    let leads = ObjectRef::named::<Service>(service.namespace(), services::serve_service_name(service));
    let routes = ObjectRef::named::<HTTPRoute>(service.namespace(), route_name(service));
    plan.write(Write::delete(cluster, true).while_quiet([leads, routes]));
}

/// Whether the cluster that served before the active one still has to be marked, so that nobody takes it for one that never
/// served. The status must not forget it before that.
pub(super) fn has_unmarked_predecessor(scene: &Scene<'_>) -> bool {
    scene.family.others.iter().any(|child| is_unmarked_predecessor(scene.view.service, child))
}

/// Whether `child`, which isn't active, is the one that the status still names as such.
fn is_unmarked_predecessor(service: &RayService, child: &Child<'_>) -> bool {
    active_name(service) == Some(child.name().as_str()) && child.delete_after().is_none()
}

/// Namespace and name.
pub(super) fn place<K: Resource>(object: &K) -> String {
    let meta = object.meta();
    let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
    format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
}
