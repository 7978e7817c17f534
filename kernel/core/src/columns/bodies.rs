//! The column of bodies: as their producers gave them, so many bytes at most.
//!
//! A small compressed body may stand for gigabytes, so what is inflated is bounded twice: one body by
//! [`INFLATED_BYTES_MAX`], the column by what the caller asks for. A row that would make the column
//! larger is left to the next call; alone in a column it always has its place. Of the ways to
//! compress only zlib is known here; who decodes says what stands for another one, or a torn one.

use crate::protocol::{COMPRESSED, COMPRESSION_TYPE_MASK, COMPRESSION_ZLIB, INFLATED_BYTES_MAX};
use std::io::Read;

use flate2::bufread::ZlibDecoder;

use super::arrow::{Column, ColumnError, Offsets, reserve_alike};

/// A body as it is stored.
#[derive(Clone, Copy, Debug)]
pub struct StoredBody<'a> {
    /// The bytes, compressed if the sysFlag says so.
    pub bytes: &'a [u8],
    /// The record's sysFlag.
    pub sys_flag: i32,
    /// The record's place in its queue.
    pub queue_offset: i64,
    /// The record's place in the log.
    pub commit_log_offset: i64,
}

/// Says what stands for a body that can't be inflated here, None for null; the text says why.
pub type OddBody<'a> =
    dyn FnMut(&StoredBody<'_>, String) -> Result<Option<Vec<u8>>, ColumnError> + 'a;

/// The [`OddBody`] that makes it an error.
///
/// # Errors
/// Always: with the reason and the place in the log.
pub fn refuse(stored: &StoredBody<'_>, reason: String) -> Result<Option<Vec<u8>>, ColumnError> {
    Err(ColumnError::Compression { commit_log_offset: stored.commit_log_offset, reason })
}

/// The column in the making.
pub(super) struct Bodies {
    /// A bit per row, from the first null on.
    validity: Option<Vec<u8>>,
    offsets: Offsets,
    data: Vec<u8>,
    bytes_max: usize,
    /// About so many there will be.
    rows: usize,
}

enum Inflated {
    Whole,
    TooLarge,
    Odd(String),
}

impl Bodies {
    pub(super) fn new(column: &'static str, rows: usize, bytes_max: usize) -> Self {
        let offsets = Offsets::new(column, rows);
        Self { validity: None, offsets, data: Vec::new(), bytes_max, rows }
    }

    /// Adds a row; false, and nothing is added, when the column would become too large.
    pub(super) fn add(
        &mut self,
        row: usize,
        stored: &StoredBody<'_>,
        odd: &mut OddBody<'_>,
    ) -> Result<bool, ColumnError> {
        let start = self.data.len();
        let room = if row == 0 { usize::MAX } else { self.bytes_max.saturating_sub(start) };
        let mut is_there = true;
        if stored.sys_flag & COMPRESSED == 0 {
            if stored.bytes.len() > room {
                return Ok(false);
            }
            self.data.extend_from_slice(stored.bytes);
            if row == 0 {
                reserve_alike(&mut self.data, self.rows);
            }
        } else {
            match inflate(stored, room.min(INFLATED_BYTES_MAX), &mut self.data) {
                Inflated::Whole => {}
                Inflated::TooLarge if room < INFLATED_BYTES_MAX => return Ok(false),
                Inflated::TooLarge => {
                    let reason = format!("inflates to more than {INFLATED_BYTES_MAX} bytes");
                    is_there = self.add_odd(stored, reason, odd)?;
                }
                Inflated::Odd(reason) => is_there = self.add_odd(stored, reason, odd)?,
            }
            if self.data.len() - start > room {
                self.data.truncate(start);
                return Ok(false);
            }
        }
        self.offsets.push(self.data.len())?;
        if !is_there || self.validity.is_some() {
            self.mark(row, is_there);
        }
        Ok(true)
    }

    fn add_odd(
        &mut self,
        stored: &StoredBody<'_>,
        reason: String,
        odd: &mut OddBody<'_>,
    ) -> Result<bool, ColumnError> {
        let body = odd(stored, reason)?;
        self.data.extend_from_slice(body.as_deref().unwrap_or_default());
        Ok(body.is_some())
    }

    fn mark(&mut self, row: usize, is_there: bool) {
        let bits = self.validity.get_or_insert_with(|| {
            let mut bits = vec![0xFF; row / 8];
            if !row.is_multiple_of(8) {
                bits.push((1 << (row % 8)) - 1);
            }
            bits
        });
        if row.is_multiple_of(8) {
            bits.push(0);
        }
        if let Some(last) = bits.last_mut() {
            *last |= u8::from(is_there) << (row % 8);
        }
    }

    pub(super) fn finish(self) -> Column {
        Column::Variable { validity: self.validity, offsets: self.offsets.bytes, data: self.data }
    }
}

/// Appends the inflated body, unless it has more than `bytes_max` bytes or can't be inflated. Bytes
/// after its end do not matter, as for Java.
fn inflate(stored: &StoredBody<'_>, bytes_max: usize, out: &mut Vec<u8>) -> Inflated {
    let kind = stored.sys_flag & COMPRESSION_TYPE_MASK;
    if kind != 0 && kind != COMPRESSION_ZLIB {
        let name = match kind >> 8 {
            1 => "LZ4".to_owned(),
            2 => "ZSTD".to_owned(),
            other => format!("type {other}"),
        };
        return Inflated::Odd(format!("compressed with {name}, which the kernel does not know"));
    }
    let start = out.len();
    let limit = u64::try_from(bytes_max).map_or(u64::MAX, |limit| limit.saturating_add(1));
    let result = ZlibDecoder::new(stored.bytes).take(limit).read_to_end(out);
    let inflated = match result {
        Err(error) => Inflated::Odd(format!("compressed body is corrupt: {error}")),
        Ok(_) if out.len() - start > bytes_max => Inflated::TooLarge,
        Ok(_) => return Inflated::Whole,
    };
    out.truncate(start);
    inflated
}
