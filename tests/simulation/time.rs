//! Virtual time: tokio's paused clock, and the time of day that goes with it.

use std::time::Duration;

use jiff::Timestamp;
use sluice_clock::Clock;
use tokio::time::Instant;

/// When every world starts.
const BEGINNING: Timestamp = Timestamp::constant(1_800_000_000, 0);

/// How old a world is at a time of day.
pub fn age(at: Timestamp) -> Duration {
    Duration::try_from(BEGINNING.duration_until(at)).unwrap_or(Duration::ZERO)
}

/// Tells the time of day in a world whose time passes only while everybody waits.
#[derive(Debug, Clone, Copy)]
pub struct Time {
    start: Instant,
}

impl Time {
    /// Starts a world, in a runtime whose clock is paused.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// What time it is. Every world starts at the same moment.
    pub fn now(&self) -> Timestamp {
        BEGINNING + self.start.elapsed()
    }

    /// How long the world has existed.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The clock of a process in this world.
    pub fn clock(&self) -> Clock {
        let time = *self;
        Clock::new(move || time.now())
    }

    /// The instant that goes with a time of day.
    pub fn instant(&self, at: Timestamp) -> Instant {
        Instant::now() + Duration::try_from(self.now().duration_until(at)).unwrap_or(Duration::ZERO)
    }
}
