//! Send answers that wait until their record is on disk (`SYNC_FLUSH`).
//!
//! One line per connection, in the order of positions, so a flush releases a run from its front
//! with one copy. Nothing is allocated per answer.

use std::collections::VecDeque;

use crate::wire::answer::push_as_flush_timeout;

/// Answers that may wait in all; above, a send is answered with `FLUSH_DISK_TIMEOUT` at once.
pub const PENDING_ANSWERS_MAX: usize = 1_000_000;

/// A buffer above this is given back when it has become empty.
const KEPT_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
struct Entry {
    end_offset: i64,
    deadline_ms: i64,
    size: usize,
}

/// The waiting answers of one connection.
#[derive(Debug, Default)]
pub struct Pending {
    entries: VecDeque<Entry>,
    /// The frames of the entries, from `start` on.
    frames: Vec<u8>,
    start: usize,
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

    /// Adds an answer for a record that ends at `end_offset`. Offsets and deadlines never go back.
    pub fn push(&mut self, end_offset: i64, deadline_ms: i64, frame: &[u8]) {
        self.frames.extend_from_slice(frame);
        self.entries.push_back(Entry { end_offset, deadline_ms, size: frame.len() });
    }

    /// Moves the answers of all records that are on disk to `out`; how many. `note` is told each
    /// deadline and how many answers in a row had it.
    pub fn release(
        &mut self,
        flushed_offset: i64,
        out: &mut Vec<u8>,
        note: &mut impl FnMut(i64, u64),
    ) -> usize {
        let mut size = 0;
        let mut count = 0;
        let mut run = (0, 0);
        while let Some(entry) = self.entries.front() {
            if entry.end_offset > flushed_offset {
                break;
            }
            if run.0 != entry.deadline_ms {
                note(run.0, run.1);
                run = (entry.deadline_ms, 0);
            }
            run.1 += 1;
            size += entry.size;
            count += 1;
            self.entries.pop_front();
        }
        note(run.0, run.1);
        out.extend_from_slice(&self.frames[self.start..self.start + size]);
        self.drop_front(size);
        count
    }

    /// Moves the answers whose time is over to `out`, as `FLUSH_DISK_TIMEOUT`; how many. `note` as
    /// for [`Self::release`].
    pub fn expire(
        &mut self,
        now_ms: i64,
        out: &mut Vec<u8>,
        note: &mut impl FnMut(i64, u64),
    ) -> usize {
        let mut count = 0;
        while let Some(entry) = self.entries.front().copied() {
            if entry.deadline_ms > now_ms {
                break;
            }
            push_as_flush_timeout(out, &self.frames[self.start..self.start + entry.size]);
            self.drop_front(entry.size);
            self.entries.pop_front();
            note(entry.deadline_ms, 1);
            count += 1;
        }
        count
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::answer::Pieces;
    use crate::wire::header::Encoding;

    fn frame(opaque: i32) -> Vec<u8> {
        let mut out = Vec::new();
        Pieces::new("r", true, &[0; 8]).send_answer(&mut out, Encoding::Json, opaque, 0, 0, &[0]);
        out
    }

    #[test]
    fn a_flush_releases_the_front_up_to_its_position() {
        let mut pending = Pending::default();
        for position in 1..=5 {
            pending.push(i64::from(position) * 100, 10, &frame(position));
        }
        let mut out = Vec::new();
        let mut noted = Vec::new();
        let mut note = |deadline, count| noted.push((deadline, count));
        assert_eq!(pending.release(99, &mut out, &mut note), 0);
        assert_eq!(pending.release(300, &mut out, &mut note), 3);
        assert_eq!(out, [frame(1), frame(2), frame(3)].concat());
        out.clear();
        assert_eq!(pending.release(10_000, &mut out, &mut note), 2);
        assert_eq!(out, [frame(4), frame(5)].concat());
        assert!(pending.is_empty());
        noted.retain(|&(_, count)| count > 0);
        assert_eq!(noted, [(10, 3), (10, 2)]);
    }

    #[test]
    fn overdue_answers_come_with_the_timeout_code() {
        let mut pending = Pending::default();
        pending.push(100, 10, &frame(1));
        pending.push(200, 20, &frame(2));
        let mut out = Vec::new();
        assert_eq!(pending.expire(9, &mut out, &mut |_, _| {}), 0);
        assert_eq!(pending.expire(10, &mut out, &mut |_, _| {}), 1);
        let mut expected = Vec::new();
        push_as_flush_timeout(&mut expected, &frame(1));
        assert_eq!(out, expected);
        assert_eq!(pending.len(), 1);
    }
}
