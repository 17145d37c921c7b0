//! Checks that the remediations of `sluice explain` unblock a job.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt;
use sluice_api::kueue::cluster_queue::QueueingStrategy;
use sluice_api::kueue::{ClusterQueue, LocalQueue, StopPolicy};
use sluice_engine::cluster_state::Object;
use sluice_engine::{Components, Engine};
use sluice_inspect::dry_run::{DryRun, PolicyConfig};
use sluice_inspect::explain::{Explanation, PendingStatus, SliceState, explain};
use sluice_inspect::remediation::{QuotaChange, Remediation};
use sluice_inspect::snapshot::Snapshot;
use sluice_manager::list_objects;
use sluice_plan::ObjectRef;

use crate::fault_free;
use crate::rng::SeededRandom;
use crate::script::executor::Executor;
use crate::script::generate::ScriptOptions;
use crate::script::manifests::ScriptNamespace;
use crate::script::step::Script;
use crate::seeds::for_each_seed;
use crate::transport::reliable_client;

/// Number of scripts. Each is checked after every step.
const SCRIPTS: u64 = 200;

/// Applied remediation of a pending job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum AppliedRemediation {
    QuotaRaised,
    QuotaReleased,
    QueueStarted,
    StrictFifoDisabled,
    HeadDeleted,
    /// One of the above, but other jobs were admitted first.
    OthersAdmitted,
    /// The remediation is no user action.
    NotApplicable,
}

/// A quiescent state.
struct QuiescentState {
    snapshot: Snapshot,
    now: Timestamp,
}

impl QuiescentState {
    fn engine(&self) -> Engine {
        let halves = Components { queue_manager: true, ray_operator: true };
        Engine::read_only(halves, PolicyConfig::default().queue, self.snapshot.objects().to_vec(), self.now)
    }

    /// Returns all jobs.
    fn jobs(&self) -> impl Iterator<Item = ObjectRef> {
        let jobs = self.snapshot.objects().iter().filter(|object| match object {
            Object::RayService(_) => true,
            Object::RayCluster(cluster) => {
                cluster.owner_references().iter().all(|owner| !owner.api_version.starts_with("ray.io/"))
            }
            _ => false,
        });
        jobs.map(Object::reference)
    }

    /// Applies a remediation of a slice in a dry run; `before` is the engine without it. Returns what
    /// was applied and the cause for which the slice is still pending, if it is.
    fn try_remediation(
        &self,
        job: &ObjectRef,
        slice: &str,
        remedy: &Remediation,
        before: &Engine,
    ) -> Result<(AppliedRemediation, Option<PendingStatus>), String> {
        let mut dry_run = DryRun::start(&self.snapshot, &PolicyConfig::default(), self.now);
        let done = self.apply_remediation(job, remedy, &mut dry_run)?;
        dry_run.run_to_fixpoint(|_| ()).map_err(|error| error.to_string())?;
        let after = explain(dry_run.engine(), job);
        let pending = after
            .filter(|after| !is_admitted(after, slice))
            .as_ref()
            .and_then(pending_slice)
            .map(|(_, pending)| pending.clone());
        let others_grew = pending.is_some() && {
            let before = self.admitted_slices_of_others(job, before);
            !self.admitted_slices_of_others(job, dry_run.engine()).is_subset(&before)
        };
        Ok((if others_grew { AppliedRemediation::OthersAdmitted } else { done }, pending))
    }

    /// Returns the admitted slices of other jobs, with their pod counts.
    fn admitted_slices_of_others(&self, job: &ObjectRef, engine: &Engine) -> BTreeSet<(String, Vec<i32>)> {
        let others = self.jobs().filter(|other| other != job).filter_map(|other| explain(engine, &other));
        let slices = others.flat_map(|other| other.slices).filter(|slice| slice.state == SliceState::Admitted);
        slices.map(|slice| (slice.name, slice.pod_sets.iter().map(|pod_set| pod_set.count).collect())).collect()
    }

    fn apply_remediation(
        &self,
        job: &ObjectRef,
        remedy: &Remediation,
        dry_run: &mut DryRun,
    ) -> Result<AppliedRemediation, String> {
        let named = |prefix: &str, suffix: &str| remedy.what.strip_prefix(prefix)?.strip_suffix(suffix);
        if !remedy.quota.is_empty() {
            dry_run.apply(&self.changed_quota(&remedy.quota)?);
            return Ok(AppliedRemediation::QuotaRaised);
        }
        if let Some(name) = named("spec.stopPolicy of ClusterQueue ", " is None") {
            dry_run.apply(&self.changed_cluster_queue(name, |queue| queue.spec.stop_policy = Some(StopPolicy::None))?);
            return Ok(AppliedRemediation::QueueStarted);
        }
        if let Some(name) = named("spec.stopPolicy of LocalQueue ", " is None") {
            dry_run.apply(&self.started_local_queue(job, name)?);
            return Ok(AppliedRemediation::QueueStarted);
        }
        if let Some(name) = named("spec.queueingStrategy of ClusterQueue ", " is BestEffortFIFO") {
            let strategy = Some(QueueingStrategy::BestEffortFIFO);
            dry_run.apply(&self.changed_cluster_queue(name, |queue| queue.spec.queueing_strategy = strategy)?);
            return Ok(AppliedRemediation::StrictFifoDisabled);
        }
        if let Some(head) = named("Workload ", ", which is ahead in the queue, is admitted or deleted") {
            let head = explain(&self.engine(), &workload_ref(head)).ok_or("the head belongs to no job")?;
            self.jobs()
                .filter(|other| other.to_string() == head.job)
                .for_each(|other| dry_run.remove_with_dependents(&other));
            return Ok(AppliedRemediation::HeadDeleted);
        }
        if remedy.what.contains(" is released, limited by ") {
            // A Workload of a job that was deleted without its pods has no owner.
            let orphaned = self.snapshot.objects().iter().filter(
                |object| matches!(object, Object::Workload(workload) if workload.owner_references().is_empty()),
            );
            let others = self.jobs().filter(|other| other != job).chain(orphaned.map(Object::reference));
            others.for_each(|other| dry_run.remove_with_dependents(&other));
            return Ok(AppliedRemediation::QuotaReleased);
        }
        Ok(AppliedRemediation::NotApplicable)
    }

    fn changed_cluster_queue(&self, name: &str, change: impl FnOnce(&mut ClusterQueue)) -> Result<Object, String> {
        match self.snapshot.get(&ObjectRef::named::<ClusterQueue>(None, name.to_owned())) {
            Some(Object::ClusterQueue(queue)) => {
                let mut queue = queue.as_ref().clone();
                change(&mut queue);
                Ok(Object::ClusterQueue(Arc::new(queue)))
            }
            _ => Err(format!("there is no ClusterQueue {name}")),
        }
    }

    fn started_local_queue(&self, job: &ObjectRef, name: &str) -> Result<Object, String> {
        match self.snapshot.get(&ObjectRef::named::<LocalQueue>(job.namespace.clone(), name.to_owned())) {
            Some(Object::LocalQueue(queue)) => {
                let mut queue = queue.as_ref().clone();
                queue.spec.stop_policy = Some(StopPolicy::None);
                Ok(Object::LocalQueue(Arc::new(queue)))
            }
            _ => Err(format!("there is no LocalQueue {name}")),
        }
    }

    fn changed_quota(&self, changes: &[QuotaChange]) -> Result<Object, String> {
        self.changed_cluster_queue(&changes[0].cluster_queue, |queue| {
            for flavor in queue.spec.resource_groups.iter_mut().flat_map(|group| &mut group.flavors) {
                for quota in &mut flavor.resources {
                    let is_target =
                        |change: &&QuotaChange| change.flavor == flavor.name && change.resource == quota.name;
                    if let Some(change) = changes.iter().find(is_target) {
                        quota.nominal_quota = Quantity(change.to.clone());
                    }
                }
            }
        })
    }
}

/// Returns the reference of a Workload from `namespace/name`.
fn workload_ref(key: &str) -> ObjectRef {
    let (namespace, name) = key.split_once('/').unwrap_or_default();
    ObjectRef::named::<sluice_api::kueue::Workload>(Some(namespace.to_owned()), name.to_owned())
}

/// Returns the newest pending slice of a job and the cause.
fn pending_slice(explanation: &Explanation) -> Option<(&str, &PendingStatus)> {
    let slice = explanation.slices.iter().rev().find(|slice| slice.state == SliceState::Pending)?;
    Some((&slice.name, slice.pending.as_ref()?))
}

/// True if the slice of this name is admitted. Another slice of the job may be pending.
fn is_admitted(explanation: &Explanation, name: &str) -> bool {
    explanation.slices.iter().any(|slice| slice.name == name && slice.state == SliceState::Admitted)
}

/// Applies every remediation of every pending job. Returns those that did not help, and counts them
/// by kind in `tally`.
fn check_remediations(moment: &QuiescentState, tally: &mut BTreeMap<AppliedRemediation, usize>) -> Vec<String> {
    let mut wrong = Vec::new();
    let engine = moment.engine();
    for job in moment.jobs() {
        let Some(before) = explain(&engine, &job) else { continue };
        let Some((slice, waiting)) = pending_slice(&before) else { continue };
        if waiting.remediations.is_empty() {
            wrong.push(format!("no remediation for {job}: {}", waiting.message));
        }
        for remedy in &waiting.remediations {
            match moment.try_remediation(&job, slice, remedy, &engine) {
                Ok((done, after)) => {
                    wrong.extend(after.and_then(|after| unhelpful_remediation(waiting, remedy, &done, &after)));
                    *tally.entry(done).or_default() += 1;
                }
                Err(problem) => wrong.push(format!("{job}: {}: {problem}", remedy.what)),
            }
        }
    }
    wrong
}

/// Returns an error if the job is pending for the same cause after the remediation.
fn unhelpful_remediation(
    before: &PendingStatus,
    remedy: &Remediation,
    done: &AppliedRemediation,
    after: &PendingStatus,
) -> Option<String> {
    let failed = match done {
        AppliedRemediation::NotApplicable | AppliedRemediation::OthersAdmitted => false,
        // The job became the head and may lack quota.
        AppliedRemediation::QueueStarted | AppliedRemediation::StrictFifoDisabled | AppliedRemediation::HeadDeleted => {
            after.message == before.message
        }
        // The quota suffices, but another job may be the head.
        AppliedRemediation::QuotaRaised | AppliedRemediation::QuotaReleased => !after.shortfalls.is_empty(),
    };
    failed.then(|| format!("pending: {}; after {}: still pending: {}", before.message, remedy.what, after.message))
}

/// Executes a script and checks the explanations after each step, when the system is quiescent.
fn check_script(seed: u64, tally: &mut BTreeMap<AppliedRemediation, usize>) -> Result<Vec<String>, String> {
    let script = Script::random(&SeededRandom::new(seed), ScriptOptions::QUIESCENT);
    let place = ScriptNamespace::new("team");
    fault_free::in_world(seed, async |world| {
        let client = reliable_client(world);
        let people = Executor::new(&client, &place);
        people.set_up(&script.setup).await.map_err(|error| error.to_string())?;
        let mut wrong = Vec::new();
        for step in &script.steps {
            people.execute(&step.act).await.map_err(|error| error.to_string())?;
            fault_free::wait_until_quiescent(world).await?;
            let snapshot = Snapshot::new(list_objects(&client).await.map_err(|error| error.to_string())?);
            let found = check_remediations(&QuiescentState { snapshot, now: world.time.now() }, tally);
            wrong.extend(found.into_iter().map(|found| format!("after {:?}: {found}", step.act)));
        }
        Ok(wrong)
    })
}

#[test]
fn remediations_of_an_explanation_unblock_the_job() {
    let number = |name: &str| std::env::var(name).ok().map(|value| value.parse().expect(name));
    let (first, count): (u64, u64) = (number("EXPLAINED_FIRST").unwrap_or(0), number("EXPLAINED").unwrap_or(SCRIPTS));
    let results = Mutex::new((BTreeMap::<AppliedRemediation, usize>::new(), Vec::new()));

    for_each_seed(first..first + count, |seed| {
        let mut tally = BTreeMap::new();
        let wrong = check_script(seed, &mut tally).unwrap_or_else(|problem| vec![problem]);
        let mut results = results.lock().expect("one at a time");
        tally.into_iter().for_each(|(done, times)| *results.0.entry(done).or_default() += times);
        results.1.extend(wrong.into_iter().map(|wrong| format!("seed {seed}: {wrong}")));
        true
    });

    let (tally, wrong) = results.into_inner().expect("all are done");
    println!("{tally:?}");
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), tally.values().sum::<usize>(), wrong.join("\n"));
    for done in [
        AppliedRemediation::QuotaRaised,
        AppliedRemediation::QuotaReleased,
        AppliedRemediation::QueueStarted,
        AppliedRemediation::StrictFifoDisabled,
        AppliedRemediation::HeadDeleted,
    ] {
        assert!(tally.contains_key(&done), "never: {done:?}");
    }
}
