//! What else lives in a cluster.

mod agenda;
mod fates;
mod pace;

pub use fates::{BoardFate, Fate, FateList, Fates, Odds};
pub use pace::Pace;
