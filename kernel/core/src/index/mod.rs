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

use std::cmp::Ordering;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::StoreError;
use crate::files::folder::{create_folder, sync_folder};
use crate::files::map::{MappedFile, PAGE};
use crate::record::java_hash_from;
use crate::settings::Settings;

const HEADER_SIZE: u64 = 40;
const SLOT_SIZE: u64 = 4;
const ENTRY_SIZE: u64 = 20;
const SIZE_SETTING: &str = "maxHashSlotNum and maxIndexNum";
/// Pages of the entries that are backed at once.
const BACK_PAGES: u64 = 16;

/// One key of one record, on its way to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingKey {
    pub(crate) hash: i32,
    pub(crate) physical_offset: i64,
    pub(crate) store_timestamp: i64,
}

/// Java's hash of `topic#key`, made non-negative as the index does; `topic_hash` is that of
/// `topic#`.
#[inline]
pub(crate) fn key_hash(topic_hash: i32, key: &[u8]) -> i32 {
    // The absolute value of the smallest int is itself in Java, and 0 in the index.
    java_hash_from(topic_hash, key).checked_abs().unwrap_or(0)
}

/// Calls `put` with each index hash of a record: that of the unique key, then one per word of KEYS.
#[inline]
pub(crate) fn for_each_key(
    topic_hash: i32,
    uniq_key: Option<&[u8]>,
    keys: Option<&[u8]>,
    mut put: impl FnMut(i32),
) {
    if let Some(key) = uniq_key {
        put(key_hash(topic_hash, key));
    }
    if let Some(keys) = keys {
        for key in keys.split(|&byte| byte == b' ').filter(|key| !key.is_empty()) {
            put(key_hash(topic_hash, key));
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Header {
    begin_timestamp: i64,
    end_timestamp: i64,
    begin_offset: i64,
    end_offset: i64,
    slots_used: i32,
    count: i32,
}

struct IndexFile {
    map: Arc<MappedFile>,
    slots: u32,
    capacity: u32,
    header: Header,
    /// One bit per page: backed for writing.
    backed: Vec<u64>,
    is_dirty: bool,
}

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
    /// Loads the files. With `not_after` those that go on behind that time are removed: after a
    /// crash of the machine nothing tells which of their pages reached the disk. So are damaged ones,
    /// and all behind one that is missing; `known` says which there were, and where each ended.
    pub(crate) fn load(
        settings: &Settings,
        not_after: Option<i64>,
        is_clean: bool,
        known: &[(String, i64)],
        physical_min: i64,
        notes: &mut Vec<String>,
    ) -> Result<Self, StoreError> {
        let mut index = Index {
            folder: settings.store_path_root_dir.join("index"),
            slots: settings.max_hash_slot_num.max(1),
            capacity: settings.max_index_num.max(2),
            files: Vec::new(),
            is_enabled: settings.message_index_enable,
            ..Index::default()
        };
        if !index.is_enabled {
            return Ok(index);
        }
        let context = || format!("listing {}", index.folder.display());
        let mut paths = Vec::new();
        match fs::read_dir(&index.folder) {
            Ok(entries) => {
                for entry in entries {
                    let path = entry.map_err(|error| StoreError::io(context(), error))?.path();
                    paths.push(path);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::io(context(), error)),
        }
        paths.sort_unstable();
        let size = file_size(index.slots, index.capacity);
        let has_right_size =
            paths.iter().any(|path| fs::metadata(path).is_ok_and(|found| found.len() == size));
        // With every file of another size the setting is wrong.
        let may_be_short = !is_clean || has_right_size;
        let is_there =
            |name: &str| paths.iter().any(|path| path.file_name().is_some_and(|own| own == name));
        let missing = known.iter().find(|(name, end)| *end >= physical_min && !is_there(name));
        for path in &paths {
            let is_behind = missing
                .is_some_and(|(name, _)| path.file_name().is_some_and(|own| own > name.as_str()));
            let is_known = |end| {
                known.iter().any(|(name, known)| {
                    *known == end && path.file_name().is_some_and(|own| own == name.as_str())
                })
            };
            index.load_file(path, not_after, is_behind, may_be_short, is_known, notes)?;
        }
        index.drop_empty(notes)?;
        if index.is_cut {
            // What comes back after a loss of power would hold keys twice.
            sync_folder(&index.folder);
        }
        index.is_cut |= missing.is_some();
        Ok(index)
    }

    /// Removes a last file without entries: a kill came before its first one, perhaps before its
    /// header said where the file before it ends.
    fn drop_empty(&mut self, notes: &mut Vec<String>) -> Result<(), StoreError> {
        while let Some(file) = self.files.pop_if(|file| file.header.count <= 1) {
            let path = file.map.path();
            fs::remove_file(path)
                .map_err(|error| StoreError::io(format!("removing {}", path.display()), error))?;
            notes.push(format!("removed {}: it was just being created", path.display()));
        }
        Ok(())
    }

    /// The names of the files, and the offset of the last record in each.
    pub(crate) fn file_ends(&self) -> Vec<(String, i64)> {
        let name = |file: &IndexFile| {
            file.map.path().file_name().and_then(|name| name.to_str()).map(str::to_owned)
        };
        let files = self.files.iter();
        files.filter_map(|file| Some((name(file)?, file.header.end_offset))).collect()
    }

    fn load_file(
        &mut self,
        path: &Path,
        not_after: Option<i64>,
        is_behind: bool,
        may_be_short: bool,
        is_known: impl Fn(i64) -> bool,
        notes: &mut Vec<String>,
    ) -> Result<(), StoreError> {
        let is_named = path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.len() == 17 && name.bytes().all(|byte| byte.is_ascii_digit()));
        let context = || format!("opening {}", path.display());
        let metadata = fs::metadata(path).map_err(|error| StoreError::io(context(), error))?;
        if !is_named || !metadata.is_file() {
            notes.push(format!("ignored {}: not a file of the index", path.display()));
            return Ok(());
        }
        if metadata.len() == 0 {
            let _ = fs::remove_file(path);
            notes.push(format!("removed {}: it was just being created", path.display()));
            return Ok(());
        }
        let size = file_size(self.slots, self.capacity);
        let mut remove = |reason: &str| {
            fs::remove_file(path)
                .map_err(|error| StoreError::io(format!("removing {}", path.display()), error))?;
            notes.push(format!(
                "removed the index file {}: {reason}; it is built again",
                path.display()
            ));
            Ok(())
        };
        if is_behind || self.is_cut {
            self.is_cut = true;
            return remove("a file before it is missing");
        }
        if metadata.len() < size && may_be_short {
            self.is_cut = true;
            return remove("it is too short");
        }
        let map = MappedFile::open(path, 0, size, SIZE_SETTING)?;
        let file = IndexFile::new(map, self.slots, self.capacity);
        let is_late = |time| match file.header.end_timestamp.cmp(&time) {
            Ordering::Less => false,
            // More of the same millisecond may have come after the flush.
            Ordering::Equal => !file.is_full() && !is_known(file.header.end_offset),
            Ordering::Greater => true,
        };
        if not_after.is_some_and(is_late) {
            self.is_cut = true;
            return remove("it goes on behind the checkpoint");
        }
        if not_after.is_some() && file.header.end_timestamp == 0 && !self.files.is_empty() {
            // Nothing of it reached the disk, and nothing of a later one.
            self.is_cut = true;
            return remove("it is empty");
        }
        if !file.is_sound() {
            self.is_cut = true;
            return remove("its header is damaged");
        }
        self.files.push(file);
        Ok(())
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

    /// Deletes the files that know records behind the log's end.
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
    pub(crate) fn is_behind(&self) -> bool {
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
        file.put(key).map_err(|error| {
            StoreError::io(format!("writing {}", file.map.path().display()), error)
        })
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
        let context = || format!("writing {}", path.display());
        let map = MappedFile::create(path, 0, file_size(self.slots, self.capacity))?;
        map.advise_random();
        map.populate(0, HEADER_SIZE).map_err(|error| StoreError::io(context(), error))?;
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
        file.write_header().map_err(|error| StoreError::io(context(), error))?;
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
    pub(crate) fn take_dirty(&mut self, all: bool) -> (Vec<Arc<MappedFile>>, i64) {
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

impl Header {
    fn covers(&self, begin_ms: i64, end_ms: i64) -> bool {
        let inside = |time: i64| time >= self.begin_timestamp && time <= self.end_timestamp;
        (begin_ms < self.begin_timestamp && end_ms > self.end_timestamp)
            || inside(begin_ms)
            || inside(end_ms)
    }
}

impl IndexFile {
    fn new(map: MappedFile, slots: u32, capacity: u32) -> Self {
        let header = Header {
            begin_timestamp: map.read_i64(0),
            end_timestamp: map.read_i64(8),
            begin_offset: map.read_i64(16),
            end_offset: map.read_i64(24),
            slots_used: map.read_i32(32),
            count: map.read_i32(36).max(1),
        };
        let pages = map.size().div_ceil(PAGE) as usize;
        let backed = vec![0; pages.div_ceil(64)];
        // What a killed run left in the page cache is not on the disk yet.
        IndexFile { map: Arc::new(map), slots, capacity, header, backed, is_dirty: true }
    }

    /// Whether the header can be true.
    fn is_sound(&self) -> bool {
        let header = &self.header;
        header.count as u32 <= self.capacity && header.slots_used >= 0 && header.end_offset >= 0
    }

    fn is_full(&self) -> bool {
        self.header.count as u32 >= self.capacity
    }

    fn slot_position(&self, hash: i32) -> u64 {
        HEADER_SIZE + u64::from(hash as u32 % self.slots) * SLOT_SIZE
    }

    fn entry_position(&self, number: i32) -> u64 {
        HEADER_SIZE + u64::from(self.slots) * SLOT_SIZE + number as u64 * ENTRY_SIZE
    }

    fn is_number(&self, number: i32) -> bool {
        number > 0 && number <= self.header.count
    }

    fn put(&mut self, key: &PendingKey) -> io::Result<()> {
        let count = self.header.count;
        let slot_position = self.slot_position(key.hash);
        let entry_position = self.entry_position(count);
        self.back(0, 1)?;
        self.back(slot_position, 1)?;
        self.back(entry_position, BACK_PAGES)?;
        self.back(entry_position + ENTRY_SIZE - 1, BACK_PAGES)?;
        let previous = Some(self.map.read_i32(slot_position))
            .filter(|&number| self.is_number(number) && number != count)
            .unwrap_or(0);
        let begin = self.header.begin_timestamp;
        let seconds = match key.store_timestamp.saturating_sub(begin) {
            _ if begin <= 0 => 0,
            difference => (difference / 1_000).clamp(0, i64::from(i32::MAX)) as i32,
        };
        let mut entry = [0_u8; ENTRY_SIZE as usize];
        entry[..4].copy_from_slice(&key.hash.to_be_bytes());
        entry[4..12].copy_from_slice(&key.physical_offset.to_be_bytes());
        entry[12..16].copy_from_slice(&seconds.to_be_bytes());
        entry[16..].copy_from_slice(&previous.to_be_bytes());
        self.is_dirty = true;
        if count <= 1 {
            self.header.begin_offset = key.physical_offset;
            self.header.begin_timestamp = key.store_timestamp;
        }
        if previous == 0 {
            self.header.slots_used += 1;
        }
        // In this order a kill at any point leaves at worst an entry that no slot leads to, and the
        // record is indexed again.
        self.write(entry_position, &entry);
        self.header.count += 1;
        self.store_header();
        self.write(slot_position, &count.to_be_bytes());
        self.header.end_offset = key.physical_offset;
        self.header.end_timestamp = key.store_timestamp;
        self.store_header();
        Ok(())
    }

    /// Makes the page of a position (and some behind it) writable.
    #[inline]
    fn back(&mut self, position: u64, pages: u64) -> io::Result<()> {
        let page = position / PAGE;
        let (word, bit) = ((page / 64) as usize, page % 64);
        if self.backed.get(word).is_some_and(|bits| bits >> bit & 1 == 1) {
            return Ok(());
        }
        self.map.populate(page * PAGE, (page + pages) * PAGE)?;
        for page in page..page + pages {
            if let Some(bits) = self.backed.get_mut((page / 64) as usize) {
                *bits |= 1 << (page % 64);
            }
        }
        Ok(())
    }

    fn write_header(&mut self) -> io::Result<()> {
        self.back(0, 1)?;
        self.is_dirty = true;
        self.store_header();
        Ok(())
    }

    fn store_header(&self) {
        let header = &self.header;
        let mut bytes = [0_u8; HEADER_SIZE as usize];
        bytes[..8].copy_from_slice(&header.begin_timestamp.to_be_bytes());
        bytes[8..16].copy_from_slice(&header.end_timestamp.to_be_bytes());
        bytes[16..24].copy_from_slice(&header.begin_offset.to_be_bytes());
        bytes[24..32].copy_from_slice(&header.end_offset.to_be_bytes());
        bytes[32..36].copy_from_slice(&header.slots_used.to_be_bytes());
        bytes[36..].copy_from_slice(&header.count.to_be_bytes());
        self.write(0, &bytes);
    }

    #[inline]
    fn write(&self, position: u64, bytes: &[u8]) {
        // SAFETY: the index lock is held (the callers have `&mut self`), no slice is ever kept, and
        // the page was backed.
        let target = unsafe { self.map.bytes_mut(position, bytes.len()) };
        if target.len() == bytes.len() {
            target.copy_from_slice(bytes);
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    }

    /// Goes through the entries of a hash's slot, newest first, while `visit(hash, offset, seconds)`
    /// says so.
    fn walk(&self, hash: i32, mut visit: impl FnMut(i32, i64, i32) -> bool) {
        let slot_position = self.slot_position(hash);
        if !self.map.is_readable(slot_position) {
            return;
        }
        let mut number = self.map.read_i32(slot_position);
        // The header's count bounds the walk even where the numbers make a circle.
        for _ in 0..self.header.count {
            if !self.is_number(number) || self.header.count <= 1 {
                return;
            }
            let position = self.entry_position(number);
            let entry_hash = self.map.read_i32(position);
            let offset = self.map.read_i64(position + 4);
            let seconds = self.map.read_i32(position + 12);
            let previous = self.map.read_i32(position + 16);
            if seconds < 0 || !visit(entry_hash, offset, seconds) || previous == number {
                return;
            }
            number = previous;
        }
    }

    fn select(
        &self,
        hash: i32,
        max_count: usize,
        begin_ms: i64,
        end_ms: i64,
        offsets: &mut Vec<i64>,
    ) {
        if offsets.len() >= max_count {
            return;
        }
        self.walk(hash, |entry_hash, offset, seconds| {
            let time = self.header.begin_timestamp.saturating_add(i64::from(seconds) * 1_000);
            if entry_hash == hash && time >= begin_ms && time <= end_ms {
                offsets.push(offset);
            }
            time >= begin_ms && offsets.len() < max_count
        });
    }
}

fn file_size(slots: u32, capacity: u32) -> u64 {
    HEADER_SIZE + u64::from(slots) * SLOT_SIZE + u64::from(capacity) * ENTRY_SIZE
}

/// The digits of a file's name as a number.
fn file_number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}

/// A file's name: its creation in local time, `yyyyMMddHHmmssSSS`.
fn file_name(now_ms: i64) -> String {
    let seconds: libc::time_t = now_ms.div_euclid(1_000);
    // SAFETY: all-zero is a valid `tm` (integers and a pointer that may be null).
    let mut local: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid through the call.
    unsafe { libc::localtime_r(&raw const seconds, &raw mut local) };
    format!(
        "{:04}{:02}{:02}{:02}{:02}{:02}{:03}",
        local.tm_year + 1_900,
        local.tm_mon + 1,
        local.tm_mday,
        local.tm_hour,
        local.tm_min,
        local.tm_sec,
        now_ms.rem_euclid(1_000)
    )
}
