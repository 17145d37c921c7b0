//! Why a workload is not admitted, as a value and as a sentence.

use std::fmt;

use super::shortfall::Shortfall;
use sluice_plan::ObjectKey;

/// The reason of the condition QuotaReserved while it is False (kueue v0.19.2 `apis/kueue/v1beta2/workload_types.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PendingReason {
    /// It fits once others release quota.
    WaitingForQuota,
    /// It asks for more than there is in all.
    ExceedsMaxQuota,
    /// No flavor is right for its pods.
    NoMatchingFlavor,
    /// Something that it refers to is missing or wrong.
    Misconfigured,
    /// Its queue is stopped.
    Suspended,
    /// Someone holds it back by annotation.
    AdmissionGated,
    /// It is looked at again later.
    PendingEvaluation,
    /// Room is being made for it, or its predecessor is being stopped.
    WaitingForPreemptedWorkloads,
    /// Others have to become ready first.
    WaitingForPodsReady,
}

impl PendingReason {
    /// The reason as the condition spells it.
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

/// What a workload waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// For quota: what stands in the way of each pod set, in each flavor.
    Quota(Vec<Obstacle>),
    /// For its turn: it would fit, but this ClusterQueue is strict and this workload comes first.
    Behind {
        /// The workload at the head.
        head: ObjectKey,
        /// Name of the ClusterQueue.
        cluster_queue: String,
    },
    /// For room: quota is kept for it until these, which are evicted, have given theirs back.
    Room {
        /// Some of those that are on their way out.
        going: Vec<ObjectKey>,
        /// How many more there are.
        more: usize,
    },
    /// For its turn: it would fit, and gets it in the next cycle.
    Turn,
    /// For this workload, which was admitted and is not ready yet. Until it is, nothing is admitted.
    Unready(ObjectKey),
    /// It names no LocalQueue.
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
    /// Its ClusterQueue can't admit anything.
    ClusterQueueInactive {
        /// Name of the ClusterQueue.
        cluster_queue: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Its namespace is not among those that the ClusterQueue selects.
    NamespaceNotSelected {
        /// Name of the namespace.
        namespace: String,
        /// Name of the ClusterQueue.
        cluster_queue: String,
    },
    /// These hold it back by annotation.
    Gated(String),
    /// It was evicted, and comes back at this time.
    Backoff(jiff::Timestamp),
    /// The slice that it replaces is being evicted.
    PredecessorEvicted(ObjectKey),
    /// What it asks for can't be understood or is not supported.
    BadRequest(String),
    /// The API server refused its admission.
    Refused,
}

/// What stands in the way of one pod set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstacle {
    /// Others hold what it needs of a flavor.
    Short(Shortfall),
    /// It needs more of a flavor than there is.
    Exceeds(Shortfall),
    /// No flavor of the ClusterQueue has this resource.
    NotOffered {
        /// Name of the pod set.
        pod_set: String,
        /// Name of the resource.
        resource: String,
    },
    /// The flavor's nodes are not for its pods.
    Unsuitable {
        /// Name of the pod set.
        pod_set: String,
        /// Name of the flavor.
        flavor: String,
        /// What does not match.
        problem: String,
    },
    /// Pods of the pod set run in another flavor already, and this one might have room.
    Pinned {
        /// Name of the pod set.
        pod_set: String,
        /// Name of the flavor.
        flavor: String,
        /// Name of the flavor that they run in.
        runs_in: String,
    },
}

impl Obstacle {
    /// Name of the pod set that it stands in the way of.
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
    /// The reason of the condition. Of several obstacles, the most hopeful one of the pod set that has the least hope.
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
    /// Whether it ends by what others do or by time, with nobody changing what there is.
    pub fn ends_by_itself(&self) -> bool {
        match self {
            Self::Quota(_) => self.reason() == PendingReason::WaitingForQuota,
            Self::Backoff(_) | Self::PredecessorEvicted(_) => true,
            _ => self.is_in_line(),
        }
    }

    /// Whether the workload is in line, and nothing but quota is missing.
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
                write!(f, "ClusterQueue {cluster_queue} is StrictFIFO, and {head} is ahead in the queue and does not fit yet")
            }
            Self::Room { going, more } => write_going(f, going, *more),
            Self::Turn => f.write_str("fits; will be admitted in the next scheduling cycle"),
            Self::Unready(key) => write!(f, "waiting for admitted workload {key} to be in the PodsReady condition"),
            Self::NoQueueName => f.write_str("no LocalQueue is named; set spec.queueName"),
            Self::LocalQueueMissing(name) => write!(f, "LocalQueue {name} doesn't exist"),
            Self::LocalQueueTerminating(name) => write!(f, "LocalQueue {name} is being deleted"),
            Self::LocalQueueStopped(name) => write!(f, "LocalQueue {name} is stopped"),
            Self::NoClusterQueue(name) => write!(f, "LocalQueue {name} names no ClusterQueue; set its spec.clusterQueue"),
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

/// One sentence a pod set, one clause a flavor and resource.
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
    fn a_shortfall_says_what_is_missing_who_holds_it_and_what_would_help() {
        let why = Waiting::Quota(vec![Obstacle::Short(Shortfall::sample())]);
        assert_eq!(why.reason(), PendingReason::WaitingForQuota);
        assert_eq!(
            why.to_string(),
            "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu in flavor a100, 4 more needed \
             (requests 8, 12 of 16 used: team/llm holds 7, team/embed holds 3, and 2 more; fits once 4 is released or nominalQuota is 20)"
        );
    }

    #[test]
    fn a_request_that_never_fits_says_the_quota_that_it_needs() {
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
    fn the_reason_is_the_most_hopeful_of_the_pod_set_that_has_the_least_hope() {
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
