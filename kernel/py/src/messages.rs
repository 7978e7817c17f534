//! `pull_answer`, `cut_messages` and `decode_properties` of the Python interface
//! (`kerolox.codec.pulling`).

use kerolox_core::client::pull_answer::pull_answer as answer_of;
use kerolox_core::client::pulled::{Chosen, PulledRecords};
use kerolox_core::protocol::property;
use kerolox_core::record;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple, PyType};

use crate::slots::places;

static MESSAGE_EXT: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static SLOTS: PyOnceLock<Slots> = PyOnceLock::new();

/// The attributes that a message has from the start, in the order of [`Slots::fill`].
const ATTRIBUTES: [&str; 8] = [
    "topic",
    "body",
    "queue_offset",
    "broker_name",
    "body_error",
    "_kept",
    "_parts",
    "_started_ms",
];

/// Opaque, code, next offset, suggested broker id, the queue's bounds, where the body begins.
type PullAnswer<'py> = (i32, i32, i64, i64, Bound<'py, PyString>, Bound<'py, PyString>, usize);

/// What the frame of an answer to a pull says; None: it is anything else, or oddly written.
#[pyfunction]
pub fn pull_answer<'py>(frame: &Bound<'py, PyBytes>) -> Option<PullAnswer<'py>> {
    let py = frame.py();
    let answer = answer_of(frame.as_bytes())?;
    Some((
        answer.opaque,
        answer.code,
        answer.next_offset,
        answer.suggested_broker_id,
        PyString::new(py, answer.min_offset),
        PyString::new(py, answer.max_offset),
        answer.body_start,
    ))
}

/// The messages, which of them have a compressed body, where the first record begins that is none,
/// the bytes of all bodies, and whether the queue offsets ascend.
type Cut<'py> = (Bound<'py, PyList>, Vec<usize>, usize, usize, bool);

/// Records that follow each other as messages.
#[pyfunction]
#[pyo3(signature = (data, parts, broker_name, tags, start=0))]
pub fn cut_messages<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    parts: &Bound<'py, PyAny>,
    broker_name: &Bound<'py, PyString>,
    tags: &Bound<'py, PyTuple>,
    start: usize,
) -> PyResult<Cut<'py>> {
    let Some(rest) = data.as_bytes().get(start..) else {
        return Err(PyValueError::new_err("the records begin behind the end of the data"));
    };
    let class = MESSAGE_EXT.import(py, "kerolox.message", "MessageExt")?;
    let slots = SLOTS.get_or_try_init(py, || places(class, &ATTRIBUTES).map(Slots))?;
    let no_error = intern!(py, "");
    let not_started = 0i64.into_pyobject(py)?.into_any();
    let messages = PyList::empty(py);
    let mut topic = (&[][..], no_error.clone());
    let (mut end, mut chosen) = (start, Chosen::default());
    let mut records = PulledRecords::new(rest);
    while let Some(pulled) = records.next() {
        let record = pulled.record;
        if record.topic != topic.0 {
            let Ok(text) = str::from_utf8(record.topic) else { break };
            topic = (record.topic, PyString::new(py, text));
        }
        end = start + records.position();
        if !tags.is_empty() && !tags.contains(repaired(py, pulled.tags().unwrap_or_default()))? {
            continue;
        }
        let kept = PyBytes::new_with(py, pulled.head.len() + record.properties.len(), |kept| {
            let (head, properties) = kept.split_at_mut(pulled.head.len());
            head.copy_from_slice(pulled.head);
            properties.copy_from_slice(record.properties);
            Ok(())
        })?;
        let message = blank(class)?;
        slots.fill(
            &message,
            [
                topic.1.clone().into_any(),
                PyBytes::new(py, record.body).into_any(),
                record.queue_offset.into_pyobject(py)?.into_any(),
                broker_name.clone().into_any(),
                no_error.clone().into_any(),
                kept.into_any(),
                parts.clone(),
                not_started.clone(),
            ],
        )?;
        chosen.add(&record);
        messages.append(message)?;
    }
    let Chosen { compressed, body_bytes, ascends, .. } = chosen;
    Ok((messages, compressed, end, body_bytes, ascends))
}

/// The properties of the text from `start` on.
#[pyfunction]
pub fn decode_properties<'py>(
    py: Python<'py>,
    kept: &Bound<'py, PyBytes>,
    start: usize,
) -> PyResult<Bound<'py, PyDict>> {
    let text = kept.as_bytes().get(start..).unwrap_or_default();
    let properties = PyDict::new(py);
    for (name, value) in record::properties(text) {
        let value = repaired(py, value);
        match name {
            // Names of nearly every message are made once.
            property::TAGS => properties.set_item(intern!(py, "TAGS"), value),
            property::KEYS => properties.set_item(intern!(py, "KEYS"), value),
            property::UNIQUE_KEY => properties.set_item(intern!(py, "UNIQ_KEY"), value),
            property::WAIT => properties.set_item(intern!(py, "WAIT"), value),
            property::CLUSTER => properties.set_item(intern!(py, "CLUSTER"), value),
            property::MSG_REGION => properties.set_item(intern!(py, "MSG_REGION"), value),
            property::TRACE_ON => properties.set_item(intern!(py, "TRACE_ON"), value),
            _ => properties.set_item(repaired(py, name), value),
        }?;
    }
    Ok(properties)
}

/// Bytes as text; what is no UTF-8 becomes U+FFFD, as Python's `replace` has it.
fn repaired<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyString> {
    PyString::new(py, &String::from_utf8_lossy(bytes))
}

/// Where a message has its attributes; None: they are set by name.
struct Slots(Option<[usize; ATTRIBUTES.len()]>);

impl Slots {
    /// Gives a message, which has none yet, its attributes.
    fn fill<'py>(
        &self,
        message: &Bound<'py, PyAny>,
        values: [Bound<'py, PyAny>; ATTRIBUTES.len()],
    ) -> PyResult<()> {
        let Some(places) = self.0 else {
            for (name, value) in ATTRIBUTES.iter().zip(values) {
                message.setattr(*name, value)?;
            }
            return Ok(());
        };
        let memory = message.as_ptr().cast::<*mut ffi::PyObject>();
        for (place, value) in places.into_iter().zip(values) {
            // SAFETY: `places` has seen the attribute of this class there. The place is empty, since
            // the message is new, and nobody else has it yet; it takes the reference over.
            unsafe { memory.add(place).write(value.into_ptr()) };
        }
        Ok(())
    }
}

/// A message without any part.
fn blank<'py>(class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the thread is attached, and the type is a Python class whose instances have nothing
    // but slots, which may be empty: this is all that `object.__new__` does for it.
    unsafe {
        let message = ffi::PyType_GenericAlloc(class.as_type_ptr(), 0);
        Bound::from_owned_ptr_or_err(class.py(), message)
    }
}
