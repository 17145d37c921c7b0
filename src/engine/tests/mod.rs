//! The whole engine, in a control plane that is only values: what becomes of jobs as they grow, and when their quota is taken
//! away.

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
