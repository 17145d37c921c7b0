//! The one door for writes under way: everything that follows from a write between its planning and
//! the arrival of its effect in a watch.
//!
//! The engine reports what happens to a write and acts on what is returned:
//!
//! | the engine calls | when |
//! |---|---|
//! | [`begin`](WriteTracker::begin) | a planner returned a plan |
//! | [`on_response`](WriteTracker::on_response) | the API server responded, or did not in time |
//! | [`on_result`](WriteTracker::on_result) | a write was accepted, rejected, or lost its response |
//! | [`on_observed`](WriteTracker::on_observed) | an object changed, by a watch or by a result |
//! | [`expire`](WriteTracker::expire) | time passed |
//!
//! Each rule is one submodule, and none of them knows another:
//!
//! | rule | blocks | until |
//! |---|---|---|
//! | [`in_flight`] | writes to the target and those that depend on it | its result; of a deletion, its watch event |
//! | [`unacknowledged`] | writes that depend on a target whose last write lost its response | a newer version, or expiry |
//! | [`slice_expectations`] | the next slice of a job | the last one settles |
//! | [`pod_expectations`] | release of the quota of a pod that may exist | its result or version, or expiry |
//! | [`pod_write_failures`] | the retry of a rejected pod write | its backoff ends |
//! | [`planner_backoffs`] | the planner of any other failed write | its backoff ends, after a conflict also a newer version |
//! | [`deferred_events`] | Events about writes | all of them succeed |
//! | [`write_budget`] | writes that only report | the API server accepted enough decisions, or has none to process and responds fast |

mod deferred_events;
mod in_flight;
mod planner_backoffs;
mod pod_expectations;
mod pod_write_failures;
#[cfg(test)]
mod properties;
mod slice_expectations;
mod unacknowledged;
mod write_budget;

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use super::cluster_state::{Change, ClusterState, Object, PodOwnerId};
use super::planner_key::PlannerKey;
use super::{ApiServerLoad, WriteError, WriteOutcome};
use deferred_events::DeferredEvents;
use in_flight::InFlight;
pub use in_flight::WriteId;
use planner_backoffs::PlannerBackoffs;
use pod_expectations::PodExpectations;
use pod_write_failures::PodWriteFailures;
use slice_expectations::SliceExpectations;
use sluice_plan::{EventRecord, ObjectKey, Write, WriteOp};
use sluice_raycluster::ReplicaFailure;
use unacknowledged::UnacknowledgedWrites;
use write_budget::{Admission, WriteBudget};

/// After this time, the effect of an unanswered write has been observed or will never occur: the
/// API server times out a request after a minute (`kube-apiserver --request-timeout`).
const UNANSWERED_WRITE_TIMEOUT: SignedDuration = SignedDuration::from_secs(60);
/// Consecutive write conflicts of one planner that emit no Event.
const SILENT_CONFLICTS: u32 = 5;

/// The writes under way, and what they imply until their effect is observed.
#[derive(Debug, Clone, Default)]
pub(super) struct WriteTracker {
    in_flight: InFlight<PlannerKey>,
    unacknowledged: UnacknowledgedWrites<PlannerKey>,
    slice_expectations: SliceExpectations,
    pod_expectations: PodExpectations,
    pod_write_failures: PodWriteFailures,
    planner_backoffs: PlannerBackoffs<PlannerKey>,
    deferred_events: DeferredEvents,
    budget: WriteBudget<PlannerKey>,
}

/// The writes and Events of a plan that can be sent now.
#[derive(Debug, Default)]
pub(super) struct Begun {
    /// Writes to send. The planner of the others runs again once they are unblocked.
    pub(super) sent: Vec<(WriteId, Write)>,
    /// Events that no write of the plan delays.
    pub(super) events: Vec<EventRecord>,
    /// First time at which a write of the plan that was left out can be sent; `None` if no write
    /// waits for a time.
    pub(super) retry_at: Option<Timestamp>,
    /// The planner runs again, because the failures that it reports have changed.
    pub(super) changes_failures: bool,
}

/// The planners that run again because a write settled, was observed or expired.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Released {
    /// The planners themselves.
    pub(super) planners: BTreeSet<PlannerKey>,
    /// Owners of pods that count differently, whose dependents run again.
    pub(super) pod_owners: BTreeSet<PodOwnerId>,
}

/// Consequences of the result of a write.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// The planners that run again, each after its backoff.
    pub(super) released: Released,
    /// Events that waited for this write.
    pub(super) events: Vec<EventRecord>,
    /// The planners that report the failure of the write on their object.
    pub(super) reporters: BTreeSet<PlannerKey>,
}

impl WriteTracker {
    /// Lets no report wait for what happens next.
    pub(super) fn report_without_delay(&mut self) {
        self.budget.report_without_delay();
    }

    /// Begins the writes of a plan, in order. A write is left out while it is in backoff, blocked by
    /// a write to its target or to an object that it depends on, or gives way to other writes. Behind
    /// a blocked write, the next ones to the same object are blocked too: they keep their order.
    pub(super) fn begin(
        &mut self,
        planner: &PlannerKey,
        writes: Vec<Write>,
        events: Vec<EventRecord>,
        observed: &ClusterState,
        now: Timestamp,
    ) -> Begun {
        let changes_failures = self.pod_write_failures.retain_planned(planner, &writes);
        let mut begun = Begun { changes_failures, ..Begun::default() };
        let is_only_events = writes.is_empty();
        let is_granted = self.budget.take_grant(planner, &writes);
        let mut blocked = BTreeSet::new();
        for write in writes {
            if blocked.contains(&write.target) {
                continue;
            }
            let target = write.target.clone();
            let retry_at = self.pod_write_failures.retry_at(planner, &write.target).filter(|at| *at > now);
            let admission = match retry_at {
                Some(at) => Admission::NotBefore(at),
                None => self.budget.admit(planner, &write, is_granted, now),
            };
            match admission {
                Admission::Admitted => match self.begin_write(planner, write, observed, now) {
                    Some(sent) => begun.sent.push(sent),
                    None => {
                        blocked.insert(target);
                    }
                },
                Admission::Waiting => {}
                Admission::NotBefore(at) => {
                    begun.retry_at = Some(begun.retry_at.map_or(at, |first| first.min(at)));
                }
            }
        }
        begun.events = self.deferred_events.defer(&begun.sent, events, is_only_events);
        begun
    }

    /// Begins one write; `None` if it is blocked. The planner is then released once it is not.
    fn begin_write(
        &mut self,
        planner: &PlannerKey,
        write: Write,
        observed: &ClusterState,
        now: Timestamp,
    ) -> Option<(WriteId, Write)> {
        let write = self.slice_expectations.serialize_after_last(write);
        if self.unacknowledged.is_blocked(&write, planner) {
            return None;
        }
        let id = self.in_flight.begin(&write, planner)?;
        self.budget.begin(planner, id, &write, now);
        self.pod_expectations.record(id, &write, target_pod(&write, observed));
        self.slice_expectations.record(&write);
        Some((id, write))
    }

    /// Records the load of the API server when it responded to a write.
    pub(super) fn on_response(&mut self, load: ApiServerLoad) {
        self.budget.set_load(load);
    }

    /// Records the result of a write. `observed` does not contain the result yet.
    pub(super) fn on_result(
        &mut self,
        id: WriteId,
        write: &Write,
        result: &Result<WriteOutcome, WriteError>,
        observed: &ClusterState,
        now: Timestamp,
    ) -> Settled {
        let gone = match result {
            Ok(outcome) => matches!(outcome, WriteOutcome::Deleted),
            Err(error) => error.target_not_found,
        };
        let is_answered = !matches!(result, Err(error) if error.code.is_none());
        let planners = self.in_flight.on_result(id, write, gone);
        let mut settled = Settled::default();
        if result.is_ok() || gone {
            settled.released.planners.extend(self.unacknowledged.on_accepted(write, gone));
        } else if !is_answered && (observed.is_unchanged_since_plan(write) || creates_unobserved_slice(write, observed))
        {
            self.unacknowledged.record(write, now);
        }
        settled.released.pod_owners.extend(self.pod_expectations.on_result(id, is_answered, now));
        match result {
            Ok(_) => {
                for planner in &planners {
                    self.pod_write_failures.on_succeeded(planner, &write.target);
                    self.planner_backoffs.reset(planner);
                }
                settled.events = self.deferred_events.on_succeeded(id);
            }
            Err(error) => {
                self.deferred_events.on_failed(id);
                settled.reporters = planners.iter().filter(|planner| self.reports(planner, error)).cloned().collect();
                for planner in &planners {
                    self.back_off(planner, write, error, observed, now);
                }
            }
        }
        settled.released.planners.extend(planners);
        settled.released.planners.extend(self.budget.on_result(id, result.is_ok(), now));
        self.drop_settled_slices();
        settled
    }

    /// Reports whether a failed write gets an Event. Conflicts are routine; if they persist, another
    /// object holds the name.
    fn reports(&self, planner: &PlannerKey, error: &WriteError) -> bool {
        !error.is_conflict() || self.planner_backoffs.failures(planner) >= SILENT_CONFLICTS
    }

    /// Starts the backoff after a failed write. If the API server rejects the creation or deletion
    /// of a pod, only that pod backs off.
    fn back_off(
        &mut self,
        planner: &PlannerKey,
        write: &Write,
        error: &WriteError,
        observed: &ClusterState,
        now: Timestamp,
    ) {
        let failure = pod_write_failures::replica_failure(write, error, target_pod(write, observed));
        match failure.filter(|_| planner.ray_cluster().is_some()) {
            Some(failure) => self.pod_write_failures.record(planner.clone(), write.target.clone(), failure, now),
            None if is_edit_conflict(write, error) => {
                let is_observed = !observed.is_unchanged_since_plan(write);
                self.planner_backoffs.record_conflict(planner.clone(), &write.target, is_observed, now);
            }
            None => self.planner_backoffs.record_failure(planner.clone(), error.retry_after, now),
        }
    }

    /// Records a change of an object.
    pub(super) fn on_observed(&mut self, change: &Change, now: Timestamp) -> Released {
        let mut released = Released::default();
        let (before, after) = (change.before.as_ref().map(Object::meta), change.after.as_ref().map(Object::meta));
        // A watch that was interrupted may show another object of the same name without a deletion.
        let is_replaced = matches!((before, after), (Some(before), Some(after)) if before.uid != after.uid);
        let is_deleted = after.is_none() || is_replaced;
        let is_terminating = is_deleted || after.is_some_and(|meta| meta.deletion_timestamp.is_some());
        if let Some(target) = change.versions().next().map(Object::reference) {
            self.planner_backoffs.on_observed(&target, now);
            released.planners.extend(self.in_flight.on_observed(&target, is_deleted));
            released.planners.extend(self.unacknowledged.on_observed(&target, is_terminating));
        }
        match (&change.before, &change.after) {
            (_, Some(object @ Object::Pod(pod))) => self.pod_expectations.on_observed(&object.reference(), pod),
            (Some(object @ Object::Pod(_)), None) => self.pod_expectations.on_deleted(&object.reference()),
            (_, Some(Object::Workload(slice))) => self.slice_expectations.on_observed(slice),
            (Some(Object::RayCluster(gone)), None) => {
                self.pod_write_failures.forget(&PlannerKey::RayCluster(ObjectKey::of(gone.as_ref())));
            }
            _ => {}
        }
        released
    }

    /// Drops all that has expired at `now`.
    pub(super) fn expire(&mut self, now: Timestamp) -> Released {
        let mut planners = self.unacknowledged.expire(now);
        planners.extend(self.pod_write_failures.expire(now));
        planners.extend(self.planner_backoffs.expire(now));
        planners.extend(self.budget.expire(now));
        self.drop_settled_slices();
        Released { planners, pod_owners: self.pod_expectations.expire(now) }
    }

    /// Returns the time at which [`expire`](Self::expire) drops the next entry; `None` if none of
    /// the entries expires.
    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        let deadlines = [
            self.unacknowledged.next_deadline(),
            self.pod_expectations.next_deadline(),
            self.pod_write_failures.next_deadline(),
            self.planner_backoffs.next_deadline(),
            self.budget.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Reports whether no write awaits its result.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Returns the time before which a planner must not run; `None` if it may run at any time.
    pub(super) fn backoff_end(&self, planner: &PlannerKey) -> Option<Timestamp> {
        self.planner_backoffs.end(planner)
    }

    /// Returns the number of consecutive failed writes of a planner.
    pub(super) fn failures(&self, planner: &PlannerKey) -> u32 {
        self.planner_backoffs.failures(planner)
    }

    /// Returns the failure that a cluster reports in its status; `None` if all its pods were
    /// accepted.
    pub(super) fn reported_failure(&self, cluster: &ObjectKey) -> Option<&ReplicaFailure> {
        self.pod_write_failures.reported_failure(&PlannerKey::RayCluster(cluster.clone()))
    }

    /// Returns the pods of the member with this uid that may exist without having been observed,
    /// gated ones included.
    pub(super) fn expected_pods(&self, member: &str) -> Vec<&Pod> {
        self.pod_expectations.expected(member)
    }

    /// Returns those of [`expected_pods`](Self::expected_pods) that may run.
    pub(super) fn expected_running_pods(&self, member: &str) -> Vec<&Pod> {
        self.pod_expectations.expected_running(member)
    }

    /// Returns the names of the pods of the member with this uid whose last ungating got no response.
    pub(super) fn unanswered_ungatings(&self, member: &str) -> BTreeSet<&str> {
        self.pod_expectations.unanswered_ungatings(member)
    }

    /// Drops the slices that no longer block the next one of their job: their creation is answered,
    /// or its outcome is known.
    fn drop_settled_slices(&mut self) {
        let Self { slice_expectations, in_flight, unacknowledged, .. } = self;
        slice_expectations.retain(|slice| in_flight.contains(slice) || unacknowledged.contains(slice));
    }
}

/// Reports whether a patch failed because its object was changed since it was planned.
fn is_edit_conflict(write: &Write, error: &WriteError) -> bool {
    error.code == Some(409) && matches!(write.op, WriteOp::Patch(_) | WriteOp::PatchStatus(_))
}

/// Returns the observed pod that a write targets; `None` if it was not observed, or is of another
/// kind.
fn target_pod<'a>(write: &Write, observed: &'a ClusterState) -> Option<&'a Pod> {
    let pods = (write.target.kind == "Pod").then_some(&observed.pods)?;
    pods.get(&target_key(write)).map(AsRef::as_ref)
}

/// Reports whether a write creates a slice that has not been observed yet.
fn creates_unobserved_slice(write: &Write, observed: &ClusterState) -> bool {
    slice_expectations::job_of_create(write).is_some() && observed.workloads.get(&target_key(write)).is_none()
}

fn target_key(write: &Write) -> ObjectKey {
    ObjectKey::new(write.target.namespace.clone().unwrap_or_default(), write.target.name.clone())
}

/// Reports whether a write changes metadata or spec of its target.
fn changes_more_than_status(write: &Write) -> bool {
    !matches!(write.op, WriteOp::PatchStatus(_))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use sluice_plan::ObjectRef;

    fn target(kind: &str) -> ObjectRef {
        ObjectRef {
            api_version: "v1".into(),
            kind: kind.into(),
            plural: kind.to_lowercase(),
            namespace: Some("ns".into()),
            name: "a".into(),
        }
    }

    #[test]
    fn write_behind_a_blocked_one_to_the_same_object_is_blocked_too() {
        // Given a write to a slice in flight,
        let (mut tracker, observed, now) = (WriteTracker::default(), ClusterState::default(), Timestamp::UNIX_EPOCH);
        let patch = |kind| Write::new(target(kind), WriteOp::Patch(json!({})));
        let slice = PlannerKey::Workload(ObjectKey::new("ns", "a"));
        tracker.begin(&slice, vec![patch("Workload")], Vec::new(), &observed, now);

        // when a plan opens a gate that depends on the slice, and then writes the status of the same cluster,
        let gate = patch("RayCluster").blocked_while_in_flight([target("Workload")]);
        let status = Write::new(target("RayCluster"), WriteOp::PatchStatus(json!({})));
        let cluster = PlannerKey::RayCluster(ObjectKey::new("ns", "a"));
        let begun = tracker.begin(&cluster, vec![gate, status, patch("Service")], Vec::new(), &observed, now);

        // then both wait, and a write to another object doesn't.
        let sent: Vec<_> = begun.sent.iter().map(|(_, write)| write.target.kind.as_str()).collect();
        assert_eq!(sent, ["Service"]);
    }
}
