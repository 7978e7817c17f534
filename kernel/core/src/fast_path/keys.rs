//! What sends and handlers do with the windows of topics ([`Window`]).
//!
//! A key is 64 bits of a hash that is different in each process. So whoever finds one compares the
//! record in the log, and a fast send that finds one is for Python.

use std::hash::BuildHasher;

use super::dedup::{Dedup, KeyProperty, Window};
use super::key_ring::Noted;
use super::path::FastPath;
use super::policy::{NO_SLOT, Slots, Tables, Topic};
use crate::record::Marks;
use crate::state::Core;

/// Keys that are forgotten together: the oldest are far away in memory, and next to each other.
const FORGOTTEN_AT_ONCE: usize = 64;

/// The same, of a call that asks how many keys there are.
const EXPIRED_PER_COUNT: usize = 1 << 16;

/// What a broker says of the window of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are those of the Python interface
pub struct WindowStats {
    pub topic: String,
    pub keys: usize,
    /// Store time of the oldest key; -1: there is none.
    pub oldest_ms: i64,
    pub cut: u64,
    /// Memory.
    pub bytes_taken: usize,
}

impl Tables {
    /// Whether a topic has a window; false: there is no such slot.
    #[inline]
    pub fn has_window(&self, slot: u32) -> bool {
        self.topics.get(slot as usize).is_some_and(|topic| topic.window.is_some())
    }

    /// The hash of what a message of a topic is known by, which is looked for soon; None: nothing
    /// is.
    #[inline]
    pub fn key_hash(&self, slot: u32, marks: &Marks<'_>) -> Option<u64> {
        let window = self.topics[slot as usize].window.as_ref()?;
        let hash = self.dedup.hasher.hash_one(window.property.of(marks)?);
        window.keys.prefetch(hash);
        Some(hash)
    }

    /// Whether a topic may have had a key lately.
    #[inline]
    pub fn may_have_key(&self, slot: u32, hash: u64) -> bool {
        let window = self.topics[slot as usize].window.as_ref();
        window.is_some_and(|window| window.keys.has(hash))
    }

    /// Notes the key of a record that was just stored.
    pub fn note_key(&mut self, slot: u32, hash: u64, physical_offset: i64, store_timestamp: i64) {
        let Self { topics, dedup, .. } = self;
        let Some(window) = topics[slot as usize].window.as_mut() else { return };
        if window.keys.len().is_multiple_of(FORGOTTEN_AT_ONCE / 2) {
            dedup.count -= window.expire(store_timestamp, FORGOTTEN_AT_ONCE);
        }
        window.keys.push(Noted { hash, physical_offset, store_timestamp });
        dedup.count += 1;
        let count = window.keys.len();
        if dedup.count > dedup.count_max {
            cut(dedup, topics, slot, count);
        }
    }

    /// Forgets the window of a topic.
    pub fn drop_window(&mut self, slot: u32) {
        let dropped = self.topics[slot as usize].window.take();
        self.dedup.count -= dropped.map_or(0, |window| window.keys.len());
    }
}

/// Forgets the oldest keys of the window that has the most, as far as that is known.
fn cut(dedup: &mut Dedup, topics: &mut Slots<Topic>, slot: u32, count: usize) {
    let keys = |slot: u32| {
        let window = topics.get(slot as usize).and_then(|topic| topic.window.as_ref());
        window.map_or(0, |window| window.keys.len())
    };
    if count >= keys(dedup.largest) {
        dedup.largest = slot;
    }
    if let Some(window) = topics[dedup.largest as usize].window.as_mut() {
        // A 256th of what may be there, at the most.
        let wanted = (dedup.count_max / 256).clamp(1, FORGOTTEN_AT_ONCE);
        let cut = wanted.min(window.keys.len());
        (0..cut).for_each(|_| window.keys.pop());
        window.cut += cut as u64;
        dedup.count -= cut;
    }
}

/// Slot of a topic, and place in its window and physical offset of the first record with a key.
fn first(tables: &Tables, core: &Core, topic: &str, key: &[u8]) -> Option<(u32, usize, i64)> {
    let slot = tables.topics.find(topic.as_bytes(), NO_SLOT)?;
    let window = tables.topics[slot as usize].window.as_ref()?;
    let end_ms = core.store_now_ms().saturating_sub(window.length_ms);
    let mut found = None;
    window.keys.any(tables.dedup.hasher.hash_one(key), |index, noted| {
        let is_of_key = core.record(noted.physical_offset).is_some_and(|record| {
            window.property.of(&Marks::scan(record.properties)) == Some(key)
                && record.store_timestamp > end_ms
        });
        if is_of_key {
            found = Some((slot, index, noted.physical_offset));
        }
        is_of_key
    });
    found
}

impl FastPath {
    /// Gives a topic a window, or another length of it; None: it has none any more.
    pub fn set_dedup(&self, topic: &str, rule: Option<(KeyProperty, i64)>) {
        let mut state = self.state.lock();
        let tables = &mut state.tables;
        let Some(slot) = tables.topics.find(topic.as_bytes(), NO_SLOT) else { return };
        let known = tables.topics[slot as usize].window.as_mut();
        match (known, rule) {
            (Some(window), Some((property, window_ms))) if window.property == property => {
                window.length_ms = window_ms;
            }
            _ => {
                tables.drop_window(slot);
                let window = rule.map(|(property, ms)| Box::new(Window::new(property, ms)));
                tables.topics[slot as usize].window = window;
            }
        }
    }

    /// How many keys all windows have at most.
    pub fn set_dedup_limit(&self, keys: usize) {
        self.state.lock().tables.dedup.count_max = keys;
    }

    /// Where the first record with a key is that a topic had within its window.
    #[must_use]
    pub fn find_key(&self, topic: &str, key: &[u8]) -> Option<i64> {
        let state = self.state.lock();
        first(&state.tables, &self.store.lock(), topic, key).map(|(_, _, offset)| offset)
    }

    /// Notes the keys of records of the log that are there, in the order of the log.
    pub fn note_keys(&self, topic: &str, keys: &[(&[u8], i64)]) {
        let mut state = self.state.lock();
        let core = self.store.lock();
        let tables = &mut state.tables;
        let Some(slot) = tables.topics.find(topic.as_bytes(), NO_SLOT) else { return };
        for (key, physical_offset) in keys {
            let Some(record) = core.record(*physical_offset) else { continue };
            if first(tables, &core, topic, key).is_none() {
                let hash = tables.dedup.hasher.hash_one(*key);
                tables.note_key(slot, hash, *physical_offset, record.store_timestamp);
            }
        }
    }

    /// Forgets a key: its message was taken back.
    pub fn forget_key(&self, topic: &str, key: &[u8]) {
        let mut state = self.state.lock();
        let found = first(&state.tables, &self.store.lock(), topic, key);
        if let Some((slot, index, _)) = found
            && let Some(window) = state.tables.topics[slot as usize].window.as_mut()
        {
            window.keys.take_out(index);
        }
    }

    /// The windows of all topics.
    #[must_use]
    pub fn dedup_windows(&self) -> Vec<WindowStats> {
        let mut state = self.state.lock();
        let now_ms = self.store.lock().store_now_ms();
        let Tables { topics, dedup, .. } = &mut state.tables;
        let with_window = topics.iter_mut().filter_map(|topic| {
            let window = topic.window.as_mut()?;
            dedup.count -= window.expire(now_ms, EXPIRED_PER_COUNT);
            Some(WindowStats {
                topic: String::from_utf8_lossy(&topic.name).into_owned(),
                keys: window.keys.present(),
                oldest_ms: window.keys.oldest().map_or(-1, |oldest| oldest.store_timestamp),
                cut: window.cut,
                bytes_taken: window.keys.bytes_taken(),
            })
        });
        with_window.collect()
    }
}
