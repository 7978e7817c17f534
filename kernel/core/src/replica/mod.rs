//! The log of a slave: bytes of its master's log, appended as they come, with the queue entries and
//! keys of each record that became whole.
//!
//! A record says at which offset of its queue it stands. That is where the queue goes on, or its
//! topic was deleted and made anew (offset 0), or the queue is new here, since the slave began in
//! the middle of its master's log. Anything else is a log that is not the one this one is a part
//! of. Of a topic that was made anew each queue goes by itself: others may have entries of the new
//! life already.

use crate::error::StoreError;
use crate::index::{PendingKey, for_each_key};
use crate::log::raw::Raw;
use crate::protocol::{RECORD_BYTES_MIN, TRANSACTION_MASK, TRANSACTION_ROLLBACK};
use crate::queues::entry::Entry;
use crate::record::{Marks, RecordView, java_hash, java_hash_from};
use crate::recovery::places::{Place, places_of, tags_code_with, unit_time_of};
use crate::state::types::QueueHandle;
use crate::state::{Core, Slot};

/// A queue that got an entry, and the tags code.
pub type Arrival = (QueueHandle, i64);

/// A topic and a queue id.
type QueueName = (Box<[u8]>, i32);

/// Why a record is not entered.
enum Refusal {
    /// Its topic was made anew: the queue of the earlier life has to go first.
    Anew(QueueName),
    Error(StoreError),
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Refusal::Error(error)
    }
}

impl Core {
    /// Up to `most` raw bytes of the log from an offset on, of one file; empty outside.
    pub fn raw_log(&self, offset: i64, most: usize) -> &[u8] {
        self.log.raw(offset, most)
    }

    /// Appends bytes of a master's log, which are to follow what came before; `arrived` gets the
    /// new entries of queues.
    ///
    /// # Errors
    /// `InvalidData`: they are not what may stand there. I/O: they can't be written. The records
    /// before are in the log then, the rest is dropped.
    pub fn append_log(
        &mut self,
        offset: i64,
        bytes: &[u8],
        arrived: &mut Vec<Arrival>,
    ) -> Result<i64, StoreError> {
        if !self.is_writable() {
            let text = self.shared.error().unwrap_or_else(|| "the store takes no writes".into());
            return Err(StoreError::io(text, std::io::ErrorKind::Other.into()));
        }
        if self.log.is_staged() {
            let text = "a slave's log has no transient store pool";
            return Err(StoreError::InvalidData(text.into()));
        }
        self.log.start_raw(offset)?;
        let done = self.append_parts(bytes, arrived);
        if done.is_err() {
            self.log.drop_partial()?;
        } else {
            self.shared.note_success();
        }
        self.shared.publish(self.log.max_offset() as i64, self.last_timestamp);
        done.map(|()| self.max_physical_offset())
    }

    fn append_parts(
        &mut self,
        mut bytes: &[u8],
        arrived: &mut Vec<Arrival>,
    ) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let size = self.log.put_raw(bytes, &self.shared)?;
            let (fresh, rest) = bytes.split_at(size);
            while let Some((topic, queue_id)) = self.enter_whole(fresh, arrived)? {
                self.delete_queue(&topic, queue_id);
                // Where it can't be made, entering its record says so.
                if let Ok(handle) = self.named_queue(&topic, queue_id)
                    && let Some(slot) = self.slot_mut(handle)
                {
                    slot.queue.began_anew = true;
                }
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Enters the whole records among the bytes that came, the last of which are `fresh`; the queue
    /// that has to go before the next.
    fn enter_whole(
        &mut self,
        fresh: &[u8],
        arrived: &mut Vec<Arrival>,
    ) -> Result<Option<QueueName>, StoreError> {
        let mut log = std::mem::take(&mut self.log);
        let result = loop {
            let size = match log.next_raw(fresh) {
                Ok(Raw::Part) => break Ok(None),
                Ok(Raw::Blank(size)) => size,
                Ok(Raw::Record(view)) => match self.enter(&view, arrived) {
                    Ok(()) => view.size as u64,
                    Err(Refusal::Anew(queue)) => break Ok(Some(queue)),
                    Err(Refusal::Error(error)) => break Err(error),
                },
                Err(error) => break Err(error),
            };
            log.take_raw(size);
        };
        self.log = log;
        result
    }

    /// Writes the entries and keys of a record. Whatever can fail comes first.
    fn enter(&mut self, view: &RecordView<'_>, arrived: &mut Vec<Arrival>) -> Result<(), Refusal> {
        if view.topic.is_empty() {
            return Err(bad(view, "has no topic").into());
        }
        let places = places_of(view, &self.shared.settings);
        let first = arrived.len();
        let delays = &self.shared.settings.message_delay_level;
        let marks = Marks::scan(view.properties);
        let tags_code = tags_code_with(view, delays, &marks);
        for place in places.iter() {
            match self.space_for(view, place) {
                Ok(handle) => arrived.push((handle, tags_code)),
                Err(refusal) => {
                    arrived.truncate(first);
                    return Err(refusal);
                }
            }
        }
        let entry =
            Entry { physical_offset: view.physical_offset, size: view.size as i32, tags_code };
        for ((handle, _), place) in arrived[first..].iter().zip(places.iter()) {
            let Some(parts) = self.parts(*handle) else { continue };
            parts.slot.queue.push_again(entry, unit_time_of(place, view));
            if place.topic == view.topic && place.queue_id == view.queue_id {
                parts.slot.put_count += 1;
                parts.slot.put_bytes += view.size as u64;
            }
            Core::mark_dirty(parts.dirty, parts.slot, handle.index);
        }
        self.stats.put_count += 1;
        self.stats.put_bytes += view.size as u64;
        self.last_timestamp = self.last_timestamp.max(view.store_timestamp);
        self.note_keys(view, &marks);
        Ok(())
    }

    /// The queue of a place, with space for the entry that comes next there.
    fn space_for(
        &mut self,
        view: &RecordView<'_>,
        place: Place<'_>,
    ) -> Result<QueueHandle, Refusal> {
        let handle = self.queue_of(view, place)?;
        let now_ms = self.now_ms;
        let Some(parts) = self.parts(handle) else { return Err(StoreError::Closed.into()) };
        let queue = &mut parts.slot.queue;
        // Each entry before this one was of a record before this one.
        let is_possible =
            (0..=view.physical_offset / RECORD_BYTES_MIN as i64).contains(&place.queue_offset);
        if is_possible && !queue.has_files() {
            queue.start_at(place.queue_offset);
        }
        if place.queue_offset != queue.max() {
            if place.queue_offset == 0 {
                return Err(Refusal::Anew((place.topic.into(), place.queue_id)));
            }
            let text = format!(
                "is entry {} of the queue {} of {}, where {} comes next",
                place.queue_offset,
                place.queue_id,
                parts.slot.topic.name,
                queue.max()
            );
            return Err(bad(view, &text).into());
        }
        queue.reserve(1, now_ms, &parts.shared.preallocator)?;
        Ok(handle)
    }

    /// The queue of a place, which is made where it is new.
    fn queue_of(
        &mut self,
        view: &RecordView<'_>,
        place: Place<'_>,
    ) -> Result<QueueHandle, StoreError> {
        let handle = self.recent_queues.of(place.queue_id);
        let is_it = |slot: &Slot| {
            slot.queue_id == place.queue_id && slot.topic.name.as_bytes() == place.topic
        };
        if self.slot(handle).is_some_and(is_it) {
            return Ok(handle);
        }
        let unnamed = |_| bad(view, "names a topic or queue that no folder can have");
        let handle = self.named_queue(place.topic, place.queue_id).map_err(unnamed)?;
        self.recent_queues.keep(place.queue_id, handle);
        Ok(handle)
    }

    /// Keeps the keys of a record for the index.
    fn note_keys(&mut self, view: &RecordView<'_>, marks: &Marks<'_>) {
        if !self.is_indexed() || view.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK {
            return;
        }
        if marks.uniq_key.is_none() && marks.keys.is_none() {
            return;
        }
        let topic_hash = java_hash_from(java_hash(view.topic), b"#");
        let (physical_offset, store_timestamp) = (view.physical_offset, view.store_timestamp);
        for_each_key(topic_hash, marks.uniq_key, marks.keys, |hash| {
            self.keys.push(PendingKey { hash, physical_offset, store_timestamp });
        });
        self.hand_over_full();
    }
}

fn bad(view: &RecordView<'_>, what: &str) -> StoreError {
    StoreError::InvalidData(format!("the record at {} {what}", view.physical_offset))
}
