//! Send answers that wait until their record is safe: on disk (`SYNC_FLUSH`), on a slave
//! (`SYNC_MASTER`), or both.
//!
//! One line per connection, in the order of positions, so what becomes safe releases a run from its
//! front with one copy. Nothing is allocated per answer.

use std::collections::VecDeque;

use crate::wire::answer::{code, push_with_code};

/// Answers that may wait in all; above, a send is answered at once as if its time were over.
pub const PENDING_ANSWERS_MAX: usize = 1_000_000;

/// A buffer above this is given back when it has become empty.
const KEPT_BYTES_MAX: usize = 1 << 20;

/// What answers may wait for.
const DISK: u8 = 1;
const SLAVE: u8 = 2;

/// What answers wait for, for how long, and how far that is.
#[derive(Debug, Default)]
pub struct Safety {
    /// `syncFlushTimeout` under `SYNC_FLUSH`, else none.
    pub disk_timeout_ms: Option<i64>,
    /// `slaveTimeout` of a `SYNC_MASTER`, else none.
    pub slave_timeout_ms: Option<i64>,
    /// Everything below is on disk.
    pub flushed: i64,
    /// No flush will come any more.
    pub has_failed: bool,
    /// Everything below is on a slave.
    pub replicated: i64,
    /// A record that ends here or later does not wait for a slave (`isSlaveOK`).
    pub available_below: i64,
    /// An answer waits for a slave since this was cleared.
    pub slave_wanted: bool,
}

/// What an answer waits for, and what it says when that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    waits: u8,
    code: u8,
}

impl Safety {
    /// What the answer to a record waits for that was just appended and ends there.
    #[must_use]
    pub fn awaited(&self, end_offset: i64) -> Awaited {
        let mut awaited = Awaited { waits: 0, code: code::SUCCESS };
        if self.disk_timeout_ms.is_some() {
            awaited.waits |= DISK;
        }
        if self.slave_timeout_ms.is_some() {
            if end_offset >= self.available_below {
                awaited.code = code::SLAVE_NOT_AVAILABLE;
            } else if end_offset > self.replicated {
                awaited.waits |= SLAVE;
            }
        }
        awaited
    }
}

impl Awaited {
    /// Of a sender that waits for nothing.
    pub const NOTHING: Self = Self { waits: 0, code: code::SUCCESS };

    /// Whether it has to wait.
    #[must_use]
    pub const fn is_open(self) -> bool {
        self.waits != 0
    }

    /// Whether it waits for a slave.
    #[must_use]
    pub const fn for_slave(self) -> bool {
        self.waits & SLAVE != 0
    }

    /// The code of the answer when all that it waits for has come.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.code
    }

    /// The code of the answer when nothing comes.
    #[must_use]
    pub fn code_when_late(self) -> u8 {
        let late = match self.waits {
            0 => code::SUCCESS,
            DISK => code::FLUSH_DISK_TIMEOUT,
            _ => code::FLUSH_SLAVE_TIMEOUT,
        };
        self.code.max(late)
    }
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    end_offset: i64,
    begin_ms: i64,
    size: u32,
    awaited: Awaited,
}

impl Entry {
    fn is_over(&self, safety: &Safety) -> bool {
        let waits = self.awaited.waits;
        (waits & DISK == 0 || self.end_offset <= safety.flushed)
            && (waits & SLAVE == 0 || self.end_offset <= safety.replicated)
    }
}

/// The waiting answers of one connection.
#[derive(Debug, Default)]
pub struct Pending {
    entries: VecDeque<Entry>,
    /// The frames of the entries, from `start` on.
    frames: Vec<u8>,
    start: usize,
    /// How many entries in front wait for the disk, and for a slave, no longer: their time is over.
    late_for_disk: usize,
    late_for_slave: usize,
}

impl Pending {
    /// How many answers wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an answer, rendered with the code of success, for a record that ends at `end_offset`.
    /// Offsets and times never go back.
    pub fn push(&mut self, end_offset: i64, begin_ms: i64, awaited: Awaited, frame: &[u8]) {
        self.frames.extend_from_slice(frame);
        self.entries.push_back(Entry { end_offset, begin_ms, size: frame.len() as u32, awaited });
    }

    /// Moves the answers of all records that are safe to `out`; how many. `note` is told when a run
    /// of answers began to wait and how long it is.
    pub fn release(
        &mut self,
        safety: &Safety,
        out: &mut Vec<u8>,
        note: &mut impl FnMut(i64, u64),
    ) -> usize {
        let mut count = 0;
        let mut as_it_is = 0;
        let mut run = (0, 0);
        while let Some(entry) = self.entries.front().copied().filter(|each| each.is_over(safety)) {
            if run.0 != entry.begin_ms {
                note(run.0, run.1);
                run = (entry.begin_ms, 0);
            }
            run.1 += 1;
            count += 1;
            self.entries.pop_front();
            let size = entry.size as usize;
            if entry.awaited.code == code::SUCCESS {
                as_it_is += size;
                continue;
            }
            self.move_front(as_it_is, out);
            as_it_is = 0;
            push_with_code(out, &self.frames[self.start..self.start + size], entry.awaited.code);
            self.drop_front(size);
        }
        note(run.0, run.1);
        self.move_front(as_it_is, out);
        self.late_for_disk = self.late_for_disk.saturating_sub(count);
        self.late_for_slave = self.late_for_slave.saturating_sub(count);
        count
    }

    /// Ends the waits whose time is over, each with a code of its own; `release` moves the answers.
    /// What a slave does counts more than what the disk does.
    pub fn expire(&mut self, safety: &Safety, now_ms: i64) {
        let Self { entries, late_for_disk, late_for_slave, .. } = self;
        if let Some(timeout) = safety.disk_timeout_ms {
            let until = if safety.has_failed { i64::MAX } else { now_ms.saturating_sub(timeout) };
            let late = code::FLUSH_DISK_TIMEOUT;
            expire(entries, late_for_disk, DISK, until, safety.flushed, late);
        }
        // Whoever waited for a slave when none is waited for any more.
        let until = safety.slave_timeout_ms.map_or(i64::MAX, |most| now_ms.saturating_sub(most));
        let late = code::FLUSH_SLAVE_TIMEOUT;
        expire(entries, late_for_slave, SLAVE, until, safety.replicated, late);
    }

    fn move_front(&mut self, size: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.frames[self.start..self.start + size]);
        self.drop_front(size);
    }

    fn drop_front(&mut self, size: usize) {
        self.start += size;
        if self.start == self.frames.len() {
            self.frames.clear();
            self.start = 0;
            if self.frames.capacity() > KEPT_BYTES_MAX {
                self.frames = Vec::new();
            }
        } else if self.start > self.frames.len() / 2 {
            self.frames.drain(..self.start);
            self.start = 0;
        }
    }
}

/// Ends the waits for one thing that began at `until` or before.
fn expire(
    entries: &mut VecDeque<Entry>,
    ended: &mut usize,
    what: u8,
    until: i64,
    reached: i64,
    late: u8,
) {
    while let Some(entry) = entries.get_mut(*ended).filter(|entry| entry.begin_ms <= until) {
        let awaited = &mut entry.awaited;
        if awaited.waits & what != 0 && entry.end_offset > reached {
            awaited.code = awaited.code.max(late);
        }
        awaited.waits &= !what;
        *ended += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::answer::{Pieces, SendAnswer};
    use crate::wire::header::Encoding;

    fn frame(opaque: i32) -> Vec<u8> {
        let mut out = Vec::new();
        let answer = SendAnswer { opaque, physical_offsets: &[0], ..SendAnswer::default() };
        Pieces::new("r", true, &[0; 8]).send_answer(&mut out, Encoding::Json, &answer);
        out
    }

    fn with_code(opaque: i32, code: u8) -> Vec<u8> {
        let mut out = Vec::new();
        push_with_code(&mut out, &frame(opaque), code);
        out
    }

    fn on_disk(flushed: i64) -> Safety {
        Safety { disk_timeout_ms: Some(10), flushed, ..Safety::default() }
    }

    fn both(flushed: i64, replicated: i64) -> Safety {
        Safety { slave_timeout_ms: Some(5), replicated, available_below: 1_000, ..on_disk(flushed) }
    }

    fn released(pending: &mut Pending, safety: &Safety) -> Vec<u8> {
        let mut out = Vec::new();
        pending.release(safety, &mut out, &mut |_, _| {});
        out
    }

    #[test]
    fn a_flush_releases_the_front_up_to_its_position() {
        let mut pending = Pending::default();
        for position in 1..=5 {
            let awaited = on_disk(0).awaited(0);
            pending.push(i64::from(position) * 100, 10, awaited, &frame(position));
        }
        let mut out = Vec::new();
        let mut noted = Vec::new();
        let mut note = |begin, count| noted.push((begin, count));
        assert_eq!(pending.release(&on_disk(99), &mut out, &mut note), 0);
        assert_eq!(pending.release(&on_disk(300), &mut out, &mut note), 3);
        assert_eq!(out, [frame(1), frame(2), frame(3)].concat());
        out.clear();
        assert_eq!(pending.release(&on_disk(10_000), &mut out, &mut note), 2);
        assert_eq!(out, [frame(4), frame(5)].concat());
        assert!(pending.is_empty());
        noted.retain(|&(_, count)| count > 0);
        assert_eq!(noted, [(10, 3), (10, 2)]);
    }

    #[test]
    fn overdue_answers_come_with_the_timeout_code() {
        let mut pending = Pending::default();
        let awaited = on_disk(0).awaited(0);
        pending.push(100, 0, awaited, &frame(1));
        pending.push(200, 10, awaited, &frame(2));
        pending.expire(&on_disk(0), 9);
        assert_eq!(released(&mut pending, &on_disk(0)), b"");
        pending.expire(&on_disk(0), 10);
        assert_eq!(released(&mut pending, &on_disk(0)), with_code(1, 10));
        assert_eq!(pending.len(), 1);
        pending.expire(&Safety { has_failed: true, ..on_disk(0) }, 10);
        assert_eq!(released(&mut pending, &on_disk(0)), with_code(2, 10));
    }

    #[test]
    fn an_answer_waits_for_disk_and_slave_alike() {
        for (flushed, replicated) in [(0, 100), (100, 0)] {
            let mut pending = Pending::default();
            pending.push(100, 0, both(0, 0).awaited(100), &frame(1));
            assert_eq!(released(&mut pending, &both(flushed, replicated)), b"");
            assert_eq!(released(&mut pending, &both(100, 100)), frame(1));
        }
    }

    #[test]
    fn a_late_slave_counts_more_than_a_late_disk_and_stays_late() {
        let slave_first = Safety { disk_timeout_ms: Some(20), ..both(0, 0) };
        let mut pending = Pending::default();
        pending.push(100, 0, slave_first.awaited(100), &frame(1));
        pending.expire(&slave_first, 5);
        assert_eq!(released(&mut pending, &Safety { replicated: 100, ..slave_first }), b"");
        assert_eq!(released(&mut pending, &both(100, 100)), with_code(1, 12));
        let disk_first = Safety { slave_timeout_ms: Some(20), ..both(0, 0) };
        for (end, code) in [(100, 10), (200, 12)] {
            pending.push(end, 0, disk_first.awaited(end), &frame(1));
            pending.expire(&disk_first, 10);
            let partly = Safety { replicated: 100, ..disk_first };
            if end == 200 {
                assert_eq!(released(&mut pending, &partly), b"");
                pending.expire(&partly, 20);
            }
            assert_eq!(released(&mut pending, &partly), with_code(1, code));
        }
    }

    #[test]
    fn without_a_slave_an_answer_waits_for_the_disk_alone_and_says_so() {
        let awaited = both(0, 0).awaited(1_000);
        assert!(awaited.is_open() && !awaited.for_slave());
        let mut pending = Pending::default();
        pending.push(1_000, 0, awaited, &frame(1));
        assert_eq!(released(&mut pending, &both(999, 0)), b"");
        assert_eq!(released(&mut pending, &both(1_000, 0)), with_code(1, 11));
        let no_flush = Safety { disk_timeout_ms: None, ..both(0, 0) };
        assert_eq!(no_flush.awaited(1_000), Awaited { waits: 0, code: 11 });
        assert_eq!(no_flush.awaited(999), Awaited { waits: SLAVE, code: 0 });
        assert_eq!(Safety::default().awaited(0), Awaited::NOTHING);
    }

    #[test]
    fn waits_for_a_slave_end_when_none_is_waited_for_any_more() {
        let mut pending = Pending::default();
        let waited = Safety { disk_timeout_ms: None, ..both(0, 0) };
        pending.push(100, 0, waited.awaited(100), &frame(1));
        pending.push(200, 0, waited.awaited(200), &frame(2));
        let ended = Safety { replicated: 100, ..Safety::default() };
        pending.expire(&ended, 0);
        let expected = [frame(1), with_code(2, 12)].concat();
        assert_eq!(released(&mut pending, &ended), expected);
    }
}
