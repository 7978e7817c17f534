//! Errors of the engine as Python exceptions.

use std::io::ErrorKind;

use kerolox_core::StoreError;
use pyo3::PyErr;
use pyo3::exceptions::{PyOSError, PyValueError};

/// `OSError` with the cause's errno (Python makes `BlockingIOError`, `PermissionError` and so on of
/// it), `ValueError` for files that are not what the settings say and for a store that is not open.
pub fn to_python(error: &StoreError) -> PyErr {
    let text = error.to_string();
    let by_kind = match error.kind() {
        ErrorKind::WouldBlock => Some(libc::EAGAIN),
        ErrorKind::PermissionDenied => Some(libc::EACCES),
        ErrorKind::NotFound => Some(libc::ENOENT),
        _ => None,
    };
    match (error, error.raw_os_error().or(by_kind)) {
        (StoreError::Io { .. }, Some(number)) => PyOSError::new_err((number, text)),
        (StoreError::Io { .. }, None) => PyOSError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}
