//! `TopicSender` of the Python interface.

use std::cell::RefCell;
use std::time::Instant;

use kerolox_core::client::send::{Numbers, SendHead, push_wait};
use parking_lot::Mutex;
use pyo3::PyTraverseError;
use pyo3::exceptions::PyIndexError;
use pyo3::gc::PyVisit;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::sending::batch::SendBatch;
use crate::sending::channel::SendChannel;
use crate::sending::futures::Futures;
use crate::sending::message::Parts;
use crate::sending::open_send::{Kind, Send};
use crate::sending::results::is_done;
use crate::sending::sender::Sender;

/// The opaque of a send that has none, since it is part of a batch (`NO_OPAQUE`).
const NO_OPAQUE: i64 = 1 << 40;

/// A send that has begun: the future of its result, and its opaque.
type Started<'py> = (Bound<'py, PyAny>, i64);

/// The buffer of property texts is given back when one message left it larger than this.
const KEPT_BYTES_MAX: usize = 1 << 20;

thread_local! {
    /// The property text of one call; kept so that no call allocates it.
    static TEXT: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A queue of the topic.
struct Queue {
    queue: Py<PyAny>,
    queue_id: i64,
}

/// The fast-path sends of one producer to one topic.
#[pyclass(module = "kerolox_kernel", frozen)]
pub struct TopicSender {
    sender: Py<Sender>,
    queues: Vec<Queue>,
    /// The fixed parts of requests that have batches.
    batch_head: SendHead,
    futures: Futures,
    chooser: Py<PyAny>,
    by_queue: Py<PyDict>,
    single: SendHead,
    oneway: SendHead,
    channels: Mutex<Vec<Option<Py<SendChannel>>>>,
    batch: Mutex<Option<Py<SendBatch>>>,
}

#[pymethods]
impl TopicSender {
    #[new]
    #[allow(clippy::too_many_arguments)] // as in Python
    fn new(
        py: Python<'_>,
        sender: Py<Sender>,
        make_future: Bound<'_, PyAny>,
        chooser: Py<PyAny>,
        queues: Vec<Bound<'_, PyAny>>,
        group: &str,
        topic: &str,
        create_topic_key: &str,
        default_topic_queue_nums: i64,
        unit_mode: bool,
    ) -> PyResult<Self> {
        let heads = [(false, false), (false, true), (true, false)];
        let [single, oneway, batch_head] = heads.map(|(is_batch, is_oneway)| {
            let queues = default_topic_queue_nums;
            SendHead::new(group, topic, create_topic_key, queues, unit_mode, is_batch, is_oneway)
        });
        let by_queue = PyDict::new(py);
        let mut known = Vec::new();
        for (index, queue) in queues.into_iter().enumerate() {
            by_queue.set_item(&queue, index)?;
            let queue_id = queue.getattr(intern!(py, "queue_id"))?.extract()?;
            known.push(Queue { queue: queue.unbind(), queue_id });
        }
        let channels = known.iter().map(|_| None).collect();
        Ok(Self {
            sender,
            queues: known,
            batch_head,
            futures: Futures::of(make_future)?,
            chooser,
            by_queue: by_queue.unbind(),
            single,
            oneway,
            channels: Mutex::new(channels),
            batch: Mutex::new(None),
        })
    }

    /// What messages join.
    #[getter]
    fn batch(&self, py: Python<'_>) -> Option<Py<SendBatch>> {
        self.batch.lock().as_ref().map(|batch| batch.clone_ref(py))
    }

    #[setter]
    fn set_batch(&self, value: Option<Py<SendBatch>>) {
        let former = std::mem::replace(&mut *self.batch.lock(), value);
        drop(former);
    }

    /// The connection that leads to a queue.
    fn aim(&self, index: usize, channel: Option<Py<SendChannel>>) -> PyResult<()> {
        let mut channels = self.channels.lock();
        let Some(place) = channels.get_mut(index) else {
            return Err(PyIndexError::new_err("there is no such queue"));
        };
        let former = std::mem::replace(place, channel);
        drop(channels);
        drop(former);
        Ok(())
    }

    /// Write a message, or let it join the batch.
    fn begin<'py>(
        slf: &Bound<'py, Self>,
        message: &Bound<'py, PyAny>,
        queue: &Bound<'py, PyAny>,
        timeout_ms: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Started<'py>>> {
        Self::start(slf, message, queue, timeout_ms, false)
    }

    /// As `begin`, for a send that nobody waits for yet.
    fn submit<'py>(
        slf: &Bound<'py, Self>,
        message: &Bound<'py, PyAny>,
        queue: &Bound<'py, PyAny>,
        timeout_ms: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Started<'py>>> {
        Self::start(slf, message, queue, timeout_ms, true)
    }

    /// Write a message that nobody answers: how many frames are buffered; 0: nothing was done.
    fn write_oneway(
        &self,
        message: &Bound<'_, PyAny>,
        queue: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let (py, sender) = (message.py(), self.sender.get());
        if sender.is_batching {
            return Ok(0);
        }
        let Some(parts) = sender.parts_of(message) else { return Ok(0) };
        let Some(index) = self.index_of(queue)? else { return Ok(0) };
        let Some(channel) = self.channel(py, index) else { return Ok(0) };
        let (at, channel) = (Instant::now(), channel.bind(py).get());
        let Some((opaque, _)) = channel.place(py, at, &sender.check)? else { return Ok(0) };
        let now_ms = sender.now_ms(py, at)?;
        let id = sender.ids.get().next(py, now_ms)?;
        let queue_id = self.queues[index].queue_id;
        let numbers = Numbers { queue_id, opaque: i64::from(opaque), now_ms, flag: parts.flag };
        let mut text = Vec::new();
        if parts.push_properties(&mut text, &id).is_none() {
            return Ok(0);
        }
        let body = parts.body.as_bytes();
        let count =
            channel.push(py, |buffered| self.oneway.push(buffered, numbers, &text, body))?;
        if count > 0 && queue.is_none() {
            self.advance(py, index)?;
        }
        Ok(count)
    }

    /// Write a message that waited for capacity.
    fn admit(
        slf: &Bound<'_, Self>,
        message: &Bound<'_, PyAny>,
        index: usize,
        opaque: i32,
        send: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let (py, topic_sender) = (slf.py(), slf.get());
        let future = send.getattr(intern!(py, "future"))?;
        let Some(channel) = topic_sender.channel(py, index) else { return Ok(true) };
        if is_done(&future) {
            return Ok(true);
        }
        let channel = channel.bind(py).get();
        let Some(parts) = topic_sender.sender.get().parts_of(message) else { return Ok(false) };
        let deadline = send.getattr(intern!(py, "deadline"))?.extract()?;
        let timeout_ms = send.getattr(intern!(py, "timeout_ms"))?.extract()?;
        let is_given = send.getattr(intern!(py, "is_given"))?.extract()?;
        let is_submitted = !send.getattr(intern!(py, "go_on"))?.is_none();
        let at = Instant::now();
        let asked_at = channel.time(py, at)?;
        topic_sender.write(channel, &parts, at, opaque, deadline, |id| {
            let kind = if is_submitted {
                Kind::Submitted(future.unbind(), id, message.clone().unbind())
            } else {
                Kind::Awaited(future.unbind(), id)
            };
            topic_sender.open_send(py, kind, index, (is_given, asked_at, timeout_ms))
        })
    }

    /// A batch of the topic's messages.
    fn new_batch(
        &self,
        py: Python<'_>,
        wait: bool,
        is_given: bool,
        bytes_max: usize,
        count_max: usize,
        owner: Py<PyAny>,
    ) -> SendBatch {
        let made = (self.sender.clone_ref(py), self.futures.clone_ref(py));
        SendBatch::new(made, (wait, is_given), bytes_max, count_max, owner)
    }

    /// Write a batch for a queue; False: there is no capacity, or no frame holds it.
    fn post_batch(
        &self,
        batch: &Bound<'_, SendBatch>,
        index: usize,
        timeout_ms: i64,
        deadline: f64,
    ) -> PyResult<bool> {
        let py = batch.py();
        let Some(channel) = self.channel(py, index) else { return Ok(false) };
        if !channel.get().has_capacity(py)? {
            return Ok(false);
        }
        let opaque = channel.get().new_opaque(py)?;
        self.admit_batch(batch, index, timeout_ms, deadline, opaque)
    }

    /// Write a batch that waited for capacity; False: no frame holds it.
    fn admit_batch(
        &self,
        batch: &Bound<'_, SendBatch>,
        index: usize,
        timeout_ms: i64,
        deadline: f64,
        opaque: i32,
    ) -> PyResult<bool> {
        let py = batch.py();
        let Some(channel) = self.channel(py, index) else { return Ok(false) };
        let (at, channel) = (Instant::now(), channel.bind(py).get());
        let now_ms = self.sender.get().now_ms(py, at)?;
        let asked_at = channel.time(py, at)?;
        let queue_id = self.queues[index].queue_id;
        let numbers = Numbers { queue_id, opaque: i64::from(opaque), now_ms, flag: 0 };
        let mut text = Vec::new();
        push_wait(&mut text, batch.get().wait());
        let is_given = batch.get().is_given();
        let kind = Kind::Batch(batch.clone().unbind());
        let send = self.open_send(py, kind, index, (is_given, asked_at, timeout_ms));
        channel.post(py, opaque, deadline, send, |buffered| {
            batch.get().with_body(|body| self.batch_head.push(buffered, numbers, &text, body))
        })
    }

    /// A caller went away: forget its send.
    fn withdraw(&self, py: Python<'_>, opaque: i64) -> PyResult<()> {
        let Ok(opaque) = i32::try_from(opaque) else { return Ok(()) };
        for index in 0..self.queues.len() {
            if let Some(channel) = self.channel(py, index)
                && channel.get().withdraw(py, opaque)?
            {
                break;
            }
        }
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for queue in &self.queues {
            visit.call(&queue.queue)?;
        }
        if let Some(channels) = self.channels.try_lock() {
            for channel in channels.iter().flatten() {
                visit.call(channel)?;
            }
        }
        if let Some(batch) = self.batch.try_lock()
            && let Some(batch) = &*batch
        {
            visit.call(batch)?;
        }
        visit.call(&self.sender)?;
        self.futures.visit(&visit)?;
        visit.call(&self.chooser)?;
        visit.call(&self.by_queue)
    }
}

impl TopicSender {
    /// What is known of a send that is on its way.
    fn open_send(
        &self,
        py: Python<'_>,
        kind: Kind,
        index: usize,
        (is_given, asked_at, timeout_ms): (bool, f64, i64),
    ) -> Send {
        let Queue { queue, queue_id } = &self.queues[index];
        let (sender, queue) = (self.sender.clone_ref(py), queue.clone_ref(py));
        Send { sender, kind, queue, queue_id: *queue_id, is_given, asked_at, timeout_ms }
    }

    /// The connection that leads to a queue.
    fn channel(&self, py: Python<'_>, index: usize) -> Option<Py<SendChannel>> {
        self.channels.lock().get(index)?.as_ref().map(|channel| channel.clone_ref(py))
    }

    fn start<'py>(
        slf: &Bound<'py, Self>,
        message: &Bound<'py, PyAny>,
        queue: &Bound<'py, PyAny>,
        timeout_ms: &Bound<'py, PyAny>,
        is_submitted: bool,
    ) -> PyResult<Option<Started<'py>>> {
        let (py, topic_sender) = (slf.py(), slf.get());
        let sender = topic_sender.sender.get();
        if sender.is_batching {
            return topic_sender.join(py, message, queue, timeout_ms);
        }
        let Some(parts) = sender.parts_of(message) else { return Ok(None) };
        let Some(ms) = time_limit(timeout_ms, sender.timeout_ms) else { return Ok(None) };
        let Some(index) = topic_sender.index_of(queue)? else { return Ok(None) };
        let Some(channel) = topic_sender.channel(py, index) else { return Ok(None) };
        let (at, channel) = (Instant::now(), channel.bind(py).get());
        let Some((opaque, asked_at)) = channel.place(py, at, &sender.check)? else {
            return Ok(None);
        };
        let future = topic_sender.futures.make(py)?;
        let is_given = !queue.is_none();
        let deadline = asked_at + ms as f64 / 1000.0;
        let is_written = topic_sender.write(channel, &parts, at, opaque, deadline, |id| {
            let waiting = future.clone().unbind();
            let kind = if is_submitted {
                Kind::Submitted(waiting, id, message.clone().unbind())
            } else {
                Kind::Awaited(waiting, id)
            };
            topic_sender.open_send(py, kind, index, (is_given, asked_at, ms))
        })?;
        if !is_written {
            return Ok(None);
        }
        if !is_given {
            topic_sender.advance(py, index)?;
        }
        Ok(Some((future, i64::from(opaque))))
    }

    /// A fast-path message that may wait for others does so.
    fn join<'py>(
        &self,
        py: Python<'py>,
        message: &Bound<'py, PyAny>,
        queue: &Bound<'py, PyAny>,
        timeout_ms: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Started<'py>>> {
        if !queue.is_none() || !timeout_ms.is_none() {
            return Ok(None);
        }
        let Some(batch) = self.batch(py) else { return Ok(None) };
        let future = SendBatch::join(batch.bind(py), message, true)?;
        Ok(future.map(|future| (future, NO_OPAQUE)))
    }

    /// A queue whose turn it was is used. To set the next one is faster than to call a method.
    fn advance(&self, py: Python<'_>, index: usize) -> PyResult<()> {
        let next = (index + 1) % self.queues.len();
        self.chooser.bind(py).setattr(intern!(py, "upcoming"), next)
    }

    /// The number of a queue, or of the next in turn; None: it is not among them.
    fn index_of(&self, queue: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let py = queue.py();
        if queue.is_none() {
            let upcoming = self.chooser.bind(py).getattr(intern!(py, "upcoming"))?;
            return Ok(Some(upcoming.extract()?));
        }
        self.by_queue.bind(py).get_item(queue)?.map(|index| index.extract()).transpose()
    }

    /// Writes a message, which waits for its answer from now on; false: it is not for the fast
    /// path, nothing was done. `send` is what is known of it, given its id.
    fn write(
        &self,
        channel: &SendChannel,
        parts: &Parts<'_>,
        at: Instant,
        opaque: i32,
        deadline: f64,
        send: impl FnOnce(Py<PyString>) -> Send,
    ) -> PyResult<bool> {
        let (py, sender) = (parts.body.py(), self.sender.get());
        let now_ms = sender.now_ms(py, at)?;
        let id = sender.ids.get().next(py, now_ms)?;
        let body = parts.body.as_bytes();
        let text_of_id = id.as_str();
        let numbers_of = |send: &Send| {
            let queue_id = send.queue_id;
            Numbers { queue_id, opaque: i64::from(opaque), now_ms, flag: parts.flag }
        };
        if let Some(own) = parts.fast_properties(text_of_id) {
            let send = send(PyString::new(py, text_of_id).unbind());
            let numbers = numbers_of(&send);
            let push = |buffered: &mut Vec<u8>| self.single.push_fast(buffered, numbers, own, body);
            return channel.post(py, opaque, deadline, send, push);
        }
        let mut text = TEXT.take();
        text.clear();
        let is_written = if parts.push_properties(&mut text, &id).is_some() {
            let send = send(PyString::new(py, text_of_id).unbind());
            let numbers = numbers_of(&send);
            let push = |buffered: &mut Vec<u8>| self.single.push(buffered, numbers, &text, body);
            channel.post(py, opaque, deadline, send, push)?
        } else {
            false
        };
        if text.capacity() <= KEPT_BYTES_MAX {
            TEXT.set(text);
        }
        Ok(is_written)
    }
}

/// A time limit in ms; None: it is none that a fast-path send may have.
fn time_limit(given: &Bound<'_, PyAny>, default: i64) -> Option<i64> {
    let ms = if given.is_none() { default } else { given.extract().ok()? };
    (ms > 0).then_some(ms)
}
