//! Tests of the whole engine against an in-memory control plane.

mod adoption;
mod batch_jobs;
mod broken_watches;
mod control_plane;
mod deletion;
mod evictions;
mod exceeds_quota;
mod fixtures;
mod growth;
mod incremental;
mod managed;
mod own_deletions;
mod ownership;
mod partial_preemption;
mod pod_dry_runs;
mod queue_moves;
mod ray_jobs;
mod recreate;
mod redis_cleanup;
mod replica_failure;
mod retention;
mod unacknowledged;
mod write_ranks;
