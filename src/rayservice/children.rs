//! RayClusters of a RayService: creation, updates and deletion.

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

/// Default of `spec.rayClusterDeletionDelaySeconds`: how long a replaced cluster is kept, in
/// seconds
/// (KubeRay 1.7 `ray-operator/controllers/ray/rayservice_controller.go`).
const DELETION_DELAY: i32 = 60;
/// Characters of name suffixes: no vowels and no look-alikes, so that suffixes spell no words and
/// are not misread.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Returns the RayCluster that the RayService's spec describes, under this name.
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

/// Returns the controller owner reference to the RayService.
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

/// Returns a name for the cluster with this hash. It is deterministic: planning twice from the same
/// or stale state requests the same name, and the API server rejects the second create. Names of
/// existing and terminating clusters are skipped, and so is the name that the serve Service, a
/// route or the status refers to: a new cluster with it would count as active before it can serve.
fn name(observed: &View<'_>, hash: &str) -> String {
    let service = observed.service;
    let uid = service.uid().unwrap_or_default();
    let candidate = |attempt: usize| {
        let digest = Sha256::digest(format!("{uid}/{hash}/{attempt}"));
        let letters = digest.iter().take(5).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()]));
        format!("{}-{}", service.name_any(), letters.collect::<String>())
    };
    let active = [services::serving(observed), active_name(service)];
    let is_free = |name: &String| {
        let is_active = active.contains(&Some(name.as_str()));
        !is_active
            && !observed.ways.mentions(name)
            && observed.children.iter().all(|cluster| cluster.name_any() != *name)
    };
    (0..).map(candidate).find(is_free).unwrap_or_default()
}

/// Plans the writes to the RayClusters.
pub(super) fn plan(context: &Scene<'_>, plan: &mut Plan) {
    if context.step == Step::Create {
        create(context, plan);
    }
    if let Some(active) = &context.family.active {
        keep(context, active, context.step == Step::UpdateActive, plan);
    }
    for (index, child) in context.family.others.iter().enumerate() {
        if context.step.pending() == Some(index) {
            keep(context, child, matches!(context.step, Step::UpdatePending(_)), plan);
        } else {
            give_up(context, child, plan);
        }
    }
}

fn create(context: &Scene<'_>, plan: &mut Plan) {
    let (service, Ok(desired)) = (context.view.service, &context.goal) else { return };
    let mut cluster = draft(service, &name(context.view, &desired.hash));
    hash::stamp(&mut cluster, &desired.hash, service.spec.ray_cluster_config.worker_group_specs.len());
    if context.view.gated {
        cluster.spec.suspend = Some(true);
    }
    incremental::shrink(context, &mut cluster);
    let name = place(&cluster);
    if let Some(active) = &context.family.active {
        let text = format!("RayCluster {name} will replace RayCluster {}", place(active.cluster));
        plan.notes.push(Note::normal(service, "UpgradeStarted", text));
    }
    plan.notes.push(Note::normal(service, "CreatedRayCluster", format!("Created RayCluster {name}")));
    plan.write(Write::create(&cluster));
}

/// Records on the cluster what a restarted process needs, and applies the changes that need no new
/// cluster.
fn keep(context: &Scene<'_>, child: &Child<'_>, append: bool, plan: &mut Plan) {
    let service = context.view.service;
    let mut next = child.cluster.clone();
    let (hash, groups) = hash::origin(child.cluster);
    let annotated_hash = child.cluster.annotations().get(names::SPEC_HASH_ANNOTATION);
    if annotated_hash.is_none_or(|hash| !hash::is_comparable(hash)) {
        hash::stamp(&mut next, &hash, groups);
    }
    if let (true, Ok(desired)) = (append, &context.goal) {
        // Existing groups keep the replicas set by the autoscaler and the queue.
        let wanted = &service.spec.ray_cluster_config.worker_group_specs;
        next.spec.worker_group_specs.extend(wanted.iter().skip(groups).cloned());
        hash::stamp(&mut next, &desired.hash, wanted.len());
        let text = format!("Added worker groups to RayCluster {}", place(child.cluster));
        plan.notes.push(Note::normal(service, "UpdatedRayCluster", text));
    }
    incremental::scale(context, child, &mut next);
    failed::note(context, child, &mut next);
    if let Some(applied) = child.serve.applied_config() {
        let previous =
            next.annotations_mut().insert(names::SERVE_CONFIG_HASH_ANNOTATION.to_owned(), applied.to_owned());
        if previous.as_deref() != Some(applied) {
            let text = format!("Applied the Serve configuration to RayCluster {}", place(child.cluster));
            plan.notes.push(Note::normal(service, "UpdatedServeApplications", text));
        }
    }
    let is_active = context.family.active.as_ref().is_some_and(|active| active.name() == child.name());
    if is_active || incremental::is_gaining(context, child) {
        next.annotations_mut().remove(names::DELETE_AFTER_ANNOTATION);
    } else if is_unmarked_predecessor(service, child) {
        // The spec was reverted before the status could record that it was replaced.
        mark(context, &mut next);
    } else if context.transition.as_ref().is_some_and(incremental::Transition::is_back) {
        // It has served requests and is kept for connections that still use it.
        mark(context, &mut next);
    }
    plan.write(Write::patch(child.cluster, &next));
}

/// Deletes a cluster that is no longer needed: immediately if it never served, otherwise after the
/// deletion delay, so that open connections can finish.
fn give_up(context: &Scene<'_>, child: &Child<'_>, plan: &mut Plan) {
    let service = context.view.service;
    let due = match child.delete_after() {
        Some(due) => due,
        None if child.has_served(service) => return plan.write(retire(context, child)),
        None => Timestamp::MIN,
    };
    if due > context.view.now {
        return plan.wake(due);
    }
    if due == Timestamp::MIN && matches!(context.step, Step::Keep | Step::UpdateActive) {
        let text = format!(
            "The spec matches the active cluster again; RayCluster {} is no longer needed",
            place(child.cluster)
        );
        plan.notes.push(Note::normal(service, "UpgradeCancelled", text));
    }
    delete(service, child.cluster, plan);
}

/// Returns the write that records the deletion time of a replaced cluster.
fn retire(context: &Scene<'_>, child: &Child<'_>) -> Option<Write> {
    let mut retired = child.cluster.clone();
    mark(context, &mut retired);
    Write::patch(child.cluster, &retired)
}

/// Records on the cluster when the deletion delay ends.
fn mark(context: &Scene<'_>, cluster: &mut RayCluster) {
    let delay = context.view.service.spec.ray_cluster_deletion_delay_seconds.unwrap_or(DELETION_DELAY).max(0);
    let now = condition::whole_seconds(context.view.now);
    let due = now.saturating_add(SignedDuration::from_secs(delay.into())).unwrap_or(Timestamp::MAX);
    cluster.annotations_mut().insert(names::DELETE_AFTER_ANNOTATION.to_owned(), due.to_string());
}

/// Deletes all RayClusters that are not terminating yet.
pub(super) fn delete_all(service: &RayService, children: &[&RayCluster], plan: &mut Plan) {
    for child in children.iter().filter(|child| !is_going(child)) {
        delete(service, child, plan);
    }
}

/// Deletes a cluster in the foreground, so that it keeps its quota until its last pod is gone. A
/// write of the serve Service or the route that is in flight may send requests to this cluster, so
/// the deletion is dropped until that write completes and is then decided again.
fn delete(service: &RayService, cluster: &RayCluster, plan: &mut Plan) {
    let text = format!("Deleted RayCluster {}", place(cluster));
    plan.notes.push(Note::normal(service, "DeletedRayCluster", text));
    let serve_service = ObjectRef::named::<Service>(service.namespace(), services::serve_service_name(service));
    let route = ObjectRef::named::<HTTPRoute>(service.namespace(), route_name(service));
    plan.write(Write::delete(cluster, true).while_quiet([serve_service, route]));
}

/// Returns true if the previously active cluster does not have a deletion time yet. The status must
/// keep naming it until then; otherwise it would count as a cluster that never served.
pub(super) fn has_unmarked_predecessor(context: &Scene<'_>) -> bool {
    context.family.others.iter().any(|child| is_unmarked_predecessor(context.view.service, child))
}

/// Returns true if `child`, which is not active, is still named as active by the status and has no
/// deletion time.
fn is_unmarked_predecessor(service: &RayService, child: &Child<'_>) -> bool {
    active_name(service) == Some(child.name().as_str()) && child.delete_after().is_none()
}

/// Returns `namespace/name` of an object.
pub(super) fn place<K: Resource>(object: &K) -> String {
    let meta = object.meta();
    let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
    format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
}
