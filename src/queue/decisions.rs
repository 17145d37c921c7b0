//! Decisions for each object: the difference between the desired and the observed status.

use super::cached_workload::{CachedWorkload, QueueState};
use super::cluster_queue_config::ClusterQueueProblem;
use super::explain::HoldersCache;
use super::pods_readiness::ReadinessTimeout;
use super::queue_status::{
    ActiveCondition, ClusterQueueReport, CohortReport, LocalQueueReport, local_queue_usage, weighted_share,
};
use super::scheduler::{LocalQueueId, Scheduler, WorkloadId};
use super::settings::{Requeuing, WaitForPodsReady};
use super::status;
use super::tree::NodeId;
use super::workload_info::{AdmissionStage, WorkloadInfo};
use super::{DeactivationCause, Decision, DecisionTarget, EvictionReason, PodsReadyTimeout, ReplacementSlice};
use sluice_api::kueue::{Admission, StopPolicy};

impl Scheduler {
    /// Returns the pending decision for an object; `None` if its observed status is as desired.
    pub fn decision_for(&self, subject: &DecisionTarget) -> Option<Decision> {
        match subject {
            DecisionTarget::Workload(key) => {
                let id = self.workloads.id(key)?;
                self.workload_decision(id, self.workloads.get(id)?, &mut HoldersCache::default())
            }
            DecisionTarget::ClusterQueue(name) => self.cluster_queue_decision(self.tree.known_cluster_queue(name)?),
            DecisionTarget::Cohort(name) => self.cohort_decision(self.tree.known_cohort(name)?),
            DecisionTarget::LocalQueue(key) => self.local_queue_decision(self.local_queues.id(key)?),
        }
    }

    /// Returns the pending decision for a workload, according to its queue state.
    pub(super) fn workload_decision(
        &self,
        id: WorkloadId,
        slot: &CachedWorkload,
        holders: &mut HoldersCache,
    ) -> Option<Decision> {
        let entry = &slot.info;
        let workload = || entry.key.clone();
        match &slot.queue_state {
            QueueState::Inactive => {
                let stop =
                    !entry.active && !entry.evicted && !entry.deleting && entry.stage == AdmissionStage::Unreserved;
                stop.then(|| Decision::Evict { workload: workload(), reason: EvictionReason::Deactivated })
            }
            QueueState::Superseded(by) => {
                let by = &self.workloads.get(*by)?.info;
                let is_over = matches!(by.stage, AdmissionStage::Reserved(_)) && !by.replaced_still_running;
                is_over.then(|| Decision::FinishReplaced {
                    workload: workload(),
                    replacement: ReplacementSlice {
                        workload: by.key.clone(),
                        uid: by.uid.to_string(),
                        job_uid: by.job_uid.clone(),
                    },
                })
            }
            QueueState::Admitted(admission) if slot.assumed_admission.is_some() => {
                let replaces = self.replaced_slices(slot).first().map(|replaced| replaced.info.key.clone());
                Some(Decision::Admit { workload: workload(), admission: admission.as_ref().clone(), replaces })
            }
            QueueState::Admitted(admission) => self.admitted_decision(slot, admission),
            QueueState::Queued(_) | QueueState::OnHold(..) => {
                let mut why = self.pending_cause(id, slot)?;
                if why.is_queued() && !slot.refresh_message && entry.reason_matches(&why) {
                    return None;
                }
                self.add_holders(&mut why, slot, holders);
                (!entry.condition_matches(&why)).then(|| Decision::Pending { workload: workload(), cause: why })
            }
        }
    }

    /// Returns the pending decision for a workload with quota, the most urgent first.
    fn admitted_decision(&self, slot: &CachedWorkload, admission: &Admission) -> Option<Decision> {
        let entry = &slot.info;
        let workload = || entry.key.clone();
        if entry.evicted {
            return None;
        }
        if let Some(reason) = self.eviction_reason(slot, &admission.cluster_queue) {
            return Some(Decision::Evict { workload: workload(), reason });
        }
        if let Some(effect) = self.timeout_decision(entry) {
            return Some(effect);
        }
        if let Some((part, preemption)) = slot.pending_partial_preemption.clone() {
            return Some(Decision::PreemptPart { workload: workload(), part, preemption });
        }
        if let Some(admission) = entry.reduced_admission(admission) {
            return Some(Decision::ReduceAdmission { workload: workload(), admission });
        }
        if entry.releasing_up_to.is_some_and(|part| entry.parts_up_to(part).next().is_none()) {
            return Some(Decision::PartReleased { workload: workload() });
        }
        let node = self.tree.known_cluster_queue(&admission.cluster_queue);
        let active = node.is_none_or(|node| self.cluster_queue_problem(node).is_none());
        (!entry.admitted && active && !entry.deleting).then(|| Decision::Admit {
            workload: workload(),
            admission: admission.clone(),
            replaces: None,
        })
    }

    /// Returns the reason to evict a workload; `None` if it may keep its quota.
    fn eviction_reason(&self, slot: &CachedWorkload, cluster_queue: &str) -> Option<EvictionReason> {
        let is_drained = |stop: StopPolicy| stop == StopPolicy::HoldAndDrain;
        let local_queue = slot.local_queue.and_then(|id| self.local_queues.get(id)?.config.as_ref());
        let quota = self.cluster_queues.get_by_name(cluster_queue).and_then(|state| state.config.as_ref());
        if !slot.info.active {
            Some(EvictionReason::Deactivated)
        } else if quota.is_some_and(|quota| is_drained(quota.stop_policy)) {
            Some(EvictionReason::ClusterQueueStopped)
        } else if local_queue.is_some_and(|rules| is_drained(rules.stop_policy)) {
            Some(EvictionReason::LocalQueueStopped)
        } else {
            slot.pending_preemption.clone().map(EvictionReason::Preempted)
        }
    }

    /// Returns the decision for a workload that exceeded its maximum execution time or the
    /// PodsReady timeout; `None` if it exceeded neither.
    fn timeout_decision(&self, entry: &WorkloadInfo) -> Option<Decision> {
        let workload = || entry.key.clone();
        if entry.deactivation_target {
            return Some(Decision::SetInactive { workload: workload() });
        }
        if entry.execution_deadline().is_some_and(|at| at <= self.now) {
            return Some(Decision::Deactivate {
                workload: workload(),
                cause: DeactivationCause::MaximumExecutionTimeExceeded,
            });
        }
        let rules = self.settings.wait_for_pods_ready.as_ref()?;
        let timeout = entry.readiness_timeout(rules).filter(|timeout| timeout.deadline <= self.now)?;
        let count = entry.requeue_count.saturating_add(1);
        if rules.requeuing.backoff_limit_count.is_some_and(|limit| count > limit) {
            return Some(Decision::Deactivate {
                workload: workload(),
                cause: DeactivationCause::RequeuingLimitExceeded,
            });
        }
        Some(Decision::Evict {
            workload: workload(),
            reason: EvictionReason::PodsReadyTimeout(Box::new(self.pods_ready_timeout(timeout, rules, count))),
        })
    }

    fn pods_ready_timeout(&self, timeout: ReadinessTimeout, rules: &WaitForPodsReady, count: u32) -> PodsReadyTimeout {
        let wait = jiff::SignedDuration::from_secs(backoff_seconds(&rules.requeuing, count).into());
        PodsReadyTimeout {
            after_seconds: timeout.duration.as_secs(),
            cause: timeout.cause,
            requeue_count: count,
            requeue_at: self.now.saturating_add(wait).unwrap_or(self.now),
        }
    }

    /// Returns the reason and the message if a ClusterQueue cannot admit workloads; `None` if it
    /// can.
    pub(super) fn cluster_queue_problem(&self, node: NodeId) -> Option<ClusterQueueProblem> {
        let state = self.cluster_queues.get(node)?;
        state.config.as_ref()?.inactive_reason(&self.flavors, state.cohort_cycle.clone())
    }

    pub(super) fn cluster_queue_decision(&self, node: NodeId) -> Option<Decision> {
        let state = self.cluster_queues.get(node)?;
        let quota = state.config.as_ref()?;
        let mut report = ClusterQueueReport {
            generation: state.generation,
            active_condition: ActiveCondition::of_cluster_queue(self.cluster_queue_problem(node).as_ref()),
            unsupported_fields: quota.unsupported_fields.clone(),
            counts: state.counts,
            weighted_share: self.settings.fair_sharing.as_ref().map(|_| weighted_share(&self.tree, node)),
            reservation: Vec::new(),
            usage: Vec::new(),
        };
        report.set_usage(quota, &self.tree, node, &state.ledger.totals);
        let topologies = quota
            .flavors()
            .filter(|(flavor, _)| self.flavors.get(*flavor).is_some_and(|spec| spec.topology_name.is_some()));
        report
            .unsupported_fields
            .extend(topologies.map(|(flavor, _)| format!("spec.topologyName of ResourceFlavor {flavor}")));
        let changed = !status::cluster_queue_matches(&state.observed, &report);
        changed.then(|| Decision::ClusterQueueStatus { cluster_queue: state.name.clone(), report })
    }

    pub(super) fn cohort_decision(&self, node: NodeId) -> Option<Decision> {
        let name = self.tree.name(node);
        let observed = self.cohort_statuses.get(name)?;
        let weighted_share = self.settings.fair_sharing.as_ref().map(|_| weighted_share(&self.tree, node));
        let report = CohortReport { weighted_share };
        let changed = status::cohort(&report) != *observed;
        changed.then(|| Decision::CohortStatus { cohort: name.to_owned(), report })
    }

    pub(super) fn local_queue_decision(&self, id: LocalQueueId) -> Option<Decision> {
        let state = self.local_queues.get(id)?;
        let rules = state.config.as_ref()?;
        let cluster_queue = rules.cluster_queue.and_then(|node| self.cluster_queues.get(node));
        let quota = cluster_queue.and_then(|state| state.config.as_ref());
        let active =
            cluster_queue.filter(|_| quota.is_some()).map(|state| self.cluster_queue_problem(state.node).is_none());
        let report = LocalQueueReport {
            generation: state.generation,
            active_condition: ActiveCondition::of_local_queue(rules.stop_policy, active),
            counts: state.counts,
            reservation: quota
                .map(|quota| local_queue_usage(quota, &self.tree, |fr| state.totals.reserved(fr)))
                .unwrap_or_default(),
            usage: quota
                .map(|quota| local_queue_usage(quota, &self.tree, |fr| state.totals.admitted(fr)))
                .unwrap_or_default(),
        };
        let changed = !status::local_queue_matches(&state.observed, &report);
        changed.then(|| Decision::LocalQueueStatus { local_queue: state.key.clone(), report })
    }
}

/// Returns the requeue backoff after the `count`th PodsReady timeout, in seconds. It doubles each
/// time (kueue v0.19.2 `pkg/workload/workload.go`, `UpdateRequeueState`).
fn backoff_seconds(rules: &Requeuing, count: u32) -> u32 {
    let doublings = count.saturating_sub(1);
    let seconds = 2_u32.checked_pow(doublings).and_then(|factor| rules.backoff_base_seconds.checked_mul(factor));
    seconds.unwrap_or(u32::MAX).min(rules.backoff_max_seconds)
}
