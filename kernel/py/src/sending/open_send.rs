//! A send that waits for its answer.

use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyString, PyType};
use pyo3::{PyTraverseError, intern};

use crate::sending::batch::SendBatch;
use crate::sending::sender::Sender;

static OPEN_SEND: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// A send that waits for its answer.
pub struct Send {
    pub sender: Py<Sender>,
    pub kind: Kind,
    /// Where it goes.
    pub queue: Py<PyAny>,
    pub queue_id: i64,
    /// The caller chose the queue.
    pub is_given: bool,
    pub asked_at: f64,
    pub timeout_ms: i64,
}

/// Who waits for it.
pub enum Kind {
    /// A caller.
    Awaited(Py<PyAny>, Py<PyString>),
    /// Nobody yet, so the message is kept for further tries.
    Submitted(Py<PyAny>, Py<PyString>, Py<PyAny>),
    /// Those of a batch.
    Batch(Py<SendBatch>),
}

impl Send {
    /// How many messages it has.
    pub fn messages(&self) -> usize {
        if let Kind::Batch(batch) = &self.kind { batch.get().count() } else { 1 }
    }

    /// It is on its way no more.
    pub fn leave(&self) {
        self.sender.get().count(-(self.messages() as i64));
    }

    pub fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.sender)?;
        visit.call(&self.queue)?;
        match &self.kind {
            Kind::Awaited(future, _) => visit.call(future),
            Kind::Submitted(future, _, message) => {
                visit.call(future)?;
                visit.call(message)
            }
            Kind::Batch(batch) => visit.call(batch),
        }
    }
}

/// A send that is open no more, as Python's `OpenSend`.
pub fn open_send<'py>(py: Python<'py>, send: &Send, deadline: f64) -> PyResult<Bound<'py, PyAny>> {
    let class = OPEN_SEND.import(py, "kerolox.codec.sending", "OpenSend")?;
    let go_on = send.sender.get().go_on.bind(py);
    let none = || py.None().into_bound(py);
    let queue = send.queue.bind(py);
    let (future, go_on, message, batch, id) = match &send.kind {
        Kind::Awaited(future, id) => {
            let id = id.bind(py).clone().into_any();
            (future.bind(py).clone(), none(), none(), none(), id)
        }
        Kind::Submitted(future, id, message) => {
            let id = id.bind(py).clone().into_any();
            let message = message.bind(py).clone();
            (future.bind(py).clone(), go_on.clone(), message, none(), id)
        }
        Kind::Batch(batch) => {
            let ids = batch.get().message_ids(py)?;
            let id = intern!(py, ",").call_method1(intern!(py, "join"), (ids,))?;
            (none(), go_on.clone(), none(), batch.bind(py).clone().into_any(), id)
        }
    };
    class.call1((
        future,
        go_on,
        message,
        batch,
        id,
        queue,
        send.is_given,
        send.asked_at,
        deadline,
        send.timeout_ms,
    ))
}
