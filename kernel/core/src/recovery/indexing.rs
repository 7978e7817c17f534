//! Keys: put into the index where it lacks them, in a thread of their own beside the queues.

use super::context::{Recovery, believable};
use super::walk::for_each_record;
use crate::index::{Index, PendingKey, for_each_key};
use crate::log::commit_log::CommitLog;
use crate::protocol::{TRANSACTION_MASK, TRANSACTION_ROLLBACK};
use crate::record::{Marks, RecordView, java_hash};

/// The index while it follows the log.
pub(super) struct Indexing {
    index: Index,
    now_ms: i64,
    /// Records whose keys were put.
    indexed: i64,
}

impl Indexing {
    /// Takes the index out of a recovery.
    pub(super) fn new(recovery: &mut Recovery<'_>) -> Self {
        Indexing { index: std::mem::take(recovery.index), now_ms: recovery.now_ms, indexed: 0 }
    }

    /// Gives the index back.
    pub(super) fn finish(self, recovery: &mut Recovery<'_>) {
        *recovery.index = self.index;
        recovery.report.indexed += self.indexed;
    }

    /// Puts the keys of all records from an offset on. Before `checked_from` the log was not checked.
    pub(super) fn follow(&mut self, log: &CommitLog, from: u64, checked_from: u64) {
        let visited: Result<(), std::convert::Infallible> =
            for_each_record(log, from, checked_from, |view| {
                self.put(view);
                Ok(())
            });
        visited.unwrap_or_else(|never| match never {});
    }

    fn put(&mut self, view: &RecordView<'_>) {
        if view.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK {
            return;
        }
        let marks = Marks::scan(view.properties);
        if marks.uniq_key.is_none() && marks.keys.is_none() {
            return;
        }
        let topic_hash = java_hash(&[view.topic, b"#"].concat());
        // Where the index ends the keys of one record may have been put in part.
        let is_edge = self.index.end_offset() == Some(view.physical_offset);
        let mut hashes = Vec::new();
        for_each_key(topic_hash, marks.uniq_key, marks.keys, |hash| hashes.push(hash));
        hashes.retain(|&hash| !is_edge || !self.index.contains(hash, view.physical_offset));
        self.indexed += i64::from(!hashes.is_empty());
        // No CRC covers the time; a wrong one would hide what the file before has.
        let is_wrong =
            view.store_timestamp <= 0 || believable(view.store_timestamp, self.now_ms) == 0;
        let last = self.index.end_timestamp().unwrap_or(self.now_ms);
        let store_timestamp = if is_wrong { last } else { view.store_timestamp };
        for hash in hashes {
            let key = PendingKey { hash, physical_offset: view.physical_offset, store_timestamp };
            self.index.put(&key, self.now_ms);
        }
    }
}
