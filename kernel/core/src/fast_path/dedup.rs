//! Keys that a topic had within a window of time (`dedup.window.ms`).

use std::hash::RandomState;

use super::key_ring::KeyRing;
use crate::protocol::DEDUP_KEYS_MAX;
use crate::record::Marks;

/// What a message is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyProperty {
    /// `UNIQ_KEY`.
    Unique,
    /// `KEYS`, all of its text.
    Keys,
}

impl KeyProperty {
    /// The value that a message has of it.
    pub fn of<'a>(self, marks: &Marks<'a>) -> Option<&'a [u8]> {
        match self {
            Self::Unique => marks.uniq_key,
            Self::Keys => marks.keys,
        }
    }
}

/// The keys of one topic.
#[derive(Debug)]
pub struct Window {
    pub property: KeyProperty,
    pub length_ms: i64,
    pub keys: KeyRing,
    /// Keys that were forgotten before their time.
    pub cut: u64,
}

impl Window {
    /// Without keys.
    pub fn new(property: KeyProperty, window_ms: i64) -> Self {
        Self { property, length_ms: window_ms, keys: KeyRing::default(), cut: 0 }
    }

    /// Forgets keys whose time is over; how many.
    pub fn expire(&mut self, now_ms: i64, count_max: usize) -> usize {
        let end_ms = now_ms.saturating_sub(self.length_ms);
        let mut count = 0;
        while count < count_max
            && self.keys.oldest().is_some_and(|noted| noted.store_timestamp <= end_ms)
        {
            self.keys.pop();
            count += 1;
        }
        count
    }
}

/// What the windows of all topics share.
#[derive(Debug)]
pub struct Dedup {
    pub hasher: RandomState,
    /// Keys of all windows.
    pub count: usize,
    pub count_max: usize,
    /// Slot of a window that has many keys; the largest number: of none.
    pub largest: u32,
}

impl Default for Dedup {
    fn default() -> Self {
        let hasher = RandomState::new();
        Self { hasher, count: 0, count_max: DEDUP_KEYS_MAX, largest: u32::MAX }
    }
}
