//! Plan of a RayService upgrade: a dry run of each upgrade strategy on a copy of the state.

mod least;
mod outcome;
mod stage;
#[cfg(test)]
mod tests;
mod text;
mod timeline;
mod ways;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use super::rehearsal::{Policy, Restless};
use super::remedies::QuotaChange;
use super::snapshot::Snapshot;
use least::Amounts;
use outcome::{Outcome, PerPod, uses};
pub use outcome::{Use, Verdict};
use sluice_api::ray::RayService;
use sluice_raycluster::Problem;
use sluice_rayservice::Goal;
use sluice_rayservice::incremental::machine::{Percent, WHOLE};
use stage::Stage;
use timeline::{Cluster, Course};
pub use timeline::{Part, Step, Timeline};
pub use ways::Strategy;
use ways::{Asked, asked};

/// Plan of an upgrade.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradePlan {
    /// Kind, namespace and name of the RayService.
    pub service: String,
    /// Verdict on the strategy that the manifest requests.
    pub verdict: Verdict,
    /// Reason for which the upgrade doesn't fit now; None if it does.
    #[serde(rename = "why", skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Outcome of each strategy.
    #[serde(rename = "ways")]
    pub ways: Vec<Way>,
}

/// Outcome of one upgrade strategy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Way {
    /// Strategy.
    #[serde(flatten)]
    pub strategy: Strategy,
    /// True if the manifest requests this strategy.
    #[serde(rename = "asked")]
    pub asked: bool,
    /// Verdict.
    pub verdict: Verdict,
    /// Reason for which the upgrade doesn't fit now; None if it does.
    #[serde(rename = "why", skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Peak usage of the RayService during the upgrade; with the minimum quota if the upgrade
    /// doesn't fit now. Empty if no quota is sufficient.
    pub peak: Vec<Use>,
    /// Minimum sufficient quota, given the current usage and requests of other jobs; None if no
    /// quota is sufficient. Empty if the quota that the RayService holds is enough.
    #[serde(rename = "leastQuota", skip_serializing_if = "Option::is_none")]
    pub least_quota: Option<Vec<QuotaChange>>,
    /// Jobs that would be preempted now.
    pub preempts: Vec<Preempted>,
    /// Steps of an incremental upgrade; None for other strategies, or if the manifest sets no
    /// interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

/// Job that is preempted.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preempted {
    /// Kind, namespace and name of the job.
    pub job: String,
    /// Quota that it loses.
    pub loses: Vec<Use>,
}

/// Error of planning an upgrade.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The manifest is invalid.
    #[error("{0}")]
    Manifest(String),
    /// The spec of the RayService is invalid.
    #[error("{service} is invalid: {}", describe(.problems))]
    Spec {
        /// Kind, namespace and name of the RayService.
        service: String,
        /// Invalid fields.
        problems: Vec<Problem>,
    },
    /// The dry run doesn't converge.
    #[error(transparent)]
    Restless(#[from] Restless),
}

fn describe(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{}: {}", problem.field, problem.message)).collect::<Vec<_>>().join("; ")
}

/// Plans the upgrade that applying `manifests` starts: one RayService, and any other objects.
/// `surge` is the maxSurgePercent of the incremental strategy; if None, that of the manifest, else
/// the largest that fits.
///
/// # Errors
/// If a manifest is invalid, there isn't exactly one RayService, or the dry run doesn't converge.
pub fn plan(
    snapshot: &Snapshot,
    manifests: Vec<Value>,
    policy: &Policy,
    surge: Option<Percent>,
    now: Timestamp,
) -> Result<UpgradePlan, PlanError> {
    let (stage, service) = Stage::of(snapshot, manifests, policy, now)?;
    let name = stage.service().to_string();
    if let Err(problems) = Goal::of(&service) {
        return Err(PlanError::Spec { service: name, problems });
    }
    let asked = asked(&service);
    let new_cluster = stage.rehearse(&ways::by_new_cluster(&service), None)?;
    let ways = match new_cluster.strategy {
        Strategy::NewCluster => ways_of_upgrade(&stage, &service, new_cluster, asked, surge)?,
        // A first cluster or an edit in place leaves no choice of strategy.
        only => vec![way(&stage, only, &ways::by_new_cluster(&service), new_cluster, true)?],
    };
    let chosen = ways.iter().find(|way| way.asked);
    let verdict = chosen.map_or(Verdict::Never, |way| way.verdict);
    let no_upgrade = || Some("spec.upgradeStrategy.type is None: no new cluster is created".to_owned());
    let why = chosen.map_or_else(no_upgrade, |way| way.why.clone());
    Ok(UpgradePlan { service: name, verdict, why, ways })
}

/// Returns the outcomes of the strategies for a RayService that has a cluster. `second` is the
/// outcome of a second cluster at full size.
fn ways_of_upgrade(
    stage: &Stage<'_>,
    service: &RayService,
    second: Outcome,
    asked: Asked,
    surge: Option<Percent>,
) -> Result<Vec<Way>, PlanError> {
    let never_both = second.verdict == Verdict::Never;
    let is_new_cluster = matches!(asked, Asked::NewCluster { .. });
    let mut new_cluster = way(stage, Strategy::NewCluster, &ways::by_new_cluster(service), second, is_new_cluster)?;
    let mut recreate = recreate(stage, service, never_both)?;
    if asked == (Asked::NewCluster { or_recreate: true }) && never_both && recreate.verdict != Verdict::Never {
        (new_cluster.asked, recreate.asked) = (false, true);
    }
    let is_alternative = new_cluster.verdict != Verdict::Fits && ways::can_go_in_steps(service);
    let mut ways = vec![new_cluster];
    if (asked == Asked::Incremental || surge.is_some() || is_alternative)
        && let Some(serving) = stage.serving()?
    {
        ways.extend(InSteps { stage, service, serving }.ways(surge, asked == Asked::Incremental)?);
    }
    ways.push(recreate);
    Ok(ways)
}

/// Chooses the surge of an incremental upgrade.
struct InSteps<'a> {
    stage: &'a Stage<'a>,
    service: &'a RayService,
    serving: Cluster,
}

impl InSteps<'_> {
    /// Returns the outcomes with the requested surge, or else the largest that fits; with the
    /// largest that fits, if the requested one doesn't; and with the surge that needs the least.
    fn ways(&self, surge: Option<Percent>, asked: bool) -> Result<Vec<Way>, PlanError> {
        let largest = self.largest_by_need();
        let is_chosen = asked || surge.is_some();
        let whole: u32 = self.course(WHOLE).workers_at_peak().values().sum();
        if !is_chosen && largest.keys().next().is_none_or(|least| *least >= whole) {
            // Even the smallest surge needs as many workers as a second cluster at full size.
            return Ok(Vec::new());
        }
        let best = match last(&largest, |surge| Ok(self.outcome(surge)?.verdict == Verdict::Fits))? {
            None => last(&largest, |surge| Ok(self.outcome(surge)?.verdict != Verdict::Never))?,
            fits => fits,
        };
        let least = largest.values().next().copied().unwrap_or(WHOLE);
        let main = surge.or_else(|| ways::surge(self.service)).or(best).unwrap_or(least);
        let mut ways = vec![self.way(main, asked)?];
        let best = if ways[0].verdict == Verdict::Fits { None } else { best };
        let others = BTreeSet::from_iter(best.into_iter().chain([least]));
        let need = self.course(main).workers_at_peak();
        for other in others.into_iter().rev().filter(|other| self.course(*other).workers_at_peak() != need) {
            ways.push(self.way(other, false)?);
        }
        Ok(ways)
    }

    /// Returns the largest surge for each number of workers at peak, in ascending order of both. (A
    /// larger surge may need fewer workers because of rounding.)
    fn largest_by_need(&self) -> BTreeMap<u32, Percent> {
        let need = |surge: &Percent| self.course(*surge).workers_at_peak().values().sum::<u32>();
        let mut by_need: BTreeMap<u32, Percent> = BTreeMap::new();
        for surge in 1..=WHOLE {
            by_need.insert(need(&surge), surge);
        }
        let mut largest = 0;
        by_need.retain(|_, surge| {
            let is_larger = *surge > largest;
            largest = largest.max(*surge);
            is_larger
        });
        by_need
    }

    fn course(&self, surge: Percent) -> Course {
        Course::of(self.service, self.serving.clone(), surge, ways::step(self.service, surge))
    }

    fn outcome(&self, surge: Percent) -> Result<Outcome, PlanError> {
        self.stage.rehearse(&ways::at_peak(self.service, &self.course(surge)), None)
    }

    fn way(&self, surge: Percent, asked: bool) -> Result<Way, PlanError> {
        let course = self.course(surge);
        let service = ways::at_peak(self.service, &course);
        let strategy = Strategy::Incremental { surge_percent: surge, step_percent: ways::step(self.service, surge) };
        let outcome = self.stage.rehearse(&service, None)?;
        way_with(self.stage, strategy, &service, outcome, asked, |per_pod| course.timeline(per_pod))
    }
}

/// Returns the last surge, in ascending order of need, that satisfies `goes`; None if there is
/// none. Binary search: `goes` must be monotonic.
fn last(
    by_need: &BTreeMap<u32, Percent>,
    mut goes: impl FnMut(Percent) -> Result<bool, PlanError>,
) -> Result<Option<Percent>, PlanError> {
    let surges: Vec<Percent> = by_need.values().copied().collect();
    let (mut low, mut high) = (0, surges.len());
    while low < high {
        let middle = high - (high - low) / 2;
        if goes(surges[middle - 1])? {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Ok(low.checked_sub(1).map(|index| surges[index]))
}

/// Returns the outcome of the Recreate strategy. If two clusters never fit, Sluice recreates the
/// cluster itself when the annotation allows it; otherwise the RayService has to be deleted and
/// created.
fn recreate(stage: &Stage<'_>, service: &RayService, never_both: bool) -> Result<Way, PlanError> {
    let annotated = ways::or_recreate(service);
    if never_both {
        let outcome = stage.rehearse(&annotated, None)?;
        return way(stage, Strategy::Recreate, &annotated, outcome, false);
    }
    let stage = stage.anew();
    let outcome = stage.rehearse(&annotated, None)?;
    way(&stage, Strategy::Recreate, &annotated, outcome, false)
}

fn way(
    stage: &Stage<'_>,
    strategy: Strategy,
    service: &RayService,
    outcome: Outcome,
    asked: bool,
) -> Result<Way, PlanError> {
    way_with(stage, strategy, service, outcome, asked, |_| None)
}

/// Returns the outcome of a strategy. `timeline` gets the usage per pod of the successful dry run.
fn way_with(
    stage: &Stage<'_>,
    strategy: Strategy,
    service: &RayService,
    outcome: Outcome,
    asked: bool,
    timeline: impl FnOnce(&PerPod) -> Option<Timeline>,
) -> Result<Way, PlanError> {
    let least = stage.least_quota(service, &outcome)?;
    let through = match (&least, &outcome.cluster_queue) {
        _ if outcome.verdict == Verdict::Fits => Some(outcome.clone()),
        (Some(quota), Some(queue)) => Some(stage.rehearse(service, Some((queue, quota)))?),
        _ => None,
    };
    let changes = |quota: &Amounts| stage.changes(outcome.cluster_queue.as_deref().unwrap_or_default(), quota);
    Ok(Way {
        strategy,
        asked,
        verdict: outcome.verdict,
        peak: through.as_ref().map(|through| uses(&through.peak)).unwrap_or_default(),
        least_quota: if outcome.needs_no_more() { Some(Vec::new()) } else { least.as_ref().map(changes) },
        preempts: outcome.preempts(),
        timeline: timeline(&through.map(|through| through.per_pod).unwrap_or_default()),
        why: outcome.why,
    })
}
