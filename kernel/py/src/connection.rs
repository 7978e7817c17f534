//! `Connection` of the Python interface.

use std::cell::RefCell;
use std::sync::Arc;

use kerolox_core::fast_path::{self, FastPath, Tried};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::buffer::with_bytes;
use crate::http2::{Http2ServerSide, events_to_python, to_python};
use crate::records::checked_host;
use crate::store::Store;

/// `Fed` flags.
const FED_READY: u8 = 1;
const FED_MORE: u8 = 2;
const FED_WAITS: u8 = 4;
const FED_FOREIGN: u8 = 8;

/// The answer buffer is given back when one call left it larger than this.
const KEPT_BYTES_MAX: usize = 8 << 20;

thread_local! {
    /// Answers of one call, copied once into `bytes`; kept so that no call allocates it.
    static ANSWERS: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What `feed` returns: the fields of `Fed`.
type Fed<'py> = (Bound<'py, PyBytes>, Option<Bound<'py, PyList>>, u8, Option<String>);

/// The flags of `Fed`.
fn flags_of(fed: &fast_path::Fed) -> u8 {
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    flag(fed.ready, FED_READY)
        | flag(fed.more, FED_MORE)
        | flag(fed.waits, FED_WAITS)
        | flag(fed.is_foreign(), FED_FOREIGN)
}

/// The fast path of one connection.
#[pyclass(module = "kerolox_kernel")]
pub struct Connection {
    fast: Arc<FastPath>,
    connection: fast_path::Connection,
}

#[pymethods]
impl Connection {
    /// `connection_id` is chosen by the caller and unique; `born_host` is the peer's address and
    /// port as records store it.
    #[new]
    fn new(store: &Store, connection_id: u64, born_host: &[u8]) -> PyResult<Self> {
        let connection = fast_path::Connection::new(connection_id, checked_host(born_host)?);
        Ok(Self { fast: Arc::clone(store.fast()), connection })
    }

    /// Take `data[:size]`, all complete frames of it and of what was left before.
    fn feed<'py>(
        &mut self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        size: usize,
    ) -> PyResult<Fed<'py>> {
        let mut answers = ANSWERS.take();
        answers.clear();
        // Only `bytes` objects are made while the engine's locks are held: they are not tracked by
        // the garbage collector, so no other Python code can run there.
        let mut slow = Vec::new();
        let mut take_slow = |frame: &[u8]| slow.push(PyBytes::new(py, frame));
        let Self { fast, connection } = self;
        let fed = with_bytes(data, Some(size), |data| {
            connection.feed(fast, data, &mut answers, &mut take_slow)
        })?;
        let frames = PyBytes::new(py, &answers);
        if answers.capacity() <= KEPT_BYTES_MAX {
            ANSWERS.set(answers);
        }
        let slow = if slow.is_empty() { None } else { Some(PyList::new(py, slow)?) };
        Ok((frames, slow, flags_of(&fed), fed.error.map(|error| error.to_string())))
    }

    /// Take a chunk of HTTP/2: the calls that are answered here, and events of the others.
    fn feed_calls<'py>(
        &mut self,
        py: Python<'py>,
        http2: &Bound<'py, Http2ServerSide>,
        data: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyList>, u8)> {
        let mut events = Vec::new();
        let mut http2 = http2.try_borrow_mut()?;
        let Self { fast, connection } = self;
        let fed = with_bytes(data, None, |data| {
            connection.feed_calls(fast, &mut http2.0, data, &mut events)
        })?;
        let fed = fed.map_err(|error| to_python(py, error))?;
        Ok((events_to_python(py, events)?, flags_of(&fed)))
    }

    /// Answer calls by what became ready later.
    fn answer_calls(&mut self, http2: &Bound<'_, Http2ServerSide>, answers: &[u8]) -> PyResult<()> {
        let Self { fast, connection } = self;
        connection.answer_calls(fast, &mut http2.try_borrow_mut()?.0, answers);
        Ok(())
    }

    /// Try to answer a receive that waits: 1: it is answered, 0: there is nothing, -1: it is for the
    /// caller.
    fn try_receive(
        &mut self,
        http2: &Bound<'_, Http2ServerSide>,
        stream_id: u32,
        client_id: &str,
        request: &[u8],
    ) -> PyResult<i8> {
        let Self { fast, connection } = self;
        let mut http2 = http2.try_borrow_mut()?;
        let call = (stream_id, client_id);
        Ok(match connection.try_receive(fast, &mut http2.0, call, request) {
            Tried::Found => 1,
            Tried::Nothing => 0,
            Tried::Declined => -1,
        })
    }

    /// What receives of these streams gave out: group, topic, queue, first offset, count, pop time and
    /// invisible time of each run.
    #[allow(clippy::needless_pass_by_value)] // made from Python's list for this call
    fn take_given<'py>(
        &mut self,
        py: Python<'py>,
        streams: Vec<u32>,
    ) -> PyResult<Bound<'py, PyList>> {
        let rows = PyList::empty(py);
        for given in self.connection.take_given(&streams) {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (group, topic) = (text(&given.group), text(&given.topic));
            for run in &given.runs {
                let times = (given.pop_time, given.invisible_ms);
                let (queue_id, start, count) = (run.queue_id, run.start, run.span);
                rows.append((&group, &topic, queue_id, start, count, times.0, times.1))?;
            }
        }
        Ok(rows)
    }

    /// Say which white lists have the peer's address: the global one, and those of these accounts.
    #[allow(clippy::needless_pass_by_value)] // made from Python's sequence for this call
    fn set_white(&mut self, is_white: bool, access_keys: Vec<String>) {
        let keys = access_keys.iter().map(String::as_bytes);
        self.connection.set_white(&self.fast, is_white, keys);
    }

    /// Bytes of frames that are not whole yet, or wait for their turn.
    #[getter]
    fn unfinished_bytes(&self) -> usize {
        self.connection.unfinished_bytes()
    }

    /// How many frames `feed` may still answer by itself.
    #[getter]
    fn allowance(&self) -> u64 {
        self.connection.allowance
    }

    #[setter]
    fn set_allowance(&mut self, count: u64) {
        self.connection.allowance = count;
    }

    /// Drop held pulls and pending answers of this connection. Idempotent.
    fn close(&mut self) {
        self.connection.close(&self.fast);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connection.close(&self.fast);
    }
}
