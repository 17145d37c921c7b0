//! Demand of a job, as it is requested from the queue.

use super::context::ReconcileContext;
use super::pod_sets::DesiredPodSets;
use super::slice_record::DisplacedMember;
use super::types::{Member, Priority};
use super::upgrade_feasibility::UpgradeFeasibility;

/// Demand of a job, to be requested from the queue.
pub(super) struct QuotaRequest<'a> {
    pub(super) context: &'a ReconcileContext<'a>,
    pub(super) members: &'a [Member],
    pub(super) demand: &'a DesiredPodSets,
    pub(super) priority: &'a Priority,
    /// Maximum time that the job may be admitted, in seconds.
    pub(super) max_execution_seconds: Option<i32>,
    /// Members whose replacement holds the quota; nothing is requested for them.
    pub(super) displaced: &'a [DisplacedMember],
    /// Feasibility of the job's upgrade.
    pub(super) feasibility: UpgradeFeasibility,
}
