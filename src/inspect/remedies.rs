//! What would let a workload go on that waits.

use std::collections::BTreeMap;

use serde::Serialize;

use sluice_api::kueue::names::QUEUE_NAME_LABEL;
use sluice_api::quantity::Amount;
use sluice_queue::{Binding, Obstacle, Shortfall, Waiting};

/// Something that would let a workload go on.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Remedy {
    /// What has to be done, or to happen.
    pub what: String,
    /// The quota that would be enough, if quota is what it lacks: all of these together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quota: Vec<QuotaChange>,
}

/// The quota that would be enough.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaChange {
    /// The ClusterQueue.
    pub cluster_queue: String,
    /// The flavor.
    pub flavor: String,
    /// The resource.
    pub resource: String,
    /// Its nominal quota.
    pub from: String,
    /// What the nominal quota would have to be.
    pub to: String,
}

impl Remedy {
    fn of(what: impl Into<String>) -> Self {
        Self { what: what.into(), quota: Vec::new() }
    }
}

/// What would let a workload go on that waits for this, in a ClusterQueue; each is enough.
pub(super) fn of(waiting: &Waiting, cluster_queue: &str) -> Vec<Remedy> {
    match waiting {
        Waiting::Quota(obstacles) => of_quota(obstacles, cluster_queue),
        Waiting::Behind { head, cluster_queue } => vec![
            Remedy::of(format!("Workload {head}, which comes first, is admitted or deleted")),
            Remedy::of(format!("spec.queueingStrategy of ClusterQueue {cluster_queue} is BestEffortFIFO")),
        ],
        Waiting::Room { going, more } => {
            let names: Vec<String> = going.iter().map(ToString::to_string).collect();
            let others = if *more > 0 { format!(" and {more} more") } else { String::new() };
            vec![Remedy::of(format!("the pods of {}{others} are gone", names.join(", ")))]
        }
        Waiting::Turn => vec![Remedy::of("nothing has to happen: it is admitted with the next decision")],
        Waiting::Unready(key) => vec![Remedy::of(format!("the pods of Workload {key} are ready, or it is evicted"))],
        Waiting::NoQueueName => vec![Remedy::of(format!("its job has the label {QUEUE_NAME_LABEL}"))],
        Waiting::LocalQueueMissing(name) => vec![Remedy::of(format!("LocalQueue {name} is created in its namespace"))],
        Waiting::LocalQueueTerminating(name) => vec![Remedy::of(format!("LocalQueue {name} is gone and created anew"))],
        Waiting::LocalQueueStopped(name) => vec![Remedy::of(format!("spec.stopPolicy of LocalQueue {name} is None"))],
        Waiting::NoClusterQueue(name) => {
            vec![Remedy::of(format!("spec.clusterQueue of LocalQueue {name} names a ClusterQueue"))]
        }
        Waiting::ClusterQueueMissing(name) => vec![Remedy::of(format!("ClusterQueue {name} is created"))],
        Waiting::ClusterQueueTerminating(name) => {
            vec![Remedy::of(format!("ClusterQueue {name} is gone and created anew"))]
        }
        Waiting::ClusterQueueStopped(name) => {
            vec![Remedy::of(format!("spec.stopPolicy of ClusterQueue {name} is None"))]
        }
        Waiting::ClusterQueueInactive { cluster_queue, problem } => {
            vec![Remedy::of(format!("what is wrong with ClusterQueue {cluster_queue} is put right: {problem}"))]
        }
        Waiting::NamespaceNotSelected { namespace, cluster_queue } => {
            vec![Remedy::of(format!(
                "spec.namespaceSelector of ClusterQueue {cluster_queue} selects namespace {namespace}"
            ))]
        }
        Waiting::Gated(by) => vec![Remedy::of(format!("{by} takes its name from the annotation that holds it back"))],
        Waiting::Backoff(until) => vec![Remedy::of(format!("it is {until}"))],
        Waiting::PredecessorEvicted(key) => vec![Remedy::of(format!("the pods of Workload {key} are gone"))],
        Waiting::BadRequest(problem) => vec![Remedy::of(format!("what it asks for is put right: {problem}"))],
        Waiting::Refused => vec![Remedy::of("the workload changes, so that its admission is tried again")],
    }
}

/// What of the cohort tree binds.
pub(super) fn bound_by(binding: &Binding, cluster_queue: &str) -> String {
    match binding {
        Binding::NominalQuota => format!("the nominalQuota of ClusterQueue {cluster_queue}"),
        Binding::BorrowingLimit => format!("the borrowingLimit of ClusterQueue {cluster_queue}"),
        Binding::Cohort(name) => format!("the quota of Cohort {name}"),
        Binding::CohortBorrowingLimit(name) => format!("the borrowingLimit of Cohort {name}"),
    }
}

/// The nominal quota that would be enough, by flavor and resource; nothing if quota isn't what it waits for.
pub(super) fn enough_quota(waiting: &Waiting) -> Vec<(String, String, Amount)> {
    let Waiting::Quota(obstacles) = waiting else { return Vec::new() };
    let lacks = lacks(obstacles).unwrap_or_default().into_iter();
    lacks.map(|lack| (lack.flavor.clone(), lack.resource.clone(), lack.nominal.plus(lack.missing_now))).collect()
}

fn of_quota(obstacles: &[Obstacle], cluster_queue: &str) -> Vec<Remedy> {
    match lacks(obstacles) {
        Ok(lacks) => raised(lacks, obstacles, cluster_queue),
        Err((pod_set, told)) => {
            vec![Remedy::of(format!("ClusterQueue {cluster_queue} has a flavor for pod set {pod_set}: {told}"))]
        }
    }
}

/// Each pod set needs one flavor in which nothing is missing; the first in which quota alone is missing is the one that is named. If
/// there is a pod set without such a one, what stands in its way.
fn lacks(obstacles: &[Obstacle]) -> Result<Vec<&Shortfall>, (&str, String)> {
    let mut by_pod_set: BTreeMap<&str, Vec<&Obstacle>> = BTreeMap::new();
    for obstacle in obstacles {
        by_pod_set.entry(obstacle.pod_set()).or_default().push(obstacle);
    }
    let mut lacks: BTreeMap<(&str, &str), &Shortfall> = BTreeMap::new();
    for (pod_set, obstacles) in &by_pod_set {
        let Some(shortfalls) = in_first_flavor(obstacles) else {
            let told: Vec<String> = obstacles.iter().map(ToString::to_string).collect();
            return Err((pod_set, told.join("; ")));
        };
        for shortfall in shortfalls {
            // What a pod set lacks includes what earlier ones take.
            let most = lacks.entry((&shortfall.flavor, &shortfall.resource)).or_insert(shortfall);
            if most.missing_now < shortfall.missing_now {
                *most = shortfall;
            }
        }
    }
    Ok(lacks.into_values().collect())
}

/// What is missing in the first flavor where nothing but quota is.
fn in_first_flavor<'a>(obstacles: &[&'a Obstacle]) -> Option<Vec<&'a Shortfall>> {
    let shortfalls = obstacles.iter().filter_map(|obstacle| match obstacle {
        Obstacle::Short(shortfall) | Obstacle::Exceeds(shortfall) => Some(shortfall),
        _ => None,
    });
    let shortfalls: Vec<&Shortfall> = shortfalls.collect();
    let first = &shortfalls.first()?.flavor;
    Some(shortfalls.iter().filter(|shortfall| shortfall.flavor == *first).copied().collect())
}

fn raised(lacks: Vec<&Shortfall>, obstacles: &[Obstacle], cluster_queue: &str) -> Vec<Remedy> {
    let show = |lack: &Shortfall, amount: Amount| amount.display(&lack.resource).to_string();
    let each =
        |told: &dyn Fn(&Shortfall) -> String| lacks.iter().map(|lack| told(lack)).collect::<Vec<_>>().join(", and ");
    let mut remedies = Vec::new();
    if obstacles.iter().all(|obstacle| !matches!(obstacle, Obstacle::Exceeds(_))) {
        let freed = each(&|lack| {
            let (missing, by) = (show(lack, lack.missing), bound_by(&lack.binding, cluster_queue));
            format!("{missing} of {} in flavor {} is released, bound by {by}", lack.resource, lack.flavor)
        });
        remedies.push(Remedy::of(freed));
    }
    let changes: Vec<QuotaChange> = lacks
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
    remedies.push(Remedy { what, quota: changes });
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

    fn told(waiting: &Waiting) -> Vec<String> {
        of(waiting, "team-a").into_iter().map(|remedy| remedy.what).collect()
    }

    fn four_gpus_short() -> Shortfall {
        let mut short = Shortfall::new("worker", "a100", "nvidia.com/gpu");
        (short.requested, short.used) = (Amount::new(8), Amount::new(12));
        (short.nominal, short.potential) = (Amount::new(16), Amount::new(16));
        (short.missing, short.missing_now) = (Amount::new(4), Amount::new(4));
        short.holders =
            vec![(ObjectKey::new("team", "llm"), Amount::new(7)), (ObjectKey::new("team", "embed"), Amount::new(3))];
        short.more_holders = 2;
        short
    }

    #[test]
    fn what_is_missing_may_be_released_or_added() {
        let why = Waiting::Quota(vec![Obstacle::Short(short("small", "spot", "nvidia.com/gpu", 2))]);
        let expected = [
            "2 of nvidia.com/gpu in flavor spot is released, bound by the nominalQuota of ClusterQueue team-a",
            "nominalQuota of nvidia.com/gpu in flavor spot of ClusterQueue team-a is 12",
        ];
        assert_eq!(told(&why), expected);
    }

    #[test]
    fn what_can_never_be_has_to_be_added_and_the_pod_set_that_lacks_most_counts() {
        let why = Waiting::Quota(vec![
            Obstacle::Exceeds(short("head", "spot", "nvidia.com/gpu", 2)),
            Obstacle::Exceeds(short("small", "spot", "nvidia.com/gpu", 5)),
            Obstacle::Exceeds(short("small", "spot", "tpu", 1)),
            Obstacle::Exceeds(short("small", "other", "nvidia.com/gpu", 1)),
        ]);
        let expected = "nominalQuota of nvidia.com/gpu in flavor spot of ClusterQueue team-a is 15, and nominalQuota of tpu in \
                        flavor spot of ClusterQueue team-a is 11";
        assert_eq!(told(&why), [expected]);
    }

    #[test]
    fn no_quota_helps_where_no_flavor_is_right() {
        let problem = "its nodes have a taint".to_owned();
        let unsuitable = Obstacle::Unsuitable { pod_set: "small".into(), flavor: "spot".into(), problem };
        let remedies = of(&Waiting::Quota(vec![unsuitable]), "team-a");
        assert_eq!(remedies.len(), 1);
        assert!(remedies[0].what.starts_with("ClusterQueue team-a has a flavor for pod set small: "), "{remedies:?}");
        assert!(remedies[0].quota.is_empty());
    }

    #[rstest]
    #[case::behind(Waiting::Behind { head: ObjectKey::new("a", "b"), cluster_queue: "q".into() }, "Workload a/b, which comes first")]
    #[case::room(Waiting::Room { going: vec![ObjectKey::new("a", "b")], more: 2 }, "the pods of a/b and 2 more are gone")]
    #[case::stopped(Waiting::ClusterQueueStopped("q".into()), "spec.stopPolicy of ClusterQueue q is None")]
    #[case::missing(Waiting::LocalQueueMissing("q".into()), "LocalQueue q is created")]
    fn everything_that_is_waited_for_has_a_remedy(#[case] waiting: Waiting, #[case] expected: &str) {
        assert!(told(&waiting)[0].starts_with(expected), "{:?}", told(&waiting));
    }
}
