//! Sleeping threads and those who wake them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::shared::sync::{AtomicBool, Condvar, Mutex};

/// A thread's sleep that can be cut short.
#[derive(Default)]
pub(crate) struct Waiter {
    /// There is work for the thread, which did not look since.
    noted: AtomicBool,
    state: Mutex<WaiterState>,
    condvar: Condvar,
}

#[derive(Default)]
struct WaiterState {
    woken: bool,
    stop: bool,
}

impl Waiter {
    pub(crate) fn wake(&self) {
        let mut state = self.state.lock();
        if !state.woken {
            state.woken = true;
            self.condvar.notify_one();
        }
    }

    /// Wakes the thread, unless it was woken so and did not look yet: then without a lock. What the
    /// caller published before, the thread sees after its [`Self::take_note`].
    #[inline]
    pub(crate) fn note(&self) {
        if !self.noted.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Whether there was a note since the last call. To be called before looking for work.
    pub(crate) fn take_note(&self) -> bool {
        self.noted.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.condvar.notify_one();
    }

    pub(crate) fn reset(&self) {
        self.noted.store(false, Ordering::Release);
        *self.state.lock() = WaiterState::default();
    }

    /// Sleeps until woken or for that long; false when the thread must end.
    pub(crate) fn sleep(&self, duration: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.woken && !state.stop {
            self.condvar.wait_for(&mut state, duration);
        }
        state.woken = false;
        !state.stop
    }
}
