//! JSON text to Python values, for the plain texts that calls of tools mostly have; all others are left to Python's `json`.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyList, PyString};

use crate::convert::Any;

const DEPTH_MAX: usize = 32;

/// The object that a text is, or nothing: for text that is no JSON object, and for what Python's reader is better asked about
/// (escapes by number, numbers that are no small integers, deep nesting).
pub(crate) fn object<'py>(py: Python<'py>, text: &str) -> PyResult<Option<Any<'py>>> {
    let mut reader = Reader { py, text, at: 0 };
    reader.blank();
    if reader.peek() != Some(b'{') {
        return Ok(None);
    }
    let found = reader.value(0)?;
    reader.blank();
    Ok(found.filter(|_| reader.at == text.len()))
}

struct Reader<'a, 'py> {
    py: Python<'py>,
    text: &'a str,
    at: usize,
}

impl<'a, 'py> Reader<'a, 'py> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blank(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Whether this comes next, blanks aside; then it is behind.
    fn take(&mut self, wanted: u8) -> bool {
        self.blank();
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, word: &str) -> bool {
        let found = self.text[self.at..].starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn value(&mut self, depth: usize) -> PyResult<Option<Any<'py>>> {
        self.blank();
        let py = self.py;
        Ok(match self.peek() {
            Some(b'{') if depth < DEPTH_MAX => self.dict(depth)?.map(Bound::into_any),
            Some(b'[') if depth < DEPTH_MAX => self.list(depth)?.map(Bound::into_any),
            Some(b'"') => self.string().map(|text| PyString::new(py, &text).into_any()),
            Some(b'-' | b'0'..=b'9') => {
                self.integer().map(|number| number.into_pyobject(py)).transpose()?.map(Bound::into_any)
            }
            _ if self.word("true") => Some(PyBool::new(py, true).to_owned().into_any()),
            _ if self.word("false") => Some(PyBool::new(py, false).to_owned().into_any()),
            _ if self.word("null") => Some(py.None().into_bound(py)),
            _ => None,
        })
    }

    fn dict(&mut self, depth: usize) -> PyResult<Option<Bound<'py, PyDict>>> {
        let found = PyDict::new(self.py);
        self.at += 1;
        if self.take(b'}') {
            return Ok(Some(found));
        }
        loop {
            self.blank();
            if self.peek() != Some(b'"') {
                return Ok(None);
            }
            let Some(name) = self.string() else { return Ok(None) };
            if !self.take(b':') {
                return Ok(None);
            }
            let Some(value) = self.value(depth + 1)? else { return Ok(None) };
            found.set_item(name.as_ref(), value)?;
            if self.take(b'}') {
                return Ok(Some(found));
            }
            if !self.take(b',') {
                return Ok(None);
            }
        }
    }

    fn list(&mut self, depth: usize) -> PyResult<Option<Bound<'py, PyList>>> {
        let found = PyList::empty(self.py);
        self.at += 1;
        if self.take(b']') {
            return Ok(Some(found));
        }
        loop {
            let Some(value) = self.value(depth + 1)? else { return Ok(None) };
            found.append(value)?;
            if self.take(b']') {
                return Ok(Some(found));
            }
            if !self.take(b',') {
                return Ok(None);
            }
        }
    }

    fn string(&mut self) -> Option<std::borrow::Cow<'a, str>> {
        let start = self.at + 1;
        let mut written = String::new();
        let mut from = start;
        self.at = start;
        loop {
            match self.peek()? {
                b'"' => {
                    let rest = &self.text[from..self.at];
                    self.at += 1;
                    if from == start {
                        return Some(rest.into());
                    }
                    written.push_str(rest);
                    return Some(written.into());
                }
                b'\\' => {
                    written.push_str(&self.text[from..self.at]);
                    written.push(match self.text.as_bytes().get(self.at + 1)? {
                        b'"' => '"',
                        b'\\' => '\\',
                        b'/' => '/',
                        b'b' => '\u{8}',
                        b'f' => '\u{c}',
                        b'n' => '\n',
                        b'r' => '\r',
                        b't' => '\t',
                        _ => return None,
                    });
                    self.at += 2;
                    from = self.at;
                }
                0..0x20 => return None,
                _ => self.at += 1,
            }
        }
    }

    fn integer(&mut self) -> Option<i64> {
        let start = self.at;
        self.at += usize::from(self.peek() == Some(b'-'));
        let digits = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        let leading_zero = self.text.as_bytes().get(digits) == Some(&b'0') && self.at > digits + 1;
        if leading_zero || matches!(self.peek(), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        self.text[start..self.at].parse().ok()
    }
}
