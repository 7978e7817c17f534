//! Writing response frames, in both header encodings, after what a buffer already holds.
//!
//! What does not change from answer to answer is rendered once, in [`Pieces`]. An answer has the
//! members that a `RemotingCommand` of Java has; its language is PYTHON, its version that of 4.9.8.

use super::frame::PREFIX_BYTES;
use super::header::Encoding;
use crate::protocol::{JSON_TAIL, LANGUAGE, VERSION, property};

pub use crate::protocol::response as code;

/// Byte of the first digit of the code in a JSON answer frame: after `{"code":`.
const JSON_CODE_AT: usize = PREFIX_BYTES + 8;
/// Bytes of a binary header before its fields.
const BINARY_FIXED_BYTES: usize = 21;

/// Parts of answers that follow from the broker's identity alone.
#[derive(Debug, Default)]
pub struct Pieces {
    /// JSON of a send answer from its start up to its message id.
    send_json: Vec<u8>,
    /// Binary fields of a send answer before its message id.
    send_binary: Vec<u8>,
    /// The store host in upper-case hex, the start of every message id.
    host_hex: Vec<u8>,
}

impl Pieces {
    /// Renders the pieces.
    #[must_use]
    pub fn new(region: &str, trace_on: bool, store_host: &[u8]) -> Self {
        let trace = if trace_on { "true" } else { "false" };
        let mut send_json = b"{\"code\":0,\"extFields\":{\"MSG_REGION\":\"".to_vec();
        push_json_text(&mut send_json, region);
        send_json.extend_from_slice(b"\",\"TRACE_ON\":\"");
        send_json.extend_from_slice(trace.as_bytes());
        send_json.extend_from_slice(b"\",\"msgId\":\"");
        let mut send_binary = Vec::new();
        push_field(&mut send_binary, property::MSG_REGION, region.as_bytes());
        push_field(&mut send_binary, property::TRACE_ON, trace.as_bytes());
        let mut host_hex = Vec::new();
        for byte in store_host {
            push_hex(&mut host_hex, u64::from(*byte), 2);
        }
        Self { send_json, send_binary, host_hex }
    }

    /// Bytes of one message id.
    fn id_size(&self) -> usize {
        self.host_hex.len() + 16
    }

    /// The answer to a send that was stored: ids of the records, joined by commas.
    pub fn send_answer(&self, out: &mut Vec<u8>, encoding: Encoding, answer: &SendAnswer<'_>) {
        let &SendAnswer { opaque, queue_id, queue_offset, physical_offsets, .. } = answer;
        let (transaction_id, recall_handle) = (answer.transaction_id, answer.recall_handle);
        let ids = physical_offsets.len() * (self.id_size() + 1);
        out.reserve(320 + self.send_json.len() + ids);
        let start = out.len();
        match encoding {
            Encoding::Json => {
                out.extend_from_slice(&[0; PREFIX_BYTES]);
                out.extend_from_slice(&self.send_json);
                self.push_ids(out, physical_offsets);
                out.extend_from_slice(b"\",\"queueId\":\"");
                push_decimal(out, i64::from(queue_id));
                out.extend_from_slice(b"\",\"queueOffset\":\"");
                push_decimal(out, queue_offset);
                if !transaction_id.is_empty() {
                    out.extend_from_slice(b"\",\"transactionId\":\"");
                    push_json_text(out, transaction_id);
                }
                if !recall_handle.is_empty() {
                    out.extend_from_slice(b"\",\"recallHandle\":\"");
                    out.extend_from_slice(recall_handle.as_bytes());
                }
                out.extend_from_slice(b"\"},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
                push_decimal(out, i64::from(opaque));
                out.extend_from_slice(JSON_TAIL);
            }
            Encoding::Binary => {
                start_binary(out, code::SUCCESS, opaque);
                out.extend_from_slice(&0u32.to_be_bytes());
                let fields_size_at = out.len();
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(&self.send_binary);
                let value = start_field(out, b"msgId");
                self.push_ids(out, physical_offsets);
                end_field(out, value);
                push_number_field(out, b"queueId", i64::from(queue_id));
                push_number_field(out, b"queueOffset", queue_offset);
                if !transaction_id.is_empty() {
                    push_field(out, b"transactionId", transaction_id.as_bytes());
                }
                if !recall_handle.is_empty() {
                    push_field(out, b"recallHandle", recall_handle.as_bytes());
                }
                end_field(out, fields_size_at);
            }
        }
        end_header(out, start, encoding, 0);
    }

    fn push_ids(&self, out: &mut Vec<u8>, physical_offsets: &[i64]) {
        for (index, offset) in physical_offsets.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(&self.host_hex);
            push_hex(out, *offset as u64, 16);
        }
    }
}

/// What the header of a send answer says besides the broker's identity.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendAnswer<'a> {
    pub opaque: i32,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub physical_offsets: &'a [i64],
    /// `UNIQ_KEY` of a half message; empty: there is none.
    pub transaction_id: &'a str,
    /// To take a message back by, in base64; empty: there is none.
    pub recall_handle: &'a str,
}

/// Bytes as URL-safe base64.
#[must_use]
pub fn base64_url(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().fold(0, |word, byte| word << 8 | usize::from(*byte));
        let word = word << (8 * (3 - three.len()));
        for index in 0..4 {
            let is_there = index <= three.len();
            let letter = LETTERS[word >> (18 - 6 * index) & 63];
            out.push(if is_there { char::from(letter) } else { '=' });
        }
    }
    out
}

/// What the header of a pull answer says.
#[derive(Clone, Copy, Debug)]
pub struct PullAnswer {
    pub code: u8,
    pub opaque: i32,
    /// `GetMessageStatus` name.
    pub remark: &'static str,
    pub broker_id: i64,
    pub next_offset: i64,
    pub min_offset: i64,
    pub max_offset: i64,
}

/// Writes the prefix and the header of a pull answer whose body will have `body_size` bytes.
pub fn pull_answer(out: &mut Vec<u8>, encoding: Encoding, answer: &PullAnswer, body_size: usize) {
    let start = out.len();
    let fields: [(&[u8], i64); 4] = [
        (b"maxOffset", answer.max_offset),
        (b"minOffset", answer.min_offset),
        (b"nextBeginOffset", answer.next_offset),
        (b"suggestWhichBrokerId", answer.broker_id),
    ];
    match encoding {
        Encoding::Json => {
            out.extend_from_slice(&[0; PREFIX_BYTES]);
            out.extend_from_slice(b"{\"code\":");
            push_decimal(out, i64::from(answer.code));
            out.extend_from_slice(b",\"extFields\":{");
            for (index, (name, value)) in fields.into_iter().enumerate() {
                out.extend_from_slice(if index == 0 { b"\"" } else { b",\"" });
                out.extend_from_slice(name);
                out.extend_from_slice(b"\":\"");
                push_decimal(out, value);
                out.push(b'"');
            }
            out.extend_from_slice(b"},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
            push_decimal(out, i64::from(answer.opaque));
            out.extend_from_slice(b",\"remark\":\"");
            out.extend_from_slice(answer.remark.as_bytes());
            out.push(b'"');
            out.extend_from_slice(JSON_TAIL);
        }
        Encoding::Binary => {
            start_binary(out, answer.code, answer.opaque);
            out.extend_from_slice(&(answer.remark.len() as u32).to_be_bytes());
            out.extend_from_slice(answer.remark.as_bytes());
            let fields_size_at = out.len();
            out.extend_from_slice(&[0; 4]);
            for (name, value) in fields {
                push_number_field(out, name, value);
            }
            end_field(out, fields_size_at);
        }
    }
    end_header(out, start, encoding, body_size);
}

/// What the header of an answer to a pop says.
#[derive(Clone, Copy, Debug)]
pub struct PopAnswer<'a> {
    pub opaque: i32,
    pub pop_time: i64,
    pub invisible_ms: i64,
    /// Messages that are left in the queues that were read.
    pub rest: i64,
    pub runs: &'a [PoppedRun],
}

/// Messages of one queue of a topic itself.
#[derive(Clone, Copy, Debug)]
pub struct PoppedRun {
    pub queue_id: i32,
    pub start: i64,
    pub count: u32,
    /// Offsets from the first one on among which they are: `count` where nothing is filtered.
    pub span: u32,
}

/// The answer to a pop that found messages, in JSON: its code has more than 16 bits.
pub fn pop_answer(out: &mut Vec<u8>, answer: &PopAnswer<'_>, body: &[u8]) {
    let start = out.len();
    out.reserve(512 + 22 * 32 + body.len());
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    out.extend_from_slice(b"{\"code\":0,\"extFields\":{\"popTime\":\"");
    push_decimal(out, answer.pop_time);
    out.extend_from_slice(b"\",\"invisibleTime\":\"");
    push_decimal(out, answer.invisible_ms);
    out.extend_from_slice(b"\",\"reviveQid\":\"0\",\"restNum\":\"");
    push_decimal(out, answer.rest);
    out.extend_from_slice(b"\",\"startOffsetInfo\":\"");
    for (index, run) in answer.runs.iter().enumerate() {
        start_run(out, index, run);
        push_decimal(out, run.start);
    }
    out.extend_from_slice(b"\",\"msgOffsetInfo\":\"");
    for (index, run) in answer.runs.iter().enumerate() {
        start_run(out, index, run);
        for place in 0..i64::from(run.count) {
            if place > 0 {
                out.push(b',');
            }
            push_decimal(out, run.start + place);
        }
    }
    out.extend_from_slice(b"\"},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
    push_decimal(out, i64::from(answer.opaque));
    out.extend_from_slice(b",\"remark\":\"FOUND\"");
    out.extend_from_slice(JSON_TAIL);
    end_header(out, start, Encoding::Json, body.len());
    out.extend_from_slice(body);
}

/// Kind and queue of a run; the kind is that of a topic itself.
fn start_run(out: &mut Vec<u8>, index: usize, run: &PoppedRun) {
    out.extend_from_slice(if index == 0 { b"0 " } else { b";0 " });
    push_decimal(out, i64::from(run.queue_id));
    out.push(b' ');
}

/// The answer SUCCESS without members, in JSON.
pub fn acknowledged(out: &mut Vec<u8>, opaque: i32) {
    let start = out.len();
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    out.extend_from_slice(b"{\"code\":0,\"flag\":1,\"language\":\"PYTHON\",\"opaque\":");
    push_decimal(out, i64::from(opaque));
    out.extend_from_slice(JSON_TAIL);
    end_header(out, start, Encoding::Json, 0);
}

/// Copies a send answer with its code 0 turned into another one.
pub fn push_with_code(out: &mut Vec<u8>, frame: &[u8], code: u8) {
    let start = out.len();
    if frame[4] == 0 {
        out.extend_from_slice(&frame[..JSON_CODE_AT]);
        push_decimal(out, i64::from(code));
        out.extend_from_slice(&frame[JSON_CODE_AT + 1..]);
        end_header(out, start, Encoding::Json, 0);
    } else {
        out.extend_from_slice(frame);
        out[start + PREFIX_BYTES + 1] = code;
    }
}

/// Bytes of what stands for the answer to a call of gRPC.
const CALL_ANSWER_BYTES: usize = PREFIX_BYTES + BINARY_FIXED_BYTES - 8 + 8;

/// Writes what stands for the answer to a send by gRPC until it is made, with the code of success:
/// `push_with_code` changes that, as of a frame.
pub fn push_call_answer(out: &mut Vec<u8>, stream_id: u32, queue_offset: i64) {
    let start = out.len();
    start_binary(out, code::SUCCESS, stream_id as i32);
    out.extend_from_slice(&queue_offset.to_be_bytes());
    end_header(out, start, Encoding::Binary, 0);
}

/// Stream, code and queue offset of what `push_call_answer` wrote.
pub fn call_answers(data: &[u8]) -> impl Iterator<Item = (u32, u8, i64)> {
    data.as_chunks::<CALL_ANSWER_BYTES>().0.iter().map(|answer| {
        let stream_at = PREFIX_BYTES + 5;
        let stream = [0, 1, 2, 3].map(|place| answer[stream_at + place]);
        let (_, offset) = answer.split_last_chunk::<8>().unwrap_or((&[], &[0; 8]));
        (u32::from_be_bytes(stream), answer[PREFIX_BYTES + 1], i64::from_be_bytes(*offset))
    })
}

/// The prefix and a binary header up to its remark.
fn start_binary(out: &mut Vec<u8>, code: u8, opaque: i32) {
    let [version_high, version_low] = VERSION.to_be_bytes();
    let mut fixed = [0; PREFIX_BYTES + BINARY_FIXED_BYTES - 8];
    fixed[PREFIX_BYTES + 1] = code;
    fixed[PREFIX_BYTES + 2] = LANGUAGE;
    fixed[PREFIX_BYTES + 3] = version_high;
    fixed[PREFIX_BYTES + 4] = version_low;
    fixed[PREFIX_BYTES + 5..PREFIX_BYTES + 9].copy_from_slice(&opaque.to_be_bytes());
    fixed[PREFIX_BYTES + 12] = 1;
    out.extend_from_slice(&fixed);
}

/// Fills in the prefix of a frame that starts at `start` and whose header ends here.
fn end_header(out: &mut [u8], start: usize, encoding: Encoding, body_size: usize) {
    let header = (out.len() - start - PREFIX_BYTES) as u32;
    let serialize_type = match encoding {
        Encoding::Json => 0,
        Encoding::Binary => 1 << 24,
    };
    let size = header + 4 + body_size as u32;
    out[start..start + 4].copy_from_slice(&size.to_be_bytes());
    out[start + 4..start + 8].copy_from_slice(&(serialize_type | header).to_be_bytes());
}

fn push_field(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let at = start_field(out, key);
    out.extend_from_slice(value);
    end_field(out, at);
}

fn push_number_field(out: &mut Vec<u8>, key: &[u8], value: i64) {
    let at = start_field(out, key);
    push_decimal(out, value);
    end_field(out, at);
}

/// Writes a key and space for the size of its value; the position of that size.
fn start_field(out: &mut Vec<u8>, key: &[u8]) -> usize {
    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(&[0; 4]);
    out.len() - 4
}

/// Writes the size of what follows `size_at`.
fn end_field(out: &mut [u8], size_at: usize) {
    let size = (out.len() - size_at - 4) as u32;
    out[size_at..size_at + 4].copy_from_slice(&size.to_be_bytes());
}

/// `digits` upper-case hex digits of a number.
fn push_hex(out: &mut Vec<u8>, value: u64, digits: usize) {
    let mut text = [0; 16];
    for (index, digit) in text.iter_mut().rev().enumerate() {
        *digit = b"0123456789ABCDEF"[(value >> (4 * index) & 15) as usize];
    }
    out.extend_from_slice(&text[16 - digits..]);
}

/// A number in decimal.
pub fn push_decimal(out: &mut Vec<u8>, value: i64) {
    let mut text = [0; 20];
    let mut at = text.len();
    let mut rest = value.unsigned_abs();
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&text[at..]);
}

/// Text inside JSON quotes.
fn push_json_text(out: &mut Vec<u8>, text: &str) {
    for character in text.chars() {
        match character {
            '"' => out.extend_from_slice(b"\\\""),
            '\\' => out.extend_from_slice(b"\\\\"),
            '\0'..='\u{1f}' => {
                let code = u32::from(character);
                out.extend_from_slice(format!("\\u{code:04x}").as_bytes());
            }
            _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Cut, cut};
    use super::*;

    const HOST: [u8; 8] = [10, 0, 0, 255, 0, 0, 0x2A, 0x9F];

    fn header(frame: &[u8]) -> &[u8] {
        match cut(frame) {
            Ok(Cut::Frame(found)) if found.bytes.len() + 4 == frame.len() => found.header,
            other => panic!("not one frame: {other:?}"),
        }
    }

    #[test]
    fn a_send_answer_in_json_has_javas_members() {
        let mut out = b"before".to_vec();
        let pieces = Pieces::new("a\"b", true, &HOST);
        let answer = SendAnswer {
            opaque: -7,
            queue_id: 3,
            queue_offset: 1_234,
            physical_offsets: &[0xABCD],
            ..SendAnswer::default()
        };
        pieces.send_answer(&mut out, Encoding::Json, &answer);
        let expected = "{\"code\":0,\"extFields\":{\"MSG_REGION\":\"a\\\"b\",\"TRACE_ON\":\"true\",\
            \"msgId\":\"0A0000FF00002A9F000000000000ABCD\",\"queueId\":\"3\",\
            \"queueOffset\":\"1234\"},\"flag\":1,\"language\":\"PYTHON\",\"opaque\":-7,\
            \"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}";
        assert_eq!(header(&out[6..]), expected.as_bytes());
    }

    #[test]
    fn bytes_become_letters_of_urls() {
        let texts = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (size, text) in texts.iter().enumerate() {
            assert_eq!(base64_url(&b"foobar"[..size]), *text);
        }
        assert_eq!(base64_url(&[0xFB, 0xFF, 0xFE]), "-__-");
    }

    #[test]
    fn a_send_answer_in_binary_has_the_same_fields() {
        let mut out = Vec::new();
        let pieces = Pieces::new("r", false, &HOST);
        let answer = SendAnswer { opaque: 5, physical_offsets: &[1, 2], ..SendAnswer::default() };
        pieces.send_answer(&mut out, Encoding::Binary, &answer);
        let mut expected = vec![0, 0, 3, 1, 0x99, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0];
        let mut fields = Vec::new();
        push_field(&mut fields, b"MSG_REGION", b"r");
        push_field(&mut fields, b"TRACE_ON", b"false");
        let ids = b"0A0000FF00002A9F0000000000000001,0A0000FF00002A9F0000000000000002";
        push_field(&mut fields, b"msgId", ids);
        push_field(&mut fields, b"queueId", b"0");
        push_field(&mut fields, b"queueOffset", b"0");
        expected.extend_from_slice(&(fields.len() as u32).to_be_bytes());
        expected.extend_from_slice(&fields);
        assert_eq!(out[4], 1);
        assert_eq!(header(&out), expected);
    }

    #[test]
    fn a_flush_timeout_is_the_same_answer_with_another_code() {
        let pieces = Pieces::new("r", true, &HOST);
        for encoding in [Encoding::Json, Encoding::Binary] {
            let mut frame = Vec::new();
            let answer = SendAnswer {
                opaque: 9,
                queue_id: 1,
                queue_offset: 2,
                physical_offsets: &[3],
                ..SendAnswer::default()
            };
            pieces.send_answer(&mut frame, encoding, &answer);
            let mut late = Vec::new();
            push_with_code(&mut late, &frame, code::FLUSH_DISK_TIMEOUT);
            match encoding {
                Encoding::Json => {
                    let text = String::from_utf8(header(&frame).to_vec()).unwrap();
                    let text = text.replacen("\"code\":0", "\"code\":10", 1);
                    assert_eq!(header(&late), text.as_bytes());
                }
                Encoding::Binary => {
                    let mut expected = header(&frame).to_vec();
                    expected[1] = 10;
                    assert_eq!(header(&late), expected);
                }
            }
        }
    }

    #[test]
    fn a_pull_answer_counts_its_body() {
        let answer = PullAnswer {
            code: code::PULL_NOT_FOUND,
            opaque: 8,
            remark: "OFFSET_OVERFLOW_ONE",
            broker_id: 1,
            next_offset: i64::MAX,
            min_offset: 0,
            max_offset: -1,
        };
        let mut out = Vec::new();
        pull_answer(&mut out, Encoding::Json, &answer, 4);
        out.extend_from_slice(b"body");
        let expected = "{\"code\":19,\"extFields\":{\"maxOffset\":\"-1\",\"minOffset\":\"0\",\
            \"nextBeginOffset\":\"9223372036854775807\",\"suggestWhichBrokerId\":\"1\"},\"flag\":1,\
            \"language\":\"PYTHON\",\"opaque\":8,\"remark\":\"OFFSET_OVERFLOW_ONE\",\
            \"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}";
        assert_eq!(header(&out), expected.as_bytes());
        out.clear();
        pull_answer(&mut out, Encoding::Binary, &answer, 0);
        let found = header(&out);
        assert_eq!(found[13..17], 19u32.to_be_bytes());
        assert_eq!(&found[17..36], b"OFFSET_OVERFLOW_ONE");
    }

    #[test]
    fn numbers_are_written_as_java_writes_them() {
        for value in [0, 7, 10, -1, 1_234_567_890, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            push_decimal(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }
}
