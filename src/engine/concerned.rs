//! Maps object changes to the planners that they trigger.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Service;
use kube_core::{Resource, ResourceExt};

use super::planners::{JobKey, Planner, controller, existing_cluster, is_standalone, job_of, service_of_cluster};
use super::world::{Change, MemberId, Object, Runner, World, owned_by};
use super::{Halves, in_use, priorities};
use sluice_api::kueue::Workload;
use sluice_api::kueue::names::DEFAULT_LOCAL_QUEUE;
use sluice_api::ray::{RayCluster, RayJob, RayService};
use sluice_jobframework::record::Record;
use sluice_plan::ObjectKey;
use sluice_raycluster::revision::is_recreated;
use sluice_rayservice::incremental::routes::route_names;
use sluice_rayservice::incremental::ways::{class_name, gateway_place};

/// Returns the planners that a change triggers: those whose plan may depend on the object.
pub(super) fn concerned(world: &World, halves: Halves, change: &Change) -> BTreeSet<Planner> {
    let mut concerned = BTreeSet::new();
    if is_about_quota(change) {
        all_upgrades(world, &mut concerned);
    }
    for side in change.sides() {
        match side {
            Object::RayService(service) => of_service(world, &ObjectKey::of(service.as_ref()), &mut concerned),
            Object::RayCluster(cluster) => {
                concerned.insert(Planner::RayCluster(ObjectKey::of(cluster.as_ref())));
                let uids = cluster.owner_references().iter().map(|owner| owner.uid.clone()).chain(cluster.uid());
                uids.for_each(|uid| of_going_workloads(world, &uid, &mut concerned));
                match controller(cluster.as_ref(), "RayService") {
                    Some(service) => of_service(world, &service, &mut concerned),
                    None => {
                        concerned.insert(Planner::Job(job_of_cluster(cluster)));
                    }
                }
            }
            Object::RayJob(job) => of_ray_job(world, job, &mut concerned),
            Object::BatchJob(job) => {
                concerned.insert(Planner::Job(JobKey::BatchJob(ObjectKey::of(job.as_ref()))));
                concerned.extend(controller(job.as_ref(), "RayJob").map(|job| Planner::Job(JobKey::RayJob(job))));
                concerned.extend(controller(job.as_ref(), "RayCluster").map(Planner::RayCluster));
            }
            Object::Pod(pod) => {
                let members = MemberId::of_pod(pod).into_iter().chain(MemberId::let_go_for(pod));
                members.for_each(|member| of_pods(world, &member, &mut concerned));
            }
            Object::Service(service) => of_endpoints(world, service, &mut concerned),
            Object::Ingress(ingress) => of_owner(ingress.as_ref(), &mut concerned),
            Object::Gateway(gateway) => {
                let place = (gateway.namespace().unwrap_or_default(), gateway.name_any());
                of_way(world, |service| gateway_place(service) == place, &mut concerned);
            }
            Object::HTTPRoute(route) => {
                let (namespace, name) = (route.namespace(), route.name_any());
                let leads = |to: &RayService| to.namespace() == namespace && route_names(to).contains(&name);
                of_way(world, leads, &mut concerned);
            }
            Object::GatewayClass(class) => {
                of_way(world, |service| class_name(service) == Some(&class.name_any()), &mut concerned);
            }
            Object::ControllerRevision(revision) => {
                let cluster = controller(revision.as_ref(), "RayCluster");
                concerned.extend(cluster.iter().cloned().map(|key| Planner::Job(JobKey::RayCluster(key))));
                let service = cluster.as_ref().and_then(|key| service_of_cluster(world, key));
                concerned.extend(service.map(Planner::RayService));
                concerned.extend(cluster.map(Planner::RayCluster));
            }
            Object::ServiceAccount(account) => of_owner(account.as_ref(), &mut concerned),
            Object::SecretMeta(secret) => of_owner(secret.as_ref(), &mut concerned),
            Object::Role(role) => of_owner(role.as_ref(), &mut concerned),
            Object::RoleBinding(binding) => of_owner(binding.as_ref(), &mut concerned),
            Object::EndpointSlice(slice) => {
                let service = slice.labels().get("kubernetes.io/service-name");
                let key = service.map(|name| ObjectKey::new(slice.namespace().unwrap_or_default(), name));
                if let Some(service) = key.and_then(|key| world.services.get(&key)) {
                    of_endpoints(world, service, &mut concerned);
                }
            }
            Object::Workload(workload) => of_workload(world, workload, &mut concerned),
            Object::WorkloadPriorityClass(class) => {
                concerned.extend(priorities::followers(world, &class.name_any()).map(Planner::Workload));
                all_jobs(world, &mut concerned);
            }
            Object::PriorityClass(_) => all_jobs(world, &mut concerned),
            Object::ClusterQueue(queue) => {
                concerned.insert(Planner::ClusterQueue(queue.name_any()));
                let terminating = in_use::going(world, in_use::flavors_of_queue(queue));
                concerned.extend(terminating.into_iter().map(Planner::ResourceFlavor));
            }
            Object::ResourceFlavor(flavor) => {
                concerned.insert(Planner::ResourceFlavor(flavor.name_any()));
            }
            Object::LocalQueue(queue) => {
                concerned.insert(Planner::LocalQueue(ObjectKey::of(queue.as_ref())));
                if queue.name_any() == DEFAULT_LOCAL_QUEUE && (change.was.is_none() || change.is.is_none()) {
                    of_namespace(world, &queue.namespace().unwrap_or_default(), &mut concerned);
                }
            }
            Object::Cohort(cohort) => {
                concerned.insert(Planner::Cohort(cohort.name_any()));
            }
            Object::Namespace(namespace) => of_namespace(world, &namespace.name_any(), &mut concerned),
            Object::LimitRange(_) | Object::RuntimeClass(_) => {}
        }
    }
    only_of(halves, concerned)
}

/// Returns the planners that the pods of a member trigger.
pub(super) fn concerned_by_pods(world: &World, halves: Halves, member: &MemberId) -> BTreeSet<Planner> {
    let mut concerned = BTreeSet::new();
    of_pods(world, member, &mut concerned);
    only_of(halves, concerned)
}

fn only_of(halves: Halves, mut concerned: BTreeSet<Planner>) -> BTreeSet<Planner> {
    concerned.retain(|planner| match planner {
        Planner::RayService(_) | Planner::RayCluster(_) => halves.ray_operator,
        _ => halves.queue_manager,
    });
    concerned
}

fn of_service(world: &World, service: &ObjectKey, concerned: &mut BTreeSet<Planner>) {
    concerned.insert(Planner::RayService(service.clone()));
    concerned.insert(Planner::Job(JobKey::RayService(service.clone())));
    let uid = world.ray_services.get(service).and_then(|service| service.uid());
    let children = uid.iter().flat_map(|uid| world.ray_clusters.under(&owned_by(uid)));
    concerned.extend(children.map(|child| Planner::RayCluster(ObjectKey::of(child.as_ref()))));
}

/// Returns the job of a cluster that no RayService owns: its RayJob, else the cluster itself.
fn job_of_cluster(cluster: &RayCluster) -> JobKey {
    controller(cluster, "RayJob").map_or_else(|| JobKey::RayCluster(ObjectKey::of(cluster)), JobKey::RayJob)
}

/// Adds a RayJob and its submitter Jobs, which are queued with its labels.
fn of_ray_job(world: &World, job: &RayJob, concerned: &mut BTreeSet<Planner>) {
    concerned.insert(Planner::Job(JobKey::RayJob(ObjectKey::of(job))));
    let submitters = world.batch_jobs.under(&owned_by(job.metadata.uid.as_deref().unwrap_or_default()));
    concerned.extend(submitters.map(|job| Planner::Job(JobKey::BatchJob(ObjectKey::of(job.as_ref())))));
}

/// Adds all jobs of a namespace: the managed-jobs policy may apply differently to them.
fn of_namespace(world: &World, namespace: &str, concerned: &mut BTreeSet<Planner>) {
    let services = world.ray_services.iter().filter(|(key, _)| key.namespace == namespace);
    services.for_each(|(key, _)| of_service(world, key, concerned));
    for (key, cluster) in world.ray_clusters.iter().filter(|(key, _)| key.namespace == namespace) {
        concerned.insert(Planner::RayCluster(key.clone()));
        if is_standalone(cluster) {
            concerned.insert(Planner::Job(JobKey::RayCluster(key.clone())));
        }
    }
    let ray_jobs = world.ray_jobs.iter().filter(|(key, _)| key.namespace == namespace);
    ray_jobs.for_each(|(_, job)| of_ray_job(world, job, concerned));
    let jobs = world.batch_jobs.iter().filter(|(key, _)| key.namespace == namespace);
    concerned.extend(jobs.map(|(key, _)| Planner::Job(JobKey::BatchJob(key.clone()))));
}

fn of_owner<K: Resource>(object: &K, concerned: &mut BTreeSet<Planner>) {
    if let Some(service) = controller(object, "RayService") {
        concerned.insert(Planner::Job(JobKey::RayService(service.clone())));
        concerned.insert(Planner::RayService(service));
    }
    concerned.extend(controller(object, "RayCluster").map(Planner::RayCluster));
}

/// Adds the planners of a Service and its endpoints: the Service of a cluster may receive part of
/// the traffic of its RayService.
fn of_endpoints(world: &World, service: &Service, concerned: &mut BTreeSet<Planner>) {
    of_owner(service, concerned);
    let cluster = controller(service, "RayCluster");
    concerned.extend(cluster.and_then(|key| service_of_cluster(world, &key)).map(Planner::RayService));
}

/// Adds the RayServices whose gateway path contains an object.
fn of_way(world: &World, leads: impl Fn(&RayService) -> bool, concerned: &mut BTreeSet<Planner>) {
    for (key, _) in world.ray_services.iter().filter(|(_, service)| leads(service)) {
        concerned.insert(Planner::RayService(key.clone()));
        concerned.insert(Planner::Job(JobKey::RayService(key.clone())));
    }
}

fn of_pods(world: &World, member: &MemberId, concerned: &mut BTreeSet<Planner>) {
    match member.runner {
        Runner::RayCluster => of_pods_of_cluster(world, member, concerned),
        Runner::RayJob => {
            let jobs = world.ray_jobs.under(&owned_by(&member.uid));
            concerned.extend(jobs.map(|job| Planner::Job(JobKey::RayJob(ObjectKey::of(job.as_ref())))));
            of_going_workloads(world, &member.uid, concerned);
        }
        Runner::BatchJob => {
            concerned.insert(Planner::Job(JobKey::BatchJob(member.key.clone())));
            of_going_workloads(world, &member.uid, concerned);
            if let Some(job) = world.batch_jobs.get(&member.key) {
                job.owner_references().iter().for_each(|owner| of_going_workloads(world, &owner.uid, concerned));
                concerned.extend(controller(job.as_ref(), "RayJob").map(|job| Planner::Job(JobKey::RayJob(job))));
            }
        }
    }
}

fn of_pods_of_cluster(world: &World, cluster: &MemberId, concerned: &mut BTreeSet<Planner>) {
    concerned.insert(Planner::RayCluster(cluster.key.clone()));
    if let Some(known) = existing_cluster(world, cluster) {
        let uids = known.owner_references().iter().map(|owner| owner.uid.clone()).chain(known.uid());
        uids.for_each(|uid| of_going_workloads(world, &uid, concerned));
        match controller(known.as_ref(), "RayService") {
            Some(service) => {
                concerned.insert(Planner::RayService(service.clone()));
                concerned.insert(Planner::Job(JobKey::RayService(service)));
            }
            None => {
                concerned.insert(Planner::Job(job_of_cluster(known)));
            }
        }
        return;
    }
    // The cluster is deleted: only the slices that cover its pods still record their owner.
    let in_namespace = world.workloads.iter().filter(|(key, _)| key.namespace == cluster.key.namespace);
    let covering = in_namespace.filter(|(_, workload)| pays_for(workload, &cluster.uid));
    for workload in covering.map(|(_, workload)| workload) {
        concerned.insert(Planner::Workload(ObjectKey::of(workload.as_ref())));
        concerned.extend(job_of(workload).map(Planner::Job));
    }
}

/// Adds the terminating Workloads of a job: their finalizer is released after the last pod.
fn of_going_workloads(world: &World, job: &str, concerned: &mut BTreeSet<Planner>) {
    let slices = world.workloads.under(&owned_by(job));
    let terminating = slices.filter(|slice| slice.metadata.deletion_timestamp.is_some());
    concerned.extend(terminating.map(|slice| Planner::Workload(ObjectKey::of(slice.as_ref()))));
}

fn of_workload(world: &World, workload: &Workload, concerned: &mut BTreeSet<Planner>) {
    concerned.insert(Planner::Workload(ObjectKey::of(workload)));
    concerned.extend(job_of(workload).map(Planner::Job));
    let terminating = in_use::going(world, in_use::flavors_of_workload(workload));
    concerned.extend(terminating.into_iter().map(Planner::ResourceFlavor));
    let namespace = workload.namespace().unwrap_or_default();
    let record = Record::of(workload).unwrap_or_default();
    let displaced = record.instead_of.into_iter().map(|displaced| displaced.name);
    let names = record.members.into_iter().map(|member| member.name).chain(displaced);
    let clusters = names.map(|name| ObjectKey::new(namespace.clone(), name));
    concerned.extend(clusters.filter(|key| world.ray_clusters.get(key).is_some()).map(Planner::RayCluster));
}

fn all_jobs(world: &World, concerned: &mut BTreeSet<Planner>) {
    concerned.extend(world.ray_services.iter().map(|(key, _)| Planner::Job(JobKey::RayService(key.clone()))));
    let clusters = world.ray_clusters.iter().filter(|(_, cluster)| is_standalone(cluster));
    concerned.extend(clusters.map(|(key, _)| Planner::Job(JobKey::RayCluster(key.clone()))));
    concerned.extend(world.ray_jobs.iter().map(|(key, _)| Planner::Job(JobKey::RayJob(key.clone()))));
    concerned.extend(world.batch_jobs.iter().map(|(key, _)| Planner::Job(JobKey::BatchJob(key.clone()))));
}

/// Reports whether a change may alter the available quota or the requests counted against it.
fn is_about_quota(change: &Change) -> bool {
    let spec = |object: &Option<Object>| match object.as_ref()? {
        Object::ClusterQueue(queue) => Some(queue.metadata.generation),
        Object::Cohort(cohort) => Some(cohort.metadata.generation),
        Object::LocalQueue(queue) => Some(queue.metadata.generation),
        Object::ResourceFlavor(flavor) => Some(flavor.metadata.generation),
        // These have no status, so every change is a change of their spec.
        Object::LimitRange(_) | Object::RuntimeClass(_) => Some(None),
        _ => None,
    };
    match (spec(&change.was), spec(&change.is)) {
        (None, None) => false,
        (Some(was), Some(is)) => was != is || is.is_none(),
        _ => true,
    }
}

/// Adds the jobs with a pending upgrade: they report whether it can ever be admitted.
fn all_upgrades(world: &World, concerned: &mut BTreeSet<Planner>) {
    let has_pending =
        |service: &RayService| service.status.as_ref().is_some_and(|status| status.pending_service_status.is_some());
    let services = world.ray_services.iter().filter(|(_, service)| has_pending(service));
    concerned.extend(services.map(|(key, _)| Planner::Job(JobKey::RayService(key.clone()))));
    let clusters = world.ray_clusters.iter().filter(|(_, cluster)| is_standalone(cluster) && is_recreated(cluster));
    concerned.extend(clusters.map(|(key, _)| Planner::Job(JobKey::RayCluster(key.clone()))));
}

fn pays_for(workload: &Workload, cluster: &str) -> bool {
    Record::of(workload).is_some_and(|record| record.of_cluster(cluster).is_some())
}
