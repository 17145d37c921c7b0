//! What an upgrade would come to before it is applied: each way to carry it out, rehearsed on a copy of the state.

mod least;
mod outcome;
mod stage;
#[cfg(test)]
mod tests;
mod text;
mod ways;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use super::rehearsal::{Policy, Restless};
use super::remedies::QuotaChange;
use super::snapshot::Snapshot;
use crate::api::ray::RayService;
use crate::raycluster::Problem;
use crate::rayservice::Goal;
use least::Amounts;
use outcome::{Outcome, uses};
pub use outcome::{Use, Verdict};
use stage::Stage;
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
    surge: Option<u32>,
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
    surge: Option<u32>,
) -> Result<Vec<Way>, PlanError> {
    let never_beside = beside.verdict == Verdict::Never;
    let is_new_cluster = matches!(asked, Asked::NewCluster { .. });
    let mut new_cluster = way(stage, Strategy::NewCluster, &ways::by_new_cluster(service), beside, is_new_cluster)?;
    let mut recreate = recreate(stage, service, never_beside)?;
    if asked == (Asked::NewCluster { or_recreate: true }) && never_beside && recreate.verdict != Verdict::Never {
        (new_cluster.asked, recreate.asked) = (false, true);
    }
    let mut ways = vec![new_cluster];
    if ways::scales_by_itself(service) || asked == Asked::Incremental || surge.is_some() {
        ways.push(incremental(stage, service, surge, asked == Asked::Incremental)?);
    }
    ways.push(recreate);
    Ok(ways)
}

fn incremental(stage: &Stage<'_>, service: &RayService, surge: Option<u32>, asked: bool) -> Result<Way, PlanError> {
    let at = |percent: u32| stage.rehearse(&ways::at_surge(service, percent), None);
    let surge = match surge.or_else(|| ways::surge(service)) {
        Some(given) => given,
        None => {
            let fits = largest(|percent| Ok(at(percent)?.verdict == Verdict::Fits))?;
            let ever = || largest(|percent| Ok(at(percent)?.verdict != Verdict::Never));
            fits.map_or_else(ever, |fits| Ok(Some(fits)))?.unwrap_or(1)
        }
    };
    let strategy = Strategy::Incremental { surge_percent: surge, step_percent: ways::step(service, surge) };
    let outcome = at(surge)?;
    way(stage, strategy, &ways::at_surge(service, surge), outcome, asked)
}

/// The largest surge, in percent, with which it goes; `None` if there is none.
fn largest(mut goes: impl FnMut(u32) -> Result<bool, PlanError>) -> Result<Option<u32>, PlanError> {
    let (mut low, mut high) = (0, 100);
    while low < high {
        let middle = high - (high - low) / 2;
        if goes(middle)? {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    Ok(Some(low).filter(|low| *low > 0))
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
    let least = stage.least_quota(service, &outcome)?;
    let peak = match (&least, &outcome.cluster_queue) {
        _ if outcome.verdict == Verdict::Fits => outcome.peak.clone(),
        (Some(quota), Some(queue)) => stage.rehearse(service, Some((queue, quota)))?.peak,
        _ => Amounts::new(),
    };
    let changes = |quota: &Amounts| stage.changes(outcome.cluster_queue.as_deref().unwrap_or_default(), quota);
    Ok(Way {
        strategy,
        asked,
        verdict: outcome.verdict,
        peak: uses(&peak),
        least_quota: if outcome.needs_no_more() { Some(Vec::new()) } else { least.as_ref().map(changes) },
        preempts: outcome.preempts(),
        why: outcome.why,
    })
}
