//! Raw records into Arrow buffers.
//!
//! One pass over the records: each is checked, its property text is taken apart once for all
//! columns that need it, and every wanted column gets its value. All numbers are little-endian;
//! offsets are 32 bits, so a column holds less than 2 GiB. The records of one call end where their
//! bodies would be too large together; the next call goes on there.

mod arrow;
pub mod bodies;
mod fillers;
mod hosts;
mod items;
mod kinds;
mod maps;
mod record;
mod scan;
#[cfg(test)]
mod tests;

pub use self::arrow::{COLUMN_BYTES_MAX, Column, ColumnError};
pub use self::kinds::names;
pub use self::scan::{Scan, Scanned, TopicChoice, scan_columns};

use self::bodies::OddBody;
use self::fillers::Filler;
use self::items::Items;
use self::kinds::{COLUMNS, Kind};
use self::record::record_at;
use crate::record::RecordView;

/// Which records of the data are decoded.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Where the first one starts.
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
    /// Where the next call goes on: after the data's last record when all are decoded.
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
    let mut making = Making::new(columns, window.body_bytes_max)?;
    let mut position = window.start;
    while position < data.len() {
        let malformed = |reason| ColumnError::Malformed { position, reason };
        let record = record_at(&data[position..]).map_err(malformed)?;
        // Records are mostly alike: space for all of them at once.
        if !making.add(&record, (data.len() - position) / record.size, odd)? {
            break;
        }
        position += record.size;
    }
    Ok(making.finish(position))
}

/// Columns in the making.
struct Making {
    wanted: Vec<&'static (&'static str, Kind)>,
    /// Bodies come first: they decide whether a row still has its place.
    body_at: Option<usize>,
    body_bytes_max: usize,
    has_text: bool,
    /// Empty until the first row.
    fillers: Vec<Filler>,
    items: Items,
    rows: usize,
}

impl Making {
    fn new(columns: &[&str], body_bytes_max: usize) -> Result<Self, ColumnError> {
        let mut wanted = columns
            .iter()
            .map(|column| {
                let found = COLUMNS.iter().find(|(name, _)| name == column);
                found.ok_or_else(|| ColumnError::UnknownColumn {
                    name: (*column).into(),
                    known: names(),
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let body_at = wanted.iter().position(|(_, kind)| matches!(kind, Kind::Body));
        wanted[..body_at.map_or(0, |at| at + 1)].rotate_right(usize::from(body_at.is_some()));
        let has_text =
            wanted.iter().any(|(_, kind)| matches!(kind, Kind::Property(_) | Kind::Properties));
        let (fillers, items) = (Vec::new(), Items::default());
        Ok(Self { wanted, body_at, body_bytes_max, has_text, fillers, items, rows: 0 })
    }

    /// Adds a row; false when its body has no place any more. `rows_hint` is how many there will
    /// be.
    #[inline]
    fn add(
        &mut self,
        record: &RecordView<'_>,
        rows_hint: usize,
        odd: &mut OddBody<'_>,
    ) -> Result<bool, ColumnError> {
        if self.fillers.is_empty() {
            self.make_fillers(rows_hint);
        }
        let repaired;
        let mut text = record.properties;
        if self.has_text {
            if std::str::from_utf8(text).is_err() {
                repaired = String::from_utf8_lossy(text).into_owned();
                text = repaired.as_bytes();
            }
            self.items.find(text);
        }
        for filler in &mut self.fillers {
            if !filler.add(self.rows, record, text, &self.items, odd)? {
                return Ok(false);
            }
        }
        self.rows += 1;
        Ok(true)
    }

    fn make_fillers(&mut self, rows: usize) {
        let new = |(name, kind): &&(&'static str, Kind)| {
            Filler::new(name, *kind, rows, self.body_bytes_max)
        };
        self.fillers = self.wanted.iter().map(new).collect();
    }

    fn finish(mut self, end: usize) -> Decoded {
        if self.fillers.is_empty() {
            self.make_fillers(0);
        }
        let mut fillers = self.fillers;
        fillers[..self.body_at.map_or(0, |at| at + 1)]
            .rotate_left(usize::from(self.body_at.is_some()));
        let columns = fillers.into_iter().map(Filler::finish).collect();
        Decoded { rows: self.rows, columns, end }
    }
}
