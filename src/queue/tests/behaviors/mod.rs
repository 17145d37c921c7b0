//! Behavior that Sluice shares with Kueue, by subject. Each test names its behavior in the
//! compatibility list (`b03_…`), or the case of Kueue's table tests (v0.19.2 `pkg/scheduler`) whose
//! situation and numbers it uses.

mod admission;
mod classical_preemption;
mod fair_preemption;
mod fair_sharing;
mod flavors;
mod hierarchical_preemption;
mod limits;
mod notation;
mod order;
mod pending_reasons;
mod preemption;
mod quota;
mod scene;
mod slices;
