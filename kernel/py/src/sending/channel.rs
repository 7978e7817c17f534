//! `SendChannel` of the Python interface.

use kerolox_core::client::channel::{Capacity, Channel, Posted};
use kerolox_core::client::clock::Moment;
use kerolox_core::client::open_send::OpenSend;
use kerolox_core::client::sent::Sent;
use kerolox_core::protocol::DEFAULT_REGION;
use parking_lot::Mutex;
use pyo3::PyTraverseError;
use pyo3::gc::PyVisit;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::buffer::with_bytes;
use crate::sending::counters::Opaques;
use crate::sending::open_send::{Kind, Waiter, taken};
use crate::sending::results::{Stored, is_done, set_result};
use crate::sending::sender::Sender;

/// What `feed` returns: frames that say anything else, and why the stream ended.
type Fed<'py> = (Bound<'py, PyList>, Option<String>);

/// A send that is stored.
struct Settled<'py> {
    send: OpenSend<Waiter>,
    queue_id: i32,
    queue_offset: i64,
    message_id: Bound<'py, PyString>,
    region: Bound<'py, PyString>,
    is_traced: bool,
}

/// What changes.
struct State {
    channel: Channel<Waiter>,
    /// The region of the last answer, which is mostly that of the next one.
    region: Option<(String, Py<PyString>)>,
}

/// The fast-path sends of one connection.
#[pyclass(module = "kerolox_kernel", frozen)]
pub struct SendChannel {
    state: Mutex<State>,
    opaques: Py<Opaques>,
    calls: Vec<Py<PyDict>>,
    queue: Py<PyDict>,
    time: Py<PyAny>,
    schedule_flush: Py<PyAny>,
    flush: Py<PyAny>,
    arm: Py<PyAny>,
    admit: Py<PyAny>,
}

#[pymethods]
impl SendChannel {
    #[new]
    #[allow(clippy::too_many_arguments)] // as in Python
    #[pyo3(signature = (
        opaques, calls, queue, calls_max, buffer_bytes_max, time, schedule_flush, flush, arm, admit,
        prompt = false
    ))]
    fn new(
        opaques: Py<Opaques>,
        calls: Vec<Py<PyDict>>,
        queue: Py<PyDict>,
        calls_max: usize,
        buffer_bytes_max: usize,
        time: Py<PyAny>,
        schedule_flush: Py<PyAny>,
        flush: Py<PyAny>,
        arm: Py<PyAny>,
        admit: Py<PyAny>,
        prompt: bool,
    ) -> Self {
        let channel = Channel::new(calls_max, buffer_bytes_max, prompt);
        let state = Mutex::new(State { channel, region: None });
        Self { state, opaques, calls, queue, time, schedule_flush, flush, arm, admit }
    }

    #[getter]
    fn closed(&self) -> bool {
        self.state.lock().channel.is_closed
    }

    #[setter]
    fn set_closed(&self, value: bool) {
        self.state.lock().channel.is_closed = value;
    }

    #[getter]
    fn blocked(&self) -> bool {
        self.state.lock().channel.is_blocked
    }

    #[setter]
    fn set_blocked(&self, value: bool) {
        self.state.lock().channel.is_blocked = value;
    }

    #[getter]
    fn calls_max(&self) -> usize {
        self.state.lock().channel.calls_max
    }

    #[setter]
    fn set_calls_max(&self, value: usize) {
        self.state.lock().channel.calls_max = value;
    }

    #[getter]
    fn armed_at(&self) -> f64 {
        self.state.lock().channel.armed_at
    }

    #[setter]
    fn set_armed_at(&self, value: f64) {
        self.state.lock().channel.armed_at = value;
    }

    fn __len__(&self) -> usize {
        self.state.lock().channel.len()
    }

    fn __contains__(&self, opaque: i32) -> bool {
        self.state.lock().channel.has(opaque)
    }

    /// What is buffered in this iteration.
    #[getter]
    fn buffered_bytes(&self) -> usize {
        self.state.lock().channel.buffered_bytes()
    }

    /// How many frames that are.
    #[getter]
    fn buffered_frames(&self) -> usize {
        self.state.lock().channel.buffered_frames()
    }

    /// A request may be written at once.
    pub fn has_capacity(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.queue.bind(py).is_empty() && self.takes_more(py)?)
    }

    /// Nothing but those that wait already stands before a further request.
    fn takes_more(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.capacity(py)? != Capacity::None)
    }

    /// An opaque that no request has which is open.
    pub fn new_opaque(&self, py: Python<'_>) -> i32 {
        self.unused_opaque(py, &self.state.lock().channel)
    }

    /// Buffer a frame of another kind.
    fn write(&self, py: Python<'_>, frame: &Bound<'_, PyBytes>) -> PyResult<()> {
        self.push(py, |buffered, _| {
            buffered.extend_from_slice(frame.as_bytes());
            Some(())
        })?;
        Ok(())
    }

    /// What was buffered; the next iteration begins.
    fn take<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.state.lock().channel.take(|buffered| PyBytes::new(py, buffered))
    }

    /// Take `data[:size]`.
    fn feed<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        size: usize,
    ) -> PyResult<Fed<'py>> {
        let (mut settled, mut others) = (Vec::new(), Vec::new());
        let fed = with_bytes(data, Some(size), |data| {
            let State { channel, region } = &mut *self.state.lock();
            channel.feed(
                data,
                |send, answer| settled.push(Settled::of(py, send, answer, region)),
                |frame| others.push(PyBytes::new(py, frame)),
            )
        })?;
        let mut failed = Ok(());
        for each in settled {
            let done = settle(py, each);
            failed = failed.and(done);
        }
        failed?;
        Ok((PyList::new(py, others)?, fed.err().map(|error| error.to_string())))
    }

    /// The answer to a send says anything else; False: no such send is open.
    fn complete(&self, py: Python<'_>, opaque: i32, response: &Bound<'_, PyAny>) -> PyResult<bool> {
        let found = self.state.lock().channel.remove(opaque);
        let Some(open) = found else { return Ok(false) };
        taken(py, open)?.call_method1(intern!(py, "end"), (response,))?;
        Ok(true)
    }

    /// Forget a send whose caller went away; False: it is not here.
    pub fn withdraw(&self, py: Python<'_>, opaque: i32) -> PyResult<bool> {
        let found = self.state.lock().channel.remove(opaque);
        let Some(open) = found else { return Ok(false) };
        drop(open);
        if !self.queue.bind(py).is_empty() {
            self.admit.bind(py).call0()?;
        }
        Ok(true)
    }

    /// Take out the sends whose time is over; with the earliest deadline of the others.
    fn expire<'py>(&self, py: Python<'py>, now: f64) -> PyResult<(Bound<'py, PyList>, f64)> {
        let (overdue, earliest) = self.state.lock().channel.expire(now);
        Ok((all_taken(py, overdue)?, earliest))
    }

    /// Take out all sends.
    fn take_open<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let open = self.state.lock().channel.take_open();
        all_taken(py, open)
    }

    /// The futures of the open sends that nobody has cancelled.
    #[pyo3(signature = (sender = None))]
    fn futures<'py>(
        &self,
        py: Python<'py>,
        sender: Option<&Bound<'py, Sender>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (mut found, mut batches) = (Vec::new(), Vec::new());
        let state = self.state.lock();
        for OpenSend { waiter, .. } in state.channel.sends() {
            if sender.is_none_or(|sender| waiter.sender.is(sender)) {
                match &waiter.kind {
                    Kind::Single { future, .. } => found.push(future.bind(py).clone()),
                    Kind::Batch(batch) => batches.push(batch.clone_ref(py)),
                }
            }
        }
        drop(state);
        for batch in batches {
            found.extend(batch.get().futures_of(py));
        }
        found.retain(|future| !is_done(future));
        PyList::new(py, found)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some(state) = self.state.try_lock() {
            for send in state.channel.sends() {
                send.waiter.visit(&visit)?;
            }
        }
        for object in [&self.time, &self.schedule_flush, &self.flush, &self.arm, &self.admit] {
            visit.call(object)?;
        }
        visit.call(&self.opaques)?;
        for table in &self.calls {
            visit.call(table)?;
        }
        visit.call(&self.queue)
    }

    fn __clear__(&self) {
        let open = self.state.lock().channel.take_open();
        drop(open);
    }
}

impl SendChannel {
    /// An opaque that no request has which is open.
    fn unused_opaque(&self, py: Python<'_>, channel: &Channel<Waiter>) -> i32 {
        let tables = || self.calls.iter().chain([&self.queue]).map(|table| table.bind(py));
        // The keys are numbers: to look one up runs nothing of Python, and never fails.
        let is_elsewhere = |opaque| {
            tables().any(|table| !table.is_empty() && table.contains(opaque).unwrap_or(false))
        };
        self.opaques.get().0.unused(|opaque| channel.has(opaque) || is_elsewhere(opaque))
    }

    /// What stands before a further request, but those that wait already: no full buffer, which is
    /// flushed.
    fn capacity(&self, py: Python<'_>) -> PyResult<Capacity> {
        let calls = self.calls.iter().map(|table| table.bind(py).len()).sum();
        let capacity = self.state.lock().channel.capacity(calls);
        if capacity != Capacity::Flush {
            return Ok(capacity);
        }
        self.flush.bind(py).call0()?;
        Ok(self.state.lock().channel.capacity(calls))
    }

    /// Buffers a frame that nothing waits for: how many are buffered now; 0: none could be made.
    pub fn push(
        &self,
        py: Python<'_>,
        push: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>) -> Option<()>,
    ) -> PyResult<usize> {
        let (is_first, count) = {
            let channel = &mut self.state.lock().channel;
            (channel.write(push), channel.buffered_frames())
        };
        let Some(is_first) = is_first else { return Ok(0) };
        if is_first {
            self.schedule_flush.bind(py).call0()?;
        }
        Ok(count)
    }

    /// What a send needs that begins now: an opaque, and the loop's time about `at`. None: there is
    /// no capacity. `check` is called before the first of an iteration.
    pub fn place(
        &self,
        py: Python<'_>,
        at: Moment,
        check: &Py<PyAny>,
    ) -> PyResult<Option<(i32, f64)>> {
        if !self.queue.bind(py).is_empty() {
            return Ok(None);
        }
        match self.capacity(py)? {
            Capacity::None => return Ok(None),
            Capacity::First => check.bind(py).call0().map(drop)?,
            Capacity::Free | Capacity::Flush => {}
        }
        let (opaque, time) = {
            let channel = &self.state.lock().channel;
            (self.unused_opaque(py, channel), channel.time.at(at))
        };
        let time = time.map_or_else(|| self.read_time(py, at), Ok)?;
        Ok(Some((opaque, time)))
    }

    /// The loop's time, about `at`.
    pub fn time(&self, py: Python<'_>, at: Moment) -> PyResult<f64> {
        let time = self.state.lock().channel.time.at(at);
        time.map_or_else(|| self.read_time(py, at), Ok)
    }

    fn read_time(&self, py: Python<'_>, at: Moment) -> PyResult<f64> {
        let time = self.time.bind(py).call0()?.extract()?;
        self.state.lock().channel.time.set(at, time);
        Ok(time)
    }

    /// Buffers the frame of a send, as the channel of the core: [`SendChannel::act`] after it.
    pub fn post(
        &self,
        opaque: i32,
        push: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>) -> Option<()>,
        make: impl FnOnce() -> OpenSend<Waiter>,
    ) -> Option<Posted> {
        self.state.lock().channel.post(opaque, push, make)
    }

    /// Does what has to be done when a send was buffered: whether it was.
    pub fn act(&self, py: Python<'_>, posted: Option<Posted>) -> PyResult<bool> {
        let Some(posted) = posted else { return Ok(false) };
        if posted.schedules_flush {
            self.schedule_flush.bind(py).call0()?;
        }
        if let Some(deadline) = posted.arms_at {
            self.arm.bind(py).call1((deadline,))?;
        }
        if posted.flushes {
            self.flush.bind(py).call0()?;
        }
        Ok(true)
    }
}

impl<'py> Settled<'py> {
    fn of(
        py: Python<'py>,
        send: OpenSend<Waiter>,
        answer: &Sent<'_>,
        last_region: &mut Option<(String, Py<PyString>)>,
    ) -> Self {
        // `str` objects are not tracked by the garbage collector.
        Self {
            send,
            queue_id: answer.queue_id,
            queue_offset: answer.queue_offset,
            message_id: PyString::new(py, answer.message_id),
            region: region_object(py, answer.region, last_region),
            is_traced: answer.is_traced,
        }
    }
}

/// The region that an answer names, as the object of the answer before where it is the same.
fn region_object<'py>(
    py: Python<'py>,
    region: &str,
    last: &mut Option<(String, Py<PyString>)>,
) -> Bound<'py, PyString> {
    let region = if region.is_empty() { DEFAULT_REGION } else { region };
    if let Some((text, object)) = last
        && text == region
    {
        return object.bind(py).clone();
    }
    let made = PyString::new(py, region);
    *last = Some((region.to_owned(), made.clone().unbind()));
    made
}

fn settle(py: Python<'_>, settled: Settled<'_>) -> PyResult<()> {
    let Settled { send, queue_id, queue_offset, message_id, region, is_traced } = settled;
    let OpenSend { waiter: Waiter { sender, kind, queue }, counted, queue_id: asked, .. } = send;
    drop(counted);
    let mut queue = queue.into_bound(py);
    if i64::from(queue_id) != asked {
        let (topic, broker) = (queue.get_item(0)?, queue.get_item(1)?);
        queue = queue.get_type().call1((topic, broker, queue_id))?;
    }
    let (stored, sender) = (Stored { queue, region, is_traced }, sender.get());
    match kind {
        Kind::Single { future, id, .. } => {
            let result = stored.result(sender, id.into_bound(py), message_id, queue_offset)?;
            set_result(future.bind(py), &result)
        }
        Kind::Batch(batch) => {
            batch.get().settle(py, sender, &stored, message_id.to_str()?, queue_offset)
        }
    }
}

fn all_taken(py: Python<'_>, all: Vec<OpenSend<Waiter>>) -> PyResult<Bound<'_, PyList>> {
    let taken: Vec<_> = all.into_iter().map(|open| taken(py, open)).collect::<PyResult<_>>()?;
    PyList::new(py, taken)
}
