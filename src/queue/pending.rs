//! Reasons that a workload is pending, as values and as messages.

use std::fmt;

use super::shortfall::Shortfall;
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
pub enum Waiting {
    /// No quota: the rejections of each flavor, for each pod set.
    Quota(Vec<Obstacle>),
    /// It would fit, but its ClusterQueue is StrictFIFO and another workload is ahead.
    Behind {
        /// Key of the workload at the head.
        head: ObjectKey,
        /// Name of the ClusterQueue.
        cluster_queue: String,
    },
    /// Quota is reserved for it. These evicted workloads have not released theirs.
    Room {
        /// Some of the evicted workloads, sorted by key.
        going: Vec<ObjectKey>,
        /// Number of further ones.
        more: usize,
    },
    /// It fits and is admitted in the next cycle.
    Turn,
    /// Admissions are blocked until this admitted workload is ready.
    Unready(ObjectKey),
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
    Gated(String),
    /// It was evicted and is requeued at this time.
    Backoff(jiff::Timestamp),
    /// The slice that it replaces is being evicted.
    PredecessorEvicted(ObjectKey),
    /// Its requests are invalid or not supported.
    BadRequest(String),
    /// The API server rejected its admission.
    Refused,
}

/// The reason that a flavor or resource cannot be assigned to a pod set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// Other workloads use or have reserved the quota that it needs.
    Short(Shortfall),
    /// Its requests exceed the total quota of the flavor.
    Exceeds(Shortfall),
    /// No flavor of the ClusterQueue covers the resource.
    NotOffered {
        /// Name of the pod set.
        pod_set: String,
        /// Name of the resource.
        resource: String,
    },
    /// The flavor does not match its pods.
    Unsuitable {
        /// Name of the pod set.
        pod_set: String,
        /// Name of the flavor.
        flavor: String,
        /// The mismatch, as a message.
        problem: String,
    },
    /// Pods of the pod set already run in another flavor. This flavor might have enough quota.
    Pinned {
        /// Name of the pod set.
        pod_set: String,
        /// Name of the flavor.
        flavor: String,
        /// Name of the flavor with the running pods.
        runs_in: String,
    },
}

impl Obstacle {
    /// Returns the name of the affected pod set.
    pub fn pod_set(&self) -> &str {
        match self {
            Self::Short(shortfall) | Self::Exceeds(shortfall) => &shortfall.pod_set,
            Self::NotOffered { pod_set, .. } | Self::Unsuitable { pod_set, .. } | Self::Pinned { pod_set, .. } => {
                pod_set
            }
        }
    }

    fn reason(&self) -> PendingReason {
        match self {
            Self::Short(_) => PendingReason::WaitingForQuota,
            Self::Exceeds(_) => PendingReason::ExceedsMaxQuota,
            Self::NotOffered { .. } | Self::Unsuitable { .. } | Self::Pinned { .. } => PendingReason::NoMatchingFlavor,
        }
    }
}

impl Waiting {
    /// Returns the reason of the condition. For quota, this is the mildest reason of the pod set
    /// whose mildest reason is the most severe.
    pub fn reason(&self) -> PendingReason {
        match self {
            Self::Quota(obstacles) => quota_reason(obstacles),
            Self::Behind { .. } | Self::Turn => PendingReason::WaitingForQuota,
            Self::Room { .. } => PendingReason::WaitingForPreemptedWorkloads,
            Self::Unready(_) => PendingReason::WaitingForPodsReady,
            Self::LocalQueueStopped(_) | Self::ClusterQueueStopped(_) => PendingReason::Suspended,
            Self::Gated(_) => PendingReason::AdmissionGated,
            Self::Backoff(_) => PendingReason::PendingEvaluation,
            Self::PredecessorEvicted(_) => PendingReason::WaitingForPreemptedWorkloads,
            Self::NoQueueName
            | Self::LocalQueueMissing(_)
            | Self::LocalQueueTerminating(_)
            | Self::NoClusterQueue(_)
            | Self::ClusterQueueMissing(_)
            | Self::ClusterQueueTerminating(_)
            | Self::ClusterQueueInactive { .. }
            | Self::NamespaceNotSelected { .. }
            | Self::BadRequest(_)
            | Self::Refused => PendingReason::Misconfigured,
        }
    }
}

impl Waiting {
    /// Reports whether it can end without a change of configuration: by time or by other workloads.
    pub fn ends_by_itself(&self) -> bool {
        match self {
            Self::Quota(_) => self.reason() == PendingReason::WaitingForQuota,
            Self::Backoff(_) | Self::PredecessorEvicted(_) => true,
            _ => self.is_in_line(),
        }
    }

    /// Reports whether the workload is queued and only waits for quota.
    pub fn is_in_line(&self) -> bool {
        matches!(self, Self::Quota(_) | Self::Behind { .. } | Self::Room { .. } | Self::Turn | Self::Unready(_))
    }
}

fn quota_reason(obstacles: &[Obstacle]) -> PendingReason {
    let of_pod_set = |name: &str| {
        let reasons = obstacles.iter().filter(|obstacle| obstacle.pod_set() == name).map(Obstacle::reason);
        reasons.min().unwrap_or(PendingReason::WaitingForQuota)
    };
    let worst = obstacles.iter().map(|obstacle| of_pod_set(obstacle.pod_set())).max();
    worst.unwrap_or(PendingReason::WaitingForQuota)
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quota(obstacles) => write_obstacles(f, obstacles),
            Self::Behind { head, cluster_queue } => {
                write!(f, "ClusterQueue {cluster_queue} is StrictFIFO and {head}, ahead in the queue, does not fit yet")
            }
            Self::Room { going, more } => write_going(f, going, *more),
            Self::Turn => f.write_str("fits; will be admitted in the next scheduling cycle"),
            Self::Unready(key) => write!(f, "waiting for admitted workload {key} to be in the PodsReady condition"),
            Self::NoQueueName => f.write_str("no LocalQueue is named; set spec.queueName"),
            Self::LocalQueueMissing(name) => write!(f, "LocalQueue {name} doesn't exist"),
            Self::LocalQueueTerminating(name) => write!(f, "LocalQueue {name} is being deleted"),
            Self::LocalQueueStopped(name) => write!(f, "LocalQueue {name} is stopped"),
            Self::NoClusterQueue(name) => write!(f, "LocalQueue {name} has no spec.clusterQueue"),
            Self::ClusterQueueMissing(name) => write!(f, "ClusterQueue {name} doesn't exist"),
            Self::ClusterQueueTerminating(name) => write!(f, "ClusterQueue {name} is being deleted"),
            Self::ClusterQueueStopped(name) => write!(f, "ClusterQueue {name} is stopped"),
            Self::ClusterQueueInactive { cluster_queue, problem } => {
                write!(f, "ClusterQueue {cluster_queue} is inactive: {problem}")
            }
            Self::NamespaceNotSelected { namespace, cluster_queue } => {
                write!(f, "namespace {namespace} doesn't match the namespaceSelector of ClusterQueue {cluster_queue}")
            }
            Self::Gated(by) => write!(f, "admission is gated by {by}"),
            Self::Backoff(until) => write!(f, "evicted; will be requeued at {until}"),
            Self::PredecessorEvicted(key) => write!(f, "waiting for {key}, the slice it replaces, to be evicted"),
            Self::BadRequest(problem) => f.write_str(problem),
            Self::Refused => {
                f.write_str("the API server rejected the admission; it is retried when the workload changes")
            }
        }
    }
}

fn write_going(f: &mut fmt::Formatter<'_>, going: &[ObjectKey], more: usize) -> fmt::Result {
    f.write_str("quota is reserved; waiting for evicted workloads to release theirs: ")?;
    for (index, key) in going.iter().enumerate() {
        write!(f, "{}{key}", if index == 0 { "" } else { ", " })?;
    }
    if more > 0 {
        write!(f, " and {more} more")?;
    }
    Ok(())
}

/// Writes one sentence for each pod set, with one clause for each flavor and resource.
fn write_obstacles(f: &mut fmt::Formatter<'_>, obstacles: &[Obstacle]) -> fmt::Result {
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

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(shortfall) => shortfall.write_short(f),
            Self::Exceeds(shortfall) => shortfall.write_exceeds(f),
            Self::NotOffered { resource, .. } => write!(f, "resource {resource} unavailable in ClusterQueue"),
            Self::Unsuitable { flavor, problem, .. } => write!(f, "flavor {flavor} does not match: {problem}"),
            Self::Pinned { flavor, runs_in, .. } => {
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
        let why = Waiting::Quota(vec![Obstacle::Short(Shortfall::sample())]);
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
            earlier: Amount::new(1 << 30),
            nominal: Amount::new(2 << 30),
            potential: Amount::new(2 << 30),
            missing: Amount::new(2 << 30),
            missing_now: Amount::new(2 << 30),
            ..Shortfall::sample()
        };
        let why = Waiting::Quota(vec![Obstacle::Exceeds(memory)]);
        assert_eq!(why.reason(), PendingReason::ExceedsMaxQuota);
        assert_eq!(
            why.to_string(),
            "couldn't assign flavors to pod set worker: insufficient quota for memory in flavor a100: requests 3Gi plus 1Gi \
             for earlier pod sets, exceeding the maximum capacity 2Gi (fits only once nominalQuota is 4Gi)"
        );
    }

    #[test]
    fn reason_is_the_mildest_of_the_pod_set_with_the_most_severe_one() {
        let short = Obstacle::Short(Shortfall::sample());
        let exceeds = Obstacle::Exceeds(Shortfall::sample());
        let unsuitable = |pod_set: &str| Obstacle::Unsuitable {
            pod_set: pod_set.into(),
            flavor: "spot".into(),
            problem: "a taint".into(),
        };
        let reason = |obstacles: Vec<Obstacle>| Waiting::Quota(obstacles).reason();
        assert_eq!(reason(vec![unsuitable("worker"), short.clone()]), PendingReason::WaitingForQuota);
        assert_eq!(reason(vec![unsuitable("worker"), exceeds.clone()]), PendingReason::ExceedsMaxQuota);
        assert_eq!(reason(vec![unsuitable("head"), short]), PendingReason::NoMatchingFlavor);
    }
}
