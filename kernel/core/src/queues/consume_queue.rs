//! One consume queue: entries of 20 bytes (physical offset, size, tags code), one per message, over
//! files of one size. The entry of queue offset `i` stands at byte `20 * i`.
//!
//! The files are mapped when they are first read or written, not when the store opens.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{During, StoreError};
use crate::files::dirty::DirtyRange;
use crate::files::folder::sync_folder;
use crate::files::map::{MappedFile, PAGE};
use crate::files::preallocate::Preallocator;
use crate::queues::entry::{ENTRY_SIZE, Entry};
use crate::queues::files::QueueFiles;
use crate::queues::queue_ext::QueueExt;

/// The setting that fixes the size of the files.
pub(crate) const SIZE_SETTING: &str = "mappedFileSizeConsumeQueue";
/// Files at the end of a queue whose every entry is examined after a crash of the machine.
pub(super) const FILES_SCANNED: usize = 3;
/// A queue that fills a page within this time gets pages backed in advance by the helper.
const BUSY_MS: i64 = 1_000;
/// Entries that are read at once where a file is not mapped (64 KiB).
pub(super) const READ_ENTRIES: u64 = 3_277;
/// Bytes backed in advance in a busy queue (3,276 messages).
const BUSY_WINDOW: u64 = 64 << 10;

/// The size of a queue's files: the setting, rounded up to whole entries as RocketMQ does.
pub(crate) fn queue_file_size(setting: u64) -> u64 {
    setting.max(1).next_multiple_of(ENTRY_SIZE)
}

/// One queue of one topic.
#[derive(Default)]
pub(crate) struct ConsumeQueue {
    pub(super) files: QueueFiles,
    /// The file that the next entry goes to, once it was written to.
    tail: Option<Arc<MappedFile>>,
    pub(super) min: i64,
    pub(super) max: i64,
    /// Up to this byte an entry can be written without a second check.
    pub(super) safe_end: u64,
    asked: u64,
    page_ms: i64,
    pub(super) flushed: u64,
    /// Physical offset after the record of the last entry; 0 when there is none.
    pub(super) max_physical: i64,
    /// Whether it stands in the list of queues to flush.
    pub(crate) listed: bool,
    /// A slave deleted the queue of an earlier life for it: offsets behind its end are of that one,
    /// and whoever asks for them begins at its start.
    pub(crate) began_anew: bool,
    /// Units beside the entries; `None` without `enableConsumeQueueExt`.
    pub(crate) ext: Option<Box<QueueExt>>,
}

impl ConsumeQueue {
    /// An empty queue; touches no file.
    pub(crate) fn new(folder: PathBuf, file_size: u64) -> Self {
        let files = QueueFiles::new(folder, file_size, SIZE_SETTING);
        ConsumeQueue { files, ..ConsumeQueue::default() }
    }

    /// Takes every entry for not flushed, as far back as a killed run may have left some.
    pub(crate) fn distrust_flushed(&mut self) {
        let first = self.files.len().saturating_sub(FILES_SCANNED);
        self.flushed = self.files.get(first).map_or(0, |file| file.start).min(self.flushed);
    }

    /// Whether something waits to be flushed.
    pub(crate) fn is_dirty(&self) -> bool {
        self.max as u64 * ENTRY_SIZE > self.flushed
    }

    /// Lets the maps go; they come back when they are needed.
    pub(crate) fn unmap(&mut self) {
        self.tail = None;
        self.asked = 0;
        self.files.unmap();
        if let Some(ext) = &mut self.ext {
            ext.unmap();
        }
    }

    /// Removes files in a way that lasts: what was cut off must not be back after a loss of power,
    /// when the log has grown again.
    pub(super) fn cut_files_for_good(&mut self, keep: usize) {
        if keep < self.files.len() {
            self.files.cut(keep);
            sync_folder(&self.files.folder);
        }
    }

    /// Moves the min offset to the first message that the log still has.
    pub(crate) fn correct_min(&mut self, physical_min: i64) -> Result<(), StoreError> {
        let begin = self.files.first().map_or(self.max, |file| (file.start / ENTRY_SIZE) as i64);
        self.min = self.min.max(begin);
        // Mostly the first look finds it: a whole buffer is for those that follow.
        let mut count = 1;
        while self.min < self.max {
            let bytes = self.read_entries(self.min, count)?;
            if bytes.is_empty() {
                break;
            }
            for bytes in bytes.as_chunks().0 {
                let entry = Entry::decode(bytes);
                if entry.is_written()
                    && !entry.is_pre_blank()
                    && entry.physical_offset >= physical_min
                {
                    if let Some(ext) = &mut self.ext {
                        ext.start_at(entry.tags_code);
                    }
                    return Ok(());
                }
                self.min += 1;
            }
            count = READ_ENTRIES;
        }
        Ok(())
    }

    /// Up to `count` entries from an offset, within one file. Read, not mapped: most queues are
    /// examined once and never touched again.
    fn read_entries(&self, offset: i64, count: u64) -> Result<Vec<u8>, StoreError> {
        let byte = offset as u64 * ENTRY_SIZE;
        let Some(file) = self.files.at(byte) else {
            return Ok(Vec::new());
        };
        let end = (file.start + self.files.size).min(self.max as u64 * ENTRY_SIZE);
        let mut bytes = vec![0_u8; (count * ENTRY_SIZE).min(end.saturating_sub(byte)) as usize];
        File::open(&file.path)
            .and_then(|opened| opened.read_exact_at(&mut bytes, byte - file.start))
            .during("reading", &file.path)?;
        Ok(bytes)
    }

    /// Deletes up to `most` files, never the last, whose last entry is of a record before an
    /// offset; corrects the min offset. How many files.
    pub(crate) fn expire(&mut self, physical_min: i64, most: usize) -> Result<usize, StoreError> {
        let mut count = 0;
        while count < most && self.files.len() > 1 {
            let next = self.files[1].start / ENTRY_SIZE;
            let bytes = self.read_entries(next as i64 - 1, 1)?;
            let is_expired = bytes
                .first_chunk()
                .is_some_and(|bytes| Entry::decode(bytes).physical_offset < physical_min);
            if !is_expired {
                break;
            }
            let path = &self.files[0].path;
            fs::remove_file(path)
                .or_else(|error| match error.kind() {
                    std::io::ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                })
                .during("removing", path)?;
            self.files.remove(0);
            count += 1;
        }
        self.flushed = self.flushed.max(self.files.first().map_or(0, |file| file.start));
        self.correct_min(physical_min)?;
        Ok(count)
    }

    /// Whether it ever had a message.
    pub(crate) fn has_files(&self) -> bool {
        !self.files.is_empty()
    }

    pub(crate) fn min(&self) -> i64 {
        self.min
    }

    #[inline]
    pub(crate) fn max(&self) -> i64 {
        self.max
    }

    /// The max offset of what can be read of a log that is readable up to there: records that wait
    /// in a transient pool have their entries already.
    #[inline]
    pub(crate) fn readable_max(&mut self, readable: i64) -> i64 {
        if self.max_physical <= readable { self.max } else { self.search_readable(readable) }
    }

    #[cold]
    fn search_readable(&mut self, readable: i64) -> i64 {
        let (mut low, mut high) = (self.min, self.max);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.entry(middle) {
                Ok(Some(entry)) if entry.end() > readable => high = middle,
                _ => low = middle + 1,
            }
        }
        low
    }

    pub(crate) fn max_physical(&self) -> i64 {
        self.max_physical
    }

    /// Entries of one file.
    pub(crate) fn entries_per_file(&self) -> i64 {
        (self.files.size / ENTRY_SIZE) as i64
    }

    /// Start of the file after the one that holds a queue offset.
    pub(crate) fn roll_next_file(&self, offset: i64) -> i64 {
        let count = self.entries_per_file();
        offset + count - offset.rem_euclid(count)
    }

    /// The entries from an offset to the end of its file or of the queue; empty outside.
    #[inline]
    pub(crate) fn entries(
        &mut self,
        offset: i64,
    ) -> Result<&[[u8; ENTRY_SIZE as usize]], StoreError> {
        if offset < 0 || offset >= self.max {
            return Ok(&[]);
        }
        let (byte, end) = (offset as u64 * ENTRY_SIZE, self.max as u64 * ENTRY_SIZE);
        let Some(file) = self.files.map_at(byte)? else { return Ok(&[]) };
        let length = end.min(file.end()) - byte;
        Ok(file.bytes(byte - file.start(), length as usize).as_chunks().0)
    }

    /// One entry; `None` outside.
    pub(crate) fn entry(&mut self, offset: i64) -> Result<Option<Entry>, StoreError> {
        Ok(self.entries(offset)?.first().map(Entry::decode))
    }

    /// Makes the next `count` entries writable, so that [`Self::push`] can't fail.
    #[inline]
    pub(crate) fn reserve(
        &mut self,
        count: u64,
        now_ms: i64,
        preallocator: &Preallocator,
    ) -> Result<(), StoreError> {
        if (self.max as u64 + count) * ENTRY_SIZE <= self.safe_end && self.tail.is_some() {
            return Ok(());
        }
        self.prepare(count, now_ms, preallocator)
    }

    #[cold]
    fn prepare(
        &mut self,
        count: u64,
        now_ms: i64,
        preallocator: &Preallocator,
    ) -> Result<(), StoreError> {
        let byte = self.max as u64 * ENTRY_SIZE;
        let end = byte + count * ENTRY_SIZE;
        if self.files.is_empty() {
            self.open_file(byte / self.files.size * self.files.size)?;
            // Without them the file would look as if it started with nothing.
            self.fill_pre_blank(byte).inspect_err(|_| self.files.cut(0))?;
        }
        if self.tail.as_ref().is_none_or(|tail| byte >= tail.end()) {
            self.open_tail(byte)?;
        }
        let Some(tail) = self.tail.clone() else { return Err(StoreError::Closed) };
        let need = end.min(tail.end()) - tail.start();
        if need > tail.populated() {
            tail.back(need).during("writing", tail.path())?;
        }
        // A batch may go on in the next file, and an immense one in those after it.
        let mut start = tail.end();
        while end > start {
            let next = self.open_file(start)?;
            next.back((end - start).min(next.size())).during("writing", tail.path())?;
            start = next.end();
        }
        let is_busy = now_ms - self.page_ms < BUSY_MS;
        self.page_ms = now_ms;
        let populated = tail.populated();
        if is_busy && populated < (need + BUSY_WINDOW / 2).min(tail.size()) {
            let target = (need + BUSY_WINDOW).min(tail.size());
            if self.asked < tail.start() + need + BUSY_WINDOW / 2
                && preallocator.back_queue(&tail, target)
            {
                self.asked = tail.start() + target;
            }
        }
        let known = if is_busy && populated < tail.size() {
            populated.saturating_sub(BUSY_WINDOW / 2).max(need)
        } else {
            populated
        };
        self.safe_end = tail.start() + known.min(tail.size() / ENTRY_SIZE * ENTRY_SIZE);
        Ok(())
    }

    /// Maps the file that the entry at `byte` goes to, clearing what an earlier life left there.
    fn open_tail(&mut self, byte: u64) -> Result<(), StoreError> {
        let is_first = self.tail.is_none();
        let file = self.open_file(byte)?;
        let position = byte - file.start();
        if is_first {
            // SAFETY: the store's lock is held (`&mut self`), readers get nothing after `max`.
            unsafe { file.clear_from(position) }?;
        }
        if file.populated() == 0 {
            file.start_at(position);
        }
        self.tail = Some(file);
        Ok(())
    }

    /// The map of the file that holds a byte, which is its first one when the file is new.
    fn open_file(&mut self, byte: u64) -> Result<Arc<MappedFile>, StoreError> {
        if self.files.at(byte).is_none() {
            self.files.create(byte)?.advise_random();
        }
        self.files.map_at(byte)?.cloned().ok_or(StoreError::Closed)
    }

    /// Fills the start of the first file when the queue starts at a higher offset.
    fn fill_pre_blank(&mut self, byte: u64) -> Result<(), StoreError> {
        self.min = self.max;
        self.flushed = byte / self.files.size * self.files.size;
        let Some(file) = self.files.map_at(byte)?.cloned() else { return Ok(()) };
        let bytes = Entry::PRE_BLANK.encode().repeat(((byte - file.start()) / ENTRY_SIZE) as usize);
        // SAFETY: a file just created under the store's lock.
        unsafe { file.patch(0, &bytes) }.during("writing", file.path())
    }

    /// Appends an entry; its space was reserved.
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry) {
        let byte = self.max as u64 * ENTRY_SIZE;
        if self.tail.as_ref().is_none_or(|tail| byte >= tail.end()) {
            self.tail = self.files.at(byte).and_then(|file| file.map.clone());
        }
        if let Some(tail) = &self.tail {
            // SAFETY: the store's lock is held (`&mut self`), readers get nothing after `max`.
            let target = unsafe { tail.bytes_mut(byte - tail.start(), ENTRY_SIZE as usize) };
            if target.len() == ENTRY_SIZE as usize {
                target.copy_from_slice(&entry.encode());
            }
            if byte + 2 * ENTRY_SIZE > tail.end() {
                // It is full. RocketMQ looks for a time in the first file changed at it or later.
                tail.touch();
            }
        }
        self.max += 1;
        self.max_physical = entry.end();
    }

    /// Starts an empty queue at an offset.
    pub(crate) fn start_at(&mut self, offset: i64) {
        if self.files.is_empty() {
            self.min = offset;
            self.max = offset;
        }
    }

    /// Fills the queue with pre-blank entries up to an offset (recovery).
    pub(crate) fn fill_to(
        &mut self,
        offset: i64,
        preallocator: &Preallocator,
    ) -> Result<(), StoreError> {
        let last = self.max_physical;
        while self.max < offset {
            self.reserve(1, 0, preallocator)?;
            self.push(Entry::PRE_BLANK);
        }
        self.max_physical = last;
        Ok(())
    }

    /// Overwrites an entry that exists (recovery).
    pub(crate) fn rewrite(&mut self, offset: i64, entry: Entry) -> Result<(), StoreError> {
        let byte = offset as u64 * ENTRY_SIZE;
        let Some(file) = self.files.map_at(byte)? else { return Ok(()) };
        // SAFETY: recovery: nobody reads yet.
        unsafe { file.patch(byte - file.start(), &entry.encode()) }
            .during("writing", file.path())?;
        self.flushed = self.flushed.min(byte);
        if offset + 1 == self.max {
            self.max_physical = entry.end();
        }
        Ok(())
    }

    /// Drops the entries of records at or after the log's end; how many.
    pub(crate) fn truncate(&mut self, physical_end: i64) -> Result<i64, StoreError> {
        let (mut end, mut at) = (self.max, self.max);
        while at > self.min {
            match self.entry(at - 1)? {
                Some(entry) if entry.is_pre_blank() => at -= 1,
                Some(entry) if entry.is_written() && entry.end() <= physical_end => {
                    end = at;
                    break;
                }
                _ => {
                    at -= 1;
                    end = at;
                }
            }
        }
        self.truncate_at(end)
    }

    /// Drops blank entries behind the last message: they filled the place before one that is lost,
    /// and no message is to come behind them. Those that the queue begins with stay.
    pub(crate) fn drop_last_blanks(&mut self) -> Result<(), StoreError> {
        // Where the last entry is of a message nothing is read.
        let mut end = if self.max_physical > 0 { self.min } else { self.max };
        while end > self.min {
            if !self.entry(end - 1)?.is_some_and(|entry| entry.is_pre_blank()) {
                return self.truncate_at(end).map(drop);
            }
            end -= 1;
        }
        Ok(())
    }

    /// Ends the queue at an offset; how many entries were dropped.
    pub(crate) fn truncate_at(&mut self, end: i64) -> Result<i64, StoreError> {
        let dropped = self.max - end;
        if dropped <= 0 {
            return Ok(0);
        }
        self.max = end;
        let last = if end > self.min { self.entry(end - 1)? } else { None };
        self.max_physical = last.filter(|last| !last.is_pre_blank()).map_or(0, |last| last.end());
        if end <= self.min {
            // Nothing is left, or what only filled the place before the first message.
            self.delete();
            self.files.folder.parent().into_iter().for_each(sync_folder);
            return Ok(dropped);
        }
        let byte = end as u64 * ENTRY_SIZE;
        self.cut_files_for_good(self.files.count_before(byte));
        // Cleared at once: once the log has grown again they would pass for entries of it.
        if let Some(file) = self.files.map_at(byte)?.cloned() {
            // SAFETY: recovery: nobody reads yet.
            unsafe { file.clear_from(byte - file.start()) }?;
        }
        self.tail = None;
        self.safe_end = byte;
        self.flushed = self.flushed.min(byte);
        self.fit_ext()?;
        Ok(dropped)
    }

    /// The first entry of each file (recovery of a topic whose queues were deleted).
    pub(crate) fn first_entries(&mut self) -> Result<Vec<Entry>, StoreError> {
        let starts: Vec<u64> = self.files.iter().map(|file| file.start / ENTRY_SIZE).collect();
        let mut entries = Vec::with_capacity(starts.len());
        for start in starts {
            entries.extend(self.entry(start as i64)?);
        }
        Ok(entries)
    }

    /// Deletes the files.
    pub(crate) fn delete(&mut self) {
        self.files.cut(0);
        self.tail = None;
        let _ = fs::remove_dir(&self.files.folder);
        if let Some(ext) = &mut self.ext {
            ext.delete();
        }
        (self.min, self.max, self.max_physical) = (0, 0, 0);
        (self.safe_end, self.flushed, self.asked) = (0, 0, 0);
    }

    /// What is not on the disk yet, if at least `least_pages` pages (0: anything) or a full file.
    pub(crate) fn drain_dirty(&mut self, least_pages: u64, ranges: &mut Vec<DirtyRange>) -> bool {
        let end = self.max as u64 * ENTRY_SIZE;
        if end <= self.flushed {
            return true;
        }
        let is_full = end.is_multiple_of(self.files.size);
        if !is_full && least_pages > 0 && end / PAGE - self.flushed / PAGE < least_pages {
            return false;
        }
        let is_whole = is_full || least_pages == 0;
        // Without the page that is being written: an append would have to ask for the right to
        // write it again, and perhaps to wait for the file system.
        let start = end / self.files.size * self.files.size;
        let target = if is_whole { end } else { start + (end - start) / PAGE * PAGE };
        let end = target.max(self.flushed);
        self.files.add_dirty(self.flushed, end, ranges);
        self.flushed = end;
        if let Some(ext) = &mut self.ext {
            ext.drain_dirty(ranges);
        }
        is_whole
    }
}
