//! Loading a queue's files and finding where its entries end.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::error::{During, StoreError};
use crate::files::folder::{offset_files, sync_folder};
use crate::files::holes::data_ranges;
use crate::files::map::check_size;
use crate::queues::consume_queue::{ConsumeQueue, FILES_SCANNED, READ_ENTRIES, SIZE_SETTING};
use crate::queues::entry::{ENTRY_SIZE, Entry};
use crate::queues::files::QueueFile;

/// What may be taken for true of the entries that are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// None is missing before the last one: after a clean stop, or a kill alone.
    Whole,
    /// Any may be missing in the last files: the machine stopped.
    Nothing,
}

/// A queue as its files have it.
#[derive(Default)]
pub(crate) struct Loaded {
    pub(crate) queue: ConsumeQueue,
    /// A file is missing, or shorter than it was.
    pub(crate) is_short: bool,
    /// Files that are shorter than the setting says, and their lengths.
    pub(crate) short_files: Vec<(PathBuf, u64)>,
    pub(crate) notes: Vec<String>,
}

impl ConsumeQueue {
    /// Loads a queue's files.
    pub(crate) fn load(
        folder: PathBuf,
        file_size: u64,
        trust: Trust,
    ) -> Result<Loaded, StoreError> {
        let mut queue = ConsumeQueue::new(folder, file_size);
        let mut loaded = Loaded { queue: ConsumeQueue::default(), ..Loaded::default() };
        let found = offset_files(&queue.files.folder, &mut loaded.notes)?;
        let count = found.len();
        for (index, (start, path, length)) in found.into_iter().enumerate() {
            if length > file_size {
                check_size(&path, length, file_size, SIZE_SETTING)?;
            }
            if length < file_size {
                // A kill between creating the file and giving it its size leaves the last one so.
                loaded.is_short |= length > 0 || index + 1 < count;
                loaded.short_files.push((path, length));
                continue;
            }
            let follows = loaded.short_files.is_empty()
                && queue.files.last().is_none_or(|last| last.start + file_size == start);
            if !follows || start % file_size != 0 {
                loaded
                    .notes
                    .push(format!("removed {}: the file before it is missing", path.display()));
                let _ = fs::remove_file(&path);
                sync_folder(&queue.files.folder);
                loaded.is_short = true;
                continue;
            }
            queue.files.push(QueueFile::found(start, path));
        }
        let first_scanned = match trust {
            Trust::Whole => queue.find_end_backwards()?,
            Trust::Nothing => queue.find_end()?,
        };
        if trust == Trust::Nothing {
            queue.flushed = first_scanned;
        }
        loaded.queue = queue;
        Ok(loaded)
    }

    /// Sets the end after the last entry of the unbroken sequence in the last files; the start of
    /// the first of those.
    fn find_end(&mut self) -> Result<u64, StoreError> {
        let mut index = self.files.len().saturating_sub(FILES_SCANNED);
        let begin = self.files.get(index).map_or(0, |file| file.start);
        while index < self.files.len() {
            let (count, last) = self.scan(index)?;
            if count == 0 && index > 0 && self.max == 0 {
                // Nothing in the file where the reading started: the end is before it.
                self.cut_files_for_good(index);
                index -= 1;
                continue;
            }
            if let Some(last) = last {
                self.set_end((self.files[index].start / ENTRY_SIZE) as i64 + count, last);
            }
            if count < (self.files.size / ENTRY_SIZE) as i64 {
                self.cut_files_for_good(index + usize::from(count > 0));
                break;
            }
            index += 1;
        }
        self.start_where_loaded();
        Ok(begin.min(self.flushed))
    }

    /// Sets the end after the last entry that stands in the files: the entries before it are there.
    fn find_end_backwards(&mut self) -> Result<u64, StoreError> {
        while let Some(file) = self.files.last() {
            if let Some((number, last)) = self.last_entry(file)? {
                self.set_end((file.start / ENTRY_SIZE) as i64 + number + 1, last);
                break;
            }
            self.cut_files_for_good(self.files.len() - 1);
        }
        self.start_where_loaded();
        Ok(self.flushed)
    }

    fn set_end(&mut self, end: i64, last: Entry) {
        self.max = end;
        self.max_physical = if last.is_pre_blank() { 0 } else { last.end() };
    }

    fn start_where_loaded(&mut self) {
        self.flushed = self.max as u64 * ENTRY_SIZE;
        self.safe_end = self.flushed;
        self.min = self.files.first().map_or(0, |file| (file.start / ENTRY_SIZE) as i64);
    }

    /// The last entry that was written to a file, and its number in it.
    fn last_entry(&self, file: &QueueFile) -> Result<Option<(i64, Entry)>, StoreError> {
        let opened = File::open(&file.path).during("reading", &file.path)?;
        let mut buffer = vec![0_u8; (ENTRY_SIZE * 256) as usize];
        for &(from, to) in data_ranges(&opened, 0, self.files.size).iter().rev() {
            let from = from / ENTRY_SIZE * ENTRY_SIZE;
            let mut end = to.next_multiple_of(ENTRY_SIZE).min(self.files.size);
            while end > from {
                let begin = end.saturating_sub(buffer.len() as u64).max(from);
                let bytes = &mut buffer[..(end - begin) as usize];
                opened.read_exact_at(bytes, begin).during("reading", &file.path)?;
                let entries = bytes.as_chunks().0.iter().map(Entry::decode).enumerate();
                if let Some((number, entry)) = entries.rev().find(|(_, entry)| entry.is_written()) {
                    return Ok(Some(((begin / ENTRY_SIZE) as i64 + number as i64, entry)));
                }
                end = begin;
            }
        }
        Ok(None)
    }

    /// (entries from the file's start to the first that is not written, the last of them). Read,
    /// not mapped: most queues are never touched again.
    fn scan(&self, index: usize) -> Result<(i64, Option<Entry>), StoreError> {
        let path = &self.files[index].path;
        let file = File::open(path).during("reading", path)?;
        let data = data_ranges(&file, 0, self.files.size);
        let Some(&(0, data_end)) = data.first() else { return Ok((0, None)) };
        let mut buffer = vec![0_u8; (ENTRY_SIZE * READ_ENTRIES) as usize];
        let (mut count, mut last, mut at) = (0, None, 0);
        // An entry may straddle the end of the data; what is after is zero then.
        let end = data_end.next_multiple_of(ENTRY_SIZE).min(self.files.size);
        while at < end {
            let length = (end - at).min(buffer.len() as u64) as usize;
            file.read_exact_at(&mut buffer[..length], at).during("reading", path)?;
            for bytes in buffer[..length].as_chunks().0 {
                let entry = Entry::decode(bytes);
                if !entry.is_written() {
                    return Ok((count, last));
                }
                count += 1;
                last = Some(entry);
            }
            at += length as u64;
        }
        Ok((count, last))
    }
}
