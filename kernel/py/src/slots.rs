//! Where the instances of a class with slots keep their attributes.
//!
//! To reach an attribute by its name costs as much as to make its value, so a place is found once.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyType};

/// Where each attribute is, counted in pointers from an instance's start.
///
/// Examines instances that have one attribute each. None: an attribute is not found by its value,
/// since it is no slot, or the interpreter lays objects out in another way.
pub fn places<const N: usize>(
    class: &Bound<'_, PyType>,
    names: &[&str; N],
) -> PyResult<Option<[usize; N]>> {
    let py = class.py();
    let words = class.getattr("__basicsize__")?.extract::<usize>()? / size_of::<usize>();
    let mut found = [0; N];
    for (name, place) in names.iter().zip(&mut found) {
        let instance = py.get_type::<PyAny>().call_method1("__new__", (class,))?;
        let mark = PyList::empty(py);
        if instance.setattr(*name, &mark).is_err() {
            return Ok(None);
        }
        // SAFETY: an instance begins with `__basicsize__` bytes, which were set when it was made,
        // and nothing changes them here. What is read is compared, not followed.
        let memory =
            unsafe { std::slice::from_raw_parts(instance.as_ptr().cast::<usize>(), words) };
        let mut places = memory.iter().enumerate().filter(|(_, w)| **w == mark.as_ptr().addr());
        let (Some((first, _)), None) = (places.next(), places.next()) else { return Ok(None) };
        *place = first;
    }
    Ok(Some(found))
}
