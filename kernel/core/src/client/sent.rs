//! Answers of brokers that say where a message is stored.

use super::answer::{answer, digits, is_readable};
use crate::protocol::{DUPLICATE_FIELD, property, response};
use crate::wire::frame::Frame;
use crate::wire::json::Json;
use crate::wire::numbers::{integer, long};

/// A layout with more text than this, between what differs from answer to answer, is not kept.
const LAYOUT_BYTES_MAX: usize = 1_024;

/// What such an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent<'a> {
    /// The request's.
    pub opaque: i32,
    /// Where the message is.
    pub queue_id: i32,
    /// And at which offset.
    pub queue_offset: i64,
    /// The broker's id of it.
    pub message_id: &'a str,
    /// The broker's region; empty: it names none.
    pub region: &'a str,
    /// Whether the broker wants traces.
    pub is_traced: bool,
}

/// Reads an answer with code 0 and all that belongs to it; None: anything else, or oddly written.
#[must_use]
pub fn sent<'a>(frame: &Frame<'a>) -> Option<Sent<'a>> {
    read(frame).map(|(sent, _)| sent)
}

/// Reads answers as [`sent`] does, and faster when they are laid out as the last one was.
///
/// A broker writes all of its answers alike: where four values stand differs in nothing else.
#[derive(Debug, Default)]
pub struct Answers {
    /// The text of the last answer without its values.
    text: Vec<u8>,
    /// The values in order, and where the text before each ends.
    values: [(Value, usize); 4],
    region: String,
    is_traced: bool,
}

/// What differs from answer to answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Value {
    #[default]
    Opaque,
    QueueId,
    QueueOffset,
    MessageId,
}

/// The values of one answer.
struct Values<'a> {
    opaque: i32,
    queue_id: i32,
    queue_offset: i64,
    message_id: &'a str,
}

/// Where the values of an answer stand, in the order of [`Value`].
type Spans = [(usize, usize); 4];

impl Answers {
    /// Reads an answer; see [`sent`].
    #[must_use]
    pub fn read<'a>(&'a mut self, frame: &Frame<'a>) -> Option<Sent<'a>> {
        if let Some(values) = self.values_of(frame) {
            let Values { opaque, queue_id, queue_offset, message_id } = values;
            let (region, is_traced) = (self.region.as_str(), self.is_traced);
            return Some(Sent { opaque, queue_id, queue_offset, message_id, region, is_traced });
        }
        let (sent, spans) = read(frame)?;
        self.learn(frame.header, spans, &sent);
        Some(sent)
    }

    /// What [`read`] would find in a header with the text of the last one.
    fn values_of<'a>(&self, frame: &Frame<'a>) -> Option<Values<'a>> {
        if self.text.is_empty() || !is_readable(frame) {
            return None;
        }
        let (mut rest, mut start) = (frame.header, 0);
        let mut values = Values { opaque: 0, queue_id: 0, queue_offset: 0, message_id: "" };
        for (value, end) in self.values {
            rest = rest.strip_prefix(&self.text[start..end])?;
            start = end;
            let text = if value == Value::MessageId { plain_ascii(rest)? } else { digits(rest) };
            rest = &rest[text.len()..];
            match value {
                Value::Opaque => values.opaque = integer(text)?,
                Value::QueueId => values.queue_id = integer(text)?,
                Value::QueueOffset => values.queue_offset = long(text)?,
                Value::MessageId => values.message_id = std::str::from_utf8(text).ok()?,
            }
        }
        (rest == &self.text[start..]).then_some(values)
    }

    fn learn(&mut self, header: &[u8], spans: Spans, sent: &Sent<'_>) {
        self.text.clear();
        let kinds = [Value::Opaque, Value::QueueId, Value::QueueOffset, Value::MessageId];
        let mut places = [0, 1, 2, 3];
        places.sort_unstable_by_key(|place| spans[*place]);
        let sizes = spans.iter().map(|(from, to)| to - from).sum::<usize>();
        if header.len() - sizes > LAYOUT_BYTES_MAX {
            return;
        }
        let mut start = 0;
        for (known, place) in self.values.iter_mut().zip(places) {
            let (from, to) = spans[place];
            self.text.extend_from_slice(&header[start..from]);
            *known = (kinds[place], self.text.len());
            start = to;
        }
        self.text.extend_from_slice(&header[start..]);
        self.region.clear();
        self.region.push_str(sent.region);
        self.is_traced = sent.is_traced;
    }
}

/// The ASCII text up to the next quote; None: it has escapes, or control or other characters.
fn plain_ascii(data: &[u8]) -> Option<&[u8]> {
    let mut json = Json { data, at: 0 };
    let is_quoted = json.skip_plain()? == b'"';
    let text = &data[..json.at];
    (is_quoted && text.is_ascii()).then_some(text)
}

fn read<'a>(frame: &Frame<'a>) -> Option<(Sent<'a>, Spans)> {
    let (mut queue_id, mut queue_offset, mut message_id) = (None, None, None);
    let (mut region, mut is_traced, mut is_plain) = ("", true, true);
    let answer = answer(frame, |name, value| match name {
        b"queueId" => queue_id = Some(value),
        b"queueOffset" => queue_offset = Some(value),
        b"msgId" => message_id = Some(value),
        property::MSG_REGION => region = value,
        property::TRACE_ON => is_traced = value != "false",
        // Its result says more.
        DUPLICATE_FIELD => is_plain = false,
        _ => {}
    })?;
    if answer.code != i32::from(response::SUCCESS) || !is_plain {
        return None;
    }
    let (queue_id, queue_offset, message_id) = (queue_id?, queue_offset?, message_id?);
    let sent = Sent {
        opaque: answer.opaque,
        queue_id: integer(queue_id.as_bytes())?,
        queue_offset: long(queue_offset.as_bytes())?,
        message_id,
        region,
        is_traced,
    };
    // Each is a part of the header.
    let span = |text: &str| {
        let from = text.as_ptr().addr() - frame.header.as_ptr().addr();
        (from, from + text.len())
    };
    let spans = [answer.opaque_at, span(queue_id), span(queue_offset), span(message_id)];
    Some((sent, spans))
}
