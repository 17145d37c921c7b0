//! Random draws that depend only on a seed and on their subject.
//!
//! With a single stream of random numbers, every draw would depend on those before it: without one
//! script step, all later draws would differ, and no failure could be shrunk. Here each subject has
//! a separate stream.

use fastrand::Rng;

/// A random source: a seed, narrowed to a subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeededRandom {
    state: u64,
}

impl SeededRandom {
    /// Returns the source of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: mix(seed) }
    }

    /// Returns the source of a subject, as in `chance.of("pods").about("starts", 3)`.
    pub fn subject(&self, subject: &str) -> Self {
        // FNV-1a distinguishes names; `mix` spreads its result over all bits.
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let name = subject.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
        Self { state: mix(self.state ^ mix(name)) }
    }

    /// Returns the source of the element with this number.
    pub fn nth(&self, ordinal: u64) -> Self {
        Self { state: mix(self.state.wrapping_add(mix(ordinal ^ 0x5851_f42d_4c95_7f2d))) }
    }

    /// Returns the generator of a subject and an ordinal: equal for equal arguments and seed, on
    /// every machine.
    pub fn rng_for(&self, subject: &str, ordinal: u64) -> Rng {
        self.subject(subject).nth(ordinal).rng()
    }

    /// Returns the generator of this source.
    pub fn rng(&self) -> Rng {
        Rng::with_seed(self.state)
    }
}

/// Spreads a number over all bits, bijectively (the finalizer of SplitMix64).
fn mix(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn draws_are_the_same_on_every_machine() {
        let mut draws = SeededRandom::new(7).rng_for("pod", 3);

        let drawn: Vec<u32> = (0..4).map(|_| draws.u32(0..1000)).collect();

        assert_eq!(drawn, [501, 232, 116, 42]);
    }

    #[test]
    fn each_seed_subject_and_ordinal_has_a_separate_stream() {
        let mut first = BTreeSet::new();

        for seed in 0..10 {
            for subject in ["pod", "node", "", "pods"] {
                for ordinal in 0..100 {
                    first.insert(SeededRandom::new(seed).rng_for(subject, ordinal).u64(..));
                }
            }
        }

        assert_eq!(first.len(), 10 * 4 * 100);
    }

    #[test]
    fn draws_on_one_subject_do_not_affect_another() {
        let chance = SeededRandom::new(1);
        let undisturbed = chance.rng_for("second", 0).u64(..);

        let _ = chance.rng_for("first", 0).u64(..);

        assert_eq!(chance.rng_for("second", 0).u64(..), undisturbed);
    }

    #[test]
    fn draws_of_neighboring_ordinals_are_unbiased() {
        let chance = SeededRandom::new(42);

        let heads = (0..10_000).filter(|&ordinal| chance.rng_for("coin", ordinal).bool()).count();

        assert!((4_800..=5_200).contains(&heads), "{heads} of 10000");
    }
}
