//! Pieces of a log into Arrow buffers: as far as whole records follow each other.
//!
//! Nothing that the bytes hold is an error: who reads the log looks for the next record after bytes
//! that are none.

use hashbrown::HashMap;

use super::arrow::ColumnError;
use super::bodies::OddBody;
use super::record::record_at;
use super::{Decoded, Making};
use crate::record::RecordView;

/// Says whether the records of a topic make rows.
pub type TopicChoice<'a> = dyn FnMut(&[u8]) -> Result<bool, ColumnError> + 'a;

/// Which bytes are examined, and which records make rows.
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    /// Where the first record begins.
    pub start: usize,
    /// No record that begins here or later is examined.
    pub stop: usize,
    /// The physical offset of the first byte; None: records of anywhere.
    pub log_offset: Option<i64>,
    /// Most rows.
    pub rows_max: usize,
    /// Most bytes of column body; a body that has more stands alone.
    pub body_bytes_max: usize,
    /// Of earlier records no rows are made (ms).
    pub stored_from: i64,
    /// Nor of those of this time and later.
    pub stored_before: i64,
    /// A record of a row with a wrong CRC counts as not whole.
    pub checks_crc: bool,
}

/// What one call made of the bytes.
#[derive(Debug)]
pub struct Scanned {
    /// The rows, and where the next call goes on.
    pub decoded: Decoded,
    /// Records examined.
    pub looked_at: usize,
    /// Something else than a whole record stands where the next call would go on.
    pub is_broken: bool,
}

/// Decodes the records of `data` from `scan.start` on into the named columns.
///
/// # Errors
/// An unknown column, what `odd` and `topics` answer, or a column of more than 2 GiB.
pub fn scan_columns(
    data: &[u8],
    columns: &[&str],
    scan: Scan,
    mut topics: Option<&mut TopicChoice<'_>>,
    odd: &mut OddBody<'_>,
) -> Result<Scanned, ColumnError> {
    let mut making = Making::new(columns, scan.body_bytes_max)?;
    let mut chosen = Chosen::default();
    let (mut position, mut looked_at) = (scan.start, 0);
    let mut is_broken = false;
    while position < scan.stop && making.rows < scan.rows_max {
        let Some(record) = whole_record(data, position, scan.log_offset) else {
            is_broken = true;
            break;
        };
        let mut is_wanted =
            (scan.stored_from..scan.stored_before).contains(&record.store_timestamp);
        if let (true, Some(topics)) = (is_wanted, topics.as_deref_mut()) {
            is_wanted = chosen.ask(record.topic, topics)?;
        }
        if is_wanted {
            if scan.checks_crc && !record.is_crc_right() {
                is_broken = true;
                break;
            }
            let hint = ((data.len() - position) / record.size).min(scan.rows_max);
            if !making.add(&record, hint, odd)? {
                break;
            }
        }
        looked_at += 1;
        position += record.size;
    }
    Ok(Scanned { decoded: making.finish(position), looked_at, is_broken })
}

/// The record at a position; None when none stands there that is whole and at its own place.
#[inline]
fn whole_record(data: &[u8], position: usize, log_offset: Option<i64>) -> Option<RecordView<'_>> {
    let record = record_at(data.get(position..)?).ok()?;
    let is_in_place = log_offset.is_none_or(|offset| {
        record.physical_offset == offset.wrapping_add_unsigned(position as u64)
            && !record.topic.is_empty()
    });
    is_in_place.then_some(record)
}

/// Which topics were asked about.
#[derive(Default)]
struct Chosen<'a> {
    last: &'a [u8],
    is_last_wanted: bool,
    known: HashMap<&'a [u8], bool>,
}

impl<'a> Chosen<'a> {
    #[inline]
    fn ask(&mut self, topic: &'a [u8], ask: &mut TopicChoice<'_>) -> Result<bool, ColumnError> {
        if topic != self.last || self.known.is_empty() {
            self.is_last_wanted = if let Some(known) = self.known.get(topic).copied() {
                known
            } else {
                let answer = ask(topic)?;
                self.known.insert(topic, answer);
                answer
            };
            self.last = topic;
        }
        Ok(self.is_last_wanted)
    }
}
