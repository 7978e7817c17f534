//! `StoreSettings` of Python as the engine's settings.

use kerolox_core::settings::{Source, delay_levels};
use kerolox_core::{FlushDiskType, Settings};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// What Python gave.
struct Given<'a, 'py>(&'a Bound<'py, PyAny>);

impl<'py, T> Source<T, PyErr> for Given<'_, 'py>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    fn setting(&self, name: &str) -> PyResult<T> {
        self.0.getattr(name)?.extract()
    }
}

/// Reads every field by its name.
///
/// # Errors
///
/// `AttributeError`, `TypeError`, `OverflowError` or `ValueError` for a field that is missing or
/// not of its type.
pub fn from_python(given: &Bound<'_, PyAny>) -> PyResult<Settings> {
    let given = Given(given);
    let flush_disk_type: String = given.setting("flush_disk_type")?;
    let flush_disk_type = match flush_disk_type.as_str() {
        "ASYNC_FLUSH" => FlushDiskType::Async,
        "SYNC_FLUSH" => FlushDiskType::Sync,
        other => {
            return Err(PyValueError::new_err(format!(
                "flushDiskType is ASYNC_FLUSH or SYNC_FLUSH, not {other}"
            )));
        }
    };
    let levels: String = given.setting("message_delay_level")?;
    let levels = delay_levels(&levels).map_err(PyValueError::new_err)?;
    Settings::read(&given, flush_disk_type, levels)
}
