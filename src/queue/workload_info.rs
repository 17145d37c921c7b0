//! The fields of a Workload that scheduling depends on.

use std::cmp::Reverse;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::cached_workload::CachedWorkload;
use super::interner::Interned;
use super::ledger::{FlavorResourceQuantities, PreemptionOrder, add_to, to_i128};
use super::partial_admission::{GrowthStep, growth_steps};
use super::partial_preemption::{PartPods, PreemptiblePart, PreemptionScope, part_to_release, preemptible_parts};
use super::pending::{PendingCause, PendingReason};
use super::pending_queue::QueueOrder;
use super::pods_readiness::{PodsReadiness, ReadinessTimeout, readiness_timeout};
use super::scheduler::WorkloadId;
use super::settings::{RequeuingTimestamp, ResourceRules, Settings, WaitForPodsReady};
use super::slices::displaces_members;
use super::tree::CohortTree;
use super::workload_requests::{ParsedPodSets, PodSetError, RequestsCache, WorkloadRequests};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use sluice_api::condition;
use sluice_api::kueue::{Admission, PodSet, PodSetAssignment, Workload, WorkloadStatus, names};
use sluice_api::quantity::Amount;
use sluice_plan::ObjectKey;

/// Admission stage of a workload, as observed in its status.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum AdmissionStage {
    /// No quota is reserved.
    Unreserved,
    /// Quota is reserved under this admission.
    Reserved(Arc<Admission>),
    /// The condition Finished is True.
    Finished,
}

/// The fields of a Workload that scheduling depends on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WorkloadInfo {
    pub(super) key: ObjectKey,
    pub(super) uid: Arc<str>,
    generation: Option<i64>,
    pub(super) job_uid: Option<String>,
    owner: Option<String>,
    pub(super) queue_name: Option<String>,
    /// The parsed pod sets; `None` if parsing failed.
    parsed_pod_sets: Option<Interned<ParsedPodSets>>,
    /// The requests to schedule, or the reason why they are invalid.
    pub(super) requests: Result<Interned<WorkloadRequests>, PodSetError>,
    pub(super) priority: i32,
    /// Queue order timestamp.
    pub(super) queue_order_timestamp: Timestamp,
    /// Time at which its quota was reserved.
    quota_reserved_at: Option<Timestamp>,
    /// Time of its admission; `None` if it is not admitted.
    pub(super) admitted_at: Option<Timestamp>,
    /// The condition PodsReady; `None` if it is not set.
    pub(super) readiness: Option<PodsReadiness>,
    /// Number of requeues after a PodsReady timeout.
    pub(super) requeue_count: u32,
    /// Remaining execution time, counted from its admission; `None` without a limit.
    remaining_execution_time: Option<SignedDuration>,
    /// The condition DeactivationTarget is True.
    pub(super) deactivation_target: bool,
    pub(super) active: bool,
    pub(super) deleting: bool,
    pub(super) gated_by: Option<String>,
    pub(super) requeue_at: Option<Timestamp>,
    /// The slice in the same namespace that it claims to replace.
    pub(super) replaces: Option<ObjectKey>,
    /// Pod counts of each pod set of the spec.
    pod_counts: Vec<(String, PodCount)>,
    /// Order of partial admission; empty if it is admitted in full or not at all.
    growth_steps: Vec<GrowthStep>,
    /// Pods still run on the quota of the replaced slice until the job reports them gone.
    pub(super) replaced_still_running: bool,
    /// The parts that can be preempted on their own, in preemption order.
    preemptible_parts: Vec<PartPods>,
    pub(super) stage: AdmissionStage,
    pub(super) admitted: bool,
    pub(super) evicted: bool,
    /// The last part that it has to release, according to its status.
    pub(super) releasing_up_to: Option<PreemptiblePart>,
    /// Fingerprint of its condition QuotaReserved=False.
    pub(super) pending_condition: Option<ConditionFingerprint>,
    /// Its condition Requeued is False, left by an eviction; requeueing it sets the condition to
    /// True.
    awaits_requeue: bool,
}

/// Pod counts of one pod set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PodCount {
    pub(super) specified: i32,
    /// Pods among them that no longer need their quota.
    pub(super) reclaimable: i32,
}

impl PodCount {
    /// Returns `specified` pods that all need their quota.
    pub(super) fn all_needed(specified: i32) -> Self {
        Self { specified, reclaimable: 0 }
    }

    pub(super) fn needed(self) -> i32 {
        self.specified.saturating_sub(self.reclaimable).max(0)
    }
}

impl WorkloadInfo {
    /// Reads a Workload. Reuses the parsed pod sets of `known` if the spec is unchanged.
    pub(super) fn from_workload(
        workload: &Workload,
        known: Option<&CachedWorkload>,
        settings: &Settings,
        demands: &mut RequestsCache,
    ) -> Self {
        let before = known.map(|slot| &slot.info);
        let (meta, spec) = (&workload.metadata, &workload.spec);
        let unset = WorkloadStatus::default();
        let status = workload.status.as_ref().unwrap_or(&unset);
        let conditions = &status.conditions;
        let key = ObjectKey::of(workload);
        let annotation = |name: &str| meta.annotations.as_ref().and_then(|all| all.get(name));
        let counts = pod_counts(workload);
        let requeue_at = status.requeue_state.as_ref().and_then(|state| state.requeue_at.as_ref());
        let replaces = replaced_slice(workload);
        // A workload that replaces no slice is admitted in full.
        let steps = if replaces.is_some() { growth_steps(workload) } else { Vec::new() };
        let same_requests =
            |before: &&Self| before.same_spec(workload) && before.pod_counts == counts && before.growth_steps == steps;
        let (ask, demand) = match before.filter(same_requests) {
            Some(before) => (before.parsed_pod_sets.clone(), before.requests.clone()),
            None => match demands.parse(workload, &settings.resources) {
                Ok(ask) => {
                    let demand = demands.current_requests(&ask, &key.namespace, &counts, &steps, &settings.resources);
                    (Some(ask), Ok(demand))
                }
                Err(problem) => (None, Err(problem)),
            },
        };
        Self {
            uid: match before.filter(|before| meta.uid.as_deref() == Some(&*before.uid)) {
                Some(before) => before.uid.clone(),
                None => meta.uid.as_deref().unwrap_or_default().into(),
            },
            generation: meta.generation,
            job_uid: meta
                .labels
                .as_ref()
                .and_then(|all| all.get(names::JOB_UID_LABEL))
                .filter(|uid| !uid.is_empty())
                .cloned(),
            owner: owner_uid(workload),
            queue_name: spec.queue_name.clone().filter(|name| !name.is_empty()),
            parsed_pod_sets: ask,
            requests: demand,
            pod_counts: counts,
            growth_steps: steps,
            preemptible_parts: if status.admission.is_some() { preemptible_parts(workload) } else { Vec::new() },
            priority: spec.priority.unwrap_or(0),
            queue_order_timestamp: queue_order_timestamp(workload, settings),
            quota_reserved_at: true_since(conditions, names::QUOTA_RESERVED),
            admitted_at: true_since(conditions, names::ADMITTED),
            readiness: PodsReadiness::of(conditions),
            requeue_count: status
                .requeue_state
                .as_ref()
                .and_then(|state| u32::try_from(state.count?).ok())
                .unwrap_or_default(),
            remaining_execution_time: spec.maximum_execution_time_seconds.map(|most| {
                let past = status.accumulated_past_execution_time_seconds.unwrap_or_default();
                SignedDuration::from_secs(i64::from(most) - i64::from(past))
            }),
            deactivation_target: condition::is_true(conditions, names::DEACTIVATION_TARGET),
            active: spec.active.unwrap_or(true),
            deleting: meta.deletion_timestamp.is_some(),
            gated_by: annotation(names::ADMISSION_GATED_BY_ANNOTATION).filter(|by| !by.is_empty()).cloned(),
            requeue_at: requeue_at.map(|time| time.0),
            replaced_still_running: replaces.is_some() && displaces_members(workload),
            replaces,
            admitted: condition::is_true(conditions, names::ADMITTED),
            evicted: condition::is_true(conditions, names::EVICTED),
            releasing_up_to: part_to_release(status),
            pending_condition: condition::get(conditions, names::QUOTA_RESERVED)
                .filter(|reserved| reserved.status == "False")
                .map(|reserved| ConditionFingerprint {
                    reason: fingerprint(&reserved.reason),
                    message: fingerprint(&reserved.message),
                }),
            awaits_requeue: condition::is_false(conditions, names::REQUEUED),
            stage: admission_stage(workload, known.and_then(CachedWorkload::admission)),
            key,
        }
    }

    /// Recomputes the requests after a change of LimitRanges or RuntimeClasses; `None` if they are
    /// unchanged.
    pub(super) fn recomputed_requests(
        &self,
        demands: &mut RequestsCache,
        rules: &ResourceRules,
    ) -> Option<Interned<WorkloadRequests>> {
        let now = demands.current_requests(
            self.parsed_pod_sets.as_ref()?,
            &self.key.namespace,
            &self.pod_counts,
            &self.growth_steps,
            rules,
        );
        (self.requests.as_ref() != Ok(&now)).then_some(now)
    }

    /// Returns true if any of its pods names this RuntimeClass.
    pub(super) fn names_runtime_class(&self, class: &str) -> bool {
        self.parsed_pod_sets.as_ref().is_some_and(|ask| ask.names_runtime_class(class))
    }

    fn same_spec(&self, workload: &Workload) -> bool {
        let meta = &workload.metadata;
        self.generation.is_some() && self.generation == meta.generation && meta.uid.as_deref() == Some(&*self.uid)
    }

    /// Returns its position in the queue order.
    pub(super) fn queue_order(&self, workload: WorkloadId, preempts: bool) -> QueueOrder {
        QueueOrder {
            preempting: Reverse(preempts),
            priority: Reverse(self.priority),
            queue_order_timestamp: self.queue_order_timestamp,
            uid: self.uid.clone(),
            workload,
        }
    }

    /// Returns its position among the preemption candidates if it loses `loss`.
    pub(super) fn preemption_order(&self, workload: WorkloadId, loss: PreemptionScope) -> PreemptionOrder {
        PreemptionOrder {
            priority: self.priority,
            scope: loss,
            quota_reserved_at: Reverse(self.quota_reserved_at.unwrap_or(Timestamp::MAX)),
            uid: self.uid.clone(),
            workload,
        }
    }

    /// Returns the times at which it changes state without any input.
    pub(super) fn deadlines(&self, settings: &Settings) -> impl Iterator<Item = Timestamp> + use<> {
        let ready = settings.wait_for_pods_ready.as_ref().and_then(|rules| self.readiness_timeout(rules));
        [self.requeue_at, ready.map(|timeout| timeout.deadline), self.execution_deadline()].into_iter().flatten()
    }

    /// Returns the timeout by whose end its pods must be ready; `None` if they are ready or no limit
    /// applies.
    pub(super) fn readiness_timeout(&self, rules: &WaitForPodsReady) -> Option<ReadinessTimeout> {
        let admitted_at = self.admitted_at.filter(|_| !self.evicted && self.stage != AdmissionStage::Finished)?;
        readiness_timeout(self.readiness, admitted_at, rules)
    }

    /// Returns the time at which its maximum execution time ends; `None` without a limit.
    pub(super) fn execution_deadline(&self) -> Option<Timestamp> {
        let admitted_at = self.admitted_at.filter(|_| !self.evicted && self.stage != AdmissionStage::Finished)?;
        admitted_at.checked_add(self.remaining_execution_time?).ok()
    }

    /// Returns true unless its pods are known to be ready.
    pub(super) fn is_unready(&self) -> bool {
        self.readiness != Some(PodsReadiness::Ready)
    }

    /// Returns true if both belong to the same job, so that one can replace the other.
    pub(super) fn same_owner(&self, other: &Self) -> bool {
        self.owner == other.owner
    }

    /// Returns true if the requests or queueing of `now` differ, which invalidates earlier
    /// decisions.
    pub(super) fn requests_changed(&self, now: &Self) -> bool {
        self.uid != now.uid
            || self.queue_name != now.queue_name
            || self.requests != now.requests
            || self.replaces != now.replaces
            || self.active != now.active
            || self.deleting != now.deleting
            || self.gated_by != now.gated_by
            || self.requeue_at != now.requeue_at
            || now.stage == AdmissionStage::Finished
    }

    /// Returns true if anything but the status changed.
    pub(super) fn spec_changed(&self, now: &Self) -> bool {
        self.generation != now.generation || self.requests_changed(now)
    }

    /// Returns true if its conditions already have the reason of `why`, whatever the message.
    pub(super) fn reason_matches(&self, why: &PendingCause) -> bool {
        let resumes = self.awaits_requeue && why.is_queued();
        !resumes && self.has_pending_reason(why.reason())
    }

    /// Returns true if its condition QuotaReserved=False has this reason.
    fn has_pending_reason(&self, reason: PendingReason) -> bool {
        self.pending_condition.is_some_and(|said| said.reason == fingerprint(reason.as_str()))
    }

    /// Returns true if `now` differs from this only in having this pending reason.
    pub(super) fn differs_only_in_reason(&self, reason: PendingReason, now: &mut Self) -> bool {
        if now.awaits_requeue || !now.has_pending_reason(reason) {
            return false;
        }
        let said = std::mem::replace(&mut now.pending_condition, self.pending_condition);
        let same = *self == *now;
        now.pending_condition = said;
        same
    }

    /// Returns true if its conditions already have the reason and the message of `why`.
    pub(super) fn condition_matches(&self, why: &PendingCause) -> bool {
        self.reason_matches(why)
            && self.pending_condition.is_some_and(|said| said.message == fingerprint(&why.to_string()))
    }

    /// Returns its usage under `admission`: what was admitted, minus reclaimable pods. A
    /// scaled-down spec frees no quota before the admission is reduced too: otherwise the spec
    /// could grow back while other workloads use the freed quota.
    pub(super) fn usage(&self, admission: &Admission, tree: &CohortTree) -> FlavorResourceQuantities {
        self.usage_with_counts(admission, tree, |assignment| self.admitted_count(assignment))
    }

    /// Returns the usage that remains under `admission` once the pods that the spec no longer
    /// requests and the parts up to `part` are released.
    pub(super) fn usage_without(
        &self,
        part: PreemptiblePart,
        admission: &Admission,
        tree: &CohortTree,
    ) -> FlavorResourceQuantities {
        self.usage_with_counts(admission, tree, |assignment| {
            let specified = pod_count(&self.pod_counts, &assignment.name).map_or(0, |count| count.specified);
            let taken = self.parts_up_to(part).filter_map(|part| part.pods.get(&assignment.name)).sum::<u32>();
            let taken = i32::try_from(taken).unwrap_or(i32::MAX);
            self.admitted_count(assignment).min(specified).saturating_sub(taken).max(0)
        })
    }

    /// Returns the parts that are released when `part` is preempted.
    pub(super) fn parts_up_to(&self, part: PreemptiblePart) -> impl Iterator<Item = &PartPods> {
        self.preemptible_parts.iter().filter(move |other| other.part <= part)
    }

    /// Returns the parts after `part`, in preemption order.
    pub(super) fn parts_after(&self, part: Option<PreemptiblePart>) -> impl Iterator<Item = PreemptiblePart> {
        self.preemptible_parts.iter().map(|pods| pods.part).filter(move |other| part < Some(*other))
    }

    /// Returns its usage under `admission` if it keeps `kept` pods of each pod set.
    fn usage_with_counts(
        &self,
        admission: &Admission,
        tree: &CohortTree,
        kept: impl Fn(&PodSetAssignment) -> i32,
    ) -> FlavorResourceQuantities {
        let mut charge = FlavorResourceQuantities::new();
        for assignment in &admission.pod_set_assignments {
            let kept = kept(assignment);
            for (resource, flavor) in &assignment.flavors {
                if let Some(fr) = tree.known_flavor_resource(flavor, resource) {
                    add_to(&mut charge, fr, to_i128(self.resource_usage(assignment, resource, kept)));
                }
            }
        }
        charge
    }

    fn resource_usage(&self, assignment: &PodSetAssignment, resource: &str, pods: i32) -> Amount {
        let granted = self.admitted_count(assignment);
        let reclaimable = pod_count(&self.pod_counts, &assignment.name).map_or(0, |count| count.reclaimable);
        let kept = pods.saturating_sub(reclaimable).max(0);
        match assignment.resource_usage.get(resource).map(|quantity| Amount::from_quantity(resource, quantity)) {
            Some(Ok(usage)) => scale_usage(usage, kept, granted),
            // An invalid usage counts as unlimited: under-admission is safer than exceeding quota.
            Some(Err(_)) => Amount::MAX,
            // Not the current requests: LimitRanges or overhead may have changed since the
            // admission.
            None => {
                let as_written =
                    self.parsed_pod_sets.as_ref().and_then(|ask| ask.unadjusted_requests(&assignment.name));
                as_written.map_or(Amount::ZERO, |per_pod| per_pod.get(resource).times(kept.into()))
            }
        }
    }

    /// Returns the admission reduced to the spec; `None` if the spec is no smaller than what was
    /// admitted.
    pub(super) fn reduced_admission(&self, admission: &Admission) -> Option<Admission> {
        let specified = |assignment: &PodSetAssignment| pod_count(&self.pod_counts, &assignment.name);
        let exceeds_spec =
            |assignment| specified(assignment).is_none_or(|count| count.specified < self.admitted_count(assignment));
        if !admission.pod_set_assignments.iter().any(exceeds_spec) {
            return None;
        }
        let mut smaller = admission.clone();
        smaller.pod_set_assignments.retain(|assignment| pod_count(&self.pod_counts, &assignment.name).is_some());
        for assignment in &mut smaller.pod_set_assignments {
            let granted = self.admitted_count(assignment);
            let kept =
                pod_count(&self.pod_counts, &assignment.name).map_or(granted, |count| count.specified.min(granted));
            if kept < granted {
                for (resource, quantity) in &mut assignment.resource_usage {
                    if let Ok(usage) = Amount::from_quantity(resource, quantity) {
                        *quantity = scale_usage(usage, kept, granted).to_quantity(resource);
                    }
                }
                assignment.count = Some(kept);
            }
        }
        Some(smaller)
    }

    fn admitted_count(&self, assignment: &PodSetAssignment) -> i32 {
        let specified = pod_count(&self.pod_counts, &assignment.name).map(|count| count.specified);
        assignment.count.or(specified).unwrap_or(0).max(0)
    }
}

/// Returns `usage × kept ÷ granted`, rounded up.
fn scale_usage(usage: Amount, kept: i32, granted: i32) -> Amount {
    if kept >= granted {
        return usage;
    }
    let (kept, granted) = (i128::from(kept.max(0)), i128::from(granted));
    let product = i128::from(usage.get()) * kept;
    super::ledger::to_amount(product.div_euclid(granted) + i128::from(product.rem_euclid(granted) != 0))
}

/// Returns the stage of a workload. `held`, its previously known admission, is reused if unchanged.
fn admission_stage(workload: &Workload, held: Option<&Arc<Admission>>) -> AdmissionStage {
    let Some(status) = &workload.status else { return AdmissionStage::Unreserved };
    if condition::is_true(&status.conditions, names::FINISHED) {
        return AdmissionStage::Finished;
    }
    match &status.admission {
        Some(admission) if condition::is_true(&status.conditions, names::QUOTA_RESERVED) => {
            AdmissionStage::Reserved(match held.filter(|held| ***held == *admission) {
                Some(held) => held.clone(),
                None => Arc::new(admission.clone()),
            })
        }
        _ => AdmissionStage::Unreserved,
    }
}

/// Returns the queue order timestamp: the creation, or a later eviction that moves the workload to
/// the back (kueue v0.19.2 `pkg/workload/workload.go`, `GetQueueOrderTimestamp`). A preempted
/// workload keeps its position.
fn queue_order_timestamp(workload: &Workload, settings: &Settings) -> Timestamp {
    let requeuing = settings.wait_for_pods_ready.as_ref().map(|rules| rules.requeuing.timestamp).unwrap_or_default();
    let conditions = workload.conditions();
    let to_the_back = |reason: &str| match reason {
        names::evicted_reason::PODS_READY_TIMEOUT => requeuing == RequeuingTimestamp::Eviction,
        reason => reason == names::evicted_reason::ADMISSION_CHECK,
    };
    condition::get(conditions, names::EVICTED)
        .filter(|evicted| evicted.status == "True" && to_the_back(&evicted.reason))
        .map(|evicted| evicted.last_transition_time.0)
        .or(workload.metadata.creation_timestamp.as_ref().map(|time| time.0))
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

fn true_since(conditions: &[Condition], type_: &str) -> Option<Timestamp> {
    let condition = condition::get_true(conditions, type_);
    condition.map(|condition| condition.last_transition_time.0)
}

fn owner_uid(workload: &Workload) -> Option<String> {
    let owners = workload.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true)).or(owners.first()).map(|owner| owner.uid.clone())
}

/// Returns the slice that a Workload claims to replace.
pub(super) fn replaced_slice(workload: &Workload) -> Option<ObjectKey> {
    let annotation = workload.metadata.annotations.as_ref()?.get(names::SLICE_REPLACEMENT_FOR_ANNOTATION)?;
    parse_replacement_for(&ObjectKey::of(workload), annotation)
}

/// Parses the annotation `namespace/name`. `None` for a slice in another namespace and for `by`
/// itself.
fn parse_replacement_for(by: &ObjectKey, annotation: &str) -> Option<ObjectKey> {
    let (namespace, name) = annotation.split_once('/')?;
    let claimed = ObjectKey::new(namespace, name);
    (namespace == by.namespace && claimed != *by).then_some(claimed)
}

/// Returns the pod counts by pod set, as a list: there are few enough for linear search.
fn pod_counts(workload: &Workload) -> Vec<(String, PodCount)> {
    let reclaimable = workload.status.as_ref().map(|status| status.reclaimable_pods.as_slice()).unwrap_or_default();
    let count = |set: &PodSet| PodCount {
        specified: set.count,
        reclaimable: reclaimable.iter().find(|pods| pods.name == set.name).map_or(0, |pods| pods.count.max(0)),
    };
    workload.spec.pod_sets.iter().map(|set| (set.name.clone(), count(set))).collect()
}

/// Returns the pod counts of the pod set with this name.
pub(super) fn pod_count(counts: &[(String, PodCount)], name: &str) -> Option<PodCount> {
    counts.iter().find(|(set, _)| set == name).map(|(_, count)| *count)
}

/// Hashes of the reason and message of a condition, which are too long to keep for every pending
/// workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConditionFingerprint {
    reason: u64,
    message: u64,
}

/// Hashes a text to the same number in every process (FNV-1a).
fn fingerprint(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
