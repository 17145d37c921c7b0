//! Watches every kind that the engine reads, and merges the watches into one stream of events.

use futures::StreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{WatchStreamExt, watcher::Config};
use kube::{Api, Client, Resource};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use sluice_engine::world::{Kind, received, slim};
use sluice_engine::{Event, Scope};

/// Starts watches in the configured namespaces.
pub(super) struct Watches {
    client: Client,
    events: mpsc::Sender<Event>,
    namespaces: Vec<String>,
    tasks: JoinSet<()>,
    scopes: Vec<Scope>,
}

impl Watches {
    /// Creates a set of watches that send to `events`. Namespaced kinds are watched in
    /// `namespaces`, or in all namespaces if that is empty.
    pub(super) fn new(client: Client, events: mpsc::Sender<Event>, namespaces: Vec<String>) -> Self {
        Self { client, events, namespaces, tasks: JoinSet::new(), scopes: Vec::new() }
    }

    /// Watches a cluster-scoped kind.
    pub(super) fn cluster<K>(&mut self)
    where
        K: Kind + Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        self.start(Api::<K>::all(self.client.clone()), None, None, Kinds::Ours);
    }

    /// Watches a cluster-scoped kind whose CRD may be missing; it then has no objects.
    pub(super) fn cluster_of_others<K>(&mut self)
    where
        K: Kind + Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        self.start(Api::<K>::all(self.client.clone()), None, None, Kinds::OfOthers);
    }

    /// Watches a namespaced kind, restricted to the objects with label `label` if it is set.
    pub(super) fn namespaced<K>(&mut self, label: Option<&'static str>)
    where
        K: Kind + Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    {
        self.namespaced_of::<K>(label, Kinds::Ours);
    }

    /// Watches a namespaced kind whose CRD may be missing; it then has no objects.
    pub(super) fn namespaced_of_others<K>(&mut self)
    where
        K: Kind + Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    {
        self.namespaced_of::<K>(None, Kinds::OfOthers);
    }

    fn namespaced_of<K>(&mut self, label: Option<&'static str>, kinds: Kinds)
    where
        K: Kind + Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    {
        if self.namespaces.is_empty() {
            return self.start(Api::<K>::all(self.client.clone()), None, label, kinds);
        }
        for namespace in self.namespaces.clone() {
            self.start(Api::<K>::namespaced(self.client.clone(), &namespace), Some(namespace), label, kinds);
        }
    }

    /// Returns the scopes that have to be listed before the engine may decide, and the watch tasks.
    pub(super) fn finish(self) -> (Vec<Scope>, JoinSet<()>) {
        (self.scopes, self.tasks)
    }

    fn start<K: Kind>(&mut self, api: Api<K>, namespace: Option<String>, label: Option<&'static str>, kinds: Kinds) {
        let config = label.map_or_else(Config::default, |label| Config::default().labels(label));
        let scope = Scope { kind: K::kind(&()).into_owned(), namespace, label };
        self.scopes.push(scope.clone());
        self.tasks.spawn(follow(api, config, scope, kinds, self.events.clone()));
    }
}

/// Presence of the definition of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kinds {
    /// Built in, or installed with `config/crd`.
    Ours,
    /// Installed by another project, perhaps later or never.
    OfOthers,
}

/// Forwards one watch until the receiver is dropped. A list is sent as a whole, since objects
/// missing from it have been deleted.
async fn follow<K: Kind>(api: Api<K>, config: Config, scope: Scope, kinds: Kinds, events: mpsc::Sender<Event>) {
    let mut stream = watcher(api, config).default_backoff().boxed();
    let mut listed = Vec::new();
    while let Some(result) = stream.next().await {
        let event = match result {
            Ok(watcher::Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed.push(slim(object));
                continue;
            }
            Ok(watcher::Event::InitDone) => Event::Listed(scope.clone(), K::listing(std::mem::take(&mut listed))),
            Ok(watcher::Event::Apply(object)) => Event::Applied(received(object)),
            Ok(watcher::Event::Delete(object)) => Event::Deleted(received(object)),
            Err(error) if kinds == Kinds::OfOthers && is_undefined(&error) => {
                debug!(kind = scope.kind, "CRD not installed; retrying");
                Event::Listed(scope.clone(), K::listing(Vec::new()))
            }
            Err(error) => {
                warn!(kind = scope.kind, %error, "watch failed; retrying");
                continue;
            }
        };
        if events.send(event).await.is_err() {
            return;
        }
    }
}

fn is_undefined(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(status)) if status.code == 404)
}
