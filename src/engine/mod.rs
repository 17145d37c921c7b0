//! The engine: one owner of all observed state, which turns events into effects.

pub mod plan;
