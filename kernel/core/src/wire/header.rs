//! Reading a request header without allocation.
//!
//! Only the shape that clients write is read: the known members of a `RemotingCommand` and the
//! known fields of the send and pull requests, in any order, as JSON or in the ROCKETMQ binary
//! form. Anything else makes [`Header::read`] return false, and the frame goes to Python, which is
//! complete by itself. So this module never has to explain an error.
//!
//! Fields are kept as spans of the header; nothing is copied, except a property text or a
//! subscription with escapes, which is unescaped into a buffer that the next header uses again.

use super::json::{Json, escape};
use super::numbers::{integer, long};
use super::swar;
use crate::protocol::field::{
    self, ACCESS_KEY, BATCH, BNAME, BORN_TIMESTAMP, COMMIT_OFFSET, CONSUMER_GROUP, COUNT,
    DEFAULT_TOPIC_QUEUE_NUMS, EXPRESSION_TYPE, FLAG, LETTERS, MAX_MSG_NUMS, MAX_RECONSUME_TIMES,
    PRODUCER_GROUP, PROPERTIES, PULL_KNOWN, PULL_REQUIRED, QUEUE_ID, QUEUE_OFFSET, RECONSUME_TIMES,
    SECURITY_TOKEN, SEND_KNOWN, SEND_REQUIRED, SIGNATURE, SIGNED, SIGNING, SUB_VERSION,
    SUBSCRIPTION, SUSPEND_TIMEOUT_MILLIS, SYS_FLAG, TOPIC, UNIT_MODE,
};
use crate::protocol::{NAME_BYTES_MAX, SERIALIZE_JSON, SERIALIZE_ROCKETMQ, request};

/// How a header is written; answers use the encoding of their request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// Serialize type 0.
    #[default]
    Json,
    /// Serialize type 1, ROCKETMQ.
    Binary,
}

impl Encoding {
    /// The encoding of a serialize type; None for one that is not known.
    #[must_use]
    pub const fn of(serialize_type: u8) -> Option<Self> {
        match serialize_type {
            SERIALIZE_JSON => Some(Self::Json),
            SERIALIZE_ROCKETMQ => Some(Self::Binary),
            _ => None,
        }
    }
}

// Members of the command itself, for the check that none comes twice.
const MEMBER_CODE: u8 = 1;
const MEMBER_FLAG: u8 = 2;
const MEMBER_OPAQUE: u8 = 4;
const MEMBER_FIELDS: u8 = 8;
const MEMBERS_REQUIRED: u8 = MEMBER_CODE | MEMBER_OPAQUE | MEMBER_FIELDS;

const LETTER_PROPERTIES: u8 = LETTERS + PROPERTIES;

/// A text with escapes is unescaped in a buffer of this size at most; with more of the header
/// after its start the frame takes the slow path. The longest property text of escapes alone fits.
const ESCAPED_BYTES_MAX: usize = 256 << 10;

#[derive(Clone, Copy, Debug, Default)]
struct Span {
    start: usize,
    end: usize,
}

/// One parsed header; kept and used again for each frame of a connection.
#[derive(Debug)]
pub struct Header {
    pub encoding: Encoding,
    pub code: i32,
    pub flag: i32,
    pub opaque: i32,
    /// Which fields are there.
    present: u64,
    /// Which of them hold JSON escapes in their span.
    escaped: u64,
    /// Whether a field is there without a value: which of two is meant is for Python to say.
    has_null: bool,
    spans: [Span; COUNT],
    /// The unescaped property text or subscription; as long as the longest header, only the first
    /// bytes count.
    unescaped: Vec<u8>,
    unescaped_size: usize,
}

/// The fields of a send request; slices point into the header or its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendFields<'a> {
    pub group: &'a [u8],
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub flag: i32,
    pub properties: &'a [u8],
    pub reconsume_times: i32,
    pub batch: bool,
}

/// The fields of a pull request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PullFields<'a> {
    pub group: &'a [u8],
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub queue_offset: i64,
    pub max_count: i32,
    pub sys_flag: i32,
    pub commit_offset: i64,
    pub suspend_timeout_ms: i64,
    pub subscription: &'a [u8],
    pub subscription_version: i64,
}

/// A value of this many bytes is copied at once.
const SHORT_BYTES: usize = 16;

/// Which fields the last request had, in the order in which their values are signed: most requests
/// of a connection have the same.
#[derive(Clone, Debug, Default)]
pub struct Order {
    present: u64,
    fields: Vec<u8>,
}

impl Order {
    #[inline]
    fn of(&mut self, present: u64) -> &[u8] {
        if self.present != present {
            self.present = present;
            self.fields.clear();
            self.fields.extend(SIGNED.iter().filter(|field| present & (1 << **field) != 0));
        }
        &self.fields
    }
}

/// Whether a field holds a text that may be long, and have escapes.
const fn is_long_text(field: u8) -> bool {
    matches!(field, PROPERTIES | LETTER_PROPERTIES | SUBSCRIPTION)
}

impl Default for Header {
    fn default() -> Self {
        Self {
            encoding: Encoding::Json,
            code: 0,
            flag: 0,
            opaque: 0,
            present: 0,
            escaped: 0,
            has_null: false,
            spans: [Span::default(); COUNT],
            unescaped: Vec::new(),
            unescaped_size: 0,
        }
    }
}

impl Header {
    /// Reads a header; false when it holds anything that the fast path does not know.
    pub fn read(&mut self, serialize_type: u8, header: &[u8]) -> bool {
        self.present = 0;
        self.escaped = 0;
        self.has_null = false;
        self.unescaped_size = 0;
        match Encoding::of(serialize_type) {
            Some(Encoding::Json) => {
                self.encoding = Encoding::Json;
                self.read_json(header).is_some()
            }
            Some(Encoding::Binary) => {
                self.encoding = Encoding::Binary;
                self.read_binary(header).is_some()
            }
            None => false,
        }
    }

    /// Whether it is that of a send.
    #[inline]
    #[must_use]
    pub const fn is_send(&self) -> bool {
        use request::{SEND_BATCH_MESSAGE, SEND_MESSAGE, SEND_MESSAGE_V2};
        matches!(self.code, SEND_MESSAGE | SEND_MESSAGE_V2 | SEND_BATCH_MESSAGE)
    }

    /// Whether it is that of a pull.
    #[inline]
    #[must_use]
    pub const fn is_pull(&self) -> bool {
        matches!(self.code, request::PULL_MESSAGE | request::LITE_PULL_MESSAGE)
    }

    /// The fields of a send request (codes 10, 310, 320); None when one is missing, unknown to
    /// the code, not of its type, or outside what the fast path does.
    #[must_use]
    pub fn send_fields<'a>(&'a self, header: &'a [u8]) -> Option<SendFields<'a>> {
        let (shift, known) = if self.code == request::SEND_MESSAGE {
            (0, SEND_KNOWN)
        } else {
            (LETTERS, SEND_KNOWN << LETTERS | 1 << BNAME)
        };
        let required = SEND_REQUIRED << shift;
        let escaped = self.escaped & !(1 << (PROPERTIES + shift));
        if self.present & !(known | SIGNING) != 0
            || self.present & required != required
            || escaped != 0
        {
            return None;
        }
        let number = |field: u8| integer(self.text(header, field + shift));
        number(DEFAULT_TOPIC_QUEUE_NUMS)?;
        let is_batch = self.boolean(header, BATCH + shift)?;
        if self.boolean(header, UNIT_MODE + shift)?
            || is_batch != (self.code == request::SEND_BATCH_MESSAGE)
        {
            return None;
        }
        if self.has(MAX_RECONSUME_TIMES + shift) {
            number(MAX_RECONSUME_TIMES)?;
        }
        let properties = PROPERTIES + shift;
        Some(SendFields {
            group: self.text(header, PRODUCER_GROUP + shift),
            topic: self.text(header, TOPIC + shift),
            queue_id: number(QUEUE_ID)?,
            sys_flag: number(SYS_FLAG)?,
            born_timestamp: long(self.text(header, BORN_TIMESTAMP + shift))?,
            flag: number(FLAG)?,
            properties: self.long_text(header, properties),
            reconsume_times: if self.has(RECONSUME_TIMES + shift) {
                number(RECONSUME_TIMES)?
            } else {
                0
            },
            batch: is_batch,
        })
    }

    /// The fields of a pull request (codes 11 and 361) that filters by tags; else None.
    #[must_use]
    pub fn pull_fields<'a>(&'a self, header: &'a [u8]) -> Option<PullFields<'a>> {
        if self.present & !(PULL_KNOWN | SIGNING) != 0
            || self.present & PULL_REQUIRED != PULL_REQUIRED
            || self.escaped & !(1 << SUBSCRIPTION) != 0
        {
            return None;
        }
        if self.has(EXPRESSION_TYPE) && self.text(header, EXPRESSION_TYPE) != b"TAG" {
            return None;
        }
        Some(PullFields {
            group: self.text(header, CONSUMER_GROUP),
            topic: self.text(header, TOPIC),
            queue_id: integer(self.text(header, QUEUE_ID))?,
            queue_offset: long(self.text(header, QUEUE_OFFSET))?,
            max_count: integer(self.text(header, MAX_MSG_NUMS))?,
            sys_flag: integer(self.text(header, SYS_FLAG))?,
            commit_offset: long(self.text(header, COMMIT_OFFSET))?,
            suspend_timeout_ms: long(self.text(header, SUSPEND_TIMEOUT_MILLIS))?,
            subscription: self.long_text(header, SUBSCRIPTION),
            subscription_version: long(self.text(header, SUB_VERSION))?,
        })
    }

    /// Who says to have sent the request; None: nobody, or who is not certain.
    #[inline]
    #[must_use]
    pub fn access_key<'a>(&self, header: &'a [u8]) -> Option<&'a [u8]> {
        (self.has(ACCESS_KEY) && !self.has_null).then(|| self.text(header, ACCESS_KEY))
    }

    /// The signature; empty when there is none.
    #[must_use]
    pub fn signature<'a>(&self, header: &'a [u8]) -> &'a [u8] {
        if self.has(SIGNATURE) { self.text(header, SIGNATURE) } else { &[] }
    }

    /// Writes the text that is signed before the body, the values of all fields in the order of
    /// their names, and gives its length; `out` has at least `slack` bytes more. None when a value
    /// is no UTF-8, so that what was signed is not certain.
    pub fn signed_text(
        &self,
        header: &[u8],
        order: &mut Order,
        out: &mut Vec<u8>,
        slack: usize,
    ) -> Option<usize> {
        // Values are parts of the header, and no longer when they were unescaped.
        let room = header.len() + slack + SHORT_BYTES;
        if out.len() < room {
            out.resize(room.next_power_of_two(), 0);
        }
        let fields = order.of(self.present);
        let mut size = 0;
        for field in fields {
            let Span { start, end } = self.spans[*field as usize];
            if self.escaped & (1 << *field) != 0 {
                let value = &self.unescaped[..self.unescaped_size];
                out[size..size + value.len()].copy_from_slice(value);
                size += value.len();
                continue;
            }
            // Most values are short: they are copied with what follows, which is overwritten.
            match header.get(start..).and_then(<[u8]>::first_chunk::<SHORT_BYTES>) {
                Some(short) if end - start <= SHORT_BYTES => {
                    *out[size..].first_chunk_mut()? = *short;
                }
                _ => out[size..size + end - start].copy_from_slice(header.get(start..end)?),
            }
            size += end - start;
        }
        // Escapes stand for whole characters: no more than the header itself has to be examined.
        let is_text = |field: &u8| std::str::from_utf8(self.long_text(header, *field)).is_ok();
        (swar::is_ascii(header) || fields.iter().all(is_text)).then_some(size)
    }

    /// Bytes kept for unescaping.
    #[cfg(test)]
    pub fn buffer_bytes(&self) -> usize {
        self.unescaped.len()
    }

    const fn has(&self, field: u8) -> bool {
        self.present & (1 << field) != 0
    }

    /// The span of a field that is there.
    #[inline]
    fn text<'a>(&self, header: &'a [u8], field: u8) -> &'a [u8] {
        let span = self.spans[field as usize];
        header.get(span.start..span.end).unwrap_or_default()
    }

    /// A text that may be missing, or hold escapes.
    fn long_text<'a>(&'a self, header: &'a [u8], field: u8) -> &'a [u8] {
        if !self.has(field) {
            &[]
        } else if self.escaped & (1 << field) != 0 {
            &self.unescaped[..self.unescaped_size]
        } else {
            self.text(header, field)
        }
    }

    /// A Boolean field, false when it is not there; None for any other text.
    fn boolean(&self, header: &[u8], field: u8) -> Option<bool> {
        if !self.has(field) {
            return Some(false);
        }
        match self.text(header, field) {
            b"true" => Some(true),
            b"false" => Some(false),
            _ => None,
        }
    }

    /// Notes a field; None when it was there before, or is longer than a name may be.
    #[inline]
    fn put(&mut self, field: u8, start: usize, end: usize) -> Option<()> {
        let bit = 1 << field;
        let may_be_long = is_long_text(field) || field == SECURITY_TOKEN;
        if self.present & bit != 0 || end - start > NAME_BYTES_MAX && !may_be_long {
            return None;
        }
        self.present |= bit;
        self.spans[field as usize] = Span { start, end };
        Some(())
    }

    fn read_json(&mut self, header: &[u8]) -> Option<()> {
        let mut json = Json { data: header, at: 0 };
        self.flag = 0;
        let mut members = 0;
        json.take(b'{')?;
        loop {
            let (start, end) = json.plain_text()?;
            json.take(b':')?;
            let member = match &header[start..end] {
                b"code" => {
                    self.code = json.number()?;
                    MEMBER_CODE
                }
                b"flag" => {
                    self.flag = json.number()?;
                    MEMBER_FLAG
                }
                b"opaque" => {
                    self.opaque = json.number()?;
                    MEMBER_OPAQUE
                }
                b"extFields" => {
                    self.read_json_fields(&mut json)?;
                    MEMBER_FIELDS
                }
                b"language" | b"serializeTypeCurrentRPC" => {
                    json.plain_text()?;
                    0
                }
                b"remark" => {
                    json.text_or_null()?;
                    0
                }
                b"version" => {
                    json.number()?;
                    0
                }
                _ => return None,
            };
            if members & member != 0 {
                return None;
            }
            members |= member;
            match json.next()? {
                b',' => {}
                b'}' => break,
                _ => return None,
            }
        }
        json.end()?;
        (members & MEMBERS_REQUIRED == MEMBERS_REQUIRED).then_some(())
    }

    fn read_json_fields(&mut self, json: &mut Json<'_>) -> Option<()> {
        json.take(b'{')?;
        loop {
            let field = if let Some((letter, is_short)) = json.letter() {
                let field = LETTERS + letter;
                if is_short {
                    // One character: its span and the quote after it are known already.
                    self.put(field, json.at, json.at + 1)?;
                    json.at += 2;
                    match json.next()? {
                        b',' => continue,
                        b'}' => return Some(()),
                        _ => return None,
                    }
                }
                field
            } else if json.starts_with(b"\"AccessKey\":\"") {
                ACCESS_KEY
            } else if json.starts_with(b"\"Signature\":\"") {
                SIGNATURE
            } else {
                let (start, end) = json.plain_text()?;
                json.take(b':')?;
                json.take(b'"')?;
                field::number(&json.data[start..end])?
            };
            let start = json.at;
            if json.skip_plain()? != b'"' {
                if !is_long_text(field) {
                    return None;
                }
                self.unescape(json, start)?;
                self.escaped |= 1 << field;
            }
            self.put(field, start, json.at)?;
            json.at += 1;
            match json.next()? {
                b',' => {}
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    /// Unescapes from `start` up to the closing quote, where `json` is left.
    fn unescape(&mut self, json: &mut Json<'_>, start: usize) -> Option<()> {
        // Eight bytes of slack let every copy be of a whole word.
        let needed = json.data.len() - start + 8;
        if needed > ESCAPED_BYTES_MAX {
            return None;
        }
        if self.unescaped.len() < needed {
            self.unescaped.resize(needed.next_power_of_two(), 0);
        }
        let out = &mut self.unescaped[..];
        let data = json.data;
        let mut size = json.at - start;
        out[..size].copy_from_slice(&data[start..json.at]);
        let mut at = json.at;
        loop {
            // An escape comes first here: the text before it was copied.
            let mut character = [0u8; 4];
            let (escaped, used) = escape(&data[at..], &mut character)?;
            out[size..size + escaped].copy_from_slice(&character[..escaped]);
            size += escaped;
            at += used;
            let stop = loop {
                let Some(word) = swar::word_at(data, at) else {
                    match *data.get(at)? {
                        stop @ (b'"' | b'\\') => break stop,
                        0..=0x1F => return None,
                        byte => out[size] = byte,
                    }
                    at += 1;
                    size += 1;
                    continue;
                };
                out.get_mut(size..)?.first_chunk_mut::<8>()?.copy_from_slice(&word.to_le_bytes());
                let marks =
                    swar::equal(word, b'"') | swar::equal(word, b'\\') | swar::below(word, 0x20);
                if marks == 0 {
                    at += 8;
                    size += 8;
                    continue;
                }
                at += swar::first(marks);
                size += swar::first(marks);
                match data[at] {
                    stop @ (b'"' | b'\\') => break stop,
                    _ => return None,
                }
            };
            if stop == b'"' {
                json.at = at;
                self.unescaped_size = size;
                return Some(());
            }
        }
    }

    fn read_binary(&mut self, header: &[u8]) -> Option<()> {
        let fixed = header.first_chunk::<17>()?;
        let int = |at: usize| {
            i32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]])
        };
        self.code = i32::from(i16::from_be_bytes([fixed[0], fixed[1]]));
        self.opaque = int(5);
        self.flag = int(9);
        // A remark means nothing in a request.
        let fields_at = 17 + usize::try_from(int(13)).ok()?;
        let fields_size = i32::from_be_bytes(*header.get(fields_at..)?.first_chunk::<4>()?);
        let mut at = fields_at + 4;
        if header.len() != at + usize::try_from(fields_size).ok()? {
            return None;
        }
        while at < header.len() {
            let key_size = i16::from_be_bytes(*header.get(at..)?.first_chunk::<2>()?);
            let key_start = at + 2;
            let key_end = key_start + usize::try_from(key_size).ok()?;
            let value_size = i32::from_be_bytes(*header.get(key_end..)?.first_chunk::<4>()?);
            let start = key_end + 4;
            let end = start + usize::try_from(value_size).ok()?;
            if end > header.len() {
                return None;
            }
            let field = field::number(&header[key_start..key_end])?;
            // A value of no length is a null, as in Java.
            if start < end {
                self.put(field, start, end)?;
            } else {
                self.has_null = true;
            }
            at = end;
        }
        Some(())
    }
}
