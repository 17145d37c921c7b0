//! Measurements over time, as a function of the requests and of the history of the control plane.

pub mod observed;
pub mod requests;

use serde::{Deserialize, Serialize};

use observed::{UpgradeEvent, UpgradeState};
use requests::{RequestTotals, RequestsInSecond};

/// The data of the chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The requests, second by second.
    pub seconds: Vec<RequestsInSecond>,
    /// State of the objects at each point in time at which it changed.
    pub standings: Vec<UpgradeState>,
    /// Events of the upgrade.
    pub events: Vec<UpgradeEvent>,
    /// Totals of all requests.
    pub total: RequestTotals,
}
