//! JSON-like Python values: their compact JSON, and copies that share nothing that can change.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString};
use rune_kernels::json::{Surrogates, write_integer, write_string};

use crate::convert::{Any, utf8};

/// Deeper than this is left to Python, which knows its own limit.
const DEPTH_MAX: usize = 64;

/// Writes a value as `json` would with `ensure_ascii=False` and no spaces. False for anything that is not plain: subclasses, keys
/// that are no texts, numbers past 64 bits, NaN. Then what was written is of no use.
pub(crate) fn write(out: &mut Vec<u8>, value: &Any<'_>) -> PyResult<bool> {
    write_at(out, value, 0)
}

fn write_at(out: &mut Vec<u8>, value: &Any<'_>, depth: usize) -> PyResult<bool> {
    if depth > DEPTH_MAX {
        return Ok(false);
    }
    if let Ok(text) = value.cast_exact::<PyString>() {
        write_string(out, &utf8(text)?, Surrogates::Kept);
    } else if let Ok(list) = value.cast_exact::<PyList>() {
        out.push(b'[');
        for (at, item) in list.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            if !write_at(out, &item, depth + 1)? {
                return Ok(false);
            }
        }
        out.push(b']');
    } else if let Ok(object) = value.cast_exact::<PyDict>() {
        out.push(b'{');
        for (at, (name, item)) in object.iter().enumerate() {
            let Ok(name) = name.cast_exact::<PyString>() else { return Ok(false) };
            if at > 0 {
                out.push(b',');
            }
            write_string(out, &utf8(name)?, Surrogates::Kept);
            out.push(b':');
            if !write_at(out, &item, depth + 1)? {
                return Ok(false);
            }
        }
        out.push(b'}');
    } else if value.is_none() {
        out.extend(b"null");
    } else if let Ok(truth) = value.cast_exact::<PyBool>() {
        out.extend(if truth.is_true() { b"true".as_slice() } else { b"false" });
    } else if value.is_exact_instance_of::<PyInt>() {
        let Ok(number) = value.extract::<i64>() else { return Ok(false) };
        write_integer(out, number);
    } else if let Ok(number) = value.cast_exact::<PyFloat>() {
        if !number.value().is_finite() {
            return Ok(false);
        }
        out.extend(number.repr()?.to_str()?.as_bytes());
    } else {
        return Ok(false);
    }
    Ok(true)
}

/// A deep copy; of what is not plain, Python's own.
pub(crate) fn copy<'py>(value: &Any<'py>) -> PyResult<Any<'py>> {
    copy_at(value, 0)
}

fn copy_at<'py>(value: &Any<'py>, depth: usize) -> PyResult<Any<'py>> {
    let py = value.py();
    if depth <= DEPTH_MAX {
        if let Ok(list) = value.cast_exact::<PyList>() {
            let copied = PyList::empty(py);
            for item in list.iter() {
                copied.append(copy_at(&item, depth + 1)?)?;
            }
            return Ok(copied.into_any());
        }
        if let Ok(object) = value.cast_exact::<PyDict>() {
            let copied = PyDict::new(py);
            for (name, item) in object.iter() {
                copied.set_item(name, copy_at(&item, depth + 1)?)?;
            }
            return Ok(copied.into_any());
        }
        if is_atom(value) {
            return Ok(value.clone());
        }
    }
    py.import("copy")?.call_method1("deepcopy", (value,))
}

/// Whether a value holds no others and cannot change.
pub(crate) fn is_atom(value: &Any<'_>) -> bool {
    value.is_exact_instance_of::<PyString>()
        || value.is_none()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyBool>()
        || value.is_exact_instance_of::<PyFloat>()
}
