//! Maps object changes to the planners that they trigger.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use kube_core::{Resource, ResourceExt};

use super::cluster_state::{Change, ClusterState, Object, PodOwnerId, PodOwnerKind, has_controller, owner_key};
use super::owners::{
    controller_key, existing_cluster, is_standalone, owning_job_exists, owning_job_key, service_of_cluster,
};
use super::planner_key::{JobKey, PlannerKey};
use super::{Components, finalizers, priorities};
use sluice_api::kueue::Workload;
use sluice_api::kueue::names::{DEFAULT_LOCAL_QUEUE, JOB_UID_LABEL};
use sluice_api::ray::{RayCluster, RayJob, RayService, names};
use sluice_jobframework::slice_record::SliceRecord;
use sluice_plan::ObjectKey;
use sluice_raycluster::revision::{has_recreate_strategy, parse_member_uid};
use sluice_rayservice::incremental::gateway::{gateway_class_name, gateway_namespaced_name};
use sluice_rayservice::incremental::http_route::route_names;

/// Returns the planners that a change triggers: those whose plan may depend on the object.
pub(super) fn triggered(state: &ClusterState, components: Components, change: &Change) -> BTreeSet<PlannerKey> {
    let mut concerned = BTreeSet::new();
    if changes_quota(change) {
        all_jobs_with_pending_upgrade(state, &mut concerned);
    }
    for side in change.versions() {
        match side {
            Object::RayService(service) => {
                on_ray_service(state, &ObjectKey::of(service.as_ref()), &mut concerned);
                let uid = service.metadata.uid.as_deref().unwrap_or_default();
                on_children(state, uid, &mut concerned);
                on_releasing_workloads(state, uid, &mut concerned);
            }
            Object::RayCluster(cluster) => {
                concerned.insert(PlannerKey::RayCluster(ObjectKey::of(cluster.as_ref())));
                let uids = cluster.owner_references().iter().map(|owner| owner.uid.clone()).chain(cluster.uid());
                uids.for_each(|uid| on_releasing_workloads(state, &uid, &mut concerned));
                on_jobs_of_cluster(cluster, &mut concerned);
                if let Some(service) = controller_key(cluster.as_ref(), "RayService") {
                    on_ray_service(state, &service, &mut concerned);
                }
            }
            Object::RayJob(job) => on_ray_job(state, job, &mut concerned),
            Object::BatchJob(job) => {
                concerned.insert(PlannerKey::Job(JobKey::BatchJob(ObjectKey::of(job.as_ref()))));
                on_releasing_workloads(state, job.metadata.uid.as_deref().unwrap_or_default(), &mut concerned);
                concerned
                    .extend(controller_key(job.as_ref(), "RayJob").map(|job| PlannerKey::Job(JobKey::RayJob(job))));
                concerned.extend(controller_key(job.as_ref(), "RayCluster").map(PlannerKey::RayCluster));
            }
            Object::Pod(pod) => {
                let members = PodOwnerId::of_pod(pod).into_iter().chain(PodOwnerId::ungated_for(pod));
                members.for_each(|member| on_pods(state, &member, &mut concerned));
                if let Some(cluster) = pod.labels().get(names::CLUSTER_LABEL).filter(|_| !has_controller(pod.as_ref()))
                {
                    let cluster = ObjectKey::new(pod.namespace().unwrap_or_default(), cluster);
                    on_orphaned_pods(state, &cluster, &mut concerned);
                }
            }
            Object::Service(service) => on_endpoints(state, service, &mut concerned),
            Object::Ingress(ingress) => on_owner(ingress.as_ref(), &mut concerned),
            Object::Gateway(gateway) => {
                let place = (gateway.namespace().unwrap_or_default(), gateway.name_any());
                on_gateway_path(state, |service| gateway_namespaced_name(service) == place, &mut concerned);
            }
            Object::HTTPRoute(route) => {
                let (namespace, name) = (route.namespace(), route.name_any());
                let leads = |to: &RayService| to.namespace() == namespace && route_names(to).contains(&name);
                on_gateway_path(state, leads, &mut concerned);
            }
            Object::GatewayClass(class) => {
                on_gateway_path(
                    state,
                    |service| gateway_class_name(service) == Some(&class.name_any()),
                    &mut concerned,
                );
            }
            Object::ControllerRevision(revision) => {
                let cluster = controller_key(revision.as_ref(), "RayCluster");
                concerned.extend(cluster.iter().cloned().map(|key| PlannerKey::Job(JobKey::RayCluster(key))));
                let service = cluster.as_ref().and_then(|key| service_of_cluster(state, key));
                concerned.extend(service.map(PlannerKey::RayService));
                concerned.extend(cluster.map(PlannerKey::RayCluster));
            }
            Object::ServiceAccount(account) => on_owner(account.as_ref(), &mut concerned),
            Object::SecretMeta(secret) => on_owner(secret.as_ref(), &mut concerned),
            Object::Role(role) => on_owner(role.as_ref(), &mut concerned),
            Object::RoleBinding(binding) => on_owner(binding.as_ref(), &mut concerned),
            Object::EndpointSlice(slice) => {
                let service = slice.labels().get("kubernetes.io/service-name");
                let key = service.map(|name| ObjectKey::new(slice.namespace().unwrap_or_default(), name));
                if let Some(service) = key.and_then(|key| state.services.get(&key)) {
                    on_endpoints(state, service, &mut concerned);
                }
            }
            Object::Workload(workload) => on_workload(state, workload, &mut concerned),
            Object::WorkloadPriorityClass(class) => {
                concerned.extend(priorities::workloads_of_class(state, &class.name_any()).map(PlannerKey::Workload));
                all_jobs(state, &mut concerned);
            }
            Object::PriorityClass(_) => all_jobs(state, &mut concerned),
            Object::ClusterQueue(queue) => {
                concerned.insert(PlannerKey::ClusterQueue(queue.name_any()));
                let terminating = finalizers::terminating_flavors(state, finalizers::flavors_of_queue(queue));
                concerned.extend(terminating.into_iter().map(PlannerKey::ResourceFlavor));
            }
            Object::ResourceFlavor(flavor) => {
                concerned.insert(PlannerKey::ResourceFlavor(flavor.name_any()));
            }
            Object::LocalQueue(queue) => {
                concerned.insert(PlannerKey::LocalQueue(ObjectKey::of(queue.as_ref())));
                if queue.name_any() == DEFAULT_LOCAL_QUEUE && (change.before.is_none() || change.after.is_none()) {
                    on_namespace(state, &queue.namespace().unwrap_or_default(), &mut concerned);
                }
            }
            Object::Cohort(cohort) => {
                concerned.insert(PlannerKey::Cohort(cohort.name_any()));
            }
            Object::Namespace(namespace) => on_namespace(state, &namespace.name_any(), &mut concerned),
            Object::LimitRange(_) | Object::RuntimeClass(_) => {}
        }
    }
    retain_enabled(components, concerned)
}

/// Returns the planners that the pods of a member trigger.
pub(super) fn triggered_by_pods(
    state: &ClusterState,
    components: Components,
    member: &PodOwnerId,
) -> BTreeSet<PlannerKey> {
    let mut concerned = BTreeSet::new();
    on_pods(state, member, &mut concerned);
    retain_enabled(components, concerned)
}

fn retain_enabled(components: Components, mut concerned: BTreeSet<PlannerKey>) -> BTreeSet<PlannerKey> {
    concerned.retain(|planner| match planner {
        PlannerKey::RayService(_) | PlannerKey::RayCluster(_) => components.ray_operator,
        _ => components.queue_manager,
    });
    concerned
}

fn on_ray_service(state: &ClusterState, service: &ObjectKey, concerned: &mut BTreeSet<PlannerKey>) {
    concerned.insert(PlannerKey::RayService(service.clone()));
    concerned.insert(PlannerKey::Job(JobKey::RayService(service.clone())));
    if let Some(uid) = state.ray_services.get(service).and_then(|service| service.uid()) {
        on_children(state, &uid, concerned);
    }
}

/// Adds the objects that the job with this uid controls: whether its slices cover them, or they are
/// jobs of their own, depends on the owner.
fn on_children(state: &ClusterState, owner: &str, concerned: &mut BTreeSet<PlannerKey>) {
    for cluster in state.ray_clusters.by_index(&owner_key(owner)) {
        let key = ObjectKey::of(cluster.as_ref());
        concerned.extend([PlannerKey::RayCluster(key.clone()), PlannerKey::Job(JobKey::RayCluster(key))]);
    }
    let jobs = state.batch_jobs.by_index(&owner_key(owner));
    concerned.extend(jobs.map(|job| PlannerKey::Job(JobKey::BatchJob(ObjectKey::of(job.as_ref())))));
}

/// Adds the jobs that a cluster may belong to: itself, and the one that controls it.
fn on_jobs_of_cluster(cluster: &RayCluster, concerned: &mut BTreeSet<PlannerKey>) {
    concerned.insert(PlannerKey::Job(JobKey::RayCluster(ObjectKey::of(cluster))));
    let owners = [
        controller_key(cluster, "RayService").map(JobKey::RayService),
        controller_key(cluster, "RayJob").map(JobKey::RayJob),
    ];
    concerned.extend(owners.into_iter().flatten().map(PlannerKey::Job));
}

/// Adds a RayJob, and its clusters and submitter Jobs.
fn on_ray_job(state: &ClusterState, job: &RayJob, concerned: &mut BTreeSet<PlannerKey>) {
    concerned.insert(PlannerKey::Job(JobKey::RayJob(ObjectKey::of(job))));
    let uid = job.metadata.uid.as_deref().unwrap_or_default();
    on_children(state, uid, concerned);
    on_releasing_workloads(state, uid, concerned);
}

/// Adds all jobs of a namespace: the managed-jobs policy may apply differently to them.
fn on_namespace(state: &ClusterState, namespace: &str, concerned: &mut BTreeSet<PlannerKey>) {
    let services = state.ray_services.iter().filter(|(key, _)| key.namespace == namespace);
    services.for_each(|(key, _)| on_ray_service(state, key, concerned));
    for (key, cluster) in state.ray_clusters.iter().filter(|(key, _)| key.namespace == namespace) {
        concerned.insert(PlannerKey::RayCluster(key.clone()));
        on_jobs_of_cluster(cluster, concerned);
    }
    let ray_jobs = state.ray_jobs.iter().filter(|(key, _)| key.namespace == namespace);
    ray_jobs.for_each(|(_, job)| on_ray_job(state, job, concerned));
    let jobs = state.batch_jobs.iter().filter(|(key, _)| key.namespace == namespace);
    concerned.extend(jobs.map(|(key, _)| PlannerKey::Job(JobKey::BatchJob(key.clone()))));
}

fn on_owner<K: Resource>(object: &K, concerned: &mut BTreeSet<PlannerKey>) {
    if let Some(service) = controller_key(object, "RayService") {
        concerned.insert(PlannerKey::Job(JobKey::RayService(service.clone())));
        concerned.insert(PlannerKey::RayService(service));
    }
    concerned.extend(controller_key(object, "RayCluster").map(PlannerKey::RayCluster));
}

/// Adds the planners of a Service and its endpoints: the Service of a cluster may receive part of
/// the traffic of its RayService.
fn on_endpoints(state: &ClusterState, service: &Service, concerned: &mut BTreeSet<PlannerKey>) {
    on_owner(service, concerned);
    let cluster = controller_key(service, "RayCluster");
    concerned.extend(cluster.and_then(|key| service_of_cluster(state, &key)).map(PlannerKey::RayService));
}

/// Adds the RayServices whose gateway path contains an object.
fn on_gateway_path(state: &ClusterState, leads: impl Fn(&RayService) -> bool, concerned: &mut BTreeSet<PlannerKey>) {
    for (key, _) in state.ray_services.iter().filter(|(_, service)| leads(service)) {
        concerned.insert(PlannerKey::RayService(key.clone()));
        concerned.insert(PlannerKey::Job(JobKey::RayService(key.clone())));
    }
}

fn on_pods(state: &ClusterState, member: &PodOwnerId, concerned: &mut BTreeSet<PlannerKey>) {
    match member.owner_kind {
        PodOwnerKind::RayCluster => on_pods_of_cluster(state, member, concerned),
        PodOwnerKind::RayJob => {
            let jobs = state.ray_jobs.by_index(&owner_key(&member.uid));
            concerned.extend(jobs.map(|job| PlannerKey::Job(JobKey::RayJob(ObjectKey::of(job.as_ref())))));
            on_releasing_workloads(state, &member.uid, concerned);
        }
        PodOwnerKind::BatchJob => {
            concerned.insert(PlannerKey::Job(JobKey::BatchJob(member.key.clone())));
            on_releasing_workloads(state, &member.uid, concerned);
            if let Some(job) = state.batch_jobs.get(&member.key) {
                job.owner_references().iter().for_each(|owner| on_releasing_workloads(state, &owner.uid, concerned));
                concerned
                    .extend(controller_key(job.as_ref(), "RayJob").map(|job| PlannerKey::Job(JobKey::RayJob(job))));
            }
        }
    }
}

fn on_pods_of_cluster(state: &ClusterState, cluster: &PodOwnerId, concerned: &mut BTreeSet<PlannerKey>) {
    concerned.insert(PlannerKey::RayCluster(cluster.key.clone()));
    if let Some(known) = existing_cluster(state, cluster) {
        let uids = known.owner_references().iter().map(|owner| owner.uid.clone()).chain(known.uid());
        uids.for_each(|uid| on_releasing_workloads(state, &uid, concerned));
        on_jobs_of_cluster(known, concerned);
        concerned.extend(controller_key(known.as_ref(), "RayService").map(PlannerKey::RayService));
        return;
    }
    // The cluster is deleted: only the slices that cover its pods still record their owner.
    let in_namespace = state.workloads.iter().filter(|(key, _)| key.namespace == cluster.key.namespace);
    let covering = in_namespace.filter(|(_, workload)| covers(workload, &cluster.uid));
    for workload in covering.map(|(_, workload)| workload) {
        concerned.insert(PlannerKey::Workload(ObjectKey::of(workload.as_ref())));
        concerned.extend(owning_job_key(workload).map(PlannerKey::Job));
    }
}

/// Adds the Workloads of a job that are terminating, orphaned, or have outlived it: they release their
/// quota after the last pod.
fn on_releasing_workloads(state: &ClusterState, job: &str, concerned: &mut BTreeSet<PlannerKey>) {
    let slices = state.workloads.by_index(&owner_key(job));
    let releasing = slices.filter(|slice| {
        slice.metadata.deletion_timestamp.is_some()
            || !has_controller(slice.as_ref())
            || !owning_job_exists(state, slice)
    });
    concerned.extend(releasing.map(|slice| PlannerKey::Workload(ObjectKey::of(slice.as_ref()))));
}

/// Adds what orphaned pods of RayClusters with this name concern: the Workloads that cover them, and a
/// cluster that is being deleted without them.
fn on_orphaned_pods(state: &ClusterState, cluster: &ObjectKey, concerned: &mut BTreeSet<PlannerKey>) {
    let in_namespace = state.workloads.iter().filter(|(key, _)| key.namespace == cluster.namespace);
    let covers = |workload: &Workload| {
        let record = SliceRecord::from_workload(workload);
        record.is_some_and(|record| record.members.iter().any(|member| member.name == cluster.name))
    };
    let covering = in_namespace.filter(|(_, workload)| covers(workload));
    concerned.extend(covering.map(|(key, _)| PlannerKey::Workload(key.clone())));
    concerned.insert(PlannerKey::Job(JobKey::RayCluster(cluster.clone())));
}

fn on_workload(state: &ClusterState, workload: &Workload, concerned: &mut BTreeSet<PlannerKey>) {
    concerned.insert(PlannerKey::Workload(ObjectKey::of(workload)));
    concerned.extend(owning_job_key(workload).map(PlannerKey::Job));
    if !has_controller(workload) {
        on_adoptive_jobs(workload, concerned);
    }
    // It may replace one that is being deleted or has lost its owner, or be replaced by such a one.
    let job = workload.labels().get(JOB_UID_LABEL);
    job.into_iter().for_each(|job| on_releasing_workloads(state, job, concerned));
    let terminating = finalizers::terminating_flavors(state, finalizers::flavors_of_workload(workload));
    concerned.extend(terminating.into_iter().map(PlannerKey::ResourceFlavor));
    let namespace = workload.namespace().unwrap_or_default();
    let record = SliceRecord::from_workload(workload).unwrap_or_default();
    // A cluster whose service is queued later has a slice of its own until this one covers it.
    for member in &record.members {
        on_releasing_workloads(state, parse_member_uid(&member.uid).0, concerned);
    }
    let displaced = record.displaces.into_iter().map(|displaced| displaced.name);
    let names = record.members.into_iter().map(|member| member.name).chain(displaced);
    let clusters = names.map(|name| ObjectKey::new(namespace.clone(), name));
    for cluster in clusters.filter(|key| state.ray_clusters.get(key).is_some()) {
        // Once the slices of a deleted job are gone, the cluster is a job of its own.
        concerned.extend([PlannerKey::RayCluster(cluster.clone()), PlannerKey::Job(JobKey::RayCluster(cluster))]);
    }
}

/// Adds the jobs that an orphaned Workload may belong to.
fn on_adoptive_jobs(workload: &Workload, concerned: &mut BTreeSet<PlannerKey>) {
    let namespace = workload.namespace().unwrap_or_default();
    for member in SliceRecord::from_workload(workload).unwrap_or_default().members {
        let key = ObjectKey::new(namespace.clone(), member.name);
        let kinds = [JobKey::RayCluster(key.clone()), JobKey::BatchJob(key.clone()), JobKey::RayJob(key)];
        concerned.extend(kinds.map(PlannerKey::Job));
    }
}

fn all_jobs(state: &ClusterState, concerned: &mut BTreeSet<PlannerKey>) {
    concerned.extend(state.ray_services.iter().map(|(key, _)| PlannerKey::Job(JobKey::RayService(key.clone()))));
    concerned.extend(state.ray_clusters.iter().map(|(key, _)| PlannerKey::Job(JobKey::RayCluster(key.clone()))));
    concerned.extend(state.ray_jobs.iter().map(|(key, _)| PlannerKey::Job(JobKey::RayJob(key.clone()))));
    concerned.extend(state.batch_jobs.iter().map(|(key, _)| PlannerKey::Job(JobKey::BatchJob(key.clone()))));
}

/// Reports whether a change may alter the available quota or the requests counted against it.
fn changes_quota(change: &Change) -> bool {
    let spec = |object: &Option<Object>| match object.as_ref()? {
        Object::ClusterQueue(queue) => Some(queue.metadata.generation),
        Object::Cohort(cohort) => Some(cohort.metadata.generation),
        Object::LocalQueue(queue) => Some(queue.metadata.generation),
        Object::ResourceFlavor(flavor) => Some(flavor.metadata.generation),
        // These have no status, so every change is a change of their spec.
        Object::LimitRange(_) | Object::RuntimeClass(_) => Some(None),
        _ => None,
    };
    match (spec(&change.before), spec(&change.after)) {
        (None, None) => false,
        (Some(was), Some(is)) => was != is || is.is_none(),
        _ => true,
    }
}

/// Adds the jobs with a pending upgrade: they report whether it can ever be admitted.
fn all_jobs_with_pending_upgrade(state: &ClusterState, concerned: &mut BTreeSet<PlannerKey>) {
    let has_pending =
        |service: &RayService| service.status.as_ref().is_some_and(|status| status.pending_service_status.is_some());
    let services = state.ray_services.iter().filter(|(_, service)| has_pending(service));
    concerned.extend(services.map(|(key, _)| PlannerKey::Job(JobKey::RayService(key.clone()))));
    let clusters =
        state.ray_clusters.iter().filter(|(_, cluster)| is_standalone(cluster) && has_recreate_strategy(cluster));
    concerned.extend(clusters.map(|(key, _)| PlannerKey::Job(JobKey::RayCluster(key.clone()))));
}

fn covers(workload: &Workload, cluster: &str) -> bool {
    SliceRecord::from_workload(workload).is_some_and(|record| record.member_of_cluster(cluster).is_some())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use sluice_queue::partial_admission::SLICE_ANNOTATION;

    use super::*;

    #[test]
    fn slice_of_a_service_triggers_the_deleted_slice_of_its_cluster() {
        // Given the slice of a cluster, which is being deleted,
        let mut state = ClusterState::default();
        let workload = |object| Object::Workload(Arc::new(serde_json::from_value(object).expect("a Workload")));
        let owner =
            json!([{"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "a", "uid": "a-uid", "controller": true}]);
        state.apply(workload(json!({
            "metadata": {
                "name": "own", "namespace": "ml", "resourceVersion": "1", "ownerReferences": owner,
                "deletionTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"podSets": []},
        })));

        // when a slice of its service, which covers the cluster, changes,
        let record = json!({"sequence": 1, "members": [{"name": "a", "uid": "a-uid", "pods": []}]}).to_string();
        let metadata = json!({"name": "new", "namespace": "ml", "annotations": {(SLICE_ANNOTATION): record}});
        let change =
            Change { before: None, after: Some(workload(json!({"metadata": metadata, "spec": {"podSets": []}}))) };

        // then the first one may be released.
        let own = PlannerKey::Workload(ObjectKey::new("ml".to_owned(), "own"));
        assert!(triggered(&state, Components::ALL, &change).contains(&own));
    }
}
