//! `MasterStream` of the Python interface.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use kerolox_core::fast_path::{FastPath, Following, Pause, StreamPosition};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::to_python;
use crate::shapes::STREAM_POSITION;

/// `MasterStream.follow`: why it paused.
const STREAM_TIME: u8 = 0;
const STREAM_CLOSED: u8 = 1;
const STREAM_OTHER: u8 = 2;

/// A connection that brings a master's log.
#[pyclass(module = "kerolox_kernel")]
pub struct MasterStream {
    fast: Arc<FastPath>,
    following: Following,
}

impl MasterStream {
    /// Takes over a copy of a descriptor.
    pub fn new(
        fast: Arc<FastPath>,
        descriptor: RawFd,
        stream_position: &Bound<'_, PyTuple>,
        frame_bytes: usize,
        read_bytes: usize,
    ) -> PyResult<Self> {
        if descriptor < 0 {
            return Err(PyOSError::new_err((libc::EBADF, "the connection is closed")));
        }
        // SAFETY: the caller's descriptor is open during the call.
        let socket = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()?;
        let (position, end, left, reported, rest) =
            stream_position.extract::<(i64, i64, usize, i64, Vec<u8>)>()?;
        let stream_position = StreamPosition { position, end, left, reported };
        let following = Following::new(socket, stream_position, &rest, frame_bytes, read_bytes);
        Ok(Self { fast, following })
    }
}

#[pymethods]
impl MasterStream {
    /// Append what comes and report it with each read, so long at most; why it paused.
    fn follow(&mut self, py: Python<'_>, seconds: f64) -> PyResult<u8> {
        let most = Duration::try_from_secs_f64(seconds)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let Self { fast, following } = self;
        match py.detach(|| fast.follow(following, most)) {
            Ok(Pause::Time) => Ok(STREAM_TIME),
            Ok(Pause::Closed) => Ok(STREAM_CLOSED),
            Ok(Pause::Other) => Ok(STREAM_OTHER),
            Err(error) => Err(to_python(&error)),
        }
    }

    /// Where it stands, while `follow` does not run.
    fn stream_position<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let StreamPosition { position, end, left, reported } = self.following.stream_position();
        STREAM_POSITION.make(py, (position, end, left, reported, self.following.rest()))
    }

    /// Whether anything came since this was asked last.
    fn has_received(&mut self) -> bool {
        self.following.has_received()
    }
}
