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

use super::defaults::{is_of_ray_job, is_ray, owners};
use sluice_api::kueue::LocalQueue;
use sluice_api::kueue::names::{DEFAULT_LOCAL_QUEUE, QUEUE_NAME_LABEL};
use sluice_api::ray::{self, RayJob};
use sluice_engine::world::Kind;
use sluice_jobframework::managed::{Candidate, Framework, Managed, Place, Rules};
use sluice_jobframework::{batch_job, queue_name};

/// Last observed namespaces, default LocalQueues and RayJobs.
pub(super) struct Places {
    rules: Rules,
    namespaces: Store<Namespace>,
    ray_jobs: Store<RayJob>,
    default_queues: Store<LocalQueue>,
}

impl Places {
    /// Starts the watches in the background; RayJobs only if an external operator runs them.
    pub(super) fn watch(client: &Client, rules: Rules, external_ray_operator: bool) -> Self {
        let ray_jobs = || follow(Api::all(client.clone()), watcher::Config::default());
        let named = watcher::Config::default().fields(&format!("metadata.name={DEFAULT_LOCAL_QUEUE}"));
        Self {
            rules,
            namespaces: follow(Api::all(client.clone()), watcher::Config::default()),
            // Without an external operator the RayJob CRD may be missing.
            ray_jobs: if external_ray_operator { ray_jobs() } else { reflector::store().0 },
            default_queues: follow(Api::all(client.clone()), named),
        }
    }

    /// Returns the RayJob that controls an object; None if there is none or it isn't cached.
    pub(super) fn ray_job_of(&self, namespace: &str, object: &Value) -> Option<Arc<RayJob>> {
        let owner = owners(object).find(|owner| is_ray(owner) && owner.get("kind") == Some(&"RayJob".into()))?;
        self.ray_jobs.get(&ObjectRef::new(owner.get("name")?.as_str()?).within(namespace))
    }

    /// Returns the management state of an object, or of the RayJob that controls it.
    pub(super) fn managed(&self, namespace: &str, object: &Value, is_new: bool, ray_job: Option<&RayJob>) -> Managed {
        let labels = object.pointer("/metadata/labels");
        let own = labels.and_then(|labels| labels.get(QUEUE_NAME_LABEL)?.as_str());
        let queue_name = own.or_else(|| ray_job.and_then(|job| queue_name(&job.metadata)));
        let manager = object.pointer("/spec/managedBy").and_then(Value::as_str);
        let framework = framework(object);
        let job = Candidate {
            framework,
            queue_name: queue_name.filter(|name| !name.is_empty()),
            is_managed_elsewhere: match framework {
                Framework::BatchJob => batch_job::is_managed_elsewhere(manager),
                _ => ray::is_managed_elsewhere(manager),
            },
            // An object that a Ray object controls is in the queue of its owner.
            is_new: is_new && !owners(object).any(is_ray),
        };
        let unlabeled = BTreeMap::new();
        let cached = self.namespaces.get(&ObjectRef::new(namespace));
        let default_queue = ObjectRef::new(DEFAULT_LOCAL_QUEUE).within(namespace);
        let place = Place {
            namespace,
            labels: cached.as_ref().map(|cached| cached.metadata.labels.as_ref().unwrap_or(&unlabeled)),
            has_default_queue: self.default_queues.get(&default_queue).is_some(),
        };
        Managed::of(job, place, &self.rules)
    }

    /// Returns an empty cache without watches.
    #[cfg(test)]
    pub(super) fn unseen() -> Self {
        Self {
            rules: Rules::default(),
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
        _ if is_of_ray_job(object) => Framework::RayJob,
        Some("Job") => Framework::BatchJob,
        Some("RayCluster") if !owners(object).any(is_ray) => Framework::RayCluster,
        _ => Framework::RayService,
    }
}

/// Starts a watch in the background and returns its store.
fn follow<K: Kind>(api: Api<K>, config: watcher::Config) -> Store<K> {
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
    use sluice_jobframework::managed::Hold;

    /// Returns a cache with namespace `team`, which has a default LocalQueue, and `other`, which
    /// has none.
    fn places() -> Places {
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
        Places { rules: Rules::default(), namespaces, ray_jobs: reflector::store().0, default_queues }
    }

    #[rstest]
    #[case::named("other", json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "a"}}}), Managed::InQueue)]
    #[case::unnamed("other", json!({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": ""}}}), Managed::No)]
    #[case::unlabeled("other", json!({"metadata": {}}), Managed::No)]
    #[case::unnamed_with_a_default_queue("team", json!({"metadata": {}}), Managed::Held(Hold::Default))]
    #[case::owned("team", json!({"metadata": {"ownerReferences": [{"apiVersion": "ray.io/v1", "kind": "RayService", "controller": true}]}}), Managed::No)]
    #[case::of_another_controller(
        "team",
        json!({"metadata": {}, "spec": {"managedBy": "kueue.x-k8s.io/multikueue"}}),
        Managed::No
    )]
    fn management_state_depends_on_queue_name_and_namespace(
        #[case] namespace: &str,
        #[case] object: Value,
        #[case] expected: Managed,
    ) {
        assert_eq!(places().managed(namespace, &object, true, None), expected);
    }
}
