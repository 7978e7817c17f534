//! Answers of brokers that say where a message is stored.

use crate::protocol::{FLAG_RESPONSE, SERIALIZE_JSON, property, response};
use crate::wire::frame::Frame;
use crate::wire::json::Json;
use crate::wire::numbers::{integer, long};

/// Longest header that is looked at; that of a batch has an id for each message.
const HEADER_BYTES_MAX: usize = 65_536;

/// Most fields of one; brokers write five.
const FIELDS_MAX: usize = 64;

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

/// The members that count, as far as they were seen.
#[derive(Default)]
struct Members<'a> {
    code: Option<i32>,
    flag: Option<i32>,
    opaque: Option<i32>,
    has_fields: bool,
    queue_id: Option<&'a str>,
    queue_offset: Option<&'a str>,
    message_id: Option<&'a str>,
    region: Option<&'a str>,
    trace_on: Option<&'a str>,
}

/// Reads an answer with code 0 and all that belongs to it; None: anything else, or oddly written.
#[must_use]
pub fn sent<'a>(frame: &Frame<'a>) -> Option<Sent<'a>> {
    if frame.serialize_type != SERIALIZE_JSON || frame.header.len() > HEADER_BYTES_MAX {
        return None;
    }
    let text = std::str::from_utf8(frame.header).ok()?;
    let members = read(text)?;
    if members.code? != i32::from(response::SUCCESS) || members.flag? & FLAG_RESPONSE == 0 {
        return None;
    }
    Some(Sent {
        opaque: members.opaque?,
        queue_id: integer(members.queue_id?.as_bytes())?,
        queue_offset: long(members.queue_offset?.as_bytes())?,
        message_id: members.message_id?,
        region: members.region.unwrap_or_default(),
        is_traced: members.trace_on != Some("false"),
    })
}

fn read(text: &str) -> Option<Members<'_>> {
    let mut json = Json { data: text.as_bytes(), at: 0 };
    let mut members = Members::default();
    json.take(b'{')?;
    loop {
        let (start, end) = json.plain_text()?;
        json.take(b':')?;
        match &text.as_bytes()[start..end] {
            b"code" => members.code = Some(number(&mut json)?),
            b"flag" => members.flag = Some(number(&mut json)?),
            b"opaque" => members.opaque = Some(number(&mut json)?),
            b"version" => {
                number(&mut json)?;
            }
            b"language" | b"remark" | b"serializeTypeCurrentRPC" => json.text_or_null()?,
            b"extFields" if !members.has_fields => {
                members.has_fields = true;
                read_fields(&mut json, text, &mut members)?;
            }
            _ => return None,
        }
        match json.next()? {
            b',' => {}
            b'}' => break,
            _ => return None,
        }
    }
    json.end()?;
    Some(members)
}

fn read_fields<'a>(json: &mut Json<'_>, text: &'a str, members: &mut Members<'a>) -> Option<()> {
    json.take(b'{')?;
    for _ in 0..FIELDS_MAX {
        let (start, end) = json.plain_text()?;
        json.take(b':')?;
        let (from, to) = json.plain_text()?;
        let value = text.get(from..to);
        match &text.as_bytes()[start..end] {
            b"queueId" => members.queue_id = value,
            b"queueOffset" => members.queue_offset = value,
            b"msgId" => members.message_id = value,
            property::MSG_REGION => members.region = value,
            property::TRACE_ON => members.trace_on = value,
            _ => {}
        }
        match json.next()? {
            b',' => {}
            b'}' => return Some(()),
            _ => return None,
        }
    }
    None
}

/// A whole number of 32 bits, written as Java and JSON write one.
fn number(json: &mut Json<'_>) -> Option<i32> {
    json.next()?;
    let start = json.at - 1;
    let rest = json.data.get(start..)?;
    let digits = rest.iter().take_while(|byte| matches!(byte, b'0'..=b'9' | b'-')).count();
    json.at = start + digits;
    integer(&rest[..digits])
}
