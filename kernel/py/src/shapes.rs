//! The named tuples that the store returns, which are classes of `kerolox.kernel`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

/// The module that states them.
const VALUES: &str = "kerolox.kernel.values";

/// One kind of named tuple.
pub struct Shape {
    name: &'static str,
    class: PyOnceLock<Py<PyAny>>,
}

pub static APPENDED: Shape = Shape::new("Appended");
pub static BATCH_APPENDED: Shape = Shape::new("BatchAppended");
pub static READ: Shape = Shape::new("Read");
pub static QUEUE_BOUNDS: Shape = Shape::new("QueueBounds");
pub static COPIED: Shape = Shape::new("Copied");
pub static HALF_RUN: Shape = Shape::new("HalfRun");
pub static HALVES_ENDED: Shape = Shape::new("HalvesEnded");
pub static STREAM_POSITION: Shape = Shape::new("StreamPosition");
pub static RECOVERY_REPORT: Shape = Shape::new("RecoveryReport");

impl Shape {
    const fn new(name: &'static str) -> Self {
        Self { name, class: PyOnceLock::new() }
    }

    fn class<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyAny>> {
        let class = self.class.get_or_try_init(py, || -> PyResult<_> {
            Ok(py.import(VALUES)?.getattr(self.name)?.unbind())
        })?;
        Ok(class.bind(py))
    }

    /// A named tuple of this shape.
    ///
    /// # Errors
    ///
    /// What making the values or the tuple raised.
    pub fn make<'py, V>(&self, py: Python<'py>, values: V) -> PyResult<Bound<'py, PyAny>>
    where
        V: IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error: Into<PyErr>>,
    {
        self.class(py)?.call1(values.into_pyobject(py).map_err(Into::into)?)
    }
}

/// A dictionary of counters.
pub fn counters<'py>(py: Python<'py>, values: &[(&str, u64)]) -> PyResult<Bound<'py, PyDict>> {
    let counters = PyDict::new(py);
    for (name, value) in values {
        counters.set_item(name, value)?;
    }
    Ok(counters)
}
