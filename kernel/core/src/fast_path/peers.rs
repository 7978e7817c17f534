//! What the fast path keeps for each connection besides its unfinished frame: its held pulls, the
//! answers that wait until their record is safe, and those that are ready for `drain_ready`.

use hashbrown::HashMap;

use super::hold::List;
use super::pending::{Awaited, PENDING_ANSWERS_MAX, Pending, Safety};

/// Ready answers above this are not made yet: woken pulls wait until `drain_ready` made space.
pub const READY_BYTES_MAX: usize = 64 << 20;

/// One connection.
#[derive(Debug, Default)]
pub struct Peer {
    pub holds: List,
    /// Whether a connection of the fast path has it, which will say when it closes.
    pub is_open: bool,
    pending: Pending,
    ready: Vec<u8>,
}

/// All connections that have something to keep.
#[derive(Debug, Default)]
pub struct Peers {
    by_id: HashMap<u64, Peer>,
    /// Connections with ready answers, in the order of their first one.
    ready_line: Vec<u64>,
    ready_bytes: usize,
    /// Connections with answers that wait.
    waiting: Vec<u64>,
    pending_count: usize,
}

impl Peers {
    /// A connection, made when it is new.
    pub fn peer(&mut self, connection: u64) -> &mut Peer {
        self.by_id.entry(connection).or_default()
    }

    /// How many connections have something to keep.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// A connection that is known.
    pub fn known(&mut self, connection: u64) -> Option<&mut Peer> {
        self.by_id.get_mut(&connection)
    }

    /// Forgets a connection and its answers.
    pub fn remove(&mut self, connection: u64) {
        if let Some(peer) = self.by_id.remove(&connection) {
            self.ready_bytes -= peer.ready.len();
            self.pending_count -= peer.pending.len();
        }
    }

    /// Whether `take` has something.
    #[must_use]
    pub const fn has_ready(&self) -> bool {
        self.ready_bytes > 0
    }

    /// Whether more ready answers may be made.
    #[must_use]
    pub const fn has_capacity(&self) -> bool {
        self.ready_bytes < READY_BYTES_MAX
    }

    /// Lets `write` add frames to the ready answers of a connection.
    pub fn write_ready<R>(&mut self, connection: u64, write: impl FnOnce(&mut Vec<u8>) -> R) -> R {
        let ready = &mut self.by_id.entry(connection).or_default().ready;
        let before = ready.len();
        let result = write(ready);
        if before == 0 && !ready.is_empty() {
            self.ready_line.push(connection);
        }
        self.ready_bytes += ready.len() - before;
        result
    }

    /// Whether another answer may wait.
    #[must_use]
    pub const fn may_wait(&self) -> bool {
        self.pending_count < PENDING_ANSWERS_MAX
    }

    /// Lets an answer wait until the log is safe up to `end_offset`.
    pub fn wait(
        &mut self,
        connection: u64,
        end_offset: i64,
        begin_ms: i64,
        awaited: Awaited,
        frame: &[u8],
    ) {
        let peer = self.by_id.entry(connection).or_default();
        peer.is_open = true;
        let pending = &mut peer.pending;
        if pending.is_empty() {
            self.waiting.push(connection);
        }
        pending.push(end_offset, begin_ms, awaited, frame);
        self.pending_count += 1;
    }

    /// Makes the answers ready whose records are safe, and with a time those whose waits are over;
    /// `note` is told when they began to wait and how many did then.
    pub fn release(
        &mut self,
        safety: &Safety,
        now_ms: Option<i64>,
        mut note: impl FnMut(i64, u64),
    ) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.retain(|connection| {
            let Some(peer) = self.by_id.get_mut(connection) else {
                return false;
            };
            let before = peer.ready.len();
            if let Some(now_ms) = now_ms {
                peer.pending.expire(safety, now_ms);
            }
            self.pending_count -= peer.pending.release(safety, &mut peer.ready, &mut note);
            if before == 0 && !peer.ready.is_empty() {
                self.ready_line.push(*connection);
            }
            self.ready_bytes += peer.ready.len() - before;
            !peer.pending.is_empty()
        });
        self.waiting = waiting;
    }

    /// Takes the ready answers, one run of frames per connection.
    pub fn take(&mut self) -> Vec<(u64, Vec<u8>)> {
        self.ready_bytes = 0;
        let mut taken = Vec::with_capacity(self.ready_line.len());
        for connection in self.ready_line.drain(..) {
            let Some(peer) = self.by_id.get_mut(&connection) else {
                continue;
            };
            let ready = std::mem::take(&mut peer.ready);
            if !peer.is_open && peer.holds.is_empty() {
                // The slow path held a pull, perhaps of a connection that was closed meanwhile.
                self.by_id.remove(&connection);
            }
            if !ready.is_empty() {
                taken.push((connection, ready));
            }
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::answer::{Pieces, SendAnswer};
    use crate::wire::header::Encoding;

    fn on_disk(flushed: i64) -> Safety {
        Safety { disk_timeout_ms: Some(10), flushed, ..Safety::default() }
    }

    #[test]
    fn ready_answers_of_a_connection_come_as_one_run() {
        let mut peers = Peers::default();
        for (connection, text) in [(2, &b"a"[..]), (1, b"b"), (2, b"c")] {
            peers.write_ready(connection, |out| out.extend_from_slice(text));
        }
        assert!(peers.has_ready());
        assert_eq!(peers.take(), [(2, b"ac".to_vec()), (1, b"b".to_vec())]);
        assert!(!peers.has_ready() && peers.take().is_empty());
    }

    #[test]
    fn answers_of_a_closed_connection_are_dropped() {
        let mut peers = Peers::default();
        peers.write_ready(1, |out| out.extend_from_slice(b"a"));
        peers.wait(1, 10, 10, on_disk(0).awaited(10), b"frame");
        peers.remove(1);
        peers.release(&on_disk(100), None, |_, _| {});
        assert!(!peers.has_ready() && peers.take().is_empty());
        assert_eq!(peers.pending_count, 0);
        assert!(peers.waiting.is_empty());
    }

    #[test]
    fn one_flush_releases_the_answers_of_many_connections() {
        let mut frame = Vec::new();
        let answer = SendAnswer { opaque: 1, physical_offsets: &[0], ..SendAnswer::default() };
        Pieces::new("r", true, &[0; 8]).send_answer(&mut frame, Encoding::Json, &answer);
        let mut peers = Peers::default();
        for connection in 1..=3 {
            let end = i64::try_from(connection).unwrap() * 10;
            peers.wait(connection, end, 90, on_disk(0).awaited(end), &frame);
        }
        peers.release(&on_disk(20), None, |_, _| {});
        assert_eq!(peers.take(), [(1, frame.clone()), (2, frame.clone())]);
        peers.release(&on_disk(20), Some(100), |_, _| {});
        let late = peers.take();
        assert_eq!((late.len(), late[0].0), (1, 3));
        assert_ne!(late[0].1, frame);
        assert_eq!(peers.pending_count, 0);
    }
}
