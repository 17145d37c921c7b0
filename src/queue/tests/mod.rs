//! Tests of the queue as a whole, through its events and effects.

mod behaviours;
mod conditions;
mod fixture;
mod histories;
mod regressions;
mod rules;
mod slices;
