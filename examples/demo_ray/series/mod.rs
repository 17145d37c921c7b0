//! What was measured, over time: a function of the requests and of the history of the control plane.

pub mod observed;
pub mod requests;

use serde::{Deserialize, Serialize};

use observed::{Event, Standing};
use requests::{Second, Total};

/// All that is drawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Each second of the requests.
    pub seconds: Vec<Second>,
    /// What the objects said, from each moment on at which that changed.
    pub standings: Vec<Standing>,
    /// What happened.
    pub events: Vec<Event>,
    /// All requests together.
    pub total: Total,
}
