//! `SendChannel` of the Python interface.

use std::time::Instant;

use kerolox_core::client::channel::{Channel, Open};
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
use crate::sending::open_send::{Kind, Send, open_send};
use crate::sending::results::{Stored, is_done, set_result};
use crate::sending::sender::{CLOCK_MAX, Sender};

/// What `feed` returns: frames that say anything else, and why the stream ended.
type Fed<'py> = (Bound<'py, PyList>, Option<String>);

/// A send that is stored.
struct Settled<'py> {
    send: Send,
    queue_id: i32,
    queue_offset: i64,
    message_id: Bound<'py, PyString>,
    region: Bound<'py, PyString>,
    is_traced: bool,
}

/// What changes.
struct State {
    channel: Channel<Send>,
    /// The loop's time, as it was read last, and when.
    said: Option<(Instant, f64)>,
    /// The region of the last answer, which is mostly that of the next one.
    region: Option<(String, Py<PyString>)>,
}

impl State {
    fn time_at(&self, at: Instant) -> Option<f64> {
        let (said_at, time) = self.said?;
        (at.duration_since(said_at) < CLOCK_MAX).then_some(time)
    }
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
    is_prompt: bool,
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
        let channel = Channel::new(calls_max, buffer_bytes_max);
        let state = Mutex::new(State { channel, said: None, region: None });
        let is_prompt = prompt;
        Self { state, opaques, calls, queue, time, schedule_flush, flush, arm, admit, is_prompt }
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
    pub fn buffered_bytes(&self) -> usize {
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
        let calls = self.other_calls(py);
        let (has_capacity, is_full) = {
            let state = self.state.lock();
            (state.channel.has_capacity(calls), state.channel.is_buffer_full())
        };
        if has_capacity && is_full {
            self.flush.bind(py).call0()?;
            return Ok(self.state.lock().channel.has_capacity(calls));
        }
        Ok(has_capacity)
    }

    /// An opaque that no request has which is open.
    pub fn new_opaque(&self, py: Python<'_>) -> PyResult<i32> {
        loop {
            let opaque = self.unused_opaque(&self.state.lock().channel);
            if !self.is_elsewhere(py, opaque)? {
                return Ok(opaque);
            }
        }
    }

    /// Buffer a frame of another kind.
    fn write(&self, py: Python<'_>, frame: &Bound<'_, PyBytes>) -> PyResult<()> {
        self.push(py, |buffered| {
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
            let State { channel, said, region } = &mut *self.state.lock();
            *said = None; // what is asked from now on is asked later than this came
            channel.feed(
                data,
                fits,
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
        taken(py, &open)?.call_method1(intern!(py, "end"), (response,))?;
        Ok(true)
    }

    /// Forget a send whose caller went away; False: it is not here.
    pub fn withdraw(&self, py: Python<'_>, opaque: i32) -> PyResult<bool> {
        let found = self.state.lock().channel.remove(opaque);
        let Some(open) = found else { return Ok(false) };
        open.send.leave();
        if !self.queue.bind(py).is_empty() {
            self.admit.bind(py).call0()?;
        }
        Ok(true)
    }

    /// Take out the sends whose time is over; with the earliest deadline of the others.
    fn expire<'py>(&self, py: Python<'py>, now: f64) -> PyResult<(Bound<'py, PyList>, f64)> {
        let (overdue, earliest) = {
            let mut state = self.state.lock();
            (state.channel.expire(now), state.channel.earliest())
        };
        Ok((all_taken(py, &overdue)?, earliest))
    }

    /// Take out all sends.
    fn take_open<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let open = self.state.lock().channel.take_open();
        all_taken(py, &open)
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
        for send in state.channel.sends() {
            if sender.is_none_or(|sender| send.sender.is(sender)) {
                match &send.kind {
                    Kind::Awaited(future, _) | Kind::Submitted(future, ..) => {
                        found.push(future.bind(py).clone());
                    }
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
                send.visit(&visit)?;
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
    /// One that no send has which is open.
    fn unused_opaque(&self, channel: &Channel<Send>) -> i32 {
        loop {
            let opaque = self.opaques.get().allocate();
            if !channel.has(opaque) {
                return opaque;
            }
        }
    }

    /// A request has it that is no send, or that waits for capacity.
    fn is_elsewhere(&self, py: Python<'_>, opaque: i32) -> PyResult<bool> {
        for table in self.calls.iter().chain([&self.queue]) {
            let table = table.bind(py);
            if !table.is_empty() && table.contains(opaque)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// How many requests are open that are no sends.
    fn other_calls(&self, py: Python<'_>) -> usize {
        self.calls.iter().map(|table| table.bind(py).len()).sum()
    }

    /// Buffers a frame: how many are buffered now; 0: none could be made.
    pub fn push(
        &self,
        py: Python<'_>,
        push: impl FnOnce(&mut Vec<u8>) -> Option<()>,
    ) -> PyResult<usize> {
        let (gathered, count) = {
            let channel = &mut self.state.lock().channel;
            (channel.buffer_frame(push), channel.buffered_frames())
        };
        let Some(is_first) = gathered else { return Ok(0) };
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
        at: Instant,
        check: &Py<PyAny>,
    ) -> PyResult<Option<(i32, f64)>> {
        if !self.queue.bind(py).is_empty() {
            return Ok(None);
        }
        let calls = self.other_calls(py);
        let (opaque, time) = {
            let state = self.state.lock();
            let channel = &state.channel;
            let is_simple = channel.has_capacity(calls)
                && channel.buffered_bytes() > 0
                && !channel.is_buffer_full();
            (is_simple.then(|| self.unused_opaque(channel)), state.time_at(at))
        };
        let opaque = match opaque {
            Some(opaque) if !self.is_elsewhere(py, opaque)? => opaque,
            Some(_) => self.new_opaque(py)?,
            None => {
                if !self.takes_more(py)? {
                    return Ok(None);
                }
                if self.buffered_bytes() == 0 {
                    check.bind(py).call0()?;
                }
                self.new_opaque(py)?
            }
        };
        let time = time.map_or_else(|| self.read_time(py, at), Ok)?;
        Ok(Some((opaque, time)))
    }

    /// The loop's time, about `at`.
    pub fn time(&self, py: Python<'_>, at: Instant) -> PyResult<f64> {
        let time = self.state.lock().time_at(at);
        time.map_or_else(|| self.read_time(py, at), Ok)
    }

    fn read_time(&self, py: Python<'_>, at: Instant) -> PyResult<f64> {
        let time = self.time.bind(py).call0()?.extract()?;
        self.state.lock().said = Some((at, time));
        Ok(time)
    }

    /// Buffers the frame of a send, whose opaque is new; it waits for its answer from now on.
    /// False: `push` declined.
    pub fn post(
        &self,
        py: Python<'_>,
        opaque: i32,
        deadline: f64,
        send: Send,
        push: impl FnOnce(&mut Vec<u8>) -> Option<()>,
    ) -> PyResult<bool> {
        send.sender.get().count(send.messages() as i64);
        let posted = {
            let channel = &mut self.state.lock().channel;
            let is_alone = self.is_prompt && channel.is_alone();
            match channel.buffer_frame(push) {
                Some(is_first) => Ok((is_alone, is_first, channel.enter(opaque, deadline, send))),
                None => Err(send),
            }
        };
        let (is_alone, is_first, is_earliest) = match posted {
            Ok(posted) => posted,
            Err(send) => {
                send.leave();
                return Ok(false);
            }
        };
        if is_first && !is_alone {
            self.schedule_flush.bind(py).call0()?;
        }
        if is_earliest {
            self.arm.bind(py).call1((deadline,))?;
        }
        if is_alone {
            self.flush.bind(py).call0()?;
        }
        Ok(true)
    }
}

impl<'py> Settled<'py> {
    fn of(
        py: Python<'py>,
        send: Send,
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

/// The answer to a batch names as many messages as it has.
fn fits(send: &Send, answer: &Sent<'_>) -> bool {
    match &send.kind {
        Kind::Batch(batch) => answer.message_id.split(',').count() == batch.get().count(),
        _ => true,
    }
}

fn settle(py: Python<'_>, settled: Settled<'_>) -> PyResult<()> {
    let Settled { send, queue_id, queue_offset, message_id, region, is_traced } = settled;
    send.leave();
    let mut queue = send.queue.bind(py).clone();
    if i64::from(queue_id) != send.queue_id {
        let (topic, broker) = (queue.get_item(0)?, queue.get_item(1)?);
        queue = queue.get_type().call1((topic, broker, queue_id))?;
    }
    let stored = Stored { queue, region, is_traced };
    let sender = send.sender.get();
    match &send.kind {
        Kind::Awaited(future, id) | Kind::Submitted(future, id, _) => {
            let id = id.bind(py).clone();
            let result = stored.result(sender, id, message_id, queue_offset)?;
            set_result(future.bind(py), &result)
        }
        Kind::Batch(batch) => {
            batch.get().settle(py, sender, &stored, message_id.to_str()?, queue_offset)
        }
    }
}

fn taken<'py>(py: Python<'py>, open: &Open<Send>) -> PyResult<Bound<'py, PyAny>> {
    open.send.leave();
    open_send(py, &open.send, open.deadline)
}

fn all_taken<'py>(py: Python<'py>, all: &[Open<Send>]) -> PyResult<Bound<'py, PyList>> {
    let taken: Vec<_> = all.iter().map(|open| taken(py, open)).collect::<PyResult<_>>()?;
    PyList::new(py, taken)
}
