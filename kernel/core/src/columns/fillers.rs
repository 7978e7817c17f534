//! Columns in the making.

use super::arrow::{Column, ColumnError, Offsets, reserve_alike};
use super::bodies::{Bodies, OddBody};
use super::hosts::{push_hex, push_host};
use super::items::Items;
use super::kinds::Kind;
use super::maps::Maps;
use super::record::stored_body;
use crate::record::RecordView;

/// A column in the making.
pub(super) enum Filler {
    Int {
        get: fn(&RecordView<'_>) -> i32,
        data: Vec<u8>,
    },
    Long {
        get: fn(&RecordView<'_>) -> i64,
        data: Vec<u8>,
    },
    /// A bit per row.
    Truth {
        get: fn(&RecordView<'_>) -> bool,
        data: Vec<u8>,
    },
    Text(Texts),
    Body(Bodies),
    Properties(Maps),
}

/// A column of texts in the making.
pub(super) struct Texts {
    kind: Kind,
    /// About so many there will be.
    rows: usize,
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
    pub(super) fn new(name: &'static str, kind: Kind, rows: usize, body_bytes_max: usize) -> Self {
        match kind {
            Kind::Int(get) => Self::Int { get, data: Vec::with_capacity(4 * rows) },
            Kind::Long(get) => Self::Long { get, data: Vec::with_capacity(8 * rows) },
            Kind::Truth(get) => Self::Truth { get, data: Vec::with_capacity(rows.div_ceil(8)) },
            Kind::Properties => Self::Properties(Maps::new(name, rows)),
            Kind::Body => Self::Body(Bodies::new(name, rows, body_bytes_max)),
            _ => Self::Text(Texts {
                kind,
                rows,
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
    pub(super) fn add(
        &mut self,
        row: usize,
        record: &RecordView<'_>,
        text: &[u8],
        items: &Items,
        odd: &mut OddBody<'_>,
    ) -> Result<bool, ColumnError> {
        match self {
            Self::Int { get, data } => data.extend_from_slice(&get(record).to_le_bytes()),
            Self::Long { get, data } => data.extend_from_slice(&get(record).to_le_bytes()),
            Self::Truth { get, data } => {
                if row.is_multiple_of(8) {
                    data.push(0);
                }
                if let Some(last) = data.last_mut() {
                    *last |= u8::from(get(record)) << (row % 8);
                }
            }
            Self::Text(texts) => texts.add(row, record, text, items)?,
            Self::Body(bodies) => return bodies.add(row, &stored_body(record), odd),
            Self::Properties(maps) => maps.add(text, items)?,
        }
        Ok(true)
    }

    pub(super) fn finish(self) -> Column {
        match self {
            Self::Int { data, .. } | Self::Long { data, .. } | Self::Truth { data, .. } => {
                Column::Fixed(data)
            }
            Self::Text(texts) => Column::Variable {
                validity: texts.has_null.then_some(texts.validity),
                offsets: texts.offsets.bytes,
                data: texts.data,
            },
            Self::Body(bodies) => bodies.finish(),
            Self::Properties(maps) => maps.finish(),
        }
    }
}

impl Texts {
    pub(super) fn add(
        &mut self,
        row: usize,
        record: &RecordView<'_>,
        text: &[u8],
        items: &Items,
    ) -> Result<(), ColumnError> {
        match self.kind {
            Kind::Topic => self.data.extend_from_slice(record.topic),
            Kind::BornHost => self.push_host(record.born_host, push_host),
            Kind::StoreHost => self.push_host(record.store_host, push_host),
            Kind::MessageId => {
                self.push_host(record.store_host, push_hex);
                push_hex(&record.physical_offset.to_be_bytes(), &mut self.data);
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
            Kind::Int(_) | Kind::Long(_) | Kind::Truth(_) | Kind::Body | Kind::Properties => {}
        }
        if row == 0 {
            reserve_alike(&mut self.data, self.rows);
        }
        self.offsets.push(self.data.len())
    }

    /// Adds what `make` makes of a host.
    #[inline]
    pub(super) fn push_host(&mut self, host: &[u8], make: fn(&[u8], &mut Vec<u8>)) {
        if self.host != host {
            self.host.clear();
            self.host.extend_from_slice(host);
            self.host_text.clear();
            make(host, &mut self.host_text);
        }
        self.data.extend_from_slice(&self.host_text);
    }
}
