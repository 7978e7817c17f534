//! How long sends took, in whole milliseconds: what the store's statistics are made of; and how long
//! calls of gRPC took that were answered here.
//!
//! One check of the clock per chunk of a socket, not per message: the sends of a chunk are answered
//! together.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::protocol::RPC_ENDS_MS;
use crate::protocol::grpc::{ACK_MESSAGE, OK, RECEIVE_MESSAGE, SEND_MESSAGE, code_of};
use crate::shared::latencies::Latencies;
use crate::wire::answer::code;

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

/// What sends are answered with, as remoting has it.
const SEND_CODES: [u8; 4] =
    [code::SUCCESS, code::FLUSH_DISK_TIMEOUT, code::SLAVE_NOT_AVAILABLE, code::FLUSH_SLAVE_TIMEOUT];

/// Calls of one kind and code: the path, the code of gRPC, the count of each bucket of
/// [`RPC_ENDS_MS`], and the sum of their times in microseconds.
pub type CallCounts = (&'static str, u64, Vec<u64>, u64);

/// Calls that were answered here, from the chunk that brought them on.
#[derive(Debug)]
pub struct CallTimes {
    sends: [Latencies; SEND_CODES.len()],
    receives: Latencies,
    acks: Latencies,
}

impl Default for CallTimes {
    fn default() -> Self {
        let times = || Latencies::new(&RPC_ENDS_MS);
        Self { sends: SEND_CODES.map(|_| times()), receives: times(), acks: times() }
    }
}

impl CallTimes {
    /// Counts a send with the code of its answer.
    pub fn note_send(&self, code: u8, took: Duration) {
        let mut all = SEND_CODES.iter().zip(&self.sends);
        if let Some((_, times)) = all.find(|(known, _)| **known == code) {
            times.note(took.as_micros() as u64);
        }
    }

    /// Counts receives and acknowledgements, all of which succeeded.
    pub fn note_pops(&self, receives: u64, acks: u64, took: Duration) {
        for (times, count) in [(&self.receives, receives), (&self.acks, acks)] {
            if count > 0 {
                times.note_all(took.as_micros() as u64, count);
            }
        }
    }

    /// What was counted since the store was made, of calls that there were.
    pub fn get(&self) -> Vec<CallCounts> {
        let sends = SEND_CODES.iter().zip(&self.sends);
        let sends = sends.map(|(code, times)| (SEND_MESSAGE, code_of(*code), times));
        let pops = [(RECEIVE_MESSAGE, OK, &self.receives), (ACK_MESSAGE, OK, &self.acks)];
        let all = sends.chain(pops).map(|(path, code, times)| {
            let (counts, total_us) = times.get();
            (str::from_utf8(path).unwrap_or_default(), code, counts, total_us)
        });
        all.filter(|(_, _, counts, _)| counts.iter().any(|count| *count > 0)).collect()
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

    #[test]
    fn calls_are_counted_by_kind_and_code() {
        let times = CallTimes::default();
        times.note_send(code::SUCCESS, Duration::from_millis(2));
        times.note_send(code::FLUSH_DISK_TIMEOUT, Duration::from_secs(5));
        times.note_pops(2, 0, Duration::from_micros(10));
        let found = times.get();
        let kinds: Vec<_> = found.iter().map(|each| (each.0.rsplit('/').next(), each.1)).collect();
        let late = code_of(code::FLUSH_DISK_TIMEOUT);
        let (send, receive) = (Some("SendMessage"), Some("ReceiveMessage"));
        assert_eq!(kinds, [(send, OK), (send, late), (receive, OK)]);
        assert_eq!((found[0].2[1], found[0].3), (1, 2_000));
        assert_eq!((found[1].2.last(), found[1].3), (Some(&1), 5_000_000));
        assert_eq!((found[2].2[0], found[2].3), (2, 20));
    }
}
