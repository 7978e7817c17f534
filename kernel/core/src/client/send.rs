//! Frames of plain sends: `SEND_MESSAGE_V2` with a JSON header, as the general way writes them.

use crate::protocol::{
    FRAME_BYTES_MAX, ITEM_END, JSON_TAIL, NAME_END, PROPERTIES_BYTES_MAX, property, request,
};
use crate::wire::answer::push_decimal;

/// Property names that a send writes by itself, behind the user's own.
const OWN_NAMES: [&[u8]; 4] =
    [property::KEYS, property::TAGS, property::WAIT, property::UNIQUE_KEY];

/// A batch's item without body and properties.
const BATCH_ITEM_BYTES: usize = 22;

/// What all frames of one producer's messages of one topic have in common.
#[derive(Debug)]
pub struct SendHead {
    head: Vec<u8>,
    middle: Vec<u8>,
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

impl SendHead {
    /// The fixed parts of the headers of single messages, or of batches.
    #[must_use]
    pub fn new(
        group: &str,
        topic: &str,
        template: &str,
        queues: i64,
        is_unit: bool,
        is_batch: bool,
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
            "\",\"j\":\"0\",\"k\":\"{}\",\"m\":\"{}\"}},\"flag\":0,\"language\":\"PYTHON\",\"opaque\":",
            word(is_unit),
            word(is_batch),
        );
        Self { head, middle: middle.into_bytes() }
    }

    /// Writes lengths and header of a request with a body of so many bytes to a buffer; None: no
    /// frame holds it.
    pub fn write(
        &self,
        out: &mut Vec<u8>,
        numbers: Numbers,
        properties: &[u8],
        body_bytes: usize,
    ) -> Option<()> {
        out.clear();
        out.extend_from_slice(&[0; 8]); // the lengths
        out.extend_from_slice(&self.head);
        push_decimal(out, numbers.queue_id);
        out.extend_from_slice(b"\",\"f\":\"0\",\"g\":\"");
        push_decimal(out, numbers.now_ms);
        out.extend_from_slice(b"\",\"h\":\"");
        push_decimal(out, numbers.flag);
        out.extend_from_slice(b"\",\"i\":\"");
        push_escaped(out, properties);
        out.extend_from_slice(&self.middle);
        push_decimal(out, numbers.opaque);
        out.extend_from_slice(JSON_TAIL);
        let header = out.len() - 8;
        let size = 4 + header + body_bytes;
        if size > FRAME_BYTES_MAX {
            return None;
        }
        out[..4].copy_from_slice(&(size as u32).to_be_bytes());
        out[4..8].copy_from_slice(&(header as u32).to_be_bytes());
        Some(())
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

/// Appends the property text of a batch itself.
pub fn push_wait(out: &mut Vec<u8>, is_waiting: bool) {
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
    for (index, byte) in text.iter().enumerate() {
        let short = match byte {
            b'"' | b'\\' => *byte,
            8 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            12 => b'f',
            b'\r' => b'r',
            0..=0x1F => b'u',
            _ => continue,
        };
        out.extend_from_slice(&text[start..index]);
        start = index + 1;
        out.extend_from_slice(&[b'\\', short]);
        if short == b'u' {
            let digit = b"0123456789abcdef"[usize::from(byte & 15)];
            out.extend_from_slice(&[b'0', b'0', b'0' + (byte >> 4), digit]);
        }
    }
    out.extend_from_slice(&text[start..]);
}
