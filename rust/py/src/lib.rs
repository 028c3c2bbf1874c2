//! The Python module `rune._native`: converts types and calls `rune-kernels`, nothing else.

mod columns;
mod convert;
mod drafts;
mod ledger;
mod parse;
mod plain;
mod turns;

use std::borrow::Borrow;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use rune_kernels::{admission, digest as sha, estimate};

use convert::{Any, integer, integers, list, number, refuse, same_length, text, text_list, truths, utf8};

/// From this many bytes on, work on texts lets other threads run.
const DETACH_FROM: usize = 1 << 15;

/// Applies `work` to the bytes of each text, without the interpreter when there is much to do.
fn each_text<T: Send>(py: Python<'_>, texts: &[convert::Text<'_>], work: fn(&[u8]) -> T) -> PyResult<Vec<T>> {
    let bytes = texts.iter().map(utf8).collect::<PyResult<Vec<_>>>()?;
    let all = || bytes.iter().map(|text| work(text)).collect();
    let size: usize = bytes.iter().map(|text| text.len()).sum();
    Ok(if size < DETACH_FROM { all() } else { py.detach(all) })
}

/// A named way to count.
#[pyclass(frozen, module = "rune._native")]
struct Estimator(estimate::Estimator);

#[pymethods]
impl Estimator {
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name
    }

    #[getter]
    fn version(&self) -> u32 {
        self.0.version
    }

    #[getter]
    fn variant(&self) -> &'static str {
        self.0.variant
    }

    #[getter]
    fn key(&self) -> String {
        self.0.key()
    }

    fn __call__(&self, text: &Any<'_>) -> PyResult<i64> {
        let text = convert::text(text, "text")?;
        Ok(measure(self.0, &[text])?[0])
    }

    fn many(&self, texts: &Any<'_>) -> PyResult<Vec<i64>> {
        measure(self.0, &text_list(texts, "texts")?)
    }

    fn __repr__(&self) -> String {
        format!("<Estimator {}>", self.0.key())
    }
}

fn find_estimator(name: &convert::Text<'_>, vocab_size: Option<i64>) -> PyResult<estimate::Estimator> {
    let Some(found) = name.to_str().ok().and_then(|name| estimate::get_estimator(name, vocab_size)) else {
        let names = estimate::NAMES.join(", ");
        return refuse(format!("there is no estimator {}: choose one of {names}", name.repr()?));
    };
    Ok(found)
}

/// Tokens of each text. Where only the length counts, Python knows it and no text is looked at.
fn measure<'py>(estimator: estimate::Estimator, texts: &[impl Borrow<convert::Text<'py>>]) -> PyResult<Vec<i64>> {
    let texts = || texts.iter().map(Borrow::borrow);
    let Some(first) = texts().next() else { return Ok(Vec::new()) };
    if estimator.by_length(0).is_some() {
        return texts().map(|text| Ok(estimator.by_length(text.len()?).unwrap_or(0))).collect();
    }
    let bytes = texts().map(utf8).collect::<PyResult<Vec<_>>>()?;
    Ok(first.py().detach(|| bytes.iter().map(|text| estimator.by_text(text)).collect()))
}

/// What admission decided.
#[pyclass(frozen, module = "rune._native")]
struct Admission(Arc<admission::Admission>);

#[pymethods]
impl Admission {
    #[getter]
    fn overflow(&self) -> bool {
        self.0.overflow
    }

    #[getter]
    fn overflow_index(&self) -> Option<usize> {
        self.0.overflow_index
    }

    #[getter]
    fn used_before(&self) -> i64 {
        self.0.used_before
    }

    #[getter]
    fn total(&self) -> i64 {
        self.0.total
    }

    #[getter]
    fn admitted<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.reasons.iter().map(|reason| reason.admitted()))
    }

    #[getter]
    fn tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.tokens)
    }

    #[getter]
    fn kept_parts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, (0..self.0.reasons.len()).map(|i| self.0.kept_parts.get(i).copied().flatten()))
    }

    #[getter]
    fn reasons<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.reasons.iter().map(|reason| reason.as_str()))
    }

    fn bitmap<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.bitmap())
    }
}

#[pymodule(gil_used = false)]
#[allow(clippy::wildcard_imports, reason = "the module is this file")]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::{Admission, Estimator, ledger::Ledger, turns::Turns};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("ESTIMATOR_NAMES", PyTuple::new(module.py(), estimate::NAMES)?)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }

    #[pyfunction]
    fn chars4(text: &Any<'_>) -> PyResult<usize> {
        Ok(convert::text(text, "text")?.len()? / 4)
    }

    #[pyfunction]
    fn chars4_many(texts: &Any<'_>) -> PyResult<Vec<usize>> {
        text_list(texts, "texts")?.iter().map(|text| Ok(text.len()? / 4)).collect()
    }

    #[pyfunction]
    #[pyo3(signature = (name, vocab_size=None))]
    fn get_estimator(name: &Any<'_>, vocab_size: Option<&Any<'_>>) -> PyResult<Estimator> {
        let vocab_size = vocab_size.map(|size| integer(size, 1, "vocab_size")).transpose()?;
        find_estimator(&text(name, "name")?, vocab_size).map(Estimator)
    }

    #[pyfunction]
    fn digest(text: &Any<'_>) -> PyResult<String> {
        let text = convert::text(text, "text")?;
        Ok(sha::hex(&each_text(text.py(), &[text], sha::digest)?[0]))
    }

    #[pyfunction]
    fn digest_many(py: Python<'_>, texts: &Any<'_>) -> PyResult<Vec<String>> {
        Ok(each_text(py, &text_list(texts, "texts")?, sha::digest)?.iter().map(sha::hex).collect())
    }

    #[pyfunction]
    fn admit(
        tokens: &Any<'_>,
        priorities: &Any<'_>,
        evictable: &Any<'_>,
        parts: &Any<'_>,
        budget: &Any<'_>,
    ) -> PyResult<Admission> {
        let sizes = integers(tokens, "tokens", 0)?;
        let many = sizes.len();
        let priorities = same_length(integers(priorities, "priorities", i64::MIN)?, many, "priorities")?;
        let evictable = same_length(truths(evictable, "evictable")?, many, "evictable")?;
        let parts = if parts.is_none() { Vec::new() } else { divided(parts, &sizes)? };
        let budget = number(budget, "budget")?;
        Ok(Admission(Arc::new(admission::admit(&sizes, &priorities, &evictable, &parts, budget))))
    }
}

fn divided(parts: &Any<'_>, sizes: &[i64]) -> PyResult<Vec<admission::Parts>> {
    let given = same_length(list(parts, "parts", |_, part| Ok(part))?, sizes.len(), "parts")?;
    let of_one = |(i, part): (usize, &Any<'_>)| {
        if part.is_none() {
            Ok(None)
        } else {
            integers(part, format_args!("parts[{i}]"), 0).map(|part| Some(part.into()))
        }
    };
    let found: Vec<admission::Parts> = given.iter().enumerate().map(of_one).collect::<PyResult<_>>()?;
    for (i, part) in found.iter().enumerate() {
        let sum = part.as_ref().map(|part| part.iter().map(|&part| i128::from(part)).sum::<i128>());
        if sum.is_some_and(|sum| sum != i128::from(sizes[i])) {
            return refuse(format!("parts[{i}] must add up to tokens[{i}]"));
        }
    }
    Ok(found)
}
