//! `cut_messages` and `decode_properties` of the Python interface (`kerolox.codec.messages`).

use kerolox_core::client::pulled::PulledRecords;
use kerolox_core::protocol::{COMPRESSED, property};
use kerolox_core::record;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple, PyType};

static MESSAGE_EXT: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The messages, which of them have a compressed body, and where the first record begins that is
/// none.
type Cut<'py> = (Bound<'py, PyList>, Vec<usize>, usize);

/// Records that follow each other as messages.
#[pyfunction]
pub fn cut_messages<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyBytes>,
    parts: &Bound<'py, PyAny>,
    broker_name: &Bound<'py, PyString>,
    tags: &Bound<'py, PyTuple>,
) -> PyResult<Cut<'py>> {
    let class = MESSAGE_EXT.import(py, "kerolox.message", "MessageExt")?;
    let no_error = intern!(py, "");
    let messages = PyList::empty(py);
    let mut compressed = Vec::new();
    let mut topic = (&[][..], no_error.clone());
    let mut end = 0;
    let mut records = PulledRecords::new(data.as_bytes());
    while let Some(pulled) = records.next() {
        let record = pulled.record;
        if record.topic != topic.0 {
            let Ok(text) = str::from_utf8(record.topic) else { break };
            topic = (record.topic, PyString::new(py, text));
        }
        end = records.position();
        if !tags.is_empty() && !tags.contains(repaired(py, pulled.tags().unwrap_or_default()))? {
            continue;
        }
        let message = blank(class)?;
        let kept = PyBytes::new_with(py, pulled.head.len() + record.properties.len(), |kept| {
            let (head, properties) = kept.split_at_mut(pulled.head.len());
            head.copy_from_slice(pulled.head);
            properties.copy_from_slice(record.properties);
            Ok(())
        })?;
        message.setattr(intern!(py, "topic"), &topic.1)?;
        message.setattr(intern!(py, "body"), PyBytes::new(py, record.body))?;
        message.setattr(intern!(py, "queue_offset"), record.queue_offset)?;
        message.setattr(intern!(py, "broker_name"), broker_name)?;
        message.setattr(intern!(py, "body_error"), no_error)?;
        message.setattr(intern!(py, "_kept"), kept)?;
        message.setattr(intern!(py, "_parts"), parts)?;
        message.setattr(intern!(py, "_started_ms"), 0)?;
        if record.sys_flag & COMPRESSED != 0 {
            compressed.push(messages.len());
        }
        messages.append(message)?;
    }
    Ok((messages, compressed, end))
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

/// A message without any part.
fn blank<'py>(class: &Bound<'py, PyType>) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the thread is attached, and the type is a Python class whose instances have nothing
    // but slots, which may be empty: this is all that `object.__new__` does for it.
    unsafe {
        let message = ffi::PyType_GenericAlloc(class.as_type_ptr(), 0);
        Bound::from_owned_ptr_or_err(class.py(), message)
    }
}
