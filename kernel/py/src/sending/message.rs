//! Messages of Python as they travel.

use kerolox_core::client::outgoing::{Limits, Outgoing, UserProperties};
use kerolox_core::client::send::PropertyText;
use pyo3::gc::PyVisit;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyInt, PyList, PyString, PyTuple, PyType};
use pyo3::{PyTraverseError, ffi, intern};

use crate::slots::places;

/// What is read of a fast-path message.
pub struct Parts<'py> {
    body: Bound<'py, PyBytes>,
    wait: bool,
    flag: i64,
    keys: Bound<'py, PyString>,
    tags: Bound<'py, PyString>,
    properties: Bound<'py, PyDict>,
}

/// How the members of messages are read.
pub struct Members {
    class: Py<PyType>,
    /// Where an instance keeps each of `NAMES`; None: they are read by name.
    slots: Option<[usize; NAMES.len()]>,
}

/// What is read of a message.
const NAMES: [&str; 7] =
    ["body", "delay_level", "wait_store_ok", "flag", "keys", "tags", "properties"];

impl Members {
    /// Those of a class.
    pub fn of(class: &Bound<'_, PyType>) -> PyResult<Self> {
        Ok(Self { class: class.clone().unbind(), slots: places(class, &NAMES)? })
    }

    /// Reads a message; None: it is of another class, or lacks one.
    fn read<'py>(&self, message: &Bound<'py, PyAny>) -> Option<[Bound<'py, PyAny>; NAMES.len()]> {
        if message.get_type_ptr() != self.class.as_ptr().cast() {
            return None;
        }
        let member = |index: usize| {
            let Some(slots) = &self.slots else { return message.getattr(NAMES[index]).ok() };
            // SAFETY: the thread is attached. The message is an instance of the class itself, all
            // of whose instances have a slot at this place: a reference that it owns, or null.
            unsafe {
                let memory = message.as_ptr().cast::<*mut ffi::PyObject>();
                Bound::from_borrowed_ptr_or_opt(message.py(), memory.add(slots[index]).read())
            }
        };
        let (body, delay, wait, flag) = (member(0)?, member(1)?, member(2)?, member(3)?);
        Some([body, delay, wait, flag, member(4)?, member(5)?, member(6)?])
    }

    pub fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.class)
    }
}

impl<'py> Parts<'py> {
    /// Reads a message; None: it is not for the fast path, or is made of odd things.
    pub fn of(members: &Members, limits: Limits, message: &Bound<'py, PyAny>) -> Option<Self> {
        let [body, delay, wait, flag, keys, tags, properties] = members.read(message)?;
        let body = body.cast_into_exact::<PyBytes>().ok()?;
        if !limits.takes_body(body.as_bytes().len()) || delay.is_truthy().ok()? {
            return None;
        }
        Some(Self {
            body,
            wait: wait.cast_exact::<PyBool>().ok()?.is_true(),
            flag: whole_number(&flag)?,
            keys: joined(keys)?,
            tags: tags.cast_into_exact().ok()?,
            properties: properties.cast_into_exact().ok()?,
        })
    }

    /// The message that they make; None: a text of it has half of a surrogate pair.
    pub fn outgoing(&self) -> Option<Outgoing<'_, Properties<'_, 'py>>> {
        Some(Outgoing {
            body: self.body.as_bytes(),
            flag: self.flag,
            keys: self.keys.to_str().ok()?,
            tags: self.tags.to_str().ok()?,
            is_waiting: self.wait,
            properties: Properties(&self.properties),
        })
    }
}

/// The user's properties as the message has them.
pub struct Properties<'a, 'py>(&'a Bound<'py, PyDict>);

impl UserProperties for Properties<'_, '_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(&self, text: &mut PropertyText<'_>) -> Option<()> {
        // Of an exact dict, whose texts are exact: nothing of Python runs.
        self.0.iter().try_for_each(|(name, value)| text.user(text_of(&name)?, text_of(&value)?))
    }
}

/// Keys as one text. What can be gone through only once is left alone.
fn joined(keys: Bound<'_, PyAny>) -> Option<Bound<'_, PyString>> {
    let keys = match keys.cast_into_exact::<PyString>() {
        Ok(text) => return Some(text),
        Err(error) => error.into_inner(),
    };
    if !keys.is_exact_instance_of::<PyList>() && !keys.is_exact_instance_of::<PyTuple>() {
        return None;
    }
    let py = keys.py();
    let text = intern!(py, " ").call_method1(intern!(py, "join"), (keys,)).ok()?;
    text.cast_into_exact().ok()
}

/// An `int` that is nothing more special.
fn whole_number(value: &Bound<'_, PyAny>) -> Option<i64> {
    value.cast_exact::<PyInt>().ok()?.extract().ok()
}

/// The text of a `str` that has no half of a surrogate pair.
fn text_of<'a>(value: &'a Bound<'_, PyAny>) -> Option<&'a str> {
    value.cast_exact::<PyString>().ok()?.to_str().ok()
}
