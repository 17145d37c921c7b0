//! What goes wrong between Sluice and the API server: drawn from a seed, or listed, when a failure is made shorter.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::chance::Chance;

/// What goes wrong with one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// It is refused with this HTTP status, and not carried out.
    Refused(u16),
    /// It never arrives, and the connection breaks.
    RequestLost,
    /// It is carried out, and the connection breaks before the answer comes.
    AnswerLost,
    /// It is carried out, and no answer ever comes.
    Unanswered,
    /// It takes so many milliseconds to arrive.
    Slow(u32),
    /// The process is killed before it arrives.
    KilledBefore,
    /// It is carried out, and the process is killed before the answer comes.
    KilledAfter,
    /// What a watch sees, it sees so many milliseconds late.
    Lags(u32),
    /// A watch breaks after so many milliseconds.
    Breaks(u32),
    /// The past is forgotten, so a watch that goes on from there is told that it has expired.
    Forgotten,
}

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It watches.
    Watch,
    /// It speaks to Ray.
    Proxy,
}

/// How often what goes wrong, in thousandths of the requests that it can happen to.
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
    /// The weather of a seed. In some nothing goes wrong at all, in most a few things do, each at a rate of its own.
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

/// The number of the first request that is counted apart: histories without any of these stay what they were before there were.
const APART: u64 = 1 << 32;

/// What becomes of requests, by their number.
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
    /// Those of a seed.
    pub fn drawn(chance: &Chance) -> Self {
        Self::from(Source::Drawn(chance.of("faults"), Odds::of(chance)))
    }

    /// These, and no others.
    pub fn listed(faults: BTreeMap<u64, Fault>) -> Self {
        Self::from(Source::Listed(faults))
    }

    fn from(source: Source) -> Self {
        Self { source, requests: 0, apart: APART, struck: BTreeMap::new(), writes: Vec::new(), calm: false }
    }

    /// The number of the next request, and what goes wrong with it. Those `apart` are counted on their own.
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

    /// From now on nothing goes wrong.
    pub fn calm(&mut self) {
        self.calm = true;
    }

    /// What has gone wrong so far, by the number of the request.
    pub fn struck(&self) -> &BTreeMap<u64, Fault> {
        &self.struck
    }

    /// The numbers of the writes that there were until nothing went wrong any more.
    pub fn writes(&self) -> &[u64] {
        &self.writes
    }

    /// How many requests there have been.
    pub fn requests(&self) -> u64 {
        self.requests
    }
}
