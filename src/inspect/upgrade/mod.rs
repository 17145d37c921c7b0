//! Plan of a RayService upgrade: a dry run of each upgrade strategy on a copy of the state.

mod display;
mod min_quota;
mod outcome;
mod sandbox;
mod strategies;
#[cfg(test)]
mod tests;
mod timeline;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use super::dry_run::{DidNotConverge, PolicyConfig};
use super::remediation::QuotaChange;
use super::snapshot::{ManifestError, Snapshot};
use min_quota::FlavorResourceAmounts;
use outcome::{DryRunOutcome, PerPodUsage, resource_usages};
pub use outcome::{PlanVerdict, ResourceUsage};
use sandbox::Sandbox;
use sluice_api::ray::RayService;
use sluice_plan::ObjectId;
use sluice_raycluster::FieldError;
use sluice_rayservice::DesiredService;
use sluice_rayservice::incremental::state_machine::{FULL, Percent};
pub use strategies::Strategy;
use strategies::{RequestedStrategy, requested_strategy};
pub use timeline::{ClusterShareAtStep, Timeline, TimelineStep};
use timeline::{PlannedCluster, RolloutSchedule};

/// Plan of an upgrade.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradePlan {
    /// Kind, namespace and name of the RayService.
    pub service: String,
    /// Verdict on the strategy that the manifest requests.
    pub verdict: PlanVerdict,
    /// Reason for which the upgrade doesn't fit now; None if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Outcome of each strategy.
    pub strategies: Vec<StrategyOutcome>,
}

/// Outcome of one upgrade strategy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StrategyOutcome {
    /// Strategy.
    #[serde(flatten)]
    pub strategy: Strategy,
    /// True if the manifest requests this strategy.
    pub requested: bool,
    /// Verdict.
    pub verdict: PlanVerdict,
    /// Reason for which the upgrade doesn't fit now; None if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Peak usage of the RayService during the upgrade; with the minimum quota if the upgrade
    /// doesn't fit now. Empty if no quota is sufficient.
    pub peak: Vec<ResourceUsage>,
    /// Minimum sufficient quota, given the current usage and requests of other jobs; None if no
    /// quota is sufficient. Empty if the quota that the RayService holds is enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_quota: Option<Vec<QuotaChange>>,
    /// Jobs that would be preempted now.
    pub preempts: Vec<PreemptedJob>,
    /// Steps of an incremental upgrade; None for other strategies, or if the manifest sets no
    /// interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

/// Job that is preempted.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PreemptedJob {
    /// Kind, namespace and name of the job.
    pub job: String,
    /// Quota that it loses.
    pub loses: Vec<ResourceUsage>,
}

/// Error of planning an upgrade.
#[derive(Debug, Error)]
pub enum PlanError {
    /// A manifest isn't an object with a name.
    #[error(transparent)]
    InvalidManifest(#[from] ManifestError),
    /// A manifest can't be applied.
    #[error("{object}: {source}")]
    NotApplicable {
        /// Reference to the object in the manifest.
        object: Box<ObjectId>,
        /// Cause.
        source: ManifestError,
    },
    /// The manifests contain no RayService, or several.
    #[error("expected exactly one RayService in the manifest, found {found}")]
    NotOneService {
        /// Number of RayServices.
        found: usize,
    },
    /// The spec of the RayService is invalid.
    #[error("{service} is invalid: {}", describe(.problems))]
    InvalidSpec {
        /// Kind, namespace and name of the RayService.
        service: String,
        /// Invalid fields.
        problems: Vec<FieldError>,
    },
    /// The dry run doesn't converge.
    #[error(transparent)]
    DidNotConverge(#[from] DidNotConverge),
}

fn describe(problems: &[FieldError]) -> String {
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
    policy: &PolicyConfig,
    surge: Option<Percent>,
    now: Timestamp,
) -> Result<UpgradePlan, PlanError> {
    let (sandbox, service) = Sandbox::new(snapshot, manifests, policy, now)?;
    let name = sandbox.service().to_string();
    if let Err(problems) = DesiredService::from_service(&service) {
        return Err(PlanError::InvalidSpec { service: name, problems });
    }
    let asked = requested_strategy(&service);
    let new_cluster = sandbox.try_upgrade(&strategies::with_new_cluster(&service), None)?;
    let strategies = match new_cluster.strategy {
        Strategy::NewCluster => strategy_outcomes(&sandbox, &service, new_cluster, asked, surge)?,
        // A first cluster or an edit in place leaves no choice of strategy.
        only => vec![strategy_outcome(
            &sandbox,
            only,
            &strategies::with_new_cluster(&service),
            new_cluster,
            Choice::Requested,
        )?],
    };
    let chosen = strategies.iter().find(|strategy| strategy.requested);
    let verdict = chosen.map_or(PlanVerdict::Never, |strategy| strategy.verdict);
    let no_upgrade = || Some("spec.upgradeStrategy.type is None: no new cluster is created".to_owned());
    let why = chosen.map_or_else(no_upgrade, |strategy| strategy.message.clone());
    Ok(UpgradePlan { service: name, verdict, message: why, strategies })
}

/// Returns the outcomes of the strategies for a RayService that has a cluster. `second` is the
/// outcome of a second cluster at full size.
fn strategy_outcomes(
    sandbox: &Sandbox,
    service: &RayService,
    second: DryRunOutcome,
    asked: RequestedStrategy,
    surge: Option<Percent>,
) -> Result<Vec<StrategyOutcome>, PlanError> {
    let never_both = second.verdict == PlanVerdict::Never;
    let is_new_cluster = matches!(asked, RequestedStrategy::NewCluster { .. });
    let mut new_cluster = strategy_outcome(
        sandbox,
        Strategy::NewCluster,
        &strategies::with_new_cluster(service),
        second,
        Choice::requested_if(is_new_cluster),
    )?;
    let mut recreate = recreate_outcome(sandbox, service, never_both)?;
    if asked == (RequestedStrategy::NewCluster { or_recreate: true })
        && never_both
        && recreate.verdict != PlanVerdict::Never
    {
        (new_cluster.requested, recreate.requested) = (false, true);
    }
    let is_alternative = new_cluster.verdict != PlanVerdict::Fits && strategies::supports_incremental(service);
    let mut strategies = vec![new_cluster];
    if (asked == RequestedStrategy::Incremental || surge.is_some() || is_alternative)
        && let Some(serving) = sandbox.active_cluster()
    {
        strategies.extend(
            IncrementalPlanner { sandbox, service, serving }
                .outcomes(surge, Choice::requested_if(asked == RequestedStrategy::Incremental))?,
        );
    }
    strategies.push(recreate);
    Ok(strategies)
}

/// Chooses the surge of an incremental upgrade.
struct IncrementalPlanner<'a> {
    sandbox: &'a Sandbox,
    service: &'a RayService,
    serving: PlannedCluster,
}

impl IncrementalPlanner<'_> {
    /// Returns the outcomes with the requested surge, or else the largest that fits; with the
    /// largest that fits, if the requested one doesn't; and with the surge that needs the least.
    fn outcomes(&self, surge: Option<Percent>, choice: Choice) -> Result<Vec<StrategyOutcome>, PlanError> {
        let largest = self.largest_by_need();
        let is_chosen = choice == Choice::Requested || surge.is_some();
        let whole: u32 = self.schedule(FULL).workers_at_peak().values().sum();
        if !is_chosen && largest.keys().next().is_none_or(|least| *least >= whole) {
            // Even the smallest surge needs as many workers as a second cluster at full size.
            return Ok(Vec::new());
        }
        let best = match last_satisfying(&largest, |surge| Ok(self.dry_run(surge)?.verdict == PlanVerdict::Fits))? {
            None => last_satisfying(&largest, |surge| Ok(self.dry_run(surge)?.verdict != PlanVerdict::Never))?,
            fits => fits,
        };
        let least = largest.values().next().copied().unwrap_or(FULL);
        let main = surge.or_else(|| strategies::max_surge(self.service)).or(best).unwrap_or(least);
        let mut strategies = vec![self.strategy_outcome(main, choice)?];
        let best = if strategies[0].verdict == PlanVerdict::Fits { None } else { best };
        let others = BTreeSet::from_iter(best.into_iter().chain([least]));
        let need = self.schedule(main).workers_at_peak();
        for other in others.into_iter().rev().filter(|other| self.schedule(*other).workers_at_peak() != need) {
            strategies.push(self.strategy_outcome(other, Choice::Alternative)?);
        }
        Ok(strategies)
    }

    /// Returns the largest surge for each number of workers at peak, in ascending order of both. (A
    /// larger surge may need fewer workers because of rounding.)
    fn largest_by_need(&self) -> BTreeMap<u32, Percent> {
        let need = |surge: &Percent| self.schedule(*surge).workers_at_peak().values().sum::<u32>();
        let mut by_need: BTreeMap<u32, Percent> = BTreeMap::new();
        for surge in 1..=FULL {
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

    fn schedule(&self, surge: Percent) -> RolloutSchedule {
        RolloutSchedule::new(self.service, self.serving.clone(), surge, strategies::step_size(self.service, surge))
    }

    fn dry_run(&self, surge: Percent) -> Result<DryRunOutcome, PlanError> {
        self.sandbox.try_upgrade(&strategies::with_peak_cluster(self.service, &self.schedule(surge)), None)
    }

    fn strategy_outcome(&self, surge: Percent, choice: Choice) -> Result<StrategyOutcome, PlanError> {
        let course = self.schedule(surge);
        let service = strategies::with_peak_cluster(self.service, &course);
        let strategy =
            Strategy::Incremental { surge_percent: surge, step_percent: strategies::step_size(self.service, surge) };
        let outcome = self.sandbox.try_upgrade(&service, None)?;
        strategy_outcome_with_timeline(self.sandbox, strategy, &service, outcome, choice, |per_pod| {
            course.timeline(per_pod)
        })
    }
}

/// Relation of a strategy to the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// The manifest requests it.
    Requested,
    /// It is compared with the requested one.
    Alternative,
}

impl Choice {
    fn requested_if(is_requested: bool) -> Self {
        if is_requested { Self::Requested } else { Self::Alternative }
    }
}

/// Returns the last surge, in ascending order of need, that satisfies `satisfies`; None if there is
/// none. Binary search: `satisfies` must be monotonic.
fn last_satisfying(
    by_need: &BTreeMap<u32, Percent>,
    mut satisfies: impl FnMut(Percent) -> Result<bool, PlanError>,
) -> Result<Option<Percent>, PlanError> {
    let surges: Vec<Percent> = by_need.values().copied().collect();
    let (mut low, mut high) = (0, surges.len());
    while low < high {
        let middle = high - (high - low) / 2;
        if satisfies(surges[middle - 1])? {
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
fn recreate_outcome(sandbox: &Sandbox, service: &RayService, never_both: bool) -> Result<StrategyOutcome, PlanError> {
    let annotated = strategies::with_recreate_fallback(service);
    if never_both {
        let outcome = sandbox.try_upgrade(&annotated, None)?;
        return strategy_outcome(sandbox, Strategy::Recreate, &annotated, outcome, Choice::Alternative);
    }
    let sandbox = sandbox.with_deletion_first();
    let outcome = sandbox.try_upgrade(&annotated, None)?;
    strategy_outcome(&sandbox, Strategy::Recreate, &annotated, outcome, Choice::Alternative)
}

fn strategy_outcome(
    sandbox: &Sandbox,
    strategy: Strategy,
    service: &RayService,
    outcome: DryRunOutcome,
    choice: Choice,
) -> Result<StrategyOutcome, PlanError> {
    strategy_outcome_with_timeline(sandbox, strategy, service, outcome, choice, |_| None)
}

/// Returns the outcome of a strategy. `timeline` gets the usage per pod of the successful dry run.
fn strategy_outcome_with_timeline(
    sandbox: &Sandbox,
    strategy: Strategy,
    service: &RayService,
    outcome: DryRunOutcome,
    choice: Choice,
    timeline: impl FnOnce(&PerPodUsage) -> Option<Timeline>,
) -> Result<StrategyOutcome, PlanError> {
    let least = sandbox.min_quota(service, &outcome)?;
    let through = match (&least, &outcome.cluster_queue) {
        _ if outcome.verdict == PlanVerdict::Fits => Some(outcome.clone()),
        (Some(quota), Some(queue)) => Some(sandbox.try_upgrade(service, Some((queue, quota)))?),
        _ => None,
    };
    let changes = |quota: &FlavorResourceAmounts| {
        sandbox.quota_changes(outcome.cluster_queue.as_deref().unwrap_or_default(), quota)
    };
    Ok(StrategyOutcome {
        strategy,
        requested: choice == Choice::Requested,
        verdict: outcome.verdict,
        peak: through.as_ref().map(|through| resource_usages(&through.peak)).unwrap_or_default(),
        min_quota: if outcome.needs_no_more_quota() { Some(Vec::new()) } else { least.as_ref().map(changes) },
        preempts: outcome.preempted_jobs(),
        timeline: timeline(&through.map(|through| through.per_pod).unwrap_or_default()),
        message: outcome.message,
    })
}
