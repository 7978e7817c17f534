//! Futures of the event loop.

use pyo3::PyTraverseError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Makes futures of the loop.
pub enum Futures {
    /// By a function.
    Calling(Py<PyAny>),
    /// By a class and its named arguments, which a `functools.partial` has.
    Of(Py<PyAny>, Py<PyDict>),
}

impl Futures {
    /// What a function makes.
    pub fn of(make: Bound<'_, PyAny>) -> PyResult<Self> {
        let py = make.py();
        if make.get_type().is(&py.import("functools")?.getattr("partial")?)
            && make.getattr("args")?.is_empty()?
        {
            let named = make.getattr("keywords")?.cast_into::<PyDict>()?;
            return Ok(Self::Of(make.getattr("func")?.unbind(), named.unbind()));
        }
        Ok(Self::Calling(make.unbind()))
    }

    /// Makes one. A `partial` would copy its arguments for each.
    pub fn make<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Calling(make) => make.bind(py).call0(),
            Self::Of(class, named) => class.bind(py).call((), Some(named.bind(py))),
        }
    }

    /// The same.
    pub fn clone_ref(&self, py: Python<'_>) -> Self {
        match self {
            Self::Calling(make) => Self::Calling(make.clone_ref(py)),
            Self::Of(class, named) => Self::Of(class.clone_ref(py), named.clone_ref(py)),
        }
    }

    pub fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Self::Calling(make) => visit.call(make),
            Self::Of(class, named) => {
                visit.call(class)?;
                visit.call(named)
            }
        }
    }
}
