//! Coverage: the histories that occurred in a run, and so what a clean run has shown.

use std::collections::BTreeSet;
use std::fmt;

use kube::ResourceExt;
use sluice_api::condition;
use sluice_api::kueue::Workload;
use sluice_api::ray::admission_annotations::timed_out_cluster_hash;
use sluice_api::ray::{RayCluster, RayService};
use sluice_jobframework::slice_record::{PodShare, SliceRecord};
use sluice_queue::partial_preemption::PARTIALLY_PREEMPTED;

use crate::availability::is_serve_service;
use sluice_testkit::history::{Change, Object, State};
use sluice_testkit::invariants::{clusters_of_job, holds_quota, is_unsuspended, object_key, owner_uid};

/// A history that a run may contain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum History {
    /// An upgrade was pending.
    UpgradePending,
    /// A pending upgrade was admitted.
    UpgradeAdmitted,
    /// A pending upgrade was reverted.
    UpgradeReverted,
    /// The quota of an upgrade was preempted, and the active cluster kept serving.
    UpgradePreempted,
    /// The whole quota of a service was preempted.
    ServicePreempted,
    /// An admitted upgrade was rolled back, and the old cluster kept serving.
    RolledBack,
    /// An upgrade completed: the new cluster serves.
    Upgraded,
    /// A scale-up was partially admitted, and the rest was pending.
    PartiallyAdmitted,
    /// Pods of an upgrade got another flavor than those of the active cluster.
    FlavorSplit,
    /// A cluster was stopped in favor of its successor, because there was no quota for both.
    Recreated,
    /// Pods of a standalone cluster were recreated from another spec.
    PodsRecreated,
    /// An upgrade exceeded its admission timeout.
    UpgradeTimedOut,
    /// The process was killed while a service was in this phase.
    Crash(LifecyclePhase),
    /// The response of a write was lost: verb and plural.
    LostResponse(String),
}

impl History {
    /// Returns the histories that every run of many seeds must contain.
    pub fn required() -> Vec<Self> {
        let upgrades = [
            Self::UpgradePending,
            Self::UpgradeAdmitted,
            Self::UpgradeReverted,
            Self::UpgradePreempted,
            Self::ServicePreempted,
            Self::RolledBack,
            Self::Upgraded,
            Self::PartiallyAdmitted,
            Self::FlavorSplit,
            Self::Recreated,
            Self::PodsRecreated,
            Self::UpgradeTimedOut,
        ];
        upgrades.into_iter().chain(LifecyclePhase::ALL.map(Self::Crash)).collect()
    }
}

/// Lifecycle phase of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LifecyclePhase {
    /// Without a cluster.
    New,
    /// The first cluster is pending.
    Pending,
    /// The first cluster starts.
    Starting,
    /// The only cluster serves.
    Serving,
    /// The cluster of an upgrade is pending.
    UpgradePending,
    /// The cluster of an upgrade starts.
    UpgradeStarting,
    /// The new cluster serves, and the old one still exists.
    Switched,
    /// Terminating.
    Deleting,
}

impl LifecyclePhase {
    /// All phases.
    pub const ALL: [Self; 8] = [
        Self::New,
        Self::Pending,
        Self::Starting,
        Self::Serving,
        Self::UpgradePending,
        Self::UpgradeStarting,
        Self::Switched,
        Self::Deleting,
    ];

    fn of(state: &State, service: &RayService) -> Self {
        if service.metadata.deletion_timestamp.is_some() {
            return Self::Deleting;
        }
        let job = service.uid().unwrap_or_default();
        let serving = serving_cluster(state, service);
        let clusters: Vec<&RayCluster> = clusters_of_job(state, &job).collect();
        let next = clusters
            .iter()
            .filter(|cluster| Some(cluster.name_any()) != serving)
            .max_by_key(|cluster| creation_order(cluster));
        match (clusters.len(), serving, next) {
            (0, ..) => Self::New,
            (1, Some(_), None) => Self::Serving,
            (_, Some(serving), Some(other)) => {
                let active = clusters.iter().find(|cluster| cluster.name_any() == serving);
                match other {
                    other if active.is_some_and(|active| creation_order(active) > creation_order(other)) => {
                        Self::Switched
                    }
                    other if is_unsuspended(other) => Self::UpgradeStarting,
                    _ => Self::UpgradePending,
                }
            }
            (_, None, Some(first)) if is_unsuspended(first) => Self::Starting,
            _ => Self::Pending,
        }
    }
}

fn creation_order(cluster: &RayCluster) -> (Option<jiff::Timestamp>, u64) {
    let version = cluster.metadata.resource_version.as_ref().and_then(|version| version.parse().ok()).unwrap_or(0);
    (cluster.metadata.creation_timestamp.as_ref().map(|time| time.0), version)
}

impl fmt::Display for History {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UpgradePending => formatter.write_str("upgrade pending"),
            Self::UpgradeAdmitted => formatter.write_str("upgrade admitted"),
            Self::UpgradeReverted => formatter.write_str("pending upgrade reverted"),
            Self::UpgradePreempted => formatter.write_str("upgrade preempted"),
            Self::ServicePreempted => formatter.write_str("service preempted"),
            Self::RolledBack => formatter.write_str("rolled back"),
            Self::Upgraded => formatter.write_str("upgraded"),
            Self::PartiallyAdmitted => formatter.write_str("scale-up partially admitted"),
            Self::FlavorSplit => formatter.write_str("upgraded in another flavor"),
            Self::Recreated => formatter.write_str("recreated"),
            Self::PodsRecreated => formatter.write_str("pods recreated"),
            Self::UpgradeTimedOut => formatter.write_str("upgrade timed out"),
            Self::Crash(phase) => write!(formatter, "crash while {phase:?}"),
            Self::LostResponse(write) => write!(formatter, "lost response: {write}"),
        }
    }
}

/// Histories of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    histories: BTreeSet<History>,
    /// Clusters of upgrades that were pending, by key.
    pending_upgrades: BTreeSet<String>,
    /// Clusters of upgrades that were unsuspended, by key.
    unsuspended_upgrades: BTreeSet<String>,
    /// Number of completed upgrades.
    pub upgrades: usize,
}

impl Coverage {
    /// Returns the histories that occurred.
    pub fn histories(&self) -> &BTreeSet<History> {
        &self.histories
    }

    /// Records a kill of the process.
    pub fn record_crash(&mut self, state: &State) {
        let phases = state.ray_services.values().map(|service| History::Crash(LifecyclePhase::of(state, service)));
        self.histories.extend(phases);
    }

    /// Records a lost response. Writes of ControllerRevisions are rare, so their verbs are not
    /// distinguished.
    pub fn record_lost_response(&mut self, write: String) {
        let is_of_revision = write.ends_with(" controllerrevisions");
        self.histories.insert(History::LostResponse(if is_of_revision {
            "write controllerrevisions".into()
        } else {
            write
        }));
    }

    /// Records a change that `state` does not contain yet.
    pub fn observe_before(&mut self, state: &State, change: &Change) {
        match &change.object {
            Object::RayCluster(cluster) if change.deleted => self.observe_deletion(state, cluster),
            Object::Workload(workload) => {
                if is_partially_admitted(workload) {
                    self.histories.insert(History::PartiallyAdmitted);
                }
                self.histories.extend(preemption_history(workload));
                if let Some(record) = SliceRecord::from_workload(workload).filter(|_| holds_quota(workload)) {
                    self.histories.extend((!record.displaces.is_empty()).then(|| displacement_history(workload)));
                    self.histories.extend(is_flavor_split(&record).then_some(History::FlavorSplit));
                }
            }
            Object::RayService(service) if timed_out_cluster_hash(&service.metadata).is_some() => {
                self.histories.insert(History::UpgradeTimedOut);
            }
            _ => {}
        }
    }

    fn observe_deletion(&mut self, state: &State, cluster: &RayCluster) {
        let service = owning_service(state, cluster);
        let serves_on = |service: &RayService| {
            serving_cluster(state, service).is_some_and(|serving| serving != cluster.name_any())
                && service.metadata.deletion_timestamp.is_none()
        };
        if !service.is_some_and(serves_on) {
            return;
        }
        match (
            self.unsuspended_upgrades.contains(&object_key(cluster)),
            self.pending_upgrades.contains(&object_key(cluster)),
        ) {
            (true, _) => {
                self.histories.insert(History::RolledBack);
            }
            (false, true) => {
                self.histories.insert(History::UpgradeReverted);
            }
            _ => {}
        }
    }

    /// Records a change that `state` contains.
    pub fn observe_after(&mut self, state: &State, change: &Change) {
        match &change.object {
            Object::RayCluster(cluster) if !change.deleted => self.observe_suspension(state, cluster),
            Object::Service(service) if !change.deleted && is_serve_service(service) => {
                let cluster =
                    service.spec.as_ref().and_then(|spec| spec.selector.as_ref()?.get("ray.io/cluster").cloned());
                let key = format!("{}/{}", service.namespace().unwrap_or_default(), cluster.unwrap_or_default());
                if self.unsuspended_upgrades.remove(&key) {
                    self.histories.insert(History::Upgraded);
                    self.upgrades += 1;
                }
            }
            _ => {}
        }
    }

    fn observe_suspension(&mut self, state: &State, cluster: &RayCluster) {
        let Some(service) = owning_service(state, cluster) else { return };
        let Some(serving) = serving_cluster(state, service) else { return };
        if serving == cluster.name_any() || self.unsuspended_upgrades.contains(&object_key(cluster)) {
            return;
        }
        let older = state.ray_clusters.get(&format!("{}/{serving}", cluster.namespace().unwrap_or_default()));
        if older.is_none_or(|older| creation_order(older) >= creation_order(cluster)) {
            return;
        }
        if is_unsuspended(cluster) {
            self.unsuspended_upgrades.insert(object_key(cluster));
            if self.pending_upgrades.contains(&object_key(cluster)) {
                self.histories.insert(History::UpgradeAdmitted);
            }
        } else {
            self.pending_upgrades.insert(object_key(cluster));
            let conditions = service.status.clone().unwrap_or_default().conditions;
            if condition::get(&conditions, "sluice.dev/Admitted").is_some_and(|admitted| admitted.status == "False") {
                self.histories.insert(History::UpgradePending);
            }
        }
    }
}

/// Returns the preemption of a slice, if any.
fn preemption_history(slice: &Workload) -> Option<History> {
    let conditions = slice.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is = |kind: &str| condition::is_true(conditions, kind);
    if is("Preempted") && is("Evicted") {
        return Some(History::ServicePreempted);
    }
    is(PARTIALLY_PREEMPTED).then_some(History::UpgradePreempted)
}

/// True if fewer pods were admitted than requested.
fn is_partially_admitted(slice: &Workload) -> bool {
    let admission = slice.status.as_ref().and_then(|status| status.admission.as_ref());
    let Some(admission) = admission else { return false };
    let granted: i32 = admission.pod_set_assignments.iter().filter_map(|assignment| assignment.count).sum();
    granted < slice.spec.pod_sets.iter().map(|set| set.count).sum()
}

/// Returns the history of a slice that displaces a member.
fn displacement_history(slice: &Workload) -> History {
    let is_of_cluster = slice.owner_references().iter().any(|owner| owner.kind == "RayCluster");
    if is_of_cluster { History::PodsRecreated } else { History::Recreated }
}

/// True if pods of one kind are in several pod sets.
fn is_flavor_split(record: &SliceRecord) -> bool {
    let shares: Vec<_> = record.members.iter().flat_map(|member| &member.pods).collect();
    let differ =
        |share: &PodShare| shares.iter().any(|other| other.kind() == share.kind() && other.pod_set != share.pod_set);
    shares.iter().any(|share| differ(share))
}

fn owning_service<'a>(state: &'a State, cluster: &RayCluster) -> Option<&'a RayService> {
    let owner = owner_uid(cluster)?;
    state.ray_services.values().find(|service| service.uid().as_ref() == Some(&owner))
}

/// Returns the cluster that the serve Service selects.
pub fn serving_cluster(state: &State, service: &RayService) -> Option<String> {
    let serve = format!("{}/{}-serve-svc", service.namespace().unwrap_or_default(), service.name_any());
    state.services.get(&serve)?.spec.as_ref()?.selector.as_ref()?.get("ray.io/cluster").cloned()
}
