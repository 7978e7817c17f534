//! Raw records into Arrow buffers.
//!
//! One pass over the records: each is checked, its property text is taken apart once for all columns
//! that need it, and every wanted column gets its value. All numbers are little-endian; offsets are
//! 32 bits, so a column holds less than 2 GiB. The records of one call end where their bodies would
//! be too large together; the next call goes on there.

pub mod bodies;

use std::fmt;
use std::net::Ipv6Addr;

use hashbrown::HashMap;

use self::bodies::{Bodies, OddBody, StoredBody};
use crate::wire::answer::push_decimal;
use crate::wire::properties::{ITEM_END, NAME_END, PROPERTIES_BYTES_MAX};
use crate::wire::swar;

const MAGIC: u32 = 0xDAA3_20A7;
/// Bytes of a record with two IPv4 hosts and nothing in it.
const RECORD_BYTES_MIN: usize = 91;
const TOPIC_BYTES_MAX: usize = 127;
const BORN_HOST_V6: i32 = 16;
const STORE_HOST_V6: i32 = 32;

/// Most bytes of one column: Arrow's 32-bit offsets can't say more.
pub const COLUMN_BYTES_MAX: usize = i32::MAX as usize;

/// Up to this many items, a name is compared with those before it; above, it is looked up.
const FEW_ITEMS: usize = 32;

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
    Malformed {
        position: usize,
        reason: &'static str,
    },
    Compression {
        commit_log_offset: i64,
        reason: String,
    },
    TooLarge {
        column: &'static str,
    },
    /// What was asked about an odd body failed; it knows why.
    Refused,
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
            Self::Refused => out.write_str("a body that can't be inflated was refused"),
        }
    }
}

impl std::error::Error for ColumnError {}

/// One record, its lengths checked.
struct Record<'a> {
    bytes: &'a [u8],
    sys_flag: i32,
    born_host: &'a [u8],
    store_timestamp: i64,
    store_host: &'a [u8],
    /// Start of reconsume times, prepared offset and body length.
    tail: usize,
    body: &'a [u8],
    topic: &'a [u8],
    properties: &'a [u8],
}

#[derive(Clone, Copy)]
enum Kind {
    Int(fn(&Record<'_>) -> i32),
    Long(fn(&Record<'_>) -> i64),
    Topic,
    MessageId,
    BornHost,
    StoreHost,
    Property(Known),
    Body,
    Properties,
}

/// Properties with a column of their own.
#[derive(Clone, Copy)]
enum Known {
    Tags = 0,
    Keys = 1,
    UniqueKey = 2,
}

const COLUMNS: [(&str, Kind); 18] = [
    ("topic", Kind::Topic),
    ("queueId", Kind::Int(|record| int_at(record.bytes, 12))),
    ("queueOffset", Kind::Long(|record| long_at(record.bytes, 20))),
    ("commitLogOffset", Kind::Long(|record| long_at(record.bytes, 28))),
    ("msgId", Kind::MessageId),
    ("tags", Kind::Property(Known::Tags)),
    ("keys", Kind::Property(Known::Keys)),
    ("uniqKey", Kind::Property(Known::UniqueKey)),
    ("flag", Kind::Int(|record| int_at(record.bytes, 16))),
    ("sysFlag", Kind::Int(|record| record.sys_flag)),
    ("bornTimestamp", Kind::Long(|record| long_at(record.bytes, 40).saturating_mul(1_000))),
    ("storeTimestamp", Kind::Long(|record| record.store_timestamp.saturating_mul(1_000))),
    ("bornHost", Kind::BornHost),
    ("storeHost", Kind::StoreHost),
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

/// Which records of the data are decoded.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Where the first one begins.
    pub start: usize,
    /// Most bytes of column body; a body that has more stands alone.
    pub body_bytes_max: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { start: 0, body_bytes_max: COLUMN_BYTES_MAX }
    }
}

/// What one call decoded.
#[derive(Debug)]
pub struct Decoded {
    /// So many records.
    pub rows: usize,
    /// The columns in the order asked for.
    pub columns: Vec<Column>,
    /// Where the next call goes on: behind the data's last record when all are decoded.
    pub end: usize,
}

/// Decodes records of `data` that follow each other into the named columns. What `odd` says stands
/// for a body that can't be inflated.
///
/// # Errors
/// An unknown column, a torn or malformed record, what `odd` answers, or a column of more than
/// 2 GiB.
pub fn decode_columns(
    data: &[u8],
    columns: &[&str],
    window: Window,
    odd: &mut OddBody<'_>,
) -> Result<Decoded, ColumnError> {
    let mut wanted = columns
        .iter()
        .map(|column| {
            let found = COLUMNS.iter().find(|(name, _)| name == column);
            found.ok_or_else(|| ColumnError::UnknownColumn((*column).into()))
        })
        .collect::<Result<Vec<_>, _>>()?;
    // Bodies come first: they decide whether a row still has its place.
    let body_at = wanted.iter().position(|(_, kind)| matches!(kind, Kind::Body));
    wanted[..body_at.map_or(0, |at| at + 1)].rotate_right(usize::from(body_at.is_some()));
    let make = |hint: usize| -> Vec<Filler> {
        let new = |(name, kind): &&(&'static str, Kind)| Filler::new(name, *kind, hint, window);
        wanted.iter().map(new).collect()
    };
    let has_text =
        wanted.iter().any(|(_, kind)| matches!(kind, Kind::Property(_) | Kind::Properties));
    let mut fillers: Vec<Filler> = Vec::new();
    let mut items = Items::default();
    let mut rows = 0;
    let mut position = window.start;
    'records: while position < data.len() {
        let malformed = |reason| ColumnError::Malformed { position, reason };
        let record = Record::at(&data[position..]).map_err(malformed)?;
        if fillers.is_empty() {
            // Records are mostly alike: room for all of them at once.
            fillers = make((data.len() - position) / record.bytes.len());
        }
        let repaired;
        let mut text = record.properties;
        if has_text {
            if std::str::from_utf8(text).is_err() {
                repaired = String::from_utf8_lossy(text).into_owned();
                text = repaired.as_bytes();
            }
            items.find(text);
        }
        for filler in &mut fillers {
            if !filler.add(rows, &record, text, &items, odd)? {
                break 'records;
            }
        }
        rows += 1;
        position += record.bytes.len();
    }
    if fillers.is_empty() {
        fillers = make(0);
    }
    fillers[..body_at.map_or(0, |at| at + 1)].rotate_left(usize::from(body_at.is_some()));
    let columns = fillers.into_iter().map(Filler::finish).collect();
    Ok(Decoded { rows, columns, end: position })
}

fn int_at(data: &[u8], at: usize) -> i32 {
    data.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| i32::from_be_bytes(*bytes))
}

fn long_at(data: &[u8], at: usize) -> i64 {
    data.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| i64::from_be_bytes(*bytes))
}

impl<'a> Record<'a> {
    /// The record at the start of `data`, all its lengths checked.
    fn at(data: &'a [u8]) -> Result<Self, &'static str> {
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
            topic: std::str::from_utf8(topic).map_err(|_| "its topic is not UTF-8")?.as_bytes(),
            properties,
        })
    }

    fn stored_body(&self) -> StoredBody<'a> {
        StoredBody {
            bytes: self.body,
            sys_flag: self.sys_flag,
            queue_offset: long_at(self.bytes, 20),
            commit_log_offset: long_at(self.bytes, 28),
        }
    }
}

/// Where an item of a property text stands: its start, the end of its name, the end of its value.
#[derive(Clone, Copy, Debug, Default)]
struct Item {
    start: usize,
    name_end: usize,
    end: usize,
}

impl Item {
    fn name<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        &text[self.start..self.name_end]
    }

    fn value<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        &text[self.name_end + 1..self.end]
    }
}

/// The items of one property text; those without a name or a value vanish.
#[derive(Debug, Default)]
struct Items {
    all: Vec<Item>,
    /// The last item of each [`Known`] name.
    known: [Option<Item>; 3],
}

impl Items {
    /// Takes a property text apart. It is UTF-8, where no separator is part of a character.
    fn find(&mut self, text: &[u8]) {
        self.all.clear();
        self.known = [None; 3];
        let mut item = Item::default();
        let mut has_name = false;
        swar::for_each_below(text, ITEM_END + 1, |at, byte| match byte {
            // Another one behind the first is part of the value.
            NAME_END if !has_name => {
                item.name_end = at;
                has_name = true;
            }
            ITEM_END => {
                if has_name {
                    self.put(Item { end: at, ..item }, text);
                }
                item.start = at + 1;
                has_name = false;
            }
            _ => {}
        });
        if has_name {
            self.put(Item { end: text.len(), ..item }, text);
        }
    }

    #[inline]
    fn put(&mut self, item: Item, text: &[u8]) {
        if item.start == item.name_end || item.name_end + 1 == item.end {
            return;
        }
        match item.name(text) {
            b"TAGS" => self.known[Known::Tags as usize] = Some(item),
            b"KEYS" => self.known[Known::Keys as usize] = Some(item),
            b"UNIQ_KEY" => self.known[Known::UniqueKey as usize] = Some(item),
            _ => {}
        }
        self.all.push(item);
    }
}

/// A column in the making.
enum Filler {
    Int { get: fn(&Record<'_>) -> i32, data: Vec<u8> },
    Long { get: fn(&Record<'_>) -> i64, data: Vec<u8> },
    Text(Texts),
    Body(Bodies),
    Properties(Maps),
}

/// A column of texts in the making.
struct Texts {
    kind: Kind,
    /// A bit per row, kept where a row may be null.
    validity: Vec<u8>,
    has_null: bool,
    offsets: Offsets,
    data: Vec<u8>,
    /// The last host and what was made of it: mostly the next row's, too.
    host: Vec<u8>,
    host_text: Vec<u8>,
}

impl Filler {
    fn new(name: &'static str, kind: Kind, rows: usize, window: Window) -> Self {
        match kind {
            Kind::Int(get) => Self::Int { get, data: Vec::with_capacity(4 * rows) },
            Kind::Long(get) => Self::Long { get, data: Vec::with_capacity(8 * rows) },
            Kind::Properties => Self::Properties(Maps::new(name, rows)),
            Kind::Body => Self::Body(Bodies::new(Offsets::new(name, rows), window.body_bytes_max)),
            _ => Self::Text(Texts {
                kind,
                validity: Vec::new(),
                has_null: false,
                offsets: Offsets::new(name, rows),
                data: Vec::new(),
                host: Vec::new(),
                host_text: Vec::new(),
            }),
        }
    }

    /// Adds a record's value; false when a body has no place any more. `text` is the record's
    /// property text, `items` what is in it.
    #[inline]
    fn add(
        &mut self,
        row: usize,
        record: &Record<'_>,
        text: &[u8],
        items: &Items,
        odd: &mut OddBody<'_>,
    ) -> Result<bool, ColumnError> {
        match self {
            Self::Int { get, data } => data.extend_from_slice(&get(record).to_le_bytes()),
            Self::Long { get, data } => data.extend_from_slice(&get(record).to_le_bytes()),
            Self::Text(texts) => texts.add(row, record, text, items)?,
            Self::Body(bodies) => return bodies.add(row, &record.stored_body(), odd),
            Self::Properties(maps) => maps.add(text, items)?,
        }
        Ok(true)
    }

    fn finish(self) -> Column {
        match self {
            Self::Int { data, .. } | Self::Long { data, .. } => Column::Fixed(data),
            Self::Text(texts) => Column::Variable {
                validity: texts.has_null.then_some(texts.validity),
                offsets: texts.offsets.bytes,
                data: texts.data,
            },
            Self::Body(bodies) => bodies.finish(),
            Self::Properties(maps) => Column::Map {
                offsets: maps.offsets.bytes,
                key_offsets: maps.key_offsets.bytes,
                key_data: maps.key_data,
                value_offsets: maps.value_offsets.bytes,
                value_data: maps.value_data,
            },
        }
    }
}

impl Texts {
    fn add(
        &mut self,
        row: usize,
        record: &Record<'_>,
        text: &[u8],
        items: &Items,
    ) -> Result<(), ColumnError> {
        match self.kind {
            Kind::Topic => self.data.extend_from_slice(record.topic),
            Kind::BornHost => self.push_host(record.born_host, push_host),
            Kind::StoreHost => self.push_host(record.store_host, push_host),
            Kind::MessageId => {
                self.push_host(record.store_host, push_hex);
                push_hex(&record.bytes[28..36], &mut self.data);
            }
            Kind::Property(known) => {
                if row.is_multiple_of(8) {
                    self.validity.push(0);
                }
                match (items.known[known as usize], self.validity.last_mut()) {
                    (Some(item), Some(bits)) => {
                        *bits |= 1 << (row % 8);
                        self.data.extend_from_slice(item.value(text));
                    }
                    _ => self.has_null = true,
                }
            }
            Kind::Int(_) | Kind::Long(_) | Kind::Body | Kind::Properties => {}
        }
        self.offsets.push(self.data.len())
    }

    /// Adds what `make` makes of a host.
    #[inline]
    fn push_host(&mut self, host: &[u8], make: fn(&[u8], &mut Vec<u8>)) {
        if self.host != host {
            self.host.clear();
            self.host.extend_from_slice(host);
            self.host_text.clear();
            make(host, &mut self.host_text);
        }
        self.data.extend_from_slice(&self.host_text);
    }
}

/// The column of all properties in the making.
struct Maps {
    offsets: Offsets,
    key_offsets: Offsets,
    value_offsets: Offsets,
    key_data: Vec<u8>,
    value_data: Vec<u8>,
    /// The items of one row, each name once.
    items: Vec<Item>,
    count: usize,
}

impl Maps {
    fn new(column: &'static str, rows: usize) -> Self {
        Self {
            offsets: Offsets::new(column, rows),
            key_offsets: Offsets::new(column, rows * 4),
            value_offsets: Offsets::new(column, rows * 4),
            key_data: Vec::new(),
            value_data: Vec::new(),
            items: Vec::new(),
            count: 0,
        }
    }

    fn add(&mut self, text: &[u8], items: &Items) -> Result<(), ColumnError> {
        self.items.clear();
        if items.all.len() <= FEW_ITEMS {
            for item in &items.all {
                let name = item.name(text);
                match self.items.iter_mut().find(|known| known.name(text) == name) {
                    Some(known) => *known = *item,
                    None => self.items.push(*item),
                }
            }
        } else {
            let mut places = HashMap::new();
            for item in &items.all {
                let place = *places.entry(item.name(text)).or_insert(self.items.len());
                match self.items.get_mut(place) {
                    Some(known) => *known = *item,
                    None => self.items.push(*item),
                }
            }
        }
        for item in &self.items {
            self.key_data.extend_from_slice(item.name(text));
            self.key_offsets.push(self.key_data.len())?;
            self.value_data.extend_from_slice(item.value(text));
            self.value_offsets.push(self.value_data.len())?;
        }
        self.count += self.items.len();
        self.offsets.push(self.count)
    }
}

/// Little-endian 32-bit offsets, the first one 0.
pub(super) struct Offsets {
    column: &'static str,
    pub(super) bytes: Vec<u8>,
}

impl Offsets {
    fn new(column: &'static str, rows: usize) -> Self {
        let mut bytes = Vec::with_capacity(4 * (rows + 1));
        bytes.extend_from_slice(&[0; 4]);
        Self { column, bytes }
    }

    pub(super) fn push(&mut self, end: usize) -> Result<(), ColumnError> {
        let end = i32::try_from(end).map_err(|_| ColumnError::TooLarge { column: self.column })?;
        self.bytes.extend_from_slice(&end.to_le_bytes());
        Ok(())
    }
}

/// Two upper-case hex digits for each byte.
const HEX: [[u8; 2]; 256] = {
    let digits = b"0123456789ABCDEF";
    let mut table = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    table
};

/// Bytes in upper-case hex. An offset message id is the store host and the commit log offset so.
fn push_hex(bytes: &[u8], out: &mut Vec<u8>) {
    if let Ok(bytes) = <&[u8; 8]>::try_from(bytes) {
        let mut text = [[0; 2]; 8];
        for (digits, byte) in text.iter_mut().zip(bytes) {
            *digits = HEX[usize::from(*byte)];
        }
        out.extend_from_slice(text.as_flattened());
    } else {
        out.extend(bytes.iter().flat_map(|byte| HEX[usize::from(*byte)]));
    }
}

/// A host as `ip:port`.
fn push_host(host: &[u8], out: &mut Vec<u8>) {
    let port = if let Some((address, port)) = host.split_first_chunk::<16>() {
        out.extend_from_slice(plain_v6(*address).as_bytes());
        port
    } else if let Some((address, port)) = host.split_first_chunk::<4>() {
        for (index, byte) in address.iter().enumerate() {
            if index > 0 {
                out.push(b'.');
            }
            push_decimal(out, i64::from(*byte));
        }
        port
    } else {
        return;
    };
    out.push(b':');
    push_decimal(out, i64::from(int_at(port, 0) as u32));
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

    use super::bodies::{COMPRESSION_ZLIB, refuse};
    use super::*;

    fn decode(data: &[u8], columns: &[&str]) -> Result<Decoded, ColumnError> {
        decode_columns(data, columns, Window::default(), &mut refuse)
    }

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
        decode(data, &[column]).map(|mut decoded| decoded.columns.remove(0))
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
        assert_eq!(
            texts(&record(1, 1, &longer, "t", ""), "body")[0].as_ref().unwrap().len(),
            1_000
        );
        for (flag, body) in [(0x101, &body[..]), (1, b"not zlib"), (1, &body[..body.len() - 3])] {
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
        let error = decode(&data, &["nope"]).unwrap_err();
        assert!(error.to_string().contains("nope") && error.to_string().contains("queueOffset"));
        assert_eq!(decode(b"", &["topic", "flag"]).unwrap().rows, 0);
    }

    #[test]
    fn many_items_are_taken_apart_like_few() {
        for count in [1, FEW_ITEMS, FEW_ITEMS + 1, 2_000] {
            let items: Vec<String> =
                (0..count).map(|index| format!("n{index}\u{1}{index}")).collect();
            let text = format!("{}\u{2}n0\u{1}last", items.join("\u{2}"));
            let Column::Map { offsets, value_data, .. } =
                one(&record(0, 1, b"b", "t", &text), "properties").unwrap()
            else {
                panic!("not a map")
            };
            assert_eq!(offsets[4..], (count as i32).to_le_bytes());
            assert!(value_data.starts_with(b"last"), "{count}");
        }
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
