//! How long something took, counted by fixed buckets.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::protocol::LATENCY_ENDS_MS;

/// Buckets at the most: those of [`LATENCY_ENDS_MS`] and one without end.
const BUCKETS_MAX: usize = LATENCY_ENDS_MS.len() + 1;

/// Counts since open. Any thread adds to them.
#[derive(Debug)]
pub struct Latencies {
    /// Upper ends of the buckets; one more has none.
    ends_ms: &'static [u64],
    counts: [AtomicU64; BUCKETS_MAX],
    total_us: AtomicU64,
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new(&LATENCY_ENDS_MS)
    }
}

impl Latencies {
    /// Nothing is counted. `ends_ms`: upper ends of buckets, of which the first ones count.
    pub fn new(ends_ms: &'static [u64]) -> Self {
        let ends_ms = &ends_ms[..ends_ms.len().min(BUCKETS_MAX - 1)];
        Self { ends_ms, counts: Default::default(), total_us: AtomicU64::new(0) }
    }

    /// Counts one that took so many microseconds.
    pub fn note(&self, microseconds: u64) {
        self.note_all(microseconds, 1);
    }

    /// Counts so many that took so many microseconds each.
    pub fn note_all(&self, microseconds: u64, count: u64) {
        let bucket = self.ends_ms.partition_point(|end| end * 1_000 < microseconds);
        self.counts[bucket].fetch_add(count, Ordering::Relaxed);
        self.total_us.fetch_add(microseconds.saturating_mul(count), Ordering::Relaxed);
    }

    /// (count of each bucket, sum in microseconds).
    pub fn get(&self) -> (Vec<u64>, u64) {
        let counts = &self.counts[..=self.ends_ms.len()];
        let counts = counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        (counts, self.total_us.load(Ordering::Relaxed))
    }

    /// Begins anew.
    pub fn reset(&self) {
        for count in &self.counts {
            count.store(0, Ordering::Relaxed);
        }
        self.total_us.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_belongs_to_the_first_bucket_whose_end_is_not_below_it() {
        let times = Latencies::default();
        for microseconds in [0, 1_000, 1_001, u64::MAX >> 1] {
            times.note(microseconds);
        }
        let (counts, total_us) = times.get();
        assert_eq!((counts[0], counts[1], counts[BUCKETS_MAX - 1]), (2, 1, 1));
        assert_eq!(counts.iter().sum::<u64>(), 4);
        assert_eq!(total_us, 2_001 + (u64::MAX >> 1));
        times.reset();
        assert_eq!(times.get(), (vec![0; BUCKETS_MAX], 0));
    }

    #[test]
    fn the_ends_may_be_others() {
        let times = Latencies::new(&[1, 3]);
        times.note_all(2_000, 5);
        times.note(4_000);
        assert_eq!(times.get(), (vec![0, 5, 1], 14_000));
    }
}
