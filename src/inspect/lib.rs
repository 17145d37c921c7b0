//! Looks at a copy of the state for somebody who wants to know: nothing is written anywhere.

mod apply;
mod defaults;
pub mod explain;
pub mod rehearsal;
pub mod remedies;
pub mod snapshot;
mod text;
pub mod upgrade;
