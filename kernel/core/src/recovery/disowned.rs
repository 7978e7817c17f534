//! Entries that no record claims: they, or the records that they name, are damaged.

use super::context::{Recovery, Seen};
use super::places::{Place, is_owner, places_of};
use crate::error::StoreError;
use crate::log::commit_log::CommitLog;
use crate::queues::entry::Entry;
use crate::state::types::QueueHandle;

impl Recovery<'_> {
    /// Examines the entries that no record claimed: the offset of the first record whose queue
    /// knows it otherwise than it says itself. Entries that belong to no record are dropped.
    pub(super) fn find_disowned(&mut self, start: u64) -> Result<Option<u64>, StoreError> {
        let log = std::mem::take(&mut self.core.log);
        let result = self.find_disowned_in(&log, start as i64);
        self.core.log = log;
        result.map(|offset| offset.and_then(|offset| u64::try_from(offset).ok()))
    }

    fn find_disowned_in(&mut self, log: &CommitLog, start: i64) -> Result<Option<i64>, StoreError> {
        let mut first: Option<i64> = None;
        for handle in self.core.handles() {
            let Some(&seen) = self.check.seen.get(handle.index as usize) else { continue };
            let is_short = self.check.short.contains_key(&handle.index);
            if seen.claimed >= seen.end - seen.from || is_short {
                continue;
            }
            for (queue_offset, entry) in self.unclaimed_of(log, handle, seen)? {
                if entry.physical_offset >= start && self.is_known_elsewhere(log, entry)? {
                    let offset = entry.physical_offset;
                    first = Some(first.map_or(offset, |first| first.min(offset)));
                } else {
                    self.drop_entry(handle, queue_offset)?;
                }
            }
        }
        Ok(first)
    }

    /// The entries of a queue that no record claimed, last first.
    fn unclaimed_of(
        &mut self,
        log: &CommitLog,
        handle: QueueHandle,
        seen: Seen,
    ) -> Result<Vec<(i64, Entry)>, StoreError> {
        let mut unclaimed = Vec::new();
        let Some(slot) = self.core.slot_mut(handle) else { return Ok(unclaimed) };
        let (topic, queue_id, queue) = (&slot.topic.name, slot.queue_id, &mut slot.queue);
        for queue_offset in (seen.from..seen.end.min(queue.max())).rev() {
            let place = Place { topic: topic.as_bytes(), queue_id, queue_offset };
            let Some(entry) = queue.entry(queue_offset)? else { break };
            if !entry.is_pre_blank() && !is_owner(log, entry, place, &self.shared.settings) {
                unclaimed.push((queue_offset, entry));
            }
        }
        Ok(unclaimed)
    }

    /// Whether a record of the entry's size stands where the entry says, but belongs, as it says
    /// itself, to a place that had no entry for it.
    fn is_known_elsewhere(&mut self, log: &CommitLog, entry: Entry) -> Result<bool, StoreError> {
        let Some((view, _)) = log.record(entry.physical_offset) else { return Ok(false) };
        if view.size as i64 != i64::from(entry.size) {
            return Ok(false);
        }
        for place in places_of(&view, &self.shared.settings).iter() {
            let Some(handle) = self.core.find_queue(place.topic, place.queue_id) else { continue };
            let seen = self.check.seen.get(handle.index as usize).copied().unwrap_or_default();
            let Some(slot) = self.core.slot_mut(handle) else { continue };
            let known = slot.queue.entry(place.queue_offset)?;
            if place.queue_offset < seen.end
                && known.is_some_and(|known| known.physical_offset == entry.physical_offset)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn drop_entry(&mut self, handle: QueueHandle, queue_offset: i64) -> Result<(), StoreError> {
        let Some(slot) = self.core.slot_mut(handle) else { return Ok(()) };
        self.report.notes.push(format!(
            "dropped the entry {queue_offset} of the queue {} of {}: it is of no record",
            slot.queue_id, slot.topic.name
        ));
        self.report.cut_entries += 1;
        if queue_offset + 1 == slot.queue.max() {
            slot.queue.truncate_at(queue_offset)?;
            slot.queue.drop_last_blanks()
        } else {
            slot.queue.rewrite(queue_offset, Entry::PRE_BLANK)
        }
    }
}
