//! The end of a cluster whose state is kept in a Redis: its keys go before it does
//! (KubeRay 1.7 `ray-operator/controllers/ray/raycluster_controller.go`, `buildRedisCleanupJob` and the finalizer around it).
//!
//! A finalizer holds the cluster until a Job has deleted the keys; but never for longer than a time that its owner can set, so that
//! a Redis that is gone keeps nobody from deleting a cluster.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Container, Pod, PodTemplateSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_core::ObjectMeta;
use kube_core::ResourceExt;

use super::environment::Environment;
use super::fault_tolerance::{self, storage_namespace};
use super::{View, names as naming, pod_builder, pods, template};
use sluice_api::ray::{RayCluster, names};
use sluice_plan::{Note, Plan, Write};

/// After so many seconds the Job is given up, and so is waiting for it, unless an annotation says otherwise.
const PATIENCE: i64 = 300;
/// The node type of its pod: neither head nor worker, so that no Service leads to it.
const NODE_TYPE: &str = "redis-cleanup";
/// What its pod needs: (CPU, memory).
const NEEDS: (&str, &str) = ("200m", "256Mi");
/// What it does: the addresses of a Redis cluster are separated by commas, and one of them leads to all.
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

/// Whether the cluster has to be held first, so that it can't be deleted while a head writes keys that nobody would delete.
pub(super) fn awaits_finalizer(cluster: &RayCluster) -> bool {
    fault_tolerance::is_on(cluster) && !is_held(cluster)
}

fn is_held(cluster: &RayCluster) -> bool {
    cluster.finalizers().iter().any(|finalizer| finalizer == names::REDIS_CLEANUP_FINALIZER)
}

/// Holds the cluster, if its keys have to be deleted.
pub(super) fn plan(cluster: &RayCluster, plan: &mut Plan) {
    if awaits_finalizer(cluster) {
        let mut held = cluster.clone();
        held.finalizers_mut().push(names::REDIS_CLEANUP_FINALIZER.to_owned());
        plan.write(Write::patch(cluster, &held));
    }
}

/// Brings a cluster that is being deleted to its end: first its pods go, since a head would go on writing, then its keys.
pub(super) fn end(view: &View<'_>, plan: &mut Plan) {
    let cluster = view.cluster;
    let (true, Some(deletion)) = (is_held(cluster), &cluster.metadata.deletion_timestamp) else { return };
    let own = pods::own(view);
    plan.writes.extend(own.iter().filter(|pod| !pods::is_going(pod)).map(|pod| Write::delete(*pod, false)));
    let give_up = deletion.0.checked_add(patience(cluster)).unwrap_or(Timestamp::MAX);
    match outcome(view, &own, give_up) {
        Outcome::Over(note) => {
            let mut free = cluster.clone();
            free.finalizers_mut().retain(|finalizer| finalizer != names::REDIS_CLEANUP_FINALIZER);
            plan.write(Write::patch(cluster, &free));
            plan.notes.extend(note.map(|note| *note));
        }
        Outcome::Begins(job) => {
            let text =
                format!("Created Redis cleanup Job {}/{}", cluster.namespace().unwrap_or_default(), job.name_any());
            plan.write(Write::create(job.as_ref()));
            plan.notes.push(Note::normal(cluster, "CreatedRedisCleanupJob", text));
            plan.wake(give_up);
        }
        Outcome::Waits => plan.wake(give_up),
    }
}

enum Outcome {
    /// There is nothing left to wait for; and what is to be said of that.
    Over(Option<Box<Note>>),
    /// The keys can be deleted now.
    Begins(Box<Job>),
    /// Pods have to go first, or the Job has to end.
    Waits,
}

fn outcome(view: &View<'_>, own: &[&Pod], give_up: Timestamp) -> Outcome {
    let cluster = view.cluster;
    if !fault_tolerance::is_on(cluster) {
        return Outcome::Over(None);
    }
    let keys = || format!("keys of {:?} may be left in the Redis", storage_namespace(cluster));
    let ended = |kind: &str| {
        let status = view.cleanup.and_then(|job| job.status.as_ref());
        let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.any(|condition| condition.type_ == kind && condition.status == "True")
    };
    if ended("Complete") {
        return Outcome::Over(None);
    }
    if ended("Failed") {
        let text = format!("Redis cleanup Job {} failed: {}", naming::redis_cleanup(cluster), keys());
        return Outcome::Over(Some(Box::new(Note::warning(cluster, "RedisCleanupFailed", text))));
    }
    if view.now >= give_up {
        let text = format!("Redis was not cleaned up within {} s: {}", patience(cluster).as_secs(), keys());
        return Outcome::Over(Some(Box::new(Note::warning(cluster, "ForceDeletedStuckCluster", text))));
    }
    if !own.is_empty() || view.cleanup.is_some() {
        return Outcome::Waits;
    }
    if let Some(other) = &view.shares_storage_with {
        let text = format!(
            "Redis is not cleaned up: RayCluster {other} keeps its state under {:?} there too",
            storage_namespace(cluster)
        );
        return Outcome::Over(Some(Box::new(Note::normal(cluster, "RedisCleanupSkipped", text))));
    }
    match job(cluster) {
        Some(job) => Outcome::Begins(Box::new(job)),
        None => {
            let text = format!("no Redis cleanup Job can be made from a head template that makes no sense: {}", keys());
            Outcome::Over(Some(Box::new(Note::warning(cluster, "FailedToCreateRedisCleanupJob", text))))
        }
    }
}

/// For how long the cluster is held once it is to be deleted.
fn patience(cluster: &RayCluster) -> SignedDuration {
    let own = cluster.annotations().get(names::FAULT_TOLERANCE_DELETION_ANNOTATION);
    let own = own.and_then(|seconds| seconds.parse::<u32>().ok()).filter(|seconds| *seconds > 0);
    SignedDuration::from_secs(own.map_or(PATIENCE, i64::from))
}

/// The Job: the head's pod with nothing but the container that runs Ray, which deletes the keys instead. It needs nothing that
/// goes with the cluster, as the ServiceAccount of its autoscaler and the Secret with its token do: they may be gone first.
fn job(cluster: &RayCluster) -> Option<Job> {
    let mut bare = cluster.clone();
    bare.spec.enable_in_tree_autoscaling = None;
    bare.spec.auth_options = None;
    let mut template = template::head(&bare).ok()?;
    reduce(&mut template)?;
    let meta = template.metadata.clone().unwrap_or_default();
    Some(Job {
        metadata: ObjectMeta {
            name: Some(naming::redis_cleanup(cluster)),
            namespace: cluster.namespace(),
            labels: meta.labels,
            annotations: meta.annotations,
            owner_references: Some(vec![pod_builder::owner(cluster)]),
            ..ObjectMeta::default()
        },
        spec: Some(JobSpec {
            backoff_limit: Some(0),
            active_deadline_seconds: Some(patience(cluster).as_secs()),
            template,
            ..JobSpec::default()
        }),
        status: None,
    })
}

fn reduce(template: &mut PodTemplateSpec) -> Option<()> {
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(names::NODE_TYPE_LABEL.to_owned(), NODE_TYPE.to_owned());
    let spec = template.spec.as_mut()?;
    spec.containers.truncate(1);
    spec.restart_policy = Some("Never".to_owned());
    let ray = spec.containers.first_mut()?;
    let needs: BTreeMap<String, Quantity> = [("cpu", NEEDS.0), ("memory", NEEDS.1)]
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
            limits: Some(needs.clone()),
            requests: Some(needs),
            ..ResourceRequirements::default()
        }),
        ..std::mem::take(ray)
    };
    Some(())
}
