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

use super::dump::{Dump, GLOBAL, Key, NAMESPACED};
use crate::script::manifests::Place;
use crate::script::perform::resource;

/// Watches all namespaces of a control plane.
pub(super) struct Observer {
    seen: Arc<Mutex<Seen>>,
    _watches: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    places: BTreeMap<String, Scene>,
}

/// State of a namespace.
#[derive(Default)]
struct Scene {
    objects: Dump,
    changed: Option<Instant>,
}

impl Observer {
    /// Starts the watches.
    pub(super) fn start(client: &Client) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let mut watches = JoinSet::new();
        for kind in NAMESPACED.into_iter().chain(GLOBAL) {
            watches.spawn(follow(client.clone(), kind, seen.clone()));
        }
        Self { seen, _watches: watches }
    }

    /// Returns the time at which the last change in a namespace was received.
    pub(super) fn changed(&self, place: &Place) -> Option<Instant> {
        self.lock().places.get(&place.namespace)?.changed
    }

    /// Evaluates a function on the objects of a namespace.
    pub(super) fn ask<T>(&self, place: &Place, question: impl FnOnce(&Dump) -> T) -> T {
        question(self.lock().places.get(&place.namespace).map_or(&Dump::new(), |scene| &scene.objects))
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no holder of the lock panics")
    }
}

async fn follow(client: Client, kind: &'static str, seen: Arc<Mutex<Seen>>) {
    let api: Api<DynamicObject> = Api::all_with(client, &resource(kind));
    let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
    while let Some(event) = events.next().await {
        let (object, gone) = match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => (object, false),
            Ok(watcher::Event::Delete(object)) => (object, true),
            Ok(watcher::Event::Init | watcher::Event::InitDone) => continue,
            Err(error) => panic!("watching {kind}: {error}"),
        };
        seen.lock().expect("no holder of the lock panics").put(kind, object, gone);
    }
}

impl Seen {
    fn put(&mut self, kind: &'static str, object: DynamicObject, gone: bool) {
        let name = object.name_any();
        let place = object.namespace().or_else(|| Some(name.split_once('-')?.0.to_owned()));
        let scene = self.places.entry(place.unwrap_or_default()).or_default();
        scene.changed = Some(Instant::now());
        let key: Key = (kind, name);
        if gone {
            scene.objects.remove(&key);
        } else {
            let mut object = serde_json::to_value(object).unwrap_or_default();
            object["kind"] = Value::from(kind);
            scene.objects.insert(key, object);
        }
    }
}
