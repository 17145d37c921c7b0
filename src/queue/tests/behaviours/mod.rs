//! Behavior that Sluice shares with Kueue, by subject. Each test names its behavior in the
//! compatibility list (`b03_…`), or the case of Kueue's table tests (v0.19.2 `pkg/scheduler`) whose
//! situation and numbers it uses.

mod admission;
mod classical;
mod fair;
mod fair_sharing;
mod flavors;
mod hierarchical;
mod limits;
mod order;
mod preemption;
mod quota;
mod reasons;
mod scene;
mod slices;
mod words;
