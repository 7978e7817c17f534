//! Queues that lack entries from before the range that is read are filled from the start of the log.

use super::context::{Recovery, Waiting};
use super::places::{Place, correct_code, is_owner, is_same, places_of, unit_time_of};
use super::walk::for_each_record;
use crate::error::StoreError;
use crate::files::preallocate::Preallocator;
use crate::log::commit_log::CommitLog;
use crate::protocol::RECORD_BYTES_MIN;
use crate::queues::consume_queue::ConsumeQueue;
use crate::record::RecordView;
use crate::state::types::QueueHandle;

impl Recovery<'_> {
    /// Fills the queues that lack entries, from the start of the log.
    pub(super) fn fill_short_queues(&mut self, checked_from: u64) -> Result<(), StoreError> {
        let log = std::mem::take(&mut self.core.log);
        let result = for_each_record(&log, log.min_offset(), checked_from, |view| {
            for place in places_of(view, &self.shared.settings).iter() {
                if self.is_deleted(place, view) {
                    continue;
                }
                let Some(handle) = self.queue_of(place.topic, place.queue_id) else { continue };
                if let Some(waiting) = self.check.short.get_mut(&handle.index).map(Option::take) {
                    let waiting = self.fill_one(&log, handle, place, view, waiting)?;
                    self.check.short.insert(handle.index, waiting);
                }
            }
            self.core.bound_maps();
            Ok(())
        });
        self.core.log = log;
        result?;
        self.place_last()?;
        self.note_filled();
        Ok(())
    }

    /// Writes the entry of a record of a queue that is filled; the record that waits afterwards.
    fn fill_one(
        &mut self,
        log: &CommitLog,
        handle: QueueHandle,
        place: Place<'_>,
        view: &RecordView<'_>,
        waiting: Option<Waiting>,
    ) -> Result<Option<Waiting>, StoreError> {
        let (entry, unit_time) = (self.entry_of(view), unit_time_of(place, view));
        let has_all = log.min_offset() == 0;
        let Some(slot) = self.core.slot_mut(handle) else { return Ok(None) };
        let queue = &mut slot.queue;
        let queue_offset = place.queue_offset;
        if let Some(first) =
            waiting.filter(|first| first.queue_offset.checked_add(1) == Some(queue_offset))
            && (first.queue_offset == 0 || first.queue_offset > queue.max())
        {
            // It is confirmed.
            go_on_at(queue, first.queue_offset, &self.shared.preallocator)?;
            for (entry, unit_time) in [(first.entry, first.unit_time), (entry, unit_time)] {
                queue.reserve(1, 0, &self.shared.preallocator)?;
                queue.push_again(entry, unit_time);
            }
            self.report.dispatched += 2;
            return Ok(None);
        }
        let waits = Some(Waiting { entry, unit_time, queue_offset });
        if queue_offset < queue.max() {
            let known = queue.entry(queue_offset)?;
            let is_last = view.physical_offset >= queue.max_physical();
            if queue_offset == 0 && is_last && !known.is_some_and(|known| is_same(known, entry)) {
                return Ok(waits);
            }
            let Some(known) = known else { return Ok(waiting) };
            if is_same(known, entry) {
                if view.physical_offset >= self.check.suspect_from {
                    self.report.dispatched +=
                        correct_code(queue, queue_offset, known, entry, view)?;
                }
                return Ok(waiting);
            }
            if known.is_pre_blank() || !is_owner(log, known, place, &self.shared.settings) {
                queue.rewrite(queue_offset, entry)?;
                self.report.dispatched += 1;
                return Ok(waiting);
            }
            let is_later = view.physical_offset > known.physical_offset;
            return Ok(if is_later && queue_offset == 0 { waits } else { waiting });
        }
        if view.physical_offset < queue.max_physical() {
            return Ok(waiting);
        }
        if queue_offset > queue.max() {
            if has_all || queue.max_physical() > log.min_offset() as i64 {
                return Ok(waits);
            }
            // Those before it are no longer in the log.
            queue.delete();
            queue.start_at(queue_offset);
        }
        queue.reserve(1, 0, &self.shared.preallocator)?;
        queue.push_again(entry, unit_time_of(place, view));
        self.report.dispatched += 1;
        Ok(None)
    }

    /// Enters the records that wait at the end of the log, where nothing contradicts them.
    fn place_last(&mut self) -> Result<(), StoreError> {
        let handles: Vec<QueueHandle> = self.core.handles();
        for handle in handles {
            let Some(&Some(waiting)) = self.check.short.get(&handle.index) else { continue };
            let Some(slot) = self.core.slot_mut(handle) else { continue };
            let queue = &mut slot.queue;
            let (number, offset) = (waiting.queue_offset, waiting.entry.physical_offset);
            let is_placed = if number == 0 {
                offset >= queue.max_physical()
            } else {
                // The first record of the queue that counts, as on a slave that begins in the middle.
                !queue.has_files() && number <= offset / RECORD_BYTES_MIN as i64
            };
            if is_placed {
                go_on_at(queue, number, &self.shared.preallocator)?;
                queue.reserve(1, 0, &self.shared.preallocator)?;
                queue.push_again(waiting.entry, waiting.unit_time);
                self.report.dispatched += 1;
                self.check.short.insert(handle.index, None);
            }
        }
        Ok(())
    }

    fn note_filled(&mut self) {
        for (index, waiting) in std::mem::take(&mut self.check.short) {
            let Some(Some(slot)) = self.core.slots.get(index as usize) else { continue };
            let name = format!("the queue {} of {}", slot.queue_id, slot.topic.name);
            self.report
                .notes
                .push(format!("filled {name} from the begin of the log: entries were missing"));
            self.report.rebuilt_queues += 1;
            if let Some(waiting) = waiting {
                self.report.notes.push(format!(
                    "left the record at {} out of {name}: nothing follows its queue offset {}, and \
                     the queue ends at {}",
                    waiting.entry.physical_offset,
                    waiting.queue_offset,
                    slot.queue.max()
                ));
            }
        }
    }
}

/// Lets a queue go on at an offset that does not join: anew, behind blank entries, or as its first.
fn go_on_at(
    queue: &mut ConsumeQueue,
    queue_offset: i64,
    preallocator: &Preallocator,
) -> Result<(), StoreError> {
    if queue_offset == 0 {
        queue.delete();
    } else if queue.has_files() {
        queue.fill_to(queue_offset, preallocator)?;
    } else {
        queue.start_at(queue_offset);
    }
    Ok(())
}
