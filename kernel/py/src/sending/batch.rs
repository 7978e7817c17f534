//! `SendBatch` of the Python interface.

use kerolox_core::client::batch::{Batch, Joined};
use kerolox_core::client::clock::Moment;
use parking_lot::Mutex;
use pyo3::PyTraverseError;
use pyo3::gc::PyVisit;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::sending::futures::Futures;
use crate::sending::results::{Stored, is_done, set_result};
use crate::sending::sender::Sender;

/// Messages that wait for each other.
#[pyclass(module = "kerolox_kernel", frozen)]
pub struct SendBatch {
    sender: Py<Sender>,
    make_future: Futures,
    owner: Py<PyAny>,
    /// Futures wait for the results.
    pub batch: Mutex<Batch<Py<PyAny>>>,
}

#[pymethods]
impl SendBatch {
    /// Whoever sends it.
    #[getter]
    fn owner<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.owner.bind(py).clone()
    }

    /// Their WAIT.
    #[getter]
    fn wait(&self) -> bool {
        self.batch.lock().is_waiting
    }

    /// The last message found no capacity.
    #[getter]
    fn refused(&self) -> bool {
        self.batch.lock().is_refused()
    }

    /// Their ids.
    #[getter]
    pub fn message_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let batch = self.batch.lock();
        let ids: Vec<_> = batch.messages().map(|(_, id)| PyString::new(py, id.as_str())).collect();
        drop(batch);
        PyList::new(py, ids)
    }

    /// Their futures.
    #[getter]
    fn futures<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.futures_of(py))
    }

    /// The messages as they lie in the request.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.batch.lock().body())
    }

    fn __len__(&self) -> usize {
        self.batch.lock().len()
    }

    /// Take in a message with the same WAIT.
    fn add<'py>(
        slf: &Bound<'py, Self>,
        message: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Self::join(slf, message, false)
    }

    /// Leave out messages whose callers went away; how many are left.
    fn seal(&self, py: Python<'_>) -> usize {
        let gone: Vec<_> = self.futures_of(py).iter().map(is_done).collect();
        let left = self.batch.lock().leave_out(&gone);
        drop(left); // after the lock
        self.batch.lock().len()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(batch) = self.batch.try_lock() {
            for (future, _) in batch.messages() {
                visit.call(future)?;
            }
        }
        visit.call(&self.owner)?;
        self.make_future.visit(&visit)?;
        visit.call(&self.sender)
    }
}

impl SendBatch {
    /// Nobody waits.
    pub fn new(
        sender: Py<Sender>,
        make_future: Futures,
        batch: Batch<Py<PyAny>>,
        owner: Py<PyAny>,
    ) -> Self {
        Self { sender, make_future, owner, batch: Mutex::new(batch) }
    }

    /// Their futures.
    pub fn futures_of<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyAny>> {
        self.batch.lock().messages().map(|(future, _)| future.bind(py).clone()).collect()
    }

    /// Takes in a message; one with another WAIT is declined, or has that of the batch.
    pub fn join<'py>(
        slf: &Bound<'py, Self>,
        message: &Bound<'py, PyAny>,
        is_wait_its_own: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, this) = (slf.py(), slf.get());
        let is_waiting = {
            let mut batch = this.batch.lock();
            batch.begin();
            batch.is_waiting
        };
        let sender = this.sender.get();
        let Some(parts) = sender.parts_of(message) else { return Ok(None) };
        let Some(mut outgoing) = parts.outgoing() else { return Ok(None) };
        if is_wait_its_own && outgoing.is_waiting != is_waiting {
            return Ok(None);
        }
        outgoing.is_waiting = is_waiting;
        let (_, id) = sender.stamp(py, Moment::now())?;
        let future = this.make_future.make(py)?;
        let joined = this.batch.lock().join(&outgoing, &id, future.clone().unbind());
        if joined == Joined::Full {
            this.owner.bind(py).call_method1(intern!(py, "full"), (slf,))?;
        }
        Ok(matches!(joined, Joined::Waiting | Joined::Full).then_some(future))
    }

    /// The messages are stored: each has the next offset, and the broker's next id.
    pub fn settle(
        &self,
        py: Python<'_>,
        sender: &Sender,
        stored: &Stored<'_>,
        offset_ids: &str,
        first: i64,
    ) -> PyResult<()> {
        let messages: Vec<_> = {
            let batch = self.batch.lock();
            batch.messages().map(|(future, id)| (future.bind(py).clone(), *id)).collect()
        };
        let mut failed = Ok(());
        for ((future, id), (offset, offset_id)) in
            messages.into_iter().zip((first..).zip(offset_ids.split(',')))
        {
            let id = PyString::new(py, id.as_str());
            let offset_id = PyString::new(py, offset_id);
            let result = stored.result(sender, id, offset_id, offset)?;
            failed = failed.and(set_result(&future, &result));
        }
        failed
    }
}
