//! Reading: pulls of a queue, records by offset, key and time.

use crate::error::GetStatus;
use crate::index::key_hash;
use crate::log::commit_log::CommitLog;
use crate::memory::prefetch;
use crate::queues::entry::{ENTRY_SIZE, Entry};
use crate::queues::queue_ext::{ExtUnit, Filter};
use crate::record::{RecordView, java_hash, properties, store_time_of};
use crate::state::Core;
use crate::state::types::{QueueHandle, QueuedValues, ReadOutcome};

/// Bytes of queue entries that one read examines, at least.
const SCAN_BYTES: usize = 16_000;
/// Rounds in which a query by key goes back in time when no record of a round exists any more.
const QUERY_ROUNDS: usize = 3;

/// Of records in one answer by key: it has to fit a frame, and others wait while it is made.
const QUERY_BYTES_MAX: usize = 8 << 20;

impl Core {
    /// `getMessage` of RocketMQ; raw records are appended to `answer`, whose content before stays.
    /// (No queue at all is the caller's case: `NoMessageInQueue`, 0.)
    pub fn read_into(
        &mut self,
        queue: QueueHandle,
        offset: i64,
        max_count: usize,
        filter: Filter<'_>,
        answer: &mut Vec<u8>,
    ) -> ReadOutcome {
        let begin = coarse_ms();
        let mut outcome = self.read(queue, offset, max_count, filter, answer);
        outcome.milliseconds = coarse_ms().abs_diff(begin);
        self.stats.get_time_max_ms = self.stats.get_time_max_ms.max(outcome.milliseconds);
        if outcome.status == GetStatus::Found {
            self.stats.get_found += 1;
            self.stats.get_count += u64::from(outcome.count);
            self.stats.get_bytes += outcome.bytes as u64;
            if self.shared.settings.latency_recorded {
                let records = &answer[answer.len() - outcome.bytes..];
                outcome.waited_ms =
                    store_time_of(records).map_or(-1, |stored| (self.now_ms - stored).max(0));
            }
        } else {
            self.stats.get_miss += 1;
        }
        outcome
    }

    /// Of what was read so much is given to nobody.
    pub fn note_not_given(&mut self, count: u32, bytes: usize) {
        self.stats.get_count -= u64::from(count);
        self.stats.get_bytes -= bytes as u64;
    }

    /// Counts how long the messages of a group's read had waited.
    #[inline]
    pub fn note_delivery(&self, outcome: &ReadOutcome) {
        if outcome.waited_ms >= 0 {
            self.shared.delivery_times.note(outcome.waited_ms as u64 * 1_000);
        }
    }

    fn read(
        &mut self,
        queue: QueueHandle,
        offset: i64,
        max_count: usize,
        filter: Filter<'_>,
        answer: &mut Vec<u8>,
    ) -> ReadOutcome {
        let status = GetStatus::NoMatchedLogicQueue;
        let mut outcome = ReadOutcome { status, ..ReadOutcome::NO_QUEUE };
        let limits = Limits::new(&self.shared.settings, max_count);
        let memory_bytes = self.memory_bytes;
        let visible = self.visible();
        let Some(parts) = self.parts(queue) else { return outcome };
        let (queue, log) = (&mut parts.slot.queue, &*parts.log);
        let readable = log.readable() as i64;
        (outcome.min_offset, outcome.max_offset) = (queue.min(), queue.readable_max(visible));
        (outcome.status, outcome.next_offset) = match offset {
            _ if outcome.max_offset == 0 => (GetStatus::NoMessageInQueue, 0),
            _ if offset < outcome.min_offset => (GetStatus::OffsetTooSmall, outcome.min_offset),
            _ if offset == outcome.max_offset => (GetStatus::OffsetOverflowOne, offset),
            _ if offset > outcome.max_offset => {
                let end = if queue.began_anew { outcome.min_offset } else { outcome.max_offset };
                (GetStatus::OffsetOverflowBadly, end)
            }
            _ => (GetStatus::NoMatchedMessage, offset),
        };
        if outcome.status != GetStatus::NoMatchedMessage {
            return outcome;
        }
        let next_file = queue.roll_next_file(offset);
        let (mut tag_codes, mut judged) = (filter.tag_codes, None);
        if queue.ext.is_some() && (tag_codes.is_some() || filter.bits.is_some()) {
            judged = queue.judged_entries(offset, limits.scan_count, &filter).ok();
            tag_codes = judged.is_some().then_some(&[0]);
        }
        let entries = match judged.as_deref().map_or_else(|| queue.entries(offset), Ok) {
            Ok(entries) if !entries.is_empty() => {
                &entries[..entries.len().min((outcome.max_offset - offset) as usize)]
            }
            // The file can't be mapped or is gone.
            _ => {
                outcome.status = GetStatus::OffsetFoundNull;
                outcome.next_offset = next_file;
                return outcome;
            }
        };
        let begin = answer.len();
        let scan = Scan { log, limits, tag_codes, end_offset: readable, memory_bytes };
        let (status, count, looked_at, last_offset) = scan.run(entries, answer);
        (outcome.status, outcome.count) = (status, count);
        outcome.next_offset = offset + looked_at;
        outcome.bytes = answer.len() - begin;
        outcome.lag = readable.saturating_sub(last_offset);
        outcome.suggest_slave = outcome.lag > memory_bytes;
        outcome
    }

    /// (physical offset, size, tags code) of a queue entry.
    pub fn queue_entry(
        &mut self,
        topic: &[u8],
        queue_id: i32,
        offset: i64,
    ) -> Option<(i64, i32, i64)> {
        let handle = self.find_queue(topic, queue_id)?;
        let entry = self.entry(handle, offset)?;
        let entry = self.slot_mut(handle)?.queue.with_tags_code(entry);
        Some((entry.physical_offset, entry.size, entry.tags_code))
    }

    /// The unit beside a queue entry; `None` when it has none.
    pub fn queue_unit(&mut self, topic: &[u8], queue_id: i32, offset: i64) -> Option<ExtUnit> {
        let handle = self.find_queue(topic, queue_id)?;
        let entry = self.entry(handle, offset)?;
        self.slot_mut(handle)?.queue.ext.as_mut()?.get(entry.tags_code)
    }

    fn entry(&mut self, handle: QueueHandle, offset: i64) -> Option<Entry> {
        let readable = self.log.readable() as i64;
        let queue = &mut self.slot_mut(handle)?.queue;
        if offset < queue.min() {
            return None;
        }
        let entry = queue.entry(offset).ok().flatten()?;
        (entry.physical_offset < readable || entry.is_pre_blank()).then_some(entry)
    }

    /// The record that an entry of a queue names; `None` when there is none.
    pub fn queued_record(&mut self, queue: QueueHandle, offset: i64) -> Option<RecordView<'_>> {
        let entry = self.entry(queue, offset)?;
        self.log.record(entry.physical_offset).map(|(view, _)| view)
    }

    /// Entries of a queue from an offset on, up to `count`, with the values of some properties of
    /// their records; those that can't be read are left out.
    pub fn queued_values(
        &mut self,
        (topic, queue_id): (&[u8], i32),
        offset: i64,
        count: i64,
        names: &[&[u8]],
    ) -> Vec<QueuedValues> {
        let mut found = Vec::new();
        let Some(queue) = self.find_queue(topic, queue_id) else { return found };
        let (low, high) = self.readable_bounds(queue);
        for queue_offset in offset.max(low)..offset.saturating_add(count).min(high) {
            let Some(entry) = self.entry(queue, queue_offset) else { continue };
            let values = self.log.record(entry.physical_offset).map(|(view, _)| {
                let mut values = vec![None; names.len()];
                for (name, value) in properties(view.properties) {
                    if let Some(at) = names.iter().position(|known| *known == name) {
                        values[at] = Some(value.to_vec());
                    }
                }
                values
            });
            found.push(QueuedValues {
                queue_offset,
                physical_offset: entry.physical_offset,
                size: entry.size,
                values,
            });
        }
        found
    }

    /// The record that starts at a physical offset.
    #[must_use]
    pub fn record(&self, physical_offset: i64) -> Option<RecordView<'_>> {
        self.log.record(physical_offset).map(|(view, _)| view)
    }

    /// The record that starts at a physical offset, appended to `answer`; false when none does.
    pub fn lookup_into(&mut self, physical_offset: i64, answer: &mut Vec<u8>) -> bool {
        match self.log.record(physical_offset) {
            Some((_, bytes)) => {
                answer.extend_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    /// (index last update timestamp, its physical offset); records are appended to `answer`, in log
    /// order. At most `max_count` and `max_msgs_num_batch`, the newest of more than
    /// `QUERY_BYTES_MAX`; times count in whole seconds.
    pub fn query_key_into(
        &mut self,
        topic: &[u8],
        key: &[u8],
        max_count: usize,
        begin_ms: i64,
        end_ms: i64,
        answer: &mut Vec<u8>,
    ) -> (i64, i64) {
        self.hand_over_keys();
        self.shared.drain_index(usize::MAX);
        let max_count = max_count.min(self.shared.settings.max_msgs_num_batch);
        let hash = key_hash(java_hash(&[topic, b"#"].concat()), key);
        let begin = answer.len();
        let mut last_update = (0, 0);
        let mut round_end = end_ms;
        for _ in 0..QUERY_ROUNDS {
            let (mut offsets, timestamp, offset) =
                self.shared.index.lock().query(hash, max_count, begin_ms, round_end);
            if offsets.is_empty() {
                break;
            }
            last_update = (timestamp, offset);
            offsets.sort_unstable();
            if let Some((view, _)) = self.log.record(offsets[0]) {
                round_end = view.store_timestamp;
            }
            let first = self.first_that_fits(&offsets);
            for &offset in &offsets[first..] {
                if let Some((_, bytes)) = self.log.record(offset) {
                    answer.extend_from_slice(bytes);
                }
            }
            if answer.len() > begin || round_end < begin_ms {
                break;
            }
        }
        last_update
    }

    /// From which of these records on all others fit an answer; the last record always does.
    fn first_that_fits(&mut self, offsets: &[i64]) -> usize {
        let mut size = 0;
        for (number, &offset) in offsets.iter().enumerate().rev() {
            let length = self.log.record(offset).map_or(0, |(_, bytes)| bytes.len());
            if size > 0 && size + length > QUERY_BYTES_MAX {
                return number + 1;
            }
            size += length;
        }
        0
    }

    /// `getOffsetInQueueByTime`: in the first queue file whose last message is not older (else the
    /// last file) the message of that store timestamp, else the one nearest to it; 0 when there is
    /// no queue. Of several with that time it is the one that RocketMQ's search by halves meets.
    pub fn offset_by_time(&mut self, topic: &[u8], queue_id: i32, timestamp_ms: i64) -> i64 {
        let Some(handle) = self.find_queue(topic, queue_id) else { return 0 };
        let physical_min = self.min_physical_offset();
        let (start, mut low, mut high) = self.file_by_time(handle, timestamp_ms);
        let mut left: Option<(i64, i64)> = None;
        let mut right: Option<(i64, i64)> = None;
        while high >= low {
            let middle = start + (low - start + high - start) / 2;
            let Some(entry) = self.entry(handle, middle) else { return 0 };
            if entry.physical_offset < physical_min || entry.is_pre_blank() {
                low = middle + 1;
                left = Some((middle, -1));
                continue;
            }
            let time = self.log.store_timestamp(entry.physical_offset);
            match time {
                ..0 => return 0,
                _ if time == timestamp_ms => return middle,
                _ if time > timestamp_ms => {
                    high = middle - 1;
                    right = Some((middle, time));
                }
                _ => {
                    low = middle + 1;
                    left = Some((middle, time));
                }
            }
        }
        match (left.filter(|&(_, time)| time >= 0), right) {
            (Some((left, before)), Some((right, after))) => {
                let is_right_nearer = (timestamp_ms - before).abs() > (timestamp_ms - after).abs();
                if is_right_nearer { right } else { left }
            }
            (None, Some((right, _))) => right,
            (Some((left, _)), None) => left,
            (None, None) => left.map_or(0, |(left, _)| left),
        }
    }

    /// The queue file to search: (offset where it starts, first and last offset to examine).
    fn file_by_time(&mut self, handle: QueueHandle, timestamp_ms: i64) -> (i64, i64, i64) {
        let (min, max) = self.readable_bounds(handle);
        let Some(slot) = self.slot(handle) else { return (0, 0, -1) };
        let mut end = slot.queue.roll_next_file(min);
        let per_file = slot.queue.entries_per_file();
        while end < max {
            let time = self
                .entry(handle, end - 1)
                .map_or(-1, |entry| self.log.store_timestamp(entry.physical_offset));
            if time >= timestamp_ms {
                break;
            }
            end += per_file;
        }
        let start = end - per_file;
        (start, min.max(start), max.min(end) - 1)
    }

    /// Store timestamp of the message at a queue offset; -1 when there is none.
    pub fn store_time(&mut self, topic: &[u8], queue_id: i32, offset: i64) -> i64 {
        let entry = self.find_queue(topic, queue_id).and_then(|queue| self.entry(queue, offset));
        entry.map_or(-1, |entry| self.log.store_timestamp(entry.physical_offset))
    }
}

/// Milliseconds of a clock that costs next to nothing and moves every few of them.
#[inline]
fn coarse_ms() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid through the call; a failure leaves zeros.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    time.tv_sec.unsigned_abs() * 1_000 + time.tv_nsec.unsigned_abs() / 1_000_000
}

/// One pass over the entries of a queue.
struct Scan<'a> {
    log: &'a CommitLog,
    limits: Limits,
    tag_codes: Option<&'a [i32]>,
    /// Physical offset after the last record that can be read.
    end_offset: i64,
    /// Records in so many bytes before it are taken to be in memory.
    memory_bytes: i64,
}

impl Scan<'_> {
    /// Appends the wanted records to `answer` until it is full; (status, records, entries examined,
    /// physical offset in the last one). Values, not references, keep its state in registers.
    #[allow(clippy::inline_always)] // a call costs a quarter of a pull by tag
    #[inline(always)]
    fn run(
        self,
        entries: &[[u8; ENTRY_SIZE as usize]],
        answer: &mut Vec<u8>,
    ) -> (GetStatus, u32, i64, i64) {
        let Scan { log, limits, tag_codes, end_offset, memory_bytes } = self;
        let (mut status, mut count) = (GetStatus::NoMatchedMessage, 0);
        let begin = answer.len();
        let mut looked_at = 0;
        let mut last_offset = 0;
        let mut following = entries.iter().skip(1);
        // Records of a log file that is gone are skipped up to the start of the next file.
        let mut skip_below = i64::MIN;
        for bytes in entries.iter().take(limits.scan_count) {
            let entry = Entry::decode(bytes);
            last_offset = entry.physical_offset;
            if let Some(next) = following.next().map(Entry::decode)
                && next.size >= PREFETCH_BYTES_MIN
            {
                log.bytes(next.physical_offset, next.size).map(prefetch_record);
            }
            if entry.physical_offset < skip_below {
                looked_at += 1;
                continue;
            }
            let is_in_disk = end_offset.saturating_sub(entry.physical_offset) > memory_bytes;
            let held = answer.len() - begin;
            if limits.is_full(entry.size, held, count as usize, is_in_disk) {
                break;
            }
            looked_at += 1;
            // Below all ints it is the address of a unit that is missing: the client filters then.
            let is_matched = tag_codes.is_none_or(|codes| {
                codes.contains(&(entry.tags_code as i32)) || entry.tags_code < i64::from(i32::MIN)
            });
            if !is_matched {
                if held == 0 {
                    status = GetStatus::NoMatchedMessage;
                }
                continue;
            }
            if let Some(record) = log.bytes(entry.physical_offset, entry.size) {
                answer.extend_from_slice(record);
                count += 1;
                status = GetStatus::Found;
                skip_below = i64::MIN;
                continue;
            }
            if held == 0 {
                status = GetStatus::MessageWasRemoving;
            }
            // A filler says nothing about a file of the log, and neither does a damaged entry.
            if !entry.is_pre_blank() && entry.physical_offset < end_offset {
                skip_below = log.roll_next_file(entry.physical_offset);
            }
        }
        (status, count, looked_at, last_offset)
    }
}

/// When an answer is full.
struct Limits {
    max_count: usize,
    scan_count: usize,
    memory_bytes: usize,
    memory_count: usize,
    disk_bytes: usize,
    disk_count: usize,
}

impl Limits {
    fn new(settings: &crate::settings::Settings, max_count: usize) -> Self {
        let unit = ENTRY_SIZE as usize;
        Limits {
            max_count,
            scan_count: SCAN_BYTES.max(max_count.saturating_mul(unit)) / unit,
            memory_bytes: settings.max_transfer_bytes_on_message_in_memory,
            memory_count: settings.max_transfer_count_on_message_in_memory,
            disk_bytes: settings.max_transfer_bytes_on_message_in_disk,
            disk_count: settings.max_transfer_count_on_message_in_disk,
        }
    }

    /// Never before the first message.
    #[inline]
    fn is_full(&self, size: i32, held: usize, count: usize, is_in_disk: bool) -> bool {
        if held == 0 || count == 0 {
            return false;
        }
        let (bytes_max, count_max) = if is_in_disk {
            (self.disk_bytes, self.disk_count)
        } else {
            (self.memory_bytes, self.memory_count)
        };
        count >= self.max_count
            || held + usize::try_from(size).unwrap_or(0) > bytes_max
            || count >= count_max
    }
}

/// Records below this size are fetched by the processor itself in time. Measured on records of
/// 1.1 KB that lie strewn over a log larger than the caches: half the time of a pull with the
/// prefetch, and a third more for records of 0.1 KB.
const PREFETCH_BYTES_MIN: i32 = 512;

/// How much of a record is asked for; the rest of a long one the processor sees coming.
const PREFETCH_LINES_MAX: usize = 32;

/// Ask for the first lines of a record that is copied next.
#[inline]
fn prefetch_record(record: &[u8]) {
    record.chunks(64).take(PREFETCH_LINES_MAX).for_each(prefetch);
}
