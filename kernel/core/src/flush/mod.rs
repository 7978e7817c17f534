//! Making the store durable, and the threads that do it.
//!
//! - The *flush* thread writes the log to the disk: each `flush_interval_commit_log` when enough
//!   pages wait (`ASYNC_FLUSH`; with `flushCommitLogTimed=false` also when a put finds so many), and
//!   whenever somebody asked for an offset (group commit): one flush covers all that asked meanwhile.
//! - The *background* thread drains the index keys, and each `flush_interval_consume_queue` writes
//!   the queues and the checkpoint.
//!
//! Neither holds the store's lock while the disk works.

pub(crate) mod commit;

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::error::StoreError;
use crate::files::dirty::DirtyRange;
use crate::files::folder::{Boot, Checkpoint, sync_folder};
use crate::files::map::PAGE;
use crate::settings::FlushDiskType;
use crate::shared::Shared;
use crate::state::Core;

/// The interval flushes the log in whole units of this size: to flush a page takes the right to write
/// it from the mapping, and to get it back may have to wait for the file system.
const UNIT: u64 = 64 << 10;
/// How long index keys wait when they are few.
const INDEX_INTERVAL: Duration = Duration::from_millis(100);
/// Keys put into the index between two chances for others to take its lock.
const INDEX_SLICE: usize = 2_048;
/// From so many files on, the file system is written whole: one wait instead of thousands.
const FILES_SYNCED_AT_ONCE: usize = 512;
/// How often, and how far apart, the background thread looks for a free lock before it waits for it.
const LOCK_TRIES: usize = 200;
const LOCK_PAUSE: Duration = Duration::from_micros(50);
/// Longest sleep of the flush thread under `SYNC_FLUSH`, when nobody asks.
const SYNC_IDLE: Duration = Duration::from_millis(500);

/// After a flush that failed the system takes the pages for clean: no later flush tells the truth.
const WRITES_END: &str = "the store takes no more writes, repair the disk and restart";

/// Writes the log to the disk up to what is written now, if that is at least `least_pages` pages
/// (0: anything); the flushed offset.
pub(crate) fn flush_log(shared: &Shared, least_pages: u64) -> Result<i64, StoreError> {
    flush_log_to(shared, least_pages, shared.committed())
}

/// Commits what a transient pool holds, all of it.
fn commit_all(shared: &Shared) -> Result<(), StoreError> {
    shared.pool.as_ref().map_or(Ok(()), |pool| commit::commit(shared, pool, 0).map(drop))
}

/// As [`flush_log`], up to an offset; with it comes the time of a record before it.
fn flush_log_to(
    shared: &Shared,
    least_pages: u64,
    (written, timestamp): (i64, i64),
) -> Result<i64, StoreError> {
    let _turn = shared.flushing.lock();
    if shared.has_failed() {
        let text = shared.error().unwrap_or_default();
        return Err(StoreError::io(text, std::io::ErrorKind::Other.into()));
    }
    let flushed = shared.flushed();
    let (from, to) = (flushed as u64, written as u64);
    // A full file is flushed whatever its dirty pages: nothing will be added to them.
    let is_file_full = shared.settings.log_file_index(to) > shared.settings.log_file_index(from);
    if written <= flushed || (to / PAGE - from / PAGE < least_pages && !is_file_full) {
        return Ok(flushed);
    }
    let files: Vec<_> = {
        let files = shared.log_files.lock();
        files.iter().filter(|file| file.end() > from && file.start() < to).cloned().collect()
    };
    let begin = shared.settings.latency_recorded.then(Instant::now);
    for file in files {
        if from <= file.start()
            && let Some(folder) = file.path().parent()
        {
            // Its first bytes: its name has to last, too.
            sync_folder(folder);
        }
        let begin = from.saturating_sub(file.start());
        let end = to.min(file.end()) - file.start();
        if let Err(error) = file.sync(begin, end) {
            let text = format!("flushing {}", file.path().display());
            shared.fail(format!("{text}: {error}; {WRITES_END}"));
            return Err(StoreError::io(text, error));
        }
        // The flush made the unit read-only; the next appends would fault on it.
        if end < file.size() && shared.pool.is_none() {
            let unit_end = (end / UNIT + 1) * UNIT;
            let _ = file.populate(end, unit_end.min(file.populated()).max(end + 1));
        } else if end == file.size() {
            // A full file is not written again: it need not count as our memory. Who reads it
            // finds it in the page cache.
            file.unlock_pages();
            file.release_pages();
        }
    }
    if let Some(checkpoint) = shared.checkpoint.lock().as_mut() {
        checkpoint.physic_ms = checkpoint.physic_ms.max(timestamp);
    }
    if let Some(begin) = begin {
        shared.flush_times.note(begin.elapsed().as_micros() as u64);
    }
    // Counted first: whoever sees the new offset finds its flush counted.
    shared.flush_count.fetch_add(1, Ordering::Relaxed);
    shared.flush.set_flushed(written);
    shared.notify.signal();
    Ok(written)
}

/// What of `now` a flush by the interval takes: without the unit that is being written, which the
/// next round takes, so that no append has to ask for the right to write a page again. `seen` is what
/// was written in the round before.
fn whole_units(seen: (i64, i64), now: (i64, i64)) -> (i64, i64) {
    let end = now.0 - now.0 % UNIT as i64;
    if seen.0 == now.0 {
        now
    } else if seen.0 <= end {
        (end, seen.1)
    } else {
        seen
    }
}

/// The flush thread's life.
pub(crate) fn run_log(shared: &Shared) {
    let settings = &shared.settings;
    let interval = match settings.flush_disk_type {
        FlushDiskType::Async => Duration::from_millis(settings.flush_interval_commit_log.max(1)),
        FlushDiskType::Sync => SYNC_IDLE,
    };
    let thorough = Duration::from_millis(settings.flush_commit_log_thorough_interval);
    let mut last_thorough = Instant::now();
    let mut last_flush = Instant::now();
    let mut seen = shared.committed();
    loop {
        if shared.flush.requested() <= shared.flushed() || shared.has_failed() {
            let left = interval.saturating_sub(last_flush.elapsed());
            if !shared.flush.wait.sleep(left.max(Duration::from_millis(1))) {
                return;
            }
        }
        let is_requested = shared.flush.requested() > shared.flushed();
        let is_woken = shared.flush.wait.take_note();
        if !is_requested && !is_woken && last_flush.elapsed() < interval {
            continue;
        }
        let is_thorough = last_thorough.elapsed() >= thorough;
        if is_requested || is_thorough {
            // Errors refuse the writes and are told by `Store::error`.
            let _ = commit_all(shared);
        }
        let now = shared.committed();
        let (least_pages, target) = match settings.flush_disk_type {
            FlushDiskType::Async if !is_requested && !is_thorough => {
                let is_whole = is_woken || shared.pool.is_some();
                let target = if is_whole { now } else { whole_units(seen, now) };
                (settings.flush_commit_log_least_pages, target)
            }
            _ => (0, now),
        };
        seen = now;
        if is_thorough {
            last_thorough = Instant::now();
        }
        last_flush = Instant::now();
        let flushed = flush_log_to(shared, least_pages, target);
        if flushed.is_ok_and(|flushed| flushed < shared.flush.requested()) {
            // Somebody asked for more than is written: nobody has a right to that.
            shared.flush.drop_excess(shared.committed().0);
        }
    }
}

/// Takes the lock when nobody has it, if that comes soon: who waits for a lock may get it handed
/// over before he runs, and then the append waits for him.
fn lock_patiently(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    for _ in 0..LOCK_TRIES {
        if let Some(guard) = core.try_lock() {
            return guard;
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    core.lock()
}

/// Writes the queues to the disk, those with at least `least_pages` pages to write.
fn flush_queues(shared: &Shared, core: &Mutex<Core>, least_pages: u64) -> Result<(), StoreError> {
    let (ranges, timestamp) = lock_patiently(core).collect_dirty(least_pages);
    if ranges.len() < FILES_SYNCED_AT_ONCE || sync_file_systems(&ranges).is_err() {
        sync_each(&ranges).inspect_err(|error| {
            shared.fail(format!("{error}; {WRITES_END}"));
        })?;
    }
    if least_pages == 0
        && let Some(checkpoint) = shared.checkpoint.lock().as_mut()
    {
        checkpoint.logics_ms = checkpoint.logics_ms.max(timestamp);
    }
    Ok(())
}

fn sync_each(ranges: &[DirtyRange]) -> Result<(), StoreError> {
    // Blocks are allocated when writing starts, and each wait for the disk commits what was
    // allocated: started together, many files need one commit instead of one each.
    if ranges.len() > 1 {
        ranges.iter().for_each(DirtyRange::start_sync);
    }
    ranges.iter().try_for_each(DirtyRange::sync)
}

/// Writes the whole file systems that files lie on. An error may be of a file that is not ours, or of
/// an older kernel: then each file has to tell for itself.
fn sync_file_systems(ranges: &[DirtyRange]) -> io::Result<()> {
    let mut devices = Vec::new();
    for range in ranges {
        let device = match fs::metadata(range.path()) {
            Ok(metadata) => metadata.dev(),
            // Deleted meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if devices.contains(&device) {
            continue;
        }
        let file = match File::open(range.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            result => result?,
        };
        // SAFETY: plain system call on an open descriptor.
        if unsafe { libc::syncfs(file.as_raw_fd()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        devices.push(device);
    }
    Ok(())
}

/// Writes the full index files (or `all`) to the disk.
fn flush_index(shared: &Shared, all: bool) -> Result<(), StoreError> {
    let (files, timestamp) = {
        let mut index = shared.index.lock();
        if index.error.is_some() {
            // It lacks keys: the checkpoint must not say that it is complete.
            return Ok(());
        }
        index.drain_dirty(all)
    };
    for file in &files {
        file.sync(0, file.size()).map_err(|error| {
            let text = format!("flushing {}", file.path().display());
            let end = "the index goes on after a restart";
            shared.index.lock().give_up(format!("{text}: {error}; {end}"));
            Boot::forget(&shared.settings.store_path_root_dir);
            StoreError::io(text, error)
        })?;
    }
    if let Some(checkpoint) = shared.checkpoint.lock().as_mut() {
        checkpoint.index_ms = checkpoint.index_ms.max(timestamp);
    }
    Ok(())
}

/// Brings the notes of deleted topics to the disk; where that fails it is tried again.
fn sync_deletions(shared: &Shared) {
    let sync = shared.deletions.lock().start_sync();
    let Some(path) = sync else { return };
    // Its name, too, which may be new.
    let paths = [Some(path.as_path()), path.parent()];
    let is_synced = paths
        .into_iter()
        .flatten()
        .all(|path| std::fs::File::open(path).and_then(|file| file.sync_all()).is_ok());
    if !is_synced {
        shared.deletions.lock().note_lost();
    }
}

fn save_checkpoint(shared: &Shared) -> Result<(), StoreError> {
    // One after the other: an older state must not be written over a newer one.
    let _turn = shared.saving_checkpoint.lock();
    let checkpoint = shared.checkpoint.lock().clone();
    checkpoint.as_ref().map_or(Ok(()), Checkpoint::save)
}

/// Flushes everything; the flushed offset.
pub(crate) fn flush_all(shared: &Shared, core: &Mutex<Core>) -> Result<i64, StoreError> {
    core.lock().hand_over_keys();
    commit_all(shared)?;
    shared.drain_index(usize::MAX);
    let flushed = flush_log(shared, 0)?;
    flush_queues(shared, core, 0)?;
    flush_index(shared, true)?;
    sync_deletions(shared);
    save_checkpoint(shared)?;
    Ok(flushed)
}

/// The background thread's life.
pub(crate) fn run_background(shared: &Shared, core: &Mutex<Core>) {
    let settings = &shared.settings;
    let interval = Duration::from_millis(settings.flush_interval_consume_queue.max(1));
    let thorough = Duration::from_millis(settings.flush_consume_queue_thorough_interval);
    let mut last_flush = Instant::now();
    let mut last_thorough: Option<Instant> = None;
    let mut saved = None;
    while shared.background_wait.sleep(INDEX_INTERVAL.min(interval)) {
        // Under steady load there is always more: the queues have to be flushed all the same.
        while shared.drain_index(INDEX_SLICE) && last_flush.elapsed() < interval {}
        if last_flush.elapsed() < interval {
            continue;
        }
        last_flush = Instant::now();
        let is_thorough = last_thorough.is_none_or(|last| last.elapsed() >= thorough);
        let least_pages = if is_thorough { 0 } else { settings.flush_consume_queue_least_pages };
        // Errors stop the writes and are told by `Store::error`.
        let _ = flush_queues(shared, core, least_pages);
        sync_deletions(shared);
        let _ = flush_index(shared, false);
        if is_thorough {
            last_thorough = Some(Instant::now());
        }
        let times =
            shared.checkpoint.lock().as_ref().map(|checkpoint| {
                (checkpoint.physic_ms, checkpoint.logics_ms, checkpoint.index_ms)
            });
        if times != saved && save_checkpoint(shared).is_ok() {
            saved = times;
        }
    }
}
