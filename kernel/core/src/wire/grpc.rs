//! The frequent calls of clients of RocketMQ 5, as far as they are usual.
//!
//! Whatever is not is declined: `broker/grpc` is complete by itself, and explains what is wrong.

use super::protobuf::{Fields, Value, push_bytes, push_message, push_number};
use crate::protocol::grpc::{
    ACK_MESSAGE, AUTHORIZATION, CLIENT_ID, CLIENT_ID_BYTES_MAX, DATE_TIME, MESSAGE_GROUP_BYTES_MAX,
    OK, POLL_MS_MIN, PREFIX_BYTES, PROPERTIES_BYTES_MAX, PROPERTIES_MAX, RECEIVE_MESSAGE,
    SEND_MESSAGE, SYSTEM_PROPERTIES, USED_BORN_HOST, USED_BORN_TIMESTAMP, USED_SHARDING_KEY,
    USED_TRACE_CONTEXT, code_of,
};
use crate::protocol::{ITEM_END, NAME_BYTES_MAX, NAME_END, property};
use crate::wire::answer::push_decimal;

/// Bytes of a hash of SHA-1.
pub const HASH_BYTES: usize = 20;

/// Longer headers of an account are for Python.
const CLAIM_BYTES_MAX: usize = 512;

/// Digits of a deadline, and the letters of its unit.
const TIMEOUT_DIGITS_MAX: usize = 8;
const TIMEOUT_UNITS: &[u8] = b"HMSmun";

/// Numbers of `MessageType` that need nothing special; what a message has says which it is.
const TYPE_UNSPECIFIED: i64 = 0;
const TYPE_FIFO: i64 = 2;

/// The numbers of `Encoding` of a body that is stored as it is.
const ENCODING_IDENTITY_MAX: i64 = 1;

/// What the text of the status of success says.
pub(super) const OK_TEXT: &[u8] = b"OK";

/// What that of a message says which is stored, but not as it should be.
const STORED_TEXT: &[u8] = b"stored";

/// A call that may be answered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Send,
    Receive,
    Ack,
}

/// What usual headers ask for, and the id of their client.
#[must_use]
pub fn read_head<'a>(
    headers: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Option<(Asked, &'a str)> {
    let (mut method, mut path, mut kind, mut client, mut timeout): (_, _, _, _, Option<&[u8]>) =
        (&b""[..], &b""[..], &b""[..], &b""[..], None);
    for (name, value) in headers {
        match name {
            b":method" => method = value,
            b":path" => path = value,
            b"content-type" => kind = value,
            b"grpc-timeout" => timeout = Some(value),
            CLIENT_ID => client = value,
            _ => {}
        }
    }
    let asked = match path {
        SEND_MESSAGE => Asked::Send,
        RECEIVE_MESSAGE => Asked::Receive,
        ACK_MESSAGE => Asked::Ack,
        _ => return None,
    };
    let is_usual = method == b"POST"
        && kind.starts_with(b"application/grpc")
        && client.len() <= CLIENT_ID_BYTES_MAX
        && client.is_ascii()
        && is_shown(client)
        && timeout.is_none_or(is_timeout)
        && (asked != Asked::Receive || timeout.is_none_or(is_long));
    let client = std::str::from_utf8(client).ok()?;
    is_usual.then_some((asked, client))
}

/// Who says that he made a call, and the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    pub access_key: &'a [u8],
    /// The text that is signed: the time, as the client writes it.
    pub time: &'a [u8],
    /// `HmacSHA1` of the time.
    pub hash: [u8; HASH_BYTES],
}

/// Reads the account of a call (`MQv2-HMAC-SHA1`); None: it has none, or one that is not certain.
#[must_use]
pub fn read_claim<'a>(headers: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Option<Claim<'a>> {
    let (mut text, mut time) = (&b""[..], &b""[..]);
    for (name, value) in headers {
        match name {
            AUTHORIZATION => text = value,
            DATE_TIME => time = value,
            _ => {}
        }
    }
    let is_plain = |text: &[u8]| text.iter().all(|byte| (b' '..=b'~').contains(byte));
    let is_short = text.len() <= CLAIM_BYTES_MAX && time.len() <= CLAIM_BYTES_MAX;
    if time.is_empty() || !is_short || !is_plain(text) || !is_plain(time) {
        return None;
    }
    let text = text.trim_ascii();
    let members = &text[text.iter().position(|byte| *byte == b' ')?..];
    let (mut access_key, mut hash) = (None, None);
    for member in members.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
        let sign = member.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (&member[..sign], &member[sign + 1..]);
        let known = match name {
            b"Credential" => &mut access_key,
            b"Signature" => &mut hash,
            _ => continue,
        };
        if known.replace(value).is_some() {
            return None;
        }
    }
    // Behind the key some clients name a region and a service.
    let access_key = access_key?.split(|byte| *byte == b'/').next()?;
    let hash = hash_of_hex(hash?)?;
    (!access_key.is_empty()).then_some(Claim { access_key, time, hash })
}

fn hash_of_hex(text: &[u8]) -> Option<[u8; HASH_BYTES]> {
    let mut hash = [0; HASH_BYTES];
    let (digits, []) = text.as_chunks::<2>() else { return None };
    if digits.len() != HASH_BYTES {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(digits) {
        let digit = |at: usize| (pair[at] as char).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(hash)
}

/// Whether a receive has time to wait before such a deadline: others are explained by Python.
fn is_long(timeout: &[u8]) -> bool {
    let (unit, digits) = timeout.split_last().unwrap_or((&0, &[]));
    let number = digits.iter().fold(0, |number, digit| 10 * number + u64::from(digit - b'0'));
    let least_ms = POLL_MS_MIN + 1_000;
    match unit {
        b'S' => number * 1_000 > least_ms,
        b'm' => number > least_ms,
        b'u' => number / 1_000 > least_ms,
        b'n' => number / 1_000_000 > least_ms,
        _ => number > 0,
    }
}

fn is_timeout(text: &[u8]) -> bool {
    text.split_last().is_some_and(|(unit, digits)| {
        TIMEOUT_UNITS.contains(unit)
            && (1..=TIMEOUT_DIGITS_MAX).contains(&digits.len())
            && digits.iter().all(u8::is_ascii_digit)
    })
}

/// Whether a text has something other than blanks for certain.
fn is_shown(text: &[u8]) -> bool {
    text.iter().any(u8::is_ascii_graphic)
}

/// Whether a text has no control characters, those above U+007F neither.
fn is_plain(text: &[u8]) -> bool {
    !text.iter().any(u8::is_ascii_control)
        && !text.windows(2).any(|pair| pair[0] == 0xC2 && (0x80..0xA0).contains(&pair[1]))
}

/// The one message of a stream that has no more; None: it is not whole, or compressed.
#[must_use]
pub fn only_message(data: &[u8]) -> Option<&[u8]> {
    let (prefix, message) = data.split_first_chunk::<PREFIX_BYTES>()?;
    let [0, size @ ..] = *prefix else {
        return None;
    };
    (u32::from_be_bytes(size) as usize == message.len()).then_some(message)
}

/// One message that is sent, of no moment and no transaction.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sent<'a> {
    pub topic: &'a [u8],
    pub message_id: &'a [u8],
    pub body: &'a [u8],
    pub born_timestamp: i64,
    /// Of messages that are received in order; empty: none.
    pub group: &'a [u8],
    tag: Option<&'a [u8]>,
    keys: Vec<&'a [u8]>,
    born_host: &'a [u8],
    trace_context: &'a [u8],
    user_properties: Vec<(&'a [u8], &'a [u8])>,
}

/// Fields that came already; one that comes again is declined.
#[derive(Default)]
pub(super) struct Once(u64);

impl Once {
    pub(super) fn take(&mut self, field: u64) -> Option<()> {
        let bit = 1_u64.checked_shl(u32::try_from(field).ok()?)?;
        let is_first = self.0 & bit == 0;
        self.0 |= bit;
        is_first.then_some(())
    }
}

/// Reads a `SendMessageRequest` of one message; None: it is not usual.
#[must_use]
pub fn read_send(request: &[u8]) -> Option<Sent<'_>> {
    let mut fields = Fields(request);
    let (1, Value::Bytes(message)) = fields.next()?? else {
        return None;
    };
    if fields.next()?.is_some() {
        return None;
    }
    let mut sent = Sent::default();
    let (mut fields, mut once) = (Fields(message), Once::default());
    while let Some((field, value)) = fields.next()? {
        let bytes = value.bytes()?;
        if field == 2 {
            sent.user_properties.push(read_property(bytes)?);
            continue;
        }
        once.take(field)?;
        match field {
            1 => sent.topic = read_name(bytes)?,
            3 => read_system(bytes, &mut sent)?,
            4 => sent.body = bytes,
            _ => return None,
        }
    }
    sent.is_usual().then_some(sent)
}

/// The name of a resource without a namespace.
pub(super) fn read_name(resource: &[u8]) -> Option<&[u8]> {
    let mut fields = Fields(resource);
    let (2, Value::Bytes(name)) = fields.next()?? else {
        return None;
    };
    fields.next()?.is_none().then_some(name)
}

fn read_property(entry: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = Fields(entry);
    let (1, Value::Bytes(name)) = fields.next()?? else {
        return None;
    };
    let (2, Value::Bytes(value)) = fields.next()?? else {
        return None;
    };
    fields.next()?.is_none().then_some((name, value))
}

fn read_system<'a>(system: &'a [u8], sent: &mut Sent<'a>) -> Option<()> {
    let (mut fields, mut once) = (Fields(system), Once::default());
    while let Some((field, value)) = fields.next()? {
        if field == 2 {
            sent.keys.push(value.bytes()?);
            continue;
        }
        once.take(field)?;
        match field {
            1 => sent.tag = Some(value.bytes()?),
            3 => sent.message_id = value.bytes()?,
            // What the body's digest is nobody asks here.
            4 => drop(value.bytes()?),
            5 if value.number()? <= ENCODING_IDENTITY_MAX => {}
            6 if (TYPE_UNSPECIFIED..=TYPE_FIFO).contains(&value.number()?) => {}
            7 => sent.born_timestamp = read_ms(value.bytes()?)?,
            8 => sent.born_host = value.bytes()?,
            // The queue is the broker's choice.
            13 => drop(value.number()?),
            17 => sent.group = value.bytes()?,
            18 => sent.trace_context = value.bytes()?,
            _ => return None,
        }
    }
    Some(())
}

/// The milliseconds of a `Timestamp` or a `Duration`.
pub(super) fn read_ms(time: &[u8]) -> Option<i64> {
    let (mut fields, mut once) = (Fields(time), Once::default());
    let mut ms = 0_i64;
    while let Some((field, value)) = fields.next()? {
        once.take(field)?;
        let number = value.number().filter(|number| *number >= 0)?;
        ms = ms.checked_add(match field {
            1 => number.checked_mul(1_000)?,
            2 if number < 1_000_000_000 => number / 1_000_000,
            _ => return None,
        })?;
    }
    Some(ms)
}

impl Sent<'_> {
    /// Whether its texts are as clients write them (`GrpcValidator`); it sorts the properties.
    fn is_usual(&mut self) -> bool {
        let Self { message_id, tag, keys, user_properties, .. } = self;
        user_properties.sort_unstable();
        let is_repeated = user_properties.windows(2).any(|pair| pair[0].0 == pair[1].0);
        let is_text = |text: &[u8]| is_shown(text) && is_plain(text);
        let mut size = tag.map_or(0, <[u8]>::len) + keys.iter().map(|key| key.len()).sum::<usize>();
        size += user_properties.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        !is_repeated
            && self.born_timestamp > 0
            && message_id.len() <= NAME_BYTES_MAX
            && is_text(message_id)
            && tag.is_none_or(|tag| is_text(tag) && !tag.contains(&b'|'))
            && keys.iter().all(|key| is_text(key))
            && self.group.len() <= MESSAGE_GROUP_BYTES_MAX
            && self.group.is_ascii()
            && (self.group.is_empty() || is_text(self.group))
            && !self.born_host.is_empty()
            && is_plain(self.born_host)
            && is_plain(self.trace_context)
            && user_properties.len() <= PROPERTIES_MAX
            && size <= PROPERTIES_BYTES_MAX
            && user_properties.iter().all(|(name, value)| {
                !name.is_empty()
                    && !value.is_empty()
                    && is_plain(name)
                    && is_plain(value)
                    && SYSTEM_PROPERTIES.binary_search(name).is_err()
            })
    }

    /// The queue of a topic that the message's group has: `Hashing.consistentHash` of Guava, of the
    /// group's `String.hashCode`.
    #[must_use]
    pub fn queue_of_group(&self, queues: u32) -> u32 {
        let hash = |sum: i32, byte: &u8| sum.wrapping_mul(31).wrapping_add(i32::from(*byte));
        let mut state = i64::from(self.group.iter().fold(0, hash)) as u64;
        let mut candidate = 0;
        loop {
            state = state.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
            let part = f64::from((state >> 33) as u32 + 1) / f64::from(1_u32 << 31);
            let next = f64::from(candidate + 1) / part;
            if next >= f64::from(queues) {
                return candidate;
            }
            candidate = next as u32;
        }
    }

    /// Writes the properties of the record (`stored_properties` of `broker/grpc/records.py`).
    pub fn property_text(&self, out: &mut Vec<u8>) {
        out.clear();
        let mut item = |name: &[u8], values: &[&[u8]]| {
            if !out.is_empty() {
                out.push(ITEM_END);
            }
            out.extend_from_slice(name);
            out.push(NAME_END);
            for (number, value) in values.iter().enumerate() {
                if number > 0 {
                    out.push(b' ');
                }
                out.extend_from_slice(value);
            }
        };
        for (name, value) in &self.user_properties {
            item(name, &[value]);
        }
        item(property::UNIQUE_KEY, &[self.message_id]);
        if let Some(tag) = self.tag {
            item(property::TAGS, &[tag]);
        }
        if !self.keys.is_empty() {
            item(property::KEYS, &self.keys);
        }
        if !self.group.is_empty() {
            item(USED_SHARDING_KEY, &[self.group]);
        }
        if !self.trace_context.is_empty() {
            item(USED_TRACE_CONTEXT, &[self.trace_context]);
        }
        item(property::PRODUCER_GROUP, &[self.topic]);
        item(USED_BORN_HOST, &[self.born_host]);
        item(USED_BORN_TIMESTAMP, &[]);
        push_decimal(out, self.born_timestamp);
    }
}

/// Writes the answer to a message that is stored, with its prefix: a `SendMessageResponse`. `code`
/// is that of remoting.
pub fn push_sent(out: &mut Vec<u8>, code: u8, message_id: &[u8], offset: i64) {
    let mut status = Vec::with_capacity(16);
    push_number(&mut status, 1, code_of(code));
    let text = if code_of(code) == OK { OK_TEXT } else { STORED_TEXT };
    push_bytes(&mut status, 2, text);
    let mut entry = Vec::with_capacity(64);
    push_message(&mut entry, 1, &status);
    push_bytes(&mut entry, 2, message_id);
    push_number(&mut entry, 4, offset as u64);
    with_prefix(out, |out| {
        push_message(out, 1, &status);
        push_message(out, 2, &entry);
    });
}

/// Writes a message with its prefix.
pub(super) fn with_prefix(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    write(out);
    let size = out.len() - start - PREFIX_BYTES;
    out[start + 1..start + PREFIX_BYTES].copy_from_slice(&(size as u32).to_be_bytes());
}
