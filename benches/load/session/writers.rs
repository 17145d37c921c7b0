//! The writes of a run: those of users and of the framework of the jobs, and without a manager
//! also those of the manager.

use std::sync::Arc;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::Sender;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::feeds::Observation;
use crate::api::{ApiClient, ApiError, Write};
use crate::error::LoadError;
use crate::objects::{self, JOBS, RAY_CLUSTERS, RAY_SERVICES, Resource, SERVICES, UserRequest, WORKLOADS};
use crate::plan::{Item, LoadPlan};
use crate::progress::Release;
use crate::scenario::Kind;

/// Makes the writes of a run, a limited number at a time.
pub(super) struct Writers {
    context: Context,
    /// Limits the creations in flight.
    creations: Arc<Semaphore>,
    /// Limits the other writes in flight.
    updates: Arc<Semaphore>,
    concurrency: usize,
    /// Creates the objects of each class, until the run ends.
    submitters: JoinSet<()>,
}

#[derive(Clone)]
struct Context {
    plan: Arc<LoadPlan>,
    client: ApiClient,
    observations: Sender<Result<Observation, LoadError>>,
    started: Instant,
}

impl Writers {
    pub(super) fn new(
        plan: Arc<LoadPlan>,
        client: ApiClient,
        observations: Sender<Result<Observation, LoadError>>,
        started: Instant,
        concurrency: usize,
    ) -> Self {
        Self {
            context: Context { plan, client, observations, started },
            creations: Arc::new(Semaphore::new(concurrency)),
            updates: Arc::new(Semaphore::new(concurrency)),
            concurrency,
            submitters: JoinSet::new(),
        }
    }

    /// Creates the objects of a class, each at its time from now on.
    pub(super) fn submit_class(&mut self, class: usize) {
        let (context, creations) = (self.context.clone(), self.creations.clone());
        self.submitters.spawn(async move {
            let begun = Instant::now();
            for item in context.plan.classes[class].items.clone() {
                tokio::time::sleep_until(begun + context.plan.items[item].due).await;
                let Ok(permit) = creations.clone().acquire_owned().await else { return };
                let context = context.clone();
                tokio::spawn(async move {
                    let result = context.create(item).await;
                    drop(permit);
                    context.report(result).await;
                });
            }
        });
    }

    /// Finishes a Workload, unless it loses its quota before.
    pub(super) fn finish(&self, item: usize) {
        let write = self.context.finish(item);
        self.update(write, ApiError::is_invalid);
    }

    /// Completes the eviction of a Workload. If it has changed meanwhile, its newer version decides.
    pub(super) fn release(&self, release: Release) {
        let patch = objects::released(&release.version, release.conditions, Timestamp::now());
        let (namespace, name) = (release.namespace, release.name);
        self.update(Write { resource: WORKLOADS, namespace, name, is_status: true, patch }, ApiError::is_conflict);
    }

    /// Makes all writes of a run, including those of a manager.
    pub(super) fn write_everything(&mut self, manager: ApiClient) {
        let (context, concurrency) = (self.context.clone(), self.concurrency);
        self.submitters.spawn(async move {
            // An upgrade comes after the creation of its RayService, which is in an earlier class.
            let items = items_of_floor(&context.plan);
            for class in &context.plan.classes {
                let items = stream::iter(items[class.items.clone()].iter().copied());
                let written = items.for_each_concurrent(concurrency, |(item, is_admitted)| {
                    let (context, manager) = (&context, &manager);
                    async move { context.report(context.write_all_of(manager, item, is_admitted).await).await }
                });
                written.await;
            }
            // The run has ended if no one receives it.
            let _ = context.observations.send(Ok(Observation::AllWritten)).await;
        });
    }

    fn update(&self, write: Write, is_obsolete: fn(&ApiError) -> bool) {
        let (context, updates) = (self.context.clone(), self.updates.clone());
        tokio::spawn(async move {
            let Ok(_permit) = updates.acquire_owned().await else { return };
            let result = context.client.patch(&write).await;
            context.report(result.or_else(|error| if is_obsolete(&error) { Ok(()) } else { Err(error) })).await;
        });
    }
}

impl Context {
    async fn create(&self, item: usize) -> Result<(), ApiError> {
        let sent = self.started.elapsed();
        match objects::user_request(&self.plan, &self.plan.items[item]) {
            UserRequest::Create(object) => self.client.create(&object).await?,
            UserRequest::Upgrade(patch) => self.client.patch(&self.patch(RAY_SERVICES, item, patch)).await?,
        }
        let at = self.started.elapsed();
        // The run has ended if no one receives it.
        let _ = self.observations.send(Ok(Observation::Created { item, sent, at })).await;
        Ok(())
    }

    async fn report(&self, result: Result<(), ApiError>) {
        if let Err(error) = result {
            // The run has ended if no one receives it.
            let _ = self.observations.send(Err(error.into())).await;
        }
    }

    fn finish(&self, item: usize) -> Write {
        let queue = self.plan.namespace_of(&self.plan.items[item]);
        self.status(WORKLOADS, item, objects::finished(queue, Timestamp::now()))
    }

    fn status(&self, resource: Resource, item: usize, patch: Value) -> Write {
        Write { is_status: true, ..self.patch(resource, item, patch) }
    }

    fn patch(&self, resource: Resource, item: usize, patch: Value) -> Write {
        self.patch_named(resource, item, self.plan.items[item].name.clone(), patch)
    }

    /// Returns the patch of an object that belongs to `item`.
    fn patch_named(&self, resource: Resource, item: usize, name: String, patch: Value) -> Write {
        let namespace = self.plan.namespace_of(&self.plan.items[item]).to_owned();
        Write { resource, namespace, name, is_status: false, patch }
    }

    /// Makes all writes of one object: one for each step that a manager can't do without.
    async fn write_all_of(&self, manager: &ApiClient, item: usize, is_admitted: bool) -> Result<(), ApiError> {
        let (plan, planned) = (&self.plan, &self.plan.items[item]);
        let kind = plan.class_of(planned).kind;
        self.create(item).await?;
        if matches!(kind, Kind::RayService | Kind::Upgrade) {
            manager.create(&objects::cluster_of_service(plan, planned)).await?;
        }
        if kind != Kind::Workload {
            manager.create(&objects::workload_of(plan, planned)).await?;
        }
        if !is_admitted {
            return Ok(());
        }
        let admission = objects::admission(plan, planned, Timestamp::now());
        let workload = self.patch_named(WORKLOADS, item, objects::cluster_name(plan, planned), admission);
        manager.patch(&Write { is_status: true, ..workload }).await?;
        match kind {
            Kind::Workload if planned.run.is_some() => self.client.patch(&self.finish(item)).await,
            Kind::Workload => Ok(()),
            Kind::Job => manager.patch(&self.patch(JOBS, item, objects::open_gate())).await,
            Kind::RayCluster => self.write_ray_cluster(manager, item).await,
            Kind::RayService => {
                self.write_ray_cluster(manager, item).await?;
                for service in objects::services_of_service(plan, planned) {
                    manager.create(&service).await?;
                }
                self.write_ray_service_status(manager, item).await
            }
            Kind::Upgrade => self.write_upgrade(manager, item).await,
        }
    }

    async fn write_ray_cluster(&self, manager: &ApiClient, item: usize) -> Result<(), ApiError> {
        let (plan, planned) = (&self.plan, &self.plan.items[item]);
        let cluster = objects::cluster_name(plan, planned);
        manager.patch(&self.patch_named(RAY_CLUSTERS, item, cluster.clone(), objects::open_gate())).await?;
        manager.create(&objects::head_service(plan, planned)).await?;
        for group in ["head", "workers"] {
            manager.create(&objects::pod(plan, planned, group)).await?;
        }
        let ready = self.patch_named(RAY_CLUSTERS, item, cluster, objects::ray_cluster_ready());
        manager.patch(&Write { is_status: true, ..ready }).await
    }

    async fn write_ray_service_status(&self, manager: &ApiClient, item: usize) -> Result<(), ApiError> {
        let cluster = objects::cluster_name(&self.plan, &self.plan.items[item]);
        let status = objects::ray_service_ready(&cluster, Timestamp::now());
        manager.patch(&self.status(RAY_SERVICES, item, status)).await
    }

    /// Starts the new RayCluster, leads the Services to it, and deletes the old one.
    async fn write_upgrade(&self, manager: &ApiClient, item: usize) -> Result<(), ApiError> {
        let planned = &self.plan.items[item];
        self.write_ray_cluster(manager, item).await?;
        let cluster = objects::cluster_name(&self.plan, planned);
        for service in objects::service_names(planned) {
            manager.patch(&self.patch_named(SERVICES, item, service, objects::select_cluster(&cluster))).await?;
        }
        self.write_ray_service_status(manager, item).await?;
        let old = objects::replaced_cluster_name(planned);
        manager.delete(RAY_CLUSTERS, self.plan.namespace_of(planned), &old).await
    }
}

/// Returns all objects, each with whether it is admitted: if the run ends after a number of finished
/// Workloads, no more than that are.
fn items_of_floor(plan: &LoadPlan) -> Vec<(usize, bool)> {
    let mut left = plan.stop_after_finished.unwrap_or(usize::MAX);
    let admitted = |(item, planned): (usize, &Item)| {
        if planned.run.is_none() {
            return (item, true);
        }
        let is_admitted = left > 0;
        left -= usize::from(is_admitted);
        (item, is_admitted)
    };
    plan.items.iter().enumerate().map(admitted).collect()
}
