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
use crate::objects::{self, JOBS, RAY_CLUSTERS, Resource, WORKLOADS};
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
            let items = stream::iter(items_of_floor(&context.plan));
            let written = items.for_each_concurrent(concurrency, |(item, is_admitted)| {
                let (context, manager) = (&context, &manager);
                async move { context.report(context.write_all_of(manager, item, is_admitted).await).await }
            });
            written.await;
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
        let object = objects::item(&self.plan, &self.plan.items[item]);
        let sent = self.started.elapsed();
        self.client.create(&object).await?;
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
        let item = &self.plan.items[item];
        let namespace = self.plan.namespace_of(item).to_owned();
        Write { resource, namespace, name: item.name.clone(), is_status: false, patch }
    }

    /// Makes all writes of one object: one for each step that a manager can't do without.
    async fn write_all_of(&self, manager: &ApiClient, item: usize, is_admitted: bool) -> Result<(), ApiError> {
        let (plan, planned) = (&self.plan, &self.plan.items[item]);
        let kind = plan.class_of(planned).kind;
        self.create(item).await?;
        if kind != Kind::Workload {
            manager.create(&objects::workload_of(plan, planned)).await?;
        }
        if !is_admitted {
            return Ok(());
        }
        let admission = objects::admission(plan, planned, Timestamp::now());
        manager.patch(&self.status(WORKLOADS, item, admission)).await?;
        match kind {
            Kind::Workload if planned.run.is_some() => self.client.patch(&self.finish(item)).await,
            Kind::Workload => Ok(()),
            Kind::Job => manager.patch(&self.patch(JOBS, item, objects::open_gate())).await,
            Kind::RayCluster => self.write_ray_cluster(manager, item).await,
        }
    }

    async fn write_ray_cluster(&self, manager: &ApiClient, item: usize) -> Result<(), ApiError> {
        let (plan, planned) = (&self.plan, &self.plan.items[item]);
        manager.patch(&self.patch(RAY_CLUSTERS, item, objects::open_gate())).await?;
        manager.create(&objects::head_service(plan, planned)).await?;
        for group in ["head", "workers"] {
            manager.create(&objects::pod(plan, planned, group)).await?;
        }
        manager.patch(&self.status(RAY_CLUSTERS, item, objects::ray_cluster_ready())).await
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
