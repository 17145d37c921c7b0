//! Faults between Sluice and the API server: drawn from a seed, or listed when a failure is
//! replayed or shrunk.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::chance::Chance;

/// A fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// Rejected with this HTTP status and not executed.
    #[serde(rename = "Refused")]
    Refused(u16),
    /// Lost before it arrives; the connection breaks.
    RequestLost,
    /// Executed; the connection breaks before the response arrives.
    #[serde(rename = "AnswerLost")]
    AnswerLost,
    /// Executed; no response ever arrives.
    #[serde(rename = "Unanswered")]
    Unanswered,
    /// Delayed by this many milliseconds.
    #[serde(rename = "Slow")]
    Slow(u32),
    /// The process is killed before the request arrives.
    KilledBefore,
    /// Executed; the process is killed before the response arrives.
    KilledAfter,
    /// Watch events are delayed by up to this many milliseconds.
    #[serde(rename = "Lags")]
    Lags(u32),
    /// The watch breaks after this many milliseconds.
    #[serde(rename = "Breaks")]
    Breaks(u32),
    /// The history is compacted, so a watch that resumes from an older version gets 410 Expired.
    #[serde(rename = "Forgotten")]
    Forgotten,
}

/// Kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
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
pub struct Odds {
    refused: u32,
    request_lost: u32,
    answer_lost: u32,
    slow: u32,
    killed: u32,
    lags: u32,
    breaks: u32,
    forgotten: u32,
}

impl Odds {
    /// Draws the probabilities of a seed: one seed in ten has no faults, most have a few kinds,
    /// each at a separate rate.
    pub fn of(chance: &Chance) -> Self {
        let mut draw = chance.about("weather", 0);
        if draw.u32(0..10) == 0 {
            return Self::default();
        }
        let mut rate = |rates: [u32; 4]| rates[draw.usize(0..4)];
        Self {
            refused: rate([0, 0, 10, 60]),
            request_lost: rate([0, 0, 5, 30]),
            answer_lost: rate([0, 10, 20, 60]),
            slow: rate([0, 0, 20, 50]),
            killed: rate([0, 3, 10, 25]),
            lags: rate([0, 100, 300, 600]),
            breaks: rate([0, 100, 300, 600]),
            forgotten: rate([0, 50, 200, 400]),
        }
    }

    fn fault(&self, class: Class, draw: &mut fastrand::Rng) -> Option<Fault> {
        let refusals: &[u16] = match class {
            Class::Write => &[409, 409, 429, 500, 503],
            _ => &[429, 500, 503],
        };
        let refused = Fault::Refused(refusals[draw.usize(0..refusals.len())]);
        let lost = if draw.bool() { Fault::AnswerLost } else { Fault::Unanswered };
        let killed = if draw.bool() { Fault::KilledBefore } else { Fault::KilledAfter };
        let (slow, lags, breaks) = (draw.u32(100..15_000), draw.u32(50..6_000), draw.u32(0..60_000));
        let of_all = [(self.refused, refused), (self.request_lost, Fault::RequestLost)];
        let of_class: &[(u32, Fault)] = match class {
            Class::Write => &[(self.answer_lost, lost), (self.slow, Fault::Slow(slow)), (self.killed, killed)],
            Class::Read => &[(self.killed / 4, killed), (self.slow, Fault::Slow(slow))],
            Class::Proxy => &[(self.answer_lost, lost), (self.slow, Fault::Slow(slow))],
            Class::Watch => &[
                (self.lags, Fault::Lags(lags)),
                (self.breaks, Fault::Breaks(breaks)),
                (self.forgotten, Fault::Forgotten),
            ],
        };
        let mut odds = of_all.iter().chain(of_class);
        let mut left = draw.u32(0..1000);
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
const APART: u64 = 1 << 32;

/// Injects faults into requests, by request number.
#[derive(Debug, Clone)]
pub struct Faults {
    source: Source,
    requests: u64,
    apart: u64,
    struck: BTreeMap<u64, Fault>,
    writes: Vec<u64>,
    calm: bool,
}

#[derive(Debug, Clone)]
enum Source {
    Drawn(Chance, Odds),
    Listed(BTreeMap<u64, Fault>),
}

impl Faults {
    /// Returns an injector that draws the faults of a seed.
    pub fn drawn(chance: &Chance) -> Self {
        Self::from(Source::Drawn(chance.of("faults"), Odds::of(chance)))
    }

    /// Returns an injector of the listed faults only.
    pub fn listed(faults: BTreeMap<u64, Fault>) -> Self {
        Self::from(Source::Listed(faults))
    }

    fn from(source: Source) -> Self {
        Self { source, requests: 0, apart: APART, struck: BTreeMap::new(), writes: Vec::new(), calm: false }
    }

    /// Returns the number and the fault of the next request. Requests with `apart` are counted
    /// separately.
    pub fn next(&mut self, class: Class, apart: bool) -> (u64, Option<Fault>) {
        let count = if apart { &mut self.apart } else { &mut self.requests };
        let number = *count;
        *count += 1;
        if self.calm {
            return (number, None);
        }
        if class == Class::Write {
            self.writes.push(number);
        }
        let fault = match &self.source {
            Source::Drawn(chance, odds) => odds.fault(class, &mut chance.nth(number).rng()),
            Source::Listed(faults) => faults.get(&number).copied(),
        };
        if let Some(fault) = fault {
            self.struck.insert(number, fault);
        }
        (number, fault)
    }

    /// Stops all faults.
    pub fn calm(&mut self) {
        self.calm = true;
    }

    /// Returns the injected faults, by request number.
    pub fn struck(&self) -> &BTreeMap<u64, Fault> {
        &self.struck
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
