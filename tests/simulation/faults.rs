//! Faults between Sluice and the API server: drawn from a seed, or listed when a failure is
//! replayed or shrunk.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::rng::SeededRandom;

/// A fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// Rejected with this HTTP status and not executed.
    Rejected(u16),
    /// Lost before it arrives; the connection breaks.
    RequestLost,
    /// Executed; the connection breaks before the response arrives.
    ResponseLost,
    /// Executed; no response ever arrives.
    NoResponse,
    /// Delayed by this many milliseconds.
    Delayed(u32),
    /// The process is killed before the request arrives.
    KilledBefore,
    /// Executed; the process is killed before the response arrives.
    KilledAfter,
    /// Watch events are delayed by up to this many milliseconds.
    WatchDelayed(u32),
    /// The watch breaks after this many milliseconds.
    WatchBroken(u32),
    /// Shows the state as it was up to this many milliseconds ago, unless it is the first list of a
    /// process.
    StaleList(u32),
    /// Executed; the response is delayed by this many milliseconds, as that of a list with many pages.
    ResponseDelayed(u32),
    /// The history is compacted, so a watch that resumes from an older version gets 410 Expired.
    HistoryCompacted,
}

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// A get or list.
    Read,
    /// A create, patch or delete.
    Write,
    /// A watch.
    Watch,
    /// A call of a Ray dashboard through the API server proxy.
    Proxy,
}

/// Probability of each fault, per mille of the requests to which it applies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultRates {
    rejected: u32,
    request_lost: u32,
    response_lost: u32,
    delayed: u32,
    killed: u32,
    watch_delayed: u32,
    watch_broken: u32,
    history_compacted: u32,
    stale_list: u32,
    response_delayed: u32,
}

impl FaultRates {
    /// Draws the probabilities of a seed: one seed in ten has no faults, most have a few kinds,
    /// each at a separate rate.
    pub fn draw(chance: &SeededRandom) -> Self {
        let mut draw = chance.rng_for("weather", 0);
        if draw.u32(0..10) == 0 {
            return Self::default();
        }
        let mut rate = |rates: [u32; 4]| rates[draw.usize(0..4)];
        Self {
            rejected: rate([0, 0, 10, 60]),
            request_lost: rate([0, 0, 5, 30]),
            response_lost: rate([0, 10, 20, 60]),
            delayed: rate([0, 0, 20, 50]),
            killed: rate([0, 3, 10, 25]),
            watch_delayed: rate([0, 100, 300, 600]),
            watch_broken: rate([0, 100, 300, 600]),
            history_compacted: rate([0, 50, 200, 400]),
            stale_list: rate([0, 0, 100, 300]),
            response_delayed: rate([0, 0, 100, 200]),
        }
    }

    fn draw_fault(&self, class: RequestKind, draw: &mut fastrand::Rng) -> Option<Fault> {
        let refusals: &[u16] = match class {
            RequestKind::Write => &[409, 409, 429, 500, 503],
            _ => &[429, 500, 503],
        };
        let refused = Fault::Rejected(refusals[draw.usize(0..refusals.len())]);
        let lost = if draw.bool() { Fault::ResponseLost } else { Fault::NoResponse };
        let killed = if draw.bool() { Fault::KilledBefore } else { Fault::KilledAfter };
        let (slow, lags, breaks) = (draw.u32(100..15_000), draw.u32(50..6_000), draw.u32(0..60_000));
        let mut left = draw.u32(0..1000);
        let (age, transfer) = (draw.u32(10..20_000), draw.u32(10..5_000));
        let of_all = [(self.rejected, refused), (self.request_lost, Fault::RequestLost)];
        let of_class: &[(u32, Fault)] = match class {
            RequestKind::Write => {
                &[(self.response_lost, lost), (self.delayed, Fault::Delayed(slow)), (self.killed, killed)]
            }
            RequestKind::Read => &[
                (self.killed / 4, killed),
                (self.delayed, Fault::Delayed(slow)),
                (self.stale_list, Fault::StaleList(age)),
                (self.response_delayed, Fault::ResponseDelayed(transfer)),
            ],
            RequestKind::Proxy => &[(self.response_lost, lost), (self.delayed, Fault::Delayed(slow))],
            RequestKind::Watch => &[
                (self.watch_delayed, Fault::WatchDelayed(lags)),
                (self.watch_broken, Fault::WatchBroken(breaks)),
                (self.history_compacted, Fault::HistoryCompacted),
            ],
        };
        let mut odds = of_all.iter().chain(of_class);
        let struck = odds.find(|(thousandths, _)| {
            let hit = left < *thousandths;
            left = left.saturating_sub(*thousandths);
            hit
        });
        struck.map(|(_, fault)| *fault)
    }
}

/// Number of the first separately counted request. Separate numbers keep histories without such
/// requests unchanged.
const FIRST_SEPARATE_NUMBER: u64 = 1 << 32;

/// Injects faults into requests, by request number.
#[derive(Debug, Clone)]
pub struct FaultInjector {
    source: FaultSource,
    requests: u64,
    separate_requests: u64,
    injected: BTreeMap<u64, Fault>,
    writes: Vec<u64>,
    stopped: bool,
}

#[derive(Debug, Clone)]
enum FaultSource {
    Drawn(SeededRandom, FaultRates),
    Listed(BTreeMap<u64, Fault>),
}

impl FaultInjector {
    /// Returns an injector that draws the faults of a seed.
    pub fn drawn(chance: &SeededRandom) -> Self {
        Self::with_source(FaultSource::Drawn(chance.subject("faults"), FaultRates::draw(chance)))
    }

    /// Returns an injector of the listed faults only.
    pub fn listed(faults: BTreeMap<u64, Fault>) -> Self {
        Self::with_source(FaultSource::Listed(faults))
    }

    fn with_source(source: FaultSource) -> Self {
        Self {
            source,
            requests: 0,
            separate_requests: FIRST_SEPARATE_NUMBER,
            injected: BTreeMap::new(),
            writes: Vec::new(),
            stopped: false,
        }
    }

    /// Returns the number and the fault of the next request. Requests with `apart` are counted
    /// separately.
    pub fn next(&mut self, class: RequestKind, apart: bool) -> (u64, Option<Fault>) {
        let count = if apart { &mut self.separate_requests } else { &mut self.requests };
        let number = *count;
        *count += 1;
        if self.stopped {
            return (number, None);
        }
        if class == RequestKind::Write {
            self.writes.push(number);
        }
        let fault = match &self.source {
            FaultSource::Drawn(chance, odds) => odds.draw_fault(class, &mut chance.nth(number).rng()),
            FaultSource::Listed(faults) => faults.get(&number).copied(),
        };
        if let Some(fault) = fault {
            self.injected.insert(number, fault);
        }
        (number, fault)
    }

    /// Stops all faults.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Returns the injected faults, by request number.
    pub fn injected(&self) -> &BTreeMap<u64, Fault> {
        &self.injected
    }

    /// Returns the numbers of the writes until faults were stopped.
    pub fn writes(&self) -> &[u64] {
        &self.writes
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> u64 {
        self.requests
    }
}
