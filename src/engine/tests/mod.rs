//! Tests of the whole engine against an in-memory control plane.

mod batch_jobs;
mod control_plane;
mod deletion;
mod doubts;
mod evictions;
mod growth;
mod incremental;
mod jobs;
mod managed;
mod newcomers;
mod parts;
mod recreate;
mod redis;
mod setbacks;
mod unfitting;
