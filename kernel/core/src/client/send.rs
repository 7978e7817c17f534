//! Frames of fast-path sends: `SEND_MESSAGE_V2` with a JSON header, as the slow path writes them.

use crate::protocol::{
    FLAG_ONEWAY, FRAME_BYTES_MAX, ITEM_END, JSON_TAIL, NAME_END, PROPERTIES_BYTES_MAX, property,
    request,
};
use crate::wire::answer::push_decimal;
use crate::wire::swar;

/// Property names that a send writes by itself, behind the user's own.
const OWN_NAMES: [&[u8]; 4] =
    [property::KEYS, property::TAGS, property::WAIT, property::UNIQUE_KEY];

/// Longer keys and tags take the slow path, which knows how long a property text may be.
const FAST_BYTES_MAX: usize = 1_024;

/// A batch's item without body and properties.
const BATCH_ITEM_BYTES: usize = 22;

/// What all frames of one producer's messages of one topic have in common.
#[derive(Debug)]
pub struct SendHead {
    head: Vec<u8>,
    middle: Vec<u8>,
    names: OwnNames,
}

/// Names and separators of the properties that a send writes by itself, escaped.
#[derive(Debug)]
struct OwnNames {
    keys: Vec<u8>,
    tags: Vec<u8>,
    next: Vec<u8>,
    /// Of WAIT and its value, false or true, up to the value of the id.
    waits: [Vec<u8>; 2],
}

/// What a send says of a message that has no properties of its user.
#[derive(Clone, Copy, Debug)]
pub struct OwnProperties<'a> {
    /// Its keys as one text.
    pub keys: &'a str,
    /// Its tags.
    pub tags: &'a str,
    /// Its WAIT.
    pub is_waiting: bool,
    /// Its id.
    pub message_id: &'a str,
}

impl OwnProperties<'_> {
    /// The property text is short, and has nothing to escape but what ends names and values.
    #[must_use]
    pub fn is_fast(&self) -> bool {
        let mut texts = [self.keys, self.tags, self.message_id].into_iter().map(str::as_bytes);
        texts.all(|text| text.len() <= FAST_BYTES_MAX && find_escaped(text, 0) == text.len())
    }
}

/// What is a frame's own.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Where the message goes.
    pub queue_id: i64,
    /// The request's.
    pub opaque: i64,
    /// When the message is born.
    pub now_ms: i64,
    /// The message's.
    pub flag: i64,
}

/// The fixed parts of all of one producer's requests of one topic.
#[derive(Debug)]
pub struct SendHeads {
    /// Of single messages.
    pub single: SendHead,
    /// Of those that nobody answers.
    pub oneway: SendHead,
    /// Of batches.
    pub batch: SendHead,
}

impl SendHeads {
    /// As [`SendHead::new`], of each kind.
    #[must_use]
    pub fn new(group: &str, topic: &str, template: &str, queues: i64, is_unit: bool) -> Self {
        let head = |is_batch, is_oneway| {
            SendHead::new(group, topic, template, queues, is_unit, is_batch, is_oneway)
        };
        Self { single: head(false, false), oneway: head(false, true), batch: head(true, false) }
    }
}

impl SendHead {
    /// The fixed parts of the headers of single messages, of those that nobody answers, or of
    /// batches.
    #[must_use]
    pub fn new(
        group: &str,
        topic: &str,
        template: &str,
        queues: i64,
        is_unit: bool,
        is_batch: bool,
        is_oneway: bool,
    ) -> Self {
        let code = if is_batch { request::SEND_BATCH_MESSAGE } else { request::SEND_MESSAGE_V2 };
        let mut head = b"{\"code\":".to_vec();
        push_decimal(&mut head, i64::from(code));
        head.extend_from_slice(b",\"extFields\":{\"a\":\"");
        push_escaped(&mut head, group.as_bytes());
        for (name, text) in [("b", topic), ("c", template)] {
            head.extend_from_slice(b"\",\"");
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(b"\":\"");
            push_escaped(&mut head, text.as_bytes());
        }
        head.extend_from_slice(b"\",\"d\":\"");
        push_decimal(&mut head, queues);
        head.extend_from_slice(b"\",\"e\":\"");
        let word = |is: bool| if is { "true" } else { "false" };
        let middle = format!(
            "\",\"j\":\"0\",\"k\":\"{}\",\"m\":\"{}\"}},\"flag\":{},\"language\":\"PYTHON\",\"opaque\":",
            word(is_unit),
            word(is_batch),
            if is_oneway { FLAG_ONEWAY } else { 0 },
        );
        Self { head, middle: middle.into_bytes(), names: OwnNames::new() }
    }

    /// Appends a request to a buffer; None: no frame holds it, and the buffer is as before.
    pub fn push(
        &self,
        out: &mut Vec<u8>,
        numbers: Numbers,
        properties: &[u8],
        body: &[u8],
    ) -> Option<()> {
        self.push_frame(out, numbers, body, |out| push_escaped(out, properties))
    }

    /// As [`SendHead::push`], with properties that are for the fast path.
    pub fn push_fast(
        &self,
        out: &mut Vec<u8>,
        numbers: Numbers,
        own: OwnProperties<'_>,
        body: &[u8],
    ) -> Option<()> {
        self.push_frame(out, numbers, body, |out| self.names.push(out, own))
    }

    #[inline]
    fn push_frame(
        &self,
        out: &mut Vec<u8>,
        numbers: Numbers,
        body: &[u8],
        push_properties: impl FnOnce(&mut Vec<u8>),
    ) -> Option<()> {
        let start = out.len();
        out.extend_from_slice(&[0; 8]); // the lengths
        out.extend_from_slice(&self.head);
        push_decimal(out, numbers.queue_id);
        out.extend_from_slice(b"\",\"f\":\"0\",\"g\":\"");
        push_decimal(out, numbers.now_ms);
        out.extend_from_slice(b"\",\"h\":\"");
        push_decimal(out, numbers.flag);
        out.extend_from_slice(b"\",\"i\":\"");
        push_properties(out);
        out.extend_from_slice(&self.middle);
        push_decimal(out, numbers.opaque);
        out.extend_from_slice(JSON_TAIL);
        let header = out.len() - start - 8;
        let size = 4 + header + body.len();
        if size > FRAME_BYTES_MAX {
            out.truncate(start);
            return None;
        }
        out[start..start + 4].copy_from_slice(&(size as u32).to_be_bytes());
        out[start + 4..start + 8].copy_from_slice(&(header as u32).to_be_bytes());
        out.extend_from_slice(body);
        Some(())
    }
}

impl OwnNames {
    fn new() -> Self {
        let escaped = |parts: &[&[u8]]| {
            let mut out = Vec::new();
            push_escaped(&mut out, &parts.concat());
            out
        };
        let (name_end, next): (&[u8], &[u8]) = (&[NAME_END], &[ITEM_END]);
        let wait = |value: &[u8]| {
            escaped(&[property::WAIT, name_end, value, next, property::UNIQUE_KEY, name_end])
        };
        Self {
            keys: escaped(&[property::KEYS, name_end]),
            tags: escaped(&[property::TAGS, name_end]),
            next: escaped(&[next]),
            waits: [wait(b"false"), wait(b"true")],
        }
    }

    /// Appends a property text, inside JSON quotes.
    fn push(&self, out: &mut Vec<u8>, own: OwnProperties<'_>) {
        for (name, value) in [(&self.keys, own.keys), (&self.tags, own.tags)] {
            if !value.is_empty() {
                out.extend_from_slice(name);
                out.extend_from_slice(value.as_bytes());
                out.extend_from_slice(&self.next);
            }
        }
        out.extend_from_slice(&self.waits[usize::from(own.is_waiting)]);
        out.extend_from_slice(own.message_id.as_bytes());
    }
}

/// The property text of one message under construction.
#[derive(Debug)]
pub struct PropertyText<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
}

impl<'a> PropertyText<'a> {
    /// A text that is appended to a buffer.
    pub const fn begin(out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        Self { out, start }
    }

    /// Adds one of the user's properties; None: it would be read as others, or be replaced.
    pub fn user(&mut self, name: &str, value: &str) -> Option<()> {
        if OWN_NAMES.contains(&name.as_bytes()) {
            return None;
        }
        self.push(name.as_bytes(), value)
    }

    /// Adds what a send says of itself behind the user's properties, and ends the text: how many
    /// bytes it has. None: as above, or it is too long.
    pub fn end(
        mut self,
        keys: &str,
        tags: &str,
        is_waiting: bool,
        message_id: &str,
    ) -> Option<usize> {
        if !keys.is_empty() {
            self.push(property::KEYS, keys)?;
        }
        if !tags.is_empty() {
            self.push(property::TAGS, tags)?;
        }
        self.push(property::WAIT, if is_waiting { "true" } else { "false" })?;
        self.push(property::UNIQUE_KEY, message_id)?;
        let size = self.out.len() - self.start;
        (size <= PROPERTIES_BYTES_MAX).then_some(size)
    }

    fn push(&mut self, name: &[u8], value: &str) -> Option<()> {
        if is_splitting(name) || is_splitting(value.as_bytes()) {
            return None;
        }
        if self.out.len() > self.start {
            self.out.push(ITEM_END);
        }
        self.out.extend_from_slice(name);
        self.out.push(NAME_END);
        self.out.extend_from_slice(value.as_bytes());
        Some(())
    }
}

/// Makes a buffer the property text of a batch itself.
pub fn set_wait(out: &mut Vec<u8>, is_waiting: bool) {
    out.clear();
    out.extend_from_slice(property::WAIT);
    out.push(NAME_END);
    out.extend_from_slice(if is_waiting { b"true" } else { b"false" });
}

/// Appends a message of a batch to its body.
///
/// `properties` is its property text.
pub fn push_item(out: &mut Vec<u8>, flag: i32, body: &[u8], properties: &[u8]) {
    let size = BATCH_ITEM_BYTES + body.len() + properties.len();
    out.extend_from_slice(&(size as u32).to_be_bytes());
    out.extend_from_slice(&[0; 8]); // magic and CRC, which the broker makes
    out.extend_from_slice(&flag.to_be_bytes());
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(&(properties.len() as u16).to_be_bytes());
    out.extend_from_slice(properties);
}

/// A text that would be read as more than one name or value.
fn is_splitting(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(*byte, NAME_END | ITEM_END))
}

/// Text inside JSON quotes, with the escapes of the Python encoder.
fn push_escaped(out: &mut Vec<u8>, text: &[u8]) {
    let mut start = 0;
    loop {
        let at = find_escaped(text, start);
        out.extend_from_slice(&text[start..at]);
        let Some(&byte) = text.get(at) else { return };
        start = at + 1;
        let short = match byte {
            b'"' | b'\\' => byte,
            8 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            12 => b'f',
            b'\r' => b'r',
            _ => {
                let digit = b"0123456789abcdef"[usize::from(byte & 15)];
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', b'0' + (byte >> 4), digit]);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', short]);
    }
}

/// Where the first byte that JSON has to escape is, from a place on; the length if there is none.
fn find_escaped(text: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(word) = swar::word_at(text, at) {
        let marks = swar::equal(word, b'"') | swar::equal(word, b'\\') | swar::below(word, 0x20);
        if marks != 0 {
            return at + swar::first(marks);
        }
        at += 8;
    }
    let is_fast = |byte: &&u8| !matches!(**byte, b'"' | b'\\' | 0..=0x1F);
    at + text[at..].iter().take_while(is_fast).count()
}
