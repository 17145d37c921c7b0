//! Condition types of Sluice on jobs, under `sluice.dev/`, that more than one controller reads or
//! writes.

/// Condition of a job: all of it is admitted.
pub const ADMITTED: &str = "sluice.dev/Admitted";
/// Condition of a job: one of its slices holds quota, even if an upgrade is pending. The policies
/// in `config/policy` depend on it, because they see the job and not its slices.
pub const QUOTA_RESERVED: &str = "sluice.dev/QuotaReserved";
