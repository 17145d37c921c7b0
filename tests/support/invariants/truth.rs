//! I10: what is going is not ready, and what waits says why.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};
use sluice_api::condition::is_true;
use sluice_api::job_conditions::ADMITTED;
use sluice_api::kueue::{Workload, names};
use sluice_api::ray::{RayCluster, RayService, names as ray_names};
use sluice_jobframework::batch_job::is_finished as is_finished_job;
use sluice_rayservice::status::READY;

use super::{
    Invariant, QUEUE_NAME_LABEL, Violation, holds_quota, is_admitted, is_finished, is_unsuspended, job_uid, object_key,
    slices_of_job,
};
use crate::history::State;

/// Checks a change of a RayCluster: one that is suspended or being deleted does not become ready.
pub(super) fn check_cluster(was: &RayCluster, cluster: &RayCluster) -> Option<Violation> {
    let is_ready = |cluster: &RayCluster| {
        let state = cluster.status.as_ref().and_then(|status| status.state.as_deref());
        state == Some(ray_names::STATE_READY)
    };
    let is_going = !is_unsuspended(cluster) || cluster.metadata.deletion_timestamp.is_some();
    (is_going && !is_ready(was) && is_ready(cluster)).then(|| became_ready("RayCluster", cluster))
}

/// Checks a change of a RayService: one that is being deleted does not become ready.
pub(super) fn check_service(was: &RayService, service: &RayService) -> Option<Violation> {
    let is_ready = |service: &RayService| {
        let conditions = service.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        is_true(conditions, READY)
    };
    let is_going = service.metadata.deletion_timestamp.is_some();
    (is_going && !is_ready(was) && is_ready(service)).then(|| became_ready("RayService", service))
}

fn became_ready<K: Resource>(kind: &str, object: &K) -> Violation {
    let message = format!("{kind} {} became ready while it is suspended or being deleted", object_key(object));
    Violation::new(Invariant::Truth, message)
}

/// Returns the Workloads and queued jobs that wait for quota without a condition that says why. Valid
/// a minute after the last change.
pub fn unexplained_waits(state: &State) -> Vec<Violation> {
    let workloads = state.workloads.values().filter(|workload| is_pending(workload)).map(|workload| {
        let conditions = workload.status.iter().flat_map(|status| &status.conditions);
        ("Workload", object_key(workload), says_why(conditions.map(content), names::QUOTA_RESERVED))
    });
    let services = state.ray_services.values().filter(|service| waits(state, *service)).map(|service| {
        let conditions = service.status.iter().flat_map(|status| &status.conditions);
        ("RayService", object_key(service), says_why(conditions.map(content), ADMITTED))
    });
    let is_own_job = |cluster: &&RayCluster| cluster.metadata.uid == Some(job_uid(state, cluster));
    let clusters = state.ray_clusters.values().filter(is_own_job).filter(|cluster| waits(state, *cluster));
    let clusters = clusters.map(|cluster| {
        let conditions = cluster.status.iter().flat_map(|status| &status.conditions);
        ("RayCluster", object_key(cluster), says_why(conditions.map(content), ADMITTED))
    });
    let jobs = state.batch_jobs.values().filter(|job| !is_finished_job(job) && waits(state, *job)).map(|job| {
        let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let conditions = conditions.map(|found| (&*found.type_, &*found.status, found.message.as_deref()));
        ("Job", object_key(job), says_why(conditions, ADMITTED))
    });
    let waiting = workloads.chain(services).chain(clusters).chain(jobs);
    let silent = waiting.filter(|(.., says_why)| !says_why);
    let violation = |(kind, key, _)| {
        Violation::new(Invariant::Truth, format!("{kind} {key} waits for quota, and no condition says why"))
    };
    silent.map(violation).collect()
}

fn content(condition: &Condition) -> (&str, &str, Option<&str>) {
    (&condition.type_, &condition.status, Some(&condition.message))
}

/// Reports whether a condition of this type is False, with a message.
fn says_why<'a>(mut conditions: impl Iterator<Item = (&'a str, &'a str, Option<&'a str>)>, condition: &str) -> bool {
    conditions.any(|(type_, status, message)| {
        type_ == condition && status == "False" && message.is_some_and(|message| !message.is_empty())
    })
}

/// Reports whether a job names a queue and has a Workload, none of which is admitted.
fn waits<K: Resource>(state: &State, job: &K) -> bool {
    let is_queued = job.labels().get(QUEUE_NAME_LABEL).is_some_and(|queue| !queue.is_empty());
    let uid = job.meta().uid.as_deref().unwrap_or_default();
    let mut slices = slices_of_job(state, uid).filter(|slice| !is_finished(slice)).peekable();
    is_queued && job.meta().deletion_timestamp.is_none() && slices.peek().is_some() && !slices.any(is_admitted)
}

fn is_pending(workload: &Workload) -> bool {
    !holds_quota(workload)
        && !is_finished(workload)
        && workload.spec.active != Some(false)
        && workload.metadata.deletion_timestamp.is_none()
}
