//! Rows of a table as messages of batches, after the interface of `kerolox.codec.rows`.

use kerolox_core::client::rows::{self, BadColumn, Maps, Rows, Rules, Texts};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

/// Bytes that Python keeps in place until this is dropped.
struct Held(Option<PyUntypedBuffer>);

impl Held {
    fn of(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        if given.is_none() {
            return Ok(Self(None));
        }
        let buffer = PyUntypedBuffer::get(given)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("a column's buffer must be contiguous"));
        }
        Ok(Self(Some(buffer)))
    }

    fn bytes(&self) -> Option<&[u8]> {
        let buffer = self.0.as_ref()?;
        if buffer.len_bytes() == 0 {
            return Some(&[]);
        }
        let start = buffer.buf_ptr().cast::<u8>().cast_const();
        // SAFETY: the exporter keeps these bytes in place as long as the buffer is held, which
        // outlives the slice. They belong to an Arrow array, which nobody writes to.
        Some(unsafe { std::slice::from_raw_parts(start, buffer.len_bytes()) })
    }
}

/// A `TextColumn`.
struct HeldTexts([Held; 3]);

impl HeldTexts {
    fn of(given: &Bound<'_, PyAny>) -> PyResult<Self> {
        let parts = given.cast::<PyTuple>()?;
        let part = |index| Held::of(&parts.get_item(index)?);
        Ok(Self([part(0)?, part(1)?, part(2)?]))
    }

    fn optional(given: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if given.is_none() { Ok(None) } else { Self::of(given).map(Some) }
    }

    fn texts(&self) -> Texts<'_> {
        let [validity, offsets, data] = &self.0;
        Texts {
            validity: validity.bytes(),
            offsets: offsets.bytes().unwrap_or_default(),
            data: data.bytes().unwrap_or_default(),
        }
    }
}

/// A `MapColumn`.
struct HeldMaps {
    validity: Held,
    offsets: Held,
    names: HeldTexts,
    values: HeldTexts,
}

/// A `RowColumns`.
struct HeldRows {
    body: HeldTexts,
    tags: Option<HeldTexts>,
    keys: Option<HeldTexts>,
    flags: Held,
    properties: Option<HeldMaps>,
}

impl HeldRows {
    fn of(given: &Bound<'_, PyTuple>) -> PyResult<Self> {
        let properties = given.get_item(4)?;
        let properties = if properties.is_none() {
            None
        } else {
            let parts = properties.cast::<PyTuple>()?;
            Some(HeldMaps {
                validity: Held::of(&parts.get_item(0)?)?,
                offsets: Held::of(&parts.get_item(1)?)?,
                names: HeldTexts::of(&parts.get_item(2)?)?,
                values: HeldTexts::of(&parts.get_item(3)?)?,
            })
        };
        Ok(Self {
            body: HeldTexts::of(&given.get_item(0)?)?,
            tags: HeldTexts::optional(&given.get_item(1)?)?,
            keys: HeldTexts::optional(&given.get_item(2)?)?,
            flags: Held::of(&given.get_item(3)?)?,
            properties,
        })
    }

    fn rows(&self) -> Rows<'_> {
        Rows {
            body: self.body.texts(),
            tags: self.tags.as_ref().map(HeldTexts::texts),
            keys: self.keys.as_ref().map(HeldTexts::texts),
            flags: self.flags.bytes(),
            properties: self.properties.as_ref().map(|maps| Maps {
                validity: maps.validity.bytes(),
                offsets: maps.offsets.bytes().unwrap_or_default(),
                names: maps.names.texts(),
                values: maps.values.texts(),
            }),
        }
    }
}

/// A `RowRules`.
fn rules_of(given: &Bound<'_, PyTuple>) -> PyResult<Rules> {
    let (body_bytes_max, reserved, drops_reserved, default_properties, tail) = given.extract()?;
    Ok(Rules { body_bytes_max, reserved, drops_reserved, default_properties, tail })
}

fn contradicts(_: BadColumn) -> PyErr {
    PyValueError::new_err("the buffers of a column contradict each other")
}

/// The first illegal row among `[start, stop)`; -1: none.
#[pyfunction]
pub fn first_fault(
    py: Python<'_>,
    columns: &Bound<'_, PyTuple>,
    start: usize,
    stop: usize,
    rules: &Bound<'_, PyTuple>,
) -> PyResult<i64> {
    let (held, rules) = (HeldRows::of(columns)?, rules_of(rules)?);
    let rows = held.rows();
    let fault = py.detach(|| rows::first_fault(&rows, start, stop, &rules)).map_err(contradicts)?;
    Ok(fault.and_then(|row| i64::try_from(row).ok()).unwrap_or(-1))
}

/// Legal rows as items of a batch, and where each ends.
#[pyfunction]
pub fn encode_rows<'py>(
    py: Python<'py>,
    columns: &Bound<'py, PyTuple>,
    start: usize,
    stop: usize,
    rules: &Bound<'py, PyTuple>,
    ids: &Bound<'py, PyTuple>,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let (held, rules) = (HeldRows::of(columns)?, rules_of(rules)?);
    let (begin, first): (String, u16) = ids.extract()?;
    let rows = held.rows();
    let made = py.detach(|| {
        let (mut items, mut ends) = (Vec::new(), Vec::new());
        let ids = (begin.as_bytes(), first);
        rows::encode(&rows, (start, stop), &rules, ids, &mut items, &mut ends)
            .map(|()| (items, ends))
    });
    let (items, ends) = made.map_err(contradicts)?;
    Ok((PyBytes::new(py, &items), PyBytes::new(py, &ends)))
}

/// `String.hashCode` of each text, as int32.
#[pyfunction]
pub fn hash_texts<'py>(
    py: Python<'py>,
    texts: &Bound<'py, PyTuple>,
    count: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let held = HeldTexts::of(texts.as_any())?;
    let mut hashes = Vec::with_capacity(4 * count);
    rows::hashes(&held.texts(), count, &mut hashes).map_err(contradicts)?;
    Ok(PyBytes::new(py, &hashes))
}
