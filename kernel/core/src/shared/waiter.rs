//! Sleeping threads and those who wake them.

use parking_lot::{Condvar, Mutex};

/// A thread's sleep that can be cut short.
#[derive(Default)]
pub(crate) struct Waiter {
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

    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.condvar.notify_one();
    }

    pub(crate) fn reset(&self) {
        *self.state.lock() = WaiterState::default();
    }

    /// Sleeps until woken or for that long; false when the thread must end.
    pub(crate) fn sleep(&self, duration: std::time::Duration) -> bool {
        let mut state = self.state.lock();
        if !state.woken && !state.stop {
            self.condvar.wait_for(&mut state, duration);
        }
        state.woken = false;
        !state.stop
    }
}
