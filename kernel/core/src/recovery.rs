//! Opening a store: finding the end of the log, and bringing queues and index into line with it.
//!
//! 1. The log is read from a point before which everything is known to be whole: after a clean stop
//!    the record of the newest queue entry, after a crash the last file that begins before the
//!    checkpoint. The first thing that is not a whole record ends it; what is behind is cleared.
//! 2. Queue entries of records behind that end are dropped.
//! 3. The log is read again, as far back as anything may be missing: queue entries that are missing
//!    or damaged are written, keys that are missing are indexed.
//! 4. A queue that lacks entries from before that range is filled from the begin of the log.
//!
//! Then each queue is dense, and each record of the log stands at its queue offset.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::sync::Arc;

use crate::commit_log::CommitLog;
use crate::consume_queue::{ConsumeQueue, Entry};
use crate::deletions::Deletions;
use crate::error::StoreError;
use crate::folder::{Boot, Checkpoint, abort_path};
use crate::index::{Index, PendingKey, for_each_key};
use crate::log_folders::LogFolders;
use crate::map::MappedFile;
use crate::multi_dispatch::targets;
use crate::record::{
    BORN_HOST_V6, MESSAGE_MAGIC, Marks, Parsed, RECORD_SIZE_MIN, RecordView, SCHEDULE_TOPIC,
    TRANSACTION_MASK, TRANSACTION_ROLLBACK, deliver_time, parse,
};
use crate::shared::Shared;
use crate::state::{Core, queue_file_size, topic_name};
use crate::store::{QueueHandle, RecoveryReport};

/// Files of the log that are read after a clean stop when the queues do not tell where it ends.
const FILES_READ: usize = 3;

type QueueName = (Box<[u8]>, i32);

/// Loads and recovers; leaves the core ready, but not open.
pub(crate) fn recover(core: &mut Core, shared: &Shared) -> Result<RecoveryReport, StoreError> {
    let settings = &shared.settings;
    let root = &settings.store_path_root_dir;
    let abort = abort_path(root);
    let mut report = RecoveryReport { clean: !abort.exists(), ..RecoveryReport::default() };
    let boot = Boot::find(root);
    let checkpoint = Checkpoint::open(root)?;
    core.clear();
    core.log = CommitLog::load(
        LogFolders::new(settings)?,
        settings.mapped_file_size_commit_log,
        &mut report.notes,
    )?;
    load_queues(core, report.clean, &mut report.notes)?;
    let not_after = (!report.clean && !boot.is_same()).then_some(checkpoint.index_ms);
    let mut index = Index::load(settings, not_after, &mut report.notes)?;

    let mut deletions = Deletions::load(root)?;
    if core.log.files().is_empty() {
        // Offsets begin anew.
        deletions.settle(0, 0)?;
    }
    drop_dead_queues(core, &deletions, &mut report.notes);
    let mut recovery = Recovery {
        core,
        index: &mut index,
        shared,
        report: &mut report,
        now_ms: shared.now_ms(),
        last_timestamp: 0,
        deletions: &deletions,
        short: HashSet::new(),
    };
    let begin = recovery.run(&checkpoint)?;
    let last_timestamp = recovery.last_timestamp.max(checkpoint.physic_ms.min(recovery.now_ms));

    let end = core.log.max_offset() as i64;
    let flushed = if report.clean { end } else { begin as i64 };
    for file in core.log.files() {
        file.release_pages();
    }
    index.release_pages();
    core.last_timestamp = last_timestamp;
    finish_queues(core)?;
    report.min_offset = core.min_physical_offset();
    report.max_offset = end;
    report.queues = core.queues().len() as i64;
    deletions.settle(report.min_offset, end)?;
    *shared.deletions.lock() = deletions;
    shared.reset(end, flushed, last_timestamp);
    shared.ahead.reset();
    *shared.log_files.lock() = core.log.files().to_vec();
    *shared.index.lock() = index;
    shared.index_pending.lock().clear();
    *shared.checkpoint.lock() = Some(checkpoint);
    fs::File::create(&abort)
        .map_err(|error| StoreError::io(format!("creating {}", abort.display()), error))?;
    boot.remember();
    Ok(report)
}

/// The sub-folders of a folder by name; a missing folder has none.
fn sub_folders(
    folder: &std::path::Path,
    notes: &mut Vec<String>,
) -> Result<Vec<String>, StoreError> {
    let context = || format!("listing {}", folder.display());
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::io(context(), error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| StoreError::io(context(), error))?;
        match entry.file_name().into_string() {
            Ok(name) if entry.path().is_dir() => names.push(name),
            _ => notes.push(format!("ignored {}: not a queue", entry.path().display())),
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn load_queues(core: &mut Core, is_clean: bool, notes: &mut Vec<String>) -> Result<(), StoreError> {
    let settings = &core.shared.settings;
    let size = queue_file_size(settings.mapped_file_size_consume_queue);
    let root = settings.store_path_root_dir.join("consumequeue");
    for topic in sub_folders(&root, notes)? {
        for name in sub_folders(&root.join(&topic), notes)? {
            let folder = root.join(&topic).join(&name);
            let id = name.parse::<i32>().ok().filter(|&id| id >= 0 && id.to_string() == name);
            let (Some(id), Some(_)) = (id, topic_name(topic.as_bytes())) else {
                notes.push(format!("ignored {}: not a queue", folder.display()));
                continue;
            };
            let queue = ConsumeQueue::load(folder, size, is_clean, notes)?;
            core.add_queue(&topic, id, queue);
        }
    }
    Ok(())
}

/// Deletes what a kill in the middle of a deletion left: queues of an earlier life of their topic.
fn drop_dead_queues(core: &mut Core, deletions: &Deletions, notes: &mut Vec<String>) {
    for handle in core.handles() {
        let Some(slot) = core.slot_mut(handle).filter(|slot| slot.queue.has_files()) else {
            continue;
        };
        let end = deletions.end_of(slot.topic.name.as_bytes());
        if end > 0 && slot.queue.max_physical() <= end {
            notes.push(format!(
                "deleted the queue {} of {}: the topic was deleted",
                slot.queue_id, slot.topic.name
            ));
            slot.queue.delete();
        }
    }
}

/// Lets go of what recovery mapped, finds the min offsets, and lists what is to be flushed.
fn finish_queues(core: &mut Core) -> Result<(), StoreError> {
    let physical_min = core.min_physical_offset();
    for handle in core.handles() {
        if let Some(parts) = core.parts(handle) {
            parts.slot.queue.correct_min(physical_min)?;
            parts.slot.queue.unmap();
            if parts.slot.queue.is_dirty() {
                Core::mark_dirty(parts.dirty, parts.slot, handle.index);
            }
        }
    }
    Ok(())
}

struct Recovery<'a> {
    core: &'a mut Core,
    index: &'a mut Index,
    shared: &'a Shared,
    report: &'a mut RecoveryReport,
    now_ms: i64,
    last_timestamp: i64,
    deletions: &'a Deletions,
    /// Queues that lack entries from before the range that is read again.
    short: HashSet<QueueName>,
}

/// How a record relates to its queue.
enum Dispatched {
    /// Its entry is there, or it is of an earlier life of the queue.
    Known,
    /// Its entry was written.
    Written,
    /// Entries before it are missing.
    Gap,
}

impl Recovery<'_> {
    /// Brings everything into line; from where the log was read.
    fn run(&mut self, checkpoint: &Checkpoint) -> Result<u64, StoreError> {
        if self.core.log.files().is_empty() {
            return self.forget_everything().map(|()| 0);
        }
        let queues_end = self.queues_end();
        let first = self.core.log.min_offset();
        let begin = match queues_end {
            None => first,
            Some(_) if !self.report.clean => self.begin_after_crash(checkpoint),
            Some((handle, _)) => self.begin_after_stop(handle),
        };
        let (end, reason) = self.find_end(begin);
        self.report.scanned_bytes = (end - begin) as i64;
        // SAFETY: nobody reads the log before it is recovered; no view of it is alive here.
        let cut = unsafe { self.core.log.end_at(end, &mut self.report.notes) }?;
        self.report.truncated_bytes = cut as i64;
        if cut > 0 {
            self.report.notes.push(format!(
                "cut {cut} bytes off the log at {end}: no whole record there ({reason})"
            ));
        }
        let is_cut = self.truncate_queues(end as i64)?;
        self.index.truncate(end as i64, &mut self.report.notes);
        let dispatch_from = match queues_end {
            Some((_, physical)) if self.report.clean && !is_cut => (physical as u64).min(end),
            _ => begin,
        };
        let index_from = self.index_from(checkpoint, dispatch_from);
        self.dispatch(dispatch_from, index_from, begin)?;
        if !self.short.is_empty() {
            self.fill_short_queues(begin)?;
        }
        Ok(begin)
    }

    /// Without a log the queues and the index mean nothing.
    fn forget_everything(&mut self) -> Result<(), StoreError> {
        let handles = self.core.handles();
        for handle in handles {
            if let Some(slot) = self.core.slot_mut(handle).filter(|slot| slot.queue.has_files()) {
                self.report.notes.push(format!(
                    "deleted the queue {} of {}: the log is gone",
                    slot.queue_id, slot.topic.name
                ));
                slot.queue.delete();
            }
        }
        self.index.truncate(0, &mut self.report.notes);
        // SAFETY: there is no file, so no slice of one.
        unsafe { self.core.log.end_at(0, &mut self.report.notes) }.map(drop)
    }

    /// The queue with the newest entry, and the physical offset behind that entry's record.
    fn queues_end(&self) -> Option<(QueueHandle, i64)> {
        let handles = self.core.handles().into_iter();
        handles
            .filter_map(|handle| Some((handle, self.core.slot(handle)?.queue.max_physical())))
            .filter(|&(_, physical)| physical > 0)
            .max_by_key(|&(_, physical)| physical)
    }

    /// After a clean stop: the record of the newest queue entry, if it is there.
    fn begin_after_stop(&mut self, handle: QueueHandle) -> u64 {
        let files = self.core.log.files();
        let fallback = files[files.len().saturating_sub(FILES_READ)].start();
        let entry = self.core.slot_mut(handle).and_then(|slot| {
            let last = slot.queue.max() - 1;
            slot.queue.entry(last).ok().flatten()
        });
        let offset = entry.and_then(|entry| u64::try_from(entry.physical_offset).ok());
        offset
            .filter(|&offset| {
                self.core.log.file_of(offset).is_some_and(|file| {
                    let position = offset - file.start();
                    matches!(parse(file.data_from(position)), Parsed::Record(view)
                        if view.physical_offset as u64 == offset)
                })
            })
            .unwrap_or(fallback)
    }

    /// After a crash: the last file whose first record was stored before the checkpoint.
    fn begin_after_crash(&self, checkpoint: &Checkpoint) -> u64 {
        let settings = &self.shared.settings;
        let limit = if settings.message_index_enable && settings.message_index_safe {
            checkpoint.min_timestamp_index()
        } else {
            checkpoint.min_timestamp()
        };
        let is_before = |file: &&Arc<MappedFile>| {
            if file.data_from(0).len() < RECORD_SIZE_MIN {
                return false;
            }
            let host = if file.read_i32(36) & BORN_HOST_V6 == 0 { 8 } else { 20 };
            let timestamp = file.read_i64(48 + host);
            file.read_i32(4) == MESSAGE_MAGIC && timestamp != 0 && timestamp <= limit
        };
        let file = self.core.log.files().iter().rev().find(is_before);
        file.map_or(self.core.log.min_offset(), |file| file.start())
    }

    /// Reads records from `begin` to the first thing that is none: its offset, and what is wrong.
    fn find_end(&mut self, begin: u64) -> (u64, &'static str) {
        let check_crc = self.shared.settings.check_crc_on_recover;
        let mut at = begin;
        while let Some(file) = self.core.log.file_of(at) {
            let position = at - file.start();
            match parse(file.data_from(position)) {
                Parsed::Blank => at = file.end(),
                Parsed::Bad(reason) => return (at, reason),
                Parsed::Record(view) => {
                    if view.physical_offset as u64 != at {
                        return (at, "it is of another offset");
                    }
                    if check_crc && !view.is_crc_right() {
                        return (at, "the CRC of the body is wrong");
                    }
                    if view.topic.contains(&0) {
                        return (at, "its topic holds a zero byte");
                    }
                    if !self.report.clean && is_torn_text(file, position, &view) {
                        return (at, "the end of its properties was never written");
                    }
                    self.last_timestamp = self.last_timestamp.max(view.store_timestamp);
                    at += view.size as u64;
                }
            }
        }
        (at, "end of the files")
    }

    /// Drops entries of records behind the end of the log; whether there were any.
    fn truncate_queues(&mut self, end: i64) -> Result<bool, StoreError> {
        let mut is_cut = false;
        for handle in self.core.handles() {
            let Some(slot) = self.core.slot_mut(handle) else { continue };
            if slot.queue.max_physical() > end {
                let count = slot.queue.truncate(end)?;
                is_cut = true;
                self.report.notes.push(format!(
                    "dropped {count} entries of the queue {} of {}: the log ends before them",
                    slot.queue_id, slot.topic.name
                ));
            }
        }
        Ok(is_cut)
    }

    /// From where keys may be missing in the index; `u64::MAX`: nowhere.
    fn index_from(&mut self, checkpoint: &Checkpoint, dispatch_from: u64) -> u64 {
        if !self.index.is_enabled() {
            return u64::MAX;
        }
        let first = self.core.log.min_offset();
        let indexed_to = self.index.end_offset().and_then(|offset| u64::try_from(offset).ok());
        match indexed_to {
            // A clean stop leaves no key behind; messages without keys do not move the end.
            Some(offset) if self.report.clean => offset.max(dispatch_from),
            Some(offset) => offset.max(first),
            None if self.report.clean && checkpoint.index_ms == 0 => dispatch_from,
            None => first,
        }
    }

    /// Reads the log again: queue entries of records from `dispatch_from` on, keys of records from
    /// `index_from` on. Before `sound_from` the log was not checked.
    fn dispatch(
        &mut self,
        dispatch_from: u64,
        index_from: u64,
        sound_from: u64,
    ) -> Result<(), StoreError> {
        let log = std::mem::take(&mut self.core.log);
        let result = for_each_record(&log, dispatch_from.min(index_from), sound_from, |view| {
            let offset = view.physical_offset as u64;
            if offset >= dispatch_from && view.is_queued() {
                for (name, queue_offset) in self.places_of(view) {
                    if self.short.contains(&name) {
                        continue;
                    }
                    match self.dispatch_one(&name, queue_offset, view, false)? {
                        Dispatched::Known => {}
                        Dispatched::Written => self.report.dispatched += 1,
                        Dispatched::Gap => {
                            self.short.insert(name);
                        }
                    }
                }
            }
            if offset >= index_from {
                self.index_one(view);
            }
            Ok(())
        });
        self.core.log = log;
        result
    }

    /// Fills queues from the begin of the log.
    fn fill_short_queues(&mut self, sound_from: u64) -> Result<(), StoreError> {
        for (topic, queue_id) in &self.short {
            self.report.notes.push(format!(
                "filled the queue {queue_id} of {} from the begin of the log: entries were missing",
                String::from_utf8_lossy(topic)
            ));
        }
        let log = std::mem::take(&mut self.core.log);
        let result = for_each_record(&log, log.min_offset(), sound_from, |view| {
            if !view.is_queued() {
                return Ok(());
            }
            for (name, queue_offset) in self.places_of(view) {
                if self.short.contains(&name)
                    && matches!(
                        self.dispatch_one(&name, queue_offset, view, true)?,
                        Dispatched::Written
                    )
                {
                    self.report.dispatched += 1;
                }
            }
            Ok(())
        });
        self.core.log = log;
        result
    }

    /// The queues that a record has an entry in, and its queue offset there: its own first.
    fn places_of(&self, view: &RecordView<'_>) -> Vec<(QueueName, i64)> {
        let mut places = vec![((Box::from(view.topic), view.queue_id), view.queue_offset)];
        let settings = &self.shared.settings;
        if settings.enable_multi_dispatch {
            for ((topic, queue_id), queue_offset) in
                targets(view.properties, view.queue_id, settings.enable_lmq)
            {
                let name = (Box::from(topic.as_bytes()), queue_id);
                if !places.iter().any(|(known, _)| *known == name) {
                    places.push((name, queue_offset));
                }
            }
        }
        places
    }

    /// Writes a queue entry of a record if it is missing. With `fill` a gap before it is filled.
    fn dispatch_one(
        &mut self,
        name: &QueueName,
        queue_offset: i64,
        view: &RecordView<'_>,
        fill: bool,
    ) -> Result<Dispatched, StoreError> {
        if view.physical_offset < self.deletions.end_of(&name.0) {
            return Ok(Dispatched::Known);
        }
        let Some(handle) = self.queue_of(name) else { return Ok(Dispatched::Known) };
        let Some(slot) = self.core.slot_mut(handle) else { return Ok(Dispatched::Known) };
        let queue = &mut slot.queue;
        let entry = Entry {
            physical_offset: view.physical_offset,
            size: view.size as i32,
            tags_code: tags_code(view, &self.shared.settings.message_delay_level),
        };
        if queue_offset < queue.max() {
            let Some(known) = queue.entry(queue_offset)? else {
                return Ok(Dispatched::Known);
            };
            let is_damaged = !known.is_written()
                || known.is_pre_blank()
                || (known.physical_offset == entry.physical_offset && known.size != entry.size);
            if is_damaged {
                queue.rewrite(queue_offset, entry)?;
                return Ok(Dispatched::Written);
            }
            let is_new_life = queue_offset == 0
                && view.physical_offset >= queue.max_physical()
                && known.physical_offset != entry.physical_offset;
            if !is_new_life {
                return Ok(Dispatched::Known);
            }
            // The topic was deleted and made again: its queue began anew.
            queue.delete();
        }
        if view.physical_offset < queue.max_physical() {
            return Ok(Dispatched::Known);
        }
        if queue_offset > queue.max() {
            // Each entry before this one was of a record before this one.
            if queue_offset > view.physical_offset / RECORD_SIZE_MIN as i64 {
                self.report.notes.push(format!(
                    "left the record at {} out of its queue: it can't be at the offset {}",
                    view.physical_offset, queue_offset
                ));
                return Ok(Dispatched::Known);
            }
            if !fill {
                return Ok(Dispatched::Gap);
            }
            if queue.has_files() {
                queue.fill_to(queue_offset, self.shared)?;
            } else {
                queue.begin_at(queue_offset);
            }
        }
        queue.reserve(1, 0, self.shared)?;
        queue.push(entry);
        Ok(Dispatched::Written)
    }

    /// The queue of that name, made if it is missing; `None` when there can't be one.
    fn queue_of(&mut self, (topic, queue_id): &QueueName) -> Option<QueueHandle> {
        if let Some(handle) = self.core.find_queue(topic, *queue_id) {
            return Some(handle);
        }
        let topic = topic_name(topic).filter(|_| *queue_id >= 0)?;
        let folder = self.core.queue_folder(topic, *queue_id);
        let setting = self.shared.settings.mapped_file_size_consume_queue;
        let queue = ConsumeQueue::new(folder, queue_file_size(setting));
        Some(self.core.add_queue(topic, *queue_id, queue))
    }

    fn index_one(&mut self, view: &RecordView<'_>) {
        if view.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK {
            return;
        }
        let marks = Marks::scan(view.properties);
        if marks.uniq_key.is_none() && marks.keys.is_none() {
            return;
        }
        let topic_hash = crate::record::java_hash(&[view.topic, b"#"].concat());
        // Where the index ends the keys of one record may have been put in part.
        let is_edge = self.index.end_offset() == Some(view.physical_offset);
        let mut hashes = Vec::new();
        for_each_key(topic_hash, marks.uniq_key, marks.keys, |hash| hashes.push(hash));
        hashes.retain(|&hash| !is_edge || !self.index.contains(hash, view.physical_offset));
        self.report.indexed += i64::from(!hashes.is_empty());
        for hash in hashes {
            let key = PendingKey {
                hash,
                physical_offset: view.physical_offset,
                store_timestamp: view.store_timestamp,
            };
            self.index.put(&key, self.now_ms);
        }
    }
}

/// Calls `visit` with each record from `begin` to the end of the log. Before `sound_from`, where
/// nothing was checked, damage is stepped over to the next file.
fn for_each_record(
    log: &CommitLog,
    begin: u64,
    sound_from: u64,
    mut visit: impl FnMut(&RecordView<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut at = begin.max(log.min_offset());
    while at < log.max_offset() {
        let Some(file) = log.file_of(at) else { break };
        let position = at - file.start();
        match parse(file.bytes(position, (file.size() - position) as usize)) {
            Parsed::Record(view) if view.physical_offset as u64 == at => {
                visit(&view)?;
                at += view.size as u64;
            }
            _ if at < sound_from => at = file.end().min(sound_from),
            _ => at = file.end(),
        }
    }
    Ok(())
}

/// Whether the property text of a record ends in zeros that were never written. The CRC covers the
/// body only; no client ends its properties so, and that nothing follows makes it sure.
fn is_torn_text(file: &MappedFile, position: u64, view: &RecordView<'_>) -> bool {
    if view.properties.last() != Some(&0) {
        return false;
    }
    let behind = position + view.size as u64;
    let follows = parse(file.data_from(behind));
    matches!(follows, Parsed::Bad(_))
}

/// The tags code of a record's queue entry.
fn tags_code(view: &RecordView<'_>, delays_ms: &[i64]) -> i64 {
    let is_delayed = view.topic == SCHEDULE_TOPIC;
    let time = is_delayed
        .then(|| deliver_time(view.properties, view.store_timestamp, delays_ms))
        .flatten();
    time.unwrap_or_else(|| Marks::scan(view.properties).tags_code())
}
