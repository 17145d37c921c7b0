//! Wall clock of the manager and the webhook. The core never reads it: there, time is an argument.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

/// Source of the current time.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// Returns the system clock.
    #[allow(clippy::disallowed_methods, reason = "this is where the wall clock is read")]
    pub fn system() -> Self {
        Self::new(Timestamp::now)
    }

    /// Returns a clock that calls `now`, for tests and the simulator.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Clock").field(&self.now()).finish()
    }
}
