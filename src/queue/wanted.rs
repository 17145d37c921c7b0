//! Decisions for each object: the difference between the desired and the observed status.

use super::engine::{Engine, LocalQueueId, WorkloadId};
use super::entry::{Entry, Stage};
use super::explain::Holders;
use super::report::{Activity, ClusterQueueReport, CohortReport, LocalQueueReport, local_queue_usage, weighted_share};
use super::settings::{Requeuing, WaitForPodsReady};
use super::slot::{Slot, Standing};
use super::status;
use super::tree::NodeId;
use super::{DeactivationCause, Effect, EvictReason, PodsReadyTimeout, Subject, Successor};
use sluice_api::kueue::{Admission, StopPolicy};

impl Engine {
    /// Returns the pending decision for an object; `None` if its observed status is as desired.
    pub fn effect(&self, subject: &Subject) -> Option<Effect> {
        match subject {
            Subject::Workload(key) => {
                let id = self.workloads.id(key)?;
                self.workload_effect(id, self.workloads.get(id)?, &mut Holders::default())
            }
            Subject::ClusterQueue(name) => self.cluster_queue_effect(self.tree.known_cluster_queue(name)?),
            Subject::Cohort(name) => self.cohort_effect(self.tree.known_cohort(name)?),
            Subject::LocalQueue(key) => self.local_queue_effect(self.local_queues.id(key)?),
        }
    }

    /// Returns the pending decision for a workload, according to its queue state.
    pub(super) fn workload_effect(&self, id: WorkloadId, slot: &Slot, holders: &mut Holders) -> Option<Effect> {
        let entry = &slot.entry;
        let workload = || entry.key.clone();
        match &slot.standing {
            Standing::Out => {
                let stop = !entry.active && !entry.evicted && !entry.deleting && entry.stage == Stage::Unreserved;
                stop.then(|| Effect::Evict { workload: workload(), reason: EvictReason::Deactivated })
            }
            Standing::Superseded(by) => {
                let by = &self.workloads.get(*by)?.entry;
                let is_over = matches!(by.stage, Stage::Reserved(_)) && !by.replaced_goes_on;
                is_over.then(|| Effect::FinishReplaced {
                    workload: workload(),
                    by: Successor { workload: by.key.clone(), uid: by.uid.to_string(), job_uid: by.job_uid.clone() },
                })
            }
            Standing::Holds(admission) if slot.assumed.is_some() => {
                let replaces = self.replaced(slot).first().map(|replaced| replaced.entry.key.clone());
                Some(Effect::Admit { workload: workload(), admission: admission.as_ref().clone(), replaces })
            }
            Standing::Holds(admission) => self.holder_effect(slot, admission),
            Standing::InLine(_) | Standing::Held(..) => {
                let mut why = self.waiting(id, slot)?;
                if why.is_in_line() && !slot.refresh && entry.says_reason(&why) {
                    return None;
                }
                self.name_holders(&mut why, slot, holders);
                (!entry.says(&why)).then(|| Effect::Pending { workload: workload(), why })
            }
        }
    }

    /// Returns the pending decision for a workload with quota, the most urgent first.
    fn holder_effect(&self, slot: &Slot, admission: &Admission) -> Option<Effect> {
        let entry = &slot.entry;
        let workload = || entry.key.clone();
        if entry.evicted {
            return None;
        }
        if let Some(reason) = self.must_stop(slot, &admission.cluster_queue) {
            return Some(Effect::Evict { workload: workload(), reason });
        }
        if let Some(effect) = self.out_of_time(entry) {
            return Some(effect);
        }
        if let Some((part, preemption)) = slot.gives_back.clone() {
            return Some(Effect::GiveBack { workload: workload(), part, preemption });
        }
        if let Some(admission) = entry.shrunk(admission) {
            return Some(Effect::ShrinkAdmission { workload: workload(), admission });
        }
        if entry.gives_back.is_some_and(|part| entry.parts_up_to(part).next().is_none()) {
            return Some(Effect::GivenBack { workload: workload() });
        }
        let node = self.tree.known_cluster_queue(&admission.cluster_queue);
        let active = node.is_none_or(|node| self.cluster_queue_problem(node).is_none());
        (!entry.admitted && active && !entry.deleting).then(|| Effect::Admit {
            workload: workload(),
            admission: admission.clone(),
            replaces: None,
        })
    }

    /// Returns the reason to evict a workload; `None` if it may keep its quota.
    fn must_stop(&self, slot: &Slot, cluster_queue: &str) -> Option<EvictReason> {
        let is_drained = |stop: StopPolicy| stop == StopPolicy::HoldAndDrain;
        let local_queue = slot.local_queue.and_then(|id| self.local_queues.get(id)?.rules.as_ref());
        let quota = self.cluster_queues.named(cluster_queue).and_then(|state| state.quota.as_ref());
        if !slot.entry.active {
            Some(EvictReason::Deactivated)
        } else if quota.is_some_and(|quota| is_drained(quota.stop)) {
            Some(EvictReason::ClusterQueueStopped)
        } else if local_queue.is_some_and(|rules| is_drained(rules.stop)) {
            Some(EvictReason::LocalQueueStopped)
        } else {
            slot.preempted.clone().map(EvictReason::Preempted)
        }
    }

    /// Returns the decision for a workload that exceeded its maximum execution time or the
    /// PodsReady timeout; `None` if it exceeded neither.
    fn out_of_time(&self, entry: &Entry) -> Option<Effect> {
        let workload = || entry.key.clone();
        if entry.deactivation_target {
            return Some(Effect::SetInactive { workload: workload() });
        }
        if entry.done_by().is_some_and(|at| at <= self.now) {
            return Some(Effect::Deactivate {
                workload: workload(),
                cause: DeactivationCause::MaximumExecutionTimeExceeded,
            });
        }
        let rules = self.settings.wait_for_pods_ready.as_ref()?;
        entry.ready_by(rules).filter(|at| *at <= self.now)?;
        let count = entry.requeue_count.saturating_add(1);
        if rules.requeuing.backoff_limit_count.is_some_and(|limit| count > limit) {
            return Some(Effect::Deactivate { workload: workload(), cause: DeactivationCause::RequeuingLimitExceeded });
        }
        Some(Effect::Evict {
            workload: workload(),
            reason: EvictReason::PodsReadyTimeout(Box::new(self.timeout(entry, rules, count))),
        })
    }

    fn timeout(&self, entry: &Entry, rules: &WaitForPodsReady, count: u32) -> PodsReadyTimeout {
        let recovering = entry.readiness.is_some_and(|readiness| readiness.recovering);
        let after = if recovering { rules.recovery_timeout.unwrap_or_default() } else { rules.timeout };
        let wait = jiff::SignedDuration::from_secs(backoff_seconds(&rules.requeuing, count).into());
        PodsReadyTimeout {
            after_seconds: after.as_secs(),
            recovering,
            count,
            requeue_at: self.now.saturating_add(wait).unwrap_or(self.now),
        }
    }

    /// Returns the reason and the message if a ClusterQueue cannot admit workloads; `None` if it
    /// can.
    pub(super) fn cluster_queue_problem(&self, node: NodeId) -> Option<(&'static str, String)> {
        let state = self.cluster_queues.get(node)?;
        state.quota.as_ref()?.inactive(&self.flavors, state.cohort_cycle.clone())
    }

    pub(super) fn cluster_queue_effect(&self, node: NodeId) -> Option<Effect> {
        let state = self.cluster_queues.get(node)?;
        let quota = state.quota.as_ref()?;
        let mut report = ClusterQueueReport {
            generation: state.generation,
            activity: Activity::of_cluster_queue(self.cluster_queue_problem(node).as_ref()),
            unsupported: quota.unsupported.clone(),
            counts: state.counts,
            weighted_share: self.settings.fair_sharing.as_ref().map(|_| weighted_share(&self.tree, node)),
            reservation: Vec::new(),
            usage: Vec::new(),
        };
        report.usage_of(quota, &self.tree, node, &state.ledger.sums);
        let topologies = quota
            .flavors()
            .filter(|(flavor, _)| self.flavors.get(*flavor).is_some_and(|spec| spec.topology_name.is_some()));
        report
            .unsupported
            .extend(topologies.map(|(flavor, _)| format!("spec.topologyName of ResourceFlavor {flavor}")));
        let changed = !status::cluster_queue_says(&state.observed, &report);
        changed.then(|| Effect::ClusterQueueStatus { cluster_queue: state.name.clone(), report })
    }

    pub(super) fn cohort_effect(&self, node: NodeId) -> Option<Effect> {
        let name = self.tree.name(node);
        let observed = self.cohorts.get(name)?;
        let weighted_share = self.settings.fair_sharing.as_ref().map(|_| weighted_share(&self.tree, node));
        let report = CohortReport { weighted_share };
        let changed = status::cohort(&report) != *observed;
        changed.then(|| Effect::CohortStatus { cohort: name.to_owned(), report })
    }

    pub(super) fn local_queue_effect(&self, id: LocalQueueId) -> Option<Effect> {
        let state = self.local_queues.get(id)?;
        let rules = state.rules.as_ref()?;
        let cluster_queue = rules.cluster_queue.and_then(|node| self.cluster_queues.get(node));
        let quota = cluster_queue.and_then(|state| state.quota.as_ref());
        let active =
            cluster_queue.filter(|_| quota.is_some()).map(|state| self.cluster_queue_problem(state.node).is_none());
        let report = LocalQueueReport {
            generation: state.generation,
            activity: Activity::of_local_queue(rules.stop, active),
            counts: state.counts,
            reservation: quota
                .map(|quota| local_queue_usage(quota, &self.tree, |fr| state.sums.reserved(fr)))
                .unwrap_or_default(),
            usage: quota
                .map(|quota| local_queue_usage(quota, &self.tree, |fr| state.sums.admitted(fr)))
                .unwrap_or_default(),
        };
        let changed = !status::local_queue_says(&state.observed, &report);
        changed.then(|| Effect::LocalQueueStatus { local_queue: state.key.clone(), report })
    }
}

/// Returns the requeue backoff after the `count`th PodsReady timeout, in seconds. It doubles each
/// time (kueue v0.19.2 `pkg/workload/workload.go`, `UpdateRequeueState`).
fn backoff_seconds(rules: &Requeuing, count: u32) -> u32 {
    let doublings = count.saturating_sub(1);
    let seconds = 2_u32.checked_pow(doublings).and_then(|factor| rules.backoff_base_seconds.checked_mul(factor));
    seconds.unwrap_or(u32::MAX).min(rules.backoff_max_seconds)
}
