//! Measurements over time, as a function of the requests and of the history of the control plane.

pub mod observed;
pub mod requests;

use serde::{Deserialize, Serialize};

use observed::{Event, Standing};
use requests::{Second, Total};

/// The data of the chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The requests, second by second.
    pub seconds: Vec<Second>,
    /// State of the objects at each point in time at which it changed.
    pub standings: Vec<Standing>,
    /// Events of the upgrade.
    pub events: Vec<Event>,
    /// Totals of all requests.
    pub total: Total,
}
