//! Fast sends: codes 10, 310 and 320.
//!
//! Every function that declines leaves nothing behind, so that the frame can go to Python.

use hashbrown::HashSet;

use super::access::{Access, Request};
use super::pending::Awaited;
use super::policy::Tables;
use super::state::State;
use crate::access::Account;
use crate::http2::Headers;
use crate::protocol::{
    BATCH_ITEMS_MAX, FLAG_ONEWAY, FLAG_RESPONSE, HALF_QUEUE, MAY_PUB, NAME_BYTES_MAX, PERM_WRITE,
    PROPERTIES_BYTES_MAX, RETRY_PREFIX, TIMER_QUEUE, TRANSACTION_MASK, TRANSACTION_PREPARED,
};
use crate::record::{Marks, Text};
use crate::state::Core;
use crate::state::types::{BatchItem, NewBatch};
use crate::wire::answer::{SendAnswer, base64_url, push_call_answer, push_decimal};
use crate::wire::grpc::Sent;
use crate::wire::header::SendFields;
use crate::wire::properties::{self, Inspected, Timer};

/// Bytes of a batch item before its body.
const ITEM_FIXED_BYTES: usize = 20;

/// What a send needs to know of its connection.
pub struct Sender<'a> {
    pub connection: u64,
    pub born_host: &'a [u8],
    /// Slot of the last topic, examined first.
    pub last_topic: &'a mut u32,
    pub access: &'a mut Access,
}

/// A send that was read.
pub struct ReadSend<'a> {
    fields: SendFields<'a>,
    /// Slot of its topic.
    slot: u32,
    inspected: Inspected<'a>,
    /// Of its key, where one is looked for.
    hash: Option<u64>,
}

impl<'a> ReadSend<'a> {
    #[inline]
    fn new(tables: &Tables, slot: u32, fields: SendFields<'a>, inspected: Inspected<'a>) -> Self {
        let is_one = !fields.batch && is_looked_for(tables, slot, &inspected);
        let hash = is_one.then(|| tables.key_hash(slot, &inspected.marks)).flatten();
        Self { fields, slot, inspected, hash }
    }
}

/// Reads a send; None when it is not for the fast path. Its key is looked for soon.
#[inline]
pub fn read<'a>(
    tables: &Tables,
    last_topic: &mut u32,
    request: Request<'a>,
) -> Option<ReadSend<'a>> {
    let Request { header, header_bytes, .. } = request;
    let fields = header.send_fields(header_bytes)?;
    if header.flag & FLAG_RESPONSE != 0 || header.flag & !(FLAG_RESPONSE | FLAG_ONEWAY) != 0 {
        return None;
    }
    let slot = tables.topics.find(fields.topic, *last_topic)?;
    *last_topic = slot;
    let inspected = properties::inspect(fields.properties)?;
    Some(ReadSend::new(tables, slot, fields, inspected))
}

/// Whether the keys of what a send brings are looked for. Of a transaction the commit counts.
#[inline]
fn is_looked_for(tables: &Tables, slot: u32, inspected: &Inspected<'_>) -> bool {
    tables.has_window(slot) && !inspected.is_half
}

/// Takes one send; None when it is not for the fast path.
pub fn send(
    state: &mut State,
    core: &mut Core,
    sender: &mut Sender<'_>,
    request: Request<'_>,
    read: &ReadSend<'_>,
    answers: &mut Vec<u8>,
) -> Option<()> {
    let Request { header, body, .. } = request;
    let ReadSend { fields, slot, inspected, .. } = read;
    if !is_open(state, core, *slot, fields, body)
        || !sender.access.may_send(state.accounts.as_ref(), request, fields)
    {
        return None;
    }
    let stored = store(state, core, sender, read, body)?;
    if header.flag & FLAG_ONEWAY != 0 {
        return Some(());
    }
    let awaited = if inspected.waits { state.safety.awaited(stored.end) } else { Awaited::NOTHING };
    let State { tables, batch, scratch, .. } = state;
    let pieces = &tables.identity.as_ref()?.pieces;
    // The name of the timer's topic is compared for messages for a moment alone.
    let recall_handle = match inspected.timer {
        Timer::None => String::new(),
        _ => tables.timer().map_or_else(String::new, |rule| {
            recall_handle(fields, inspected, &rule.broker_name, batch.out_ms)
        }),
    };
    let one = [stored.start];
    let offsets = if fields.batch { &batch.physical_offsets[..] } else { &one[..] };
    let answer = SendAnswer {
        opaque: header.opaque,
        queue_id: fields.queue_id,
        queue_offset: stored.queue_offset,
        physical_offsets: offsets,
        transaction_id: transaction_id(fields, inspected),
        recall_handle: &recall_handle,
    };
    let render = |out: &mut Vec<u8>| pieces.send_answer(out, header.encoding, &answer);
    if awaited == Awaited::NOTHING {
        render(answers);
        return Some(());
    }
    scratch.clear();
    render(scratch);
    state.answer_when_safe(sender.connection, stored.end, core.now_ms(), awaited, answers);
    Some(())
}

/// Whether messages may be stored in a queue now.
fn is_open(state: &State, core: &Core, slot: u32, fields: &SendFields<'_>, body: &[u8]) -> bool {
    let topic = &state.tables.topics[slot as usize];
    topic.fast
        && topic.perm & PERM_WRITE != 0
        && (0..topic.write_queues).contains(&fields.queue_id)
        && fields.sys_flag >= 0
        && (1..=state.max_message_bytes).contains(&body.len())
        && state.tables.writable
        && core.is_writable()
        && core.free_buffers() != Some(0)
}

/// Stores what a send brought.
fn store(
    state: &mut State,
    core: &mut Core,
    sender: &Sender<'_>,
    read: &ReadSend<'_>,
    body: &[u8],
) -> Option<Stored> {
    let ReadSend { fields, slot, inspected, hash } = read;
    let (slot, hash) = (*slot, *hash);
    if hash.is_some_and(|hash| state.tables.may_have_key(slot, hash)) {
        return None;
    }
    let is_batch = fields.batch && is_looked_for(&state.tables, slot, inspected);
    if is_batch && !has_new_keys(&mut state.batch.hashes, &state.tables, slot, inspected, body) {
        return None;
    }
    let place = place(state, core.now_ms(), slot, fields, inspected)?;
    let stored = append(state, core, sender, place, fields, inspected, body)?;
    if let Some(hash) = hash {
        state.tables.note_key(slot, hash, stored.start, stored.store_timestamp);
    } else if is_batch {
        let State { tables, batch, .. } = state;
        for (hash, offset) in batch.hashes.iter().zip(&batch.physical_offsets) {
            if let Some(hash) = hash {
                tables.note_key(slot, *hash, *offset, stored.store_timestamp);
            }
        }
    }
    state.flush_wanted = state.flush_wanted.max(stored.end);
    state.answered_puts += 1;
    Some(stored)
}

/// Takes one message that came by gRPC; None when it is not for the fast path. `text`: its
/// properties. `turn`: which of the topic's queues it gets, unless its group has one.
pub fn send_by_call(
    state: &mut State,
    core: &mut Core,
    sender: &mut Sender<'_>,
    stream_id: u32,
    (sent, text, turn, headers): (&Sent<'_>, &[u8], u32, &Headers),
    answers: &mut Vec<u8>,
) -> Option<()> {
    let slot = state.tables.topics.find(sent.topic, *sender.last_topic)?;
    *sender.last_topic = slot;
    let topic = &state.tables.topics[slot as usize];
    let calls = topic.fast_calls;
    let is_fast = if sent.group.is_empty() { calls.normal } else { calls.fifo };
    if !is_fast || topic.write_queues <= 0 {
        return None;
    }
    let queues = topic.write_queues as u32;
    let queue = if sent.group.is_empty() { turn % queues } else { sent.queue_of_group(queues) };
    let fields = SendFields {
        group: sent.topic,
        topic: sent.topic,
        queue_id: queue as i32,
        sys_flag: 0,
        born_timestamp: sent.born_timestamp,
        flag: 0,
        properties: text,
        reconsume_times: 0,
        batch: false,
    };
    let may_send = |account: &Account| {
        !sent.topic.starts_with(RETRY_PREFIX) && account.may(sent.topic, MAY_PUB)
    };
    if !is_open(state, core, slot, &fields, sent.body)
        || !sender.access.may_call(state.accounts.as_ref(), headers.iter(), may_send)
    {
        return None;
    }
    let read = ReadSend::new(&state.tables, slot, fields, properties::inspect(text)?);
    let stored = store(state, core, sender, &read, sent.body)?;
    let awaited = state.safety.awaited(stored.end);
    if awaited == Awaited::NOTHING {
        push_call_answer(answers, stream_id, stored.queue_offset);
        return Some(());
    }
    state.scratch.clear();
    push_call_answer(&mut state.scratch, stream_id, stored.queue_offset);
    state.answer_when_safe(sender.connection, stored.end, core.now_ms(), awaited, answers);
    Some(())
}

/// What the answer to one half message says of its transaction, if it says anything.
fn transaction_id<'a>(fields: &SendFields<'_>, inspected: &Inspected<'a>) -> &'a str {
    if !inspected.is_half || fields.batch {
        return "";
    }
    let key = inspected.marks.uniq_key.filter(|key| key.len() <= NAME_BYTES_MAX);
    key.and_then(|key| std::str::from_utf8(key).ok()).unwrap_or_default()
}

/// What the answer to a message for a moment says to take it back by; empty: it can't be.
fn recall_handle(
    fields: &SendFields<'_>,
    inspected: &Inspected<'_>,
    broker_name: &str,
    out_ms: i64,
) -> String {
    let Some(key) = inspected.marks.uniq_key.filter(|key| key.len() <= NAME_BYTES_MAX) else {
        return String::new();
    };
    let mut text = Vec::with_capacity(128);
    text.extend_from_slice(b"v1 ");
    text.extend_from_slice(fields.topic);
    text.push(b' ');
    text.extend_from_slice(broker_name.as_bytes());
    text.push(b' ');
    push_decimal(&mut text, out_ms + 1);
    text.push(b' ');
    text.extend_from_slice(key);
    base64_url(&text)
}

/// Where a send went.
struct Stored {
    /// Physical offset of the record; a batch has its own list.
    start: i64,
    /// Physical offset after the last record.
    end: i64,
    queue_offset: i64,
    store_timestamp: i64,
}

/// Whether the topic had none of the keys of a batch, nor the batch one twice; `hashes` gets those
/// of its messages.
fn has_new_keys(
    hashes: &mut Vec<Option<u64>>,
    tables: &Tables,
    slot: u32,
    inspected: &Inspected<'_>,
    body: &[u8],
) -> bool {
    hashes.clear();
    // What the batch says counts for each of its messages, which would all have one key.
    if tables.key_hash(slot, &inspected.marks).is_some() {
        return false;
    }
    let Some(items) = batch_items(body, &[]) else { return false };
    let hash_of =
        |item: &BatchItem<'_>| tables.key_hash(slot, &Marks::scan(item.properties.parts[0]));
    hashes.extend(items.iter().map(hash_of));
    let known = hashes.iter().flatten();
    let mut seen = HashSet::with_capacity(items.len());
    known.into_iter().all(|hash| seen.insert(*hash) && !tables.may_have_key(slot, *hash))
}

/// Slot of the topic and the queue that a send is stored in: its own, those of half messages, or
/// those of messages for a moment. What such a message is for is in `state.batch.target` then.
fn place(
    state: &mut State,
    now_ms: i64,
    slot: u32,
    fields: &SendFields<'_>,
    inspected: &Inspected<'_>,
) -> Option<(u32, i32)> {
    let kind = fields.sys_flag & TRANSACTION_MASK;
    if inspected.timer != Timer::None {
        let is_odd = inspected.is_half || inspected.names_target || inspected.has_waited;
        if kind != 0 || fields.batch || is_odd {
            return None;
        }
        let rule = state.tables.timer()?;
        let (topic, out_ms) = (rule.topic, rule.out_ms(inspected.timer, now_ms)?);
        properties::timed_text(out_ms, fields.topic, fields.queue_id, &mut state.batch.target);
        state.batch.out_ms = out_ms;
        return Some((topic, TIMER_QUEUE));
    }
    if !inspected.is_half {
        return (kind == 0).then_some((slot, fields.queue_id));
    }
    if kind != TRANSACTION_PREPARED || fields.reconsume_times != 0 || inspected.names_target {
        return None;
    }
    let half_topic = state.tables.half_topic()?;
    properties::target_text(fields.topic, fields.queue_id, &mut state.batch.target);
    Some((half_topic, HALF_QUEUE))
}

fn append(
    state: &mut State,
    core: &mut Core,
    sender: &Sender<'_>,
    (slot, queue_id): (u32, i32),
    fields: &SendFields<'_>,
    inspected: &Inspected<'_>,
    body: &[u8],
) -> Option<Stored> {
    let queue = state.tables.writing(core, slot, queue_id)?;
    let State { tables, batch, .. } = state;
    let identity = tables.identity.as_ref()?;
    let common = NewBatch {
        sys_flag: fields.sys_flag & !TRANSACTION_MASK,
        born_timestamp: fields.born_timestamp,
        born_host: sender.born_host,
        store_host: &identity.store_host,
        reconsume_times: fields.reconsume_times,
    };
    if !fields.batch {
        let flag = fields.flag;
        let properties = if inspected.is_half || inspected.timer != Timer::None {
            Text { parts: [inspected.whole, &identity.cluster_item, &batch.target, &[]] }
        } else {
            inspected.stored(&identity.cluster_item)
        };
        if properties.len() > PROPERTIES_BYTES_MAX {
            return None;
        }
        let item = BatchItem { flag, body, properties, marks: Some(inspected.marks), bit_map: &[] };
        let appended = core.append(queue, &item.of(&common, common.sys_flag)).ok()?;
        state.note_append(core, slot, queue_id, appended.tags_code);
        return Some(Stored {
            start: appended.physical_offset,
            end: appended.end_offset(),
            queue_offset: appended.queue_offset,
            store_timestamp: appended.store_timestamp,
        });
    }
    properties::batch_suffix(inspected.whole, &identity.cluster_item, &mut batch.suffix);
    if inspected.is_half {
        batch.suffix.extend_from_slice(&batch.target);
    }
    let items = batch_items(body, &batch.suffix)?;
    let (offsets, codes) = (&mut batch.physical_offsets, &mut batch.tags_codes);
    let appended = core.append_batch(queue, &common, &items, offsets, codes).ok()?;
    for index in 0..state.batch.tags_codes.len() {
        state.note_append(core, slot, queue_id, state.batch.tags_codes[index]);
    }
    Some(Stored {
        start: 0,
        end: appended.end_offset,
        queue_offset: appended.queue_offset,
        store_timestamp: appended.store_timestamp,
    })
}

/// The items of a batch body; None when it is malformed or holds nothing.
fn batch_items<'a>(body: &'a [u8], suffix: &'a [u8]) -> Option<Vec<BatchItem<'a>>> {
    let int = |at: usize| -> Option<i32> {
        Some(i32::from_be_bytes(*body.get(at..)?.first_chunk::<4>()?))
    };
    let mut items = Vec::new();
    let mut at = 0;
    while at < body.len() {
        let size = usize::try_from(int(at)?).ok()?;
        let flag = int(at + 12)?;
        let body_size = usize::try_from(int(at + 16)?).ok()?;
        let body_start = at + ITEM_FIXED_BYTES;
        let text_size_at = body_start.checked_add(body_size)?;
        let text_size = u16::from_be_bytes(*body.get(text_size_at..)?.first_chunk::<2>()?);
        let text_start = text_size_at + 2;
        let end = text_start + usize::from(text_size);
        if body_size == 0 || end - at != size || items.len() >= BATCH_ITEMS_MAX {
            return None;
        }
        let properties = properties::with_suffix(body.get(text_start..end)?, suffix);
        if properties.len() > PROPERTIES_BYTES_MAX {
            return None;
        }
        let body = &body[body_start..text_size_at];
        items.push(BatchItem { flag, body, properties, marks: None, bit_map: &[] });
        at = end;
    }
    (!items.is_empty()).then_some(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(body: &[u8], text: &[u8]) -> Vec<u8> {
        let size = ITEM_FIXED_BYTES + body.len() + 2 + text.len();
        let mut out = u32::try_from(size).unwrap().to_be_bytes().to_vec();
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(&7u32.to_be_bytes());
        out.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
        out.extend_from_slice(body);
        out.extend_from_slice(&u16::try_from(text.len()).unwrap().to_be_bytes());
        out.extend_from_slice(text);
        out
    }

    #[test]
    fn a_batch_is_taken_apart() {
        let body = [item(b"one", b"a\x01b"), item(b"two!", b"")].concat();
        let items = batch_items(&body, b"\x02C\x01c").unwrap();
        assert_eq!(items.len(), 2);
        assert_eq!((items[0].flag, items[0].body), (7, &b"one"[..]));
        assert_eq!(items[0].properties.parts.concat(), b"a\x01b\x02C\x01c");
        assert_eq!(items[1].body, b"two!");
        assert_eq!(items[1].properties.parts.concat(), b"C\x01c");
    }

    #[test]
    fn a_torn_or_lying_batch_is_declined() {
        let body = [item(b"one", b"a\x01b"), item(b"two!", b"x\x01y")].concat();
        let first = item(b"one", b"a\x01b").len();
        for end in 0..body.len() {
            assert_eq!(batch_items(&body[..end], b"").is_some(), end == first);
        }
        for at in (0..4).chain(16..20) {
            for value in [0, 1, 0x7F, 0x80, 0xFF] {
                let mut changed = body.clone();
                if changed[at] != value {
                    changed[at] = value;
                    assert!(batch_items(&changed, b"").is_none(), "{at} {value}");
                }
            }
        }
        assert!(batch_items(&item(b"", b""), b"").is_none());
    }
}
