//! Group commit: many ask for a flush, and one flush covers all that asked.

use std::sync::atomic::Ordering;

use crate::shared::sync::AtomicI64;
use crate::shared::waiter::Waiter;

/// Up to where the log is on the disk, and up to where somebody wants it there.
#[derive(Default)]
pub(crate) struct GroupCommit {
    flushed: AtomicI64,
    requested: AtomicI64,
    /// The flush thread's sleep.
    pub(crate) wait: Waiter,
}

impl GroupCommit {
    /// Starts a new life.
    pub(crate) fn reset(&self, flushed: i64) {
        self.flushed.store(flushed, Ordering::Release);
        self.requested.store(0, Ordering::Release);
        self.wait.reset();
    }

    pub(crate) fn flushed(&self) -> i64 {
        self.flushed.load(Ordering::Acquire)
    }

    pub(crate) fn set_flushed(&self, offset: i64) {
        self.flushed.fetch_max(offset, Ordering::AcqRel);
    }

    /// Wakes the flush thread for an offset that nobody asked for yet.
    pub(crate) fn request(&self, offset: i64) {
        if offset > self.flushed() && self.requested.fetch_max(offset, Ordering::AcqRel) < offset {
            self.wait.wake();
        }
    }

    pub(crate) fn requested(&self) -> i64 {
        self.requested.load(Ordering::Acquire)
    }

    /// Takes back a request for more than there is.
    pub(crate) fn drop_excess(&self, end: i64) {
        self.requested.fetch_min(self.flushed().max(end), Ordering::AcqRel);
    }
}
