//! Opening a store: finding the end of the log, and bringing queues and index into line with it.
//!
//! 1. The log is read from a point before which everything is known to be whole: after a clean stop
//!    the record of the newest queue entry; after a kill a little before it; after a crash of the
//!    machine what the checkpoint vouches for. The first thing that is not a whole record ends it;
//!    what is after is set aside where it holds records, and cleared. ([`walk`])
//! 2. Queue entries of records after that end are dropped.
//! 3. The log is read again, as far back as anything may be missing: queue entries that are missing
//!    or damaged are written, keys that are missing are indexed. A record that its queue knows
//!    otherwise than it says itself is damaged, and ends the log, too. ([`queues`])
//! 4. A queue that lacks entries from before that range is filled from the start of the log.
//!
//! Then each queue is dense, and each record of the log stands at its queue offset.

mod context;
mod disowned;
mod fill;
mod indexing;
mod load;
pub(crate) mod places;
mod queues;
pub(crate) mod report;
mod walk;

use std::fs;
use std::time::Instant;

use self::context::{QueueCheck, Recovery, believable};
use crate::error::{During, StoreError};
use crate::files::deletions::Deletions;
use crate::files::folder::{Boot, Checkpoint, abort_path, offset_name};
use crate::files::inventory::Inventory;
use crate::files::map_count::find_maps_max;
use crate::index::Index;
use crate::log::commit_log::CommitLog;
use crate::log::folders::LogFolders;
use crate::recovery::report::RecoveryReport;
use crate::shared::Shared;
use crate::state::Core;
use crate::state::types::QueueHandle;

/// Files of the log that are read after a clean stop when the queues do not report where it ends.
const FILES_READ: usize = 3;

/// Loads and recovers; leaves the core ready, but not open.
pub(crate) fn recover(core: &mut Core, shared: &Shared) -> Result<RecoveryReport, StoreError> {
    let started = Instant::now();
    find_maps_max();
    let settings = &shared.settings;
    let root = &settings.store_path_root_dir;
    let abort = abort_path(root);
    let boot = Boot::find(root);
    let clean = !abort.exists();
    let mut report =
        RecoveryReport { clean, same_boot: !clean && boot.is_same(), ..RecoveryReport::default() };
    let mut checkpoint = Checkpoint::open(root)?;
    core.clear();
    core.log = CommitLog::load(
        LogFolders::new(settings)?,
        settings.mapped_file_size_commit_log,
        !report.clean,
        &mut report.notes,
    )?;
    let mut deletions = Deletions::load(root, report.clean)?;
    if core.log.files().is_empty() {
        // Offsets start anew.
        deletions.prune(0, 0)?;
    }
    let mut index = Index::default();
    let now_ms = shared.now_ms();
    let inventory = Inventory::load(root);
    let mut recovery = Recovery {
        core,
        index: &mut index,
        shared,
        report: &mut report,
        now_ms,
        deletions: &deletions,
        check: QueueCheck::default(),
        inventory,
    };
    recovery.load_queues()?;
    recovery.check_end()?;
    recovery.load_index(&checkpoint)?;
    fs::File::create(&abort).during("creating", &abort)?;
    let found = recovery.run(&mut checkpoint)?;

    if !report.clean && !report.same_boot {
        core.log.dirty_again(found.flushed)?;
    }
    let end = core.log.max_offset() as i64;
    core.log.files().iter().for_each(|file| file.release_pages());
    index.release_pages();
    deletions.prune(core.min_physical_offset(), end)?;
    core.last_timestamp = found.last_timestamp;
    finish_queues(core)?;
    report.min_offset = core.min_physical_offset();
    report.max_offset = end;
    report.queues = core.queues().len() as i64;
    report.duration_ms = started.elapsed().as_millis() as i64;
    *shared.deletions.lock() = deletions;
    *shared.index.lock() = index;
    *shared.checkpoint.lock() = Some(checkpoint);
    hand_over(core, shared, &found);
    boot.remember();
    Ok(report)
}

/// Lets the threads of the store go on from what was found.
fn hand_over(core: &Core, shared: &Shared, found: &Found) {
    shared.reset(core.log.max_offset() as i64, found.flushed as i64, found.last_timestamp);
    shared.preallocator.reset();
    *shared.log_files.lock() = core.log.files().to_vec();
    shared.index_pending.lock().clear();
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

/// What the store goes on from.
#[derive(Default)]
struct Found {
    /// Before this physical offset the log is on the disk.
    flushed: u64,
    /// Store timestamp that the next record is not to fall behind.
    last_timestamp: i64,
}

impl Recovery<'_> {
    /// Refuses a log that ended after its last file when it was closed: entries of what is in the
    /// missing file would be dropped, and others put in their place.
    fn check_end(&self) -> Result<(), StoreError> {
        let queues_end = || {
            let handle = self.newest_queue();
            handle.and_then(|handle| self.core.slot(handle)).map_or(0, |s| s.queue.max_physical())
        };
        let closed_at = self.inventory.as_ref().map_or_else(queues_end, |seen| seen.log_end) as u64;
        let end = self.core.log.files().last().map_or(0, |file| file.end());
        if !self.report.clean || closed_at <= end {
            return Ok(());
        }
        let size = self.shared.settings.mapped_file_size_commit_log;
        Err(StoreError::InvalidData(format!(
            "the commit log was closed at {closed_at}, and its files end at {end}: the file {} is \
             missing; bring it back (is one of its folders not mounted, or missing in \
             storePathCommitLog or readOnlyCommitLogStorePaths?), or, to give up the messages \
             behind {end}, make an empty file {}",
            offset_name((closed_at - 1) / size * size),
            abort_path(&self.shared.settings.store_path_root_dir).display()
        )))
    }

    /// Loads the index, without the files that can't be trusted.
    fn load_index(&mut self, checkpoint: &Checkpoint) -> Result<(), StoreError> {
        let is_whole = self.report.clean || self.report.same_boot;
        let not_after = (!is_whole).then_some(checkpoint.index_ms);
        let known = self.inventory.as_ref().map_or(&[][..], |inventory| &inventory.index);
        let before = self.report.notes.len();
        *self.index = Index::load(
            &self.shared.settings,
            not_after,
            self.report.clean,
            known,
            self.core.log.min_offset() as i64,
            &mut self.report.notes,
        )?;
        self.report.removed_index_files += (self.report.notes.len() - before) as i64;
        Ok(())
    }

    /// Brings everything into line.
    fn run(&mut self, checkpoint: &mut Checkpoint) -> Result<Found, StoreError> {
        if self.core.log.files().is_empty() {
            self.forget_everything()?;
            return Ok(Found { flushed: 0, last_timestamp: self.believable(checkpoint.physic_ms) });
        }
        let newest = self.newest_queue();
        let durable = newest.map_or(self.core.log.min_offset(), |handle| {
            self.start_by_checkpoint(handle, checkpoint)
        });
        let begin = match newest {
            Some(handle) if self.report.clean => self.start_after_stop(handle),
            Some(handle) if self.report.same_boot => self.start_by_redo(handle).max(durable),
            _ => durable,
        };
        let check_crc = self.shared.settings.check_crc_on_recover;
        let found = walk::walk(&self.core.log, begin, check_crc, !self.report.clean);
        self.report.begin_offset = begin as i64;
        self.report.records = found.records;
        self.report.scanned_bytes = (found.end - begin) as i64;
        let queues_end = newest.and_then(|handle| self.core.slot(handle));
        let queues_end = queues_end.map_or(0, |slot| slot.queue.max_physical() as u64);
        let is_cut = self.end_at(found.end, found.reason)?;
        self.compare_queues(begin as i64)?;
        let dispatch_from = match newest {
            Some(_) if self.report.clean && !is_cut => queues_end.min(found.end),
            _ => begin,
        };
        self.distrust_index(checkpoint)?;
        let index_from = self.index_from(checkpoint, dispatch_from);
        self.dispatch(dispatch_from, index_from, begin)?;
        if !self.report.clean
            && let Some(damaged) = self.find_disowned(dispatch_from)?
        {
            self.end_at(damaged, "its queue knows the record there otherwise")?;
            self.distrust_index(checkpoint)?;
            self.index_records(self.index_from(checkpoint, dispatch_from), begin);
        }
        if self.has_short_queues() {
            self.fill_short_queues(begin)?;
        }
        if self.report.dispatched > 0 {
            let count = self.report.dispatched;
            self.report
                .notes
                .push(format!("wrote {count} queue entries that were missing or wrong"));
        }
        let end = self.core.log.max_offset();
        let flushed = if self.report.clean { end } else { durable.min(end) };
        // Only a crash damages times.
        let of_log = found.last_timestamp;
        let of_log = if self.report.clean { of_log } else { self.believable(of_log) };
        let last_timestamp = of_log.max(self.believable(checkpoint.physic_ms));
        Ok(Found { flushed, last_timestamp })
    }

    /// A time that is not far ahead of the clock; one that is would hold all later ones up.
    /// RocketMQ lets times fall behind over a restart.
    fn believable(&self, timestamp: i64) -> i64 {
        believable(timestamp, self.now_ms)
    }

    /// Ends the log at an offset, and queues and index with it; whether entries were dropped.
    fn end_at(&mut self, end: u64, reason: &str) -> Result<bool, StoreError> {
        // SAFETY: nobody reads the log before it is recovered; no view of it is alive here.
        let cut = unsafe { self.core.log.end_at(end, &mut self.report.notes) }?;
        self.report.truncated_bytes += cut.bytes as i64;
        self.report.set_aside_files += cut.files_set_aside;
        if cut.bytes > 0 {
            self.report.notes.push(format!(
                "cut {} bytes off the log at {end}: no whole record there ({reason})",
                cut.bytes
            ));
        }
        let before = self.report.notes.len();
        self.index.truncate(end as i64, &mut self.report.notes);
        self.report.removed_index_files += (self.report.notes.len() - before) as i64;
        self.truncate_queues(end as i64)
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

    /// The queue with the newest entry.
    fn newest_queue(&self) -> Option<QueueHandle> {
        let handles = self.core.handles().into_iter();
        handles
            .filter_map(|handle| Some((handle, self.core.slot(handle)?.queue.max_physical())))
            .filter(|&(_, physical)| physical > 0)
            .max_by_key(|&(_, physical)| physical)
            .map(|(handle, _)| handle)
    }

    fn start_by_checkpoint(&mut self, newest: QueueHandle, checkpoint: &Checkpoint) -> u64 {
        let settings = &self.shared.settings;
        let with_index = settings.message_index_enable && settings.message_index_safe;
        let now_ms = self.now_ms;
        self.core.parts(newest).map_or(0, |parts| {
            let queue = &mut parts.slot.queue;
            walk::start_by_checkpoint(parts.log, queue, checkpoint, now_ms, with_index)
        })
    }

    fn start_by_redo(&mut self, newest: QueueHandle) -> u64 {
        let parts = self.core.parts(newest);
        parts.map_or(0, |parts| walk::start_by_redo(parts.log, &mut parts.slot.queue))
    }

    /// After a clean stop: the record of the newest queue entry, if it is there.
    fn start_after_stop(&mut self, handle: QueueHandle) -> u64 {
        let files = self.core.log.files();
        let fallback = files[files.len().saturating_sub(FILES_READ)].start();
        let entry = self.core.slot_mut(handle).and_then(|slot| {
            let last = slot.queue.max() - 1;
            slot.queue.entry(last).ok().flatten()
        });
        let record = entry.and_then(|entry| self.core.log.record_in_files(entry.physical_offset));
        record.map_or(fallback, |view| view.physical_offset as u64)
    }

    /// Drops entries of records after the end of the log; whether there were any.
    fn truncate_queues(&mut self, end: i64) -> Result<bool, StoreError> {
        let mut is_cut = false;
        for handle in self.core.handles() {
            let Some(slot) = self.core.slot_mut(handle) else { continue };
            if slot.queue.max_physical() > end {
                let count = slot.queue.truncate(end)?;
                is_cut = true;
                self.report.cut_entries += count;
                self.report.notes.push(format!(
                    "dropped {count} entries of the queue {} of {}: the log ends before them",
                    slot.queue_id, slot.topic.name
                ));
            }
        }
        Ok(is_cut)
    }

    /// Takes back what the checkpoint says of index files that were removed: what is built again is
    /// of old records, and not on the disk for that.
    fn distrust_index(&self, checkpoint: &mut Checkpoint) -> Result<(), StoreError> {
        let known = self.index.end_timestamp().unwrap_or(0);
        if self.index.is_enabled() && self.index.is_cut && known < checkpoint.index_ms {
            checkpoint.index_ms = known;
            checkpoint.save()?;
        }
        Ok(())
    }

    /// From where keys may be missing in the index; `u64::MAX`: nowhere.
    fn index_from(&self, checkpoint: &Checkpoint, dispatch_from: u64) -> u64 {
        if !self.index.is_enabled() {
            return u64::MAX;
        }
        let first = self.core.log.min_offset();
        let indexed_to = self.index.end_offset().and_then(|offset| u64::try_from(offset).ok());
        match indexed_to {
            // A clean stop leaves no key behind; messages without keys do not move the end.
            Some(offset) if self.report.clean && !self.index.is_cut => offset.max(dispatch_from),
            Some(offset) => offset.max(first),
            None if self.report.clean && !self.index.is_cut && checkpoint.index_ms == 0 => {
                dispatch_from
            }
            None => first,
        }
    }
}
