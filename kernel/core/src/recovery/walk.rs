//! Reading the log: where reading starts, and where the records end.
//!
//! The lengths are followed one record after the other; the bodies' CRCs, which are nearly all of
//! the work, are then checked in several threads, window by window.

use crate::protocol::{BORN_HOST_V6, MESSAGE_MAGIC, RECORD_BYTES_MIN};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::files::folder::Checkpoint;
use crate::files::map::MappedFile;
use crate::files::threads::in_threads;
use crate::log::commit_log::CommitLog;
use crate::queues::consume_queue::ConsumeQueue;
use crate::record::{Parsed, RecordView, parse};

/// Bytes of the log whose CRCs are checked before reading goes on.
const WINDOW: u64 = 128 << 20;
/// Bytes of the log that one thread checks at a time.
const SEGMENT: u64 = 2 << 20;
/// More than one append writes: a killed process tore nothing that lies further back.
const REDO_BYTES: i64 = 32 << 20;

/// What reading the log gave.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Walk {
    /// Physical offset after the last whole record.
    pub(super) end: u64,
    /// What is wrong there.
    pub(super) reason: &'static str,
    pub(super) records: i64,
    /// Store timestamp of the last record; 0 without any.
    pub(super) last_timestamp: i64,
}

/// Reads records from `begin` to the first thing that is none. `may_be_torn`: after a crash.
pub(super) fn walk(log: &CommitLog, begin: u64, check_crc: bool, may_be_torn: bool) -> Walk {
    let mut walk = Walk { end: begin, ..Walk::default() };
    let mut segments = Vec::new();
    loop {
        segments.clear();
        let goes_on = walk_window(log, may_be_torn, &mut walk, &mut segments);
        if let Some(bad) = check_crc.then(|| first_bad_crc(log, &segments)).flatten() {
            return Walk { end: bad, reason: "the CRC of the body is wrong", ..walk };
        }
        if !goes_on {
            return walk;
        }
    }
}

/// Follows the lengths of the records of one window; false at the end.
fn walk_window(
    log: &CommitLog,
    may_be_torn: bool,
    walk: &mut Walk,
    segments: &mut Vec<Range<u64>>,
) -> bool {
    let limit = walk.end.saturating_add(WINDOW);
    let mut begin = walk.end;
    while walk.end < limit {
        let at = walk.end;
        let Some(file) = log.file_of(at) else {
            walk.reason = "end of the files";
            break;
        };
        match whole_record(file, at, may_be_torn) {
            Ok(Some(view)) => {
                walk.records += 1;
                walk.last_timestamp = view.store_timestamp;
                walk.end += view.size as u64;
                if walk.end - begin >= SEGMENT {
                    segments.push(begin..walk.end);
                    begin = walk.end;
                }
            }
            Ok(None) => {
                segments.push(begin..at);
                walk.end = file.end();
                begin = walk.end;
            }
            Err(reason) => {
                walk.reason = reason;
                break;
            }
        }
    }
    segments.push(begin..walk.end);
    walk.reason.is_empty()
}

/// The record at an offset, its CRC not checked; `Ok(None)` is the blank at the end of the file.
fn whole_record(
    file: &MappedFile,
    offset: u64,
    may_be_torn: bool,
) -> Result<Option<RecordView<'_>>, &'static str> {
    let position = offset - file.start();
    let view = match parse(file.data_from(position)) {
        Parsed::Blank => return Ok(None),
        Parsed::Bad(reason) => return Err(reason),
        Parsed::Record(view) => view,
    };
    if view.physical_offset as u64 != offset {
        return Err("it is of another offset");
    }
    if view.topic.is_empty() || view.topic.contains(&0) {
        return Err("it has no topic");
    }
    if may_be_torn && is_torn_text(file, position, &view) {
        return Err("the end of its properties was never written");
    }
    Ok(Some(view))
}

/// Whether the property text of a record ends in zeros that were never written. The CRC covers the
/// body only; no client ends its properties so, and that nothing follows makes it sure.
fn is_torn_text(file: &MappedFile, position: u64, view: &RecordView<'_>) -> bool {
    if view.properties.last() != Some(&0) {
        return false;
    }
    let after = position + view.size as u64;
    let follows = parse(file.data_from(after));
    matches!(follows, Parsed::Bad(_))
}

/// Checks the CRCs of segments of whole records in several threads; the offset of the first record
/// whose body is not what its CRC says.
fn first_bad_crc(log: &CommitLog, segments: &[Range<u64>]) -> Option<u64> {
    let (next, first_bad) = (AtomicUsize::new(0), AtomicU64::new(u64::MAX));
    let work = || {
        while let Some(segment) = segments.get(next.fetch_add(1, Ordering::Relaxed)) {
            if segment.start >= first_bad.load(Ordering::Relaxed) {
                return;
            }
            if let Some(offset) = bad_crc_in(log, segment) {
                first_bad.fetch_min(offset, Ordering::Relaxed);
                return;
            }
        }
    };
    in_threads(segments.len(), work);
    let offset = first_bad.load(Ordering::Relaxed);
    (offset != u64::MAX).then_some(offset)
}

fn bad_crc_in(log: &CommitLog, segment: &Range<u64>) -> Option<u64> {
    let mut at = segment.start;
    while at < segment.end {
        let file = log.file_of(at)?;
        match parse(file.data_from(at - file.start())) {
            Parsed::Record(view) if view.is_crc_right() => at += view.size as u64,
            _ => return Some(at),
        }
    }
    None
}

/// Calls `visit` with each record from `begin` to the end of the log. Before `checked_from`, where
/// nothing was checked, damage is stepped over to the next file.
pub(super) fn for_each_record<E>(
    log: &CommitLog,
    begin: u64,
    checked_from: u64,
    mut visit: impl FnMut(&RecordView<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut at = begin.max(log.min_offset());
    while at < log.max_offset() {
        let Some(file) = log.file_of(at) else { break };
        let position = at - file.start();
        match parse(file.bytes(position, (file.size() - position) as usize)) {
            Parsed::Record(view) if view.physical_offset as u64 == at => {
                visit(&view)?;
                at += view.size as u64;
            }
            _ if at < checked_from => at = file.end().min(checked_from),
            _ => at = file.end(),
        }
    }
    Ok(())
}

/// The start of the last file before which all was stored before `limit_ms`.
///
/// The times of two files have to say so: the CRC of a record does not cover its time, and one that
/// is wrong must not hide what has to be read.
pub(super) fn file_before(log: &CommitLog, limit_ms: i64) -> u64 {
    let is_before = |file: &Arc<MappedFile>| {
        if file.data_from(0).len() < RECORD_BYTES_MIN {
            return false;
        }
        let host = if file.read_i32(36) & BORN_HOST_V6 == 0 { 8 } else { 20 };
        let timestamp = file.read_i64(48 + host);
        file.read_i32(4) == MESSAGE_MAGIC && timestamp > 0 && timestamp <= limit_ms
    };
    let files = log.files();
    (0..files.len())
        .rev()
        .find(|&index| is_before(&files[index]) && (index == 0 || is_before(&files[index - 1])))
        .map_or(log.min_offset(), |index| files[index].start())
}

/// A record of a queue that stands before where reading has to start, as near to it as the queue
/// tells; `None` when it has none, or no whole record stands there.
pub(super) fn record_before(
    log: &CommitLog,
    queue: &mut ConsumeQueue,
    mut is_after: impl FnMut(&CommitLog, i64) -> bool,
) -> Option<u64> {
    let (mut low, mut high) = (queue.min(), queue.max());
    while low < high {
        let middle = low + (high - low) / 2;
        let entry = queue.entry(middle).ok().flatten()?;
        if is_after(log, entry.physical_offset) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let entry = queue.entry(low - 1).ok().flatten()?;
    let view = log.record_in_files(entry.physical_offset)?;
    (view.size as i32 == entry.size).then_some(view.physical_offset as u64)
}

/// Where reading starts after a crash of the machine, or of a store that is not known: before what
/// the checkpoint does not vouch for. `newest`: the queue with the newest entry.
pub(super) fn start_by_checkpoint(
    log: &CommitLog,
    newest: &mut ConsumeQueue,
    checkpoint: &Checkpoint,
    now_ms: i64,
    with_index: bool,
) -> u64 {
    let limit = checkpoint.safe_timestamp(now_ms, with_index);
    let file = file_before(log, limit);
    if limit <= 0 {
        return file;
    }
    let is_later = |log: &CommitLog, offset| {
        log.record_in_files(offset).is_none_or(|view| view.store_timestamp > limit)
    };
    let record = record_before(log, newest, is_later);
    record.unwrap_or(0).max(file)
}

/// Where reading starts after a kill, the machine having run on: nothing written is lost, and only
/// what the last append wrote may be torn.
pub(super) fn start_by_redo(log: &CommitLog, newest: &mut ConsumeQueue) -> u64 {
    let redo = newest.max_physical() - REDO_BYTES;
    if redo <= log.min_offset() as i64 {
        return log.min_offset();
    }
    record_before(log, newest, |_, offset| offset > redo).unwrap_or(0)
}
