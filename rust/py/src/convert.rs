//! Python values to Rust ones, with the errors of the pure twin's `checks.py` in the same words.

use std::borrow::Cow;
use std::fmt::Display;

use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};

pyo3::import_exception!(rune.errors, InvalidInput);

pub(crate) type Any<'py> = Bound<'py, PyAny>;
pub(crate) type Text<'py> = Bound<'py, PyString>;

pub(crate) fn refuse<T>(message: String) -> PyResult<T> {
    Err(InvalidInput::new_err(message))
}

/// An argument with a default of its own, so that an explicit `None` is told from nothing given.
pub(crate) enum Given<'py> {
    Nothing,
    Value(Any<'py>),
}

impl<'py> FromPyObject<'_, 'py> for Given<'py> {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self::Value(value.to_owned()))
    }
}

impl<'py> Given<'py> {
    pub(crate) fn read<T>(&self, read: impl FnOnce(&Any<'py>) -> PyResult<T>) -> PyResult<Option<T>> {
        match self {
            Self::Nothing => Ok(None),
            Self::Value(value) => read(value).map(Some),
        }
    }
}

pub(crate) fn type_name(value: &Any<'_>) -> PyResult<String> {
    Ok(value.get_type().name()?.to_string_lossy().into_owned())
}

/// An exact `str`; a subclass's own methods are never asked.
pub(crate) fn text<'py>(value: &Any<'py>, what: impl Display) -> PyResult<Text<'py>> {
    if let Ok(exact) = value.cast_exact::<PyString>() {
        return Ok(exact.clone());
    }
    if value.is_instance_of::<PyString>() {
        return Ok(value.py().get_type::<PyString>().call_method1("__str__", (value,))?.cast_into()?);
    }
    refuse(format!("{what} must be a str, not {}", type_name(value)?))
}

/// Generalised UTF-8: lone surrogates as their three bytes.
pub(crate) fn utf8<'a>(text: &'a Text<'_>) -> PyResult<Cow<'a, [u8]>> {
    match text.to_str() {
        Ok(valid) => Ok(Cow::Borrowed(valid.as_bytes())),
        Err(_) => Ok(Cow::Owned(text.call_method1("encode", ("utf-8", "surrogatepass"))?.extract()?)),
    }
}

/// An integer of at most 64 bits with a sign, and at least `least`.
pub(crate) fn integer(value: &Any<'_>, least: i64, what: impl Display) -> PyResult<i64> {
    match value.extract::<i64>() {
        Ok(number) if number >= least => Ok(number),
        Err(error) if error.is_instance_of::<PyTypeError>(value.py()) => {
            refuse(format!("{what} must be an integer, not {}", type_name(value)?))
        }
        Err(error) if !error.is_instance_of::<PyOverflowError>(value.py()) => Err(error),
        _ => refuse(format!("{what} must be from {least} to {}", i64::MAX)),
    }
}

/// `integer` without a least value.
pub(crate) fn number(value: &Any<'_>, what: impl Display + Copy) -> PyResult<i64> {
    integer(value, i64::MIN, what)
}

/// Each value of an iterable, read by `read` with its index. One text is refused.
pub(crate) fn list<'py, T>(
    values: &Any<'py>,
    what: impl Display + Copy,
    mut read: impl FnMut(usize, Any<'py>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    if let Ok(values) = values.cast_exact::<PyList>() {
        let mut found = Vec::with_capacity(values.len());
        for (i, value) in values.iter().enumerate() {
            found.push(read(i, value)?);
        }
        return Ok(found);
    }
    if values.is_instance_of::<PyString>() {
        return refuse(format!("{what} must be a list, not one text"));
    }
    let Ok(iterator) = values.try_iter() else {
        return refuse(format!("{what} must be a list, not {}", type_name(values)?));
    };
    let all = iterator.collect::<PyResult<Vec<_>>>()?;
    all.into_iter().enumerate().map(|(i, value)| read(i, value)).collect()
}

pub(crate) fn text_list<'py>(values: &Any<'py>, what: impl Display + Copy) -> PyResult<Vec<Text<'py>>> {
    list(values, what, |i, value| text(&value, format_args!("{what}[{i}]")))
}

pub(crate) fn integers(values: &Any<'_>, what: impl Display + Copy, least: i64) -> PyResult<Vec<i64>> {
    list(values, what, |i, value| integer(&value, least, format_args!("{what}[{i}]")))
}

pub(crate) fn truths(values: &Any<'_>, what: impl Display + Copy) -> PyResult<Vec<bool>> {
    list(values, what, |_, value| value.is_truthy())
}

pub(crate) fn same_length<T>(found: Vec<T>, wanted: usize, what: impl Display) -> PyResult<Vec<T>> {
    same_count(found.len(), wanted, what)?;
    Ok(found)
}

/// Refuses parallel lists of different lengths.
pub(crate) fn same_count(found: usize, wanted: usize, what: impl Display) -> PyResult<()> {
    if found == wanted {
        return Ok(());
    }
    refuse(format!("{what} has {found} values, but {wanted} are needed"))
}

/// The index `i` of one of `length` entries; negative ones are refused.
pub(crate) fn entry(i: i64, length: usize) -> PyResult<usize> {
    match usize::try_from(i) {
        Ok(found) if found < length => Ok(found),
        _ => refuse(format!("there is no entry {i}: the ledger has {length}")),
    }
}
