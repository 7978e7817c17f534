//! `Sender` of the Python interface.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::PyTraverseError;
use pyo3::exceptions::PyTypeError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};

use crate::sending::counters::MessageIds;
use crate::sending::message::{Members, Parts};

/// A time is taken for the same for so long (`CLOCK_SECONDS_MAX`).
pub const CLOCK_MAX: Duration = Duration::from_micros(500);

/// Members of a result.
pub const RESULT_MEMBERS: usize = 7;

/// What all fast-path sends of one producer share.
#[pyclass(module = "kerolox_kernel", frozen)]
pub struct Sender {
    pub ids: Py<MessageIds>,
    pub check: Py<PyAny>,
    pub go_on: Py<PyAny>,
    /// Of the only class of messages that are plain.
    members: Members,
    pub result_type: Py<PyType>,
    pub status: Py<PyAny>,
    body_bytes_max: usize,
    pub timeout_ms: i64,
    pub is_batching: bool,
    now_ms: Py<PyAny>,
    /// What `now_ms` said last, and when.
    said: Mutex<Option<(Instant, i64)>>,
    open_count: AtomicI64,
}

#[pymethods]
impl Sender {
    #[new]
    #[allow(clippy::too_many_arguments)] // they are all of one kind of object
    fn new(
        ids: Py<MessageIds>,
        now_ms: Py<PyAny>,
        check: Py<PyAny>,
        go_on: Py<PyAny>,
        message_type: &Bound<'_, PyType>,
        result_type: &Bound<'_, PyType>,
        status: Py<PyAny>,
        body_bytes_max: usize,
        timeout_ms: i64,
        is_batching: bool,
    ) -> PyResult<Self> {
        let members = result_type.getattr("_fields")?.len()?;
        if !result_type.is_subclass_of::<PyTuple>()? || members != RESULT_MEMBERS {
            return Err(PyTypeError::new_err("results are named tuples of seven members"));
        }
        Ok(Self {
            ids,
            check,
            go_on,
            members: Members::of(message_type)?,
            result_type: result_type.clone().unbind(),
            status,
            body_bytes_max,
            timeout_ms,
            is_batching,
            now_ms,
            said: Mutex::new(None),
            open_count: AtomicI64::new(0),
        })
    }

    /// Its messages on their way.
    #[getter]
    fn open_count(&self) -> i64 {
        self.open_count.load(Ordering::Relaxed)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.ids)?;
        visit.call(&self.check)?;
        visit.call(&self.go_on)?;
        visit.call(&self.now_ms)?;
        self.members.visit(&visit)?;
        visit.call(&self.result_type)?;
        visit.call(&self.status)
    }
}

impl Sender {
    /// Reads a message; None: it is not for the fast path.
    pub fn parts_of<'py>(&self, message: &Bound<'py, PyAny>) -> Option<Parts<'py>> {
        Parts::of(&self.members, self.body_bytes_max, message)
    }

    /// Milliseconds since the epoch, about `at`.
    pub fn now_ms(&self, py: Python<'_>, at: Instant) -> PyResult<i64> {
        let said = *self.said.lock();
        if let Some((said_at, ms)) = said
            && at.duration_since(said_at) < CLOCK_MAX
        {
            return Ok(ms);
        }
        let ms = self.now_ms.bind(py).call0()?.extract()?;
        *self.said.lock() = Some((at, ms));
        Ok(ms)
    }

    /// So many messages are on their way, or are it no more.
    pub fn count(&self, messages: i64) {
        self.open_count.fetch_add(messages, Ordering::Relaxed);
    }
}
