//! How far the log has come, for threads that do not hold the store's lock.

use std::sync::atomic::Ordering;

use crate::shared::sync::AtomicI64;

/// A physical offset, and the store timestamp of a record before it.
#[derive(Default)]
pub(crate) struct Position {
    offset: AtomicI64,
    timestamp: AtomicI64,
}

impl Position {
    /// What comes before the offset was written before this call.
    #[inline]
    pub(crate) fn publish(&self, offset: i64, timestamp: i64) {
        self.publish_offset(offset);
        self.publish_timestamp(timestamp);
    }

    /// The offset alone; the time stays one of a record before it.
    #[inline]
    pub(crate) fn publish_offset(&self, offset: i64) {
        self.offset.store(offset, Ordering::Release);
    }

    /// The time alone, of a record before the offset that is published.
    #[inline]
    pub(crate) fn publish_timestamp(&self, timestamp: i64) {
        self.timestamp.store(timestamp, Ordering::Release);
    }

    #[inline]
    pub(crate) fn offset(&self) -> i64 {
        self.offset.load(Ordering::Acquire)
    }

    /// (offset, timestamp). The time is read first: whatever it names is then before the offset.
    pub(crate) fn get(&self) -> (i64, i64) {
        let timestamp = self.timestamp.load(Ordering::Acquire);
        (self.offset(), timestamp)
    }
}
