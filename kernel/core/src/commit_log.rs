//! The commit log: one sequence of records over files of one size.
//!
//! A record never spans files: when it and the 8 bytes of a blank do not fit, a blank ends the file
//! and the record goes to the next one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::ahead::NextFile;
use crate::error::{PutStatus, StoreError};
use crate::folder::{create_folder, offset_files, offset_name, sync_folder};
use crate::map::MappedFile;
use crate::record::{BLANK_MAGIC, BLANK_SIZE, Parsed, RecordView, parse};
use crate::shared::Shared;

/// The setting that fixes the size of the files.
const SIZE_SETTING: &str = "mappedFileSizeCommitLog";
/// Bytes that are kept backed ahead of the append: from this at a trickle ...
const WINDOW_MIN: u64 = 256 << 10;
/// ... to this at hundreds of megabytes a second.
const WINDOW_MAX: u64 = 32 << 20;
/// The window doubles when half of it is used up in less than this, and shrinks at ten times it.
const WINDOW_MS: i64 = 100;
/// Bytes the append backs by itself when the helper is behind.
const INLINE_BACK: u64 = 64 << 10;

#[derive(Default)]
pub(crate) struct CommitLog {
    folder: PathBuf,
    file_size: u64,
    files: Vec<Arc<MappedFile>>,
    /// The file that holds `write`; `None` when that begins a file not made yet.
    tail: Option<Arc<MappedFile>>,
    /// Physical offset behind the last record.
    write: u64,
    /// Up to here a record can be written without a second look: it leaves room for the blank,
    /// its pages are backed, and the helper needs no word.
    safe_end: u64,
    window: u64,
    /// The helper was asked to back up to here.
    asked: u64,
    asked_ms: i64,
    /// The helper was asked for the file that starts here.
    next_asked: u64,
}

impl CommitLog {
    /// Loads the files that exist; where the records end is for recovery to find.
    pub(crate) fn load(
        folder: PathBuf,
        file_size: u64,
        notes: &mut Vec<String>,
    ) -> Result<Self, StoreError> {
        create_folder(&folder)?;
        let mut files: Vec<Arc<MappedFile>> = Vec::new();
        let found = offset_files(&folder, notes)?;
        let count = found.len();
        for (index, (start, path, length)) in found.into_iter().enumerate() {
            if length == 0 && index + 1 == count {
                // A kill between creating the file and giving it its size.
                let _ = fs::remove_file(&path);
                notes.push(format!("removed {}: it was just being created", path.display()));
                continue;
            }
            let file = MappedFile::open_with_end(&path, start, file_size, SIZE_SETTING)?;
            if let Some(last) = files.last().filter(|last| last.end() != start) {
                return Err(StoreError::InvalidData(format!(
                    "the commit log has no file {} between {} and {}: restore it, or move the \
                     later files away",
                    offset_name(last.end()),
                    last.path().display(),
                    path.display()
                )));
            }
            if start % file_size != 0 {
                return Err(StoreError::InvalidData(format!(
                    "{} does not start at a multiple of {file_size} ({SIZE_SETTING})",
                    path.display()
                )));
            }
            files.push(Arc::new(file));
        }
        Ok(CommitLog { folder, file_size, files, window: WINDOW_MIN, ..CommitLog::default() })
    }

    pub(crate) fn files(&self) -> &[Arc<MappedFile>] {
        &self.files
    }

    /// First physical offset; 0 when there is no file.
    pub(crate) fn min_offset(&self) -> u64 {
        self.files.first().map_or(0, |file| file.start())
    }

    /// Physical offset behind the last record.
    #[inline]
    pub(crate) fn max_offset(&self) -> u64 {
        self.write
    }

    /// Begin of the file after the one that holds an offset.
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
        if size == 0 || offset.checked_add(size)? > self.write {
            return None;
        }
        let file = self.file_of(offset)?;
        let bytes = file.bytes(offset - file.start(), size as usize);
        (!bytes.is_empty()).then_some(bytes)
    }

    /// The record that starts at a physical offset.
    pub(crate) fn record(&self, offset: i64) -> Option<(RecordView<'_>, &[u8])> {
        let offset = u64::try_from(offset).ok().filter(|&offset| offset < self.write)?;
        let file = self.file_of(offset)?;
        let end = self.write.min(file.end());
        let bytes = file.bytes(offset - file.start(), (end - offset) as usize);
        match parse(bytes) {
            Parsed::Record(view) if view.physical_offset as u64 == offset => {
                Some((view, bytes.get(..view.size)?))
            }
            _ => None,
        }
    }

    /// Store timestamp of the record at an offset; -1 when there is none.
    pub(crate) fn store_timestamp(&self, offset: i64) -> i64 {
        self.record(offset).map_or(-1, |(view, _)| view.store_timestamp)
    }

    /// Ends the log at an offset: clears what is behind it, removes later files; one that begins
    /// with a whole record is moved to `set_aside` instead. How many bytes were cut off.
    ///
    /// # Safety
    /// No slice of bytes behind the offset is alive (recovery, before anyone reads).
    pub(crate) unsafe fn end_at(
        &mut self,
        offset: u64,
        set_aside: &Path,
        notes: &mut Vec<String>,
    ) -> Result<u64, StoreError> {
        let mut cut = 0;
        while let Some(file) = self.files.last().filter(|file| file.start() >= offset) {
            // A file that begins where the log ends stays when it is the only one.
            if file.start() == offset && self.files.len() == 1 {
                break;
            }
            let context = || format!("removing {}", file.path().display());
            if let Parsed::Record(_) = parse(file.data_from(0)) {
                let target = set_aside.join(offset_name(file.start()));
                create_folder(set_aside)?;
                fs::rename(file.path(), &target)
                    .map_err(|error| StoreError::io(context(), error))?;
                notes.push(format!(
                    "moved {} to {}: the log ends before it",
                    file.path().display(),
                    target.display()
                ));
                cut += file.size();
            } else {
                fs::remove_file(file.path()).map_err(|error| StoreError::io(context(), error))?;
            }
            self.files.pop();
        }
        self.write = offset;
        self.tail = self.files.last().filter(|file| file.end() > offset).cloned();
        if let Some(file) = &self.tail {
            let position = offset - file.start();
            // SAFETY: promised by the caller.
            cut += unsafe { file.clear_from(position) }?;
            file.begin_at(position);
        }
        self.safe_end = offset;
        self.asked = offset;
        self.next_asked = 0;
        Ok(cut)
    }

    /// Takes the oldest file out; `None`: it is the only one.
    pub(crate) fn drop_first(&mut self) -> Option<Arc<MappedFile>> {
        (self.files.len() > 1).then(|| self.files.remove(0))
    }

    /// Finds room for `size` bytes in one file and makes it writable.
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

    /// The bytes `ahead` behind the last record, to be written; empty where [`Self::place`] did not
    /// make room.
    #[inline]
    pub(crate) fn room(&mut self, ahead: u64, size: u64) -> &mut [u8] {
        let Some(file) = &self.tail else { return &mut [] };
        let position = self.write + ahead - file.start();
        // SAFETY: `&mut self` is the store's lock, and readers get nothing behind `write`.
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
        self.ask_ahead(&file, end, now_ms, shared);
        let position = end - file.start();
        if position + BLANK_SIZE > file.populated() {
            file.back(position + INLINE_BACK)
                .or_else(|_| file.back(position + BLANK_SIZE))
                .map_err(|error| {
                    shared.note_refusal(format!("writing {}: {error}", file.path().display()));
                    PutStatus::ServiceNotAvailable
                })?;
        }
        let backed = file.start() + file.populated();
        self.safe_end = backed
            .min(file.end() - BLANK_SIZE)
            .min(self.asked.saturating_sub(self.window / 2))
            .max(end);
        Ok(())
    }

    /// Tells the helper what will be written next, and for how much of it there is need.
    fn ask_ahead(&mut self, file: &Arc<MappedFile>, end: u64, now_ms: i64, shared: &Shared) {
        if end + self.window / 2 > self.asked && self.asked < file.end() {
            let elapsed = now_ms - self.asked_ms;
            if elapsed < WINDOW_MS {
                self.window = (self.window * 2).min(WINDOW_MAX);
            } else if elapsed > 10 * WINDOW_MS {
                self.window = (self.window / 2).max(WINDOW_MIN);
            }
            self.asked_ms = now_ms;
            self.asked = (end + self.window).min(file.end());
            shared.ahead.back_log(file, self.asked - file.start());
        }
        if self.asked >= file.end() {
            // Nothing more to ask for in this file: no need to look again before it is full.
            self.asked = u64::MAX;
        }
        let next = file.end();
        if self.next_asked != next && end > file.start() + self.file_size / 2 {
            self.next_asked = next;
            shared.ahead.create(NextFile {
                path: self.folder.join(offset_name(next)),
                start: next,
                size: self.file_size,
                head: self.window,
            });
        }
    }

    /// Ends the last file with a blank and goes to the next.
    fn roll(&mut self, shared: &Shared) -> Result<(), PutStatus> {
        let start = match (&self.tail, self.files.last()) {
            (Some(file), _) => file.end(),
            (None, Some(file)) => file.end().max(self.write),
            (None, None) => self.write / self.file_size * self.file_size,
        };
        let next = if let Some(file) = shared.ahead.take(start) {
            file
        } else {
            let path = self.folder.join(offset_name(start));
            let file = MappedFile::create(&path, start, self.file_size).map_err(|error| {
                shared.note_refusal(error.to_string());
                PutStatus::CreateMappedFileFailed
            })?;
            sync_folder(&self.folder);
            Arc::new(file)
        };
        if let Some(file) = &self.tail {
            let position = self.write - file.start();
            let mut blank = [0_u8; BLANK_SIZE as usize];
            blank[..4].copy_from_slice(&((file.size() - position) as i32).to_be_bytes());
            blank[4..].copy_from_slice(&BLANK_MAGIC.to_be_bytes());
            // SAFETY: the store's lock is held, and nothing behind the last record was handed out.
            unsafe { file.patch(position, &blank) }.map_err(|error| {
                shared.note_refusal(format!("writing {}: {error}", file.path().display()));
                PutStatus::ServiceNotAvailable
            })?;
        }
        shared.log_files.lock().push(Arc::clone(&next));
        self.files.push(Arc::clone(&next));
        self.write = start;
        self.tail = Some(next);
        self.asked = start;
        self.safe_end = start;
        Ok(())
    }
}
