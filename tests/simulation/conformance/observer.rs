//! Watches a control plane and records the time of the last change in each namespace.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use futures::StreamExt;
use kube::api::DynamicObject;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tokio::task::JoinSet;

use super::dump::{CLUSTER_SCOPED, Dump, KindAndName, NAMESPACED};
use crate::script::executor::api_resource;
use crate::script::manifests::ScriptNamespace;

/// Watches all namespaces of a control plane.
pub(super) struct NamespaceWatcher {
    seen: Arc<Mutex<WatchedState>>,
    _watches: JoinSet<()>,
}

#[derive(Default)]
struct WatchedState {
    namespaces: BTreeMap<String, NamespaceState>,
}

/// State of a namespace.
#[derive(Default)]
struct NamespaceState {
    objects: Dump,
    last_change: Option<Instant>,
}

impl NamespaceWatcher {
    /// Starts the watches.
    pub(super) fn start(client: &Client) -> Self {
        let seen = Arc::new(Mutex::new(WatchedState::default()));
        let mut watches = JoinSet::new();
        for kind in NAMESPACED.into_iter().chain(CLUSTER_SCOPED) {
            watches.spawn(follow(client.clone(), kind, seen.clone()));
        }
        Self { seen, _watches: watches }
    }

    /// Returns the time at which the last change in a namespace was received.
    pub(super) fn last_change(&self, place: &ScriptNamespace) -> Option<Instant> {
        self.lock().namespaces.get(&place.name)?.last_change
    }

    /// Evaluates a function on the objects of a namespace.
    pub(super) fn with_objects<T>(&self, place: &ScriptNamespace, question: impl FnOnce(&Dump) -> T) -> T {
        question(self.lock().namespaces.get(&place.name).map_or(&Dump::new(), |scene| &scene.objects))
    }

    fn lock(&self) -> MutexGuard<'_, WatchedState> {
        self.seen.lock().expect("no holder of the lock panics")
    }
}

async fn follow(client: Client, kind: &'static str, seen: Arc<Mutex<WatchedState>>) {
    let api: Api<DynamicObject> = Api::all_with(client, &api_resource(kind));
    let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        let (object, gone) = match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => (object, false),
            Ok(watcher::Event::Delete(object)) => (object, true),
            Ok(watcher::Event::Init | watcher::Event::InitDone) => continue,
            Err(error) => panic!("watching {kind}: {error}"),
        };
        seen.lock().expect("no holder of the lock panics").record(kind, object, gone);
    }
}

impl WatchedState {
    fn record(&mut self, kind: &'static str, object: DynamicObject, gone: bool) {
        let name = object.name_any();
        let place = object.namespace().or_else(|| Some(name.split_once('-')?.0.to_owned()));
        let scene = self.namespaces.entry(place.unwrap_or_default()).or_default();
        scene.last_change = Some(Instant::now());
        let key: KindAndName = (kind, name);
        if gone {
            scene.objects.remove(&key);
        } else {
            let mut object = serde_json::to_value(object).unwrap_or_default();
            object["kind"] = Value::from(kind);
            scene.objects.insert(key, object);
        }
    }
}
