//! Pops and acknowledgements of queues that are lent, of all messages and without order.

use std::sync::Arc;

use super::lent::{Key, Lease, Lent, monotonic_ms};
use super::policy::{NO_SLOT, Tables};
use super::state::State;
use crate::error::GetStatus;
use crate::protocol::{
    INVISIBLE_MS_MAX, PERM_READ, POLL_GRACE_MS, POP_BYTES_MAX, POP_MESSAGES_MAX, RETRY_PREFIX,
    SERIALIZE_JSON,
};
use crate::queues::queue_ext::Filter;
use crate::state::Core;
use crate::wire::answer::{PopAnswer, PoppedRun, acknowledged, pop_answer};
use crate::wire::frame::Frame;
use crate::wire::grpc_pops::{Acks as AcksOfCall, Entry, has_tag, records};
use crate::wire::pops::{Ack, Acks, Asked, Pop, Receipt, START, read, read_acks};

/// Queues of one acknowledgement by a call.
const ACK_QUEUES_MAX: usize = 64;

/// Entries of a queue that are examined at a time for messages with some tags.
const WINDOW: u32 = 32;

/// Bytes of messages that one pop examines for those with some tags; more are Python's to look
/// through, by the codes of their tags.
const EXAMINED_BYTES_MAX: usize = 1 << 20;

/// Between group and topic in the names of retries of version 1 and 2.
const SEPARATORS: [u8; 2] = [b'_', b'+'];

/// What a request needs to know of its connection.
pub struct Popper<'a> {
    /// Slots of the last topic and group, examined first.
    pub last_topic: &'a mut u32,
    pub last_group: &'a mut u32,
    /// The peer's address, as operators see it.
    pub owner: &'a Arc<str>,
}

/// Takes one request about pops; None when it is not for the fast path, or none.
#[inline]
pub fn take(
    state: &mut State,
    core: &mut Core,
    popper: &mut Popper<'_>,
    frame: &Frame<'_>,
    answers: &mut Vec<u8>,
) -> Option<()> {
    if state.lent.is_empty()
        || !state.tables.writable
        || state.accounts.is_some()
        || frame.serialize_type != SERIALIZE_JSON
        || !frame.header.starts_with(START)
    {
        return None;
    }
    let (asked, opaque) = read(frame.header)?;
    match asked {
        Asked::Pop(pop) if frame.body.is_empty() => {
            let terms = Terms { is_renewed: false, is_usual: |_| true, tags: "" };
            let Outcome::Found(found) = take_pop(state, core, popper, &pop, &terms) else {
                return None;
            };
            let Popped { pop_time, rest, runs } = &found;
            let invisible_ms = pop.invisible_ms;
            let answer = PopAnswer { opaque, pop_time: *pop_time, invisible_ms, rest: *rest, runs };
            pop_answer(answers, &answer, &state.lent.body);
            Some(())
        }
        Asked::Ack(ack) if frame.body.is_empty() => {
            acknowledge(state, core, popper, &ack)?;
            acknowledged(answers, opaque);
            Some(())
        }
        Asked::Batch => {
            acknowledge_all(state, core, popper, &read_acks(frame.body)?)?;
            acknowledged(answers, opaque);
            Some(())
        }
        _ => None,
    }
}

/// Slots of a group and a topic that may be read.
pub fn place(
    tables: &Tables,
    popper: &mut Popper<'_>,
    group: &[u8],
    topic: &[u8],
) -> Option<(u32, u32)> {
    let topic_slot = tables.topics.find(topic, *popper.last_topic)?;
    let group_slot = tables.groups.find(group, *popper.last_group)?;
    (*popper.last_topic, *popper.last_group) = (topic_slot, group_slot);
    let (topic, group) = (&tables.topics[topic_slot as usize], &tables.groups[group_slot as usize]);
    let is_usual =
        topic.present && topic.fast && topic.perm & PERM_READ != 0 && group.present && group.fast;
    is_usual.then_some((group_slot, topic_slot))
}

/// Whether the group has retries that it has not got.
fn has_retry(
    tables: &mut Tables,
    core: &mut Core,
    lent: &Lent,
    pop: &Pop<'_>,
    place: (u32, u32),
) -> bool {
    let got = lent.places.get(&place).map(|place| place.retries).unwrap_or_default();
    let mut name = [0; 512];
    SEPARATORS.iter().zip(got).any(|(separator, got)| {
        let parts = [RETRY_PREFIX, pop.group, std::slice::from_ref(separator), pop.topic];
        let mut size = 0;
        for part in parts {
            let Some(room) = name.get_mut(size..size + part.len()) else {
                return true;
            };
            room.copy_from_slice(part);
            size += part.len();
        }
        let slot = tables.topics.find(&name[..size], NO_SLOT);
        slot.is_some_and(|slot| {
            tables.topics[slot as usize].present && tables.end_of(core, slot, 0) > got
        })
    })
}

/// What a pop is for beside what it asks.
pub struct Terms<'a> {
    /// The broker renews the time of the messages.
    pub is_renewed: bool,
    /// Whether records can be answered; else the pop is for Python.
    pub is_usual: fn(&[u8]) -> bool,
    /// Which messages: an expression of tags; empty: all.
    pub tags: &'a str,
}

/// What a pop got; the records are in the body of `Lent`.
pub struct Popped {
    pub pop_time: i64,
    /// Messages that are left in the queues that were read.
    pub rest: i64,
    pub runs: Vec<PoppedRun>,
}

/// What became of a pop.
pub enum Outcome {
    Found(Popped),
    /// There is nothing for the group, for certain.
    Nothing,
    /// It is for Python.
    Declined,
}

/// Whether a pop asks for what can be given.
fn is_usual(pop: &Pop<'_>, queues: i32, now_ms: i64) -> bool {
    let is_late =
        pop.born_ms > 0 && now_ms - pop.born_ms > pop.poll_ms.saturating_add(POLL_GRACE_MS);
    !is_late
        && (1..=POP_MESSAGES_MAX as i32).contains(&pop.count)
        && (1..=INVISIBLE_MS_MAX).contains(&pop.invisible_ms)
        && pop.queue_id < queues
}

/// Takes messages.
pub fn take_pop(
    state: &mut State,
    core: &mut Core,
    popper: &mut Popper<'_>,
    pop: &Pop<'_>,
    terms: &Terms<'_>,
) -> Outcome {
    let outcome = pop_queues(state, core, popper, pop, terms);
    if !terms.tags.is_empty() {
        commit_passed(state, popper, pop);
    }
    outcome
}

/// Has the group go on behind messages that it does not want.
fn commit_passed(state: &mut State, popper: &mut Popper<'_>, pop: &Pop<'_>) {
    let Some((group, topic)) = place(&state.tables, popper, pop.group, pop.topic) else {
        return;
    };
    for queue_id in 0..state.tables.topics[topic as usize].read_queues {
        let key = (group, topic, queue_id);
        if state.lent.queue(key).is_some() && state.has_capacity_to_commit(&key) {
            commit(state, key);
        }
    }
}

fn pop_queues(
    state: &mut State,
    core: &mut Core,
    popper: &mut Popper<'_>,
    pop: &Pop<'_>,
    terms: &Terms<'_>,
) -> Outcome {
    let State { tables, lent, .. } = state;
    let Some(place) = place(tables, popper, pop.group, pop.topic) else {
        return Outcome::Declined;
    };
    let queues = tables.topics[place.1 as usize].read_queues;
    let now_ms = core.now_ms();
    let chance = lent.chance();
    let reads_retries = chance < lent.retry_percent && has_retry(tables, core, lent, pop, place);
    if reads_retries || !is_usual(pop, queues, now_ms) {
        return Outcome::Declined;
    }
    let (first, steps) =
        if pop.queue_id < 0 { (chance as i32 % queues.max(1), queues) } else { (pop.queue_id, 1) };
    let pop_time = lent.pop_time.max(now_ms);
    let mut lease = Lease::new(pop_time, pop.invisible_ms);
    lease.visible_at = monotonic_ms() + lent.steady_ahead_ms + pop.invisible_ms;
    (lease.owner, lease.is_renewed) = (Arc::clone(popper.owner), terms.is_renewed);
    let mut body = std::mem::take(&mut lent.body);
    body.clear();
    let mut runs = Vec::new();
    let (mut left, mut rest, mut examined) = (pop.count as u32, 0, 0);
    let (mut step, mut is_whole) = (0, steps > 0);
    while step < steps {
        let queue_id = (first + step) % queues;
        let key = (place.0, place.1, queue_id);
        let Some(taken) = pop_queue(tables, core, lent, key, (left, terms), &mut lease, &mut body)
        else {
            is_whole = false;
            break;
        };
        if taken.count > 0 {
            (left, rest) = (left - taken.count, rest + taken.rest);
            let Lease { start, count: span, .. } = lease;
            runs.push(PoppedRun { queue_id, start, count: taken.count, span });
        }
        examined += taken.examined;
        if left == 0 || body.len() >= POP_BYTES_MAX || examined >= EXAMINED_BYTES_MAX {
            is_whole = false;
            break;
        }
        // There may be more behind messages that are not wanted.
        step += i32::from(terms.tags.is_empty() || taken.examined == 0);
    }
    lent.body = body;
    if !runs.is_empty() {
        lent.pop_time = pop_time;
        return Outcome::Found(Popped { pop_time, rest, runs });
    }
    if is_whole && !has_retry(tables, core, lent, pop, place) {
        return Outcome::Nothing;
    }
    Outcome::Declined
}

/// What was taken of a queue.
#[derive(Default)]
struct Taken {
    count: u32,
    /// Messages behind them.
    rest: i64,
    /// Bytes of all messages that were read.
    examined: usize,
}

/// Takes messages of a queue; None: its state is for Python.
fn pop_queue(
    tables: &mut Tables,
    core: &mut Core,
    lent: &mut Lent,
    key: Key,
    (most, terms): (u32, &Terms<'_>),
    lease: &mut Lease,
    body: &mut Vec<u8>,
) -> Option<Taken> {
    let (group, topic, queue_id) = key;
    let queue = lent.queue(key)?;
    let start = queue.next_offset;
    let Some(handle) = tables.reading(core, topic, queue_id) else {
        // It never had a message.
        return (start == 0).then(Taken::default);
    };
    let (low, end) = core.readable_bounds(handle);
    if low > queue.low() || start > end {
        return None;
    }
    if start == end {
        return Some(Taken::default());
    }
    let most = most.min(queue.capacity());
    if most == 0 {
        return None;
    }
    let count = if terms.tags.is_empty() { most } else { WINDOW };
    let before = body.len();
    let mut outcome = core.read_into(handle, start, count as usize, Filter::by_tags(None), body);
    let is_run = outcome.next_offset - start == i64::from(outcome.count);
    if outcome.status != GetStatus::Found
        || !is_run
        || outcome.count > count
        || !(terms.is_usual)(&body[before..])
    {
        body.truncate(before);
        return None;
    }
    let examined = outcome.bytes;
    (lease.start, lease.count) = (start, outcome.count);
    lease.open = u32::MAX >> (32 - outcome.count);
    if !terms.tags.is_empty() {
        (lease.open, lease.count) = keep_tagged(body, before, terms.tags, most);
        let (count, bytes) = (lease.open.count_ones(), body.len() - before);
        core.note_not_given(outcome.count - count, examined - bytes);
        (outcome.count, outcome.bytes) = (count, bytes);
        outcome.next_offset = start + i64::from(lease.count);
    }
    queue.deliver(lease.clone());
    lent.changes += 1;
    if outcome.lag >= 0 && outcome.count > 0 {
        tables.note_got(group, topic, queue_id, &outcome);
        core.note_delivery(&outcome);
    }
    let rest = (outcome.max_offset - outcome.next_offset).max(0);
    Some(Taken { count: outcome.count, rest, examined })
}

/// Leaves of the records from `before` on the first ones that have a tag of the expression, `most`
/// at most. Bit i: the i-th one is among them; and how many were examined.
fn keep_tagged(body: &mut Vec<u8>, before: usize, tags: &str, most: u32) -> (u32, u32) {
    let (mut open, mut count, mut at) = (0_u32, 0, before);
    let mut kept = before;
    while open.count_ones() < most {
        let Some(Some(record)) = records(&body[at..]).next() else {
            break;
        };
        let (size, is_wanted) = (record.size, has_tag(&record, tags));
        if is_wanted {
            open |= 1 << count;
            body.copy_within(at..at + size, kept);
            kept += size;
        }
        at += size;
        count += 1;
    }
    body.truncate(kept);
    (open, count)
}

/// The first offset of a queue that is lent, and the key of it.
fn lent_queue(
    state: &mut State,
    core: &mut Core,
    popper: &mut Popper<'_>,
    group: &[u8],
    topic: &[u8],
    queue_id: i32,
) -> Option<(Key, i64)> {
    let (group, topic) = place(&state.tables, popper, group, topic)?;
    let key = (group, topic, queue_id);
    Some((key, low_of(state, core, key)?))
}

fn acknowledge(
    state: &mut State,
    core: &mut Core,
    popper: &mut Popper<'_>,
    ack: &Ack<'_>,
) -> Option<()> {
    let (key, low) = lent_queue(state, core, popper, ack.group, ack.topic, ack.queue_id)?;
    let queue = state.lent.queue(key)?;
    if ack.offset < low || !queue.acknowledge(ack.offset, ack.pop_time) {
        return None;
    }
    commit(state, key);
    Some(())
}

fn acknowledge_all(
    state: &mut State,
    core: &mut Core,
    popper: &mut Popper<'_>,
    all: &[Acks<'_>],
) -> Option<()> {
    // Nothing changes unless all is for the fast path.
    let mut places = Vec::with_capacity(all.len());
    for acks in all {
        places.push(lent_queue(state, core, popper, acks.group, acks.topic, acks.queue_id)?);
    }
    for (acks, (key, low)) in all.iter().zip(places) {
        let Some(queue) = state.lent.queue(key) else {
            continue;
        };
        let mut done = false;
        for offset in acks.offsets().filter(|offset| *offset >= low) {
            done |= queue.acknowledge(offset, acks.pop_time);
        }
        if done {
            commit(state, key);
        }
    }
    Some(())
}

/// Takes acknowledgements by a call; None: one is not usual, and nothing has changed.
pub fn acknowledge_call(
    state: &mut State,
    core: &mut Core,
    popper: &mut Popper<'_>,
    acks: &AcksOfCall<'_>,
) -> Option<()> {
    let place = place(&state.tables, popper, acks.group, acks.topic)?;
    let (group, topic) = place;
    let now_ms = core.now_ms();
    let broker = state.lent.receivers(place, b"")?;
    let mut lows: Vec<(i32, i64)> = Vec::new();
    for Entry { receipt, .. } in &acks.entries {
        let Receipt { queue_id, offset, pop_time, invisible_ms, .. } = *receipt;
        let low = if let Some((_, low)) = lows.iter().rev().find(|(id, _)| *id == queue_id) {
            *low
        } else {
            (lows.len() < ACK_QUEUES_MAX).then_some(())?;
            let low = low_of(state, core, (group, topic, queue_id))?;
            lows.push((queue_id, low));
            low
        };
        let is_usual = receipt.kind == 0
            && receipt.broker == broker.as_bytes()
            && pop_time.saturating_add(invisible_ms) > now_ms
            && offset >= low
            && state.lent.queue((group, topic, queue_id))?.is_out(offset, pop_time);
        is_usual.then_some(())?;
    }
    for Entry { receipt, .. } in &acks.entries {
        if let Some(queue) = state.lent.queue((group, topic, receipt.queue_id)) {
            // One that stands twice is done by then, which is success, too.
            queue.acknowledge(receipt.offset, receipt.pop_time);
        }
    }
    for (queue_id, _) in lows {
        commit(state, (group, topic, queue_id));
    }
    Some(())
}

/// The first offset of a queue that is lent.
fn low_of(state: &mut State, core: &mut Core, key: Key) -> Option<i64> {
    state.lent.queue(key)?;
    let handle = state.tables.reading(core, key.1, key.2)?;
    let low = core.readable_bounds(handle).0;
    state.has_capacity_to_commit(&key).then_some(low)
}

/// Has the group go on at the lowest offset that is not done.
fn commit(state: &mut State, key: Key) {
    state.lent.changes += 1;
    if let Some(queue) = state.lent.queue(key) {
        let low = queue.low();
        if low != queue.committed {
            queue.committed = low;
            state.commits.insert(key, low);
        }
    }
}
