//! In-memory cluster: the scheduler's decisions are written to its objects and observed again.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, Namespace};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde_json::{Value, json};

use crate::log::Recorder;
use crate::{Decision, DecisionTarget, Input, ObjectKey, PendingCause, Scheduler, Settings, status};
use sluice_api::condition;
use sluice_api::kueue::workload::PodTemplate;
use sluice_api::kueue::{ClusterQueue, Cohort, LocalQueue, PodSet, ResourceFlavor, Workload, WorkloadSpec, names};

/// Default namespace of all namespaced objects.
pub(super) const NAMESPACE: &str = "team";
/// Iteration limit for detecting non-convergence.
const MAX_ROUNDS: usize = 200;

pub(super) fn timestamp(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).expect("in range")
}

pub(super) fn object_key(name: &str) -> ObjectKey {
    ObjectKey::new(NAMESPACE, name)
}

#[derive(Debug, Clone, Default)]
pub(super) struct Cluster {
    pub(super) settings: Settings,
    pub(super) scheduler: Scheduler,
    pub(super) now: i64,
    pub(super) flavors: BTreeMap<String, ResourceFlavor>,
    pub(super) cluster_queues: BTreeMap<String, ClusterQueue>,
    pub(super) cohorts: BTreeMap<String, Cohort>,
    pub(super) local_queues: BTreeMap<ObjectKey, LocalQueue>,
    pub(super) workloads: BTreeMap<ObjectKey, Workload>,
    limit_ranges: BTreeMap<ObjectKey, LimitRange>,
    runtime_classes: BTreeMap<String, RuntimeClass>,
    /// All decisions so far.
    pub(super) decisions: Vec<Decision>,
    /// Targets of decisions that were not applied; `run` asks for those decisions again.
    unapplied: BTreeSet<DecisionTarget>,
    /// Records the decision log; `None` until `restart_recording`.
    recorder: Option<Recorder>,
    recorded_log: Vec<u8>,
}

impl Cluster {
    /// Creates the LocalQueue `lq`, its ClusterQueue `cq` and the flavor `default` with this CPU
    /// quota.
    pub(super) fn with_cpu(quota: &str) -> Self {
        Self::with(json!({"resourceGroups": [group(&["cpu"], &[("default", &[quota])])], "namespaceSelector": {}}))
    }

    /// Creates the LocalQueue `lq`, its ClusterQueue `cq` with this spec, and the flavors in it.
    pub(super) fn with(spec: Value) -> Self {
        let mut cluster = Self::default();
        for flavor in flavor_names(&spec) {
            cluster.put_flavor(&flavor);
        }
        cluster.put_cluster_queue("cq", spec);
        cluster.put_local_queue("lq", json!({"clusterQueue": "cq"}));
        cluster
    }

    pub(super) fn observe(&mut self, event: &Input<'_>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record_input(timestamp(self.now), event);
        }
        self.scheduler.observe(timestamp(self.now), event);
    }

    pub(super) fn put_flavor(&mut self, name: &str) {
        self.put_flavor_with(name, json!({}));
    }

    pub(super) fn put_flavor_with(&mut self, name: &str, spec: Value) {
        let flavor = ResourceFlavor::new(name, serde_json::from_value(spec).expect("a ResourceFlavor spec"));
        self.observe(&Input::ResourceFlavor(&flavor));
        self.flavors.insert(name.to_owned(), flavor);
    }

    pub(super) fn put_cluster_queue(&mut self, name: &str, spec: Value) {
        let mut object = ClusterQueue::new(name, serde_json::from_value(spec).expect("a ClusterQueue spec"));
        let before = self.cluster_queues.get(name);
        object.status = before.and_then(|before| before.status.clone());
        object.metadata.generation = Some(before.and_then(|before| before.metadata.generation).unwrap_or(0) + 1);
        self.observe(&Input::ClusterQueue(&object));
        self.cluster_queues.insert(name.to_owned(), object);
    }

    pub(super) fn put_cohort(&mut self, name: &str, spec: Value) {
        let mut object = Cohort::new(name, serde_json::from_value(spec).expect("a Cohort spec"));
        object.status = self.cohorts.get(name).and_then(|before| before.status.clone());
        self.observe(&Input::Cohort(&object));
        self.cohorts.insert(name.to_owned(), object);
    }

    pub(super) fn delete_cohort(&mut self, name: &str) {
        self.cohorts.remove(name);
        self.observe(&Input::CohortDeleted(name));
    }

    /// Merges fields into the spec of the ClusterQueue `cq`; a null value removes a field.
    pub(super) fn patch_cluster_queue(&mut self, patch: Value) {
        let spec = serde_json::to_value(&self.cluster_queues["cq"].spec).expect("JSON");
        let mut spec = spec.as_object().cloned().expect("an object");
        spec.extend(patch.as_object().cloned().expect("an object"));
        spec.retain(|_, value| !value.is_null());
        self.put_cluster_queue("cq", Value::Object(spec));
    }

    pub(super) fn put_local_queue(&mut self, name: &str, spec: Value) {
        let mut object = LocalQueue::new(name, serde_json::from_value(spec).expect("a LocalQueue spec"));
        object.metadata.namespace = Some(NAMESPACE.into());
        object.status = self.local_queues.get(&object_key(name)).and_then(|before| before.status.clone());
        self.observe(&Input::LocalQueue(&object));
        self.local_queues.insert(object_key(name), object);
    }

    pub(super) fn delete_local_queue(&mut self, name: &str) {
        self.local_queues.remove(&object_key(name));
        self.observe(&Input::LocalQueueDeleted(&object_key(name)));
    }

    pub(super) fn label_namespace(&mut self, label: &str, value: &str) {
        let labels = BTreeMap::from([(label.to_owned(), value.to_owned())]);
        let metadata = ObjectMeta { name: Some(NAMESPACE.into()), labels: Some(labels), ..ObjectMeta::default() };
        self.observe(&Input::Namespace(&Namespace { metadata, ..Namespace::default() }));
    }

    /// Creates or changes a LimitRange with these limits.
    pub(super) fn put_limit_range(&mut self, name: &str, limits: Value) {
        let object = json!({"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"limits": limits}});
        let object: LimitRange = serde_json::from_value(object).expect("a LimitRange");
        self.observe(&Input::LimitRange(&object));
        self.limit_ranges.insert(object_key(name), object);
    }

    pub(super) fn delete_limit_range(&mut self, name: &str) {
        self.limit_ranges.remove(&object_key(name));
        self.observe(&Input::LimitRangeDeleted(&object_key(name)));
    }

    /// Creates or changes a RuntimeClass with this pod overhead.
    pub(super) fn put_runtime_class(&mut self, name: &str, overhead: Value) {
        let object = json!({"metadata": {"name": name}, "handler": name, "overhead": {"podFixed": overhead}});
        let object: RuntimeClass = serde_json::from_value(object).expect("a RuntimeClass");
        self.observe(&Input::RuntimeClass(&object));
        self.runtime_classes.insert(name.to_owned(), object);
    }

    pub(super) fn delete_runtime_class(&mut self, name: &str) {
        self.runtime_classes.remove(name);
        self.observe(&Input::RuntimeClassDeleted(name));
    }

    pub(super) fn put(&mut self, workload: Workload) {
        self.observe(&Input::Workload(&workload));
        self.workloads.insert(ObjectKey::of(&workload), workload);
    }

    /// Creates a workload with one pod set `main` of one pod that requests this much CPU.
    pub(super) fn submit(&mut self, name: &str, cpu: &str) {
        let workload = self.workload(name, &[("main", 1, json!({"cpu": cpu}))]);
        self.put(workload);
    }

    /// Returns a workload for the LocalQueue `lq`, created at the current time.
    pub(super) fn workload(&self, name: &str, pod_sets: &[(&str, i32, Value)]) -> Workload {
        let pod_sets = pod_sets.iter().map(|(name, count, requests)| pod_set(name, *count, requests)).collect();
        let mut workload =
            Workload::new(name, WorkloadSpec { pod_sets, queue_name: Some("lq".into()), ..WorkloadSpec::default() });
        workload.metadata.namespace = Some(NAMESPACE.into());
        workload.metadata.uid = Some(format!("uid-{name}"));
        workload.metadata.generation = Some(1);
        workload.metadata.creation_timestamp = Some(Time(timestamp(self.now)));
        workload
    }

    pub(super) fn update(&mut self, name: &str, change: impl FnOnce(&mut Workload)) {
        let mut workload = self.workloads[&object_key(name)].clone();
        change(&mut workload);
        workload.metadata.generation = workload.metadata.generation.map(|generation| generation + 1);
        self.put(workload);
    }

    pub(super) fn finish(&mut self, name: &str) {
        let update = condition::ConditionUpdate {
            type_: names::FINISHED,
            status: true,
            reason: names::finished_reason::SUCCEEDED.into(),
            message: String::new(),
            observed_generation: None,
        };
        let now = timestamp(self.now);
        self.update(name, |workload| {
            let status = workload.status.get_or_insert_with(Default::default);
            condition::set(&mut status.conditions, now, update);
        });
    }

    pub(super) fn delete(&mut self, name: &str) {
        self.workloads.remove(&object_key(name));
        self.observe(&Input::WorkloadDeleted(&object_key(name)));
    }

    /// Releases the quota of an evicted workload, as its stopped job does.
    pub(super) fn release_quota(&mut self, name: &str) {
        let now = timestamp(self.now);
        self.update(name, |workload| workload.status = Some(status::released(workload, now)));
    }

    /// Runs one cycle without applying its decisions.
    pub(super) fn cycle(&mut self) -> Vec<Decision> {
        self.now += 1;
        let effects = self.scheduler.run_cycle(timestamp(self.now));
        if let Some(recorder) = &mut self.recorder {
            recorder.record_decisions(timestamp(self.now), &effects);
        }
        self.decisions.extend(effects.iter().cloned());
        self.unapplied.extend(effects.iter().map(Decision::target));
        effects
    }

    /// Runs one cycle; adds the decisions of earlier cycles that were not applied.
    fn outstanding_decisions(&mut self) -> Vec<Decision> {
        let mut effects = self.cycle();
        let fresh: BTreeSet<DecisionTarget> = effects.iter().map(Decision::target).collect();
        let lost = self.unapplied.iter().filter(|subject| !fresh.contains(*subject));
        effects.extend(lost.filter_map(|subject| self.scheduler.decision_for(subject)).collect::<Vec<_>>());
        effects
    }

    /// Writes a decision to its object; the scheduler observes the result.
    pub(super) fn apply_decision(&mut self, effect: &Decision) {
        let now = timestamp(self.now);
        self.unapplied.remove(&effect.target());
        match effect {
            Decision::ClusterQueueStatus { cluster_queue, report } => {
                let mut object = self.cluster_queues[cluster_queue].clone();
                object.status = Some(status::cluster_queue(&object.status.unwrap_or_default(), report, now));
                self.observe(&Input::ClusterQueue(&object));
                self.cluster_queues.insert(cluster_queue.clone(), object);
            }
            Decision::LocalQueueStatus { local_queue, report } => {
                let mut object = self.local_queues[local_queue].clone();
                object.status = Some(status::local_queue(&object.status.unwrap_or_default(), report, now));
                self.observe(&Input::LocalQueue(&object));
                self.local_queues.insert(local_queue.clone(), object);
            }
            Decision::CohortStatus { cohort, report } => {
                let mut object = self.cohorts[cohort].clone();
                object.status = Some(status::cohort(report));
                self.observe(&Input::Cohort(&object));
                self.cohorts.insert(cohort.clone(), object);
            }
            Decision::SetInactive { workload } => {
                if self.workloads.contains_key(workload) {
                    self.update(&workload.name, |workload| workload.spec.active = Some(false));
                }
            }
            Decision::Admit { workload, .. }
            | Decision::Pending { workload, .. }
            | Decision::Evict { workload, .. }
            | Decision::PreemptPart { workload, .. }
            | Decision::PartReleased { workload }
            | Decision::Deactivate { workload, .. }
            | Decision::FinishReplaced { workload, .. }
            | Decision::ReduceAdmission { workload, .. } => {
                if let Some(object) = self.workloads.get(workload) {
                    self.put(status::with_decision(object, effect, now));
                }
            }
        }
    }

    /// Runs cycles and applies their decisions until there are none; returns the names of the
    /// admitted workloads, in order.
    pub(super) fn run_until_stable(&mut self) -> Vec<String> {
        let mut admitted = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let effects = self.outstanding_decisions();
            if effects.is_empty() {
                return admitted;
            }
            for effect in &effects {
                if let Decision::Admit { workload, .. } = effect {
                    admitted.push(workload.name.clone());
                }
                self.apply_decision(effect);
            }
        }
        panic!("the cluster does not converge");
    }

    /// Replaces the scheduler with a new one that observes all objects.
    pub(super) fn restart(&mut self) {
        self.scheduler = Scheduler::new(self.settings.clone());
        if let Some(recorder) = &mut self.recorder {
            self.recorded_log.extend(recorder.take());
            *recorder = Recorder::new(&self.scheduler);
        }
        let (flavors, queues) = (self.flavors.clone(), self.cluster_queues.clone());
        let (local_queues, workloads) = (self.local_queues.clone(), self.workloads.clone());
        workloads.values().for_each(|object| self.observe(&Input::Workload(object)));
        local_queues.values().for_each(|object| self.observe(&Input::LocalQueue(object)));
        self.cohorts.clone().values().for_each(|object| self.observe(&Input::Cohort(object)));
        queues.values().for_each(|object| self.observe(&Input::ClusterQueue(object)));
        flavors.values().for_each(|object| self.observe(&Input::ResourceFlavor(object)));
        self.limit_ranges.clone().values().for_each(|object| self.observe(&Input::LimitRange(object)));
        self.runtime_classes.clone().values().for_each(|object| self.observe(&Input::RuntimeClass(object)));
    }

    /// Restarts the scheduler with these settings and starts recording the decision log.
    pub(super) fn restart_recording(&mut self, settings: Settings) {
        self.settings = settings;
        self.recorder = Some(Recorder::default());
        self.restart();
    }

    /// Returns the lines of the decision log.
    pub(super) fn decision_log(&mut self) -> Vec<String> {
        self.recorded_log.extend(self.recorder.iter_mut().flat_map(Recorder::take));
        String::from_utf8_lossy(&self.recorded_log).lines().map(str::to_owned).collect()
    }

    pub(super) fn is_true(&self, name: &str, type_: &str) -> bool {
        let status = self.workloads.get(&object_key(name)).and_then(|workload| workload.status.as_ref());
        status.is_some_and(|status| condition::is_true(&status.conditions, type_))
    }

    /// Returns reason and message of a workload's condition; empty strings if it is not set.
    pub(super) fn reason_and_message(&self, name: &str, type_: &str) -> (String, String) {
        let status = self.workloads[&object_key(name)].status.clone().unwrap_or_default();
        let found = condition::get(&status.conditions, type_).cloned();
        found.map(|found| (found.reason, found.message)).unwrap_or_default()
    }

    pub(super) fn pending_cause(&self, name: &str) -> Option<PendingCause> {
        self.scheduler.explain(&object_key(name))
    }

    /// Returns the reserved quantity of one resource of one flavor from the status of `cq`.
    pub(super) fn reserved_quantity(&self, flavor: &str, resource: &str) -> String {
        let status = self.cluster_queues["cq"].status.clone().unwrap_or_default();
        let flavors = status.flavors_reservation.into_iter().filter(|usage| usage.name == flavor);
        let mut totals = flavors.flat_map(|usage| usage.resources).filter(|usage| usage.name == resource);
        totals.next().and_then(|usage| usage.total).map(|total| total.0).unwrap_or_default()
    }

    /// Returns the names of the workloads that hold quota according to their statuses.
    pub(super) fn holders(&self) -> Vec<&str> {
        let names = self.workloads.keys().map(|key| key.name.as_str());
        names.filter(|name| self.is_true(name, names::QUOTA_RESERVED) && !self.is_true(name, names::FINISHED)).collect()
    }
}

fn flavor_names(spec: &Value) -> Vec<String> {
    let groups = spec["resourceGroups"].as_array().cloned().unwrap_or_default();
    let flavors = groups.iter().flat_map(|group| group["flavors"].as_array().cloned().unwrap_or_default());
    flavors.filter_map(|flavor| flavor["name"].as_str().map(str::to_owned)).collect()
}

/// Returns a resource group: the covered resources, and for each flavor their nominal quotas.
pub(super) fn group(resources: &[&str], flavors: &[(&str, &[&str])]) -> Value {
    let flavors: Vec<Value> = flavors
        .iter()
        .map(|(name, quotas)| {
            let quotas = resources.iter().zip(*quotas);
            let quotas: Vec<Value> =
                quotas.map(|(resource, quota)| json!({"name": resource, "nominalQuota": quota})).collect();
            json!({"name": name, "resources": quotas})
        })
        .collect();
    json!({"coveredResources": resources, "flavors": flavors})
}

pub(super) fn pod_set(name: &str, count: i32, requests: &Value) -> PodSet {
    let container = json!({"name": "c", "image": "i", "resources": {"requests": requests}});
    PodSet {
        name: name.into(),
        count,
        template: PodTemplate::from(json!({"spec": {"containers": [container]}})),
        ..PodSet::default()
    }
}

/// Changes the spec of the pods of a pod set.
pub(super) fn edit_pod_spec(set: &mut PodSet, edit: impl FnOnce(&mut Value)) {
    let mut template = set.template.decode();
    edit(&mut template["spec"]);
    set.template = template.into();
}

/// Makes a workload the replacement slice of another.
pub(super) fn replacing(mut workload: Workload, predecessor: &str) -> Workload {
    let claim = (names::SLICE_REPLACEMENT_FOR_ANNOTATION.to_owned(), format!("{NAMESPACE}/{predecessor}"));
    workload.metadata.annotations.get_or_insert_default().extend([claim]);
    workload
}
