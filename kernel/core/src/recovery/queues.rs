//! Queue entries: written where they are missing, and compared with the records where they are not.
//!
//! Entries and records vouch for each other. Of two that disagree the record is right, unless its
//! own queue knows it otherwise: the CRC covers the body alone, so that is how a damaged queue id,
//! queue offset or topic shows.

use std::thread;

use hashbrown::HashMap;

use super::Recovery;
use super::indexing::Indexing;
use super::walk::for_each_record;
use crate::error::StoreError;
use crate::log::commit_log::CommitLog;
use crate::queues::consume_queue::{ConsumeQueue, Entry};
use crate::queues::multi_dispatch::targets;
use crate::queues::queue_ext::is_ext_address;
use crate::record::{Marks, RECORD_SIZE_MIN, RecordView, SCHEDULE_TOPIC, deliver_time};
use crate::settings::Settings;
use crate::state::topic_name;
use crate::store::QueueHandle;

/// What has to be known of the queues while the log is read.
#[derive(Default)]
pub(super) struct QueueCheck {
    /// By index of the queue: those that lack entries from before the range that is read, and a
    /// record that waits for another one to confirm it.
    short: HashMap<u32, Option<Waiting>>,
    /// By index of the queue.
    seen: Vec<Seen>,
    /// Entries of records from here on may hold the tags code of another record.
    doubtful_from: i64,
}

/// The entries of a queue from where reading began, and how many of them a record claimed.
#[derive(Clone, Copy, Default)]
struct Seen {
    from: i64,
    end: i64,
    claimed: i64,
}

/// A record whose queue offset does not join: it counts once the next one goes on from it.
#[derive(Clone, Copy)]
struct Waiting {
    entry: Entry,
    unit_time: Option<i64>,
    queue_offset: i64,
}

/// Where a record says that it belongs.
#[derive(Clone, Copy)]
struct Place<'a> {
    topic: &'a [u8],
    queue_id: i32,
    queue_offset: i64,
}

/// The places of a record: its own, and those of its further queues.
fn places_of<'a>(view: &RecordView<'a>, settings: &Settings) -> SmallPlaces<'a> {
    let own = view.is_queued().then_some(Place {
        topic: view.topic,
        queue_id: view.queue_id,
        queue_offset: view.queue_offset,
    });
    let mut further = Vec::new();
    if settings.enable_multi_dispatch && own.is_some() {
        for ((topic, queue_id), queue_offset) in
            targets(view.properties, view.queue_id, settings.enable_lmq)
        {
            let place = Place { topic: topic.as_bytes(), queue_id, queue_offset };
            let is_new = own.iter().chain(&further).all(|known| !known.is_same_queue(place));
            // Each entry before this one was of a record before this one.
            let is_possible = queue_offset <= view.physical_offset / RECORD_SIZE_MIN as i64;
            if is_new && is_possible {
                further.push(place);
            }
        }
    }
    SmallPlaces { own, further }
}

/// Mostly one place, which needs no memory of its own.
struct SmallPlaces<'a> {
    own: Option<Place<'a>>,
    further: Vec<Place<'a>>,
}

impl<'a> SmallPlaces<'a> {
    fn iter(&self) -> impl Iterator<Item = Place<'a>> {
        self.own.iter().chain(&self.further).copied()
    }
}

impl Place<'_> {
    fn is_same_queue(&self, other: Place<'_>) -> bool {
        self.topic == other.topic && self.queue_id == other.queue_id
    }
}

/// Whether the record that an entry names belongs to the place.
fn is_owner(log: &CommitLog, entry: Entry, place: Place<'_>, settings: &Settings) -> bool {
    log.record(entry.physical_offset).is_some_and(|(view, _)| {
        view.size as i64 == i64::from(entry.size)
            && places_of(&view, settings)
                .iter()
                .any(|own| own.is_same_queue(place) && own.queue_offset == place.queue_offset)
    })
}

impl Recovery<'_> {
    /// Notes that a queue is to be filled from the begin of the log.
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
    /// `index_from` on. Before `sound_from` the log was not checked.
    pub(super) fn dispatch(
        &mut self,
        dispatch_from: u64,
        index_from: u64,
        sound_from: u64,
    ) -> Result<(), StoreError> {
        self.note_entries_from(dispatch_from as i64)?;
        let log = std::mem::take(&mut self.core.log);
        let mut indexing = Indexing::new(self);
        let is_wanted = index_from < log.max_offset();
        let mut result = Ok(());
        let is_begun = thread::scope(|scope| {
            let index = || indexing.follow(&log, index_from, sound_from);
            let is_begun = is_wanted && thread::Builder::new().spawn_scoped(scope, index).is_ok();
            result = self.dispatch_from(&log, dispatch_from, sound_from);
            is_begun
        });
        if is_wanted && !is_begun {
            // The system gave no thread.
            indexing.follow(&log, index_from, sound_from);
        }
        indexing.finish(self);
        self.core.log = log;
        result
    }

    fn dispatch_from(
        &mut self,
        log: &CommitLog,
        begin: u64,
        sound_from: u64,
    ) -> Result<(), StoreError> {
        for_each_record(log, begin, sound_from, |view| {
            for place in places_of(view, &self.shared.settings).iter() {
                self.dispatch_one(log, place, view)?;
            }
            self.core.bound_maps();
            Ok(())
        })
    }

    /// Reads the log again for the index alone.
    pub(super) fn index_records(&mut self, from: u64, sound_from: u64) {
        let mut indexing = Indexing::new(self);
        indexing.follow(&self.core.log, from, sound_from);
        indexing.finish(self);
    }

    /// Finds out which entries records have to claim.
    fn note_entries_from(&mut self, physical: i64) -> Result<(), StoreError> {
        self.check.seen = vec![Seen::default(); self.core.slots.len()];
        let is_whole = self.report.clean || self.report.same_boot;
        self.check.doubtful_from = if is_whole { i64::MAX } else { physical };
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
            let Some(known) = queue.entry(place.queue_offset)? else {
                let is_before = queue.first_entries()?.first().is_some_and(|first| {
                    !first.is_pre_blank() && view.physical_offset < first.physical_offset
                });
                if is_before {
                    // Its file is missing.
                    queue.delete();
                    self.mark_short(handle);
                }
                return Ok(());
            };
            if is_same(known, entry) {
                if view.physical_offset >= self.check.doubtful_from {
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
            } else if known.is_pre_blank() || !is_owner(log, known, place, &self.shared.settings) {
                queue.rewrite(place.queue_offset, entry)?;
                self.report.dispatched += 1;
                self.claim(handle, place.queue_offset);
            } else if place.queue_offset == 0 && view.physical_offset >= queue.max_physical() {
                // The queue may have begun anew.
                self.mark_short(handle);
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
        queue.reserve(1, 0, self.shared)?;
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
    fn is_deleted(&self, place: Place<'_>, view: &RecordView<'_>) -> bool {
        view.physical_offset < self.deletions.end_of(place.topic)
    }

    fn entry_of(&self, view: &RecordView<'_>) -> Entry {
        Entry {
            physical_offset: view.physical_offset,
            size: view.size as i32,
            tags_code: tags_code(view, &self.shared.settings.message_delay_level),
        }
    }

    /// Looks at the entries that no record claimed: the offset of the first record whose queue knows
    /// it otherwise than it says itself. Entries that belong to no record are dropped.
    pub(super) fn find_disowned(&mut self, begin: u64) -> Result<Option<u64>, StoreError> {
        let log = std::mem::take(&mut self.core.log);
        let result = self.find_disowned_in(&log, begin as i64);
        self.core.log = log;
        result.map(|offset| offset.and_then(|offset| u64::try_from(offset).ok()))
    }

    fn find_disowned_in(&mut self, log: &CommitLog, begin: i64) -> Result<Option<i64>, StoreError> {
        let mut first: Option<i64> = None;
        for handle in self.core.handles() {
            let Some(&seen) = self.check.seen.get(handle.index as usize) else { continue };
            let is_short = self.check.short.contains_key(&handle.index);
            if seen.claimed >= seen.end - seen.from || is_short {
                continue;
            }
            for (queue_offset, entry) in self.unclaimed_of(log, handle, seen)? {
                if entry.physical_offset >= begin && self.is_known_elsewhere(log, entry)? {
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
            slot.queue.truncate_at(queue_offset).map(drop)
        } else {
            slot.queue.rewrite(queue_offset, Entry::PRE_BLANK)
        }
    }

    /// Fills the queues that lack entries, from the begin of the log.
    pub(super) fn fill_short_queues(&mut self, sound_from: u64) -> Result<(), StoreError> {
        let log = std::mem::take(&mut self.core.log);
        let result = for_each_record(&log, log.min_offset(), sound_from, |view| {
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
            if first.queue_offset == 0 {
                queue.delete();
            } else if queue.has_files() {
                queue.fill_to(first.queue_offset, self.shared)?;
            } else {
                queue.begin_at(first.queue_offset);
            }
            for (entry, unit_time) in [(first.entry, first.unit_time), (entry, unit_time)] {
                queue.reserve(1, 0, self.shared)?;
                queue.push_again(entry, unit_time);
            }
            self.report.dispatched += 2;
            return Ok(None);
        }
        let waits = Some(Waiting { entry, unit_time, queue_offset });
        if queue_offset < queue.max() {
            let Some(known) = queue.entry(queue_offset)? else { return Ok(waiting) };
            if is_same(known, entry) {
                if view.physical_offset >= self.check.doubtful_from {
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
            queue.begin_at(queue_offset);
        }
        queue.reserve(1, 0, self.shared)?;
        queue.push_again(entry, unit_time_of(place, view));
        self.report.dispatched += 1;
        Ok(None)
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

/// The time in the unit of an entry. Further queues of a record have no units, as in RocketMQ.
fn unit_time_of(place: Place<'_>, view: &RecordView<'_>) -> Option<i64> {
    (place.topic == view.topic).then_some(view.store_timestamp)
}

fn is_same(known: Entry, entry: Entry) -> bool {
    known.physical_offset == entry.physical_offset && known.size == entry.size
}

/// Gives an entry the tags code of its record; 1 where it had another one. Two losses of power may
/// leave the entry of a record that was lost, when the one that came into its place is of its size.
fn correct_code(
    queue: &mut ConsumeQueue,
    queue_offset: i64,
    known: Entry,
    entry: Entry,
    view: &RecordView<'_>,
) -> Result<i64, StoreError> {
    let is_right = if is_ext_address(known.tags_code) {
        // Where the unit is missing clients filter for themselves.
        queue.ext.as_mut().and_then(|ext| ext.get(known.tags_code)).is_none_or(|unit| {
            unit.tags_code == entry.tags_code && unit.store_time == view.store_timestamp
        })
    } else {
        known.tags_code == entry.tags_code
    };
    if !is_right {
        queue.rewrite(queue_offset, entry)?;
    }
    Ok(i64::from(!is_right))
}

/// The tags code of a record's queue entry.
fn tags_code(view: &RecordView<'_>, delays_ms: &[i64]) -> i64 {
    let is_delayed = view.topic == SCHEDULE_TOPIC;
    let time = is_delayed
        .then(|| deliver_time(view.properties, view.store_timestamp, delays_ms))
        .flatten();
    time.unwrap_or_else(|| Marks::scan(view.properties).tags_code())
}
