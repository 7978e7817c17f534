//! `Http2ServerSide` of the Python interface.

use kerolox_core::http2::{Event, Headers, Http2Error, Limits, ServerSide};
use kerolox_core::protocol::http2::{HEADER_BYTES_MAX, SLICE_FRAMES, STREAMS_MAX};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::buffer::with_bytes;
use crate::shapes::{HTTP2_ERROR, OPENED, RECEIVED, WAS_RESET};

/// One connection.
#[pyclass(module = "kerolox_kernel")]
pub struct Http2ServerSide(pub ServerSide);

#[pymethods]
impl Http2ServerSide {
    #[new]
    #[pyo3(signature = (*, streams_max = STREAMS_MAX, header_bytes_max = HEADER_BYTES_MAX, slice_frames = SLICE_FRAMES))]
    fn new(streams_max: u32, header_bytes_max: u32, slice_frames: u32) -> Self {
        Self(ServerSide::new(Limits { streams_max, header_bytes_max, slice_frames }))
    }

    #[getter]
    fn stream_count(&self) -> usize {
        self.0.stream_count()
    }

    #[getter]
    fn refused_streams(&self) -> u64 {
        self.0.refused_streams()
    }

    #[getter]
    fn unanswered_pings(&self) -> u64 {
        self.0.unanswered_pings()
    }

    #[getter]
    fn kept_bytes(&self) -> usize {
        self.0.kept_bytes()
    }

    fn waiting_bytes(&self, stream_id: u32) -> usize {
        self.0.waiting_bytes(stream_id)
    }

    fn take_output<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.0.take_output(|output| PyBytes::new(py, output))
    }

    #[getter]
    fn taken_bytes(&self) -> u64 {
        self.0.taken_bytes()
    }

    fn watch(&mut self, stream_id: u32) {
        self.0.watch(stream_id);
    }

    fn unread(&self, arrived_bytes: u64) -> Vec<u32> {
        self.0.unread(arrived_bytes)
    }

    fn receive<'py>(
        &mut self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyList>, bool)> {
        let mut events = Vec::new();
        let received = with_bytes(data, None, |data| self.0.receive(data, &mut events))?;
        let has_more = received.map_err(|error| to_python(py, error))?;
        Ok((events_to_python(py, events)?, has_more))
    }

    #[pyo3(signature = (stream_id, block, *, end=false))]
    fn send_headers(&mut self, stream_id: u32, block: &[u8], end: bool) {
        self.0.send_headers(stream_id, block, end);
    }

    fn send_data(&mut self, stream_id: u32, data: &[u8]) {
        self.0.send_data(stream_id, data);
    }

    fn send_trailers(&mut self, stream_id: u32, block: &[u8]) {
        self.0.send_trailers(stream_id, block);
    }

    fn reset(&mut self, stream_id: u32, code: u32) {
        self.0.reset(stream_id, code);
    }

    fn ping(&mut self) {
        self.0.ping();
    }

    #[pyo3(signature = (code=0, text=""))]
    fn leave(&mut self, code: u32, text: &str) {
        self.0.leave(code, text);
    }
}

/// Events as a list.
pub fn events_to_python(py: Python<'_>, events: Vec<Event>) -> PyResult<Bound<'_, PyList>> {
    let events: PyResult<Vec<_>> =
        events.into_iter().map(|event| event_to_python(py, event)).collect();
    PyList::new(py, events?)
}

/// The end of a connection as an exception.
pub fn to_python(py: Python<'_>, error: Http2Error) -> PyErr {
    match HTTP2_ERROR.make(py, (error.code, error.text)) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

fn event_to_python(py: Python<'_>, event: Event) -> PyResult<Bound<'_, PyAny>> {
    match event {
        Event::Opened { stream_id, headers, is_ended } => {
            OPENED.make(py, (stream_id, headers_to_python(py, &headers)?, is_ended))
        }
        Event::Received { stream_id, data, is_ended } => {
            RECEIVED.make(py, (stream_id, PyBytes::new(py, &data), is_ended))
        }
        Event::WasReset { stream_id } => WAS_RESET.make(py, (stream_id,)),
    }
}

fn headers_to_python<'py>(py: Python<'py>, headers: &Headers) -> PyResult<Bound<'py, PyList>> {
    let pairs =
        headers.iter().map(|(name, value)| (PyBytes::new(py, name), PyBytes::new(py, value)));
    PyList::new(py, pairs.collect::<Vec<_>>())
}
