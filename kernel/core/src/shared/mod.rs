//! What the threads of a store share beside the locked [`crate::store::Core`]: positions, the
//! error that stopped the writes, the wake-ups.
//!
//! Order of locks: core, then index, then index pending. `flushing` is taken without core. All other
//! locks here are leaves: nothing is locked under them.

mod event_fd;
pub(crate) mod group_commit;
pub(crate) mod indexing;
pub(crate) mod latencies;
#[cfg(all(test, loom))]
mod loom_tests;
pub(crate) mod pool;
mod position;
mod sync;
pub(crate) mod waiter;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::files::deletions::Deletions;
use crate::files::folder::{Boot, Checkpoint};
use crate::files::map::{MappedFile, PAGE};
use crate::files::preallocate::Preallocator;
use crate::index::{Index, PendingKey};
use crate::settings::{FlushDiskType, Settings};
use crate::shared::event_fd::EventFd;
use crate::shared::group_commit::GroupCommit;
use crate::shared::latencies::Latencies;
use crate::shared::pool::Pool;
use crate::shared::position::Position;
use crate::shared::waiter::Waiter;

const THAWED: i64 = i64::MIN;
/// A longer wait is a mistake of the clock, RocketMQ says.
const BUSY_MS_MAX: i64 = 10_000_000;

pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) notify: EventFd,
    pub(crate) preallocator: Preallocator,
    pub(crate) index: Mutex<Index>,
    /// Keys on their way to the index, in log order; bounded by `INDEX_PENDING_MAX`.
    pub(crate) index_pending: Mutex<Vec<PendingKey>>,
    pub(crate) checkpoint: Mutex<Option<Checkpoint>>,
    pub(crate) deletions: Mutex<Deletions>,
    /// Held while the checkpoint is written; [`Self::checkpoint`] itself is not.
    pub(crate) saving_checkpoint: Mutex<()>,
    /// All files of the log, for the flush thread.
    pub(crate) log_files: Mutex<Vec<Arc<MappedFile>>>,
    /// Serializes flushes of the log.
    pub(crate) flushing: Mutex<()>,
    /// The flush thread's work.
    pub(crate) flush: GroupCommit,
    /// The transient store pool, where there is one.
    pub(crate) pool: Option<Arc<Pool>>,
    pub(crate) background_wait: Waiter,
    pub(crate) flush_count: AtomicU64,
    /// How long flushes of the log took; only with `latency_recorded`, as the next one.
    pub(crate) flush_times: Latencies,
    /// How long the first message of each read of a group had been stored.
    pub(crate) delivery_times: Latencies,
    written: Position,
    /// Whether a put wakes the flush thread: `ASYNC_FLUSH` with `flushCommitLogTimed=false`.
    is_flush_woken: bool,
    failed: AtomicBool,
    /// Whether the error is of a refused write only.
    refused: AtomicBool,
    error: Mutex<Option<String>>,
    frozen: AtomicI64,
    /// When an append started to wait for a file, in milliseconds since `started`, plus 1; 0: none
    /// waits (`beginTimeInLock`).
    waiting_since: AtomicI64,
    started: Instant,
}

impl Shared {
    pub(crate) fn new(settings: Settings) -> Self {
        Shared {
            is_flush_woken: settings.flush_disk_type == FlushDiskType::Async
                && !settings.flush_commit_log_timed,
            pool: settings.has_pool().then(|| Arc::new(Pool::new(&settings))),
            settings,
            notify: EventFd::new(),
            preallocator: Preallocator::default(),
            index: Mutex::new(Index::default()),
            index_pending: Mutex::new(Vec::new()),
            checkpoint: Mutex::new(None),
            deletions: Mutex::new(Deletions::default()),
            saving_checkpoint: Mutex::new(()),
            log_files: Mutex::new(Vec::new()),
            flushing: Mutex::new(()),
            flush: GroupCommit::default(),
            background_wait: Waiter::default(),
            flush_count: AtomicU64::new(0),
            flush_times: Latencies::default(),
            delivery_times: Latencies::default(),
            written: Position::default(),
            failed: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            error: Mutex::new(None),
            frozen: AtomicI64::new(THAWED),
            waiting_since: AtomicI64::new(0),
            started: Instant::now(),
        }
    }

    /// Starts a new life at these positions.
    pub(crate) fn reset(&self, written: i64, flushed: i64, timestamp: i64) {
        self.publish(written, timestamp);
        self.flush.reset(flushed);
        self.flush_count.store(0, Ordering::Relaxed);
        self.flush_times.reset();
        self.delivery_times.reset();
        self.end_wait();
        self.failed.store(false, Ordering::Release);
        self.refused.store(false, Ordering::Relaxed);
        *self.error.lock() = None;
        self.background_wait.reset();
    }

    /// Says that the log is written up to an offset, the last record being of that time.
    #[inline]
    pub(crate) fn publish(&self, written: i64, timestamp: i64) {
        self.written.publish(written, timestamp);
    }

    /// (offset, timestamp of a record before it).
    pub(crate) fn written(&self) -> (i64, i64) {
        self.written.get()
    }

    /// As [`Self::written`], of what is in the files and so can be flushed.
    pub(crate) fn committed(&self) -> (i64, i64) {
        self.pool.as_ref().map_or_else(|| self.written(), |pool| pool.committed_with_time())
    }

    pub(crate) fn flushed(&self) -> i64 {
        self.flush.flushed()
    }

    /// After puts, once per chunk: wakes the thread that is to be woken, if it will find enough: the
    /// committer of the transient pool, or else the flush thread.
    #[inline]
    pub(crate) fn note_put(&self) {
        if let Some(pool) = &self.pool {
            self.wake_committer(pool);
        } else if self.is_flush_woken {
            self.wake_flusher();
        }
    }

    /// After a commit: wakes the flush thread if it is to be woken.
    pub(crate) fn note_commit(&self) {
        if self.is_flush_woken {
            self.wake_flusher();
        }
    }

    fn wake_flusher(&self) {
        let (end, flushed) = (self.committed().0 as u64, self.flushed() as u64);
        let least_pages = self.settings.flush_commit_log_least_pages.max(1);
        if (end / PAGE).saturating_sub(flushed / PAGE) >= least_pages {
            self.flush.wait.note();
        }
    }

    fn wake_committer(&self, pool: &Pool) {
        let (written, committed) = (self.written().0 as u64, pool.committed() as u64);
        let least_pages = self.settings.commit_commit_log_least_pages.max(1);
        if (written / PAGE).saturating_sub(committed / PAGE) >= least_pages {
            pool.wait.note();
        }
    }

    /// Stops the writes for good: what is on disk can't be told any more.
    pub(crate) fn fail(&self, text: String) {
        let mut error = self.error.lock();
        *error = Some(text);
        self.failed.store(true, Ordering::Release);
        drop(error);
        Boot::forget(&self.settings.store_path_root_dir);
        self.notify.signal();
    }

    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Notes why a write was refused, until one succeeds.
    #[cold]
    pub(crate) fn note_refusal(&self, text: String) {
        let mut error = self.error.lock();
        if !self.has_failed() {
            *error = Some(text);
            self.refused.store(true, Ordering::Relaxed);
        }
    }

    /// Forgets why a write was refused: this one was not.
    #[inline]
    pub(crate) fn note_success(&self) {
        if self.refused.load(Ordering::Relaxed) {
            self.forget_refusal();
        }
    }

    #[cold]
    fn forget_refusal(&self) {
        let mut error = self.error.lock();
        self.refused.store(false, Ordering::Relaxed);
        if !self.has_failed() {
            *error = None;
        }
    }

    pub(crate) fn error(&self) -> Option<String> {
        self.error.lock().clone()
    }

    /// Notes that an append starts to wait for a file. It stays noted when the wait was in vain.
    pub(crate) fn start_wait(&self) {
        if self.waiting_since.load(Ordering::Relaxed) == 0 {
            let now = self.started.elapsed().as_millis() as i64;
            self.waiting_since.store(now + 1, Ordering::Relaxed);
        }
    }

    pub(crate) fn end_wait(&self) {
        self.waiting_since.store(0, Ordering::Relaxed);
    }

    /// How long an append has waited for a file by now, in milliseconds (`lockTimeMills`).
    pub(crate) fn waiting_ms(&self) -> i64 {
        match self.waiting_since.load(Ordering::Relaxed) {
            0 => 0,
            since => self.started.elapsed().as_millis() as i64 + 1 - since,
        }
    }

    /// Whether it waits for so long that further ones are refused (`isOSPageCacheBusy`).
    pub(crate) fn is_busy(&self) -> bool {
        let waiting = self.waiting_ms();
        waiting > self.settings.os_page_cache_busy_time_out_mills && waiting < BUSY_MS_MAX
    }

    pub(crate) fn set_clock(&self, now_ms: Option<i64>) {
        self.frozen.store(now_ms.unwrap_or(THAWED), Ordering::Relaxed);
    }

    /// Milliseconds since the epoch, or the frozen time.
    pub(crate) fn now_ms(&self) -> i64 {
        match self.frozen.load(Ordering::Relaxed) {
            THAWED => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |elapsed| elapsed.as_millis() as i64),
            frozen => frozen,
        }
    }
}
