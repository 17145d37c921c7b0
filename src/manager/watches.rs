//! Watches every kind that the engine reads, and merges the watches into one stream of events.

use kube::{Api, Client, Resource};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::error::Error;
use crate::list_watch::{ListWatch, ListWatchError, Observation};
use crate::written_versions::WrittenVersions;
use sluice_engine::cluster_state::{WatchedKind, strip_and_wrap};
use sluice_engine::{EngineInput, Scope};

/// Starts watches in the configured namespaces.
pub(super) struct Watches {
    client: Client,
    events: mpsc::Sender<EngineInput>,
    namespaces: Vec<String>,
    written: WrittenVersions,
    tasks: JoinSet<Result<(), Error>>,
    scopes: Vec<Scope>,
}

impl Watches {
    /// Creates a set of watches that send to `events`. Namespaced kinds are watched in
    /// `namespaces`, or in all namespaces if that is empty. The history of the API server includes the
    /// versions in `written`.
    pub(super) fn new(
        client: Client,
        events: mpsc::Sender<EngineInput>,
        namespaces: Vec<String>,
        written: WrittenVersions,
    ) -> Self {
        Self { client, events, namespaces, written, tasks: JoinSet::new(), scopes: Vec::new() }
    }

    /// Watches a cluster-scoped kind.
    pub(super) fn cluster_scoped<K>(&mut self)
    where
        K: WatchedKind + Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        self.start(Api::<K>::all(self.client.clone()), None, None, CrdPresence::Required);
    }

    /// Watches a cluster-scoped kind whose CRD may be missing; it then has no objects.
    pub(super) fn optional_cluster_scoped<K>(&mut self)
    where
        K: WatchedKind + Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        self.start(Api::<K>::all(self.client.clone()), None, None, CrdPresence::Optional);
    }

    /// Watches a namespaced kind, restricted to the objects with label `label` if it is set.
    pub(super) fn namespaced<K>(&mut self, label: Option<&'static str>)
    where
        K: WatchedKind + Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    {
        self.start_namespaced::<K>(label, CrdPresence::Required);
    }

    /// Watches a namespaced kind whose CRD may be missing; it then has no objects.
    pub(super) fn optional_namespaced<K>(&mut self)
    where
        K: WatchedKind + Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    {
        self.start_namespaced::<K>(None, CrdPresence::Optional);
    }

    fn start_namespaced<K>(&mut self, label: Option<&'static str>, kinds: CrdPresence)
    where
        K: WatchedKind + Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    {
        if self.namespaces.is_empty() {
            return self.start(Api::<K>::all(self.client.clone()), None, label, kinds);
        }
        for namespace in self.namespaces.clone() {
            self.start(Api::<K>::namespaced(self.client.clone(), &namespace), Some(namespace), label, kinds);
        }
    }

    /// Returns the scopes that have to be listed before the engine may decide, and the watch tasks.
    pub(super) fn finish(self) -> (Vec<Scope>, JoinSet<Result<(), Error>>) {
        (self.scopes, self.tasks)
    }

    fn start<K: WatchedKind>(
        &mut self,
        api: Api<K>,
        namespace: Option<String>,
        label: Option<&'static str>,
        kinds: CrdPresence,
    ) {
        let scope = Scope { kind: K::kind(&()).into_owned(), namespace, label };
        self.scopes.push(scope.clone());
        self.tasks.spawn(forward(ListWatch::new(api, label, self.written.clone()), scope, kinds, self.events.clone()));
    }
}

/// Presence of the definition of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CrdPresence {
    /// Built in, or needed for any decision.
    Required,
    /// Installed later or never, such as the kinds of Ray where only Jobs are queued.
    Optional,
}

/// Forwards one watch until the receiver is dropped. A list is sent as a whole, since objects
/// missing from it have been deleted.
///
/// # Errors
/// If the API server went back in time: what was observed before may no longer be true.
async fn forward<K: WatchedKind>(
    mut watch: ListWatch<K>,
    scope: Scope,
    kinds: CrdPresence,
    events: mpsc::Sender<EngineInput>,
) -> Result<(), Error> {
    let mut is_listed = false;
    loop {
        let event = match watch.next().await {
            Ok(Observation::Listed(objects, version)) => {
                is_listed = true;
                EngineInput::Listed { scope: scope.clone(), objects: K::object_list(objects), version }
            }
            Ok(Observation::Applied(object)) => EngineInput::Applied(strip_and_wrap(object)),
            Ok(Observation::Deleted(object)) => EngineInput::Deleted(strip_and_wrap(object)),
            Ok(Observation::Verified) => EngineInput::HistoryVerified(scope.clone()),
            Err(error @ ListWatchError::Broken(_)) => {
                warn!(kind = scope.kind, %error, "checking the version of the API server before the next decision");
                EngineInput::WatchBroken(scope.clone())
            }
            // Objects that were listed before stay: only the deletion of each shows that it is gone.
            Err(error) if kinds == CrdPresence::Optional && !is_listed && is_crd_missing(&error) => {
                info!(kind = scope.kind, "no CRD is installed for this kind; it is watched once there is one");
                is_listed = true;
                EngineInput::Listed { scope: scope.clone(), objects: K::object_list(Vec::new()), version: 0 }
            }
            Err(error) if kinds == CrdPresence::Optional && is_crd_missing(&error) => {
                debug!(kind = scope.kind, "still no CRD; retrying");
                continue;
            }
            Err(ListWatchError::HistoryLost(source)) => return Err(Error::HistoryLost { kind: scope.kind, source }),
            Err(error) => {
                warn!(kind = scope.kind, %error, "watch failed; retrying");
                continue;
            }
        };
        if events.send(event).await.is_err() {
            return Ok(());
        }
    }
}

fn is_crd_missing(error: &ListWatchError) -> bool {
    matches!(error, ListWatchError::List(kube::Error::Api(status)) if status.code == 404)
}
