//! Writing one record with entries in several queues (multi-dispatch).

use crate::protocol::LMQ_PREFIX;
use hashbrown::HashSet;

use crate::error::PutStatus;
use crate::queues::entry::Entry;
use crate::queues::multi_dispatch::{named_queues, with_offsets};
use crate::queues::names::topic_name;
use crate::record::{NewRecord, Text, is_queued};
use crate::state::Core;
use crate::state::types::{Appended, QueueHandle};

impl Core {
    /// Whether such queues would make more light message queues than `maxLmqConsumeQueueNum`.
    ///
    /// # Errors
    /// `LmqConsumeQueueNumExceeded`.
    pub fn check_lmq<'a>(
        &self,
        queues: impl Iterator<Item = (&'a [u8], i32)>,
    ) -> Result<(), PutStatus> {
        let settings = &self.shared.settings;
        if !(settings.enable_lmq && settings.enable_multi_dispatch) {
            return Ok(());
        }
        let is_fresh = |&(name, id): &(&[u8], i32)| {
            name.starts_with(LMQ_PREFIX.as_bytes()) && self.find_queue(name, id).is_none()
        };
        let fresh = queues.filter(is_fresh).collect::<HashSet<_>>().len();
        if fresh == 0 || self.lmq_count + fresh <= settings.max_lmq_consume_queue_num {
            return Ok(());
        }
        self.shared.note_refusal(format!(
            "{} light message queues, maxLmqConsumeQueueNum is {}",
            self.lmq_count, settings.max_lmq_consume_queue_num
        ));
        Err(PutStatus::LmqConsumeQueueNumExceeded)
    }

    /// Appends a record that names further queues in its properties, which are in one piece, with an
    /// entry in each; `entered` gets those queues, without the record's own. A record that names
    /// none is appended as it is.
    ///
    /// # Errors
    /// The status to answer; nothing was stored then.
    pub fn append_dispatched(
        &mut self,
        own: QueueHandle,
        record: &NewRecord<'_>,
        entered: &mut Vec<(String, i32)>,
    ) -> Result<Appended, PutStatus> {
        let Some(slot) = self.slot(own) else { return Err(PutStatus::UnknownError) };
        let (own_topic, own_id) = (slot.topic.name.clone(), slot.queue_id);
        let text = record.properties.parts[0];
        let lmq = self.shared.settings.enable_lmq;
        let named = named_queues(text, own_id, lmq).ok_or(PutStatus::MessageIllegal)?;
        if named.is_empty() {
            return self.append(own, record);
        }
        if named.iter().any(|(name, _)| topic_name(name.as_bytes()).is_none()) {
            return Err(PutStatus::MessageIllegal);
        }
        self.check_lmq(named.iter().map(|&(name, id)| (name.as_bytes(), id)))?;
        let mut others: Vec<QueueHandle> = Vec::new();
        let mut offsets = Vec::with_capacity(named.len());
        for &(name, id) in &named {
            let handle = self.named_queue(name.as_bytes(), id)?;
            offsets.push(self.bounds(handle).1);
            if (name, id) != (&*own_topic, own_id) && !others.contains(&handle) {
                others.push(handle);
                entered.push((name.to_owned(), id));
            }
        }
        if !is_queued(record.sys_flag) {
            // It says where it would have stood, and stands nowhere.
            others.clear();
            entered.clear();
        }
        for &handle in &others {
            let now_ms = self.now_ms;
            let mut parts = self.parts(handle).ok_or(PutStatus::UnknownError)?;
            parts.reserve(1, now_ms)?;
        }
        let text = with_offsets(text, &offsets);
        let properties = Text::one(&text);
        let stored = self.append(own, &NewRecord { properties, marks: None, ..*record })?;
        for &handle in &others {
            if let Some(parts) = self.parts(handle) {
                parts.slot.queue.push(Entry {
                    physical_offset: stored.physical_offset,
                    size: stored.size as i32,
                    tags_code: stored.tags_code,
                });
                Core::mark_dirty(parts.dirty, parts.slot, handle.index);
            }
        }
        Ok(stored)
    }
}
