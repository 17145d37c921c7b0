//! RayClusters of a RayService: creation, updates and deletion.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube_core::{Resource, ResourceExt};
use sha2::{Digest, Sha256};

use super::clusters::{ServiceCluster, active_cluster_name, is_terminating};
use super::incremental::http_route::route_name;
use super::upgrade::UpgradeAction;
use super::{ObservedService, ServiceContext, incremental, services, spec_hash, upgrade_failure};
use sluice_api::gateway_api::HTTPRoute;
use sluice_api::ray::admission_annotations::TIMED_OUT_ANNOTATION;
use sluice_api::ray::incremental_annotations::{UPGRADE_DIRECTIVE_ANNOTATION, UPGRADE_FAILED_ANNOTATION};
use sluice_api::ray::routing_annotations::ADOPTED_ROUTE_ANNOTATION;
use sluice_api::ray::{RayCluster, RayService, names};
use sluice_api::{LAST_APPLIED_ANNOTATION, condition};
use sluice_plan::{EventRecord, ObjectRef, Plan, Write};

/// Default of `spec.rayClusterDeletionDelaySeconds`: how long a replaced cluster is kept, in
/// seconds
/// (KubeRay 1.7 `ray-operator/controllers/ray/rayservice_controller.go`).
const DEFAULT_DELETION_DELAY_SECONDS: i32 = 60;
/// Characters of name suffixes: no vowels and no similar ones, so that suffixes spell no words and
/// are not misread.
const SUFFIX_ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Annotations about the RayService itself, which its RayClusters don't inherit.
const SERVICE_ANNOTATIONS: [&str; 6] = [
    LAST_APPLIED_ANNOTATION,
    TIMED_OUT_ANNOTATION,
    UPGRADE_DIRECTIVE_ANNOTATION,
    UPGRADE_FAILED_ANNOTATION,
    ADOPTED_ROUTE_ANNOTATION,
    names::TEMPLATE_SUSPENDED_ANNOTATION,
];

/// Returns the RayCluster that the RayService's spec describes, under this name.
pub(super) fn build_cluster(service: &RayService, name: &str) -> RayCluster {
    let mut labels = service.labels().clone();
    labels.insert(names::ORIGIN_NAME_LABEL.to_owned(), service.name_any());
    labels.insert(names::ORIGIN_KIND_LABEL.to_owned(), RayService::kind(&()).into_owned());
    let mut annotations = service.annotations().clone();
    annotations.retain(|key, _| !SERVICE_ANNOTATIONS.contains(&key.as_str()));
    let mut cluster = RayCluster::new(name, service.spec.ray_cluster_config.clone());
    cluster.metadata = ObjectMeta {
        namespace: service.namespace(),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![owner_reference(service)]),
        ..cluster.metadata
    };
    cluster
}

/// Returns the controller owner reference to the RayService.
pub(super) fn owner_reference(service: &RayService) -> OwnerReference {
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
fn available_cluster_name(observed: &ObservedService<'_>, hash: &str) -> String {
    let service = observed.service;
    let uid = service.uid().unwrap_or_default();
    let candidate = |attempt: usize| {
        let digest = Sha256::digest(format!("{uid}/{hash}/{attempt}"));
        let letters =
            digest.iter().take(5).map(|byte| char::from(SUFFIX_ALPHABET[usize::from(*byte) % SUFFIX_ALPHABET.len()]));
        format!("{}-{}", service.name_any(), letters.collect::<String>())
    };
    let active = [services::selected_cluster_name(observed), active_cluster_name(service)];
    let is_free = |name: &String| {
        let is_active = active.contains(&Some(name.as_str()));
        !is_active
            && !observed.routing.references_cluster(name)
            && observed.clusters.iter().all(|cluster| cluster.name_any() != *name)
    };
    (0..).map(candidate).find(is_free).unwrap_or_default()
}

/// Plans the writes to the RayClusters.
pub(super) fn plan(context: &ServiceContext<'_>, plan: &mut Plan) {
    if context.action == UpgradeAction::Create {
        create_cluster(context, plan);
    }
    if let Some(active) = &context.clusters.active {
        update_cluster(context, active, context.action == UpgradeAction::UpdateActive, plan);
    }
    for (index, child) in context.clusters.inactive.iter().enumerate() {
        if context.action.pending_index() == Some(index) {
            update_cluster(context, child, matches!(context.action, UpgradeAction::UpdatePending(_)), plan);
        } else {
            delete_when_due(context, child, plan);
        }
    }
}

fn create_cluster(context: &ServiceContext<'_>, plan: &mut Plan) {
    let (service, Ok(desired)) = (context.observed.service, &context.desired) else { return };
    let mut cluster = build_cluster(service, &available_cluster_name(context.observed, &desired.cluster_spec_hash));
    spec_hash::record_origin(
        &mut cluster,
        &desired.cluster_spec_hash,
        service.spec.ray_cluster_config.worker_group_specs.len(),
    );
    if context.observed.is_queued {
        cluster.spec.suspend = Some(true);
    }
    incremental::reduce_initial_workers(context, &mut cluster);
    let name = namespaced_name(&cluster);
    if let Some(active) = &context.clusters.active {
        let text = format!("RayCluster {name} will replace RayCluster {}", namespaced_name(active.cluster));
        plan.events.push(EventRecord::normal(service, "UpgradeStarted", text));
    }
    plan.events.push(EventRecord::normal(service, "CreatedRayCluster", format!("Created RayCluster {name}")));
    plan.write(Write::create(&cluster));
}

/// Records on the cluster what a restarted process needs, and applies the changes that need no new
/// cluster.
fn update_cluster(context: &ServiceContext<'_>, child: &ServiceCluster<'_>, append: bool, plan: &mut Plan) {
    let service = context.observed.service;
    let mut next = child.cluster.clone();
    let (hash, groups) = spec_hash::origin_spec(child.cluster);
    let annotated_hash = child.cluster.annotations().get(names::SPEC_HASH_ANNOTATION);
    if annotated_hash.is_none_or(|hash| !spec_hash::is_current_format(hash)) {
        spec_hash::record_origin(&mut next, &hash, groups);
    }
    if let (true, Ok(desired)) = (append, &context.desired) {
        // Existing groups keep the replicas set by the autoscaler and the queue.
        let wanted = &service.spec.ray_cluster_config.worker_group_specs;
        next.spec.worker_group_specs.extend(wanted.iter().skip(groups).cloned());
        spec_hash::record_origin(&mut next, &desired.cluster_spec_hash, wanted.len());
        let text = format!("Added worker groups to RayCluster {}", namespaced_name(child.cluster));
        plan.events.push(EventRecord::normal(service, "UpdatedRayCluster", text));
    }
    incremental::scale_workers(context, child, &mut next);
    upgrade_failure::record_health(context, child, &mut next);
    if let Some(applied) = child.serve.applied_config_hash() {
        let previous =
            next.annotations_mut().insert(names::SERVE_CONFIG_HASH_ANNOTATION.to_owned(), applied.to_owned());
        if previous.as_deref() != Some(applied) {
            let text = format!("Applied the Serve configuration to RayCluster {}", namespaced_name(child.cluster));
            plan.events.push(EventRecord::normal(service, "UpdatedServeApplications", text));
        }
    }
    let is_active = context.clusters.active.as_ref().is_some_and(|active| active.name() == child.name());
    if is_active || incremental::is_gaining_traffic(context, child) {
        next.annotations_mut().remove(names::DELETE_AFTER_ANNOTATION);
    } else if is_unrecorded_predecessor(service, child) {
        // The spec was reverted before the status could record that it was replaced.
        record_deletion_time(context, &mut next);
    } else if context.rollout.as_ref().is_some_and(incremental::Rollout::is_rollback_complete) {
        // It has served requests and is kept for connections that still use it.
        record_deletion_time(context, &mut next);
    }
    plan.write(Write::patch(child.cluster, &next));
}

/// Deletes a cluster that is no longer needed: immediately if it never served, otherwise after the
/// deletion delay, so that open connections can finish.
fn delete_when_due(context: &ServiceContext<'_>, child: &ServiceCluster<'_>, plan: &mut Plan) {
    let service = context.observed.service;
    let due = match child.delete_after() {
        Some(due) => due,
        None if child.has_served(service) => return plan.write(deletion_time_write(context, child)),
        None => Timestamp::MIN,
    };
    if due > context.observed.now {
        return plan.wake_by(due);
    }
    // The serve Service still sends requests to it. It is moved to the active cluster first, and the delay
    // begins again.
    let is_selected = services::selected_cluster_name(context.observed) == Some(child.name().as_str());
    if is_selected && context.clusters.active.is_some() {
        return plan.write(deletion_time_write(context, child));
    }
    if due == Timestamp::MIN && matches!(context.action, UpgradeAction::Keep | UpgradeAction::UpdateActive) {
        let text = format!(
            "The spec matches the active cluster again; RayCluster {} is no longer needed",
            namespaced_name(child.cluster)
        );
        plan.events.push(EventRecord::normal(service, "UpgradeCancelled", text));
    }
    delete_cluster(service, child.cluster, plan);
}

/// Returns the write that records the deletion time of a replaced cluster.
fn deletion_time_write(context: &ServiceContext<'_>, child: &ServiceCluster<'_>) -> Option<Write> {
    let mut retired = child.cluster.clone();
    record_deletion_time(context, &mut retired);
    Write::patch(child.cluster, &retired)
}

/// Records on the cluster when the deletion delay ends.
fn record_deletion_time(context: &ServiceContext<'_>, cluster: &mut RayCluster) {
    let delay = context
        .observed
        .service
        .spec
        .ray_cluster_deletion_delay_seconds
        .unwrap_or(DEFAULT_DELETION_DELAY_SECONDS)
        .max(0);
    let now = condition::whole_seconds(context.observed.now);
    let due = now.saturating_add(SignedDuration::from_secs(delay.into())).unwrap_or(Timestamp::MAX);
    cluster.annotations_mut().insert(names::DELETE_AFTER_ANNOTATION.to_owned(), due.to_string());
}

/// Deletes all RayClusters that are not terminating yet.
pub(super) fn delete_all_clusters(service: &RayService, children: &[&RayCluster], plan: &mut Plan) {
    for child in children.iter().filter(|child| !is_terminating(child)) {
        delete_cluster(service, child, plan);
    }
}

/// Deletes a cluster in the foreground, so that it keeps its quota until its last pod is gone. A
/// write of the serve Service or the route that is in flight may send requests to this cluster, so
/// the deletion is dropped until that write completes and is then decided again.
fn delete_cluster(service: &RayService, cluster: &RayCluster, plan: &mut Plan) {
    let text = format!("Deleted RayCluster {}", namespaced_name(cluster));
    plan.events.push(EventRecord::normal(service, "DeletedRayCluster", text));
    let serve_service = ObjectRef::named::<Service>(service.namespace(), services::serve_service_name(service));
    let route = ObjectRef::named::<HTTPRoute>(service.namespace(), route_name(service));
    plan.write(Write::delete_in_foreground(cluster).blocked_while_in_flight([serve_service, route]));
}

/// Returns true if the previously active cluster does not have a deletion time yet. The status must
/// keep naming it until then; otherwise it would count as a cluster that never served.
pub(super) fn has_unrecorded_predecessor(context: &ServiceContext<'_>) -> bool {
    context.clusters.inactive.iter().any(|child| is_unrecorded_predecessor(context.observed.service, child))
}

/// Returns true if `child`, which is not active, is still named as active by the status and has no
/// deletion time.
fn is_unrecorded_predecessor(service: &RayService, child: &ServiceCluster<'_>) -> bool {
    active_cluster_name(service) == Some(child.name().as_str()) && child.delete_after().is_none()
}

/// Returns `namespace/name` of an object.
pub(super) fn namespaced_name<K: Resource>(object: &K) -> String {
    let meta = object.meta();
    let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
    format!("{}/{}", namespace.unwrap_or_default(), name.unwrap_or_default())
}
