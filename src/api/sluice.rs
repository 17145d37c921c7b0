//! Condition types of Sluice itself, under `sluice.dev/`, that more than one controller reads or writes.

/// The condition on a job that says whether the queue lets all of it run.
pub const ADMITTED: &str = "sluice.dev/Admitted";
/// The condition on a job that says whether a slice of it holds quota, also while an upgrade waits for more. The policies in
/// `config/policy` rest on it: they see the job, and not its slices.
pub const QUOTA_RESERVED: &str = "sluice.dev/QuotaReserved";
