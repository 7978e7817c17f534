//! The transient store pool (`transientStorePoolEnable`): records are written to memory of our own,
//! a thread writes them to the page cache a little later (*commit*), and only what is committed can
//! be read, flushed, indexed. An append then never waits for a page of a file; what is not committed
//! yet is lost when the process is killed.
//!
//! A buffer is as large as a file of the log and belongs to one file until that is committed whole.
//! Its memory comes with its first use and is kept. It is not locked (RocketMQ locks all of it at the
//! start): a machine that swaps may slow an append down.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::error::StoreError;
use crate::files::map::{MappedFile, PAGE};
use crate::settings::Settings;
use crate::shared::position::Position;
use crate::shared::waiter::Waiter;

/// Bytes given to the system at a time.
const WRITE_BYTES: usize = 1 << 20;

/// Memory for the records of one file of the log. Who may touch which bytes: the holder of the store's
/// lock writes after the end of the log, the committer reads before it.
pub(crate) struct Buffer {
    base: *mut u8,
    size: usize,
}

// SAFETY: `base` points to a mapping that lives as long as the value; see above on who may touch the
// bytes.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    fn new(size: u64) -> io::Result<Self> {
        let size = size as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping, chosen by the kernel; no memory of ours is replaced.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: our own mapping; the advice changes no content.
        unsafe { libc::madvise(base, size, libc::MADV_HUGEPAGE) };
        Ok(Buffer { base: base.cast(), size })
    }

    fn bytes(&self, from: usize, to: usize) -> &[u8] {
        if from > to || to > self.size {
            return &[];
        }
        // SAFETY: inside the mapping (checked); the caller reads before the end of the log only.
        unsafe { std::slice::from_raw_parts(self.base.add(from), to - from) }
    }

    /// Bytes to be written; empty when they are not all inside.
    ///
    /// # Safety
    /// The caller holds the store's lock, and the bytes are after the end of the log.
    #[inline]
    #[allow(clippy::mut_from_ref)] // the mapping is interior; the contract above is the check
    pub(crate) unsafe fn bytes_mut(&self, position: u64, length: usize) -> &mut [u8] {
        let is_inside =
            position.checked_add(length as u64).is_some_and(|end| end <= self.size as u64);
        if !is_inside {
            return &mut [];
        }
        // SAFETY: inside the mapping (checked); exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(position as usize), length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once; slices borrow from `self` and are gone.
        unsafe { libc::munmap(self.base.cast(), self.size) };
    }
}

/// A file of the log that is not committed whole.
struct Staged {
    file: Arc<MappedFile>,
    /// `None`: the records are written to the file itself, for want of a buffer.
    buffer: Option<Arc<Buffer>>,
    /// Where the last thing in it ends, once it is full.
    used_end: Option<u64>,
}

/// The buffers, and how far the log is committed.
#[derive(Default)]
pub(crate) struct Pool {
    size: usize,
    is_fast_failing: bool,
    free: Mutex<Vec<Arc<Buffer>>>,
    free_count: AtomicUsize,
    /// Oldest first.
    staged: Mutex<VecDeque<Staged>>,
    /// Serializes commits; the file that is written, by its start.
    committing: Mutex<Option<(u64, File)>>,
    committed: Position,
    /// The last commit failed: nothing more is taken in before one succeeds.
    stuck: AtomicBool,
    pub(crate) wait: Waiter,
}

impl Pool {
    pub(crate) fn new(settings: &Settings) -> Self {
        let is_fast_failing = settings.fast_fail_if_no_buffer_in_store_pool;
        Pool { size: settings.transient_store_pool_size, is_fast_failing, ..Pool::default() }
    }

    /// Starts anew with a log that ends there.
    pub(crate) fn start(&self, file_size: u64, end: i64, timestamp: i64) -> Result<(), StoreError> {
        self.forget();
        let mut free = self.free.lock();
        for _ in 0..self.size {
            let buffer = Buffer::new(file_size).map_err(|error| {
                StoreError::io(format!("a buffer of {file_size} bytes (transientStorePool)"), error)
            })?;
            free.push(Arc::new(buffer));
        }
        self.free_count.store(free.len(), Ordering::Relaxed);
        self.committed.publish(end, timestamp);
        Ok(())
    }

    /// Lets go of the buffers; what is in them is lost.
    pub(crate) fn forget(&self) {
        *self.committing.lock() = None;
        self.staged.lock().clear();
        self.free.lock().clear();
        self.free_count.store(0, Ordering::Relaxed);
        self.stuck.store(false, Ordering::Relaxed);
        self.wait.reset();
    }

    /// Whether a file has to go without a buffer rather than wait for one.
    pub(crate) fn is_fast_failing(&self) -> bool {
        self.is_fast_failing
    }

    /// Buffers that belong to no file (`availableBufferNums`).
    #[inline]
    pub(crate) fn free_count(&self) -> usize {
        self.free_count.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed)
    }

    /// Physical offset up to which the log is in its files.
    #[inline]
    pub(crate) fn committed(&self) -> i64 {
        self.committed.offset()
    }

    /// The same, and the time of a record before it.
    pub(crate) fn committed_with_time(&self) -> (i64, i64) {
        self.committed.get()
    }

    pub(crate) fn borrow(&self) -> Option<Arc<Buffer>> {
        let mut free = self.free.lock();
        let buffer = free.pop();
        self.free_count.store(free.len(), Ordering::Relaxed);
        buffer
    }

    pub(crate) fn give_back(&self, buffer: Option<Arc<Buffer>>) {
        let mut free = self.free.lock();
        free.extend(buffer);
        self.free_count.store(free.len(), Ordering::Relaxed);
    }

    /// The log goes on in a file; the one before it ended at `used_end`.
    pub(crate) fn stage(
        &self,
        file: &Arc<MappedFile>,
        buffer: Option<Arc<Buffer>>,
        used_end: Option<u64>,
    ) {
        let mut staged = self.staged.lock();
        if let Some(last) = staged.back_mut() {
            last.used_end = used_end;
        }
        staged.push_back(Staged { file: Arc::clone(file), buffer, used_end: None });
    }

    /// Writes to the files what is in the buffers, if that is at least `least_pages` pages (0:
    /// anything) or ends a file; whether there was any, which an error does not change. `written` says
    /// where the log ends, and the time of a record before that; it is asked under the lock.
    pub(crate) fn commit(
        &self,
        written: impl FnOnce() -> (i64, i64),
        least_pages: u64,
    ) -> (bool, Result<(), StoreError>) {
        let mut writer = self.committing.lock();
        let (written, timestamp) = written();
        let begin = self.committed() as u64;
        let mut at = begin;
        let mut result = Ok(());
        loop {
            let (file, buffer, used_end) = {
                let staged = self.staged.lock();
                let Some(front) = staged.front() else { break };
                (Arc::clone(&front.file), front.buffer.clone(), front.used_end)
            };
            let target = used_end.unwrap_or(written as u64);
            let pages = (target / PAGE).saturating_sub(at / PAGE);
            if used_end.is_none() && (target <= at || pages < least_pages) {
                break;
            }
            let (from, to) = (at - file.start(), target.max(at) - file.start());
            if let Some(buffer) = &buffer {
                result = write(&mut writer, &file, buffer, from as usize, to as usize);
                if result.is_err() {
                    break;
                }
            }
            at = if used_end.is_some() { file.end() } else { target };
            self.committed.publish_offset(at as i64);
            if used_end.is_none() {
                break;
            }
            self.staged.lock().pop_front();
            *writer = None;
            self.give_back(buffer);
        }
        if at as i64 >= written {
            self.committed.publish_timestamp(timestamp);
        }
        self.stuck.store(result.is_err(), Ordering::Relaxed);
        (at > begin, result)
    }
}

/// Writes a part of a buffer to its file.
fn write(
    writer: &mut Option<(u64, File)>,
    file: &MappedFile,
    buffer: &Buffer,
    from: usize,
    to: usize,
) -> Result<(), StoreError> {
    let context = |error| StoreError::io(format!("writing {}", file.path().display()), error);
    if writer.as_ref().is_none_or(|(start, _)| *start != file.start()) {
        let opened = OpenOptions::new().write(true).open(file.path()).map_err(context)?;
        *writer = Some((file.start(), opened));
    }
    let Some((_, out)) = writer else { return Ok(()) };
    let mut at = from;
    while at < to {
        let end = to.min(at + WRITE_BYTES);
        out.write_all_at(buffer.bytes(at, end), at as u64).map_err(context)?;
        at = end;
    }
    Ok(())
}
