//! Virtual time: the paused clock of tokio, mapped to timestamps.

use std::time::Duration;

use jiff::Timestamp;
use sluice_clock::Clock;
use tokio::time::Instant;

/// Start time of every run.
const EPOCH: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// Returns the time since the start of a run.
pub fn since_start(at: Timestamp) -> Duration {
    Duration::try_from(EPOCH.duration_until(at)).unwrap_or(Duration::ZERO)
}

/// Clock of a run. Time advances only while all tasks wait.
#[derive(Debug, Clone, Copy)]
pub struct VirtualTime {
    start: Instant,
}

impl VirtualTime {
    /// Starts the clock, in a runtime whose clock is paused.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns the current time. Every run starts at the same time.
    pub fn now(&self) -> Timestamp {
        EPOCH + self.start.elapsed()
    }

    /// Returns the time since the start.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the clock of a process.
    pub fn clock(&self) -> Clock {
        let time = *self;
        Clock::new(move || time.now())
    }

    /// Converts a timestamp to an instant of the paused clock.
    pub fn instant(&self, at: Timestamp) -> Instant {
        Instant::now() + Duration::try_from(self.now().duration_until(at)).unwrap_or(Duration::ZERO)
    }
}
