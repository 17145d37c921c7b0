//! Records the complete history of a control plane in order.
//!
//! Resource versions increase over all kinds, so the events of several watches can be merged into
//! one order and replayed: after each change, the state is exactly what it was then. Nothing is
//! sampled.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use sluice_api::gateway_api::HTTPRoute;
use sluice_api::kueue::{ClusterQueue, Cohort, Workload};
use sluice_api::ray::{RayCluster, RayService};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::invariants::{object_key, replaced_slice_key};

/// One change of one object.
#[derive(Debug, Clone)]
pub struct Change {
    /// Resource version, which orders the changes of all kinds.
    pub version: u64,
    /// Time at which the watch reported it.
    pub observed_at: Timestamp,
    /// The object after the change, or its last state if it was deleted.
    pub object: Object,
    /// True if the object was deleted.
    pub deleted: bool,
}

/// An object of a recorded kind.
#[allow(clippy::large_enum_variant, reason = "tests hold a few thousand of them")]
#[derive(Debug, Clone)]
pub enum Object {
    /// A ClusterQueue.
    ClusterQueue(ClusterQueue),
    /// A Cohort.
    Cohort(Cohort),
    /// A Workload.
    Workload(Workload),
    /// A RayService.
    RayService(RayService),
    /// A RayCluster.
    RayCluster(RayCluster),
    /// A batch/v1 Job.
    BatchJob(Job),
    /// A Pod.
    Pod(Pod),
    /// A Service.
    Service(Service),
    /// An HTTPRoute.
    HTTPRoute(HTTPRoute),
}

/// All recorded objects at one point of the history.
#[derive(Debug, Default, Clone)]
pub struct State {
    /// ClusterQueues by `NAMESPACE/NAME`.
    pub cluster_queues: BTreeMap<String, ClusterQueue>,
    /// Cohorts by `NAMESPACE/NAME`.
    pub cohorts: BTreeMap<String, Cohort>,
    /// Workloads by `NAMESPACE/NAME`.
    pub workloads: BTreeMap<String, Workload>,
    /// RayServices by `NAMESPACE/NAME`.
    pub ray_services: BTreeMap<String, RayService>,
    /// RayClusters by `NAMESPACE/NAME`.
    pub ray_clusters: BTreeMap<String, RayCluster>,
    /// batch/v1 Jobs by `NAMESPACE/NAME`.
    pub batch_jobs: BTreeMap<String, Job>,
    /// Pods by `NAMESPACE/NAME`.
    pub pods: BTreeMap<String, Pod>,
    /// Services by `NAMESPACE/NAME`.
    pub services: BTreeMap<String, Service>,
    /// HTTPRoutes by `NAMESPACE/NAME`.
    pub http_routes: BTreeMap<String, HTTPRoute>,
    /// Workloads that replace another one: the key of that one, and their own.
    replacements: BTreeSet<(String, String)>,
    /// Keys of the RayClusters by uid.
    cluster_keys: BTreeMap<String, String>,
}

impl State {
    /// Returns a state of these Workloads.
    pub fn from_workloads(workloads: impl Iterator<Item = Workload>) -> Self {
        let mut state = Self::default();
        workloads.for_each(|workload| state.apply_workload(&workload, false));
        state
    }

    /// Applies a change.
    pub fn apply(&mut self, change: &Change) {
        match &change.object {
            Object::ClusterQueue(object) => insert_or_remove(&mut self.cluster_queues, object, change.deleted),
            Object::Cohort(object) => insert_or_remove(&mut self.cohorts, object, change.deleted),
            Object::Workload(object) => self.apply_workload(object, change.deleted),
            Object::RayService(object) => insert_or_remove(&mut self.ray_services, object, change.deleted),
            Object::RayCluster(object) => self.apply_cluster(object, change.deleted),
            Object::BatchJob(object) => insert_or_remove(&mut self.batch_jobs, object, change.deleted),
            Object::Pod(object) => insert_or_remove(&mut self.pods, object, change.deleted),
            Object::Service(object) => insert_or_remove(&mut self.services, object, change.deleted),
            Object::HTTPRoute(object) => insert_or_remove(&mut self.http_routes, object, change.deleted),
        }
    }

    /// Returns the Workloads that replace the one with this key.
    pub fn replacements_of<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Workload> {
        let all = self.replacements.range((key.to_owned(), String::new())..);
        let of_key = all.take_while(move |(replaced, _)| replaced == key);
        of_key.filter_map(|(_, replacement)| self.workloads.get(replacement))
    }

    /// Returns the RayCluster with this uid.
    pub fn cluster_with_uid(&self, uid: &str) -> Option<&RayCluster> {
        self.ray_clusters.get(self.cluster_keys.get(uid)?)
    }

    /// Returns the batch/v1 Job with this uid.
    pub fn batch_job_with_uid(&self, uid: &str) -> Option<&Job> {
        self.batch_jobs.values().find(|job| job.metadata.uid.as_deref() == Some(uid))
    }

    fn apply_workload(&mut self, workload: &Workload, gone: bool) {
        let key = object_key(workload);
        let replaced = |workload: &Workload| replaced_slice_key(workload).cloned();
        if let Some(replaced) = self.workloads.get(&key).and_then(replaced) {
            self.replacements.remove(&(replaced, key.clone()));
        }
        if let Some(replaced) = replaced(workload).filter(|_| !gone) {
            self.replacements.insert((replaced, key));
        }
        insert_or_remove(&mut self.workloads, workload, gone);
    }

    fn apply_cluster(&mut self, cluster: &RayCluster, gone: bool) {
        let key = object_key(cluster);
        if let Some(uid) = self.ray_clusters.get(&key).and_then(ResourceExt::uid) {
            self.cluster_keys.remove(&uid);
        }
        if let Some(uid) = cluster.uid().filter(|_| !gone) {
            self.cluster_keys.insert(uid, key);
        }
        insert_or_remove(&mut self.ray_clusters, cluster, gone);
    }
}

fn insert_or_remove<K: Resource + Clone>(map: &mut BTreeMap<String, K>, object: &K, gone: bool) {
    let key = object_key(object);
    if gone {
        map.remove(&key);
    } else {
        map.insert(key, object.clone());
    }
}

/// Records every change from its start on.
pub struct Recorder {
    client: Client,
    changes: Arc<Mutex<Vec<Change>>>,
    gap: Arc<Mutex<Option<String>>>,
    serves_gateway_api: bool,
    _watches: JoinSet<()>,
}

impl Recorder {
    /// Starts recording. Each change is also sent to `live` as it arrives, nearly in order.
    pub async fn start(client: Client, live: Option<mpsc::UnboundedSender<Change>>) -> Self {
        let changes = Arc::new(Mutex::new(Vec::new()));
        let hole = Arc::new(Mutex::new(None));
        let (ready, mut readied) = mpsc::channel(8);
        let mut watches = JoinSet::new();
        let tape = WatchRecorder { client: client.clone(), changes: changes.clone(), gap: hole.clone(), live, ready };
        watches.spawn(tape.clone().follow(Object::ClusterQueue));
        watches.spawn(tape.clone().follow(Object::Cohort));
        watches.spawn(tape.clone().follow(Object::Workload));
        watches.spawn(tape.clone().follow(Object::RayService));
        watches.spawn(tape.clone().follow(Object::RayCluster));
        watches.spawn(tape.clone().follow(Object::BatchJob));
        watches.spawn(tape.clone().follow(Object::Pod));
        watches.spawn(tape.clone().follow(Object::Service));
        let serves_gateway_api = serves_gateway_api(&client).await;
        if serves_gateway_api {
            watches.spawn(tape.follow(Object::HTTPRoute));
        }
        for _ in 0..watches.len() {
            readied.recv().await.expect("a watch that starts");
        }
        Self { client, changes, gap: hole, serves_gateway_api, _watches: watches }
    }

    /// Returns all changes so far, in order.
    ///
    /// # Panics
    /// Panics if a watch was interrupted, because the history would have a gap.
    pub async fn history(&self) -> Vec<Change> {
        self.catch_up::<ClusterQueue>().await;
        self.catch_up::<Cohort>().await;
        self.catch_up::<Workload>().await;
        self.catch_up::<RayService>().await;
        self.catch_up::<RayCluster>().await;
        self.catch_up::<Job>().await;
        self.catch_up::<Pod>().await;
        if self.serves_gateway_api {
            self.catch_up::<HTTPRoute>().await;
        }
        if let Some(hole) = &*self.gap.lock().expect("the recorder") {
            panic!("the history has a gap: {hole}");
        }
        let mut changes = self.changes.lock().expect("the recorder").clone();
        changes.sort_by_key(|change| change.version);
        changes
    }

    /// Waits until the current version of every existing object has been recorded.
    async fn catch_up<K>(&self)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let listed = Api::<K>::all(self.client.clone()).list(&ListParams::default()).await.expect("a list");
        let versions: Vec<u64> = listed.iter().map(resource_version).collect();
        super::eventually("the watches catch up", async || {
            let changes = self.changes.lock().expect("the recorder");
            let newest = changes.iter().map(|change| change.version).max().unwrap_or(0);
            versions.iter().all(|version| *version <= newest).then_some(())
        })
        .await;
    }
}

async fn serves_gateway_api(client: &Client) -> bool {
    let groups = client.list_api_groups().await.expect("the API groups");
    groups.groups.iter().any(|group| group.name == HTTPRoute::group(&()))
}

#[derive(Clone)]
struct WatchRecorder {
    client: Client,
    changes: Arc<Mutex<Vec<Change>>>,
    gap: Arc<Mutex<Option<String>>>,
    live: Option<mpsc::UnboundedSender<Change>>,
    ready: mpsc::Sender<()>,
}

impl WatchRecorder {
    async fn follow<K>(self, wrap: fn(K) -> Object)
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    {
        let mut stream = watcher::watcher(Api::<K>::all(self.client.clone()), watcher::Config::default()).boxed();
        let mut lists = 0;
        while let Some(event) = stream.next().await {
            match event {
                Ok(watcher::Event::Init) => lists += 1,
                Ok(watcher::Event::InitDone) => drop(self.ready.send(()).await),
                Ok(watcher::Event::InitApply(object) | watcher::Event::Apply(object)) => {
                    self.record(object, wrap, false);
                }
                Ok(watcher::Event::Delete(object)) => self.record(object, wrap, true),
                Err(error) => *self.gap.lock().expect("the recorder") = Some(error.to_string()),
            }
            if lists > 1 {
                *self.gap.lock().expect("the recorder") = Some(format!("{} was listed again", K::kind(&())));
            }
        }
    }

    fn record<K: Resource>(&self, object: K, wrap: fn(K) -> Object, gone: bool) {
        let change = Change {
            version: resource_version(&object),
            observed_at: Timestamp::now(),
            object: wrap(object),
            deleted: gone,
        };
        if let Some(live) = &self.live {
            let _ = live.send(change.clone());
        }
        self.changes.lock().expect("the recorder").push(change);
    }
}

fn resource_version<K: Resource>(object: &K) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).expect("a resource version")
}
