//! The store as its callers see it: [`Store`] (shared, thread safe) and [`Guard`] (the lock, held
//! once per chunk of a socket, on which reads and writes run without further locking).

use std::ops::{Deref, DerefMut};
use std::os::fd::RawFd;

use parking_lot::MutexGuard;

use crate::error::{GetStatus, PutStatus, StoreError};
use crate::record::{Marks, Text};
use crate::settings::Settings;

/// A consume queue, cheap to copy and keep. It goes stale when its topic's queues are deleted: then
/// `append` gives `UnknownError`, `read_into` `NoMatchedLogicQueue`. Keep `Core::handles_epoch()`
/// beside cached handles and drop them all when it changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueHandle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// One record to append; topic and queue id come from the handle.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // fields of the record, named as RocketMQ does
pub struct NewRecord<'a> {
    pub flag: i32,
    /// The host bits (16, 32) are set from the lengths of the hosts.
    pub sys_flag: i32,
    pub born_timestamp: i64,
    /// 8 or 20 bytes: address and port, big-endian.
    pub born_host: &'a [u8],
    pub store_host: &'a [u8],
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
    pub body: &'a [u8],
    pub properties: Text<'a>,
    /// `None`: the store scans the text for TAGS, KEYS and `UNIQ_KEY`.
    pub marks: Option<Marks<'a>>,
    /// `None`: Java's hash of TAGS.
    pub tags_code: Option<i64>,
}

/// What the records of a batch have in common.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct NewBatch<'a> {
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: &'a [u8],
    pub store_host: &'a [u8],
    pub reconsume_times: i32,
}

/// One record of a batch.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct BatchItem<'a> {
    pub flag: i32,
    pub body: &'a [u8],
    pub properties: Text<'a>,
    pub marks: Option<Marks<'a>>,
}

/// A record that was stored. The caller wakes held pulls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Where the record starts.
    pub physical_offset: i64,
    /// Its queue offset; 0 for prepared and rollback records.
    pub queue_offset: i64,
    /// Bytes of the stored record.
    pub size: u32,
    /// Milliseconds; never below the previous record's.
    pub store_timestamp: i64,
    /// What the queue entry says.
    pub tags_code: i64,
}

impl Appended {
    /// Physical offset behind the record: what to flush to.
    pub const fn end_offset(&self) -> i64 {
        self.physical_offset + self.size as i64
    }
}

/// A batch that was stored; the physical offsets (and tags codes) went into the caller's vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchAppended {
    /// Queue offset of the first record; the others follow without a gap.
    pub queue_offset: i64,
    /// Physical offset behind the last record.
    pub end_offset: i64,
    /// Of all records.
    pub store_timestamp: i64,
}

/// What a read gave; the records were appended to the caller's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ReadOutcome {
    pub status: GetStatus,
    pub next_offset: i64,
    pub min_offset: i64,
    pub max_offset: i64,
    pub suggest_slave: bool,
    pub count: u32,
    /// Bytes appended to the buffer; 0 unless `Found`.
    pub bytes: usize,
}

/// One consume queue of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct QueueBounds {
    pub topic: String,
    pub queue_id: i32,
    pub min_offset: i64,
    pub max_offset: i64,
}

/// What `open` found and did; fields as in the Python face.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct RecoveryReport {
    pub clean: bool,
    pub min_offset: i64,
    pub max_offset: i64,
    pub scanned_bytes: i64,
    pub truncated_bytes: i64,
    pub dispatched: i64,
    pub indexed: i64,
    pub queues: i64,
    pub notes: Vec<String>,
}

/// Counters since open.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Stats {
    pub put_count: u64,
    pub put_bytes: u64,
    pub get_found: u64,
    pub get_miss: u64,
    pub get_count: u64,
    pub get_bytes: u64,
    pub flush_count: u64,
    pub index_pending: u64,
    pub dispatch_behind_bytes: u64,
}

/// Commit log, consume queues and index of one folder. `Send + Sync`.
pub struct Store {
    settings: Settings,
    core: parking_lot::Mutex<Core>,
}

/// The store's lock; derefs to [`Core`]. Taking it reads the clock once; all records appended under
/// one guard have that time. Hand back before blocking.
pub struct Guard<'a> {
    core: MutexGuard<'a, Core>,
}

/// The locked state: every read and write.
pub struct Core {}

impl Store {
    /// Touches no file.
    pub fn new(settings: Settings) -> Self {
        Store { settings, core: parking_lot::Mutex::new(Core {}) }
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Locks the folder, loads, recovers, starts the threads.
    ///
    /// # Errors
    /// I/O (`WouldBlock`: held by another process), or a file of a wrong size (`InvalidData`).
    pub fn open(&self) -> Result<RecoveryReport, StoreError> {
        todo!()
    }

    /// Flushes, writes the checkpoint, removes the abort file, unlocks. Idempotent.
    ///
    /// # Errors
    /// When the last flush failed; the abort file then stays, and the store is closed all the same.
    pub fn close(&self) -> Result<(), StoreError> {
        todo!()
    }

    /// Flushes log, queues, index and checkpoint; the new flushed offset.
    ///
    /// # Errors
    /// A failed sync, now or before.
    pub fn flush(&self) -> Result<i64, StoreError> {
        todo!()
    }

    /// Takes the lock; also while closed (then writes give `ServiceNotAvailable`, reads nothing).
    pub fn lock(&self) -> Guard<'_> {
        Guard { core: self.core.lock() }
    }

    /// An eventfd (non-blocking), valid as long as the `Store`; readable when `flushed_offset` moved
    /// or [`Store::notify`] was called.
    pub fn notify_fd(&self) -> RawFd {
        todo!()
    }

    /// Makes `notify_fd` readable.
    pub fn notify(&self) {
        todo!()
    }

    /// Physical offset up to which the log is on disk. Atomic, no lock.
    pub fn flushed_offset(&self) -> i64 {
        todo!()
    }

    /// Asks the flush thread to reach an offset (group commit). Cheap, no lock of the core needed.
    pub fn request_flush(&self, physical_offset: i64) {
        let _ = physical_offset;
        todo!()
    }

    /// Freezes the store clock; `None` thaws it.
    pub fn set_clock(&self, now_ms: Option<i64>) {
        let _ = now_ms;
        todo!()
    }

    /// Why the store takes no writes, when it does not.
    pub fn error(&self) -> Option<String> {
        todo!()
    }
}

#[allow(unused_variables, clippy::unused_self)]
impl Core {
    /// Whether the store is open and takes writes.
    pub fn is_writable(&self) -> bool {
        todo!()
    }

    /// The store's clock as of this guard.
    pub fn now_ms(&self) -> i64 {
        todo!()
    }

    /// Changes whenever handles went stale (queues deleted, store reopened).
    pub fn handles_epoch(&self) -> u64 {
        todo!()
    }

    /// Gets or creates a queue (no file before the first append).
    ///
    /// # Errors
    /// `MessageIllegal` for a topic of 0 or more than 127 bytes or not UTF-8 or with `/` or NUL, or
    /// a negative id; `ServiceNotAvailable` when closed.
    pub fn queue(&mut self, topic: &[u8], queue_id: i32) -> Result<QueueHandle, PutStatus> {
        todo!()
    }

    /// The queue, if it exists.
    pub fn find_queue(&self, topic: &[u8], queue_id: i32) -> Option<QueueHandle> {
        todo!()
    }

    /// Whether the handle still names a queue.
    pub fn is_live(&self, queue: QueueHandle) -> bool {
        todo!()
    }

    /// Appends one record, its queue entry and its index entries.
    ///
    /// # Errors
    /// The status to answer; nothing was stored then.
    pub fn append(
        &mut self,
        queue: QueueHandle,
        record: &NewRecord<'_>,
    ) -> Result<Appended, PutStatus> {
        todo!()
    }

    /// Appends records that follow each other in one file, or none. `physical_offsets` and
    /// `tags_codes` are cleared first and then get one value per record.
    ///
    /// # Errors
    /// The status to answer; nothing was stored then.
    pub fn append_batch(
        &mut self,
        queue: QueueHandle,
        batch: &NewBatch<'_>,
        items: &[BatchItem<'_>],
        physical_offsets: &mut Vec<i64>,
        tags_codes: &mut Vec<i64>,
    ) -> Result<BatchAppended, PutStatus> {
        todo!()
    }

    /// `getMessage` of RocketMQ; raw records are appended to `answer`, whose content before stays.
    /// `tag_codes` `None`: all tags. (No queue at all is the caller's case: `NoMessageInQueue`, 0.)
    pub fn read_into(
        &mut self,
        queue: QueueHandle,
        offset: i64,
        max_count: usize,
        tag_codes: Option<&[i32]>,
        answer: &mut Vec<u8>,
    ) -> ReadOutcome {
        todo!()
    }

    /// (min, max) offset; (0, 0) for a stale handle.
    pub fn bounds(&self, queue: QueueHandle) -> (i64, i64) {
        todo!()
    }

    /// (min, max) offset by name; (0, 0) when there is none.
    pub fn queue_bounds(&self, topic: &[u8], queue_id: i32) -> (i64, i64) {
        todo!()
    }

    /// Every queue that has files.
    pub fn queues(&self) -> Vec<QueueBounds> {
        todo!()
    }

    /// (physical offset, size, tags code) of a queue entry.
    pub fn queue_entry(
        &mut self,
        topic: &[u8],
        queue_id: i32,
        offset: i64,
    ) -> Option<(i64, i32, i64)> {
        todo!()
    }

    /// The record that starts at a physical offset, appended to `answer`; false when none does.
    pub fn lookup_into(&mut self, physical_offset: i64, answer: &mut Vec<u8>) -> bool {
        todo!()
    }

    /// (index last update timestamp, its physical offset); records are appended to `answer`.
    pub fn query_key_into(
        &mut self,
        topic: &[u8],
        key: &[u8],
        max_count: usize,
        begin_ms: i64,
        end_ms: i64,
        answer: &mut Vec<u8>,
    ) -> (i64, i64) {
        todo!()
    }

    /// `getOffsetInQueueByTime`.
    pub fn offset_by_time(&mut self, topic: &[u8], queue_id: i32, timestamp_ms: i64) -> i64 {
        todo!()
    }

    /// Store timestamp of the message at a queue offset; -1 when there is none.
    pub fn store_time(&mut self, topic: &[u8], queue_id: i32, offset: i64) -> i64 {
        todo!()
    }

    /// Deletes a topic's queues and their files; how many there were.
    pub fn delete_queues(&mut self, topic: &[u8]) -> usize {
        todo!()
    }

    /// First physical offset of the log.
    pub fn min_physical_offset(&self) -> i64 {
        todo!()
    }

    /// Physical offset behind the last record.
    pub fn max_physical_offset(&self) -> i64 {
        todo!()
    }

    /// Counters since open.
    pub fn stats(&self) -> Stats {
        todo!()
    }

    /// (topic, messages put, bytes put) since open.
    pub fn topic_stats(&self) -> Vec<(String, u64, u64)> {
        todo!()
    }
}

impl Deref for Guard<'_> {
    type Target = Core;
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}
