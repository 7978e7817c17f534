//! `Sender` of the Python interface.

use kerolox_core::client::clock::{Moment, Reading};
use kerolox_core::client::ids::Id;
use kerolox_core::client::open_send::OpenCount;
use kerolox_core::client::outgoing::Limits;
use parking_lot::Mutex;
use pyo3::PyTraverseError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::sending::counters::MessageIds;
use crate::sending::message::{Members, Parts};
use crate::sending::result_type::ResultType;

/// What all fast-path sends of one producer share.
#[pyclass(module = "kerolox_kernel", frozen)]
pub struct Sender {
    pub check: Py<PyAny>,
    pub go_on: Py<PyAny>,
    pub result_type: ResultType,
    pub status: Py<PyAny>,
    pub limits: Limits,
    pub is_batching: bool,
    /// Its messages on their way.
    pub open: OpenCount,
    /// Of the only class of messages that are for the fast path.
    members: Members,
    ids: Py<MessageIds>,
    now_ms: Py<PyAny>,
    /// What `now_ms` said last.
    read_ms: Mutex<Reading<i64>>,
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
        Ok(Self {
            check,
            go_on,
            result_type: ResultType::of(result_type)?,
            status,
            limits: Limits { body_bytes_max, timeout_ms },
            is_batching,
            open: OpenCount::default(),
            members: Members::of(message_type)?,
            ids,
            now_ms,
            read_ms: Mutex::default(),
        })
    }

    /// Its messages on their way.
    #[getter]
    fn open_count(&self) -> usize {
        self.open.get()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for object in [&self.check, &self.go_on, &self.status, &self.now_ms] {
            visit.call(object)?;
        }
        visit.call(&self.ids)?;
        self.members.visit(&visit)?;
        self.result_type.visit(&visit)
    }
}

impl Sender {
    /// Reads a message; None: it is not for the fast path.
    pub fn parts_of<'py>(&self, message: &Bound<'py, PyAny>) -> Option<Parts<'py>> {
        Parts::of(&self.members, self.limits, message)
    }

    /// Milliseconds since the epoch, about `at`.
    pub fn now_ms(&self, py: Python<'_>, at: Moment) -> PyResult<i64> {
        let read = self.read_ms.lock().at(at);
        if let Some(ms) = read {
            return Ok(ms);
        }
        let ms = self.now_ms.bind(py).call0()?.extract()?;
        self.read_ms.lock().set(at, ms);
        Ok(ms)
    }

    /// When a message is born that begins at `at`, in milliseconds since the epoch, and its id.
    pub fn stamp(&self, py: Python<'_>, at: Moment) -> PyResult<(i64, Id)> {
        let now_ms = self.now_ms(py, at)?;
        Ok((now_ms, self.ids.get().next(py, now_ms)?))
    }
}
