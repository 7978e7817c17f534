//! The ids of requests and of messages.

use std::sync::atomic::{AtomicI32, Ordering};

/// Longest id: that of a host with an IPv6 address has 56 characters.
const ID_BYTES_MAX: usize = 63;

/// Characters of the counter.
const COUNTER_BYTES: usize = 4;

/// Request ids: counted up from a first one, wrapping.
#[derive(Debug)]
pub struct Opaques(AtomicI32);

impl Opaques {
    /// Counts from `first` on.
    #[must_use]
    pub const fn new(first: i32) -> Self {
        Self(AtomicI32::new(first))
    }

    /// The next id.
    pub fn allocate(&self) -> i32 {
        self.0.fetch_add(1, Ordering::Relaxed) // which wraps
    }

    /// The next id that no open request has.
    pub fn unused(&self, is_open: impl Fn(i32) -> bool) -> i32 {
        loop {
            let opaque = self.allocate();
            if !is_open(opaque) {
                return opaque;
            }
        }
    }
}

/// A message id.
#[derive(Clone, Copy, Debug)]
pub struct Id {
    text: [u8; ID_BYTES_MAX],
    size: u8,
}

impl Id {
    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.text[..usize::from(self.size)]).unwrap_or_default()
    }
}

/// Message ids: what all of a millisecond begin with, and a counter of 16 bits.
#[derive(Debug)]
pub struct MessageIds {
    /// The one that was made last.
    last: Id,
    /// Its millisecond.
    ms: Option<i64>,
    counter: u16,
}

impl Default for MessageIds {
    fn default() -> Self {
        let last = Id { text: [0; ID_BYTES_MAX], size: 0 };
        Self { last, ms: None, counter: 0 }
    }
}

impl MessageIds {
    /// The next id; None: the millisecond is another, so [`MessageIds::begin`] has to make it.
    pub fn next(&mut self, now_ms: i64) -> Option<Id> {
        (self.ms == Some(now_ms)).then(|| self.count_up())
    }

    /// The first id of a millisecond, whose ids begin with `head`; None: no id begins so.
    pub fn begin(&mut self, now_ms: i64, head: &str) -> Option<Id> {
        let size = head.len() + COUNTER_BYTES;
        self.last.text.get_mut(..size)?[..head.len()].copy_from_slice(head.as_bytes());
        self.last.size = size as u8;
        self.ms = Some(now_ms);
        Some(self.count_up())
    }

    fn count_up(&mut self) -> Id {
        let counter = self.counter;
        self.counter = counter.wrapping_add(1);
        let end = usize::from(self.last.size);
        for (place, shift) in (end - COUNTER_BYTES..end).zip([12, 8, 4, 0]) {
            self.last.text[place] = b"0123456789ABCDEF"[usize::from(counter >> shift & 15)];
        }
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::{MessageIds, Opaques};

    #[test]
    fn opaques_wrap_and_leave_out_those_that_are_open() {
        let opaques = Opaques::new(i32::MAX);
        assert_eq!(opaques.unused(|it| it == i32::MAX || it == i32::MIN), i32::MIN + 1);
        assert_eq!(opaques.allocate(), i32::MIN + 2);
    }

    #[test]
    fn an_id_is_the_head_of_its_millisecond_and_a_counter_that_goes_on() {
        let mut ids = MessageIds::default();
        assert!(ids.next(1).is_none());
        assert_eq!(ids.begin(1, "AB").unwrap().as_str(), "AB0000");
        assert_eq!(ids.next(1).unwrap().as_str(), "AB0001");
        assert!(ids.next(2).is_none());
        assert_eq!(ids.begin(2, "ABC").unwrap().as_str(), "ABC0002");
        ids.counter = 0xFFFF;
        assert_eq!(ids.next(2).unwrap().as_str(), "ABCFFFF");
        assert_eq!(ids.next(2).unwrap().as_str(), "ABC0000");
    }

    #[test]
    fn a_head_that_is_too_long_begins_no_id() {
        let mut ids = MessageIds::default();
        assert!(ids.begin(1, &"A".repeat(60)).is_none());
        assert!(ids.begin(1, &"A".repeat(59)).is_some());
    }
}
