//! The store as its callers see it: [`Store`] (shared, thread safe) and [`Guard`] (the lock, held
//! once per chunk of a socket, on which reads and writes run without further locking).

mod expire;

use std::fs;
use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};

use parking_lot::{Mutex, MutexGuard};

use crate::error::{During, StoreError};
use crate::files::bus_error::report_bus_errors;
use crate::files::folder::{FolderLock, abort_path};
use crate::files::inventory::Inventory;
use crate::flush;
use crate::flush::commit::run_commit;
use crate::recovery;
use crate::recovery::report::RecoveryReport;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::state::Core;

/// Commit log, consume queues and index of one folder. `Send + Sync`.
///
/// Dropped without [`Store::close`] it leaves the files as a kill would: the next `open` recovers.
pub struct Store {
    shared: Arc<Shared>,
    core: Arc<Mutex<Core>>,
    running: Mutex<Option<Running>>,
    /// Held while the store opens or closes.
    turning: Mutex<()>,
}

/// What an open store holds on to.
struct Running {
    threads: Vec<JoinHandle<()>>,
    _lock: FolderLock,
}

/// The store's lock; derefs to [`Core`]. Taking it reads the clock once; all records appended under
/// one guard have that time. Hand back before blocking.
pub struct Guard<'a> {
    core: MutexGuard<'a, Core>,
}

impl Store {
    /// Touches no file.
    pub fn new(settings: Settings) -> Self {
        let shared = Arc::new(Shared::new(settings));
        let core = Arc::new(Mutex::new(Core::new(Arc::clone(&shared))));
        Store { shared, core, running: Mutex::new(None), turning: Mutex::new(()) }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Locks the folder, loads, recovers, starts the threads. An open store stays as it is, with an
    /// empty report.
    ///
    /// # Errors
    /// I/O (`WouldBlock`: held by another process), or a file of a wrong size (`InvalidData`).
    pub fn open(&self) -> Result<RecoveryReport, StoreError> {
        let _turn = self.turning.lock();
        let mut running = self.running.lock();
        if running.is_some() {
            return Ok(RecoveryReport::default());
        }
        report_bus_errors();
        let lock = FolderLock::take(&self.shared.settings.store_path_root_dir)?;
        let recovered = recovery::recover(&mut self.core.lock(), &self.shared);
        let recovered = recovered.and_then(|report| self.start_pool().map(|()| report));
        let report = recovered.inspect_err(|_| self.forget())?;
        let mut threads = Vec::with_capacity(3);
        let started = self.start_threads(&mut threads);
        *running = Some(Running { threads, _lock: lock });
        drop(running);
        if let Err(error) = started {
            self.abandon();
            return Err(StoreError::io("starting the store's threads", error));
        }
        self.core.lock().set_open(true);
        Ok(report)
    }

    /// Lets the log that was recovered go on in the transient pool, where there is one.
    fn start_pool(&self) -> Result<(), StoreError> {
        let Some(pool) = &self.shared.pool else { return Ok(()) };
        let (end, timestamp) = self.shared.written();
        pool.start(self.shared.settings.mapped_file_size_commit_log, end, timestamp)?;
        self.core.lock().log.stage(pool);
        Ok(())
    }

    fn start_threads(&self, threads: &mut Vec<JoinHandle<()>>) -> std::io::Result<()> {
        let builder = |name: &str| thread::Builder::new().name(name.to_owned());
        let shared = Arc::clone(&self.shared);
        threads.push(builder("kerolox-ahead").spawn(move || shared.preallocator.run())?);
        let shared = Arc::clone(&self.shared);
        threads.push(builder("kerolox-flush").spawn(move || flush::run_log(&shared))?);
        let (shared, core) = (Arc::clone(&self.shared), Arc::clone(&self.core));
        threads.push(builder("kerolox-back").spawn(move || flush::run_background(&shared, &core))?);
        if let Some(pool) = &self.shared.pool {
            let (shared, pool) = (Arc::clone(&self.shared), Arc::clone(pool));
            threads.push(builder("kerolox-commit").spawn(move || run_commit(&shared, &pool))?);
        }
        Ok(())
    }

    /// Flushes, writes the checkpoint, removes the abort file, unlocks. Idempotent.
    ///
    /// # Errors
    /// When the last flush failed; the abort file then stays, and the store is closed all the same.
    pub fn close(&self) -> Result<(), StoreError> {
        let _turn = self.turning.lock();
        if self.running.lock().is_none() {
            return Ok(());
        }
        {
            let mut core = self.core.lock();
            core.set_open(false);
            // Where that fails the next opening clears it.
            let _ = core.log.drop_partial();
        }
        self.stop_threads();
        self.shared.preallocator.remove_unused();
        let flushed = flush::flush_all(&self.shared, &self.core).and_then(|_| {
            if self.shared.index.lock().lacks_keys() {
                // With the abort file the next opening looks for the keys that are missing.
                return Ok(());
            }
            self.inventory().save(&self.shared.settings.store_path_root_dir)?;
            let abort = abort_path(&self.shared.settings.store_path_root_dir);
            fs::remove_file(&abort).during("removing", &abort)
        });
        let lost = self.core.lock().stats().uncommitted_bytes;
        self.abandon();
        flushed.map_err(|error| with_loss(error, lost))
    }

    /// What the store consists of now.
    fn inventory(&self) -> Inventory {
        let mut core = self.core.lock();
        let queues = core.queues().into_iter().map(|queue| {
            let name = (queue.topic.into_bytes().into_boxed_slice(), queue.queue_id);
            (name, (queue.min_offset, queue.max_offset))
        });
        Inventory {
            log_end: core.max_physical_offset(),
            queues: queues.collect(),
            index: self.shared.index.lock().file_ends(),
        }
    }

    /// Lets go of everything without flushing, as a kill would (also what dropping does).
    #[doc(hidden)]
    pub fn abandon(&self) {
        self.stop_threads();
        let mut running = self.running.lock();
        self.forget();
        *running = None;
    }

    /// Lets go of the files.
    fn forget(&self) {
        self.core.lock().clear();
        self.shared.log_files.lock().clear();
        self.shared.preallocator.reset();
        *self.shared.index.lock() = crate::index::Index::default();
        self.shared.index_pending.lock().clear();
        *self.shared.checkpoint.lock() = None;
        *self.shared.deletions.lock() = crate::files::deletions::Deletions::default();
        self.shared.pool.iter().for_each(|pool| pool.forget());
    }

    fn stop_threads(&self) {
        self.shared.preallocator.stop();
        self.shared.flush.wait.stop();
        self.shared.background_wait.stop();
        self.shared.pool.iter().for_each(|pool| pool.wait.stop());
        let threads = self
            .running
            .lock()
            .as_mut()
            .map(|running| std::mem::take(&mut running.threads))
            .unwrap_or_default();
        for thread in threads {
            // A thread of ours does not panic; if one did, closing goes on without it.
            let _ = thread.join();
        }
    }

    /// Flushes log, queues, index and checkpoint; the new flushed offset.
    ///
    /// # Errors
    /// A failed sync, now or before.
    pub fn flush(&self) -> Result<i64, StoreError> {
        if self.running.lock().is_none() {
            return Err(StoreError::Closed);
        }
        flush::flush_all(&self.shared, &self.core)
    }

    /// Takes the lock; also while closed (then writes give `ServiceNotAvailable`, reads nothing).
    pub fn lock(&self) -> Guard<'_> {
        let mut core = self.core.lock();
        core.start_guard();
        Guard { core }
    }

    /// An eventfd (non-blocking), valid as long as the `Store`; readable when `flushed_offset`
    /// moved or [`Store::notify`] was called. -1 when the system had no descriptor left.
    pub fn notify_fd(&self) -> RawFd {
        self.shared.notify.raw()
    }

    /// Makes `notify_fd` readable.
    pub fn notify(&self) {
        self.shared.notify.signal();
    }

    /// Physical offset up to which the log is on disk. Atomic, no lock.
    pub fn flushed_offset(&self) -> i64 {
        self.shared.flushed()
    }

    /// Whether a flush failed: the flushed offset moves no more. Atomic, no lock.
    pub fn has_failed(&self) -> bool {
        self.shared.has_failed()
    }

    /// Asks the flush thread to reach an offset (group commit). Cheap, no lock of the core needed.
    pub fn request_flush(&self, physical_offset: i64) {
        self.shared.flush.request(physical_offset);
    }

    /// Buffers of the transient pool that belong to no file; `None`: there is no pool.
    pub fn free_buffers(&self) -> Option<usize> {
        self.shared.pool.as_ref().map(|pool| pool.free_count())
    }

    /// Flushes of the log since open.
    pub fn flush_count(&self) -> u64 {
        self.shared.flush_count.load(Ordering::Relaxed)
    }

    /// How long flushes of the log took: (count of each bucket, sum in microseconds).
    pub fn flush_times(&self) -> (Vec<u64>, u64) {
        self.shared.flush_times.get()
    }

    /// The same of deliveries, from the store time of a read's first message on.
    pub fn delivery_times(&self) -> (Vec<u64>, u64) {
        self.shared.delivery_times.get()
    }

    /// The store's clock, in milliseconds. No lock.
    pub fn now_ms(&self) -> i64 {
        self.shared.now_ms()
    }

    /// Freezes the store clock; `None` thaws it.
    pub fn set_clock(&self, now_ms: Option<i64>) {
        self.shared.set_clock(now_ms);
    }

    /// Why the store takes no writes, or refused the last one (until one succeeds); why the index
    /// takes no keys.
    pub fn error(&self) -> Option<String> {
        self.shared.error().or_else(|| {
            let index = self.shared.index.lock();
            index.error.as_ref().or(index.stall.as_ref()).cloned()
        })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.running.lock().is_some() {
            self.abandon();
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.core.hand_over_keys();
        self.core.shared.note_put();
    }
}

impl Deref for Guard<'_> {
    type Target = Core;
    #[inline]
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for Guard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

/// The error of a close that left acknowledged messages in the transient store pool.
fn with_loss(error: StoreError, lost: u64) -> StoreError {
    match error {
        StoreError::Io { context, source } if lost > 0 => StoreError::Io {
            context: format!(
                "{lost} bytes of messages that were acknowledged are lost with the transient store \
                 pool: {context}"
            ),
            source,
        },
        error => error,
    }
}
