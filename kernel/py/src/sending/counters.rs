//! `Opaques` and `MessageIds` of the Python interface.

use std::sync::atomic::{AtomicI32, Ordering};

use parking_lot::Mutex;
use pyo3::PyTraverseError;
use pyo3::exceptions::PyValueError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// Longest id: that of a host with an IPv6 address has 56 characters.
const ID_BYTES_MAX: usize = 63;

/// Characters of the counter.
const COUNTER_BYTES: usize = 4;

/// Request ids.
#[pyclass(module = "kerolox_kernel", frozen)]
pub struct Opaques(AtomicI32);

#[pymethods]
impl Opaques {
    #[new]
    #[pyo3(signature = (first = 0))]
    fn new(first: i32) -> Self {
        Self(AtomicI32::new(first))
    }

    /// The next id.
    pub fn allocate(&self) -> i32 {
        self.0.fetch_add(1, Ordering::Relaxed) // which wraps
    }
}

/// A message id.
#[derive(Clone, Copy)]
pub struct Id {
    text: [u8; ID_BYTES_MAX],
    size: u8,
}

impl Id {
    /// Its text.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.text[..usize::from(self.size)]).unwrap_or_default()
    }
}

struct Last {
    /// The id that was made last, whose beginning is that of its millisecond.
    id: Id,
    ms: Option<i64>,
    counter: u16,
}

/// Makes message ids.
#[pyclass(module = "kerolox_kernel", frozen)]
pub struct MessageIds {
    head: Py<PyAny>,
    last: Mutex<Last>,
}

#[pymethods]
impl MessageIds {
    #[new]
    fn new(head: Py<PyAny>) -> Self {
        let id = Id { text: [0; ID_BYTES_MAX], size: 0 };
        Self { head, last: Mutex::new(Last { id, ms: None, counter: 0 }) }
    }

    /// The next id as text.
    #[pyo3(name = "next")]
    fn next_text<'py>(&self, py: Python<'py>, now_ms: i64) -> PyResult<Bound<'py, PyString>> {
        Ok(PyString::new(py, self.next(py, now_ms)?.as_str()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.head)
    }
}

impl MessageIds {
    /// The next id.
    pub fn next(&self, py: Python<'_>, now_ms: i64) -> PyResult<Id> {
        {
            let mut last = self.last.lock();
            if last.ms == Some(now_ms) {
                return Ok(last.count_up());
            }
        }
        let head: String = self.head.bind(py).call1((now_ms,))?.extract()?;
        let size = head.len() + COUNTER_BYTES;
        if size > ID_BYTES_MAX {
            return Err(PyValueError::new_err(format!("{head:?} begins no message id")));
        }
        let mut last = self.last.lock();
        last.id.text[..head.len()].copy_from_slice(head.as_bytes());
        last.id.size = size as u8;
        last.ms = Some(now_ms);
        Ok(last.count_up())
    }
}

impl Last {
    fn count_up(&mut self) -> Id {
        let counter = self.counter;
        self.counter = counter.wrapping_add(1);
        let end = usize::from(self.id.size);
        for (place, shift) in (end - COUNTER_BYTES..end).zip([12, 8, 4, 0]) {
            self.id.text[place] = b"0123456789ABCDEF"[usize::from(counter >> shift & 15)];
        }
        self.id
    }
}
