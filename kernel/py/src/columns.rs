//! `decode_columns` and `scan_columns` of the Python interface.

use kerolox_core::columns::bodies::{self, StoredBody};
use kerolox_core::columns::{
    self, COLUMN_BYTES_MAX, Column, ColumnError, Scan, TopicChoice, Window,
};
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PyTuple};
use std::ffi::c_int;

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
        Some(ask) => ask_about(ask, stored, stored.queue_offset).map_err(|error| {
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
    Ok((decoded.rows, named(py, &names, decoded.columns)?, decoded.end))
}

/// Bytes of a log to Arrow buffers, as far as whole records follow each other: (row count,
/// {column: buffers}, where the next call goes on, records examined, whether something else than a
/// whole record stands there).
#[pyfunction]
#[pyo3(signature = (
    data, columns, *, start, stop, log_offset, rows_max, body_bytes_max = COLUMN_BYTES_MAX,
    stored_from = i64::MIN, stored_before = i64::MAX, topics = None, checks_crc = true,
    odd_body = None
))]
#[allow(clippy::needless_pass_by_value, clippy::too_many_arguments)] // those of Python's side
pub fn scan_columns<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    columns: Vec<String>,
    start: usize,
    stop: usize,
    log_offset: Option<i64>,
    rows_max: usize,
    body_bytes_max: usize,
    stored_from: i64,
    stored_before: i64,
    topics: Option<Py<PyAny>>,
    checks_crc: bool,
    odd_body: Option<Py<PyAny>>,
) -> PyResult<(usize, Bound<'py, PyDict>, usize, usize, bool)> {
    let names: Vec<&str> = columns.iter().map(String::as_str).collect();
    let scan = Scan {
        start,
        stop,
        log_offset,
        rows_max,
        body_bytes_max,
        stored_from,
        stored_before,
        checks_crc,
    };
    let (mut of_body, mut of_topic) = (None, None);
    let mut odd = |stored: &StoredBody<'_>, reason: String| match &odd_body {
        None => bodies::refuse(stored, reason),
        Some(ask) => ask_about(ask, stored, stored.commit_log_offset).map_err(|error| {
            of_body = Some(error);
            ColumnError::Refused
        }),
    };
    let mut choose = |topic: &[u8]| match &topics {
        None => Ok(true),
        Some(ask) => is_wanted(ask, topic).map_err(|error| {
            of_topic = Some(error);
            ColumnError::Refused
        }),
    };
    let mut decode = |data: &[u8]| {
        py.detach(|| {
            let chosen = topics.is_some().then_some(&mut choose as &mut TopicChoice<'_>);
            columns::scan_columns(data, &names, scan, chosen, &mut odd)
        })
    };
    let scanned = if let Ok(bytes) = data.cast::<PyBytes>() {
        decode(bytes.as_bytes())
    } else {
        // As in `decode_columns`.
        decode(&with_bytes(data, None, <[u8]>::to_vec)?)
    };
    let scanned = scanned.map_err(|error| match of_body.or(of_topic) {
        Some(raised) => raised,
        None => PyValueError::new_err(error.to_string()),
    })?;
    let decoded = scanned.decoded;
    let buffers = named(py, &names, decoded.columns)?;
    Ok((decoded.rows, buffers, decoded.end, scanned.looked_at, scanned.is_broken))
}

/// A buffer of a column, which Python reads where it is.
#[pyclass(frozen)]
struct ColumnBuffer(Vec<u8>);

#[pymethods]
impl ColumnBuffer {
    /// # Safety
    /// Python gives a view to fill.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = &slf.get().0;
        let start = bytes.as_ptr().cast_mut().cast();
        // SAFETY: the view is Python's. It keeps this object, whose bytes stay as and where they
        // are: the class is frozen, and the view is read-only.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes.len() as isize, 1, flags)
        };
        if filled < 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}

fn named<'py>(
    py: Python<'py>,
    names: &[&str],
    columns: Vec<Column>,
) -> PyResult<Bound<'py, PyDict>> {
    let buffers = PyDict::new(py);
    for (name, column) in names.iter().zip(columns) {
        buffers.set_item(name, to_python(py, column)?)?;
    }
    Ok(buffers)
}

/// What Python says about a topic.
fn is_wanted(ask: &Py<PyAny>, topic: &[u8]) -> PyResult<bool> {
    Python::attach(|py| ask.bind(py).call1((PyBytes::new(py, topic),))?.extract())
}

/// What Python says stands for a body that the kernel can't inflate; None for null.
fn ask_about(ask: &Py<PyAny>, stored: &StoredBody<'_>, place: i64) -> PyResult<Option<Vec<u8>>> {
    Python::attach(|py| {
        let body = PyBytes::new(py, stored.bytes);
        let answer = ask.bind(py).call1((body, stored.sys_flag, place))?;
        if answer.is_none() {
            return Ok(None);
        }
        Ok(Some(answer.cast::<PyBytes>()?.as_bytes().to_vec()))
    })
}

fn to_python(py: Python<'_>, column: Column) -> PyResult<Bound<'_, PyAny>> {
    let buffer = |bytes: Vec<u8>| {
        if bytes.is_empty() {
            return Ok(PyBytes::new(py, &[]).into_any());
        }
        Ok::<_, PyErr>(
            PyMemoryView::from(Bound::new(py, ColumnBuffer(bytes))?.as_any())?.into_any(),
        )
    };
    Ok(match column {
        Column::Fixed(data) => buffer(data)?,
        Column::Variable { validity, offsets, data } => {
            let validity = validity.map(buffer).transpose()?;
            (validity, buffer(offsets)?, buffer(data)?).into_pyobject(py)?.into_any()
        }
        Column::Map { offsets, key_offsets, key_data, value_offsets, value_data } => {
            let parts = [offsets, key_offsets, key_data, value_offsets, value_data];
            let parts = parts.into_iter().map(buffer).collect::<PyResult<Vec<_>>>()?;
            PyTuple::new(py, parts)?.into_any()
        }
    })
}
