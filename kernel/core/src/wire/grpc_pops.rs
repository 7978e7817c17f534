//! Receives and acknowledgements of clients of RocketMQ 5, as far as they are usual, and their
//! answers (`broker/grpc/receiving.py`, `records.py`).

use md5::{Digest, Md5};

use super::answer::push_decimal;
use super::grpc::{OK_TEXT, Once, read_ms, read_name, with_prefix};
use super::pops::Receipt;
use super::protobuf::{
    Fields, Value, push_bytes, push_message, push_number, push_told_number, start_message,
    varint_bytes,
};
use crate::protocol::grpc::{
    ACKS_MAX, AUTO_RENEWED_MS, DEAD_LETTER_ID, DEAD_LETTER_TOPIC, INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN, OK, SYSTEM_PROPERTIES, USED_BORN_HOST, USED_SHARDING_KEY, USED_TRACE_CONTEXT,
};
use crate::protocol::{COMPRESSED, POP_MESSAGES_MAX, property};
use crate::record::{self, Marks, RecordView};

/// `FilterType` of a filter by tags, or of none.
const TAG_MAX: i64 = 1;

/// Addresses of a queue's broker that are passed over here.
const ADDRESSES_MAX: usize = 64;

/// `DigestType.MD5`, `Encoding.IDENTITY`.
const MD5: u64 = 2;
const IDENTITY: u64 = 1;

/// Values of `MessageType`.
const NORMAL: u64 = 1;
const FIFO: u64 = 2;
const DELAY: u64 = 3;
const TRANSACTION: u64 = 4;

/// Of an expression of tags.
const TAGS_BYTES_MAX: usize = 1_024;

/// Digits of a moment that is told.
const MOMENT_DIGITS_MAX: usize = 14;

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// A receive of all messages, or of those that have some tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive<'a> {
    pub group: &'a [u8],
    pub topic: &'a [u8],
    /// Of the queue's broker; empty: any.
    pub broker: &'a [u8],
    pub count: i32,
    pub invisible_ms: i64,
    pub is_renewed: bool,
    /// As [`wanted_tags`] reads them; empty: all messages.
    pub tags: &'a str,
}

/// Reads a `ReceiveMessageRequest`; None: it is not usual.
#[must_use]
pub fn read_receive(request: &[u8]) -> Option<Receive<'_>> {
    let mut found = Receive {
        group: b"",
        topic: b"",
        broker: b"",
        count: 1,
        invisible_ms: 0,
        is_renewed: false,
        tags: "",
    };
    let (mut fields, mut once) = (Fields(request), Once::default());
    while let Some((field, value)) = fields.next()? {
        once.take(field)?;
        match field {
            1 => found.group = read_name(value.bytes()?)?,
            2 => (found.topic, found.broker) = read_queue(value.bytes()?)?,
            3 => found.tags = read_filter(value.bytes()?)?,
            4 => {
                let count = i32::try_from(value.number()?).ok()?;
                found.count = count.clamp(1, POP_MESSAGES_MAX as i32);
            }
            5 => found.invisible_ms = read_ms(value.bytes()?)?,
            6 => found.is_renewed = value.number()? != 0,
            7 => drop(read_ms(value.bytes()?)?),
            // Which attempt it is counts for pops in order alone.
            8 => drop(text(value)?),
            _ => return None,
        }
    }
    if found.is_renewed {
        found.invisible_ms = AUTO_RENEWED_MS;
    }
    let is_usual = !found.group.is_empty()
        && !found.topic.is_empty()
        && (INVISIBLE_MS_MIN..=INVISIBLE_MS_MAX).contains(&found.invisible_ms);
    is_usual.then_some(found)
}

fn text(value: Value<'_>) -> Option<&[u8]> {
    value.bytes().filter(|bytes| std::str::from_utf8(bytes).is_ok())
}

/// Topic and broker of a `MessageQueue`. The queue is the broker's choice.
fn read_queue(queue: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut topic, mut broker): (&[u8], &[u8]) = (b"", b"");
    let (mut fields, mut once) = (Fields(queue), Once::default());
    while let Some((field, value)) = fields.next()? {
        once.take(field)?;
        match field {
            1 => topic = read_name(value.bytes()?)?,
            2 | 3 => drop(value.number()?),
            4 => broker = read_broker(value.bytes()?)?,
            5 => read_types(value.bytes()?)?,
            _ => return None,
        }
    }
    Some((topic, broker))
}

fn read_broker(broker: &[u8]) -> Option<&[u8]> {
    let mut name: &[u8] = b"";
    let (mut fields, mut once) = (Fields(broker), Once::default());
    while let Some((field, value)) = fields.next()? {
        once.take(field)?;
        match field {
            1 => name = text(value)?,
            2 => drop(value.number()?),
            3 => read_endpoints(value.bytes()?)?,
            _ => return None,
        }
    }
    Some(name)
}

fn read_endpoints(endpoints: &[u8]) -> Option<()> {
    let (mut fields, mut count) = (Fields(endpoints), 0);
    while let Some((field, value)) = fields.next()? {
        count += 1;
        match field {
            1 => drop(value.number()?),
            2 if count <= ADDRESSES_MAX => read_address(value.bytes()?)?,
            _ => return None,
        }
    }
    Some(())
}

fn read_address(address: &[u8]) -> Option<()> {
    let (mut fields, mut once) = (Fields(address), Once::default());
    while let Some((field, value)) = fields.next()? {
        once.take(field)?;
        match field {
            1 => drop(text(value)?),
            2 => drop(value.number()?),
            _ => return None,
        }
    }
    Some(())
}

/// Numbers below 128, packed.
fn read_types(types: &[u8]) -> Option<()> {
    types.is_ascii().then_some(())
}

/// A filter that leaves nothing out.
fn read_filter(filter: &[u8]) -> Option<&str> {
    let (mut fields, mut once) = (Fields(filter), Once::default());
    let mut tags = "";
    while let Some((field, value)) = fields.next()? {
        once.take(field)?;
        match (field, value) {
            (1, Value::Number(kind)) if kind as i64 <= TAG_MAX && kind as i64 >= 0 => {}
            (2, Value::Bytes(b"*" | b"")) => {}
            (2, Value::Bytes(text)) => {
                tags = std::str::from_utf8(text).ok()?;
                let is_usual = tags.len() <= TAGS_BYTES_MAX && wanted_tags(tags).all(is_plain_tag);
                is_usual.then_some(())?;
            }
            _ => return None,
        }
    }
    Some(tags)
}

/// The tags of an expression.
pub fn wanted_tags(expression: &str) -> impl Iterator<Item = &str> {
    expression.split("||").map(|tag| tag.trim_matches(' '))
}

/// Whether any client means a tag by that; what else an expression may have is Python's to read.
fn is_plain_tag(tag: &str) -> bool {
    !tag.is_empty()
        && tag.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.%".contains(&byte))
}

/// Whether a message has one of the tags of an expression.
#[must_use]
pub fn has_tag(record: &RecordView<'_>, expression: &str) -> bool {
    let tag = Marks::scan(record.properties).tags;
    tag.is_some_and(|tag| wanted_tags(expression).any(|wanted| wanted.as_bytes() == tag))
}

/// A message that is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub message_id: &'a [u8],
    pub handle: &'a [u8],
    pub receipt: Receipt<'a>,
}

/// Acknowledgements of messages of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acks<'a> {
    pub group: &'a [u8],
    pub topic: &'a [u8],
    pub entries: Vec<Entry<'a>>,
}

/// Reads an `AckMessageRequest`; None: it is not usual.
#[must_use]
pub fn read_acks(request: &[u8]) -> Option<Acks<'_>> {
    let mut found = Acks::default();
    let (mut fields, mut once) = (Fields(request), Once::default());
    while let Some((field, value)) = fields.next()? {
        let bytes = value.bytes()?;
        if field == 3 {
            if found.entries.len() == ACKS_MAX {
                return None;
            }
            found.entries.push(read_entry(bytes)?);
            continue;
        }
        once.take(field)?;
        match field {
            1 => found.group = read_name(bytes)?,
            2 => found.topic = read_name(bytes)?,
            _ => return None,
        }
    }
    let is_usual = !found.group.is_empty() && !found.topic.is_empty() && !found.entries.is_empty();
    is_usual.then_some(found)
}

fn read_entry(entry: &[u8]) -> Option<Entry<'_>> {
    let (mut message_id, mut handle): (&[u8], &[u8]) = (b"", b"");
    let (mut fields, mut once) = (Fields(entry), Once::default());
    while let Some((field, value)) = fields.next()? {
        once.take(field)?;
        match field {
            1 => message_id = text(value)?,
            2 => handle = value.bytes().filter(|bytes| bytes.is_ascii())?,
            _ => return None,
        }
    }
    Some(Entry { message_id, handle, receipt: Receipt::read(handle, true)? })
}

/// Writes the answer to acknowledgements that are all done: an `AckMessageResponse` with its prefix.
pub fn push_acked(out: &mut Vec<u8>, acks: &Acks<'_>) {
    let status = ok();
    with_prefix(out, |out| {
        push_message(out, 1, &status);
        for Entry { message_id, handle, .. } in &acks.entries {
            let size = bytes_field(message_id) + bytes_field(handle) + bytes_field(&status);
            start_message(out, 2, size);
            push_bytes(out, 1, message_id);
            push_bytes(out, 2, handle);
            push_bytes(out, 3, &status);
        }
    });
}

/// How many bytes a field takes that holds these; none are left out.
fn bytes_field(bytes: &[u8]) -> usize {
    if bytes.is_empty() { 0 } else { 1 + varint_bytes(bytes.len() as u64) + bytes.len() }
}

fn ok() -> Vec<u8> {
    let mut status = Vec::with_capacity(16);
    push_number(&mut status, 1, OK);
    push_bytes(&mut status, 2, OK_TEXT);
    status
}

/// The records of a pop, which follow each other; the last item is None where they are torn.
pub fn records(mut data: &[u8]) -> impl Iterator<Item = Option<RecordView<'_>>> {
    std::iter::from_fn(move || {
        if data.is_empty() {
            return None;
        }
        let size = usize::try_from(record::int(data, 0)).unwrap_or(0);
        let Some((head, rest)) = data.split_at_checked(size.max(1)) else {
            data = &[];
            return Some(None);
        };
        data = rest;
        let found = record::view(head);
        if found.is_none() {
            data = &[];
        }
        Some(found)
    })
}

/// Whether all records can be told by [`push_received`] as Python tells them.
#[must_use]
pub fn are_usual(data: &[u8]) -> bool {
    records(data).all(|found| found.is_some_and(|record| is_usual(&record)))
}

fn is_usual(record: &RecordView<'_>) -> bool {
    record.sys_flag & COMPRESSED == 0
        && record.born_host.len() == 8
        && record.store_host.len() == 8
        && record.born_timestamp >= 0
        && record.store_timestamp >= 0
        && std::str::from_utf8(record.properties).is_ok()
}

/// Buffers of [`push_received`], used again.
#[derive(Debug, Default)]
pub struct Scratch {
    head: Vec<u8>,
    system: Vec<u8>,
    text: Vec<u8>,
}

/// Which delivery messages are of.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    pub topic: &'a [u8],
    pub broker: &'a [u8],
    pub start: i64,
    pub pop_time: i64,
    pub invisible_ms: i64,
}

/// Writes that a receive got messages: a `ReceiveMessageResponse` with its prefix.
pub fn push_found(out: &mut Vec<u8>) {
    with_prefix(out, |out| push_message(out, 1, &ok()));
}

/// Writes when the answer to a receive was made.
pub fn push_time(out: &mut Vec<u8>, now_ms: i64) {
    let mut time = Vec::with_capacity(16);
    push_ms(&mut time, now_ms);
    with_prefix(out, |out| push_message(out, 3, &time));
}

/// Writes a received message: a `ReceiveMessageResponse` with its prefix.
pub fn push_received(
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
    record: &RecordView<'_>,
    delivery: &Delivery<'_>,
) {
    let Scratch { head, system, text } = scratch;
    let told = Told::of(record.properties);
    head.clear();
    start_message(head, 1, bytes_field(delivery.topic));
    push_bytes(head, 2, delivery.topic);
    for (name, value) in &told.user_properties {
        start_message(head, 2, bytes_field(name) + bytes_field(value));
        push_bytes(head, 1, name);
        push_bytes(head, 2, value);
    }
    system.clear();
    push_system(system, text, record, &told, delivery);
    push_message(head, 3, system);
    let size = head.len() + bytes_field(record.body);
    with_prefix(out, |out| {
        start_message(out, 2, size);
        out.extend_from_slice(head);
        push_bytes(out, 4, record.body);
    });
}

/// What the properties of a record say. Of a name that stands twice the last counts.
#[derive(Default)]
struct Told<'a> {
    user_properties: Vec<(&'a [u8], &'a [u8])>,
    tag: &'a [u8],
    keys: &'a [u8],
    message_id: &'a [u8],
    born_host: &'a [u8],
    message_group: Option<&'a [u8]>,
    trace_context: &'a [u8],
    dead_topic: &'a [u8],
    dead_id: &'a [u8],
    deliver: &'a [u8],
    is_prepared: bool,
    is_delayed: bool,
}

impl<'a> Told<'a> {
    fn of(text: &'a [u8]) -> Self {
        let mut told = Self::default();
        for (name, value) in record::properties(text) {
            match name {
                property::TAGS => told.tag = value,
                property::KEYS => told.keys = value,
                property::UNIQUE_KEY => told.message_id = value,
                USED_BORN_HOST => told.born_host = value,
                USED_SHARDING_KEY => told.message_group = Some(value),
                USED_TRACE_CONTEXT => told.trace_context = value,
                DEAD_LETTER_TOPIC => told.dead_topic = value,
                DEAD_LETTER_ID => told.dead_id = value,
                property::TRANSACTION_PREPARED => {
                    told.is_prepared = value.eq_ignore_ascii_case(b"true");
                }
                property::DELAY | property::TIMER_DELAY_SECONDS => told.is_delayed = true,
                property::TIMER_DELIVER => (told.is_delayed, told.deliver) = (true, value),
                _ if SYSTEM_PROPERTIES.binary_search(&name).is_err() => {
                    told.user_properties.push((name, value));
                }
                _ => {}
            }
        }
        told.user_properties.sort_by_key(|(name, _)| *name);
        // Of equal names the last is kept.
        told.user_properties.reverse();
        told.user_properties.dedup_by_key(|(name, _)| *name);
        told.user_properties.reverse();
        told
    }

    const fn kind(&self) -> u64 {
        if self.is_prepared {
            TRANSACTION
        } else if self.is_delayed {
            DELAY
        } else if self.message_group.is_some() {
            FIFO
        } else {
            NORMAL
        }
    }
}

fn push_system(
    system: &mut Vec<u8>,
    text: &mut Vec<u8>,
    record: &RecordView<'_>,
    told: &Told<'_>,
    delivery: &Delivery<'_>,
) {
    push_bytes(system, 1, told.tag);
    for key in keys(told.keys) {
        push_bytes(system, 2, key);
    }
    if told.message_id.is_empty() {
        // The id that the broker gave.
        text.clear();
        push_hex(text, record.store_host);
        push_hex(text, &record.physical_offset.to_be_bytes());
        push_bytes(system, 3, text);
    } else {
        push_bytes(system, 3, told.message_id);
    }
    text.clear();
    push_hex(text, &Md5::digest(record.body));
    start_message(system, 4, 2 + bytes_field(text));
    push_number(system, 1, MD5);
    push_bytes(system, 2, text);
    push_number(system, 5, IDENTITY);
    push_number(system, 6, told.kind());
    push_time_field(system, text, 7, record.born_timestamp);
    if told.born_host.is_empty() {
        push_host(system, text, 8, record.born_host);
    } else {
        push_bytes(system, 8, told.born_host);
    }
    push_time_field(system, text, 9, record.store_timestamp);
    push_host(system, text, 10, record.store_host);
    if let Some(at) = moment(told.deliver) {
        push_time_field(system, text, 11, at);
    }
    receipt(text, record, delivery);
    push_bytes(system, 12, text);
    push_number(system, 13, i64::from(record.queue_id) as u64);
    push_told_number(system, 14, record.queue_offset as u64);
    let attempt = i64::from(record.reconsume_times) + 1;
    push_told_number(system, 16, attempt as u64);
    push_bytes(system, 17, told.message_group.unwrap_or_default());
    push_bytes(system, 18, told.trace_context);
    if !told.dead_topic.is_empty() && !told.dead_id.is_empty() {
        start_message(system, 20, bytes_field(told.dead_topic) + bytes_field(told.dead_id));
        push_bytes(system, 1, told.dead_topic);
        push_bytes(system, 2, told.dead_id);
    }
}

/// The words of a text, as `str.split` of Python finds them.
fn keys(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = std::str::from_utf8(text).unwrap_or_default();
    let is_blank = |letter: char| letter.is_whitespace() || ('\x1c'..='\x1f').contains(&letter);
    text.split(is_blank).filter(|word| !word.is_empty()).map(str::as_bytes)
}

/// Bytes in upper-case hex.
fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    let digits = |byte: &u8| [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
    out.extend(bytes.iter().flat_map(digits));
}

/// The seconds and nanoseconds of a time.
fn push_ms(out: &mut Vec<u8>, ms: i64) {
    push_number(out, 1, (ms / 1_000) as u64);
    push_number(out, 2, (ms % 1_000 * 1_000_000) as u64);
}

fn push_time_field(out: &mut Vec<u8>, text: &mut Vec<u8>, field: u8, ms: i64) {
    text.clear();
    push_ms(text, ms);
    push_message(out, field, text);
}

/// The address of an IPv4 host.
fn push_host(out: &mut Vec<u8>, text: &mut Vec<u8>, field: u8, host: &[u8]) {
    text.clear();
    for (place, byte) in host.iter().take(4).enumerate() {
        if place > 0 {
            text.push(b'.');
        }
        push_decimal(text, i64::from(*byte));
    }
    push_bytes(out, field, text);
}

fn moment(text: &[u8]) -> Option<i64> {
    let is_number =
        (1..=MOMENT_DIGITS_MAX).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    is_number.then(|| text.iter().fold(0, |number, digit| 10 * number + i64::from(digit - b'0')))
}

/// `PopReceipt.text` of Python.
fn receipt(text: &mut Vec<u8>, record: &RecordView<'_>, delivery: &Delivery<'_>) {
    text.clear();
    for number in [delivery.start, delivery.pop_time, delivery.invisible_ms] {
        push_decimal(text, number);
        text.push(b' ');
    }
    text.extend_from_slice(b"0 0 ");
    text.extend_from_slice(delivery.broker);
    for number in [i64::from(record.queue_id), record.queue_offset, record.physical_offset] {
        text.push(b' ');
        push_decimal(text, number);
    }
}
