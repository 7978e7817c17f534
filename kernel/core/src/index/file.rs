//! One index file: header, slots, entries.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::keys::PendingKey;
use crate::files::map::{MappedFile, PAGE};

pub(super) const HEADER_SIZE: u64 = 40;
const SLOT_SIZE: u64 = 4;
const ENTRY_SIZE: u64 = 20;
/// Pages of the entries that are backed at once.
const BACK_PAGES: u64 = 16;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Header {
    pub(super) begin_timestamp: i64,
    pub(super) end_timestamp: i64,
    pub(super) begin_offset: i64,
    pub(super) end_offset: i64,
    pub(super) slots_used: i32,
    pub(super) count: i32,
}

pub(super) struct IndexFile {
    pub(super) map: Arc<MappedFile>,
    pub(super) slots: u32,
    pub(super) capacity: u32,
    pub(super) header: Header,
    /// One bit per page: backed for writing.
    pub(super) backed: Vec<u64>,
    pub(super) is_dirty: bool,
}

impl Header {
    pub(super) fn covers(&self, begin_ms: i64, end_ms: i64) -> bool {
        let inside = |time: i64| time >= self.begin_timestamp && time <= self.end_timestamp;
        (begin_ms < self.begin_timestamp && end_ms > self.end_timestamp)
            || inside(begin_ms)
            || inside(end_ms)
    }
}

impl IndexFile {
    pub(super) fn new(map: MappedFile, slots: u32, capacity: u32) -> Self {
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
    pub(super) fn is_sound(&self) -> bool {
        let header = &self.header;
        header.count as u32 <= self.capacity && header.slots_used >= 0 && header.end_offset >= 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.header.count as u32 >= self.capacity
    }

    pub(super) fn slot_position(&self, hash: i32) -> u64 {
        HEADER_SIZE + u64::from(hash as u32 % self.slots) * SLOT_SIZE
    }

    pub(super) fn entry_position(&self, number: i32) -> u64 {
        HEADER_SIZE + u64::from(self.slots) * SLOT_SIZE + number as u64 * ENTRY_SIZE
    }

    pub(super) fn is_number(&self, number: i32) -> bool {
        number > 0 && number <= self.header.count
    }

    pub(super) fn put(&mut self, key: &PendingKey) -> io::Result<()> {
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
        let start = self.header.begin_timestamp;
        let seconds = match key.store_timestamp.saturating_sub(start) {
            _ if start <= 0 => 0,
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

    /// Makes the page of a position (and some after it) writable.
    #[inline]
    pub(super) fn back(&mut self, position: u64, pages: u64) -> io::Result<()> {
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

    pub(super) fn write_header(&mut self) -> io::Result<()> {
        self.back(0, 1)?;
        self.is_dirty = true;
        self.store_header();
        Ok(())
    }

    pub(super) fn store_header(&self) {
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
    pub(super) fn write(&self, position: u64, bytes: &[u8]) {
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
    pub(super) fn walk(&self, hash: i32, mut visit: impl FnMut(i32, i64, i32) -> bool) {
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

    pub(super) fn select(
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

pub(super) fn file_size(slots: u32, capacity: u32) -> u64 {
    HEADER_SIZE + u64::from(slots) * SLOT_SIZE + u64::from(capacity) * ENTRY_SIZE
}

/// The digits of a file's name as a number.
pub(super) fn file_number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}

/// A file's name: its creation in local time, `yyyyMMddHHmmssSSS`.
pub(super) fn file_name(now_ms: i64) -> String {
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
