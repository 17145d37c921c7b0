//! The whole engine, in a control plane that is only values: what becomes of jobs when their quota is taken away.

mod control_plane;
mod evictions;
