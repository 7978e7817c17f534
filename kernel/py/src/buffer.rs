//! Bytes of Python objects.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Calls `take` with the first `size` bytes of an object (all, when None).
///
/// # Errors
///
/// `TypeError` for an object without a buffer, `BufferError` for one with gaps, `ValueError` for a
/// size outside of it.
pub fn with_bytes<R>(
    data: &Bound<'_, PyAny>,
    size: Option<usize>,
    take: impl FnOnce(&[u8]) -> R,
) -> PyResult<R> {
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return Ok(take(first(bytes.as_bytes(), size)?));
    }
    let buffer = PyBuffer::<u8>::get(data)?;
    if !buffer.is_c_contiguous() {
        return Err(PyBufferError::new_err("the buffer must be contiguous"));
    }
    if buffer.len_bytes() == 0 {
        return Ok(take(first(&[], size)?));
    }
    let start = buffer.buf_ptr().cast::<u8>().cast_const();
    // SAFETY: the exporter keeps these bytes in place until `buffer` is dropped, which is after the
    // last use of the slice. `take` runs attached to the interpreter and calls no Python code that
    // could write to them.
    let bytes = unsafe { std::slice::from_raw_parts(start, buffer.len_bytes()) };
    Ok(take(first(bytes, size)?))
}

fn first(bytes: &[u8], size: Option<usize>) -> PyResult<&[u8]> {
    let size = size.unwrap_or(bytes.len());
    bytes.get(..size).ok_or_else(|| {
        PyValueError::new_err(format!("size {size} is more than the buffer's {}", bytes.len()))
    })
}
