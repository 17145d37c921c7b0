//! Looks at a copy of the state for somebody who wants to know: nothing is written anywhere.

pub mod explain;
pub mod remedies;
pub mod snapshot;
mod text;
