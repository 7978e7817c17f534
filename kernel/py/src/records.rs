//! What Python gives to append: `Record` and `Batch` of `kerolox.kernel`, which are tuples.

use kerolox_core::{BatchItem, NewBatch, NewRecord, Text};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::iter::BorrowedTupleIterator;
use pyo3::types::{PyBytes, PyBytesMethods, PyTuple};

/// A host as records store it.
pub fn checked_host(host: &[u8]) -> PyResult<&[u8]> {
    if matches!(host.len(), 8 | 20) {
        Ok(host)
    } else {
        let text =
            format!("a host has 8 bytes (IPv4 and port) or 20 (IPv6 and port), not {}", host.len());
        Err(PyValueError::new_err(text))
    }
}

/// The members of a named tuple, one after the other.
struct Members<'a, 'py>(BorrowedTupleIterator<'a, 'py>);

impl<'a, 'py> Members<'a, 'py> {
    fn take<T: FromPyObject<'a, 'py>>(&mut self) -> PyResult<T> {
        let member = self.0.next().ok_or_else(|| PyIndexError::new_err("a member is missing"))?;
        member.extract().map_err(Into::into)
    }
}

/// Where a record goes: topic and queue id.
pub type Target<'a> = (&'a [u8], i32);

/// Reads a `Record`.
///
/// # Errors
///
/// `IndexError`, `TypeError`, `OverflowError` or `ValueError` for a member that is missing or not
/// what the interface says.
pub fn record<'a>(given: &'a Bound<'_, PyTuple>) -> PyResult<(Target<'a>, NewRecord<'a>)> {
    let mut members = Members(given.iter_borrowed());
    let target = (members.take()?, members.take()?);
    let record = NewRecord {
        flag: members.take()?,
        sys_flag: members.take()?,
        born_timestamp: members.take()?,
        born_host: checked_host(members.take()?)?,
        store_host: checked_host(members.take()?)?,
        reconsume_times: members.take()?,
        prepared_transaction_offset: members.take()?,
        body: members.take()?,
        properties: Text::one(members.take()?),
        marks: None,
        tags_code: members.take()?,
        bit_map: members.take()?,
    };
    Ok((target, record))
}

/// One item of a batch: flag, body, property text.
type Item<'py> = (i32, Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// The items of a batch and their bit maps, which the engine's items borrow from.
pub struct Items<'py> {
    items: Vec<Item<'py>>,
    bit_maps: Vec<Bound<'py, PyBytes>>,
}

impl Items<'_> {
    /// As the engine takes them.
    pub fn of_engine(&self) -> Vec<BatchItem<'_>> {
        let mut bit_maps = self.bit_maps.iter().map(PyBytesMethods::as_bytes);
        self.items
            .iter()
            .map(|(flag, body, properties)| BatchItem {
                flag: *flag,
                body: body.as_bytes(),
                properties: Text::one(properties.as_bytes()),
                marks: None,
                bit_map: bit_maps.next().unwrap_or_default(),
            })
            .collect()
    }
}

/// Reads a `Batch`.
///
/// # Errors
///
/// As [`record`].
pub fn batch<'a, 'py>(
    given: &'a Bound<'py, PyTuple>,
) -> PyResult<(Target<'a>, NewBatch<'a>, Items<'py>)> {
    let mut members = Members(given.iter_borrowed());
    let target = (members.take()?, members.take()?);
    let batch = NewBatch {
        sys_flag: members.take()?,
        born_timestamp: members.take()?,
        born_host: checked_host(members.take()?)?,
        store_host: checked_host(members.take()?)?,
        reconsume_times: members.take()?,
    };
    let items = Items { items: members.take()?, bit_maps: members.take()? };
    Ok((target, batch, items))
}
