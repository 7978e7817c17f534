//! How long something took, counted by fixed buckets.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::protocol::LATENCY_ENDS_MS;

/// Buckets: those of [`LATENCY_ENDS_MS`] and one without end.
pub const BUCKETS: usize = LATENCY_ENDS_MS.len() + 1;

/// Counts since open. Any thread adds to them.
#[derive(Debug, Default)]
pub struct Latencies {
    counts: [AtomicU64; BUCKETS],
    total_us: AtomicU64,
}

impl Latencies {
    /// Counts one that took so many microseconds.
    pub fn note(&self, microseconds: u64) {
        let bucket = LATENCY_ENDS_MS.partition_point(|end| end * 1_000 < microseconds);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.total_us.fetch_add(microseconds, Ordering::Relaxed);
    }

    /// (count of each bucket, sum in microseconds).
    pub fn get(&self) -> (Vec<u64>, u64) {
        let counts = self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
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
        assert_eq!((counts[0], counts[1], counts[BUCKETS - 1]), (2, 1, 1));
        assert_eq!(counts.iter().sum::<u64>(), 4);
        assert_eq!(total_us, 2_001 + (u64::MAX >> 1));
        times.reset();
        assert_eq!(times.get(), (vec![0; BUCKETS], 0));
    }
}
