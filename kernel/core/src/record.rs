//! The stored record: its layout, one-pass encoding, and decoding.
//!
//! Big-endian; `b` and `s` are the lengths of the born and store host (8, or 20 with sysFlag bit 16
//! or 32), `n`, `t`, `p` those of body, topic and properties:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | total size |
//! | 4 | 4 | magic code |
//! | 8 | 4 | body CRC |
//! | 12 | 4 | queue id |
//! | 16 | 4 | flag |
//! | 20 | 8 | queue offset |
//! | 28 | 8 | physical offset |
//! | 36 | 4 | sysFlag |
//! | 40 | 8 | born timestamp |
//! | 48 | b | born host |
//! | 48+b | 8 | store timestamp |
//! | 56+b | s | store host |
//! | 56+b+s | 4 | reconsume times |
//! | 60+b+s | 8 | prepared transaction offset |
//! | 68+b+s | 4+n | body |
//! | 72+b+s+n | 1+t | topic |
//! | 73+b+s+n+t | 2+p | properties |
//!
//! Size and magic are stored last: a record torn by a kill has no size, so recovery stops there.

use crate::protocol::{
    BLANK_MAGIC, BORN_HOST_V6, ITEM_END, MESSAGE_MAGIC, NAME_END, RECORD_BYTES_MIN, STORE_HOST_V6,
    TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, property,
};
use std::sync::atomic::{Ordering, fence};

/// Bytes of the blank that ends a file, and that always stay free for it.
pub const BLANK_SIZE: u64 = 8;

/// Where the system flag stands in a record.
const SYS_FLAG_AT: usize = 36;

/// Body bytes whose CRC is taken before they are copied: they stay in the first-level cache.
const CRC_CHUNK: usize = 16 * 1024;

/// Powers of 31, for the hash of eight bytes at once.
const POWERS: [i32; 9] = {
    let mut powers = [1_i32; 9];
    let mut index = 1;
    while index < 9 {
        powers[index] = powers[index - 1].wrapping_mul(31);
        index += 1;
    }
    powers
};

/// Text given in up to four pieces that are stored one after the other, so that a caller who
/// drops or adds an item need not copy the rest first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Text<'a> {
    /// The pieces, in order; empty ones count for nothing.
    pub parts: [&'a [u8]; 4],
}

impl<'a> Text<'a> {
    /// Text in one piece.
    pub const fn one(text: &'a [u8]) -> Self {
        Text { parts: [text, &[], &[], &[]] }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a caller that parsed the property text already knows of it; spares the store a scan.
/// Values as RocketMQ reads them: the last item of a name counts, an empty value is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks<'a> {
    /// Value of `TAGS`.
    pub tags: Option<&'a [u8]>,
    /// Value of `KEYS`.
    pub keys: Option<&'a [u8]>,
    /// Value of `UNIQ_KEY`.
    pub uniq_key: Option<&'a [u8]>,
}

impl<'a> Marks<'a> {
    /// Finds the marks in property text.
    pub fn scan(text: &'a [u8]) -> Self {
        let mut marks = Marks::default();
        for (name, value) in properties(text) {
            match name {
                property::TAGS => marks.tags = Some(value),
                property::KEYS => marks.keys = Some(value),
                property::UNIQUE_KEY => marks.uniq_key = Some(value),
                _ => {}
            }
        }
        marks
    }

    /// The tags code of a queue entry: Java's hash of TAGS, 0 without tags.
    pub fn tags_code(&self) -> i64 {
        self.tags.map_or(0, |tags| i64::from(java_hash(tags)))
    }
}

/// The (name, value) pairs of property text, by RocketMQ's rule: empty names and values vanish.
pub fn properties(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|&byte| byte == ITEM_END).filter_map(|item| {
        let at = item.iter().position(|&byte| byte == NAME_END)?;
        (at > 0 && at + 1 < item.len()).then(|| (&item[..at], &item[at + 1..]))
    })
}

/// When a record of [`SCHEDULE_TOPIC`] is to be delivered, by the level in its property text and
/// the delays of the levels; `None` when it names no level.
pub fn deliver_time(text: &[u8], store_timestamp: i64, delays_ms: &[i64]) -> Option<i64> {
    let (_, level) = properties(text).filter(|(name, _)| *name == property::DELAY).last()?;
    if !level.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // A level above the last one is the last one, however large its number is.
    let level = level.iter().fold(0_usize, |level, digit| {
        level.saturating_mul(10).saturating_add(usize::from(digit - b'0'))
    });
    let delay = delays_ms.get(level.min(delays_ms.len()).checked_sub(1)?)?;
    Some(store_timestamp.saturating_add(*delay))
}

/// Java's `String.hashCode` of UTF-8 text, over its UTF-16 units.
pub fn java_hash(text: &[u8]) -> i32 {
    java_hash_from(0, text)
}

/// Goes on with a hash: `java_hash_from(java_hash(a), b)` is the hash of `a + b`.
#[inline]
pub fn java_hash_from(start: i32, text: &[u8]) -> i32 {
    if !text.is_ascii() {
        let text = String::from_utf8_lossy(text);
        return text
            .encode_utf16()
            .fold(start, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    }
    // Eight at a time: the products are independent, so they overlap in the processor.
    let mut hash = start;
    let mut chunks = text.chunks_exact(8);
    for chunk in &mut chunks {
        let mut sum = hash.wrapping_mul(POWERS[8]);
        for (index, &byte) in chunk.iter().enumerate() {
            sum = sum.wrapping_add(i32::from(byte).wrapping_mul(POWERS[7 - index]));
        }
        hash = sum;
    }
    for &byte in chunks.remainder() {
        hash = hash.wrapping_mul(31).wrapping_add(i32::from(byte));
    }
    hash
}

/// RocketMQ's CRC of a body: the lower 31 bits of CRC-32.
pub fn body_crc(body: &[u8]) -> i32 {
    (crc32fast::hash(body) & 0x7FFF_FFFF) as i32
}

/// One record to append; topic and queue id come from the handle.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // fields of the record, named as RocketMQ does
pub struct NewRecord<'a> {
    pub flag: i32,
    /// The host bits (16, 32) are set from the lengths of the hosts.
    pub sys_flag: i32,
    pub born_timestamp: i64,
    /// 8 or 20 bytes: address and port, big-endian.
    pub born_host: &'a [u8],
    pub store_host: &'a [u8],
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
    pub body: &'a [u8],
    pub properties: Text<'a>,
    /// `None`: the store scans the text for TAGS, KEYS and `UNIQ_KEY`.
    pub marks: Option<Marks<'a>>,
    /// `None`: Java's hash of TAGS; the time of delivery in `SCHEDULE_TOPIC_XXXX`.
    pub tags_code: Option<i64>,
    /// Goes into the unit beside the queue entry; empty: no filter was calculated.
    pub bit_map: &'a [u8],
}

/// Everything a record holds, for [`encode`]; its sysFlag has the host bits.
pub(crate) struct Fields<'a> {
    pub(crate) record: &'a NewRecord<'a>,
    pub(crate) topic: &'a [u8],
    pub(crate) queue_id: i32,
    pub(crate) queue_offset: i64,
    pub(crate) physical_offset: i64,
    pub(crate) store_timestamp: i64,
    /// Bytes of the record's property text.
    pub(crate) properties_size: usize,
}

/// Size of a record.
#[inline]
pub(crate) fn record_size(hosts: usize, body: usize, topic: usize, properties: usize) -> usize {
    75 + hosts + body + topic + properties
}

/// The host bits of sysFlag set by the lengths of the hosts; `None` when a length is no host's.
#[inline]
pub(crate) fn with_host_bits(sys_flag: i32, born_host: &[u8], store_host: &[u8]) -> Option<i32> {
    let born = match born_host.len() {
        8 => 0,
        20 => BORN_HOST_V6,
        _ => return None,
    };
    let store = match store_host.len() {
        8 => 0,
        20 => STORE_HOST_V6,
        _ => return None,
    };
    Some(sys_flag & !(BORN_HOST_V6 | STORE_HOST_V6) | born | store)
}

/// Writes a record over `target`, whose length is [`record_size`]; size and magic last.
///
/// The caller has checked the limits of topic and properties.
#[inline]
pub(crate) fn encode(target: &mut [u8], fields: &Fields<'_>) {
    let record = fields.record;
    let total = target.len() as i32;
    let mut head = Cursor { bytes: target, at: 12 };
    head.put(&fields.queue_id.to_be_bytes());
    head.put(&record.flag.to_be_bytes());
    head.put(&fields.queue_offset.to_be_bytes());
    head.put(&fields.physical_offset.to_be_bytes());
    head.put(&record.sys_flag.to_be_bytes());
    head.put(&record.born_timestamp.to_be_bytes());
    head.put(record.born_host);
    head.put(&fields.store_timestamp.to_be_bytes());
    head.put(record.store_host);
    head.put(&record.reconsume_times.to_be_bytes());
    head.put(&record.prepared_transaction_offset.to_be_bytes());
    head.put(&(record.body.len() as i32).to_be_bytes());
    let mut hasher = crc32fast::Hasher::new();
    for chunk in record.body.chunks(CRC_CHUNK) {
        hasher.update(chunk);
        head.put(chunk);
    }
    let crc = (hasher.finalize() & 0x7FFF_FFFF) as i32;
    head.put(&[fields.topic.len() as u8]);
    head.put(fields.topic);
    head.put(&(fields.properties_size as i16).to_be_bytes());
    for part in record.properties.parts {
        head.put(part);
    }
    head.bytes[8..12].copy_from_slice(&crc.to_be_bytes());
    fence(Ordering::Release);
    head.bytes[4..8].copy_from_slice(&MESSAGE_MAGIC.to_be_bytes());
    fence(Ordering::Release);
    head.bytes[..4].copy_from_slice(&total.to_be_bytes());
}

struct Cursor<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Cursor<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len();
        self.bytes[self.at..end].copy_from_slice(bytes);
        self.at = end;
    }
}

/// A stored record, its parts in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // fields of the record, named as RocketMQ does
pub struct RecordView<'a> {
    /// Bytes of the whole record.
    pub size: usize,
    pub body_crc: i32,
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub physical_offset: i64,
    pub sys_flag: i32,
    pub born_timestamp: i64,
    pub born_host: &'a [u8],
    pub store_timestamp: i64,
    pub store_host: &'a [u8],
    pub reconsume_times: i32,
    pub prepared_transaction_offset: i64,
    pub body: &'a [u8],
    pub topic: &'a [u8],
    pub properties: &'a [u8],
}

/// What stands at a position of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed<'a> {
    /// A whole record (its CRC not checked).
    Record(RecordView<'a>),
    /// The blank that ends a file.
    Blank,
    /// Neither; the text says what is wrong.
    Bad(&'static str),
}

/// Reads what stands at the start of `bytes`, trusting no length in it.
pub fn parse(bytes: &[u8]) -> Parsed<'_> {
    let Some(head) = bytes.get(..8) else { return Parsed::Bad("fewer than 8 bytes") };
    let size = int(head, 0);
    match int(head, 4) {
        MESSAGE_MAGIC => {}
        BLANK_MAGIC => return Parsed::Blank,
        0 if size == 0 => return Parsed::Bad("nothing written"),
        _ => return Parsed::Bad("no magic code"),
    }
    let size = usize::try_from(size).unwrap_or(0);
    if size < RECORD_BYTES_MIN {
        return Parsed::Bad("size below the smallest record");
    }
    let Some(record) = bytes.get(..size) else {
        return Parsed::Bad("size beyond the end of the file");
    };
    view(record).map_or(Parsed::Bad("lengths do not add up to the size"), Parsed::Record)
}

/// When a record was stored, of which the head at least is there.
pub(crate) fn store_time_of(record: &[u8]) -> Option<i64> {
    let mut rest = Rest { bytes: record.get(SYS_FLAG_AT..)? };
    let sys_flag = rest.int()?;
    rest.long()?;
    rest.take(if sys_flag & BORN_HOST_V6 == 0 { 8 } else { 20 })?;
    rest.long()
}

/// Takes a record apart that has all these bytes; `None` when its lengths do not add up to them.
/// Size and magic are for the caller to examine.
pub(crate) fn view(record: &[u8]) -> Option<RecordView<'_>> {
    let mut rest = Rest { bytes: record.get(8..)? };
    let body_crc = rest.int()?;
    let queue_id = rest.int()?;
    let flag = rest.int()?;
    let queue_offset = rest.long()?;
    let physical_offset = rest.long()?;
    let sys_flag = rest.int()?;
    let born_timestamp = rest.long()?;
    let born_host = rest.take(if sys_flag & BORN_HOST_V6 == 0 { 8 } else { 20 })?;
    let store_timestamp = rest.long()?;
    let store_host = rest.take(if sys_flag & STORE_HOST_V6 == 0 { 8 } else { 20 })?;
    let reconsume_times = rest.int()?;
    let prepared_transaction_offset = rest.long()?;
    let body_size = usize::try_from(rest.int()?).ok()?;
    let body = rest.take(body_size)?;
    let topic_size = usize::try_from(rest.take(1)?[0] as i8).ok()?;
    let topic = rest.take(topic_size)?;
    let properties_size = i16::from_be_bytes(rest.take(2)?.try_into().ok()?);
    let properties = rest.take(usize::try_from(properties_size).ok()?)?;
    rest.bytes.is_empty().then_some(RecordView {
        size: record.len(),
        body_crc,
        queue_id,
        flag,
        queue_offset,
        physical_offset,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        body,
        topic,
        properties,
    })
}

impl RecordView<'_> {
    /// Whether the body has the CRC that the record states. (A body of no bytes is not checked.)
    pub fn is_crc_right(&self) -> bool {
        self.body.is_empty() || body_crc(self.body) == self.body_crc
    }

    /// Whether the record has a queue entry: prepared and rollback types have none.
    pub fn is_queued(&self) -> bool {
        is_queued(self.sys_flag)
    }
}

/// Whether a record with this sysFlag has a queue entry.
#[inline]
pub(crate) fn is_queued(sys_flag: i32) -> bool {
    let kind = sys_flag & TRANSACTION_MASK;
    kind != TRANSACTION_PREPARED && kind != TRANSACTION_ROLLBACK
}

/// The int at a position; 0 when it is not all there.
pub(crate) fn int(bytes: &[u8], at: usize) -> i32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, i32::from_be_bytes)
}

struct Rest<'a> {
    bytes: &'a [u8],
}

impl<'a> Rest<'a> {
    #[inline]
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.bytes.split_at_checked(count)?;
        self.bytes = tail;
        Some(head)
    }

    #[inline]
    fn int(&mut self) -> Option<i32> {
        Some(i32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    #[inline]
    fn long(&mut self) -> Option<i64> {
        Some(i64::from_be_bytes(self.take(8)?.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn java_hash_is_java_s() {
        assert_eq!(java_hash(b""), 0);
        assert_eq!(java_hash(b"TagA"), 2_598_919);
        assert_eq!(java_hash("h\u{e9}llo".as_bytes()), 103_094_734);
        assert_eq!(java_hash("\u{1F600}".as_bytes()), 0xD83D * 31 + 0xDE00);
        assert_eq!(java_hash_from(java_hash(b"topic#"), b"key"), java_hash(b"topic#key"));
    }

    #[test]
    fn marks_follow_rocketmq_s_reading_of_property_text() {
        let text = b"TAGS\x01a\x02KEYS\x01k1 k2\x02UNIQ_KEY\x01u\x02TAGS\x01b\x02KEYS\x01\x02";
        let marks = Marks::scan(text);
        assert_eq!(marks.tags, Some(b"b".as_slice()));
        assert_eq!(marks.keys, Some(b"k1 k2".as_slice()));
        assert_eq!(marks.uniq_key, Some(b"u".as_slice()));
        assert_eq!(Marks::scan(b"\x01x\x02\x02TAGS"), Marks::default());
    }

    #[test]
    fn the_deliver_time_follows_from_the_last_level() {
        let time = |text: &[u8]| deliver_time(text, 7, &[1_000, 5_000]);
        assert_eq!(time(b"DELAY\x011"), Some(1_007));
        assert_eq!(time(b"DELAY\x011\x02DELAY\x0102\x02DELAY\x01"), Some(5_007));
        assert_eq!(time(b"DELAY\x0199999999999999999999999999"), Some(5_007));
        for text in [b"".as_slice(), b"DELAY\x010", b"DELAY\x01+1", b"DELAY\x011\x02DELAY\x01x"] {
            assert_eq!(time(text), None);
        }
        assert_eq!(deliver_time(b"DELAY\x011", i64::MAX, &[1]), Some(i64::MAX));
        assert_eq!(deliver_time(b"DELAY\x011", 7, &[]), None);
    }

    #[test]
    fn garbage_lengths_are_named_not_followed() {
        let mut bytes = vec![0_u8; 200];
        assert_eq!(parse(&bytes), Parsed::Bad("nothing written"));
        bytes[4..8].copy_from_slice(&MESSAGE_MAGIC.to_be_bytes());
        for size in [0, -1, 90, i32::MIN] {
            bytes[..4].copy_from_slice(&size.to_be_bytes());
            assert_eq!(parse(&bytes), Parsed::Bad("size below the smallest record"));
        }
        bytes[..4].copy_from_slice(&i32::MAX.to_be_bytes());
        assert_eq!(parse(&bytes), Parsed::Bad("size beyond the end of the file"));
        bytes[..4].copy_from_slice(&150_i32.to_be_bytes());
        assert_eq!(parse(&bytes), Parsed::Bad("lengths do not add up to the size"));
    }

    proptest! {
        #[test]
        fn a_record_reads_back_as_written(
            numbers in any::<(i32, i32, i64, i64, i32, i64, i64, i32, i64)>(),
            hosts in (any::<[u8; 20]>(), any::<bool>(), any::<bool>()),
            body in prop::collection::vec(any::<u8>(), 0..40_000),
            topic in prop::collection::vec(any::<u8>(), 0..=127),
            properties in prop::collection::vec(any::<u8>(), 0..3_000),
            cut in any::<prop::sample::Index>(),
        ) {
            let born_host = &hosts.0[..if hosts.1 { 20 } else { 8 }];
            let store_host = &hosts.0[..if hosts.2 { 20 } else { 8 }];
            let (head, tail) = properties.split_at(cut.index(properties.len() + 1));
            let record = NewRecord {
                flag: numbers.1,
                sys_flag: with_host_bits(numbers.4, born_host, store_host).unwrap(),
                born_timestamp: numbers.5,
                born_host,
                store_host,
                reconsume_times: numbers.7,
                prepared_transaction_offset: numbers.8,
                body: &body,
                properties: Text { parts: [head, &[], tail, &[]] },
                marks: None,
                tags_code: None,
                bit_map: &[],
            };
            let fields = Fields {
                record: &record,
                topic: &topic,
                queue_id: numbers.0,
                queue_offset: numbers.2,
                physical_offset: numbers.3,
                store_timestamp: numbers.6,
                properties_size: properties.len(),
            };
            let hosts = born_host.len() + store_host.len();
            let size = record_size(hosts, body.len(), topic.len(), properties.len());
            let mut bytes = vec![0xAA; size];
            encode(&mut bytes, &fields);
            let Parsed::Record(view) = parse(&bytes) else { panic!("no record") };
            prop_assert_eq!(view.size, size);
            prop_assert!(view.is_crc_right());
            prop_assert_eq!(view.physical_offset, numbers.3);
            prop_assert_eq!(view.queue_offset, numbers.2);
            prop_assert_eq!(view.store_timestamp, numbers.6);
            prop_assert_eq!(view.born_host, born_host);
            prop_assert_eq!(view.store_host, store_host);
            prop_assert_eq!(view.body, &body[..]);
            prop_assert_eq!(view.topic, &topic[..]);
            prop_assert_eq!(view.properties, &properties[..]);
            // A torn record is never taken for a whole one.
            prop_assert!(!matches!(parse(&bytes[..size - 1]), Parsed::Record(_)));
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = bytes;
            let _ = parse(&bytes);
            if bytes.len() >= 8 {
                bytes[4..8].copy_from_slice(&MESSAGE_MAGIC.to_be_bytes());
                let size = bytes.len() as i32;
                bytes[..4].copy_from_slice(&size.to_be_bytes());
                let _ = parse(&bytes);
            }
        }
    }
}
