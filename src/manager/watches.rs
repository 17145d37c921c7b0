//! Watches every kind that the engine reads, and turns what they see into one stream of events.

use futures::StreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{WatchStreamExt, watcher::Config};
use kube::{Api, Client, Resource};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use sluice_engine::world::{Kind, received, slim};
use sluice_engine::{Event, Scope};

/// Starts watches and knows in which namespaces.
pub(super) struct Watches {
    client: Client,
    events: mpsc::Sender<Event>,
    namespaces: Vec<String>,
    tasks: JoinSet<()>,
    scopes: Vec<Scope>,
}

impl Watches {
    /// Watches through `client` and reports to `events`; namespaced kinds in `namespaces` only, or everywhere if that is empty.
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

    /// Watches a cluster-scoped kind that others define: while they haven't, there are no objects of it.
    pub(super) fn cluster_of_others<K>(&mut self)
    where
        K: Kind + Resource<Scope = k8s_openapi::ClusterResourceScope>,
    {
        self.start(Api::<K>::all(self.client.clone()), None, None, Kinds::OfOthers);
    }

    /// Watches a namespaced kind; only the objects that have the label `label`, if one is given.
    pub(super) fn namespaced<K>(&mut self, label: Option<&'static str>)
    where
        K: Kind + Resource<Scope = k8s_openapi::NamespaceResourceScope>,
    {
        self.namespaced_of::<K>(label, Kinds::Ours);
    }

    /// Watches a namespaced kind that others define: while they haven't, there are no objects of it.
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

    /// What has to be listed before the engine may decide anything, and the tasks that watch.
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

/// Who defines a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kinds {
    /// The API server itself, or `config/crd`.
    Ours,
    /// Somebody who may not have come yet.
    OfOthers,
}

/// Follows one watch until the engine is gone. A list is handed over whole, since what it lacks is gone.
async fn follow<K: Kind>(api: Api<K>, config: Config, scope: Scope, kinds: Kinds, events: mpsc::Sender<Event>) {
    let mut stream = watcher(api, config).default_backoff().boxed();
    let mut listed = Vec::new();
    while let Some(seen) = stream.next().await {
        let event = match seen {
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
                debug!(kind = scope.kind, "there is no such kind yet; looking again");
                Event::Listed(scope.clone(), K::listing(Vec::new()))
            }
            Err(error) => {
                warn!(kind = scope.kind, %error, "watching failed; trying again");
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
