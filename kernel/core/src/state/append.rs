//! Writing: one record or a batch, with their queue entries and index keys.
//!
//! Whatever can fail comes first: limits, space in the queue, space in the log. Then record, queue
//! entry and position are written without a way to fail between them.

use crate::error::{PutStatus, StoreError};
use crate::index::{PendingKey, for_each_key};
use crate::protocol::{PROPERTIES_BYTES_MAX, TRANSACTION_MASK, TRANSACTION_ROLLBACK};
use crate::queues::entry::Entry;
use crate::queues::multi_dispatch::claims_offsets;
use crate::record::{
    Fields, Marks, NewRecord, Text, deliver_time, encode, is_queued, record_size, with_host_bits,
};
use crate::shared::Shared;
use crate::state::types::{Appended, BatchAppended, BatchItem, NewBatch, QueueHandle};
use crate::state::{Core, Parts};

impl Core {
    /// Appends one record, its queue entry and its index entries.
    ///
    /// # Errors
    /// The status to answer; nothing was stored then.
    #[inline]
    pub fn append(
        &mut self,
        queue: QueueHandle,
        record: &NewRecord<'_>,
    ) -> Result<Appended, PutStatus> {
        if !self.is_writable() {
            return Err(PutStatus::ServiceNotAvailable);
        }
        let (now_ms, is_indexed) = (self.now_ms, self.is_indexed());
        let body_max = self.max_message_size;
        let mut parts = self.parts(queue).ok_or(PutStatus::UnknownError)?;
        let sys_flag = with_host_bits(record.sys_flag, record.born_host, record.store_host)
            .ok_or(PutStatus::MessageIllegal)?;
        let properties_size = check_limits(record.body, &record.properties, body_max)?;
        let is_queued = is_queued(sys_flag);
        if is_queued {
            parts.reserve(1, now_ms)?;
        }
        let topic = parts.slot.topic.name.len();
        let hosts = record.born_host.len() + record.store_host.len();
        let size = record_size(hosts, record.body.len(), topic, properties_size);
        parts.log.place(size as u64, now_ms, parts.shared)?;
        let stored = parts.store(
            &NewRecord { sys_flag, ..*record },
            properties_size,
            now_ms.max(*parts.last_timestamp),
            0,
            size,
            is_queued,
            is_indexed,
        );
        parts.commit(size as u64, 1, stored.store_timestamp, queue, is_queued);
        self.hand_over_full();
        Ok(stored)
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
        physical_offsets.clear();
        tags_codes.clear();
        if !self.is_writable() {
            return Err(PutStatus::ServiceNotAvailable);
        }
        let (now_ms, is_indexed) = (self.now_ms, self.is_indexed());
        let body_max = self.max_message_size;
        let mut parts = self.parts(queue).ok_or(PutStatus::UnknownError)?;
        let sys_flag = with_host_bits(batch.sys_flag, batch.born_host, batch.store_host)
            .ok_or(PutStatus::MessageIllegal)?;
        let hosts = batch.born_host.len() + batch.store_host.len();
        let topic = parts.slot.topic.name.len();
        let mut total = 0;
        let mut bodies = 0;
        for item in items {
            let properties_size = check_limits(item.body, &item.properties, body_max)?;
            bodies += item.body.len();
            total += record_size(hosts, item.body.len(), topic, properties_size);
        }
        // A batch can't be part of a transaction, and is as long as one message at most.
        if items.is_empty() || bodies > body_max || sys_flag & TRANSACTION_MASK != 0 {
            return Err(PutStatus::MessageIllegal);
        }
        // Batches go to one queue; recovery must not take a client's word for more.
        if parts.shared.settings.enable_multi_dispatch
            && items.iter().any(|item| claims_offsets(&item.properties))
        {
            parts.shared.note_refusal("INNER_MULTI_QUEUE_OFFSET is for the store to say".into());
            return Err(PutStatus::MessageIllegal);
        }
        parts.reserve(items.len() as u64, now_ms)?;
        parts.log.place(total as u64, now_ms, parts.shared)?;
        let store_timestamp = now_ms.max(*parts.last_timestamp);
        let mut outcome = BatchAppended { queue_offset: 0, end_offset: 0, store_timestamp };
        let mut after = 0;
        for item in items {
            let properties_size = item.properties.len();
            let size = record_size(hosts, item.body.len(), topic, properties_size);
            let stored = parts.store(
                &item.of(batch, sys_flag),
                properties_size,
                store_timestamp,
                after,
                size,
                true,
                is_indexed,
            );
            if physical_offsets.is_empty() {
                outcome.queue_offset = stored.queue_offset;
            }
            physical_offsets.push(stored.physical_offset);
            tags_codes.push(stored.tags_code);
            after += size as u64;
            outcome.end_offset = stored.end_offset();
        }
        parts.commit(total as u64, items.len() as u64, store_timestamp, queue, true);
        self.hand_over_full();
        Ok(outcome)
    }
}

/// The size of the property text, when body and properties are within their limits.
#[inline]
fn check_limits(body: &[u8], properties: &Text<'_>, body_max: usize) -> Result<usize, PutStatus> {
    let size = properties.len();
    if body.len() > body_max {
        return Err(PutStatus::MessageIllegal);
    }
    if size > PROPERTIES_BYTES_MAX {
        return Err(PutStatus::PropertiesSizeExceeded);
    }
    Ok(size)
}

#[cold]
fn refuse(shared: &Shared, error: &StoreError) -> PutStatus {
    shared.note_refusal(error.to_string());
    PutStatus::ServiceNotAvailable
}

impl Parts<'_> {
    #[inline]
    pub(crate) fn reserve(&mut self, count: u64, now_ms: i64) -> Result<(), PutStatus> {
        self.slot
            .queue
            .reserve(count, now_ms, &self.shared.preallocator)
            .map_err(|error| refuse(self.shared, &error))
    }

    /// Writes a record `after` bytes after the end of the log, its queue entry and its keys. The
    /// space for both was made.
    #[inline]
    #[allow(clippy::too_many_arguments)] // one step of a inner loop, inlined into its two callers
    fn store(
        &mut self,
        record: &NewRecord<'_>,
        properties_size: usize,
        store_timestamp: i64,
        after: u64,
        size: usize,
        is_queued: bool,
        is_indexed: bool,
    ) -> Appended {
        let physical_offset = (self.log.max_offset() + after) as i64;
        let queue_offset = if is_queued { self.slot.queue.max() } else { 0 };
        let room = self.log.room(after, size as u64);
        debug_assert_eq!(room.len(), size);
        encode(
            room,
            &Fields {
                record,
                topic: self.slot.topic.name.as_bytes(),
                queue_id: self.slot.queue_id,
                queue_offset,
                physical_offset,
                store_timestamp,
                properties_size,
            },
        );
        let marks = record.marks.unwrap_or_else(|| Marks::scan(&room[size - properties_size..]));
        let tags_code = record.tags_code.unwrap_or_else(|| {
            let deliver_time = self.slot.topic.is_schedule.then(|| {
                let delays = &self.shared.settings.message_delay_level;
                deliver_time(&room[size - properties_size..], store_timestamp, delays)
            });
            deliver_time.flatten().unwrap_or_else(|| marks.tags_code())
        });
        if is_queued {
            let tags_code = self.slot.queue.extend(tags_code, store_timestamp, record.bit_map);
            self.slot.queue.push(Entry { physical_offset, size: size as i32, tags_code });
        }
        if is_indexed && record.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK {
            let keys = &mut *self.keys;
            for_each_key(self.slot.topic.key_hash, marks.uniq_key, marks.keys, |hash| {
                keys.push(PendingKey { hash, physical_offset, store_timestamp });
            });
        }
        Appended { physical_offset, queue_offset, size: size as u32, store_timestamp, tags_code }
    }

    /// Makes what was stored part of the log.
    #[inline]
    fn commit(
        &mut self,
        size: u64,
        count: u64,
        store_timestamp: i64,
        queue: QueueHandle,
        is_queued: bool,
    ) {
        self.log.advance(size);
        self.shared.note_success();
        *self.last_timestamp = store_timestamp;
        self.shared.publish(self.log.max_offset() as i64, store_timestamp);
        self.stats.put_count += count;
        self.stats.put_bytes += size;
        self.slot.put_count += count;
        self.slot.put_bytes += size;
        if is_queued {
            Core::mark_dirty(self.dirty, self.slot, queue.index);
        }
    }
}
