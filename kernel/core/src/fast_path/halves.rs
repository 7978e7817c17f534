//! Half messages in bulk: runs of one attempt, what op messages say, and the ends of plain halves.

use crate::protocol::{
    HALF_QUEUE, HALF_RUNS_MAX, HALF_TOPIC, OP_HALF_TOPIC, OP_PROPERTIES, REMOVE_TAG,
    TRANSACTION_COMMIT, TRANSACTION_MASK,
};

use super::path::FastPath;
use super::policy::{NO_SLOT, TimerRule};
use super::state::State;
use crate::error::PutStatus;
use crate::record::{self, NewRecord, RecordView, Text};
use crate::state::Core;
use crate::state::types::QueueHandle;
use crate::wire::answer::push_decimal;
use crate::wire::properties::{RealText, inspect_half};

/// Digits of a half's offset in an op message.
const NUMBER_BYTES_MAX: usize = 19;

/// Halves that follow each other and were written by the same attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HalfRun {
    /// Their `KEROLOX_SINK`.
    pub sink: Vec<u8>,
    /// Queue offset of the first one.
    pub first: i64,
    /// How many they are.
    pub count: i64,
    /// Whether none of them needs the handler in Python.
    pub is_plain: bool,
}

/// What became of halves that were to be ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HalvesEnded {
    /// How many are ended.
    pub count: i64,
    /// Queue offset of the first op message.
    pub first_op: i64,
    /// Whether the half behind those has its final message and no op message.
    pub is_unnoted: bool,
}

/// A queue that final messages and copies go to.
pub(super) struct Target {
    topic: Vec<u8>,
    queue_id: i32,
    pub(super) queue: QueueHandle,
    pub(super) slot: u32,
}

impl FastPath {
    /// Whether sends of half messages may be fast.
    pub fn set_halves(&self, fast: bool) {
        let mut state = self.state.lock();
        state.evict_names();
        state.tables.set_halves(fast);
    }

    /// Says which sends for a moment may be fast.
    pub fn set_timer(&self, rule: Option<TimerRule>) {
        let mut state = self.state.lock();
        state.evict_names();
        state.tables.set_timer(rule);
    }

    /// (where to go on, the halves of a group with a `KEROLOX_SINK`) from a queue offset to before
    /// `end`, or until that many bytes of records were read.
    #[must_use]
    pub fn half_runs(
        &self,
        group: &[u8],
        start: i64,
        end: i64,
        max_bytes: usize,
    ) -> (i64, Vec<HalfRun>) {
        let mut runs: Vec<HalfRun> = Vec::new();
        let mut core = self.store.lock();
        let Some(queue) = core.find_queue(HALF_TOPIC, HALF_QUEUE) else {
            return (start.max(end), runs);
        };
        let (mut offset, mut bytes) = (start, 0);
        while offset < end && bytes < max_bytes {
            let Some(half) = core.queued_record(queue, offset) else {
                offset += 1;
                continue;
            };
            let text = inspect_half(half.properties);
            if !text.sink.is_empty() && text.group == group && !note_half(&mut runs, offset, &text)
            {
                break;
            }
            bytes += half.size;
            offset += 1;
        }
        (offset, runs)
    }

    /// Which half each op message of a range ends; -1: none.
    #[must_use]
    pub fn half_ops(&self, start: i64, end: i64) -> Vec<i64> {
        let mut core = self.store.lock();
        let queue = core.find_queue(OP_HALF_TOPIC, HALF_QUEUE);
        let mut half_of = |offset: i64| {
            let record = core.queued_record(queue?, offset)?;
            let is_end = record::Marks::scan(record.properties).tags == Some(REMOVE_TAG);
            is_end.then(|| number(record.body)).flatten()
        };
        (start..end).map(|offset| half_of(offset).unwrap_or(-1)).collect()
    }

    /// Ends plain halves that follow each other, whatever was before, and wakes held pulls.
    #[must_use]
    pub fn end_halves(
        &self,
        first: i64,
        count: i64,
        commit: bool,
        now_ms: i64,
        host: &[u8],
    ) -> HalvesEnded {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let mut core = self.store.lock();
        state.tables.refresh(&core);
        let done = end_halves(state, &mut core, first, count, commit, (now_ms, host));
        self.end_append(guard, core);
        done
    }
}

/// Adds a half to the last run, or begins another; false when there are enough of them.
fn note_half(runs: &mut Vec<HalfRun>, offset: i64, text: &RealText<'_>) -> bool {
    let is_plain = text.target.is_some();
    if let Some(last) = runs.last_mut() {
        let follows = last.first + last.count == offset;
        if follows && last.is_plain == is_plain && last.sink == text.sink {
            last.count += 1;
            return true;
        }
    }
    if runs.len() == HALF_RUNS_MAX {
        return false;
    }
    runs.push(HalfRun { sink: text.sink.to_vec(), first: offset, count: 1, is_plain });
    true
}

/// The number that the body of an op message is.
fn number(body: &[u8]) -> Option<i64> {
    if body.is_empty() || body.len() > NUMBER_BYTES_MAX || !body.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(body).ok()?.parse().ok()
}

fn end_halves(
    state: &mut State,
    core: &mut Core,
    first: i64,
    count: i64,
    commit: bool,
    born: (i64, &[u8]),
) -> HalvesEnded {
    let mut done = HalvesEnded::default();
    let halves = core.find_queue(HALF_TOPIC, HALF_QUEUE);
    let (Some(halves), Ok(ops)) = (halves, core.queue(OP_HALF_TOPIC, HALF_QUEUE)) else {
        return done;
    };
    let op_slot = state.tables.topics.find(OP_HALF_TOPIC, NO_SLOT).unwrap_or(NO_SLOT);
    let mut last = None;
    let mut bytes = Vec::new();
    let mut body = Vec::with_capacity(NUMBER_BYTES_MAX);
    for offset in first..first.saturating_add(count) {
        bytes.clear();
        let Some(half) = copied(core, halves, offset, &mut bytes) else { break };
        let text = inspect_half(half.properties);
        let Some((topic, queue_id)) = text.target else { break };
        if commit {
            let Ok(target) = target_of(state, core, &mut last, topic, queue_id) else { break };
            if state.tables.topics[target.slot as usize].window.is_some() {
                break;
            }
            let Ok(stored) = core.append(target.queue, &final_of(&half, &text)) else { break };
            state.note_append(core, target.slot, queue_id, stored.tags_code);
        }
        body.clear();
        push_decimal(&mut body, offset);
        let Ok(stored) = core.append(ops, &op_of(&body, born)) else {
            done.is_unnoted = commit;
            break;
        };
        if op_slot != NO_SLOT {
            state.note_append(core, op_slot, HALF_QUEUE, stored.tags_code);
        }
        if done.count == 0 {
            done.first_op = stored.queue_offset;
        }
        done.count += 1;
    }
    done
}

/// The half at a queue offset, taken out of the log, which is written to next.
fn copied<'a>(
    core: &mut Core,
    halves: QueueHandle,
    offset: i64,
    bytes: &'a mut Vec<u8>,
) -> Option<RecordView<'a>> {
    let physical_offset = core.queued_record(halves, offset)?.physical_offset;
    core.lookup_into(physical_offset, bytes).then_some(())?;
    record::view(bytes)
}

/// The queue that a final message goes to; mostly that of the one before. An error where nobody
/// reads it (any more): the handler in Python knows another one.
pub(super) fn target_of<'a>(
    state: &State,
    core: &mut Core,
    last: &'a mut Option<Target>,
    topic: &[u8],
    queue_id: i32,
) -> Result<&'a Target, PutStatus> {
    let is_same = |known: &Target| known.queue_id == queue_id && known.topic == topic;
    if !last.as_ref().is_some_and(is_same) {
        let slot = state.tables.topics.find(topic, NO_SLOT).ok_or(PutStatus::UnknownError)?;
        let known = &state.tables.topics[slot as usize];
        if !known.present || queue_id >= known.read_queues {
            return Err(PutStatus::UnknownError);
        }
        core.check_lmq(std::iter::once((topic, queue_id)))?;
        let queue = core.queue(topic, queue_id)?;
        *last = Some(Target { topic: topic.to_vec(), queue_id, queue, slot });
    }
    last.as_ref().ok_or(PutStatus::UnknownError)
}

/// `endMessageTransaction`: the text stays that of the half.
fn final_of<'a>(half: &RecordView<'a>, text: &RealText<'a>) -> NewRecord<'a> {
    NewRecord {
        flag: half.flag,
        sys_flag: half.sys_flag & !TRANSACTION_MASK | TRANSACTION_COMMIT,
        born_timestamp: half.born_timestamp,
        born_host: half.born_host,
        store_host: half.store_host,
        reconsume_times: half.reconsume_times,
        prepared_transaction_offset: half.physical_offset,
        body: half.body,
        properties: Text::one(half.properties),
        marks: Some(text.marks),
        tags_code: None,
        bit_map: &[],
    }
}

/// The note that a half is done.
fn op_of<'a>(body: &'a [u8], (born_timestamp, host): (i64, &'a [u8])) -> NewRecord<'a> {
    NewRecord {
        flag: 0,
        sys_flag: 0,
        born_timestamp,
        born_host: host,
        store_host: host,
        reconsume_times: 0,
        prepared_transaction_offset: 0,
        body,
        properties: Text::one(OP_PROPERTIES),
        marks: None,
        tags_code: None,
        bit_map: &[],
    }
}
