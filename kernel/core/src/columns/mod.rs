//! Raw records into Arrow buffers.
//!
//! One pass over the records: each is checked, its property text is taken apart once for all columns
//! that need it, and every wanted column gets its value. All numbers are little-endian; offsets are
//! 32 bits, so a column holds less than 2 GiB. The records of one call end where their bodies would
//! be too large together; the next call goes on there.

mod arrow;
pub mod bodies;
mod fillers;
mod hosts;
mod items;
mod kinds;
mod maps;
mod record;
#[cfg(test)]
mod tests;

pub use self::arrow::{COLUMN_BYTES_MAX, Column, ColumnError};
pub use self::kinds::names;

use self::bodies::OddBody;
use self::fillers::Filler;
use self::items::Items;
use self::kinds::{COLUMNS, Kind};
use self::record::record_at;

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
    // Bodies come first: they decide whether a row still has its place.
    let body_at = wanted.iter().position(|(_, kind)| matches!(kind, Kind::Body));
    wanted[..body_at.map_or(0, |at| at + 1)].rotate_right(usize::from(body_at.is_some()));
    let make = |hint: usize| -> Vec<Filler> {
        let new = |(name, kind): &&(&'static str, Kind)| {
            Filler::new(name, *kind, hint, window.body_bytes_max)
        };
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
        let record = record_at(&data[position..]).map_err(malformed)?;
        if fillers.is_empty() {
            // Records are mostly alike: room for all of them at once.
            fillers = make((data.len() - position) / record.size);
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
        position += record.size;
    }
    if fillers.is_empty() {
        fillers = make(0);
    }
    fillers[..body_at.map_or(0, |at| at + 1)].rotate_left(usize::from(body_at.is_some()));
    let columns = fillers.into_iter().map(Filler::finish).collect();
    Ok(Decoded { rows, columns, end: position })
}
