//! Results of sends, and how their futures get them.

use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::sending::sender::Sender;

/// What an answer says beside the offsets.
pub struct Stored<'py> {
    pub queue: Bound<'py, PyAny>,
    pub region: Bound<'py, PyString>,
    pub is_traced: bool,
}

impl<'py> Stored<'py> {
    /// The result of one message.
    pub fn result(
        &self,
        sender: &Sender,
        message_id: Bound<'py, PyString>,
        offset_id: Bound<'py, PyString>,
        queue_offset: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = self.queue.py();
        let members = [
            sender.status.bind(py).clone(),
            message_id.into_any(),
            offset_id.into_any(),
            self.queue.clone(),
            queue_offset.into_pyobject(py)?.into_any(),
            self.region.clone().into_any(),
            self.is_traced.into_pyobject(py)?.to_owned().into_any(),
        ];
        sender.result_type.make(py, members)
    }
}

/// Completes a future, unless it was cancelled.
pub fn set_result(future: &Bound<'_, PyAny>, result: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = future.py();
    // SAFETY: the thread is attached, the arguments are borrowed references that live through the
    // call, and a null pointer ends them. `call_method1` would make a bound method and a tuple.
    let done = unsafe {
        ffi::PyObject_CallMethodObjArgs(
            future.as_ptr(),
            intern!(py, "set_result").as_ptr(),
            result.as_ptr(),
            std::ptr::null_mut::<ffi::PyObject>(),
        )
    };
    // SAFETY: it is null with an error set, or an owned reference.
    match unsafe { Bound::from_owned_ptr_or_err(py, done) } {
        Ok(_) => Ok(()),
        Err(error) => {
            if is_done(future) {
                Ok(())
            } else {
                Err(error)
            }
        }
    }
}

/// A future is done or cancelled.
pub fn is_done(future: &Bound<'_, PyAny>) -> bool {
    let name = intern!(future.py(), "done");
    future.call_method0(name).and_then(|done| done.is_truthy()).unwrap_or(true)
}
