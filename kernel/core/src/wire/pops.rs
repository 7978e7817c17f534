//! Requests about pops as clients write them: pops, acknowledgements, batches of these.
//!
//! As with [`super::header`], only the shape that clients write is read; anything else is None, and
//! the frame goes to Python.

use super::json::Json;
use super::numbers::{integer, long};
use crate::protocol::{NAME_BYTES_MAX, field, request};

/// How the header of a request about pops begins, as Java, Go and Python write it.
pub const START: &[u8] = b"{\"code\":200";

/// Acknowledgements of a batch that is read here.
const ACKS_MAX: usize = 64;

/// Offsets of one of them: bytes of its bits.
const BITS_BYTES_MAX: usize = 64;

/// Longest number of a receipt: what is longer is for Python to refuse.
const DIGITS_MAX: usize = 18;

/// A request, as far as its header says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    Pop(Pop<'a>),
    Ack(Ack<'a>),
    /// What is acknowledged is in the body.
    Batch,
}

/// A pop of all messages, without order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pop<'a> {
    pub group: &'a [u8],
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub count: i32,
    pub invisible_ms: i64,
    pub poll_ms: i64,
    pub born_ms: i64,
}

/// An acknowledgement of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack<'a> {
    pub group: &'a [u8],
    /// The queue's own.
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub offset: i64,
    pub pop_time: i64,
}

/// Messages of one pop that are acknowledged together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acks<'a> {
    pub group: &'a [u8],
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub pop_time: i64,
    pub start: i64,
    /// Bit i, from the lowest of the first byte on: offset `start` + i.
    pub bits: Vec<u8>,
}

impl Acks<'_> {
    /// The offsets, ascending.
    pub fn offsets(&self) -> impl Iterator<Item = i64> {
        self.bits.iter().enumerate().flat_map(move |(place, byte)| {
            let is_set = move |bit: &i64| byte >> bit & 1 != 0;
            (0..8).filter(is_set).map(move |bit| self.start + 8 * place as i64 + bit)
        })
    }
}

/// Reads a JSON header: what it asks for, and its opaque.
#[must_use]
pub fn read(header: &[u8]) -> Option<(Asked<'_>, i32)> {
    let mut json = Json { data: header, at: 0 };
    let (mut code, mut opaque, mut flag) = (None, None, 0);
    let mut fields = None;
    json.members(|json, name| {
        match name {
            b"code" if code.is_none() => code = Some(json.number()?),
            b"opaque" if opaque.is_none() => opaque = Some(json.number()?),
            b"flag" => flag = json.number()?,
            b"extFields" if fields.is_none() => fields = Some(Fields::read(json)?),
            b"language" | b"serializeTypeCurrentRPC" => {
                json.text()?;
            }
            b"remark" => json.text_or_null()?,
            b"version" => {
                json.number()?;
            }
            _ => return None,
        }
        Some(())
    })?;
    json.end()?;
    let opaque = opaque.filter(|_| flag == 0)?;
    let asked = match code? {
        request::POP_MESSAGE => Asked::Pop(fields?.pop()?),
        request::ACK_MESSAGE => Asked::Ack(fields?.ack()?),
        request::BATCH_ACK_MESSAGE => Asked::Batch,
        _ => return None,
    };
    Some((asked, opaque))
}

/// The members of a pop or an acknowledgement; empty: it is not there.
#[derive(Default)]
struct Fields<'a> {
    group: &'a [u8],
    topic: &'a [u8],
    queue_id: &'a [u8],
    count: &'a [u8],
    invisible: &'a [u8],
    poll: &'a [u8],
    born: &'a [u8],
    init_mode: &'a [u8],
    expression_type: &'a [u8],
    expression: &'a [u8],
    order: &'a [u8],
    receipt: &'a [u8],
    offset: &'a [u8],
}

impl<'a> Fields<'a> {
    fn read(json: &mut Json<'a>) -> Option<Self> {
        let mut fields = Self::default();
        json.members(|json, name| {
            let value = json.text()?;
            let mut ignored: &[u8] = &[];
            let place = match name {
                b"consumerGroup" => &mut fields.group,
                b"topic" => &mut fields.topic,
                b"queueId" => &mut fields.queue_id,
                b"invisibleTime" => &mut fields.invisible,
                b"pollTime" => &mut fields.poll,
                b"bornTime" => &mut fields.born,
                b"initMode" => &mut fields.init_mode,
                b"expType" => &mut fields.expression_type,
                b"exp" => &mut fields.expression,
                b"order" => &mut fields.order,
                b"extraInfo" => &mut fields.receipt,
                b"offset" => &mut fields.offset,
                // Clients of 5.x name the broker, and say that names have no space of their own.
                b"brokerName" | b"nsd" | b"ns" | b"oway" | b"lo" => &mut ignored,
                _ => match field::number(name)? {
                    field::MAX_MSG_NUMS => &mut fields.count,
                    field::BNAME => &mut ignored,
                    _ => return None,
                },
            };
            if !place.is_empty() {
                return None;
            }
            *place = value;
            Some(())
        })?;
        Some(fields)
    }

    fn names(&self) -> Option<(&'a [u8], &'a [u8])> {
        let is_name = |text: &[u8]| (1..=NAME_BYTES_MAX).contains(&text.len());
        (is_name(self.group) && is_name(self.topic)).then_some((self.group, self.topic))
    }

    fn pop(&self) -> Option<Pop<'a>> {
        let (group, topic) = self.names()?;
        integer(self.init_mode)?;
        let is_all = matches!(self.expression, b"" | b"*")
            && matches!(self.expression_type, b"" | b"TAG")
            && matches!(self.order, b"" | b"false");
        let born_ms = if self.born.is_empty() { 0 } else { long(self.born)? };
        is_all.then_some(Pop {
            group,
            topic,
            queue_id: integer(self.queue_id)?,
            count: integer(self.count)?,
            invisible_ms: long(self.invisible)?,
            poll_ms: long(self.poll)?,
            born_ms,
        })
    }

    fn ack(&self) -> Option<Ack<'a>> {
        let (group, topic) = self.names()?;
        let (queue_id, offset) = (integer(self.queue_id)?, long(self.offset)?);
        let receipt = Receipt::read(self.receipt, false)?;
        let is_its = receipt.queue_id == queue_id && receipt.offset == offset;
        is_its.then_some(Ack { group, topic, queue_id, offset, pop_time: receipt.pop_time })
    }
}

/// What of a receipt of a pop without order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt<'a> {
    pub pop_time: i64,
    pub invisible_ms: i64,
    /// Of the queue's topic: 0 is the topic itself.
    pub kind: i64,
    pub broker: &'a [u8],
    pub queue_id: i32,
    pub offset: i64,
}

impl<'a> Receipt<'a> {
    /// `start popTime invisibleTime 0 kind broker queueId offset`; those of gRPC have the place in
    /// the log behind it.
    #[must_use]
    pub fn read(text: &'a [u8], is_of_call: bool) -> Option<Self> {
        let mut parts = text.split(|byte| *byte == b' ');
        let mut number = || digits(parts.next()?);
        number()?;
        let pop_time = number()?;
        let invisible_ms = number()?;
        (number()? == 0).then_some(())?;
        let kind = number().filter(|kind| *kind <= 2)?;
        let broker = parts.next()?;
        let queue_id = i32::try_from(digits(parts.next()?)?).ok()?;
        let offset = digits(parts.next()?)?;
        if is_of_call {
            digits(parts.next()?)?;
        }
        let is_whole = !broker.is_empty() && parts.next().is_none();
        is_whole.then_some(Self { pop_time, invisible_ms, kind, broker, queue_id, offset })
    }
}

fn digits(text: &[u8]) -> Option<i64> {
    let are_digits = text.iter().all(u8::is_ascii_digit);
    (are_digits && (1..=DIGITS_MAX).contains(&text.len())).then(|| long(text))?
}

/// Reads the body of a batch of acknowledgements, of topics themselves.
#[must_use]
pub fn read_acks(body: &[u8]) -> Option<Vec<Acks<'_>>> {
    let mut json = Json { data: body, at: 0 };
    let mut found = None;
    json.members(|json, name| {
        match name {
            b"acks" if found.is_none() => found = Some(read_list(json)?),
            b"brokerName" => (json.text()?.len() <= NAME_BYTES_MAX).then_some(())?,
            _ => return None,
        }
        Some(())
    })?;
    json.end()?;
    found
}

fn read_list<'a>(json: &mut Json<'a>) -> Option<Vec<Acks<'a>>> {
    let mut found = Vec::new();
    json.take(b'[')?;
    loop {
        if found.len() == ACKS_MAX {
            return None;
        }
        found.push(read_member(json)?);
        match json.next()? {
            b',' => {}
            b']' => return Some(found),
            _ => return None,
        }
    }
}

// Members of an acknowledgement, for the check that each is there once.
const MEMBERS: [&[u8]; 9] = [b"c", b"t", b"q", b"pt", b"so", b"b", b"it", b"r", b"rq"];
const MEMBERS_REQUIRED: u16 = 0b0_1111_1111;

fn read_member<'a>(json: &mut Json<'a>) -> Option<Acks<'a>> {
    let mut acks = Acks::default();
    let mut seen = 0_u16;
    json.members(|json, name| {
        let bit = 1 << MEMBERS.iter().position(|member| *member == name)?;
        if seen & bit != 0 {
            return None;
        }
        seen |= bit;
        if matches!(name, b"c" | b"t" | b"b" | b"r") {
            let text = json.text()?;
            match name {
                b"c" => acks.group = text,
                b"t" => acks.topic = text,
                b"b" => acks.bits = base64(text)?,
                _ => (text == b"0").then_some(())?,
            }
        } else {
            let value = whole_number(json)?;
            match name {
                b"q" => acks.queue_id = i32::try_from(value).ok()?,
                b"pt" => acks.pop_time = value,
                b"so" => acks.start = value,
                b"rq" => (value == 0).then_some(())?,
                _ => {}
            }
        }
        Some(())
    })?;
    let are_names = [acks.group, acks.topic].iter().all(|name| name.len() <= NAME_BYTES_MAX);
    (seen & MEMBERS_REQUIRED == MEMBERS_REQUIRED && are_names).then_some(acks)
}

/// A number without a sign.
fn whole_number(json: &mut Json<'_>) -> Option<i64> {
    json.next()?.is_ascii_digit().then_some(())?;
    let start = json.at - 1;
    while json.data.get(json.at)?.is_ascii_digit() {
        json.at += 1;
    }
    let text = &json.data[start..json.at];
    (text.len() == 1 || text[0] != b'0').then(|| digits(text))?
}

/// Bytes of a text in base 64, with padding.
fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let end = text.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
    if !text.len().is_multiple_of(4) || text.len() - end > 2 || text.len() / 4 * 3 > BITS_BYTES_MAX
    {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut word, mut bits) = (0_u32, 0);
    for byte in &text[..end] {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        word = word << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    // Bits that are left over are zeros where an encoder wrote them.
    (word & ((1 << bits) - 1) == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POP: &[u8] = br#"{"code":200050,"extFields":{"consumerGroup":"G","exp":"*","expType":"TAG","initMode":"0","invisibleTime":"60000","maxMsgNums":"32","order":"false","pollTime":"15000","bornTime":"7","queueId":"-1","topic":"T"},"flag":0,"language":"JAVA","opaque":5,"serializeTypeCurrentRPC":"JSON","version":453}"#;

    fn with(old: &str, new: &str) -> Vec<u8> {
        let text = std::str::from_utf8(POP).unwrap();
        assert!(text.contains(old));
        text.replace(old, new).into_bytes()
    }

    #[test]
    fn a_pop_is_read_as_java_writes_it() {
        let pop = Pop {
            group: b"G",
            topic: b"T",
            queue_id: -1,
            count: 32,
            invisible_ms: 60_000,
            poll_ms: 15_000,
            born_ms: 7,
        };
        assert_eq!(read(POP), Some((Asked::Pop(pop), 5)));
    }

    #[test]
    fn what_is_not_common_is_left() {
        for (old, new) in [
            ("\"*\"", "\"a\""),
            ("TAG", "SQL92"),
            ("\"false\"", "\"true\""),
            ("\"opaque\":5", "\"opaque\":\"5\""),
            ("\"flag\":0", "\"flag\":2"),
            ("\"G\"", "\"\""),
            ("\"G\"", "\"\\u0047\""),
            ("initMode", "attemptId"),
            ("200050", "200053"),
            ("\"32\"", "32"),
            ("}\"", "}"),
        ] {
            if !std::str::from_utf8(POP).unwrap().contains(old) {
                continue;
            }
            assert_eq!(read(&with(old, new)), None, "{old} {new}");
        }
        for end in 0..POP.len() {
            assert_eq!(read(&POP[..end]), None);
        }
    }

    #[test]
    fn an_acknowledgement_is_read_with_its_receipt() {
        let text = |receipt: &str| {
            format!(
                "{{\"code\":200051,\"extFields\":{{\"consumerGroup\":\"G\",\"extraInfo\":\"{receipt}\",\
                 \"offset\":\"12\",\"queueId\":\"3\",\"topic\":\"T\"}},\"flag\":0,\"opaque\":1}}"
            )
        };
        let good = text("10 99 60000 0 0 broker-a 3 12");
        let ack = Ack { group: b"G", topic: b"T", queue_id: 3, offset: 12, pop_time: 99 };
        assert_eq!(read(good.as_bytes()), Some((Asked::Ack(ack), 1)));
        for receipt in [
            "",
            "10 99 60000 0 0 broker-a 3",
            "10 99 60000 999 0 broker-a 3 12",
            "10 99 60000 0 3 broker-a 3 12",
            "10 99 60000 0 0 broker-a 4 12",
            "10 99 60000 0 0 broker-a 3 13",
            "10 99 60000 0 0  3 12",
            "10 -9 60000 0 0 broker-a 3 12",
            "10 99 60000 0 0 broker-a 3 12 5",
        ] {
            assert_eq!(read(text(receipt).as_bytes()), None, "{receipt}");
        }
    }

    #[test]
    fn a_batch_of_acknowledgements_is_read() {
        let body = br#"{"acks":[{"b":"AwAAAAE=","c":"G","it":60000,"pt":99,"q":3,"r":"0","rq":0,"so":10,"t":"T"}],"brokerName":"b"}"#;
        let acks = read_acks(body).unwrap();
        assert_eq!(acks.len(), 1);
        assert_eq!((acks[0].group, acks[0].topic, acks[0].queue_id), (&b"G"[..], &b"T"[..], 3));
        assert_eq!(acks[0].pop_time, 99);
        assert_eq!(acks[0].offsets().collect::<Vec<_>>(), [10, 11, 42]);
        for end in 0..body.len() {
            assert_eq!(read_acks(&body[..end]), None);
        }
        let text = std::str::from_utf8(body).unwrap();
        for (old, new) in [
            ("\"r\":\"0\"", "\"r\":\"1\""),
            ("\"rq\":0", "\"rq\":999"),
            ("\"q\":3", "\"q\":\"3\""),
            ("\"so\":10", "\"so\":-1"),
            ("\"so\":10", "\"so\":010"),
            ("\"pt\":99,", ""),
            ("\"pt\":99", "\"pt\":99,\"pt\":99"),
            ("AwAAAAE=", "AwAAAAE"),
            ("AwAAAAE=", "AwAAAAF="),
            ("[{", "[[{"),
        ] {
            assert!(text.contains(old), "{old}");
            assert_eq!(read_acks(text.replace(old, new).as_bytes()), None, "{old} {new}");
        }
    }
}
