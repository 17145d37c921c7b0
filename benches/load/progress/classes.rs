//! Time to admission by class.

use hdrhistogram::{CreationError, Histogram, RecordError};

use super::{ItemProgress, Progress};
use crate::plan::{LoadPlan, PlannedClass};

/// Significant digits of a recorded time.
const DIGITS: u8 = 3;

/// Error of a histogram.
#[derive(Debug, thiserror::Error)]
pub enum LatencyError {
    /// It can't be created.
    #[error("failed to create a histogram: {0}")]
    Histogram(#[from] CreationError),
    /// A time can't be recorded.
    #[error("failed to record a time to admission: {0}")]
    Record(#[from] RecordError),
}

/// Times from the answer to the creation of an object until its first admission was seen.
#[derive(Debug, Clone)]
pub struct ClassLatency {
    /// Name of the class.
    pub name: String,
    /// Number of its objects.
    pub count: usize,
    /// Times of those that were admitted, in microseconds.
    pub times: Histogram<u64>,
}

/// Returns the times to admission of each class.
///
/// # Errors
/// If a time can't be recorded.
pub fn latencies(plan: &LoadPlan, progress: &Progress) -> Result<Vec<ClassLatency>, LatencyError> {
    let of_class = |class: &PlannedClass| {
        let items = &progress.items()[class.items.clone()];
        Ok(ClassLatency { name: class.name.clone(), count: items.len(), times: times(items)? })
    };
    plan.classes.iter().map(of_class).collect()
}

fn times(items: &[ItemProgress]) -> Result<Histogram<u64>, LatencyError> {
    let mut times = Histogram::new(DIGITS)?;
    for item in items {
        if let (Some(created), Some(admitted)) = (item.created_at, item.admitted_at) {
            // The watch may be faster than the answer.
            let time = admitted.saturating_sub(created).as_micros();
            times.record(u64::try_from(time).unwrap_or(u64::MAX))?;
        }
    }
    Ok(times)
}
