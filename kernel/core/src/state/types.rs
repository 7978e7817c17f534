//! What callers hand to the store and get from it: handles, records, outcomes, counters.

use std::path::PathBuf;

use crate::error::GetStatus;
use crate::record::{Marks, NewRecord, Text};

/// A consume queue, cheap to copy and keep. It goes stale when its topic's queues are deleted: then
/// `append` gives `UnknownError`, `read_into` `NoMatchedLogicQueue`. Keep `Core::handles_epoch()`
/// beside cached handles and drop them all when it changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueHandle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Queues that are found again without a search, by the low bits of their id.
const RECENT: usize = 16;

/// The queues that records of the master came for last. The caller checks that the one it gets is
/// the one it asked for.
pub(crate) struct RecentQueues([QueueHandle; RECENT]);

impl RecentQueues {
    /// The queue that was kept last for an id with these low bits; a stale handle if none was.
    #[inline]
    pub(crate) fn of(&self, queue_id: i32) -> QueueHandle {
        self.0[queue_id as usize % RECENT]
    }

    /// Keeps a queue for its id.
    pub(crate) fn keep(&mut self, queue_id: i32, handle: QueueHandle) {
        self.0[queue_id as usize % RECENT] = handle;
    }
}

impl Default for RecentQueues {
    fn default() -> Self {
        RecentQueues([QueueHandle { index: u32::MAX, generation: 0 }; RECENT])
    }
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
    pub bit_map: &'a [u8],
}

impl<'a> BatchItem<'a> {
    /// The record that it is in a batch; the sysFlag has the host bits.
    #[inline]
    pub(crate) fn of(&self, batch: &NewBatch<'a>, sys_flag: i32) -> NewRecord<'a> {
        NewRecord {
            flag: self.flag,
            sys_flag,
            born_timestamp: batch.born_timestamp,
            born_host: batch.born_host,
            store_host: batch.store_host,
            reconsume_times: batch.reconsume_times,
            prepared_transaction_offset: 0,
            body: self.body,
            properties: self.properties,
            marks: self.marks,
            tags_code: None,
            bit_map: self.bit_map,
        }
    }
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
    /// Physical offset after the record: what to flush to.
    pub const fn end_offset(&self) -> i64 {
        self.physical_offset + self.size as i64
    }
}

/// A batch that was stored; the physical offsets (and tags codes) went into the caller's vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchAppended {
    /// Queue offset of the first record; the others follow without a gap.
    pub queue_offset: i64,
    /// Physical offset after the last record.
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
    /// Bytes between the last entry examined and the end of the log; -1 when none was.
    pub lag: i64,
    /// How long the read took.
    pub milliseconds: u64,
    /// How long its first message had been stored by then; -1: not recorded.
    pub waited_ms: i64,
}

impl ReadOutcome {
    /// What a read of a queue that does not exist gives.
    pub const NO_QUEUE: Self = ReadOutcome {
        status: GetStatus::NoMessageInQueue,
        next_offset: 0,
        min_offset: 0,
        max_offset: 0,
        suggest_slave: false,
        count: 0,
        bytes: 0,
        lag: -1,
        milliseconds: 0,
        waited_ms: -1,
    };
}

/// An entry of a queue, with values of properties.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct QueuedValues {
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub size: i32,
    /// As many as names were given; `None`: there is no record.
    pub values: Option<Vec<Option<Vec<u8>>>>,
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

/// One file of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct LogFile {
    pub path: PathBuf,
    pub start: i64,
    pub size: i64,
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
    /// The longest read, in milliseconds (of a coarse clock).
    pub get_time_max_ms: u64,
    pub flush_count: u64,
    pub index_pending: u64,
    pub dispatch_behind_bytes: u64,
    /// How long an append has waited for a file of the log by now.
    pub file_wait_ms: u64,
    /// Bytes of a transient pool that are in no file yet.
    pub uncommitted_bytes: u64,
}
