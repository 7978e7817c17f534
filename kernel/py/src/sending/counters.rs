//! `Opaques` and `MessageIds` of the Python interface.

use kerolox_core::client::ids::{self, Id};
use parking_lot::Mutex;
use pyo3::PyTraverseError;
use pyo3::exceptions::PyValueError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::PyString;

/// Request ids.
#[pyclass(module = "kerolox_kernel", frozen)]
pub struct Opaques(pub ids::Opaques);

#[pymethods]
impl Opaques {
    #[new]
    #[pyo3(signature = (first = 0))]
    fn new(first: i32) -> Self {
        Self(ids::Opaques::new(first))
    }

    /// The next id.
    fn allocate(&self) -> i32 {
        self.0.allocate()
    }
}

/// Makes message ids.
#[pyclass(module = "kerolox_kernel", frozen)]
pub struct MessageIds {
    head: Py<PyAny>,
    ids: Mutex<ids::MessageIds>,
}

#[pymethods]
impl MessageIds {
    #[new]
    fn new(head: Py<PyAny>) -> Self {
        Self { head, ids: Mutex::default() }
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
        let next = self.ids.lock().next(now_ms);
        if let Some(id) = next {
            return Ok(id);
        }
        let head: String = self.head.bind(py).call1((now_ms,))?.extract()?;
        let first = self.ids.lock().begin(now_ms, &head);
        first.ok_or_else(|| PyValueError::new_err(format!("{head:?} begins no message id")))
    }
}
