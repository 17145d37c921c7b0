//! Cache of namespaces, default LocalQueues and RayJobs for the webhook. Every replica serves the
//! webhook, leader or not, so it doesn't use the engine's state.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::runtime::reflector::{self, ObjectRef, Store, store::Writer};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use serde_json::Value;
use tracing::debug;

use super::mutate::{belongs_to_ray_job, controllers, has_ray_api_version};
use sluice_api::kueue::LocalQueue;
use sluice_api::kueue::names::{DEFAULT_LOCAL_QUEUE, QUEUE_NAME_LABEL};
use sluice_api::ray::{self, RayJob};
use sluice_engine::cluster_state::WatchedKind;
use sluice_jobframework::managed::{Framework, JobFacts, ManagedJobsPolicy, ManagementState, NamespaceFacts};
use sluice_jobframework::{batch_job, queue_name};

/// Last observed namespaces, default LocalQueues and RayJobs.
pub(super) struct NamespaceCache {
    rules: ManagedJobsPolicy,
    namespaces: Store<Namespace>,
    ray_jobs: Store<RayJob>,
    default_queues: Store<LocalQueue>,
}

impl NamespaceCache {
    /// Starts the watches in the background; RayJobs only if an external operator runs them.
    pub(super) fn start(client: &Client, rules: ManagedJobsPolicy, external_ray_operator: bool) -> Self {
        let ray_jobs = || start_reflector(Api::all(client.clone()), watcher::Config::default());
        let named = watcher::Config::default().fields(&format!("metadata.name={DEFAULT_LOCAL_QUEUE}"));
        Self {
            rules,
            namespaces: start_reflector(Api::all(client.clone()), watcher::Config::default()),
            // Without an external operator the RayJob CRD may be missing.
            ray_jobs: if external_ray_operator { ray_jobs() } else { reflector::store().0 },
            default_queues: start_reflector(Api::all(client.clone()), named),
        }
    }

    /// Returns the RayJob that controls an object; None if there is none or it isn't cached.
    pub(super) fn controlling_ray_job(&self, namespace: &str, object: &Value) -> Option<Arc<RayJob>> {
        let owner = controllers(object)
            .find(|owner| has_ray_api_version(owner) && owner.get("kind") == Some(&"RayJob".into()))?;
        let job = self.ray_jobs.get(&ObjectRef::new(owner.get("name")?.as_str()?).within(namespace))?;
        (job.metadata.uid.as_deref() == owner.get("uid")?.as_str()).then_some(job)
    }

    /// Returns the management state of an object, or of the RayJob that controls it.
    pub(super) fn management_state(
        &self,
        namespace: &str,
        object: &Value,
        is_new: bool,
        ray_job: Option<&RayJob>,
    ) -> ManagementState {
        let labels = object.pointer("/metadata/labels");
        let own = labels.and_then(|labels| labels.get(QUEUE_NAME_LABEL)?.as_str());
        let queue_name = own.or_else(|| ray_job.and_then(|job| queue_name(&job.metadata)));
        let manager = object.pointer("/spec/managedBy").and_then(Value::as_str);
        let framework = framework(object);
        let job = JobFacts {
            framework,
            queue_name: queue_name.filter(|name| !name.is_empty()),
            is_managed_elsewhere: match framework {
                Framework::BatchJob => batch_job::is_managed_elsewhere(manager),
                _ => ray::is_managed_elsewhere(manager),
            },
            // An object that a Ray object controls is in the queue of its owner.
            may_join_default_queue: is_new && !controllers(object).any(has_ray_api_version),
        };
        let unlabeled = BTreeMap::new();
        let cached = self.namespaces.get(&ObjectRef::new(namespace));
        let default_queue = ObjectRef::new(DEFAULT_LOCAL_QUEUE).within(namespace);
        let place = NamespaceFacts {
            namespace,
            labels: cached.as_ref().map(|cached| cached.metadata.labels.as_ref().unwrap_or(&unlabeled)),
            has_default_queue: self.default_queues.get(&default_queue).is_some(),
        };
        ManagementState::classify(job, place, &self.rules)
    }

    /// Returns an empty cache without watches.
    #[cfg(test)]
    pub(super) fn empty() -> Self {
        Self {
            rules: ManagedJobsPolicy::default(),
            namespaces: reflector::store().0,
            ray_jobs: reflector::store().0,
            default_queues: reflector::store().0,
        }
    }
}

/// Returns the framework of the job that an object is or belongs to.
fn framework(object: &Value) -> Framework {
    match object.get("kind").and_then(Value::as_str) {
        Some("RayJob") => Framework::RayJob,
        _ if belongs_to_ray_job(object) => Framework::RayJob,
        Some("Job") => Framework::BatchJob,
        Some("RayCluster") if !controllers(object).any(has_ray_api_version) => Framework::RayCluster,
        _ => Framework::RayService,
    }
}

/// Starts a watch in the background and returns its store.
fn start_reflector<K: WatchedKind>(api: Api<K>, config: watcher::Config) -> Store<K> {
    let (store, writer): (Store<K>, Writer<K>) = reflector::store();
    let events = reflector::reflector(writer, watcher::watcher(api, config).default_backoff());
    tokio::spawn(events.for_each(|event| async move {
        if let Err(error) = event {
            debug!(kind = %K::kind(&()), %error, "watch for the webhook failed; retrying");
        }
    }));
    store
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use sluice_jobframework::managed::HoldReason;

    /// Returns a cache with namespace `team`, which has a default LocalQueue, and `other`, which
    /// has none.
    fn sample_cache() -> NamespaceCache {
        let (namespaces, mut writer) = reflector::store();
        for name in ["team", "other"] {
            let namespace = json!({"metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}}});
            let namespace: Namespace = serde_json::from_value(namespace).expect("a namespace");
            writer.apply_watcher_event(&watcher::Event::Apply(namespace));
        }
        let (default_queues, mut writer) = reflector::store();
        let queue = json!({"metadata": {"name": "default", "namespace": "team"}, "spec": {}});
        let queue: LocalQueue = serde_json::from_value(queue).expect("a LocalQueue");
        writer.apply_watcher_event(&watcher::Event::Apply(queue));
        NamespaceCache {
            rules: ManagedJobsPolicy::default(),
            namespaces,
            ray_jobs: reflector::store().0,
            default_queues,
        }
    }

    #[rstest]
    #[case::named("other", json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "a"}}}), ManagementState::InQueue)]
    #[case::unnamed("other", json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": ""}}}), ManagementState::NotQueued)]
    #[case::unlabeled("other", json!({"metadata": {}}), ManagementState::NotQueued)]
    #[case::unnamed_with_a_default_queue("team", json!({"metadata": {}}), ManagementState::OnHold(HoldReason::AssignDefaultQueue))]
    #[case::owned("team", json!({"metadata": {"ownerReferences": [{"apiVersion": "ray.io/v1", "kind": "RayService", "controller": true}]}}), ManagementState::NotQueued)]
    #[case::of_another_controller(
        "team",
        json!({"metadata": {}, "spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}),
        ManagementState::Unmanaged
    )]
    fn management_state_depends_on_queue_name_and_namespace(
        #[case] namespace: &str,
        #[case] object: Value,
        #[case] expected: ManagementState,
    ) {
        assert_eq!(sample_cache().management_state(namespace, &object, true, None), expected);
    }
}
