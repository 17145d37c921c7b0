//! What an upgrade would come to before it is applied: each way to carry it out, rehearsed on a copy of the state.

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

/// What an upgrade comes to.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradePlan {
    /// Kind, namespace and name of the service.
    pub service: String,
    /// Whether it goes through, the way that its manifest asks for.
    pub verdict: Verdict,
    /// Why not, if it doesn't go through at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Each way to carry it out.
    pub ways: Vec<Way>,
}

/// One way to carry out an upgrade.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Way {
    /// Which.
    #[serde(flatten)]
    pub strategy: Strategy,
    /// Whether the manifest asks for this one.
    pub asked: bool,
    /// Whether it goes through.
    pub verdict: Verdict,
    /// Why not, if it doesn't go through at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The most quota that the service uses on the way; with the least quota that suffices, if it doesn't go through with what
    /// there is. Empty if no quota suffices.
    pub peak: Vec<Use>,
    /// The least quota that suffices, as long as others use and ask for what they do now; `None` if none does. Empty if it takes no
    /// quota beyond what the service holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_quota: Option<Vec<QuotaChange>>,
    /// Who would lose quota to it now: which job, and how much.
    pub preempts: Vec<Preempted>,
    /// The steps, if it goes in steps and its manifest says how long each takes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

/// A job that loses quota.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preempted {
    /// Kind, namespace and name.
    pub job: String,
    /// What it loses.
    pub loses: Vec<Use>,
}

/// Why there is no plan.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The manifest isn't as it should be.
    #[error("{0}")]
    Manifest(String),
    /// No upgrade would be made of this spec.
    #[error("{service} can't be like that: {}", told(.problems))]
    Spec {
        /// The service.
        service: String,
        /// What is wrong with it.
        problems: Vec<Problem>,
    },
    /// There is no telling what would happen.
    #[error(transparent)]
    Restless(#[from] Restless),
}

fn told(problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{}: {}", problem.field, problem.message)).collect::<Vec<_>>().join("; ")
}

/// Plans the upgrade that applying `manifests` would be: one RayService, and what else is applied with it. `surge`, in percent, is
/// that of an incremental upgrade; without it, that of the manifest, or the largest that does.
///
/// # Errors
/// When the manifests aren't as they should be, or name not exactly one RayService.
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
    let beside = stage.rehearse(&ways::by_new_cluster(&service), None)?;
    let ways = match beside.strategy {
        Strategy::NewCluster => ways_of_upgrade(&stage, &service, beside, asked, surge)?,
        alone => vec![way(&stage, alone, &ways::by_new_cluster(&service), beside, true)?],
    };
    let chosen = ways.iter().find(|way| way.asked);
    let verdict = chosen.map_or(Verdict::Never, |way| way.verdict);
    let none = || Some("spec.upgradeStrategy.type is None: no cluster is made".to_owned());
    let why = chosen.map_or_else(none, |way| way.why.clone());
    Ok(UpgradePlan { service: name, verdict, why, ways })
}

/// The ways to upgrade a service that has a cluster; `beside` is what comes of a second one.
fn ways_of_upgrade(
    stage: &Stage<'_>,
    service: &RayService,
    beside: Outcome,
    asked: Asked,
    surge: Option<Percent>,
) -> Result<Vec<Way>, PlanError> {
    let never_beside = beside.verdict == Verdict::Never;
    let is_new_cluster = matches!(asked, Asked::NewCluster { .. });
    let mut new_cluster = way(stage, Strategy::NewCluster, &ways::by_new_cluster(service), beside, is_new_cluster)?;
    let mut recreate = recreate(stage, service, never_beside)?;
    if asked == (Asked::NewCluster { or_recreate: true }) && never_beside && recreate.verdict != Verdict::Never {
        (new_cluster.asked, recreate.asked) = (false, true);
    }
    let is_of_use = new_cluster.verdict != Verdict::Fits && ways::can_go_in_steps(service);
    let mut ways = vec![new_cluster];
    if (asked == Asked::Incremental || surge.is_some() || is_of_use)
        && let Some(serving) = stage.serving()?
    {
        ways.extend(InSteps { stage, service, serving }.ways(surge, asked == Asked::Incremental)?);
    }
    ways.push(recreate);
    Ok(ways)
}

/// An upgrade in steps, whose surge and step are still to be chosen.
struct InSteps<'a> {
    stage: &'a Stage<'a>,
    service: &'a RayService,
    serving: Cluster,
}

impl InSteps<'_> {
    /// The way with the surge that is asked for, or with the largest that does; with the largest that does, if that one doesn't; and
    /// with the one that needs the least.
    fn ways(&self, surge: Option<Percent>, asked: bool) -> Result<Vec<Way>, PlanError> {
        let largest = self.largest_by_need();
        let is_chosen = asked || surge.is_some();
        let whole: u32 = self.course(WHOLE).workers_at_peak().values().sum();
        if !is_chosen && largest.keys().next().is_none_or(|least| *least >= whole) {
            // Steps would need no less than a second cluster that is whole.
            return Ok(Vec::new());
        }
        let best = match last(&largest, |surge| Ok(self.outcome(surge)?.verdict == Verdict::Fits))? {
            None => last(&largest, |surge| Ok(self.outcome(surge)?.verdict != Verdict::Never))?,
            fits => fits,
        };
        let least = largest.values().next().copied().unwrap_or(WHOLE);
        let main = surge.or_else(|| ways::surge(self.service)).or(best).unwrap_or(least);
        let mut ways = vec![self.way(main, asked)?];
        let best = best.filter(|_| ways[0].verdict != Verdict::Fits);
        let others = BTreeSet::from_iter(best.into_iter().chain([least]));
        let need = self.course(main).workers_at_peak();
        for other in others.into_iter().rev().filter(|other| self.course(*other).workers_at_peak() != need) {
            ways.push(self.way(other, false)?);
        }
        Ok(ways)
    }

    /// The largest surge that needs no more than so many workers at its peak, by this number. (More surge may need less, by how shares
    /// of workers are rounded.)
    fn largest_by_need(&self) -> BTreeMap<u32, Percent> {
        let need = |surge: &Percent| self.course(*surge).workers_at_peak().values().sum::<u32>();
        let mut by_need: BTreeMap<u32, Percent> = BTreeMap::new();
        for surge in 1..=WHOLE {
            by_need.insert(need(&surge), surge);
        }
        let mut most = 0;
        by_need.retain(|_, surge| {
            let is_more = *surge > most;
            most = most.max(*surge);
            is_more
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

/// The last surge with which it goes, of those that need more and more; `None` if there is none.
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

/// Where two clusters never fit, Sluice itself makes the service anew, if its owner has chosen that; otherwise somebody has to delete
/// and create it.
fn recreate(stage: &Stage<'_>, service: &RayService, never_beside: bool) -> Result<Way, PlanError> {
    let by_choice = ways::or_recreate(service);
    if never_beside {
        let outcome = stage.rehearse(&by_choice, None)?;
        return way(stage, Strategy::Recreate, &by_choice, outcome, false);
    }
    let stage = stage.anew();
    let outcome = stage.rehearse(&by_choice, None)?;
    way(&stage, Strategy::Recreate, &by_choice, outcome, false)
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

/// The same, with the steps, which can be told of how it goes through.
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
