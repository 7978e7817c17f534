//! The named tuples that are returned, and an error: classes of `kerolox.kernel`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

/// The modules that state them.
const VALUES: &str = "kerolox.kernel.values";
const DEDUP: &str = "kerolox.kernel.dedup";
const HTTP2: &str = "kerolox.kernel.http2";

/// One kind of named tuple.
pub struct Shape {
    module: &'static str,
    name: &'static str,
    class: PyOnceLock<Py<PyAny>>,
}

pub static APPENDED: Shape = Shape::new(VALUES, "Appended");
pub static BATCH_APPENDED: Shape = Shape::new(VALUES, "BatchAppended");
pub static READ: Shape = Shape::new(VALUES, "Read");
pub static QUEUE_BOUNDS: Shape = Shape::new(VALUES, "QueueBounds");
pub static COPIED: Shape = Shape::new(VALUES, "Copied");
pub static HALF_RUN: Shape = Shape::new(VALUES, "HalfRun");
pub static HALVES_ENDED: Shape = Shape::new(VALUES, "HalvesEnded");
pub static STREAM_POSITION: Shape = Shape::new(VALUES, "StreamPosition");
pub static RECOVERY_REPORT: Shape = Shape::new(VALUES, "RecoveryReport");
pub static KEY_WINDOW: Shape = Shape::new(DEDUP, "KeyWindow");
pub static OPENED: Shape = Shape::new(HTTP2, "Opened");
pub static RECEIVED: Shape = Shape::new(HTTP2, "Received");
pub static WAS_RESET: Shape = Shape::new(HTTP2, "WasReset");
pub static HTTP2_ERROR: Shape = Shape::new(HTTP2, "Http2Error");

impl Shape {
    const fn new(module: &'static str, name: &'static str) -> Self {
        Self { module, name, class: PyOnceLock::new() }
    }

    fn class<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyAny>> {
        let class = self.class.get_or_try_init(py, || -> PyResult<_> {
            Ok(py.import(self.module)?.getattr(self.name)?.unbind())
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
