//! What people count on from Kueue, by subject: each test names its behaviour (`b03_…`) in the list of behaviours that are
//! to be the same, or the case of Kueue's own tables (v0.19.2 `pkg/scheduler`) whose situation and numbers it takes.

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
