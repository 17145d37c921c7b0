//! Reasons that a workload is pending, as values and as messages.

use std::fmt;

use super::shortfall::Shortfall;
use sluice_api::quantity::Amount;
use sluice_plan::ObjectKey;

/// The reason of the condition QuotaReserved while it is False (kueue v0.19.2
/// `apis/kueue/v1beta2/workload_types.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PendingReason {
    /// Fits once other workloads release quota.
    WaitingForQuota,
    /// Requests exceed the total quota.
    ExceedsMaxQuota,
    /// No flavor matches its pods.
    NoMatchingFlavor,
    /// An object that it refers to is missing or invalid.
    Misconfigured,
    /// Its LocalQueue or ClusterQueue is stopped.
    Suspended,
    /// An admission gate annotation blocks it.
    AdmissionGated,
    /// It is requeued after a backoff.
    PendingEvaluation,
    /// It waits for evictions, or for the eviction of the slice that it replaces.
    WaitingForPreemptedWorkloads,
    /// Admissions are blocked until admitted workloads are ready.
    WaitingForPodsReady,
}

impl PendingReason {
    /// Returns the reason as written in the condition.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::WaitingForQuota => "WaitingForQuota",
            Self::ExceedsMaxQuota => "ExceedsMaxQuota",
            Self::NoMatchingFlavor => "NoMatchingFlavor",
            Self::Misconfigured => "Misconfigured",
            Self::Suspended => "Suspended",
            Self::AdmissionGated => "AdmissionGated",
            Self::PendingEvaluation => "PendingEvaluation",
            Self::WaitingForPreemptedWorkloads => "WaitingForPreemptedWorkloads",
            Self::WaitingForPodsReady => "WaitingForPodsReady",
        }
    }
}

/// The cause for which a workload is pending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PendingCause {
    /// No quota: the rejections of each flavor, for each pod set.
    Quota(Vec<FlavorRejection>),
    /// It would fit, but its ClusterQueue is StrictFIFO and another workload is ahead.
    BehindHead {
        /// Key of the workload at the head.
        head: ObjectKey,
        /// Name of the ClusterQueue.
        cluster_queue: String,
    },
    /// Quota is reserved for it. These evicted workloads have not released theirs.
    PreemptionInProgress {
        /// Quota that it needs in addition to what is unused.
        missing: Vec<MissingQuota>,
        /// Some of the evicted workloads, sorted by key.
        evicting: Vec<ObjectKey>,
        /// Number of further ones.
        more_evicting: usize,
    },
    /// It fits and is admitted in the next cycle.
    NextCycle,
    /// Admissions are blocked until this admitted workload is ready.
    WaitingForPodsReady(ObjectKey),
    /// `spec.queueName` is empty.
    NoQueueName,
    /// Its LocalQueue does not exist.
    LocalQueueMissing(String),
    /// Its LocalQueue is being deleted.
    LocalQueueTerminating(String),
    /// Its LocalQueue is stopped.
    LocalQueueStopped(String),
    /// Its LocalQueue names no ClusterQueue.
    NoClusterQueue(String),
    /// Its ClusterQueue does not exist.
    ClusterQueueMissing(String),
    /// Its ClusterQueue is being deleted.
    ClusterQueueTerminating(String),
    /// Its ClusterQueue is stopped.
    ClusterQueueStopped(String),
    /// Its ClusterQueue is inactive.
    ClusterQueueInactive {
        /// Name of the ClusterQueue.
        cluster_queue: String,
        /// Reason that it is inactive.
        problem: String,
    },
    /// The ClusterQueue does not select its namespace.
    NamespaceNotSelected {
        /// Name of the namespace.
        namespace: String,
        /// Name of the ClusterQueue.
        cluster_queue: String,
    },
    /// Admission gate annotations block it. Holds their names.
    AdmissionGated(String),
    /// It was evicted and is requeued at this time.
    Backoff(jiff::Timestamp),
    /// The slice that it replaces is being evicted.
    PredecessorEvicted(ObjectKey),
    /// Its requests are invalid or not supported.
    InvalidRequests(String),
    /// The API server rejected its admission.
    AdmissionRejected,
}

/// Quota that evicted workloads have not released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingQuota {
    /// Name of the first pod set that needs it.
    pub pod_set: String,
    /// Name of the flavor.
    pub flavor: String,
    /// Name of the resource.
    pub resource: String,
    /// Missing amount.
    pub amount: Amount,
}

/// The reason that a flavor or resource cannot be assigned to a pod set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FlavorRejection {
    /// Other workloads use or have reserved the quota that it needs.
    InsufficientUnused(Shortfall),
    /// Its requests exceed the total quota of the flavor.
    ExceedsMaximum(Shortfall),
    /// No flavor of the ClusterQueue covers the resource.
    ResourceUnavailable {
        /// Name of the pod set.
        pod_set: String,
        /// Name of the resource.
        resource: String,
    },
    /// The flavor does not match its pods.
    Mismatch {
        /// Name of the pod set.
        pod_set: String,
        /// Name of the flavor.
        flavor: String,
        /// The mismatch, as a message.
        problem: String,
    },
    /// Pods of the pod set already run in another flavor. This flavor might have enough quota.
    PinnedElsewhere {
        /// Name of the pod set.
        pod_set: String,
        /// Name of the flavor.
        flavor: String,
        /// Name of the flavor with the running pods.
        running_flavor: String,
    },
}

impl FlavorRejection {
    /// Returns the name of the affected pod set.
    pub fn pod_set(&self) -> &str {
        match self {
            Self::InsufficientUnused(shortfall) | Self::ExceedsMaximum(shortfall) => &shortfall.pod_set,
            Self::ResourceUnavailable { pod_set, .. }
            | Self::Mismatch { pod_set, .. }
            | Self::PinnedElsewhere { pod_set, .. } => pod_set,
        }
    }

    fn reason(&self) -> PendingReason {
        match self {
            Self::InsufficientUnused(_) => PendingReason::WaitingForQuota,
            Self::ExceedsMaximum(_) => PendingReason::ExceedsMaxQuota,
            Self::ResourceUnavailable { .. } | Self::Mismatch { .. } | Self::PinnedElsewhere { .. } => {
                PendingReason::NoMatchingFlavor
            }
        }
    }
}

impl PendingCause {
    /// Returns the reason of the condition (kueue v0.19.2
    /// `pkg/controller/core/workload_controller.go`, `getQueueBlocker`). For quota, this is the
    /// mildest reason of the pod set whose mildest reason is the most severe.
    pub fn reason(&self) -> PendingReason {
        match self {
            Self::Quota(obstacles) => quota_reason(obstacles),
            Self::BehindHead { .. } | Self::NextCycle => PendingReason::WaitingForQuota,
            Self::PreemptionInProgress { .. } => PendingReason::WaitingForPreemptedWorkloads,
            Self::WaitingForPodsReady(_) => PendingReason::WaitingForPodsReady,
            Self::LocalQueueTerminating(_)
            | Self::LocalQueueStopped(_)
            | Self::ClusterQueueTerminating(_)
            | Self::ClusterQueueStopped(_)
            | Self::ClusterQueueInactive { .. } => PendingReason::Suspended,
            Self::AdmissionGated(_) => PendingReason::AdmissionGated,
            Self::Backoff(_) => PendingReason::PendingEvaluation,
            Self::PredecessorEvicted(_) => PendingReason::WaitingForPreemptedWorkloads,
            Self::NoQueueName
            | Self::LocalQueueMissing(_)
            | Self::NoClusterQueue(_)
            | Self::ClusterQueueMissing(_)
            | Self::NamespaceNotSelected { .. }
            | Self::InvalidRequests(_)
            | Self::AdmissionRejected => PendingReason::Misconfigured,
        }
    }
}

impl PendingCause {
    /// Reports whether it can end without a change of configuration: by time or by other workloads.
    pub fn resolves_without_changes(&self) -> bool {
        match self {
            Self::Quota(_) => self.reason() == PendingReason::WaitingForQuota,
            Self::Backoff(_) | Self::PredecessorEvicted(_) => true,
            _ => self.is_queued(),
        }
    }

    /// Reports whether the workload is queued and only waits for quota.
    pub fn is_queued(&self) -> bool {
        matches!(
            self,
            Self::Quota(_)
                | Self::BehindHead { .. }
                | Self::PreemptionInProgress { .. }
                | Self::NextCycle
                | Self::WaitingForPodsReady(_)
        )
    }
}

fn quota_reason(obstacles: &[FlavorRejection]) -> PendingReason {
    let of_pod_set = |name: &str| {
        let reasons = obstacles.iter().filter(|obstacle| obstacle.pod_set() == name).map(FlavorRejection::reason);
        reasons.min().unwrap_or(PendingReason::WaitingForQuota)
    };
    let worst = obstacles.iter().map(|obstacle| of_pod_set(obstacle.pod_set())).max();
    worst.unwrap_or(PendingReason::WaitingForQuota)
}

/// Messages begin with those of Kueue, which tools match (kueue v0.19.2
/// `pkg/controller/core/workload_controller.go` and `pkg/workload/resources.go`).
impl fmt::Display for PendingCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(obstacles) => write_rejections(f, obstacles),
            Self::BehindHead { head, cluster_queue } => {
                write!(f, "ClusterQueue {cluster_queue} is StrictFIFO and {head}, ahead in the queue, does not fit yet")
            }
            Self::PreemptionInProgress { missing, evicting, more_evicting: more } => {
                write_missing(f, missing)?;
                write_evicting(f, evicting, *more)
            }
            Self::NextCycle => f.write_str("fits; will be admitted in the next scheduling cycle"),
            Self::WaitingForPodsReady(key) => {
                write!(f, "waiting for all admitted workloads to be in PodsReady condition: {key} is not")
            }
            Self::NoQueueName => f.write_str("no LocalQueue is named; set spec.queueName"),
            Self::LocalQueueMissing(name) => write!(f, "LocalQueue {name} doesn't exist"),
            Self::LocalQueueTerminating(name) => write!(f, "LocalQueue {name} is inactive: it is being deleted"),
            Self::LocalQueueStopped(name) => {
                write!(f, "LocalQueue {name} is inactive: it is stopped by its stopPolicy")
            }
            Self::NoClusterQueue(name) => write!(f, "LocalQueue {name} has no spec.clusterQueue"),
            Self::ClusterQueueMissing(name) => write!(f, "ClusterQueue {name} doesn't exist"),
            Self::ClusterQueueTerminating(name) => write!(f, "ClusterQueue {name} is inactive: it is being deleted"),
            Self::ClusterQueueStopped(name) => {
                write!(f, "ClusterQueue {name} is inactive: it is stopped by its stopPolicy")
            }
            Self::ClusterQueueInactive { cluster_queue, problem } => {
                write!(f, "ClusterQueue {cluster_queue} is inactive: {problem}")
            }
            Self::NamespaceNotSelected { namespace, cluster_queue } => {
                write!(
                    f,
                    "workload namespace doesn't match ClusterQueue selector: namespaceSelector of ClusterQueue {cluster_queue} \
                     does not select namespace {namespace}"
                )
            }
            Self::AdmissionGated(by) => write!(f, "Admission is gated by: {by}"),
            Self::Backoff(until) => write!(f, "evicted; will be requeued at {until}"),
            Self::PredecessorEvicted(key) => write!(f, "waiting for {key}, the slice it replaces, to be evicted"),
            Self::InvalidRequests(problem) => f.write_str(problem),
            Self::AdmissionRejected => {
                f.write_str("the API server rejected the admission; it is retried when the workload changes")
            }
        }
    }
}

/// Begins as Kueue's message about a preemption (kueue v0.19.2 `pkg/scheduler/scheduler.go`, `schedule`).
fn write_missing(f: &mut fmt::Formatter<'_>, missing: &[MissingQuota]) -> fmt::Result {
    let mut pod_set = None;
    for MissingQuota { pod_set: of, flavor, resource, amount } in missing {
        match pod_set {
            Some(last) if last == of => f.write_str("; ")?,
            Some(_) => write!(f, ". Pod set {of}: ")?,
            None => write!(f, "couldn't assign flavors to pod set {of}: ")?,
        }
        pod_set = Some(of);
        let more = amount.display(resource);
        write!(f, "insufficient unused quota for {resource} in flavor {flavor}, {more} more needed")?;
    }
    if missing.is_empty() { Ok(()) } else { f.write_str(". ") }
}

fn write_evicting(f: &mut fmt::Formatter<'_>, evicting: &[ObjectKey], more: usize) -> fmt::Result {
    write!(f, "Pending the preemption of {} workload(s), whose quota is reserved for it: ", evicting.len() + more)?;
    for (index, key) in evicting.iter().enumerate() {
        write!(f, "{}{key}", if index == 0 { "" } else { ", " })?;
    }
    if more > 0 {
        write!(f, " and {more} more")?;
    }
    Ok(())
}

/// Writes one sentence for each pod set, with one clause for each flavor and resource.
fn write_rejections(f: &mut fmt::Formatter<'_>, obstacles: &[FlavorRejection]) -> fmt::Result {
    let mut pod_set = None;
    for obstacle in obstacles {
        match pod_set {
            Some(last) if last == obstacle.pod_set() => f.write_str("; ")?,
            Some(_) => write!(f, ". Pod set {}: ", obstacle.pod_set())?,
            None => write!(f, "couldn't assign flavors to pod set {}: ", obstacle.pod_set())?,
        }
        pod_set = Some(obstacle.pod_set());
        write!(f, "{obstacle}")?;
    }
    Ok(())
}

impl fmt::Display for FlavorRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InsufficientUnused(shortfall) => shortfall.write_insufficient(f),
            Self::ExceedsMaximum(shortfall) => shortfall.write_exceeds(f),
            Self::ResourceUnavailable { resource, .. } => write!(f, "resource {resource} unavailable in ClusterQueue"),
            Self::Mismatch { flavor, problem, .. } => write!(f, "flavor {flavor} does not match: {problem}"),
            Self::PinnedElsewhere { flavor, running_flavor: runs_in, .. } => {
                write!(f, "flavor {flavor} does not match: pods of this pod set already run in flavor {runs_in}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_api::quantity::Amount;

    #[test]
    fn shortfall_message_names_missing_amount_holders_and_remedy() {
        let why = PendingCause::Quota(vec![FlavorRejection::InsufficientUnused(Shortfall::sample())]);
        assert_eq!(why.reason(), PendingReason::WaitingForQuota);
        assert_eq!(
            why.to_string(),
            "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu in flavor a100, 4 more needed \
             (requests 8, 12 of 16 used: team/llm holds 7, team/embed holds 3, and 2 more; fits once 4 is released or nominalQuota is 20)"
        );
    }

    #[test]
    fn message_of_request_above_total_quota_names_required_nominal_quota() {
        let memory = Shortfall {
            resource: "memory".into(),
            requested: Amount::new(3 << 30),
            earlier_pod_sets: Amount::new(1 << 30),
            nominal: Amount::new(2 << 30),
            potential_available: Amount::new(2 << 30),
            missing: Amount::new(2 << 30),
            missing_now: Amount::new(2 << 30),
            ..Shortfall::sample()
        };
        let why = PendingCause::Quota(vec![FlavorRejection::ExceedsMaximum(memory)]);
        assert_eq!(why.reason(), PendingReason::ExceedsMaxQuota);
        assert_eq!(
            why.to_string(),
            "couldn't assign flavors to pod set worker: insufficient quota for memory in flavor a100, previously considered \
             podsets requests (1Gi) + current podset request (3Gi) > maximum capacity (2Gi) (fits only once nominalQuota is 4Gi)"
        );
    }

    #[test]
    fn reason_is_the_mildest_of_the_pod_set_with_the_most_severe_one() {
        let short = FlavorRejection::InsufficientUnused(Shortfall::sample());
        let exceeds = FlavorRejection::ExceedsMaximum(Shortfall::sample());
        let unsuitable = |pod_set: &str| FlavorRejection::Mismatch {
            pod_set: pod_set.into(),
            flavor: "spot".into(),
            problem: "a taint".into(),
        };
        let reason = |obstacles: Vec<FlavorRejection>| PendingCause::Quota(obstacles).reason();
        assert_eq!(reason(vec![unsuitable("worker"), short.clone()]), PendingReason::WaitingForQuota);
        assert_eq!(reason(vec![unsuitable("worker"), exceeds.clone()]), PendingReason::ExceedsMaxQuota);
        assert_eq!(reason(vec![unsuitable("head"), short]), PendingReason::NoMatchingFlavor);
    }
}
