//! Queue entries: written where they are missing, and compared with the records where they are not.
//!
//! Entries and records vouch for each other. Of two that disagree the record is right, unless its
//! own queue knows it otherwise: the CRC covers the body alone, so that is how a damaged queue id,
//! queue offset or topic shows.
//!
//! A record that says offset 0 behind all records of its queue starts the queue anew: its topic was
//! deleted and made again, and no note of that is left (a slave has none, a loss of power may cost
//! it). It counts when the queue's next record says 1, or when none follows.

use std::thread;

use super::context::{Recovery, Seen};
use super::indexing::Indexing;
use super::places::{Place, correct_code, is_owner, is_same, places_of, tags_code, unit_time_of};
use super::walk::for_each_record;
use crate::error::StoreError;
use crate::log::commit_log::CommitLog;
use crate::queues::entry::Entry;
use crate::queues::names::topic_name;
use crate::record::RecordView;
use crate::state::types::QueueHandle;

impl Recovery<'_> {
    /// Notes that a queue is to be filled from the start of the log.
    pub(super) fn mark_short(&mut self, handle: QueueHandle) {
        self.check.short.entry(handle.index).or_default();
    }

    pub(super) fn has_short_queues(&self) -> bool {
        !self.check.short.is_empty()
    }

    /// The queue of that name, made if it is missing; `None` when there can't be one.
    pub(super) fn queue_of(&mut self, topic: &[u8], queue_id: i32) -> Option<QueueHandle> {
        if let Some(handle) = self.core.find_queue(topic, queue_id) {
            return Some(handle);
        }
        let topic = topic_name(topic).filter(|_| queue_id >= 0)?;
        let queue = self.core.new_queue(topic, queue_id);
        Some(self.core.add_queue(topic, queue_id, queue))
    }

    /// Reads the log again: queue entries of records from `dispatch_from` on, keys of records from
    /// `index_from` on. Before `checked_from` the log was not checked.
    pub(super) fn dispatch(
        &mut self,
        dispatch_from: u64,
        index_from: u64,
        checked_from: u64,
    ) -> Result<(), StoreError> {
        self.note_entries_from(dispatch_from as i64)?;
        let log = std::mem::take(&mut self.core.log);
        let mut indexing = Indexing::new(self);
        let is_wanted = index_from < log.max_offset();
        let mut result = Ok(());
        let is_started = thread::scope(|scope| {
            let index = || indexing.follow(&log, index_from, checked_from);
            let is_started = is_wanted && thread::Builder::new().spawn_scoped(scope, index).is_ok();
            result = self.dispatch_from(&log, dispatch_from, checked_from);
            is_started
        });
        if is_wanted && !is_started {
            // The system gave no thread.
            indexing.follow(&log, index_from, checked_from);
        }
        indexing.finish(self);
        self.core.log = log;
        result
    }

    fn dispatch_from(
        &mut self,
        log: &CommitLog,
        start: u64,
        checked_from: u64,
    ) -> Result<(), StoreError> {
        for_each_record(log, start, checked_from, |view| {
            for place in places_of(view, &self.shared.settings).iter() {
                self.dispatch_one(log, place, view)?;
            }
            self.core.bound_maps();
            Ok(())
        })
    }

    /// Reads the log again for the index alone.
    pub(super) fn index_records(&mut self, from: u64, checked_from: u64) {
        let mut indexing = Indexing::new(self);
        indexing.follow(&self.core.log, from, checked_from);
        indexing.finish(self);
    }

    /// Finds out which entries records have to claim.
    fn note_entries_from(&mut self, physical: i64) -> Result<(), StoreError> {
        self.check.seen = vec![Seen::default(); self.core.slots.len()];
        let is_whole = self.report.clean || self.report.same_boot;
        self.check.suspect_from = if is_whole { i64::MAX } else { physical };
        if self.report.clean {
            return Ok(());
        }
        for handle in self.core.handles() {
            let Some(slot) = self.core.slot_mut(handle) else { continue };
            let queue = &mut slot.queue;
            if queue.max_physical() <= physical {
                continue;
            }
            let (mut low, mut high) = (queue.min(), queue.max());
            while low < high {
                let middle = low + (high - low) / 2;
                match queue.entry(middle)? {
                    Some(entry) if entry.physical_offset < physical => low = middle + 1,
                    _ => high = middle,
                }
            }
            let seen = Seen { from: low, end: queue.max(), claimed: 0 };
            self.check.seen[handle.index as usize] = seen;
            self.core.bound_maps();
        }
        Ok(())
    }

    /// Writes a record's entry if it is missing or wrong.
    fn dispatch_one(
        &mut self,
        log: &CommitLog,
        place: Place<'_>,
        view: &RecordView<'_>,
    ) -> Result<(), StoreError> {
        let Some(handle) = self.queue_of(place.topic, place.queue_id) else { return Ok(()) };
        if self.is_deleted(place, view) || self.check.short.contains_key(&handle.index) {
            return Ok(());
        }
        let entry = self.entry_of(view);
        let Some(slot) = self.core.slot_mut(handle) else { return Ok(()) };
        let queue = &mut slot.queue;
        if place.queue_offset < queue.max() {
            // The queue may have started anew.
            let is_anew = place.queue_offset == 0 && view.physical_offset >= queue.max_physical();
            let Some(known) = queue.entry(place.queue_offset)? else {
                let is_before = queue.first_entries()?.first().is_some_and(|first| {
                    !first.is_pre_blank() && view.physical_offset < first.physical_offset
                });
                if is_before {
                    // Its file is missing.
                    queue.delete();
                }
                if is_before || is_anew {
                    self.mark_short(handle);
                }
                return Ok(());
            };
            if is_same(known, entry) {
                if view.physical_offset >= self.check.suspect_from {
                    let at = place.queue_offset;
                    self.report.dispatched += correct_code(queue, at, known, entry, view)?;
                }
                self.claim(handle, place.queue_offset);
            } else if known.size > 0
                && !known.is_pre_blank()
                && known.physical_offset < log.min_offset() as i64
            {
                // Entries ascend: those are of an earlier life, which a loss of power brought back.
                queue.delete();
                self.mark_short(handle);
            } else if is_anew {
                self.mark_short(handle);
            } else if known.is_pre_blank() || !is_owner(log, known, place, &self.shared.settings) {
                queue.rewrite(place.queue_offset, entry)?;
                self.report.dispatched += 1;
                self.claim(handle, place.queue_offset);
            }
            return Ok(());
        }
        if view.physical_offset < queue.max_physical() {
            return Ok(());
        }
        if place.queue_offset > queue.max() {
            self.mark_short(handle);
            return Ok(());
        }
        queue.reserve(1, 0, &self.shared.preallocator)?;
        queue.push_again(entry, unit_time_of(place, view));
        self.report.dispatched += 1;
        Ok(())
    }

    fn claim(&mut self, handle: QueueHandle, queue_offset: i64) {
        if let Some(seen) = self.check.seen.get_mut(handle.index as usize)
            && (seen.from..seen.end).contains(&queue_offset)
        {
            seen.claimed += 1;
        }
    }

    /// Whether the record is of an earlier life of its topic.
    pub(super) fn is_deleted(&self, place: Place<'_>, view: &RecordView<'_>) -> bool {
        view.physical_offset < self.deletions.end_of(place.topic)
    }

    pub(super) fn entry_of(&self, view: &RecordView<'_>) -> Entry {
        Entry {
            physical_offset: view.physical_offset,
            size: view.size as i32,
            tags_code: tags_code(view, &self.shared.settings.message_delay_level),
        }
    }
}
