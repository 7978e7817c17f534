//! What a queue knows of its messages beside their entries (`ConsumeQueueExt` of RocketMQ).
//!
//! Entries have 8 bytes for a tags code. With `enableConsumeQueueExt` they hold the address of a
//! unit in `consumequeue_ext/<topic>/<queue id>/` instead, big-endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 2 | size of the unit |
//! | 2 | 8 | tags code |
//! | 10 | 8 | store time |
//! | 18 | 2 | size of the bit map |
//! | 20 | n | bit map |
//!
//! An address is the unit's byte offset + the smallest long, so it lies below all ints and is never
//! taken for a tags code. A unit never crosses a file: -1 in place of a size ends one, and 4 bytes
//! stay for it. Units are weak: where one is missing, clients filter for themselves. An address is
//! never given twice while entries may hold it.

use std::fs;
use std::sync::Arc;

use crate::error::StoreError;
use crate::files::dirty::DirtyRange;
use crate::files::folder::offset_files;
use crate::files::map::{MappedFile, PAGE, check_size};
use crate::queues::files::{QueueFile, QueueFiles};
use crate::settings::Settings;

const SIZE_SETTING: &str = "mappedFileSizeConsumeQueueExt";
/// Bytes of a unit without a bit map.
const UNIT_SIZE: u64 = 20;
const UNIT_SIZE_MAX: u64 = i16::MAX as u64;
/// Always left at the end of a file.
const END_SIZE: u64 = 4;
const ADDRESS_BASE: i64 = i64::MIN;
const ADDRESS_MAX: i64 = i32::MIN as i64 - 1;

/// One unit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ExtUnit {
    pub tags_code: i64,
    pub store_time: i64,
    pub bit_map: Vec<u8>,
}

/// A filter by bits (`BloomFilter` of RocketMQ): what it rules out can't be wanted.
#[derive(Clone, Copy, Debug)]
pub struct BitFilter<'a> {
    /// Bits of the maps that were made with it; others say nothing.
    pub bits: u32,
    /// When it came to be: maps of messages stored at that time or earlier say nothing of it.
    pub born_ms: i64,
    /// Its bits in a map.
    pub positions: &'a [u32],
}

impl BitFilter<'_> {
    /// Whether a unit tells that its message is not wanted.
    fn rules_out(&self, unit: &UnitView<'_>) -> bool {
        unit.store_time > self.born_ms
            && !unit.bit_map.is_empty()
            && unit.bit_map.len() * 8 == self.bits as usize
            && self.positions.iter().any(|&position| {
                unit.bit_map
                    .get(position as usize / 8)
                    .is_some_and(|byte| byte >> (position % 8) & 1 == 0)
            })
    }
}

/// Which messages a reader wants, as far as units and entries tell.
#[derive(Clone, Copy, Debug, Default)]
pub struct Filter<'a> {
    /// `None`: all tags.
    pub tag_codes: Option<&'a [i32]>,
    /// What units must not rule out.
    pub bits: Option<BitFilter<'a>>,
}

impl<'a> Filter<'a> {
    /// By tags alone; `None`: everything.
    pub const fn by_tags(tag_codes: Option<&'a [i32]>) -> Self {
        Filter { tag_codes, bits: None }
    }
}

/// Whether what an entry holds in place of a tags code is the address of a unit.
#[inline]
pub(crate) const fn is_ext_address(code: i64) -> bool {
    code <= ADDRESS_MAX
}

/// A unit as it lies in its file.
struct UnitView<'a> {
    size: u64,
    tags_code: i64,
    store_time: i64,
    bit_map: &'a [u8],
}

/// The units of one queue; offsets count bytes.
pub(crate) struct QueueExt {
    files: QueueFiles,
    /// Bytes of the maps that recovery writes.
    map_size: usize,
    /// Where the next unit goes.
    max: u64,
    flushed: u64,
    /// The page that was read last, by its offset: it can be read.
    readable: u64,
}

impl QueueExt {
    /// No units; touches no file.
    pub(crate) fn new(settings: &Settings, topic: &str, queue_id: i32) -> Self {
        let root = settings.store_path_root_dir.join("consumequeue_ext");
        let folder = root.join(topic).join(queue_id.to_string());
        let size = settings.mapped_file_size_consume_queue_ext.max(1);
        QueueExt {
            files: QueueFiles::new(folder, size, SIZE_SETTING),
            map_size: settings.bit_map_length_consume_queue_ext / 8,
            max: 0,
            flushed: 0,
            readable: u64::MAX,
        }
    }

    /// Finds the files; [`Self::end_at`] must follow.
    pub(crate) fn load(&mut self, notes: &mut Vec<String>) -> Result<(), StoreError> {
        for (start, path, length) in offset_files(&self.files.folder, notes)? {
            if length == 0 {
                // A kill between creating a file and giving it its size.
                let _ = fs::remove_file(&path);
                continue;
            }
            check_size(&path, length, self.files.size, SIZE_SETTING)?;
            let follows =
                self.files.last().is_none_or(|last| last.start + self.files.size == start);
            if !follows || start % self.files.size != 0 {
                notes.push(format!("files before {} do not join it", path.display()));
                self.files.clear();
            }
            if start % self.files.size == 0 {
                self.files.push(QueueFile::found(start, path));
            }
        }
        Ok(())
    }

    /// The map of the file that starts at an offset; made when it is new.
    fn open(&mut self, start: u64) -> Result<Option<Arc<MappedFile>>, StoreError> {
        if self.files.last().is_none_or(|last| start > last.start) {
            return self.files.create(start).cloned().map(Some);
        }
        match self.files.iter().position(|file| file.start == start) {
            Some(index) => self.files.map(index).cloned().map(Some),
            None => Ok(None),
        }
    }

    /// Writes a unit; its address. `None`: it can't be written, or no file could hold it.
    pub(crate) fn put(&mut self, tags_code: i64, store_time: i64, bit_map: &[u8]) -> Option<i64> {
        let size = UNIT_SIZE + bit_map.len() as u64;
        if size > UNIT_SIZE_MAX || size + END_SIZE > self.files.size {
            return None;
        }
        let mut at = self.max;
        if size + END_SIZE > self.files.size - at % self.files.size {
            self.write(at, &(-1_i16).to_be_bytes())?;
            at = at - at % self.files.size + self.files.size;
        }
        let mut unit = Vec::with_capacity(size as usize);
        unit.extend_from_slice(&(size as i16).to_be_bytes());
        unit.extend_from_slice(&tags_code.to_be_bytes());
        unit.extend_from_slice(&store_time.to_be_bytes());
        unit.extend_from_slice(&(bit_map.len() as i16).to_be_bytes());
        unit.extend_from_slice(bit_map);
        self.write(at, &unit)?;
        self.max = at + size;
        Some(at as i64 + ADDRESS_BASE)
    }

    /// Writes a unit whose filter nobody can calculate any more: its map rules nothing out. (A
    /// missing one would not do: RocketMQ takes the map of the unit before it then.)
    pub(crate) fn put_again(&mut self, tags_code: i64, store_time: i64) -> Option<i64> {
        let bit_map = vec![0xFF; self.map_size];
        self.put(tags_code, store_time, &bit_map)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Option<()> {
        let position = offset % self.files.size;
        let map = self.open(offset - position).ok()??;
        // SAFETY: the store's lock is held (`&mut self`), readers get nothing after `max`.
        unsafe { map.patch(position, bytes) }.ok()
    }

    /// The unit at an address; `None` when none is there.
    pub(crate) fn get(&mut self, address: i64) -> Option<ExtUnit> {
        let unit = self.view(address)?;
        Some(ExtUnit {
            tags_code: unit.tags_code,
            store_time: unit.store_time,
            bit_map: unit.bit_map.to_vec(),
        })
    }

    /// Whether the message of an entry with that tags code or address may be wanted. Where a unit
    /// is missing it may: clients filter for themselves.
    pub(crate) fn may_match(&mut self, code: i64, filter: &Filter<'_>) -> bool {
        let unit = if is_ext_address(code) { self.view(code) } else { None };
        let tags_code = unit.as_ref().map_or(code, |unit| unit.tags_code);
        let has_tag = filter.tag_codes.is_none_or(|codes| {
            codes.contains(&(tags_code as i32)) || tags_code < i64::from(i32::MIN)
        });
        let is_ruled_out = filter.bits.zip(unit).is_some_and(|(bits, unit)| bits.rules_out(&unit));
        has_tag && !is_ruled_out
    }

    fn view(&mut self, address: i64) -> Option<UnitView<'_>> {
        if !is_ext_address(address) {
            return None;
        }
        let offset = address.wrapping_sub(ADDRESS_BASE) as u64;
        if offset >= self.max {
            return None;
        }
        self.unit_at(offset)
    }

    fn unit_at(&mut self, offset: u64) -> Option<UnitView<'_>> {
        let position = offset % self.files.size;
        let map = self.files.map_at(offset).ok()??;
        let page = offset / PAGE;
        if self.readable != page && !map.is_readable(position) {
            return None;
        }
        self.readable = page;
        let head: [u8; UNIT_SIZE as usize] =
            map.bytes(position, UNIT_SIZE as usize).try_into().ok()?;
        let short = |at: usize| i16::from_be_bytes([head[at], head[at + 1]]);
        let long = |at: usize| head[at..at + 8].try_into().map_or(0, i64::from_be_bytes);
        let size = u64::try_from(short(0)).ok().filter(|&size| size >= UNIT_SIZE)?;
        let rest = map.bytes(position, size as usize).get(UNIT_SIZE as usize..)?;
        let map_size = usize::try_from(short(18)).unwrap_or(0).min(rest.len());
        Some(UnitView {
            size,
            tags_code: long(2),
            store_time: long(10),
            bit_map: &rest[..map_size],
        })
    }

    /// Lets the units end after the one of the queue's last entry that has one.
    ///
    /// `None`: no entry has one, as far as anybody looked. Then a queue that `is_empty` has no
    /// units, and another one those that can be read. A unit that is lost keeps its place.
    pub(crate) fn end_at(
        &mut self,
        last_address: Option<i64>,
        is_empty: bool,
    ) -> Result<(), StoreError> {
        let end = match last_address {
            None if is_empty => 0,
            None => self.scan_end(),
            Some(address) => {
                let offset = address.wrapping_sub(ADDRESS_BASE) as u64;
                let after = offset - offset % self.files.size + self.files.size;
                self.unit_at(offset).map_or(after, |unit| offset + unit.size)
            }
        };
        self.files.cut(self.files.count_before(end));
        if let Some(start) = self.files.last().map(|file| file.start)
            && end < start + self.files.size
            && let Some(map) = self.open(start)?
        {
            // SAFETY: the store's lock is held (`&mut self`), readers get nothing after `max`.
            unsafe { map.clear_from(end - start) }?;
        }
        self.max = end;
        self.flushed = self.flushed.min(end);
        Ok(())
    }

    /// Behind the last unit of the last file.
    fn scan_end(&mut self) -> u64 {
        let Some(start) = self.files.last().map(|file| file.start) else { return 0 };
        let mut at = start;
        while at < start + self.files.size
            && let Some(unit) = self.unit_at(at)
        {
            at += unit.size;
        }
        at
    }

    /// Deletes the files that lie wholly before an address (`truncateByMinAddress`).
    pub(crate) fn start_at(&mut self, first_address: i64) {
        if !is_ext_address(first_address) {
            return;
        }
        let offset = first_address.wrapping_sub(ADDRESS_BASE) as u64;
        while self.files.len() > 1 && self.files[0].start + self.files.size < offset {
            let _ = fs::remove_file(&self.files[0].path);
            self.files.remove(0);
        }
    }

    /// Deletes the files and the folders that are empty then; the next unit is the first.
    pub(crate) fn delete(&mut self) {
        self.files.cut(0);
        (self.max, self.flushed) = (0, 0);
        let _ = fs::remove_dir(&self.files.folder);
        if let Some(topic) = self.files.folder.parent() {
            let _ = fs::remove_dir(topic);
        }
    }

    /// Lets the maps go; they come back when they are needed.
    pub(crate) fn unmap(&mut self) {
        self.files.unmap();
    }

    /// Adds what is not on the disk yet, which counts as being there from now on.
    pub(crate) fn drain_dirty(&mut self, ranges: &mut Vec<DirtyRange>) {
        self.files.add_dirty(self.flushed, self.max, ranges);
        self.flushed = self.max;
    }
}
