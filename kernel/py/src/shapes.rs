//! The named tuples that the store returns; same names and fields as in `kerolox.kernel`.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyString, PyTuple};

/// One kind of named tuple.
pub struct Shape {
    name: &'static str,
    fields: &'static [(&'static str, Field)],
    class: PyOnceLock<Py<PyAny>>,
}

/// Type of a field.
#[derive(Clone, Copy)]
enum Field {
    Bool,
    Int,
    Bytes,
    Text,
    Ints,
    Texts,
}

macro_rules! shape {
    ($name:ident, $text:literal, $($field:literal: $kind:ident),* $(,)?) => {
        #[doc = concat!("`", $text, "` of the Python face.")]
        pub static $name: Shape = Shape {
            name: $text,
            fields: &[$(($field, Field::$kind)),*],
            class: PyOnceLock::new(),
        };
    };
}

shape!(APPENDED, "Appended",
    "status": Int, "physical_offset": Int, "queue_offset": Int, "size": Int,
    "store_timestamp": Int);
shape!(BATCH_APPENDED, "BatchAppended",
    "status": Int, "physical_offsets": Ints, "queue_offset": Int, "end_offset": Int,
    "store_timestamp": Int);
shape!(READ, "Read",
    "status": Int, "next_offset": Int, "min_offset": Int, "max_offset": Int,
    "suggest_slave": Bool, "count": Int, "records": Bytes);
shape!(QUEUE_BOUNDS, "QueueBounds",
    "topic": Text, "queue_id": Int, "min_offset": Int, "max_offset": Int);
shape!(RECOVERY_REPORT, "RecoveryReport",
    "clean": Bool, "min_offset": Int, "max_offset": Int, "scanned_bytes": Int,
    "truncated_bytes": Int, "dispatched": Int, "indexed": Int, "queues": Int, "notes": Texts,
    "same_boot": Bool, "begin_offset": Int, "records": Int, "cut_entries": Int,
    "rebuilt_queues": Int, "removed_index_files": Int, "set_aside_files": Int,
    "duration_ms": Int);

impl Shape {
    fn class<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyAny>> {
        let class = self.class.get_or_try_init(py, || -> PyResult<_> {
            let fields = PyList::empty(py);
            for (name, field) in self.fields {
                fields.append((*name, field.annotation(py)?))?;
            }
            let class = py.import("typing")?.call_method1("NamedTuple", (self.name, fields))?;
            class.setattr("__module__", "kerolox_kernel")?;
            Ok(class.unbind())
        })?;
        Ok(class.bind(py))
    }

    /// A named tuple of this shape.
    ///
    /// # Errors
    ///
    /// What making the values or the tuple raised.
    pub fn make<'py>(
        &self,
        py: Python<'py>,
        values: impl IntoPyObject<'py, Target = PyTuple, Output = Bound<'py, PyTuple>, Error = PyErr>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.make_of(py, values.into_pyobject(py)?)
    }

    /// A named tuple of this shape, of values that are Python objects already.
    ///
    /// # Errors
    ///
    /// What making the tuple raised.
    pub fn make_of<'py>(
        &self,
        py: Python<'py>,
        values: Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.class(py)?.call1(values)
    }
}

impl Field {
    fn annotation(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let list = py.get_type::<PyList>();
        Ok(match self {
            Self::Bool => py.get_type::<pyo3::types::PyBool>().into_any(),
            Self::Int => py.get_type::<PyInt>().into_any(),
            Self::Bytes => py.get_type::<PyBytes>().into_any(),
            Self::Text => py.get_type::<PyString>().into_any(),
            Self::Ints => list.get_item(py.get_type::<PyInt>())?,
            Self::Texts => list.get_item(py.get_type::<PyString>())?,
        })
    }
}

/// Adds the classes to the module.
pub fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    for shape in [&APPENDED, &BATCH_APPENDED, &READ, &QUEUE_BOUNDS, &RECOVERY_REPORT] {
        module.add(shape.name, shape.class(module.py())?)?;
    }
    Ok(())
}

/// A dictionary of counters.
pub fn counters<'py>(py: Python<'py>, values: &[(&str, u64)]) -> PyResult<Bound<'py, PyDict>> {
    let counters = PyDict::new(py);
    for (name, value) in values {
        counters.set_item(name, value)?;
    }
    Ok(counters)
}
