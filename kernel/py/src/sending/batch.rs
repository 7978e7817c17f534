//! `SendBatch` of the Python interface.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use kerolox_core::client::send::push_item;
use parking_lot::Mutex;
use pyo3::PyTraverseError;
use pyo3::gc::PyVisit;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::sending::counters::Id;
use crate::sending::futures::Futures;
use crate::sending::results::{Stored, is_done, set_result};
use crate::sending::sender::Sender;

/// A buffer of property texts above this is given back.
const KEPT_BYTES_MAX: usize = 1 << 20;

thread_local! {
    /// The property text of one call; kept so that no call allocates it.
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A message of a batch.
struct Item {
    future: Py<PyAny>,
    id: Id,
    /// Where it ends in the body.
    end: usize,
}

#[derive(Default)]
struct Items {
    body: Vec<u8>,
    all: Vec<Item>,
}

/// Messages that wait for each other.
#[pyclass(module = "kerolox_kernel", frozen)]
pub struct SendBatch {
    sender: Py<Sender>,
    make_future: Futures,
    wait: bool,
    is_given: bool,
    bytes_max: usize,
    count_max: usize,
    owner: Py<PyAny>,
    items: Mutex<Items>,
    is_refused: AtomicBool,
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
    pub fn wait(&self) -> bool {
        self.wait
    }

    /// The last message found no capacity.
    #[getter]
    fn refused(&self) -> bool {
        self.is_refused.load(Ordering::Relaxed)
    }

    /// Their ids.
    #[getter]
    pub fn message_ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let ids: Vec<_> =
            self.items.lock().all.iter().map(|it| PyString::new(py, it.id.as_str())).collect();
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
        PyBytes::new(py, &self.items.lock().body)
    }

    fn __len__(&self) -> usize {
        self.count()
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
        let gone: Vec<bool> =
            self.futures_of(py).into_iter().map(|future| is_done(&future)).collect();
        let mut left = Vec::new();
        if gone.contains(&true) {
            let mut items = self.items.lock();
            let (body, all) = (std::mem::take(&mut items.body), std::mem::take(&mut items.all));
            let mut start = 0;
            for (item, is_gone) in all.into_iter().zip(gone) {
                let message = &body[start..item.end];
                start = item.end;
                if is_gone {
                    left.push(item);
                } else {
                    items.body.extend_from_slice(message);
                    let end = items.body.len();
                    items.all.push(Item { end, ..item });
                }
            }
        }
        drop(left); // their futures, after the lock
        self.count()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(items) = self.items.try_lock() {
            for item in &items.all {
                visit.call(&item.future)?;
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
        (sender, make_future): (Py<Sender>, Futures),
        (wait, is_given): (bool, bool),
        bytes_max: usize,
        count_max: usize,
        owner: Py<PyAny>,
    ) -> Self {
        let (items, is_refused) = (Mutex::default(), AtomicBool::new(false));
        Self { sender, make_future, wait, is_given, bytes_max, count_max, owner, items, is_refused }
    }

    /// The callers chose the queue.
    pub fn is_given(&self) -> bool {
        self.is_given
    }

    /// Gives its body to `take`.
    pub fn with_body<R>(&self, take: impl FnOnce(&[u8]) -> R) -> R {
        take(&self.items.lock().body)
    }

    /// How many messages it has.
    pub fn count(&self) -> usize {
        self.items.lock().all.len()
    }

    /// Their futures.
    pub fn futures_of<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyAny>> {
        self.items.lock().all.iter().map(|item| item.future.bind(py).clone()).collect()
    }

    /// Takes in a message; one with another WAIT is declined, or has that of the batch.
    pub fn join<'py>(
        slf: &Bound<'py, Self>,
        message: &Bound<'py, PyAny>,
        is_wait_its_own: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, batch) = (slf.py(), slf.get());
        let sender = batch.sender.get();
        batch.is_refused.store(false, Ordering::Relaxed);
        let Some(mut parts) = sender.parts_of(message) else { return Ok(None) };
        let Ok(flag) = i32::try_from(parts.flag) else { return Ok(None) };
        if is_wait_its_own && parts.wait != batch.wait {
            return Ok(None);
        }
        parts.wait = batch.wait;
        let now_ms = sender.now_ms(py, Instant::now())?;
        let id = sender.ids.get().next(py, now_ms)?;
        let future = batch.make_future.make(py)?;
        let mut text = TEXT.take();
        text.clear();
        let is_text = parts.push_properties(&mut text, &id).is_some();
        let is_full = is_text
            .then(|| batch.push(flag, parts.body.as_bytes(), &text, future.clone().unbind(), id));
        if text.capacity() <= KEPT_BYTES_MAX {
            TEXT.set(text);
        }
        match is_full {
            Some(Ok(is_full)) => {
                if is_full {
                    batch.owner.bind(py).call_method1(intern!(py, "full"), (slf,))?;
                }
                Ok(Some(future))
            }
            Some(Err(_)) | None => Ok(None),
        }
    }

    /// Appends a message: whether it fills the batch. The future comes back when there is no
    /// capacity.
    fn push(
        &self,
        flag: i32,
        body: &[u8],
        text: &[u8],
        future: Py<PyAny>,
        id: Id,
    ) -> Result<bool, Py<PyAny>> {
        let mut items = self.items.lock();
        let (start, count) = (items.body.len(), items.all.len());
        push_item(&mut items.body, flag, body, text);
        let end = items.body.len();
        if count > 0 && (end > self.bytes_max || count >= self.count_max) {
            items.body.truncate(start);
            self.is_refused.store(true, Ordering::Relaxed);
            return Err(future);
        }
        items.all.push(Item { future, id, end });
        Ok(end >= self.bytes_max || count + 1 >= self.count_max)
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
        let items: Vec<_> = {
            let items = self.items.lock();
            let each = items.all.iter().map(|item| (item.future.bind(py).clone(), item.id));
            each.collect()
        };
        let mut failed = Ok(());
        for ((future, id), (offset, offset_id)) in
            items.into_iter().zip((first..).zip(offset_ids.split(',')))
        {
            let id = PyString::new(py, id.as_str());
            let offset_id = PyString::new(py, offset_id);
            let result = stored.result(sender, id, offset_id, offset)?;
            failed = failed.and(set_result(&future, &result));
        }
        failed
    }
}
