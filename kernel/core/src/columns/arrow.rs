//! Columns as Arrow lays them out.

use std::fmt;

/// Most bytes of one column: Arrow's 32-bit offsets can't say more.
pub const COLUMN_BYTES_MAX: usize = i32::MAX as usize;

/// One decoded column.
#[derive(Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the buffers are named as Arrow does
pub enum Column {
    /// Integers of 32 or 64 bits, or truths of one.
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
    UnknownColumn {
        name: String,
        known: Vec<&'static str>,
    },
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
    /// What was asked about an odd body or a topic failed; it knows why.
    Refused,
}

impl fmt::Display for ColumnError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownColumn { name, known } => {
                write!(out, "no column {name:?}; the columns are {}", known.join(", "))
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

/// Little-endian 32-bit offsets, the first one 0.
pub(super) struct Offsets {
    column: &'static str,
    pub(super) bytes: Vec<u8>,
}

impl Offsets {
    pub(super) fn new(column: &'static str, rows: usize) -> Self {
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

/// Space for rows that are about as long as the first one, which `data` holds. No value is longer
/// than its record, so that is at most what the records have together.
pub(super) fn reserve_alike(data: &mut Vec<u8>, rows: usize) {
    data.reserve(data.len().saturating_mul(rows.saturating_sub(1)).min(COLUMN_BYTES_MAX));
}
