//! The index files: hash tables from `topic#key` to physical offsets.
//!
//! The append puts (hash, offset, time) into a pending list; the background thread drains it into
//! the files. A query drains it first, and so does an append that finds it full.
//!
//! | offset | bytes | header field |
//! |---|---|---|
//! | 0 | 8 | begin timestamp |
//! | 8 | 8 | end timestamp |
//! | 16 | 8 | begin physical offset |
//! | 24 | 8 | end physical offset |
//! | 32 | 4 | slots in use |
//! | 36 | 4 | number of the next entry; the first is 1 |
//!
//! Then the slots (4 bytes: number of the slot's newest entry) and the entries (20 bytes: hash,
//! physical offset, seconds since the begin timestamp, number of the slot's entry before).

mod file;
mod keys;
mod load;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::file::{HEADER_SIZE, Header, IndexFile, file_name, file_number, file_size};
pub(crate) use self::keys::{PendingKey, for_each_key, key_hash};
use crate::error::{During, StoreError};
use crate::files::folder::{create_folder, sync_folder};
use crate::files::map::MappedFile;

/// The index of a store.
#[derive(Default)]
pub(crate) struct Index {
    folder: PathBuf,
    slots: u32,
    capacity: u32,
    files: Vec<IndexFile>,
    is_enabled: bool,
    /// Keys taken from the pending list, from `backlog_done` on not put yet.
    backlog: Vec<PendingKey>,
    backlog_done: usize,
    /// Files were removed when it was loaded: keys of records that are long indexed are missing.
    pub(crate) is_cut: bool,
    /// Why keys are not indexed any more; the next opening puts them.
    pub(crate) error: Option<String>,
    /// Why the first key of the backlog could not be put; it is tried again.
    pub(crate) stall: Option<String>,
}

impl Index {
    /// The names of the files, and the offset of the last record in each.
    pub(crate) fn file_ends(&self) -> Vec<(String, i64)> {
        let name = |file: &IndexFile| {
            file.map.path().file_name().and_then(|name| name.to_str()).map(str::to_owned)
        };
        let files = self.files.iter();
        files.filter_map(|file| Some((name(file)?, file.header.end_offset))).collect()
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled && self.error.is_none()
    }

    /// Physical offset of the last record in the index; `None` when it is empty.
    pub(crate) fn end_offset(&self) -> Option<i64> {
        // A file that was just made is empty.
        let file = self.files.iter().rev().find(|file| file.header.count > 1);
        file.map(|file| file.header.end_offset)
    }

    /// Store timestamp of that record.
    pub(crate) fn end_timestamp(&self) -> Option<i64> {
        self.files.last().map(|file| file.header.end_timestamp).filter(|&time| time > 0)
    }

    /// Deletes the files that know records after the log's end.
    pub(crate) fn truncate(&mut self, physical_end: i64, notes: &mut Vec<String>) {
        while let Some(file) =
            self.files.last().filter(|file| file.header.end_offset >= physical_end)
        {
            self.is_cut = true;
            // An empty file only repeats the end of the one before it.
            let _ = fs::remove_file(file.map.path());
            notes.push(format!(
                "removed the index file {}: it goes on behind the end of the log; it is built again",
                file.map.path().display()
            ));
            self.files.pop();
        }
        if self.is_cut {
            sync_folder(&self.folder);
        }
    }

    /// Takes out the oldest files, never the last, that only know records before an offset.
    pub(crate) fn expire(&mut self, physical_min: i64) -> Vec<Arc<MappedFile>> {
        let older = self.files.len().saturating_sub(1);
        let count = self.files[..older]
            .iter()
            .take_while(|file| file.header.end_offset < physical_min)
            .count();
        self.files.drain(..count).map(|file| file.map).collect()
    }

    pub(crate) fn backlog_is_empty(&self) -> bool {
        self.backlog_done >= self.backlog.len()
    }

    /// Takes the pending keys over. The lists change places, so that neither grows anew.
    pub(crate) fn take_backlog(&mut self, pending: &mut Vec<PendingKey>) {
        self.backlog.clear();
        self.backlog_done = 0;
        std::mem::swap(&mut self.backlog, pending);
    }

    /// Puts at most `limit` keys of the backlog; how many. Where the disk takes none `stall` is set
    /// and the key stays the first: the log has everything, so writes go on meanwhile.
    pub(crate) fn put_backlog(&mut self, limit: usize, now_ms: i64) -> usize {
        let backlog = std::mem::take(&mut self.backlog);
        let keys = &backlog[self.backlog_done..];
        let keys = &keys[..keys.len().min(limit)];
        let mut count = keys.len();
        if self.is_enabled() {
            self.stall = None;
            for (at, key) in keys.iter().enumerate() {
                if let Err(error) = self.try_put(key, now_ms) {
                    self.stall = Some(format!("the index can't be written: {error}"));
                    count = at;
                    break;
                }
            }
        }
        self.backlog_done += count;
        self.backlog = backlog;
        count
    }

    /// Indexes no more: what waits is left to the next opening.
    pub(crate) fn give_up(&mut self, error: String) {
        self.error = Some(error);
        self.stall = None;
        self.backlog.clear();
        self.backlog_done = 0;
    }

    /// Whether it lacks keys that it was given.
    pub(crate) fn lacks_keys(&self) -> bool {
        self.error.is_some() || !self.backlog_is_empty()
    }

    /// Adds one key (recovery).
    pub(crate) fn put(&mut self, key: &PendingKey, now_ms: i64) {
        if !self.is_enabled() {
            return;
        }
        if let Err(error) = self.try_put(key, now_ms) {
            // The log has everything: the index can be built again, so writing goes on without.
            self.error = Some(format!("the index takes no more keys: {error}"));
        }
    }

    fn try_put(&mut self, key: &PendingKey, now_ms: i64) -> Result<(), StoreError> {
        if self.files.last().is_none_or(IndexFile::is_full) {
            self.add_file(now_ms)?;
        }
        let Some(file) = self.files.last_mut() else { return Ok(()) };
        file.put(key).during("writing", file.map.path())
    }

    fn add_file(&mut self, now_ms: i64) -> Result<(), StoreError> {
        create_folder(&self.folder)?;
        // Files are taken in the order of their names, so a clock that was set back must not count.
        let last = self.files.last().and_then(|file| file_number(file.map.path()));
        let mut number = file_number(Path::new(&file_name(now_ms))).unwrap_or(0);
        number = number.max(last.map_or(0, |last| last + 1));
        let path = loop {
            let path = self.folder.join(format!("{number:017}"));
            if !path.exists() {
                break path;
            }
            number += 1;
        };
        let made = self.make_file(&path);
        if made.is_err() {
            // Else each try would leave one.
            let _ = fs::remove_file(&path);
        }
        self.files.push(made?);
        Ok(())
    }

    fn make_file(&self, path: &Path) -> Result<IndexFile, StoreError> {
        let map = MappedFile::create(path, 0, file_size(self.slots, self.capacity))?;
        map.advise_random();
        map.populate(0, HEADER_SIZE).during("writing", path)?;
        let mut file = IndexFile::new(map, self.slots, self.capacity);
        if let Some(previous) = self.files.last() {
            let last = previous.header;
            if last.end_offset > 0 {
                file.header.begin_offset = last.end_offset;
                file.header.end_offset = last.end_offset;
            }
            if last.end_timestamp > 0 {
                file.header.begin_timestamp = last.end_timestamp;
                file.header.end_timestamp = last.end_timestamp;
            }
        }
        file.write_header().during("writing", path)?;
        Ok(file)
    }

    /// Whether an entry of that hash and offset stands in the last file (recovery: the keys of the
    /// record where the index ends may have been put in part).
    pub(crate) fn contains(&self, hash: i32, physical_offset: i64) -> bool {
        self.files.last().is_some_and(|file| {
            let mut found = false;
            file.walk(hash, |entry_hash, offset, _| {
                found = entry_hash == hash && offset == physical_offset;
                !found && offset >= physical_offset
            });
            found
        })
    }

    /// (offsets, last update timestamp, its physical offset) of a key, newest first.
    pub(crate) fn query(
        &self,
        hash: i32,
        max_count: usize,
        begin_ms: i64,
        end_ms: i64,
    ) -> (Vec<i64>, i64, i64) {
        let mut offsets = Vec::new();
        let last = self.files.last().map_or(Header::default(), |file| file.header);
        for file in self.files.iter().rev() {
            if file.header.covers(begin_ms, end_ms) {
                file.select(hash, max_count, begin_ms, end_ms, &mut offsets);
            }
            if file.header.begin_timestamp < begin_ms || offsets.len() >= max_count {
                break;
            }
        }
        (offsets, last.end_timestamp, last.end_offset)
    }

    /// The files to write to the disk (the full ones, or `all`), and up to which store timestamp
    /// the index is complete there afterwards.
    pub(crate) fn drain_dirty(&mut self, all: bool) -> (Vec<Arc<MappedFile>>, i64) {
        let mut files = Vec::new();
        let mut timestamp = 0;
        for file in self.files.iter_mut().filter(|file| all || file.is_full()) {
            if std::mem::take(&mut file.is_dirty) {
                files.push(Arc::clone(&file.map));
            }
            timestamp = file.header.end_timestamp.max(timestamp);
        }
        (files, timestamp)
    }

    /// Takes the files out of our resident memory.
    pub(crate) fn release_pages(&self) {
        for file in &self.files {
            file.map.release_pages();
        }
    }
}
