//! Tests of the queue as a whole, through its events and effects.

mod additions;
mod behaviours;
mod conditions;
mod fixture;
mod histories;
mod oracle;
mod properties;
mod random;
mod regressions;
mod rules;
mod slices;
mod worlds;
