//! Deletion of a cluster that stores its state in Redis: its keys are deleted first
//! (KubeRay 1.7 `ray-operator/controllers/ray/raycluster_controller.go`, `buildRedisCleanupJob` and
//! the finalizer around it).
//!
//! A finalizer blocks the deletion until a Job has deleted the keys. It is released after a
//! timeout, which an annotation can set, so that an unreachable Redis does not block the deletion
//! forever.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Container, Pod, PodTemplateSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_core::ObjectMeta;
use kube_core::ResourceExt;

use super::env_vars::EnvVars;
use super::fault_tolerance::{self, storage_namespace};
use super::{ClusterContext, names as naming, pod_builder, pods, template};
use sluice_api::pod;
use sluice_api::ray::{RayCluster, names};
use sluice_plan::{EventRecord, Plan, Write};

/// Default timeout of the cleanup, in seconds.
const DEFAULT_TIMEOUT_SECONDS: i64 = 300;
/// Node type label of the cleanup pod: neither head nor worker, so that no Service selects it.
const NODE_TYPE: &str = "redis-cleanup";
/// Resources of the cleanup pod: (CPU, memory).
const RESOURCES: (&str, &str) = ("200m", "256Mi");
/// Python script of the cleanup pod. The addresses of a Redis cluster are comma-separated, and each
/// of them reaches all nodes.
const SCRIPT: &str = r#"import os, sys
from urllib.parse import urlparse
from ray._private.gcs_utils import cleanup_redis_storage

address = os.environ.get("RAY_REDIS_ADDRESS", "").split(",")[0]
redis = urlparse(address if "://" in address else "redis://" + address)
user = os.environ.get("REDIS_USERNAME", redis.username)
done = cleanup_redis_storage(
    host=redis.hostname,
    port=redis.port,
    password=os.environ.get("REDIS_PASSWORD", redis.password or ""),
    use_ssl=redis.scheme == "rediss",
    storage_namespace=os.environ["RAY_external_storage_namespace"],
    **({"username": user} if user else {}),
)
sys.exit(0 if done else 1)
"#;

/// Reports whether the finalizer is still missing. No head may start without it: deleting the
/// cluster would leave its keys behind.
pub(super) fn awaits_finalizer(cluster: &RayCluster) -> bool {
    fault_tolerance::is_enabled(cluster) && !has_finalizer(cluster)
}

fn has_finalizer(cluster: &RayCluster) -> bool {
    cluster.finalizers().iter().any(|finalizer| finalizer == names::REDIS_CLEANUP_FINALIZER)
}

/// Adds the finalizer, if the cluster's keys have to be deleted on its deletion.
pub(super) fn plan(cluster: &RayCluster, plan: &mut Plan) {
    if awaits_finalizer(cluster) {
        let mut protected = cluster.clone();
        protected.finalizers_mut().push(names::REDIS_CLEANUP_FINALIZER.to_owned());
        plan.write(Write::patch(cluster, &protected));
    }
}

/// Finalizes a terminating cluster: deletes its pods, since a head would continue to write keys,
/// and then the keys.
pub(super) fn finalize(view: &ClusterContext<'_>, plan: &mut Plan) {
    let cluster = view.cluster;
    let (true, Some(deletion)) = (has_finalizer(cluster), &cluster.metadata.deletion_timestamp) else { return };
    let own = pods::owned_by(view);
    plan.writes.extend(own.iter().filter(|pod| !pod::is_terminating(pod)).map(|pod| Write::delete(*pod)));
    let deadline = deletion.0.checked_add(timeout(cluster)).unwrap_or(Timestamp::MAX);
    match cleanup_state(view, &own, deadline) {
        CleanupState::Finished(note) => {
            let mut released = cluster.clone();
            released.finalizers_mut().retain(|finalizer| finalizer != names::REDIS_CLEANUP_FINALIZER);
            plan.write(Write::patch(cluster, &released));
            plan.events.extend(note.map(|note| *note));
        }
        CleanupState::CreateJob(job) => {
            let text =
                format!("Created Redis cleanup Job {}/{}", cluster.namespace().unwrap_or_default(), job.name_any());
            plan.write(Write::create(job.as_ref()));
            plan.events.push(EventRecord::normal(cluster, "CreatedRedisCleanupJob", text));
            plan.wake_by(deadline);
        }
        CleanupState::Pending => plan.wake_by(deadline),
    }
}

/// Progress of the cleanup.
enum CleanupState {
    /// The finalizer can be removed, with an optional Event.
    Finished(Option<Box<EventRecord>>),
    /// The Job that deletes the keys can be created.
    CreateJob(Box<Job>),
    /// Pods are still terminating, or the Job is running.
    Pending,
}

fn cleanup_state(view: &ClusterContext<'_>, own: &[&Pod], deadline: Timestamp) -> CleanupState {
    let cluster = view.cluster;
    if !fault_tolerance::is_enabled(cluster) {
        return CleanupState::Finished(None);
    }
    let keys = || format!("keys of storage namespace {:?} may be left in the Redis", storage_namespace(cluster));
    let has_condition = |kind: &str| {
        let status = view.redis_cleanup_job.and_then(|job| job.status.as_ref());
        let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.any(|condition| condition.type_ == kind && condition.status == "True")
    };
    if has_condition("Complete") {
        return CleanupState::Finished(None);
    }
    if has_condition("Failed") {
        let text = format!("Redis cleanup Job {} failed: {}", naming::redis_cleanup(cluster), keys());
        return CleanupState::Finished(Some(Box::new(EventRecord::warning(cluster, "RedisCleanupFailed", text))));
    }
    if view.now >= deadline {
        let text = format!("Redis was not cleaned up within {} s: {}", timeout(cluster).as_secs(), keys());
        return CleanupState::Finished(Some(Box::new(EventRecord::warning(cluster, "ForceDeletedStuckCluster", text))));
    }
    if !own.is_empty() || view.redis_cleanup_job.is_some() {
        return CleanupState::Pending;
    }
    if let Some(other) = &view.shares_storage_with {
        let text = format!(
            "skipped Redis cleanup: RayCluster {other} may use the same storage namespace {:?}",
            storage_namespace(cluster)
        );
        return CleanupState::Finished(Some(Box::new(EventRecord::normal(cluster, "RedisCleanupSkipped", text))));
    }
    match cleanup_job(cluster) {
        Some(job) => CleanupState::CreateJob(Box::new(job)),
        None => {
            let text = format!("can't create the Redis cleanup Job: the head template is invalid; {}", keys());
            CleanupState::Finished(Some(Box::new(EventRecord::warning(cluster, "FailedToCreateRedisCleanupJob", text))))
        }
    }
}

/// Returns the timeout of the cleanup: the annotation's positive number of seconds, or the default.
fn timeout(cluster: &RayCluster) -> SignedDuration {
    let own = cluster.annotations().get(names::REDIS_CLEANUP_TIMEOUT_ANNOTATION);
    let own = own.and_then(|seconds| seconds.parse::<u32>().ok()).filter(|seconds| *seconds > 0);
    SignedDuration::from_secs(own.map_or(DEFAULT_TIMEOUT_SECONDS, i64::from))
}

/// Returns the cleanup Job: the head's pod with only the Ray container, which runs [`SCRIPT`]. It
/// must not depend on objects that the cluster owns (autoscaler ServiceAccount, token Secret),
/// since they may be deleted earlier. `None` if the head template is invalid.
fn cleanup_job(cluster: &RayCluster) -> Option<Job> {
    let mut independent = cluster.clone();
    independent.spec.enable_in_tree_autoscaling = None;
    independent.spec.auth_options = None;
    let mut template = template::head_template(&independent).ok()?;
    reduce_to_cleanup(&mut template)?;
    let meta = template.metadata.clone().unwrap_or_default();
    Some(Job {
        metadata: ObjectMeta {
            name: Some(naming::redis_cleanup(cluster)),
            namespace: cluster.namespace(),
            labels: meta.labels,
            annotations: meta.annotations,
            owner_references: Some(vec![pod_builder::owner_reference(cluster)]),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            active_deadline_seconds: Some(timeout(cluster).as_secs()),
            template,
            ..JobSpec::default()
        }),
        status: None,
    })
}

/// Reduces a head template to the container that deletes the keys; `None` if it has no container.
fn reduce_to_cleanup(template: &mut PodTemplateSpec) -> Option<()> {
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(names::NODE_TYPE_LABEL.to_owned(), NODE_TYPE.to_owned());
    let spec = template.spec.as_mut()?;
    spec.containers.truncate(1);
    spec.restart_policy = Some("Never".to_owned());
    let ray = spec.containers.first_mut()?;
    let amounts: BTreeMap<String, Quantity> = [("cpu", RESOURCES.0), ("memory", RESOURCES.1)]
        .map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())))
        .into();
    ray.set_env("RAY_redis_db_connect_retries", "120");
    ray.set_env("RAY_redis_db_connect_wait_milliseconds", "500");
    *ray = Container {
        command: Some(["python", "-c", SCRIPT].map(str::to_owned).into()),
        args: None,
        liveness_probe: None,
        readiness_probe: None,
        startup_probe: None,
        resources: Some(ResourceRequirements {
            limits: Some(amounts.clone()),
            requests: Some(amounts),
            ..ResourceRequirements::default()
        }),
        ..std::mem::take(ray)
    };
    Some(())
}
