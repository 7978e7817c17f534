//! How long sends took, in whole milliseconds: what the store's statistics are made of.
//!
//! One check of the clock per chunk of a socket, not per message: the sends of a chunk are answered
//! together.

use std::collections::BTreeMap;

/// Longer than the last limit of the statistics: what took longer counts as this long.
const MS_MAX: i64 = 10_001;

/// Sends by their time.
#[derive(Debug, Default)]
pub struct PutTimes {
    /// Those that took less than a millisecond: nearly all.
    quick: u64,
    slower: BTreeMap<i64, u64>,
}

impl PutTimes {
    /// Counts sends that took so long; a clock that went back counts as no time.
    pub fn note(&mut self, milliseconds: i64, count: u64) {
        if milliseconds <= 0 {
            self.quick += count;
        } else if count > 0 {
            *self.slower.entry(milliseconds.min(MS_MAX)).or_default() += count;
        }
    }

    /// (milliseconds, sends) since the last call.
    pub fn take(&mut self) -> Vec<(i64, u64)> {
        let mut taken = Vec::new();
        if self.quick > 0 {
            taken.push((0, std::mem::take(&mut self.quick)));
        }
        taken.extend(std::mem::take(&mut self.slower));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_are_counted_by_their_time_and_taken_once() {
        let mut times = PutTimes::default();
        for (milliseconds, count) in [(0, 5), (3, 1), (-9, 2), (3, 1), (1 << 40, 1), (7, 0)] {
            times.note(milliseconds, count);
        }
        assert_eq!(times.take(), [(0, 7), (3, 2), (10_001, 1)]);
        assert_eq!(times.take(), []);
    }
}
