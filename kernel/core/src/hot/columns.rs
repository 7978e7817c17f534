//! Raw records into Arrow buffers.
//!
//! One pass checks and locates every record, then each wanted column is filled by itself. All
//! numbers are little-endian; offsets are 32 bits, so a column holds less than 2 GiB.

use std::borrow::Cow;
use std::fmt;
use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr};

use flate2::bufread::ZlibDecoder;

use super::properties::{ITEM_END, NAME_END, PROPERTIES_BYTES_MAX};
use super::swar;

const MAGIC: u32 = 0xDAA3_20A7;
/// Bytes of a record with two IPv4 hosts and nothing in it.
const RECORD_BYTES_MIN: usize = 91;
const TOPIC_BYTES_MAX: usize = 127;
const BORN_HOST_V6: i32 = 16;
const STORE_HOST_V6: i32 = 32;
const COMPRESSED: i32 = 1;
const COMPRESSION_MASK: i32 = 0x700;
/// What `COMPRESSION_MASK` says for zlib; 0 too.
const COMPRESSION_ZLIB: i32 = 0x300;

/// Most bytes of one column: Arrow's 32-bit offsets can't say more.
pub const COLUMN_BYTES_MAX: usize = i32::MAX as usize;

/// A compressed body that inflates to more is an error.
pub const INFLATED_BYTES_MAX: u64 = 64 << 20;

/// One decoded column.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the buffers are named as Arrow does
pub enum Column {
    /// Integers of 32 or 64 bits.
    Fixed(Vec<u8>),
    /// Texts or bytes.
    Variable {
        /// A bit per row; None when no row is null.
        validity: Option<Vec<u8>>,
        offsets: Vec<u8>,
        data: Vec<u8>,
    },
    /// A map of texts per row.
    Map {
        offsets: Vec<u8>,
        key_offsets: Vec<u8>,
        key_data: Vec<u8>,
        value_offsets: Vec<u8>,
        value_data: Vec<u8>,
    },
}

/// Why records can't be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // see the text of each
pub enum ColumnError {
    UnknownColumn(String),
    Malformed { position: usize, reason: &'static str },
    Compression { commit_log_offset: i64, reason: String },
    TooLarge { column: &'static str },
}

impl fmt::Display for ColumnError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownColumn(name) => {
                write!(out, "no column {name:?}; the columns are {}", names().join(", "))
            }
            Self::Malformed { position, reason } => {
                write!(out, "malformed record at byte {position}: {reason}")
            }
            Self::Compression { commit_log_offset, reason } => {
                write!(out, "body of the record at commit log offset {commit_log_offset}: {reason}")
            }
            Self::TooLarge { column } => write!(
                out,
                "column {column} would exceed {COLUMN_BYTES_MAX} bytes; decode fewer records"
            ),
        }
    }
}

impl std::error::Error for ColumnError {}

/// One located record; positions are relative to its start.
struct Record<'a> {
    bytes: &'a [u8],
    sys_flag: i32,
    /// Behind the born timestamp.
    born_host: &'a [u8],
    store_timestamp: i64,
    store_host: &'a [u8],
    /// Start of reconsume times, prepared offset and body length.
    tail: usize,
    body: &'a [u8],
    topic: &'a str,
    /// Empty when no column needs it.
    properties: Cow<'a, str>,
}

#[derive(Clone, Copy)]
enum Kind {
    Int(fn(&Record<'_>) -> i32),
    Long(fn(&Record<'_>) -> i64),
    Text(fn(&Record<'_>, &mut Vec<u8>)),
    Property(&'static str),
    Body,
    Properties,
}

const COLUMNS: [(&str, Kind); 18] = [
    ("topic", Kind::Text(|record, out| out.extend_from_slice(record.topic.as_bytes()))),
    ("queueId", Kind::Int(|record| int_at(record.bytes, 12))),
    ("queueOffset", Kind::Long(|record| long_at(record.bytes, 20))),
    ("commitLogOffset", Kind::Long(|record| long_at(record.bytes, 28))),
    ("msgId", Kind::Text(push_message_id)),
    ("tags", Kind::Property("TAGS")),
    ("keys", Kind::Property("KEYS")),
    ("uniqKey", Kind::Property("UNIQ_KEY")),
    ("flag", Kind::Int(|record| int_at(record.bytes, 16))),
    ("sysFlag", Kind::Int(|record| record.sys_flag)),
    ("bornTimestamp", Kind::Long(|record| long_at(record.bytes, 40).saturating_mul(1_000))),
    ("storeTimestamp", Kind::Long(|record| record.store_timestamp.saturating_mul(1_000))),
    ("bornHost", Kind::Text(|record, out| push_host(record.born_host, out))),
    ("storeHost", Kind::Text(|record, out| push_host(record.store_host, out))),
    ("reconsumeTimes", Kind::Int(|record| int_at(record.bytes, record.tail))),
    ("preparedTransactionOffset", Kind::Long(|record| long_at(record.bytes, record.tail + 4))),
    ("body", Kind::Body),
    ("properties", Kind::Properties),
];

/// The names of all columns.
#[must_use]
pub fn names() -> Vec<&'static str> {
    COLUMNS.iter().map(|(name, _)| *name).collect()
}

/// Decodes `data`, records that follow each other, into the named columns: how many rows, and the
/// columns in the order asked for.
///
/// # Errors
/// An unknown column, a torn or malformed record, a body that can't be inflated, or a column of
/// more than 2 GiB.
pub fn decode_columns(data: &[u8], columns: &[&str]) -> Result<(usize, Vec<Column>), ColumnError> {
    let wanted = columns
        .iter()
        .map(|column| {
            let found = COLUMNS.iter().find(|(name, _)| name == column);
            found.ok_or_else(|| ColumnError::UnknownColumn((*column).into()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let has_text =
        wanted.iter().any(|(_, kind)| matches!(kind, Kind::Property(_) | Kind::Properties));
    let records = locate(data, has_text)?;
    let filled = wanted.into_iter().map(|(name, kind)| fill(&records, name, *kind));
    Ok((records.len(), filled.collect::<Result<_, _>>()?))
}

/// All records; their property texts only when `has_text`.
fn locate(data: &[u8], has_text: bool) -> Result<Vec<Record<'_>>, ColumnError> {
    let mut records = Vec::new();
    let mut position = 0;
    while position < data.len() {
        let record = Record::at(&data[position..], has_text)
            .map_err(|reason| ColumnError::Malformed { position, reason })?;
        position += record.bytes.len();
        records.push(record);
    }
    Ok(records)
}

fn int_at(data: &[u8], at: usize) -> i32 {
    data.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| i32::from_be_bytes(*bytes))
}

fn long_at(data: &[u8], at: usize) -> i64 {
    data.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| i64::from_be_bytes(*bytes))
}

impl<'a> Record<'a> {
    /// The record at the start of `data`, all its lengths checked.
    fn at(data: &'a [u8], has_text: bool) -> Result<Self, &'static str> {
        if data.len() < RECORD_BYTES_MIN {
            return Err("fewer bytes than the smallest record has");
        }
        if int_at(data, 4) as u32 != MAGIC {
            return Err("wrong magic");
        }
        let size = usize::try_from(int_at(data, 0)).map_err(|_| "negative size")?;
        let bytes = data.get(..size).ok_or("torn: its size goes beyond the data")?;
        let sys_flag = int_at(bytes, 36);
        let host_size = |bit: i32| if sys_flag & bit == 0 { 8 } else { 20 };
        let born_end = 48 + host_size(BORN_HOST_V6);
        let store_end = born_end + 8 + host_size(STORE_HOST_V6);
        let body_start = store_end + 16;
        let reason = "its lengths do not add up";
        let part = |start: usize, size: usize| {
            start.checked_add(size).and_then(|end| bytes.get(start..end)).ok_or(reason)
        };
        part(store_end, 16)?;
        let body_size = usize::try_from(int_at(bytes, store_end + 12)).map_err(|_| reason)?;
        let body = part(body_start, body_size)?;
        let topic_start = body_start + body_size + 1;
        let topic_size = usize::from(part(topic_start - 1, 1)?[0]);
        let topic = part(topic_start, topic_size)?;
        if topic_size > TOPIC_BYTES_MAX {
            return Err(reason);
        }
        let text_start = topic_start + topic_size + 2;
        let text_size = part(text_start - 2, 2)?;
        let text_size = usize::from(u16::from_be_bytes([text_size[0], text_size[1]]));
        let properties = part(text_start, text_size)?;
        if text_start + text_size != size || text_size > PROPERTIES_BYTES_MAX {
            return Err(reason);
        }
        Ok(Self {
            bytes,
            sys_flag,
            born_host: &bytes[48..born_end],
            store_timestamp: long_at(bytes, born_end),
            store_host: &bytes[born_end + 8..store_end],
            tail: store_end,
            body,
            topic: std::str::from_utf8(topic).map_err(|_| "its topic is not UTF-8")?,
            properties: if has_text {
                String::from_utf8_lossy(properties)
            } else {
                Cow::Borrowed("")
            },
        })
    }

    /// The items of the property text; those without a name or a value vanish.
    fn items(&self) -> impl Iterator<Item = (&str, &str)> {
        let text = &*self.properties;
        let mut start = 0;
        std::iter::from_fn(move || {
            while start < text.len() {
                let name_end = find_separator(text.as_bytes(), start, NAME_END);
                let end = find_separator(text.as_bytes(), name_end, ITEM_END);
                let item = (start, name_end, end);
                start = end + 1;
                // Without a name end the item stops there.
                if item.0 < name_end && name_end + 1 < end {
                    return Some((&text[item.0..name_end], &text[name_end + 1..end]));
                }
            }
            None
        })
    }
}

/// Position of the first `wanted` separator, or of the item's end when that comes first.
fn find_separator(text: &[u8], from: usize, wanted: u8) -> usize {
    let mut at = from;
    loop {
        at = swar::find_below(text, at, ITEM_END + 1);
        match text.get(at) {
            Some(byte) if *byte != wanted && *byte != ITEM_END => at += 1,
            _ => return at.min(text.len()),
        }
    }
}

fn fill(records: &[Record<'_>], name: &'static str, kind: Kind) -> Result<Column, ColumnError> {
    match kind {
        Kind::Int(get) => {
            Ok(Column::Fixed(records.iter().flat_map(|record| get(record).to_le_bytes()).collect()))
        }
        Kind::Long(get) => {
            Ok(Column::Fixed(records.iter().flat_map(|record| get(record).to_le_bytes()).collect()))
        }
        Kind::Text(push) => variable(records, name, |record, out| {
            push(record, out);
            Ok(true)
        }),
        Kind::Property(property) => variable(records, name, |record, out| {
            let value = record.items().filter(|(name, _)| *name == property).last();
            out.extend_from_slice(value.map_or("", |(_, value)| value).as_bytes());
            Ok(value.is_some())
        }),
        Kind::Body => variable(records, name, |record, out| {
            push_body(record, out)?;
            Ok(true)
        }),
        Kind::Properties => map(records, name),
    }
}

/// Fills a column of texts; `push` adds one value and says whether it is there.
fn variable(
    records: &[Record<'_>],
    column: &'static str,
    mut push: impl FnMut(&Record<'_>, &mut Vec<u8>) -> Result<bool, ColumnError>,
) -> Result<Column, ColumnError> {
    let mut bits = vec![0; records.len().div_ceil(8)];
    let mut has_null = false;
    let mut offsets = Offsets::new(column, records.len());
    let mut data = Vec::new();
    for (row, record) in records.iter().enumerate() {
        if push(record, &mut data)? {
            bits[row / 8] |= 1 << (row % 8);
        } else {
            has_null = true;
        }
        offsets.push(data.len())?;
    }
    let validity = has_null.then_some(bits);
    Ok(Column::Variable { validity, offsets: offsets.bytes, data })
}

/// Fills the column of all properties. A name that comes twice counts once, with its last value.
fn map(records: &[Record<'_>], column: &'static str) -> Result<Column, ColumnError> {
    let mut offsets = Offsets::new(column, records.len());
    let mut key_offsets = Offsets::new(column, records.len() * 4);
    let mut value_offsets = Offsets::new(column, records.len() * 4);
    let (mut key_data, mut value_data) = (Vec::new(), Vec::new());
    let mut items: Vec<(&str, &str)> = Vec::new();
    let mut count = 0;
    for record in records {
        items.clear();
        for (name, value) in record.items() {
            match items.iter_mut().find(|(known, _)| *known == name) {
                Some(item) => item.1 = value,
                None => items.push((name, value)),
            }
        }
        for (name, value) in &items {
            key_data.extend_from_slice(name.as_bytes());
            key_offsets.push(key_data.len())?;
            value_data.extend_from_slice(value.as_bytes());
            value_offsets.push(value_data.len())?;
        }
        count += items.len();
        offsets.push(count)?;
    }
    Ok(Column::Map {
        offsets: offsets.bytes,
        key_offsets: key_offsets.bytes,
        key_data,
        value_offsets: value_offsets.bytes,
        value_data,
    })
}

/// Little-endian 32-bit offsets, the first one 0.
struct Offsets {
    column: &'static str,
    bytes: Vec<u8>,
}

impl Offsets {
    fn new(column: &'static str, rows: usize) -> Self {
        let mut bytes = Vec::with_capacity(4 * (rows + 1));
        bytes.extend_from_slice(&[0; 4]);
        Self { column, bytes }
    }

    fn push(&mut self, end: usize) -> Result<(), ColumnError> {
        let end = i32::try_from(end).map_err(|_| ColumnError::TooLarge { column: self.column })?;
        self.bytes.extend_from_slice(&end.to_le_bytes());
        Ok(())
    }
}

/// The body as the producer gave it.
fn push_body(record: &Record<'_>, out: &mut Vec<u8>) -> Result<(), ColumnError> {
    if record.sys_flag & COMPRESSED == 0 {
        out.extend_from_slice(record.body);
        return Ok(());
    }
    let failed = |reason: String| ColumnError::Compression {
        commit_log_offset: long_at(record.bytes, 28),
        reason,
    };
    let kind = record.sys_flag & COMPRESSION_MASK;
    if kind != 0 && kind != COMPRESSION_ZLIB {
        let name = match kind >> 8 {
            1 => "LZ4".to_owned(),
            2 => "ZSTD".to_owned(),
            other => format!("type {other}"),
        };
        return Err(failed(format!("compressed with {name}, which is not supported; use zlib")));
    }
    let before = out.len();
    let mut decoder = ZlibDecoder::new(record.body);
    let inflated = (&mut decoder).take(INFLATED_BYTES_MAX + 1).read_to_end(out);
    inflated.map_err(|error| failed(format!("compressed body is corrupt: {error}")))?;
    if (out.len() - before) as u64 > INFLATED_BYTES_MAX {
        return Err(failed(format!("inflates to more than {INFLATED_BYTES_MAX} bytes")));
    }
    if decoder.into_inner().is_empty() {
        Ok(())
    } else {
        Err(failed("compressed body is corrupt: bytes behind its end".to_owned()))
    }
}

/// The offset message id: store host and commit log offset in upper-case hex.
fn push_message_id(record: &Record<'_>, out: &mut Vec<u8>) {
    for byte in record.store_host.iter().chain(&record.bytes[28..36]) {
        out.push(b"0123456789ABCDEF"[usize::from(byte >> 4)]);
        out.push(b"0123456789ABCDEF"[usize::from(byte & 15)]);
    }
}

/// A host as `ip:port`.
fn push_host(host: &[u8], out: &mut Vec<u8>) {
    use std::io::Write;
    let written = if let Some((address, port)) = host.split_first_chunk::<16>() {
        write!(out, "{}:{}", plain_v6(*address), int_at(port, 0) as u32)
    } else if let Some((address, port)) = host.split_first_chunk::<4>() {
        write!(out, "{}:{}", Ipv4Addr::from(*address), int_at(port, 0) as u32)
    } else {
        Ok(())
    };
    debug_assert!(written.is_ok(), "a vector takes every byte");
}

/// An IPv6 address in hexadecimal groups only, as Python writes it.
fn plain_v6(address: [u8; 16]) -> String {
    let address = Ipv6Addr::from(address);
    match (address.to_ipv4_mapped(), address.segments()) {
        (Some(_), [.., high, low]) => format!("::ffff:{high:x}:{low:x}"),
        _ => address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn record(sys_flag: i32, offset: i64, body: &[u8], topic: &str, properties: &str) -> Vec<u8> {
        let host = |bit: i32| -> Vec<u8> {
            let mut host = if sys_flag & bit == 0 { vec![10, 0, 0, 1] } else { vec![0; 15] };
            if host.len() == 15 {
                host.push(1);
            }
            host.extend_from_slice(&10_911u32.to_be_bytes());
            host
        };
        let mut out = vec![0; 4];
        out.extend_from_slice(&MAGIC.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&3i32.to_be_bytes());
        out.extend_from_slice(&(-1i32).to_be_bytes());
        out.extend_from_slice(&7i64.to_be_bytes());
        out.extend_from_slice(&offset.to_be_bytes());
        out.extend_from_slice(&sys_flag.to_be_bytes());
        out.extend_from_slice(&1_700_000_000_001i64.to_be_bytes());
        out.extend_from_slice(&host(BORN_HOST_V6));
        out.extend_from_slice(&1_700_000_000_002i64.to_be_bytes());
        out.extend_from_slice(&host(STORE_HOST_V6));
        out.extend_from_slice(&2i32.to_be_bytes());
        out.extend_from_slice(&9i64.to_be_bytes());
        out.extend_from_slice(&i32::try_from(body.len()).unwrap().to_be_bytes());
        out.extend_from_slice(body);
        out.push(u8::try_from(topic.len()).unwrap());
        out.extend_from_slice(topic.as_bytes());
        out.extend_from_slice(&u16::try_from(properties.len()).unwrap().to_be_bytes());
        out.extend_from_slice(properties.as_bytes());
        let size = u32::try_from(out.len()).unwrap().to_be_bytes();
        out[..4].copy_from_slice(&size);
        out
    }

    fn one(data: &[u8], column: &str) -> Result<Column, ColumnError> {
        decode_columns(data, &[column]).map(|(_, mut columns)| columns.remove(0))
    }

    fn texts(data: &[u8], column: &str) -> Vec<Option<String>> {
        let Column::Variable { validity, offsets, data } = one(data, column).unwrap() else {
            panic!("not a text column")
        };
        let ends: Vec<usize> = offsets
            .chunks(4)
            .map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap()) as usize)
            .collect();
        ends.windows(2)
            .enumerate()
            .map(|(row, range)| {
                let is_there =
                    validity.as_ref().is_none_or(|bits| bits[row / 8] >> (row % 8) & 1 == 1);
                let text = String::from_utf8(data[range[0]..range[1]].to_vec()).unwrap();
                is_there.then_some(text)
            })
            .collect()
    }

    #[test]
    fn every_column_of_a_record_is_decoded() {
        let data = record(0, 0xAB, b"body", "topic", "TAGS\u{1}a\u{2}KEYS\u{1}k\u{2}x\u{1}y");
        for (column, value) in [("queueId", 3), ("flag", -1), ("sysFlag", 0), ("reconsumeTimes", 2)]
        {
            let expected = Column::Fixed(i32::to_le_bytes(value).to_vec());
            assert_eq!(one(&data, column).unwrap(), expected, "{column}");
        }
        let longs = [
            ("queueOffset", 7),
            ("commitLogOffset", 0xAB),
            ("preparedTransactionOffset", 9),
            ("bornTimestamp", 1_700_000_000_001_000),
            ("storeTimestamp", 1_700_000_000_002_000),
        ];
        for (column, value) in longs {
            let expected = Column::Fixed(i64::to_le_bytes(value).to_vec());
            assert_eq!(one(&data, column).unwrap(), expected, "{column}");
        }
        let all = [
            ("topic", Some("topic")),
            ("tags", Some("a")),
            ("keys", Some("k")),
            ("uniqKey", None),
            ("msgId", Some("0A00000100002A9F00000000000000AB")),
            ("bornHost", Some("10.0.0.1:10911")),
            ("storeHost", Some("10.0.0.1:10911")),
            ("body", Some("body")),
        ];
        for (column, value) in all {
            assert_eq!(texts(&data, column), [value.map(str::to_owned)], "{column}");
        }
        let Column::Map { offsets, key_data, value_data, .. } = one(&data, "properties").unwrap()
        else {
            panic!("not a map")
        };
        assert_eq!(offsets, [0, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!((&key_data[..], &value_data[..]), (&b"TAGSKEYSx"[..], &b"aky"[..]));
    }

    #[test]
    fn long_hosts_move_the_later_fields() {
        let flags = BORN_HOST_V6 | STORE_HOST_V6;
        let data = [record(0, 1, b"a", "t", ""), record(flags, 2, b"b", "t", "")].concat();
        let hosts = ["10.0.0.1:10911", "::1:10911"].map(|text| Some(text.to_owned()));
        assert_eq!(texts(&data, "bornHost"), hosts);
        assert_eq!(texts(&data, "storeHost"), hosts);
        assert_eq!(texts(&data, "msgId")[1].as_ref().unwrap().len(), 56);
        assert_eq!(texts(&data, "body")[1].as_deref(), Some("b"));
        let mut mapped = [0; 16];
        mapped[10..].copy_from_slice(&[0xFF, 0xFF, 1, 2, 3, 4]);
        assert_eq!(plain_v6(mapped), "::ffff:102:304");
    }

    #[test]
    fn compressed_bodies_are_inflated_and_bad_ones_named() {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&[b'x'; 1_000]).unwrap();
        let body = encoder.finish().unwrap();
        for flag in [1, 1 | COMPRESSION_ZLIB] {
            let data = record(flag, 1, &body, "t", "");
            assert_eq!(texts(&data, "body")[0].as_ref().unwrap().len(), 1_000);
        }
        let longer = [&body[..], b"x"].concat();
        for (flag, body) in
            [(0x101, &body[..]), (1, b"not zlib"), (1, &body[..body.len() - 3]), (1, &longer)]
        {
            let error = one(&record(flag, 77, body, "t", ""), "body").unwrap_err();
            assert!(error.to_string().contains("offset 77"), "{error}");
        }
    }

    #[test]
    fn torn_and_malformed_records_are_named_by_their_position() {
        let first = record(0, 1, b"body", "topic", "a\u{1}b");
        let data = [first.clone(), first.clone()].concat();
        for end in first.len() + 1..data.len() {
            let error = one(&data[..end], "topic").unwrap_err();
            assert!(
                matches!(error, ColumnError::Malformed { position, .. } if position == first.len())
            );
        }
        for at in [0, 4, 39, 84, 92, first.len() - 5] {
            let mut changed = first.clone();
            changed[at] ^= 0x35;
            assert!(one(&changed, "topic").is_err(), "{at}");
        }
        let error = decode_columns(&data, &["nope"]).unwrap_err();
        assert!(error.to_string().contains("nope") && error.to_string().contains("queueOffset"));
        assert_eq!(decode_columns(b"", &["topic", "flag"]).unwrap().0, 0);
    }

    #[test]
    fn a_property_that_comes_twice_counts_once() {
        let data = record(0, 1, b"b", "t", "TAGS\u{1}a\u{2}TAGS\u{1}b\u{2}\u{2}bad\u{2}c\u{1}");
        assert_eq!(texts(&data, "tags"), [Some("b".to_owned())]);
        let Column::Map { key_data, value_data, .. } = one(&data, "properties").unwrap() else {
            panic!("not a map")
        };
        assert_eq!((&key_data[..], &value_data[..]), (&b"TAGS"[..], &b"b"[..]));
    }
}
