//! The codec of sends, after the interface of `kerolox.codec.sending`.

use std::cell::RefCell;

use kerolox_core::client::send::{Numbers, PropertyText, SendHead, push_item, push_wait};
use kerolox_core::client::sent::sent;
use kerolox_core::client::stream::FrameStream;
use kerolox_core::protocol::DEFAULT_REGION;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyString};

use crate::buffer::with_bytes;

/// The buffers are given back when one message left them larger than this.
const KEPT_BYTES_MAX: usize = 1 << 20;

thread_local! {
    /// Header and property text of one call; kept so that no call allocates them.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Makes the frames of one producer's messages of one topic.
#[pyclass(module = "kerolox_kernel", frozen)]
pub struct SendEncoder {
    single: SendHead,
    batch: SendHead,
}

#[pymethods]
impl SendEncoder {
    #[new]
    fn new(
        group: &str,
        topic: &str,
        create_topic_key: &str,
        default_topic_queue_nums: i64,
        unit_mode: bool,
    ) -> Self {
        let [single, batch] = [false, true].map(|is_batch| {
            let queues = default_topic_queue_nums;
            SendHead::new(group, topic, create_topic_key, queues, unit_mode, is_batch)
        });
        Self { single, batch }
    }

    /// A message of a batch; None: as `encode`.
    #[allow(clippy::too_many_arguments)] // as above
    #[allow(clippy::unused_self)] // as its twin in Python
    fn item<'py>(
        &self,
        py: Python<'py>,
        message_id: &Bound<'py, PyAny>,
        body: &Bound<'py, PyAny>,
        keys: &Bound<'py, PyAny>,
        tags: &Bound<'py, PyAny>,
        wait: &Bound<'py, PyAny>,
        flag: &Bound<'py, PyAny>,
        properties: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let is_waiting = wait.is_truthy()?;
        let flag = whole_number(flag).and_then(|flag| i32::try_from(flag).ok());
        let (Some(flag), Ok(body)) = (flag, body.cast::<PyBytes>()) else {
            return Ok(None);
        };
        let (mut item, mut text) = SCRATCH.take();
        item.clear();
        text.clear();
        let made =
            property_text(&mut text, properties, keys, tags, is_waiting, message_id).map(|_| {
                push_item(&mut item, flag, body.as_bytes(), &text);
                PyBytes::new(py, &item)
            });
        if item.capacity() + text.capacity() <= KEPT_BYTES_MAX {
            SCRATCH.set((item, text));
        }
        Ok(made)
    }

    /// The request of a batch; None: no frame holds it.
    #[allow(clippy::needless_pass_by_value)] // made from Python's list for this call
    fn batch<'py>(
        &self,
        py: Python<'py>,
        queue_id: i64,
        opaque: i64,
        now_ms: i64,
        wait: bool,
        items: Vec<Bound<'py, PyBytes>>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (mut header, mut text) = SCRATCH.take();
        text.clear();
        push_wait(&mut text, wait);
        let size = items.iter().map(|item| item.as_bytes().len()).sum();
        let numbers = Numbers { queue_id, opaque, now_ms, flag: 0 };
        let made = self.batch.write(&mut header, numbers, &text, size).map(|()| {
            PyBytes::new_with(py, header.len() + size, |frame| {
                let (front, mut rest) = frame.split_at_mut(header.len());
                front.copy_from_slice(&header);
                for item in &items {
                    let (here, behind) = rest.split_at_mut(item.as_bytes().len());
                    here.copy_from_slice(item.as_bytes());
                    rest = behind;
                }
                Ok(())
            })
        });
        SCRATCH.set((header, text));
        made.transpose()
    }

    /// A request; None: the message is not plain, or illegal.
    #[allow(clippy::too_many_arguments)] // each costs less than a tuple of them
    fn encode<'py>(
        &self,
        py: Python<'py>,
        queue_id: i64,
        opaque: i64,
        now_ms: i64,
        message_id: &Bound<'py, PyAny>,
        body: &Bound<'py, PyAny>,
        keys: &Bound<'py, PyAny>,
        tags: &Bound<'py, PyAny>,
        wait: &Bound<'py, PyAny>,
        flag: &Bound<'py, PyAny>,
        properties: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let is_waiting = wait.is_truthy()?;
        let (Some(flag), Ok(body)) = (whole_number(flag), body.cast::<PyBytes>()) else {
            return Ok(None);
        };
        let numbers = Numbers { queue_id, opaque, now_ms, flag };
        let (mut header, mut text) = SCRATCH.take();
        text.clear();
        let body = body.as_bytes();
        let made = property_text(&mut text, properties, keys, tags, is_waiting, message_id)
            .and_then(|_| self.single.write(&mut header, numbers, &text, body.len()))
            .map(|()| {
                PyBytes::new_with(py, header.len() + body.len(), |frame| {
                    let (front, back) = frame.split_at_mut(header.len());
                    front.copy_from_slice(&header);
                    back.copy_from_slice(body);
                    Ok(())
                })
            });
        if header.capacity() + text.capacity() <= KEPT_BYTES_MAX {
            SCRATCH.set((header, text));
        }
        made.transpose()
    }
}

/// An `int` that is nothing more special.
fn whole_number(value: &Bound<'_, PyAny>) -> Option<i64> {
    value.cast_exact::<PyInt>().ok()?.extract().ok()
}

/// Appends the property text of a message; None: it can't be made here.
fn property_text(
    out: &mut Vec<u8>,
    properties: &Bound<'_, PyAny>,
    keys: &Bound<'_, PyAny>,
    tags: &Bound<'_, PyAny>,
    is_waiting: bool,
    message_id: &Bound<'_, PyAny>,
) -> Option<usize> {
    let properties = properties.cast_exact::<PyDict>().ok()?;
    let mut text = PropertyText::begin(out);
    if !properties.is_empty() {
        for (name, value) in properties.iter() {
            text.user(text_of(&name)?, text_of(&value)?)?;
        }
    }
    text.end(text_of(keys)?, text_of(tags)?, is_waiting, text_of(message_id)?)
}

/// The text of a `str` that has no half of a surrogate pair.
fn text_of<'a>(value: &'a Bound<'_, PyAny>) -> Option<&'a str> {
    value.cast_exact::<PyString>().ok()?.to_str().ok()
}

/// A plain answer: opaque, queue id, queue offset, message id, region, whether traces are wanted.
type SendAnswer<'py> = (i32, i32, i64, Bound<'py, PyString>, Bound<'py, PyString>, bool);

/// What `feed` returns.
type Fed<'py> = (Bound<'py, PyList>, Bound<'py, PyList>, Option<String>);

/// Cuts the bytes of one connection, and reads answers to sends.
#[pyclass(module = "kerolox_kernel")]
pub struct SendDecoder {
    stream: FrameStream,
    /// The region of the last answer, which is mostly that of the next one.
    region: Option<(String, Py<PyString>)>,
}

#[pymethods]
impl SendDecoder {
    #[new]
    fn new() -> Self {
        Self { stream: FrameStream::new(), region: None }
    }

    /// Take `data[:size]`, all complete frames of it and of what was left before.
    fn feed<'py>(
        &mut self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        size: usize,
        sends: &Bound<'py, PyDict>,
    ) -> PyResult<Fed<'py>> {
        // Neither `bytes` nor `str` objects are tracked by the garbage collector, so no other
        // Python code can run while the buffer is read.
        let mut answers: Vec<SendAnswer<'py>> = Vec::new();
        let mut others = Vec::new();
        let has_sends = !sends.is_empty();
        let Self { stream, region } = self;
        let fed = with_bytes(data, Some(size), |data| {
            stream.feed(data, |frame| {
                let found = if has_sends { sent(frame) } else { None };
                match found {
                    Some(sent) if sends.contains(sent.opaque).unwrap_or(false) => answers.push((
                        sent.opaque,
                        sent.queue_id,
                        sent.queue_offset,
                        PyString::new(py, sent.message_id),
                        region_of(py, region, sent.region),
                        sent.is_traced,
                    )),
                    _ => others.push(PyBytes::new(py, frame.bytes)),
                }
            })
        })?;
        let error = fed.err().map(|error| error.to_string());
        Ok((PyList::new(py, answers)?, PyList::new(py, others)?, error))
    }
}

/// The region that an answer names, as the object of the answer before where it is the same.
fn region_of<'py>(
    py: Python<'py>,
    last: &mut Option<(String, Py<PyString>)>,
    region: &str,
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
