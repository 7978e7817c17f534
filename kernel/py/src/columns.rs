//! `decode_columns` of the Python interface.

use kerolox_core::columns::bodies::{self, StoredBody};
use kerolox_core::columns::{self, COLUMN_BYTES_MAX, Column, ColumnError, Window};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::buffer::with_bytes;

/// Raw records to Arrow buffers: (row count, {column: buffers}, where the next call goes on).
#[pyfunction]
#[pyo3(signature = (data, columns, *, start = 0, body_bytes_max = COLUMN_BYTES_MAX, odd_body = None))]
#[allow(clippy::needless_pass_by_value)] // made from Python's sequence for this call
pub fn decode_columns<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    columns: Vec<String>,
    start: usize,
    body_bytes_max: usize,
    odd_body: Option<Py<PyAny>>,
) -> PyResult<(usize, Bound<'py, PyDict>, usize)> {
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    let window = Window { start, body_bytes_max };
    let mut raised = None;
    let mut odd = |stored: &StoredBody<'_>, reason: String| match &odd_body {
        None => bodies::refuse(stored, reason),
        Some(ask) => ask_about(ask, stored).map_err(|error| {
            raised = Some(error);
            ColumnError::Refused
        }),
    };
    let mut decode =
        |data: &[u8]| py.detach(|| columns::decode_columns(data, &names, window, &mut odd));
    let decoded = if let Ok(bytes) = data.cast::<PyBytes>() {
        decode(bytes.as_bytes())
    } else {
        // Other threads run meanwhile and could write to any other buffer: decode a copy of it.
        decode(&with_bytes(data, None, <[u8]>::to_vec)?)
    };
    let decoded = decoded.map_err(|error| match raised {
        Some(raised) => raised,
        None => PyValueError::new_err(error.to_string()),
    })?;
    let buffers = PyDict::new(py);
    for (name, column) in names.iter().zip(decoded.columns) {
        buffers.set_item(name, to_python(py, &column)?)?;
    }
    Ok((decoded.rows, buffers, decoded.end))
}

/// What Python says stands for a body that the kernel can't inflate; None for null.
fn ask_about(ask: &Py<PyAny>, stored: &StoredBody<'_>) -> PyResult<Option<Vec<u8>>> {
    Python::attach(|py| {
        let body = PyBytes::new(py, stored.bytes);
        let answer = ask.bind(py).call1((body, stored.sys_flag, stored.queue_offset))?;
        if answer.is_none() {
            return Ok(None);
        }
        Ok(Some(answer.cast::<PyBytes>()?.as_bytes().to_vec()))
    })
}

fn to_python<'py>(py: Python<'py>, column: &Column) -> PyResult<Bound<'py, PyAny>> {
    let bytes = |data: &[u8]| PyBytes::new(py, data);
    Ok(match column {
        Column::Fixed(data) => bytes(data).into_any(),
        Column::Variable { validity, offsets, data } => {
            let validity = validity.as_deref().map(bytes);
            (validity, bytes(offsets), bytes(data)).into_pyobject(py)?.into_any()
        }
        Column::Map { offsets, key_offsets, key_data, value_offsets, value_data } => {
            let parts = [offsets, key_offsets, key_data, value_offsets, value_data];
            PyTuple::new(py, parts.map(|part| bytes(part)))?.into_any()
        }
    })
}
