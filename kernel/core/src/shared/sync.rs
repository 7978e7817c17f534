//! The primitives of what threads share, which loom replaces in its own tests: those try every
//! order that the memory model allows (`RUSTFLAGS="--cfg loom"`).

#[cfg(not(all(test, loom)))]
pub(crate) use parking_lot::{Condvar, Mutex};
#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicI64};

#[cfg(all(test, loom))]
pub(crate) use self::modelled::{AtomicBool, AtomicI64, Condvar, Mutex};

/// Loom's primitives with the methods of `parking_lot`.
#[cfg(all(test, loom))]
mod modelled {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    use loom::sync;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64};

    pub(crate) struct Mutex<T>(sync::Mutex<T>);

    pub(crate) struct Guard<'a, T>(Option<sync::MutexGuard<'a, T>>);

    impl<T: Default> Default for Mutex<T> {
        fn default() -> Self {
            Self(sync::Mutex::new(T::default()))
        }
    }

    impl<T> Mutex<T> {
        pub(crate) fn lock(&self) -> Guard<'_, T> {
            Guard(self.0.lock().ok())
        }
    }

    impl<T> Deref for Guard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }

    pub(crate) struct Condvar(sync::Condvar);

    impl Default for Condvar {
        fn default() -> Self {
            Self(sync::Condvar::new())
        }
    }

    impl Condvar {
        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Time does not pass here: whoever is not woken waits for ever, which loom reports.
        pub(crate) fn wait_for<T>(&self, guard: &mut Guard<'_, T>, _: Duration) {
            guard.0 = guard.0.take().and_then(|held| self.0.wait(held).ok());
        }
    }
}
