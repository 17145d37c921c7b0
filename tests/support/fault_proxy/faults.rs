//! Decides which requests fail, and how, from a seed.

use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use http::{Method, Uri};

/// Faults of a proxy, and how often it injects them.
#[derive(Debug, Clone)]
pub struct FaultOptions {
    /// Seed of the faults. With the same seed, the same sequence of requests gets the same ones.
    pub seed: u64,
    /// Share of the writes that fail, in percent. All faults of writes are equally likely.
    pub failed_writes: u8,
    /// Bounds of the time after which a watch ends. All faults of watches are equally likely.
    pub watch_duration: Range<Duration>,
}

/// A fault that a proxy injects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A write is answered with 409, as if its object had just been changed.
    Conflict,
    /// A write is answered with 429, as by an API server that is overloaded.
    TooManyRequests,
    /// A write is answered with 500, as by an API server that has lost its etcd.
    InternalError,
    /// The connection of a write is closed before the API server receives the write.
    DroppedRequest,
    /// The connection of a write is closed after the API server has executed the write.
    LostResponse,
    /// A watch ends, as after the timeout of the API server.
    ClosedWatch,
    /// The connection of a watch is closed, perhaps within an event.
    DroppedWatch,
    /// A watch ends with 410, as if the events since the last one had been compacted.
    ExpiredWatch,
}

impl Fault {
    /// Faults of writes.
    pub const OF_WRITES: [Self; 5] =
        [Self::Conflict, Self::TooManyRequests, Self::InternalError, Self::DroppedRequest, Self::LostResponse];
    /// Faults of watches.
    pub const OF_WATCHES: [Self; 3] = [Self::ClosedWatch, Self::DroppedWatch, Self::ExpiredWatch];
}

/// Treatment of a request by a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Treatment {
    /// Forwards it.
    Forward,
    /// Fails this write.
    FailWrite(Fault),
    /// Forwards this watch, and ends it after some time.
    EndWatch(Fault, Duration),
}

/// Draws the treatment of each request.
#[derive(Debug)]
pub(super) struct FaultSource {
    options: FaultOptions,
    rng: Rng,
}

impl FaultSource {
    /// Returns a source that starts at the seed.
    pub(super) fn new(options: FaultOptions) -> Self {
        let rng = Rng::with_seed(options.seed);
        Self { options, rng }
    }

    /// Decides what is done with the next request.
    pub(super) fn treatment(&mut self, method: &Method, uri: &Uri) -> Treatment {
        if is_watch(method, uri) {
            let fault = self.one_of(&Fault::OF_WATCHES);
            let Range { start, end } = self.options.watch_duration;
            return Treatment::EndWatch(fault, start + (end - start).mul_f64(self.rng.f64()));
        }
        if is_write(method) && self.rng.u8(0..100) < self.options.failed_writes {
            return Treatment::FailWrite(self.one_of(&Fault::OF_WRITES));
        }
        Treatment::Forward
    }

    fn one_of(&mut self, faults: &[Fault]) -> Fault {
        faults[self.rng.usize(0..faults.len())]
    }
}

fn is_write(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH | Method::DELETE)
}

fn is_watch(method: &Method, uri: &Uri) -> bool {
    let mut parameters = uri.query().unwrap_or_default().split('&');
    method == Method::GET && parameters.any(|parameter| matches!(parameter, "watch=true" | "watch=1"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const OBJECT: &str = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads/job-1";
    const WATCH: &str = "/api/v1/pods?&watch=true&resourceVersion=7";

    fn source(seed: u64) -> FaultSource {
        let watch_duration = Duration::from_secs(2)..Duration::from_secs(4);
        FaultSource::new(FaultOptions { seed, failed_writes: 5, watch_duration })
    }

    fn draw(source: &mut FaultSource, method: &Method, uri: &'static str, times: usize) -> Vec<Treatment> {
        (0..times).map(|_| source.treatment(method, &Uri::from_static(uri))).collect()
    }

    fn count(treatments: &[Treatment]) -> BTreeMap<Fault, usize> {
        let mut counts = BTreeMap::new();
        for treatment in treatments {
            if let Treatment::FailWrite(fault) | Treatment::EndWatch(fault, _) = treatment {
                *counts.entry(*fault).or_default() += 1;
            }
        }
        counts
    }

    #[test]
    fn configured_share_of_each_kind_of_write_fails() {
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let counts = count(&draw(&mut source(1), &method, OBJECT, 10_000));

            // 5 % of 10,000, in five kinds. The tolerance is four standard deviations.
            let all: usize = counts.values().sum();
            assert!((413..=587).contains(&all), "{method}: {all}");
            for fault in Fault::OF_WRITES {
                assert!((61..=139).contains(&counts[&fault]), "{method}: {counts:?}");
            }
        }
    }

    #[test]
    fn every_watch_ends_within_its_bounds_in_one_of_all_ways() {
        let treatments = draw(&mut source(1), &Method::GET, WATCH, 10_000);

        let is_in_bounds = |treatment: &Treatment| {
            let bounds = Duration::from_secs(2)..Duration::from_secs(4);
            matches!(treatment, Treatment::EndWatch(_, after) if bounds.contains(after))
        };
        assert!(treatments.iter().all(is_in_bounds));
        let counts = count(&treatments);
        assert!(Fault::OF_WATCHES.iter().all(|fault| (3144..=3522).contains(&counts[fault])), "{counts:?}");
    }

    #[test]
    fn other_read_is_forwarded() {
        for uri in [OBJECT, "/api/v1/pods?&limit=500", "/api/v1/namespaces/default/pods/watch"] {
            let treatments = draw(&mut source(1), &Method::GET, uri, 10_000);
            assert!(treatments.iter().all(|treatment| *treatment == Treatment::Forward), "{uri}");
        }
    }

    #[test]
    fn seed_reproduces_the_faults() {
        let faults_of = |seed| draw(&mut source(seed), &Method::PATCH, OBJECT, 1000);

        assert_eq!(faults_of(7), faults_of(7));
        assert_ne!(faults_of(7), faults_of(8));
    }
}
