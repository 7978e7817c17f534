//! `TopicSender` of the Python interface.

use kerolox_core::client::batch::Batch;
use kerolox_core::client::clock::Moment;
use kerolox_core::client::open_send::{OpenSend, Terms};
use kerolox_core::client::send::{Numbers, SendHeads, set_wait};
use parking_lot::Mutex;
use pyo3::PyTraverseError;
use pyo3::exceptions::PyIndexError;
use pyo3::gc::PyVisit;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyString};

use crate::sending::batch::SendBatch;
use crate::sending::channel::SendChannel;
use crate::sending::futures::Futures;
use crate::sending::message::Parts;
use crate::sending::open_send::{Kind, Waiter};
use crate::sending::results::is_done;
use crate::sending::sender::Sender;

/// The opaque of a send that has none, since it is part of a batch (`NO_OPAQUE`).
const NO_OPAQUE: i64 = 1 << 40;

/// A send that has begun: the future of its result, and its opaque.
type Started<'py> = (Bound<'py, PyAny>, i64);

/// A queue of the topic.
struct Queue {
    object: Py<PyAny>,
    id: i64,
    /// The number of the one behind it.
    next: Py<PyInt>,
}

/// Where a send goes: the number of its queue, the connection there, and its opaque.
#[derive(Clone, Copy)]
struct Aim<'a> {
    index: usize,
    channel: &'a SendChannel,
    opaque: i32,
}

/// The fast-path sends of one producer to one topic.
#[pyclass(module = "kerolox_kernel", frozen)]
pub struct TopicSender {
    sender: Py<Sender>,
    queues: Vec<Queue>,
    heads: SendHeads,
    futures: Futures,
    chooser: Py<PyAny>,
    by_queue: Py<PyDict>,
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
        let (queues_max, count) = (default_topic_queue_nums, queues.len());
        let by_queue = PyDict::new(py);
        let mut known = Vec::new();
        for (index, queue) in queues.into_iter().enumerate() {
            by_queue.set_item(&queue, index)?;
            let id = queue.getattr(intern!(py, "queue_id"))?.extract()?;
            let next = PyInt::new(py, (index + 1) % count).unbind();
            known.push(Queue { object: queue.unbind(), id, next });
        }
        let channels = known.iter().map(|_| None).collect();
        Ok(Self {
            sender,
            queues: known,
            heads: SendHeads::new(group, topic, create_topic_key, queues_max, unit_mode),
            futures: Futures::of(make_future)?,
            chooser,
            by_queue: by_queue.unbind(),
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
        &self,
        message: &Bound<'py, PyAny>,
        queue: &Bound<'py, PyAny>,
        timeout_ms: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Started<'py>>> {
        self.start(message, queue, timeout_ms, false)
    }

    /// As `begin`, for a send that nobody waits for yet.
    fn submit<'py>(
        &self,
        message: &Bound<'py, PyAny>,
        queue: &Bound<'py, PyAny>,
        timeout_ms: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Started<'py>>> {
        self.start(message, queue, timeout_ms, true)
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
        let Some((index, channel)) = self.aimed(queue)? else { return Ok(0) };
        let (at, channel) = (Moment::now(), channel.get());
        let Some((opaque, _)) = channel.place(py, at, &sender.check)? else { return Ok(0) };
        let (now_ms, id) = sender.stamp(py, at)?;
        let Some(outgoing) = parts.outgoing() else { return Ok(0) };
        let (head, numbers) = (&self.heads.oneway, self.numbers(index, opaque, now_ms));
        let count = channel
            .push(py, |buffered, text| outgoing.push_request(buffered, text, head, numbers, &id))?;
        if count > 0 && queue.is_none() {
            self.advance(py, index)?;
        }
        Ok(count)
    }

    /// Write a message that waited for capacity.
    fn admit(
        &self,
        message: &Bound<'_, PyAny>,
        index: usize,
        opaque: i32,
        send: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let py = message.py();
        let future = send.getattr(intern!(py, "future"))?;
        let Some(channel) = self.channel(py, index) else { return Ok(true) };
        if is_done(&future) {
            return Ok(true);
        }
        let (at, channel) = (Moment::now(), channel.get());
        let Some(parts) = self.sender.get().parts_of(message) else { return Ok(false) };
        let terms = Terms {
            is_given: send.getattr(intern!(py, "is_given"))?.extract()?,
            asked_at: channel.time(py, at)?,
            deadline: send.getattr(intern!(py, "deadline"))?.extract()?,
            timeout_ms: send.getattr(intern!(py, "timeout_ms"))?.extract()?,
        };
        let is_submitted = !send.getattr(intern!(py, "go_on"))?.is_none();
        let kept = is_submitted.then_some(message);
        self.write(&Aim { index, channel, opaque }, &parts, at, terms, &future, kept)
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
        let (sender, futures) = (self.sender.clone_ref(py), self.futures.clone_ref(py));
        SendBatch::new(sender, futures, Batch::new(wait, is_given, bytes_max, count_max), owner)
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
        let opaque = channel.get().new_opaque(py);
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
        let (at, channel) = (Moment::now(), channel.get());
        let numbers = self.numbers(index, opaque, self.sender.get().now_ms(py, at)?);
        let asked_at = channel.time(py, at)?;
        let guard = batch.get().batch.lock();
        let (count, is_given) = (guard.len(), guard.is_given);
        let terms = Terms { is_given, asked_at, deadline, timeout_ms };
        let posted = channel.post(
            opaque,
            |buffered, text| {
                set_wait(text, guard.is_waiting);
                self.heads.batch.push(buffered, numbers, text, guard.body())
            },
            || self.open_send(py, Kind::Batch(batch.clone().unbind()), index, Some(count), terms),
        );
        drop(guard);
        channel.act(py, posted)
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
            visit.call(&queue.object)?;
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
    /// What is known of a send, or of a batch, that is on its way.
    fn open_send(
        &self,
        py: Python<'_>,
        kind: Kind,
        index: usize,
        batch_count: Option<usize>,
        terms: Terms,
    ) -> OpenSend<Waiter> {
        let Queue { object, id, .. } = &self.queues[index];
        let counted = self.sender.get().open.counted(batch_count.unwrap_or(1));
        let (sender, queue) = (self.sender.clone_ref(py), object.clone_ref(py));
        let waiter = Waiter { sender, kind, queue };
        OpenSend { waiter, batch_count, counted, queue_id: *id, terms }
    }

    /// What a frame has of its own, but its message's flag.
    fn numbers(&self, index: usize, opaque: i32, now_ms: i64) -> Numbers {
        let queue_id = self.queues[index].id;
        Numbers { queue_id, opaque: opaque.into(), now_ms, flag: 0 }
    }

    /// The connection that leads to a queue.
    fn channel(&self, py: Python<'_>, index: usize) -> Option<Py<SendChannel>> {
        self.channels.lock().get(index)?.as_ref().map(|channel| channel.clone_ref(py))
    }

    fn start<'py>(
        &self,
        message: &Bound<'py, PyAny>,
        queue: &Bound<'py, PyAny>,
        timeout_ms: &Bound<'py, PyAny>,
        is_submitted: bool,
    ) -> PyResult<Option<Started<'py>>> {
        let (py, sender) = (message.py(), self.sender.get());
        if sender.is_batching {
            return self.join(py, message, queue, timeout_ms);
        }
        let Some(parts) = sender.parts_of(message) else { return Ok(None) };
        let own = timeout_ms.extract().ok();
        let Some(ms) = own.and_then(|own| sender.limits.time_limit(own)) else { return Ok(None) };
        let Some((index, channel)) = self.aimed(queue)? else { return Ok(None) };
        let (at, channel) = (Moment::now(), channel.get());
        let Some((opaque, asked_at)) = channel.place(py, at, &sender.check)? else {
            return Ok(None);
        };
        let future = self.futures.make(py)?;
        let terms = Terms::new(!queue.is_none(), asked_at, ms);
        let kept = is_submitted.then_some(message);
        if !self.write(&Aim { index, channel, opaque }, &parts, at, terms, &future, kept)? {
            return Ok(None);
        }
        if queue.is_none() {
            self.advance(py, index)?;
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
        self.chooser.bind(py).setattr(intern!(py, "upcoming"), &self.queues[index].next)
    }

    /// The number of a queue, or of the next in turn, and the connection there; None: there is
    /// none, or it is no queue of the topic.
    fn aimed(&self, queue: &Bound<'_, PyAny>) -> PyResult<Option<(usize, Py<SendChannel>)>> {
        let py = queue.py();
        let index = if queue.is_none() {
            Some(self.chooser.bind(py).getattr(intern!(py, "upcoming"))?)
        } else {
            self.by_queue.bind(py).get_item(queue)?
        };
        let Some(index) = index else { return Ok(None) };
        let index = index.extract()?;
        Ok(self.channel(py, index).map(|channel| (index, channel)))
    }

    /// Writes a message, which `future` waits for from now on; false: it is not for the fast path,
    /// nothing was done. `kept`: the message, if it is submitted.
    fn write(
        &self,
        aim: &Aim<'_>,
        parts: &Parts<'_>,
        at: Moment,
        terms: Terms,
        future: &Bound<'_, PyAny>,
        kept: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let (py, Aim { index, channel, opaque }) = (future.py(), *aim);
        let (now_ms, id) = self.sender.get().stamp(py, at)?;
        let Some(outgoing) = parts.outgoing() else { return Ok(false) };
        let (head, numbers) = (&self.heads.single, self.numbers(index, opaque, now_ms));
        let posted = channel.post(
            opaque,
            |buffered, text| outgoing.push_request(buffered, text, head, numbers, &id),
            || {
                let (future, kept) = (future.clone().unbind(), kept.map(|it| it.clone().unbind()));
                let id = PyString::new(py, id.as_str()).unbind();
                self.open_send(py, Kind::Single { future, id, kept }, index, None, terms)
            },
        );
        channel.act(py, posted)
    }
}
