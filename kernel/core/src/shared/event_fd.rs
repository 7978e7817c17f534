//! How threads wake the event loop.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A descriptor that is readable after a signal. Where the system has none left it never is.
pub(crate) struct EventFd {
    descriptor: Option<OwnedFd>,
}

impl EventFd {
    pub(crate) fn new() -> Self {
        // SAFETY: plain system call; the result is checked before it is owned.
        let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        // SAFETY: a fresh descriptor that nobody else owns.
        let descriptor = (raw >= 0).then(|| unsafe { OwnedFd::from_raw_fd(raw) });
        EventFd { descriptor }
    }

    pub(crate) fn signal(&self) {
        if let Some(descriptor) = &self.descriptor {
            let one = 1_u64.to_ne_bytes();
            // SAFETY: 8 readable bytes and an open descriptor. A full counter is readable already.
            unsafe { libc::write(descriptor.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        }
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.descriptor.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }
}
