//! A send that waits for its answer.

use kerolox_core::client::open_send::{OpenSend, Terms};
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};
use pyo3::{PyTraverseError, intern};

use crate::sending::batch::SendBatch;
use crate::sending::sender::Sender;

static OPEN_SEND: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Who waits for a send, and what for.
pub struct Waiter {
    pub sender: Py<Sender>,
    pub kind: Kind,
    /// Where it goes.
    pub queue: Py<PyAny>,
}

/// Who waits for it.
pub enum Kind {
    /// A future of the result of the message that has an id. The message is kept for further tries
    /// where nobody waits for the future yet.
    Single { future: Py<PyAny>, id: Py<PyString>, kept: Option<Py<PyAny>> },
    /// Those of a batch.
    Batch(Py<SendBatch>),
}

impl Waiter {
    pub fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.sender)?;
        visit.call(&self.queue)?;
        match &self.kind {
            Kind::Single { future, kept, .. } => {
                visit.call(future)?;
                visit.call(kept.as_ref())
            }
            Kind::Batch(batch) => visit.call(batch),
        }
    }
}

/// A send that is open no more, as Python's `OpenSend`.
pub fn taken(py: Python<'_>, open: OpenSend<Waiter>) -> PyResult<Bound<'_, PyAny>> {
    let OpenSend { waiter, counted, terms, .. } = open;
    drop(counted);
    let class = OPEN_SEND.import(py, "kerolox.codec.sending", "OpenSend")?;
    let go_on = waiter.sender.get().go_on.clone_ref(py);
    let (future, go_on, message, batch, id) = match waiter.kind {
        Kind::Single { future, id, kept } => {
            (Some(future), kept.is_some().then_some(go_on), kept, None, id.into_any())
        }
        Kind::Batch(batch) => {
            let ids = batch.get().message_ids(py)?;
            let id = intern!(py, ",").call_method1(intern!(py, "join"), (ids,))?;
            (None, Some(go_on), None, Some(batch), id.unbind())
        }
    };
    let Terms { is_given, asked_at, deadline, timeout_ms } = terms;
    let queue = waiter.queue;
    class
        .call1((future, go_on, message, batch, id, queue, is_given, asked_at, deadline, timeout_ms))
}
