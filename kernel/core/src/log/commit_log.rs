//! The commit log: one sequence of records over files of one size.
//!
//! A record never spans files: when it and the 8 bytes of a blank do not fit, a blank ends the file
//! and the record goes to the next one.

use crate::protocol::BLANK_MAGIC;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{During, PutStatus, StoreError};
use crate::files::folder::sync_folder;
use crate::files::map::MappedFile;
use crate::files::preallocate::{NextFile, Pace, Taken, WarmUp};
use crate::log::folders::LogFolders;
use crate::log::quarantine::Cut;
use crate::record::{BLANK_SIZE, Parsed, RecordView, parse};
use crate::settings::{FlushDiskType, Settings};
use crate::shared::Shared;
use crate::shared::pool::{Buffer, Pool};

/// The setting that fixes the size of the files.
pub(super) const SIZE_SETTING: &str = "mappedFileSizeCommitLog";
/// Bytes that are kept backed before the append needs them: from this at a trickle ...
const WINDOW_MIN: u64 = 256 << 10;
/// ... to this at hundreds of megabytes a second.
const WINDOW_MAX: u64 = 32 << 20;
/// Bytes the append backs by itself when the helper lags.
const INLINE_BACK: u64 = 64 << 10;
/// The window doubles when a step of it is used up in less than this, and shrinks at ten times it.
const STEP_MS: i64 = 25;
/// The helper gets a word for each such part of the window: many small pieces of work leave the
/// processor to others in between.
const STEPS: u64 = 8;

#[derive(Default)]
pub(crate) struct CommitLog {
    folders: LogFolders,
    pub(super) file_size: u64,
    pub(super) files: Vec<Arc<MappedFile>>,
    /// The file that holds `write`; `None` when that starts a file not made yet.
    pub(super) tail: Option<Arc<MappedFile>>,
    /// Where records of the tail are written before they are committed; `None`: to the tail itself.
    buffer: Option<Arc<Buffer>>,
    /// The transient store pool, where there is one.
    pool: Option<Arc<Pool>>,
    /// Physical offset after the last record.
    pub(super) write: u64,
    /// Up to here a record can be written without a second check: it leaves space for the blank,
    /// its pages are backed, and the helper needs no word.
    pub(super) safe_end: u64,
    window: u64,
    /// The helper was asked to back up to here.
    pub(super) asked: u64,
    asked_ms: i64,
    /// The helper was asked for the file that starts here.
    next_asked: u64,
    /// Bytes after `write` that came from a master and are no whole record yet.
    pub(super) partial: u64,
    /// The file that bytes of a master go to, and where it starts.
    pub(super) raw: Option<(u64, File)>,
    /// The helper was asked for blocks up to here.
    pub(super) reserved: u64,
}

impl CommitLog {
    /// A log of these files; where its records end is not known yet.
    pub(super) fn of(folders: LogFolders, file_size: u64, files: Vec<Arc<MappedFile>>) -> Self {
        CommitLog { folders, file_size, files, window: WINDOW_MIN, ..CommitLog::default() }
    }

    /// Takes these folders out of the rotation of new files.
    pub(crate) fn set_full_folders(&mut self, full: &[PathBuf]) {
        self.folders.set_full(full);
        self.next_asked = 0;
    }

    pub(crate) fn files(&self) -> &[Arc<MappedFile>] {
        &self.files
    }

    /// First physical offset; 0 when there is no file.
    pub(crate) fn min_offset(&self) -> u64 {
        self.files.first().map_or(0, |file| file.start())
    }

    /// Physical offset after the last record.
    #[inline]
    pub(crate) fn max_offset(&self) -> u64 {
        self.write
    }

    /// Physical offset after the last record that can be read: with a transient pool those that are
    /// not committed can't.
    #[inline]
    pub(crate) fn readable(&self) -> u64 {
        self.pool.as_ref().map_or(self.write, |pool| pool.committed() as u64)
    }

    /// Whether records wait in a transient pool before they can be read.
    #[inline]
    pub(crate) fn is_staged(&self) -> bool {
        self.pool.is_some()
    }

    /// From now on records go through a transient pool, which starts at the end of the log.
    pub(crate) fn stage(&mut self, pool: &Arc<Pool>) {
        if let Some(file) = &self.tail {
            self.buffer = pool.borrow();
            pool.stage(file, self.buffer.clone(), None);
            self.asked = u64::MAX;
        }
        self.pool = Some(Arc::clone(pool));
    }

    /// Start of the file after the one that holds an offset.
    pub(crate) fn roll_next_file(&self, offset: i64) -> i64 {
        let size = self.file_size.max(1) as i64;
        offset.saturating_add(size - offset.rem_euclid(size))
    }

    /// The file that holds an offset.
    #[inline]
    pub(crate) fn file_of(&self, offset: u64) -> Option<&Arc<MappedFile>> {
        let first = self.files.first()?.start();
        let index = offset.checked_sub(first)? / self.file_size;
        self.files.get(index as usize)
    }

    /// `size` written bytes at a physical offset; `None` when they are not all there.
    #[inline]
    pub(crate) fn bytes(&self, offset: i64, size: i32) -> Option<&[u8]> {
        let (offset, size) = (u64::try_from(offset).ok()?, u64::try_from(size).ok()?);
        if size == 0 || offset.checked_add(size)? > self.readable() {
            return None;
        }
        let file = self.file_of(offset)?;
        let bytes = file.bytes(offset - file.start(), size as usize);
        (!bytes.is_empty()).then_some(bytes)
    }

    /// The record that starts at a physical offset.
    pub(crate) fn record(&self, offset: i64) -> Option<(RecordView<'_>, &[u8])> {
        let readable = self.readable();
        let offset = u64::try_from(offset).ok().filter(|&offset| offset < readable)?;
        let file = self.file_of(offset)?;
        let end = readable.min(file.end());
        let bytes = file.bytes(offset - file.start(), (end - offset) as usize);
        match parse(bytes) {
            Parsed::Record(view) if view.physical_offset as u64 == offset => {
                Some((view, bytes.get(..view.size)?))
            }
            _ => None,
        }
    }

    /// As [`Self::record`], while recovery looks for the end of the log.
    pub(crate) fn record_in_files(&self, offset: i64) -> Option<RecordView<'_>> {
        let offset = u64::try_from(offset).ok()?;
        let file = self.file_of(offset)?;
        match parse(file.data_from(offset - file.start())) {
            Parsed::Record(view) if view.physical_offset as u64 == offset => Some(view),
            _ => None,
        }
    }

    /// Store timestamp of the record at an offset; -1 when there is none.
    pub(crate) fn store_timestamp(&self, offset: i64) -> i64 {
        self.record(offset).map_or(-1, |(view, _)| view.store_timestamp)
    }

    /// Ends the log at an offset: clears what is after it, removes later files, and keeps what
    /// holds whole records in a folder beside its own.
    ///
    /// # Safety
    /// No slice of bytes after the offset is alive (recovery, before anyone reads).
    pub(crate) unsafe fn end_at(
        &mut self,
        offset: u64,
        notes: &mut Vec<String>,
    ) -> Result<Cut, StoreError> {
        let mut cut = Cut::default();
        let is_kept = |file: &&Arc<MappedFile>| file.start() >= offset && !file.is_writable();
        if let Some(file) = self.files.iter().find(is_kept) {
            return Err(StoreError::InvalidData(format!(
                "the commit log ends at {offset}, before {}, which is in a folder of \
                 readOnlyCommitLogStorePaths: repair the file before it, or take the folder out \
                 of that setting",
                file.path().display()
            )));
        }
        while let Some(file) = self.files.last().filter(|file| file.start() >= offset) {
            // A file that starts where the log ends stays when it is the only one.
            if file.start() == offset && self.files.len() == 1 {
                break;
            }
            cut.take_away(file, notes)?;
            self.files.pop();
        }
        self.write = offset;
        self.tail = None;
        if let Some(last) = self.files.last_mut().filter(|file| file.end() > offset) {
            if !last.is_writable() {
                *last = Arc::new(reopened(last)?);
            }
            let position = offset - last.start();
            let used = last.used_end(position)?;
            cut.keep_copy(last, position, used, notes)?;
            // SAFETY: promised by the caller.
            cut.bytes += unsafe { last.clear_between(position, used) }?;
            last.start_at(position);
            self.tail = Some(Arc::clone(last));
        }
        self.safe_end = offset;
        self.asked = offset;
        self.next_asked = 0;
        Ok(cut)
    }

    /// Makes the pages from an offset on dirty again. After a flush that failed the system takes
    /// them for clean, and no flush of ours would ever bring them to the disk.
    pub(crate) fn dirty_again(&self, from: u64) -> Result<(), StoreError> {
        for file in self.files.iter().filter(|file| file.end() > from && file.is_writable()) {
            let end = self.write.min(file.end()).saturating_sub(file.start());
            file.populate(from.saturating_sub(file.start()), end).during("writing", file.path())?;
        }
        Ok(())
    }

    /// Takes the oldest file out; `None`: it is the only one.
    pub(crate) fn drop_first(&mut self) -> Option<Arc<MappedFile>> {
        let is_whole = self.files.first().is_some_and(|file| file.end() <= self.readable());
        (self.files.len() > 1 && is_whole).then(|| self.files.remove(0))
    }

    /// Finds space for `size` bytes in one file and makes it writable.
    #[inline]
    pub(crate) fn place(
        &mut self,
        size: u64,
        now_ms: i64,
        shared: &Shared,
    ) -> Result<(), PutStatus> {
        if self.write + size > self.safe_end {
            self.prepare(size, now_ms, shared)?;
        }
        Ok(())
    }

    /// The bytes to be written, which start `after` bytes after the last record; empty where
    /// [`Self::place`] did not make space.
    #[inline]
    pub(crate) fn room(&mut self, after: u64, size: u64) -> &mut [u8] {
        let Some(file) = &self.tail else { return &mut [] };
        let position = self.write + after - file.start();
        if let Some(buffer) = &self.buffer {
            // SAFETY: `&mut self` is the store's lock, and the committer reads before `write` only.
            return unsafe { buffer.bytes_mut(position, size as usize) };
        }
        // SAFETY: `&mut self` is the store's lock, and readers get nothing after `write`.
        unsafe { file.bytes_mut(position, size as usize) }
    }

    /// Counts `size` bytes as written.
    #[inline]
    pub(crate) fn advance(&mut self, size: u64) {
        self.write += size;
    }

    #[cold]
    fn prepare(&mut self, size: u64, now_ms: i64, shared: &Shared) -> Result<(), PutStatus> {
        if size + BLANK_SIZE > self.file_size {
            shared.note_refusal(format!(
                "a record of {size} bytes does not fit into a commit log file of {} \
                 ({SIZE_SETTING})",
                self.file_size
            ));
            return Err(PutStatus::MessageIllegal);
        }
        let fits =
            self.tail.as_ref().is_some_and(|file| self.write + size + BLANK_SIZE <= file.end());
        if !fits {
            self.roll(shared)?;
        }
        let Some(file) = self.tail.clone() else { return Err(PutStatus::UnknownError) };
        let end = self.write + size;
        if self.buffer.is_none() {
            self.ask_backing(&file, end, now_ms, shared);
        }
        self.ask_files(&file, end, shared);
        let position = end - file.start();
        if self.buffer.is_none() && position + BLANK_SIZE > file.populated() {
            pace_of(self.window)
                .back(&file, position + INLINE_BACK)
                .or_else(|_| file.back(position + BLANK_SIZE))
                .map_err(|error| {
                    shared.note_refusal(format!("writing {}: {error}", file.path().display()));
                    PutStatus::ServiceNotAvailable
                })?;
        }
        let backed = match self.buffer {
            Some(_) => u64::MAX,
            None => file.start() + file.populated(),
        };
        let is_next_asked = self.next_asked == file.end();
        let ask_next_at = if is_next_asked { u64::MAX } else { self.middle(&file) };
        self.safe_end = backed
            .min(ask_next_at)
            .min(file.end() - BLANK_SIZE)
            .min(self.asked.saturating_sub(self.window - self.window / STEPS))
            .max(end);
        Ok(())
    }

    /// Tells the helper what will be written next, and for how much of it there is need.
    fn ask_backing(&mut self, file: &Arc<MappedFile>, end: u64, now_ms: i64, shared: &Shared) {
        if end + self.window - self.window / STEPS > self.asked && self.asked < file.end() {
            let elapsed = now_ms - self.asked_ms;
            let window = match elapsed {
                ..STEP_MS => (self.window * 2).min(WINDOW_MAX),
                _ if elapsed > 10 * STEP_MS => (self.window / 2).max(WINDOW_MIN),
                _ => self.window,
            };
            let target = (end + window).min(file.end());
            if shared.preallocator.back_log(file, target - file.start(), pace_of(window)) {
                (self.window, self.asked, self.asked_ms) = (window, target, now_ms);
            }
        }
        if self.asked >= file.end() {
            // Nothing more to ask for in this file: no need to check again before it is full.
            self.asked = u64::MAX;
        }
    }

    /// Asks the helper for the next two files, in time.
    pub(super) fn ask_files(&mut self, file: &Arc<MappedFile>, end: u64, shared: &Shared) {
        let next = file.end();
        if self.next_asked != next && end > self.middle(file) {
            self.next_asked = next;
            // Both together: where this file was filled quickly the next one may be, too.
            let starts = [next, next + self.file_size];
            shared.preallocator.create(starts.map(|start| self.next_file(start, &shared.settings)));
        }
    }

    /// Behind it the next files are asked for.
    fn middle(&self, file: &MappedFile) -> u64 {
        file.start() + self.file_size / 2
    }

    fn next_file(&self, start: u64, settings: &Settings) -> NextFile {
        let flush_pages = match settings.flush_disk_type {
            FlushDiskType::Async => 0,
            FlushDiskType::Sync => settings.flush_least_pages_when_warm_maped_file.max(1),
        };
        NextFile {
            path: self.folders.path_of(start, self.file_size),
            start,
            size: self.file_size,
            // With a transient pool nothing is written to it by way of its mapping.
            head: if self.pool.is_some() { 0 } else { self.window },
            warm_up: (settings.warm_maped_file_enable && self.pool.is_none())
                .then_some(WarmUp { flush_pages }),
        }
    }

    /// The file that starts there: preallocated, or made now.
    fn next(&self, start: u64, shared: &Shared) -> Result<Arc<MappedFile>, PutStatus> {
        if shared.is_busy() && shared.preallocator.is_making(start) {
            return Err(PutStatus::OsPageCacheBusy);
        }
        shared.start_wait();
        let path = self.folders.path_of(start, self.file_size);
        let made = match shared.preallocator.take(start, &path) {
            Taken::Made(file) => Ok(file),
            Taken::Late => {
                shared.note_refusal(format!(
                    "{} is still being made: the disk does not answer",
                    path.display()
                ));
                return Err(PutStatus::CreateMappedFileFailed);
            }
            Taken::Nothing => MappedFile::create(&path, start, self.file_size).map(|file| {
                path.parent().into_iter().for_each(sync_folder);
                Arc::new(file)
            }),
        };
        shared.end_wait();
        made.map_err(|error| {
            shared.note_refusal(error.to_string());
            PutStatus::CreateMappedFileFailed
        })
    }

    /// Ends the last file with a blank and goes to the next.
    pub(super) fn roll(&mut self, shared: &Shared) -> Result<(), PutStatus> {
        let start = match (&self.tail, self.files.last()) {
            (Some(file), _) => file.end(),
            (None, Some(file)) => file.end().max(self.write),
            (None, None) => self.write / self.file_size * self.file_size,
        };
        let buffer = self.borrow(shared)?;
        let next =
            match self.next(start, shared).and_then(|next| self.end_tail(shared).map(|()| next)) {
                Ok(next) => next,
                Err(status) => {
                    self.pool.iter().for_each(|pool| pool.give_back(buffer.clone()));
                    return Err(status);
                }
            };
        if let Some(pool) = &self.pool {
            pool.stage(&next, buffer.clone(), Some(self.write + BLANK_SIZE));
        }
        self.buffer = buffer;
        shared.log_files.lock().push(Arc::clone(&next));
        self.files.push(Arc::clone(&next));
        self.write = start;
        self.tail = Some(next);
        self.asked = if self.buffer.is_some() { u64::MAX } else { start };
        self.safe_end = start;
        Ok(())
    }

    /// A buffer for the next file, where there is a pool. RocketMQ's rule when it is empty: refuse
    /// the file (`fastFailIfNoBufferInStorePool`), or go without.
    fn borrow(&self, shared: &Shared) -> Result<Option<Arc<Buffer>>, PutStatus> {
        let Some(pool) = &self.pool else { return Ok(None) };
        let buffer = pool.borrow();
        if buffer.is_none() && pool.is_fast_failing() {
            shared.note_refusal(
                "no buffer of the transient store pool is free: the disk is too slow, or raise \
                 transientStorePoolSize"
                    .into(),
            );
            return Err(PutStatus::CreateMappedFileFailed);
        }
        Ok(buffer)
    }

    /// Ends the tail with a blank.
    fn end_tail(&self, shared: &Shared) -> Result<(), PutStatus> {
        let Some(file) = &self.tail else { return Ok(()) };
        let position = self.write - file.start();
        let mut blank = [0_u8; BLANK_SIZE as usize];
        blank[..4].copy_from_slice(&((file.size() - position) as i32).to_be_bytes());
        blank[4..].copy_from_slice(&BLANK_MAGIC.to_be_bytes());
        if let Some(buffer) = &self.buffer {
            // SAFETY: the store's lock is held, and the committer reads before `write` only.
            unsafe { buffer.bytes_mut(position, blank.len()) }.copy_from_slice(&blank);
            return Ok(());
        }
        // SAFETY: the store's lock is held, and nothing after the last record was handed out.
        unsafe { file.patch(position, &blank) }.map_err(|error| {
            shared.note_refusal(format!("writing {}: {error}", file.path().display()));
            PutStatus::ServiceNotAvailable
        })
    }
}

/// Small pieces as long as they can keep up.
fn pace_of(window: u64) -> Pace {
    if window < WINDOW_MAX { Pace::Gentle } else { Pace::Hurried }
}

/// The last file of the log, which is filled to its end wherever it lies, for writing.
fn reopened(file: &MappedFile) -> Result<MappedFile, StoreError> {
    let open = MappedFile::open_with_end;
    open(file.path(), file.start(), file.size(), SIZE_SETTING, true).map_err(|error| {
        StoreError::InvalidData(format!(
            "the commit log ends in {}, which has to be filled before another file is begun, but \
             it can't be written ({error}): move it to a folder of storePathCommitLog",
            file.path().display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, Instant};

    use super::*;

    const SIZE: u64 = 64 << 10;

    /// A log in `a` and `b`, written to the middle of its first file.
    fn half_full(root: &Path, busy_ms: i64) -> (CommitLog, Shared) {
        let mut shared = Shared::new(Settings {
            store_path_commit_log: format!("{0}/a,{0}/b", root.display()).into(),
            mapped_file_size_commit_log: SIZE,
            os_page_cache_busy_time_out_mills: busy_ms,
            ..Settings::new(root)
        });
        shared.preallocator.wait_max = Duration::from_millis(1);
        let folders = LogFolders::new(&shared.settings).unwrap();
        let mut log = CommitLog::load(folders, SIZE, false, &mut Vec::new()).unwrap();
        put(&mut log, &shared, SIZE / 2 + 1).unwrap();
        (log, shared)
    }

    fn put(log: &mut CommitLog, shared: &Shared, size: u64) -> Result<(), PutStatus> {
        log.place(size, 0, shared)?;
        log.room(0, size).fill(1);
        log.advance(size);
        Ok(())
    }

    #[test]
    fn a_file_has_blocks_before_a_masters_bytes_come() {
        use std::os::unix::fs::MetadataExt;
        let root = tempfile::tempdir().unwrap();
        let shared = Shared::new(Settings::new(root.path()));
        let folders = LogFolders::new(&shared.settings).unwrap();
        let mut log = CommitLog::load(folders, SIZE, false, &mut Vec::new()).unwrap();
        let blocks = |log: &CommitLog| log.files()[0].path().metadata().unwrap().blocks() * 512;
        log.put_raw(b"a part", &shared).unwrap();
        let before = blocks(&log);
        assert!(shared.preallocator.back_all());
        assert!(before < SIZE && blocks(&log) >= SIZE, "{before}, {}", blocks(&log));
    }

    #[test]
    fn the_next_file_and_the_one_after_it_are_asked_for_together() {
        let root = tempfile::tempdir().unwrap();
        let (mut log, shared) = half_full(root.path(), 1_000);
        for (start, folder) in [(SIZE, "b"), (2 * SIZE, "a")] {
            let file = shared.preallocator.begin().unwrap();
            assert_eq!((file.start, &file.path), (start, &log.folders.path_of(start, SIZE)));
            assert!(file.path.starts_with(root.path().join(folder)));
            shared.preallocator.finish(&file);
        }
        assert!(shared.preallocator.begin().is_none());
        put(&mut log, &shared, SIZE / 2).unwrap();
        assert_eq!(log.max_offset(), SIZE + SIZE / 2);
        assert_eq!(log.files()[1].path(), log.folders.path_of(SIZE, SIZE));
    }

    #[test]
    fn whoever_waits_for_a_file_in_vain_makes_the_others_find_the_store_busy() {
        let root = tempfile::tempdir().unwrap();
        let (mut log, shared) = half_full(root.path(), 5);
        let file = shared.preallocator.begin().unwrap();
        assert_eq!(put(&mut log, &shared, SIZE / 2), Err(PutStatus::CreateMappedFileFailed));
        assert!(shared.error().unwrap().contains("b/00000000000000065536"));
        let deadline = Instant::now() + Duration::from_secs(10);
        while !shared.is_busy() && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(shared.waiting_ms() > 5);
        assert_eq!(put(&mut log, &shared, SIZE / 2), Err(PutStatus::OsPageCacheBusy));
        put(&mut log, &shared, 100).unwrap();
        shared.preallocator.finish(&file);
        put(&mut log, &shared, SIZE / 2).unwrap();
        assert_eq!((shared.waiting_ms(), shared.is_busy()), (0, false));
    }

    #[test]
    fn a_folder_that_fills_up_gets_no_file_not_even_one_that_was_made_in_it() {
        let root = tempfile::tempdir().unwrap();
        let (mut log, shared) = half_full(root.path(), 1_000);
        while let Some(file) = shared.preallocator.begin() {
            shared.preallocator.finish(&file);
        }
        log.set_full_folders(&[root.path().join("b")]);
        put(&mut log, &shared, SIZE / 2).unwrap();
        assert!(log.files()[1].path().starts_with(root.path().join("a")));
        assert_eq!(std::fs::read_dir(root.path().join("b")).unwrap().count(), 0);
    }
}
