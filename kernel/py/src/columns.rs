//! `decode_columns` of the Python face.

use kerolox_core::hot::columns::{self, Column};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::buffer::with_bytes;

/// Raw records to Arrow buffers: (row count, {column: buffers}).
#[pyfunction]
#[allow(clippy::needless_pass_by_value)] // made from Python's sequence for this call
pub fn decode_columns<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    columns: Vec<String>,
) -> PyResult<(usize, Bound<'py, PyDict>)> {
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    let decode = |data: &[u8]| py.detach(|| columns::decode_columns(data, &names));
    let decoded = if let Ok(bytes) = data.cast::<PyBytes>() {
        decode(bytes.as_bytes())
    } else {
        // Other threads run meanwhile and could write to any other buffer: decode a copy of it.
        decode(&with_bytes(data, None, <[u8]>::to_vec)?)
    };
    let (rows, decoded) = decoded.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let buffers = PyDict::new(py);
    for (name, column) in names.iter().zip(decoded) {
        buffers.set_item(name, to_python(py, &column)?)?;
    }
    Ok((rows, buffers))
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
