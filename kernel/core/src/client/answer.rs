//! The headers of answers as brokers write them: what each has, and its fields one by one.

use crate::protocol::{FLAG_RESPONSE, SERIALIZE_JSON};
use crate::wire::frame::Frame;
use crate::wire::json::Json;
use crate::wire::numbers::integer;

/// Longest header that is examined; that of a batch has an id for each message.
const HEADER_BYTES_MAX: usize = 65_536;

/// Most fields of one; brokers write five.
const FIELDS_MAX: usize = 64;

/// What each answer has beside its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The request's.
    pub opaque: i32,
    /// A response code.
    pub code: i32,
    /// Where in the header the opaque stands: from here to there.
    pub opaque_at: (usize, usize),
}

/// Reads the header of an answer; None: anything else, or oddly written.
///
/// `take` is called with the name and the value of each field, the last one of a name last. It is
/// called for headers that turn out to be none, too.
pub fn answer<'a>(frame: &Frame<'a>, take: impl FnMut(&'a [u8], &'a str)) -> Option<Answer> {
    if !is_readable(frame) {
        return None;
    }
    read(std::str::from_utf8(frame.header).ok()?, take)
}

/// A header may be an answer's.
pub fn is_readable(frame: &Frame<'_>) -> bool {
    frame.serialize_type == SERIALIZE_JSON && frame.header.len() <= HEADER_BYTES_MAX
}

fn read<'a>(text: &'a str, mut take: impl FnMut(&'a [u8], &'a str)) -> Option<Answer> {
    let mut json = Json { data: text.as_bytes(), at: 0 };
    let (mut code, mut flag, mut opaque, mut has_fields) = (None, None, None, false);
    json.take(b'{')?;
    loop {
        let (start, end) = json.plain_text()?;
        json.take(b':')?;
        match &text.as_bytes()[start..end] {
            b"code" => code = Some(number(&mut json)?),
            b"flag" => flag = Some(number(&mut json)?),
            b"opaque" => opaque = Some(number(&mut json)?),
            b"version" => {
                number(&mut json)?;
            }
            b"language" | b"remark" | b"serializeTypeCurrentRPC" => json.text_or_null()?,
            b"extFields" if !has_fields => {
                has_fields = true;
                read_fields(&mut json, text, &mut take)?;
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
    if flag?.0 & FLAG_RESPONSE == 0 {
        return None;
    }
    let (opaque, opaque_at) = opaque?;
    Some(Answer { opaque, code: code?.0, opaque_at })
}

fn read_fields<'a>(
    json: &mut Json<'_>,
    text: &'a str,
    take: &mut impl FnMut(&'a [u8], &'a str),
) -> Option<()> {
    json.take(b'{')?;
    for _ in 0..FIELDS_MAX {
        let (start, end) = json.plain_text()?;
        json.take(b':')?;
        let (from, to) = json.plain_text()?;
        take(&text.as_bytes()[start..end], text.get(from..to)?);
        match json.next()? {
            b',' => {}
            b'}' => return Some(()),
            _ => return None,
        }
    }
    None
}

/// A whole number of 32 bits, written as Java and JSON write one, and where it stands.
fn number(json: &mut Json<'_>) -> Option<(i32, (usize, usize))> {
    json.next()?;
    let start = json.at - 1;
    let rest = json.data.get(start..)?;
    let digits = digits(rest);
    json.at = start + digits.len();
    Some((integer(digits)?, (start, json.at)))
}

/// What a number at the start of a text may consist of.
pub fn digits(text: &[u8]) -> &[u8] {
    let is_digit = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-');
    &text[..text.iter().take_while(is_digit).count()]
}
