//! Remediations for pending Workloads.

use std::collections::BTreeMap;

use serde::Serialize;

use sluice_api::kueue::names::{ADMISSION_GATED_BY_ANNOTATION, QUEUE_NAME_LABEL};
use sluice_api::quantity::Amount;
use sluice_queue::{BindingLimit, FlavorRejection, PendingCause, Shortfall};

/// Change or event that would unblock a pending Workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Remediation {
    /// Condition that has to become true, as a clause.
    pub what: String,
    /// Quota changes that are sufficient together; empty if quota is not what is missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quota: Vec<QuotaChange>,
}

/// Change of the nominal quota of one resource in one flavor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaChange {
    /// Name of the ClusterQueue.
    pub cluster_queue: String,
    /// Name of the flavor.
    pub flavor: String,
    /// Name of the resource.
    pub resource: String,
    /// Current nominal quota.
    pub from: String,
    /// Required nominal quota.
    pub to: String,
}

impl Remediation {
    fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), quota: Vec::new() }
    }
}

/// Returns the remediations for a Workload that is pending for this reason in `cluster_queue`; any
/// one of them is sufficient.
pub(super) fn remediations(waiting: &PendingCause, cluster_queue: &str) -> Vec<Remediation> {
    match waiting {
        PendingCause::Quota(obstacles) => quota_remediations(obstacles, cluster_queue),
        PendingCause::BehindHead { head, cluster_queue } => vec![
            Remediation::new(format!("Workload {head}, which is ahead in the queue, is admitted or deleted")),
            Remediation::new(format!("spec.queueingStrategy of ClusterQueue {cluster_queue} is BestEffortFIFO")),
        ],
        PendingCause::PreemptionInProgress { evicting, more_evicting: more, .. } => {
            let names: Vec<String> = evicting.iter().map(ToString::to_string).collect();
            let others = if *more > 0 { format!(" and {more} more") } else { String::new() };
            vec![Remediation::new(format!("the pods of {}{others} have terminated", names.join(", ")))]
        }
        PendingCause::NextCycle => vec![Remediation::new("the next scheduling cycle runs (no action needed)")],
        PendingCause::WaitingForPodsReady(key) => {
            vec![Remediation::new(format!("the pods of Workload {key} are ready, or it is evicted"))]
        }
        PendingCause::NoQueueName => vec![Remediation::new(format!("the job has the label {QUEUE_NAME_LABEL}"))],
        PendingCause::LocalQueueMissing(name) => {
            vec![Remediation::new(format!("LocalQueue {name} is created in its namespace"))]
        }
        PendingCause::LocalQueueTerminating(name) => {
            vec![Remediation::new(format!("LocalQueue {name} is deleted and recreated"))]
        }
        PendingCause::LocalQueueStopped(name) => {
            vec![Remediation::new(format!("spec.stopPolicy of LocalQueue {name} is None"))]
        }
        PendingCause::NoClusterQueue(name) => {
            vec![Remediation::new(format!("spec.clusterQueue of LocalQueue {name} names a ClusterQueue"))]
        }
        PendingCause::ClusterQueueMissing(name) => vec![Remediation::new(format!("ClusterQueue {name} is created"))],
        PendingCause::ClusterQueueTerminating(name) => {
            vec![Remediation::new(format!("ClusterQueue {name} is deleted and recreated"))]
        }
        PendingCause::ClusterQueueStopped(name) => {
            vec![Remediation::new(format!("spec.stopPolicy of ClusterQueue {name} is None"))]
        }
        PendingCause::ClusterQueueInactive { cluster_queue, problem } => {
            vec![Remediation::new(format!("ClusterQueue {cluster_queue} is fixed: {problem}"))]
        }
        PendingCause::NamespaceNotSelected { namespace, cluster_queue } => {
            vec![Remediation::new(format!(
                "spec.namespaceSelector of ClusterQueue {cluster_queue} selects namespace {namespace}"
            ))]
        }
        PendingCause::AdmissionGated(by) => {
            vec![Remediation::new(format!("{by} is removed from the annotation {ADMISSION_GATED_BY_ANNOTATION}"))]
        }
        PendingCause::Backoff(until) => vec![Remediation::new(format!("the backoff ends at {until}"))],
        PendingCause::PredecessorEvicted(key) => {
            vec![Remediation::new(format!("the pods of Workload {key} have terminated"))]
        }
        PendingCause::InvalidRequests(problem) => {
            vec![Remediation::new(format!("its resource requests are fixed: {problem}"))]
        }
        PendingCause::AdmissionRejected => vec![Remediation::new("the Workload changes, which retries its admission")],
    }
}

/// Describes the quota or limit of the cohort tree that binds.
pub(super) fn describe_binding(binding: &BindingLimit, cluster_queue: &str) -> String {
    match binding {
        BindingLimit::NominalQuota => format!("the nominalQuota of ClusterQueue {cluster_queue}"),
        BindingLimit::BorrowingLimit => format!("the borrowingLimit of ClusterQueue {cluster_queue}"),
        BindingLimit::Cohort(name) => format!("the quota of Cohort {name}"),
        BindingLimit::CohortBorrowingLimit(name) => format!("the borrowingLimit of Cohort {name}"),
    }
}

/// Returns the sufficient nominal quota by flavor and resource; empty if the Workload isn't pending
/// for quota.
pub(super) fn sufficient_quota(waiting: &PendingCause) -> Vec<(String, String, Amount)> {
    let PendingCause::Quota(obstacles) = waiting else { return Vec::new() };
    let deficits = largest_shortfalls(obstacles).unwrap_or_default().into_iter();
    deficits.map(|lack| (lack.flavor.clone(), lack.resource.clone(), lack.nominal.plus(lack.missing_now))).collect()
}

fn quota_remediations(obstacles: &[FlavorRejection], cluster_queue: &str) -> Vec<Remediation> {
    match largest_shortfalls(obstacles) {
        Ok(deficits) => release_or_raise_quota(deficits, obstacles, cluster_queue),
        Err((pod_set, problems)) => {
            vec![Remediation::new(format!(
                "ClusterQueue {cluster_queue} has a flavor that matches pod set {pod_set}: {problems}"
            ))]
        }
    }
}

/// Returns the largest shortfall of each flavor and resource, for the first flavor of each pod set
/// in which only quota is missing.
///
/// # Errors
/// Names the first pod set without such a flavor, and its obstacles.
fn largest_shortfalls(obstacles: &[FlavorRejection]) -> Result<Vec<&Shortfall>, (&str, String)> {
    let mut by_pod_set: BTreeMap<&str, Vec<&FlavorRejection>> = BTreeMap::new();
    for obstacle in obstacles {
        by_pod_set.entry(obstacle.pod_set()).or_default().push(obstacle);
    }
    let mut deficits: BTreeMap<(&str, &str), &Shortfall> = BTreeMap::new();
    for (pod_set, obstacles) in &by_pod_set {
        let Some(shortfalls) = first_flavor_shortfalls(obstacles) else {
            let problems: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
            return Err((pod_set, problems.join("; ")));
        };
        for shortfall in shortfalls {
            // The shortfall of a pod set includes the requests of earlier pod sets, so the largest
            // counts.
            let largest = deficits.entry((&shortfall.flavor, &shortfall.resource)).or_insert(shortfall);
            if largest.missing_now < shortfall.missing_now {
                *largest = shortfall;
            }
        }
    }
    Ok(deficits.into_values().collect())
}

/// Returns the shortfalls in the first flavor in which only quota is missing; None if there is
/// none.
fn first_flavor_shortfalls<'a>(obstacles: &[&'a FlavorRejection]) -> Option<Vec<&'a Shortfall>> {
    let shortfalls = obstacles.iter().filter_map(|obstacle| match obstacle {
        FlavorRejection::InsufficientUnused(shortfall) | FlavorRejection::ExceedsMaximum(shortfall) => Some(shortfall),
        _ => None,
    });
    let shortfalls: Vec<&Shortfall> = shortfalls.collect();
    let first = &shortfalls.first()?.flavor;
    Some(shortfalls.iter().filter(|shortfall| shortfall.flavor == *first).copied().collect())
}

fn release_or_raise_quota(
    deficits: Vec<&Shortfall>,
    obstacles: &[FlavorRejection],
    cluster_queue: &str,
) -> Vec<Remediation> {
    let show = |lack: &Shortfall, amount: Amount| amount.display(&lack.resource).to_string();
    let each = |describe: &dyn Fn(&Shortfall) -> String| {
        deficits.iter().map(|lack| describe(lack)).collect::<Vec<_>>().join(", and ")
    };
    let mut remedies = Vec::new();
    if obstacles.iter().all(|obstacle| !matches!(obstacle, FlavorRejection::ExceedsMaximum(_))) {
        let freed = each(&|lack| {
            let (missing, by) = (show(lack, lack.missing), describe_binding(&lack.binding, cluster_queue));
            format!("{missing} of {} in flavor {} is released, limited by {by}", lack.resource, lack.flavor)
        });
        remedies.push(Remediation::new(freed));
    }
    let changes: Vec<QuotaChange> = deficits
        .iter()
        .map(|lack| QuotaChange {
            cluster_queue: cluster_queue.to_owned(),
            flavor: lack.flavor.clone(),
            resource: lack.resource.clone(),
            from: show(lack, lack.nominal),
            to: show(lack, lack.nominal.plus(lack.missing_now)),
        })
        .collect();
    let what = each(&|lack| {
        let to = show(lack, lack.nominal.plus(lack.missing_now));
        format!("nominalQuota of {} in flavor {} of ClusterQueue {cluster_queue} is {to}", lack.resource, lack.flavor)
    });
    remedies.push(Remediation { what, quota: changes });
    remedies
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use sluice_plan::ObjectKey;

    fn short(pod_set: &str, flavor: &str, resource: &str, missing: i64) -> Shortfall {
        let mut short = four_gpus_short();
        (short.pod_set, short.flavor, short.resource) = (pod_set.into(), flavor.into(), resource.into());
        (short.nominal, short.missing) = (Amount::new(10), Amount::new(missing));
        short.missing_now = short.missing;
        short
    }

    fn texts(waiting: &PendingCause) -> Vec<String> {
        remediations(waiting, "team-a").into_iter().map(|remedy| remedy.what).collect()
    }

    fn four_gpus_short() -> Shortfall {
        let mut short = Shortfall::new("worker", "a100", "nvidia.com/gpu");
        (short.requested, short.used) = (Amount::new(8), Amount::new(12));
        (short.nominal, short.potential_available) = (Amount::new(16), Amount::new(16));
        (short.missing, short.missing_now) = (Amount::new(4), Amount::new(4));
        short.holders =
            vec![(ObjectKey::new("team", "llm"), Amount::new(7)), (ObjectKey::new("team", "embed"), Amount::new(3))];
        short.more_holders = 2;
        short
    }

    #[test]
    fn shortfall_is_remedied_by_released_or_added_quota() {
        let why =
            PendingCause::Quota(vec![FlavorRejection::InsufficientUnused(short("small", "spot", "nvidia.com/gpu", 2))]);
        let expected = [
            "2 of nvidia.com/gpu in flavor spot is released, limited by the nominalQuota of ClusterQueue team-a",
            "nominalQuota of nvidia.com/gpu in flavor spot of ClusterQueue team-a is 12",
        ];
        assert_eq!(texts(&why), expected);
    }

    #[test]
    fn request_above_capacity_needs_quota_for_the_pod_set_with_the_largest_shortfall() {
        let why = PendingCause::Quota(vec![
            FlavorRejection::ExceedsMaximum(short("head", "spot", "nvidia.com/gpu", 2)),
            FlavorRejection::ExceedsMaximum(short("small", "spot", "nvidia.com/gpu", 5)),
            FlavorRejection::ExceedsMaximum(short("small", "spot", "tpu", 1)),
            FlavorRejection::ExceedsMaximum(short("small", "other", "nvidia.com/gpu", 1)),
        ]);
        let expected = "nominalQuota of nvidia.com/gpu in flavor spot of ClusterQueue team-a is 15, and nominalQuota of tpu in \
                        flavor spot of ClusterQueue team-a is 11";
        assert_eq!(texts(&why), [expected]);
    }

    #[test]
    fn quota_is_no_remediation_if_no_flavor_matches() {
        let problem = "its nodes have a taint".to_owned();
        let unsuitable = FlavorRejection::Mismatch { pod_set: "small".into(), flavor: "spot".into(), problem };
        let remedies = remediations(&PendingCause::Quota(vec![unsuitable]), "team-a");
        assert_eq!(remedies.len(), 1);
        assert!(
            remedies[0].what.starts_with("ClusterQueue team-a has a flavor that matches pod set small: "),
            "{remedies:?}"
        );
        assert!(remedies[0].quota.is_empty());
    }

    #[rstest]
    #[case::behind(PendingCause::BehindHead { head: ObjectKey::new("a", "b"), cluster_queue: "q".into() }, "Workload a/b, which is ahead in the queue")]
    #[case::room(PendingCause::PreemptionInProgress { missing: Vec::new(), evicting: vec![ObjectKey::new("a", "b")], more_evicting: 2 }, "the pods of a/b and 2 more have terminated")]
    #[case::stopped(PendingCause::ClusterQueueStopped("q".into()), "spec.stopPolicy of ClusterQueue q is None")]
    #[case::missing(PendingCause::LocalQueueMissing("q".into()), "LocalQueue q is created")]
    fn every_pending_cause_has_a_remediation(#[case] waiting: PendingCause, #[case] expected: &str) {
        assert!(texts(&waiting)[0].starts_with(expected), "{:?}", texts(&waiting));
    }
}
