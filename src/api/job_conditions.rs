//! Condition types of Sluice on jobs, under `sluice.dev/`, that more than one controller reads or
//! writes.

/// Condition of a job: all of it is admitted.
pub const ADMITTED: &str = "sluice.dev/Admitted";
/// Condition of a job: one of its slices holds quota, even if an upgrade is pending. The policies
/// in `config/policy` depend on it, because they see the job and not its slices.
pub const QUOTA_RESERVED: &str = "sluice.dev/QuotaReserved";

/// Condition type of a RayCluster, present only while True: its owner is queued, in another
/// LocalQueue than the label of the cluster names, and the label has no effect.
pub const QUEUE_NAME_IGNORED: &str = "sluice.dev/QueueNameIgnored";
/// Reason of [`QUEUE_NAME_IGNORED`].
pub const OWNER_IS_QUEUED: &str = "OwnerIsQueued";
