//! The class of results of sends.

use pyo3::exceptions::PyTypeError;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use pyo3::{PyTraverseError, ffi};

/// Members of a result.
const MEMBERS: usize = 7;

/// The class of results, and how one is made.
pub struct ResultType {
    class: Py<PyType>,
    /// `tuple.__new__`, where a tuple has more than its members to set, as the cached hash of Python
    /// 3.14; None: it has not.
    new: Option<Py<PyAny>>,
}

impl ResultType {
    /// That of a named tuple.
    ///
    /// # Errors
    ///
    /// `TypeError`: it is none, or has other members.
    pub fn of(class: &Bound<'_, PyType>) -> PyResult<Self> {
        let py = class.py();
        let members = class.getattr("_fields")?.len()?;
        if !class.is_subclass_of::<PyTuple>()? || members != MEMBERS {
            return Err(PyTypeError::new_err("results are named tuples of seven members"));
        }
        let members = || std::array::from_fn(|_| py.None().into_bound(py));
        let whole = PyTuple::new(py, members())?;
        let is_whole = filled(class, members())?.hash()? == whole.hash()?;
        let new = if is_whole { None } else { Some(whole.getattr("__new__")?.unbind()) };
        Ok(Self { class: class.clone().unbind(), new })
    }

    /// One with these members.
    pub fn make<'py>(
        &self,
        py: Python<'py>,
        members: [Bound<'py, PyAny>; MEMBERS],
    ) -> PyResult<Bound<'py, PyAny>> {
        let class = self.class.bind(py);
        let result = match &self.new {
            None => filled(class, members)?,
            Some(new) => new.bind(py).call1((class, PyTuple::new(py, members)?))?,
        };
        // It can be part of no cycle: texts, numbers, and a queue and a status that know nothing.
        // Where thousands of sends are open, collections are half of what each costs.
        // SAFETY: the thread is attached, and a tuple is what the collector can track.
        unsafe { ffi::PyObject_GC_UnTrack(result.as_ptr().cast()) };
        Ok(result)
    }

    pub fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.class)?;
        visit.call(self.new.as_ref())
    }
}

/// An instance of a subclass of tuple that has nothing to set but its members.
fn filled<'py>(
    class: &Bound<'py, PyType>,
    members: [Bound<'py, PyAny>; MEMBERS],
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the thread is attached, and `ResultType::of` has made sure that the type is a subclass
    // of tuple. `tuple.__new__` makes such an instance in the same way. Nobody else has seen it
    // while its members are set, each of which is an owned reference.
    unsafe {
        let result = ffi::PyType_GenericAlloc(class.as_type_ptr(), MEMBERS as ffi::Py_ssize_t);
        let result = Bound::from_owned_ptr_or_err(class.py(), result)?;
        for (index, member) in members.into_iter().enumerate() {
            ffi::PyTuple_SetItem(result.as_ptr(), index as ffi::Py_ssize_t, member.into_ptr());
        }
        Ok(result)
    }
}
