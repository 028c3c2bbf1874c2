//! `rune._native.Ledger`: the kernel's ledger behind a lock, its contents kept as Python texts until they are hashed.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use pyo3::types::{PyBytes, PyMapping, PyString, PyTuple};
use rune_kernels::admission;
use rune_kernels::digest::{Digest, digest, from_hex, hex};
use rune_kernels::ledger::{self, Content, Division, Size};

use crate::columns::{Counter, Items, division};
use crate::convert::{
    Any, Given, Text, entry, integer, integers, list, number, refuse, same_count, same_length, text, text_list, truths,
    type_name, utf8,
};
use crate::{Admission, each_text};

type Kernel = ledger::Ledger<Py<PyString>>;
type Entry<'a> = ledger::Entry<'a, Py<PyString>>;

struct State {
    counters: Vec<Arc<Counter>>,
    kernel: Kernel,
}

/// What callers say of an entry beside its texts.
struct Facts<'py> {
    name: Option<Text<'py>>,
    priority: i64,
    evictable: bool,
    source: Option<Text<'py>>,
}

/// Entries with tokens under one or more estimators.
#[pyclass(frozen, module = "rune._native")]
pub(crate) struct Ledger(Mutex<State>);

impl<'py> Facts<'py> {
    fn read(name: &Given<'py>, priority: &Given<'py>, evictable: &Given<'py>, source: &Given<'py>) -> PyResult<Self> {
        Ok(Self {
            name: name.read(|name| text(name, "name"))?,
            priority: priority.read(|rank| number(rank, "priority"))?.unwrap_or(0),
            evictable: evictable.read(PyAnyMethods::is_truthy)?.unwrap_or(true),
            source: source.read(|source| text(source, "source"))?,
        })
    }

    fn entry(&self, content: Content<Py<PyString>>, division: Division) -> PyResult<Entry<'_>> {
        let (name, source) = (bytes(self.name.as_ref())?, bytes(self.source.as_ref())?);
        let &Self { priority, evictable, .. } = self;
        Ok(Entry { content, name, source, priority, evictable, division })
    }
}

fn bytes<'a>(text: Option<&'a Text<'_>>) -> PyResult<Cow<'a, [u8]>> {
    text.map_or(Ok(Cow::Borrowed(&[])), utf8)
}

impl State {
    fn column(&self, wanted: Option<&Any<'_>>) -> PyResult<usize> {
        let Some(wanted) = wanted else { return Ok(0) };
        let wanted = text(wanted, "column")?;
        let name = wanted.to_str().unwrap_or_default();
        let begins = |rest: &str| rest.is_empty() || rest.starts_with(['/', '-']);
        let same = |counter: &Arc<Counter>| counter.key.strip_prefix(name).is_some_and(begins);
        let Some(found) = self.counters.iter().position(same) else {
            return refuse(format!("there is no column {}: the ledger has {}", wanted.repr()?, self.keys().join(", ")));
        };
        Ok(found)
    }

    fn keys(&self) -> Vec<String> {
        self.counters.iter().map(|counter| counter.key.clone()).collect()
    }

    fn check(&self, counter: &Counter) -> PyResult<()> {
        if self.counters.iter().any(|known| known.key == counter.key) {
            return refuse(format!("column {} is there already", counter.key));
        }
        Ok(())
    }
}

impl Ledger {
    fn len(&self, py: Python<'_>) -> usize {
        self.lock(py).kernel.len()
    }

    /// No Python code may run under the lock: it might come back for it.
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        self.0.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    /// The sizes of entries in every column, and the state to put them in. Measured without the lock, as an estimator may be
    /// Python's.
    fn measured<'a>(
        &self,
        py: Python<'_>,
        items: &Items<'_>,
        divisions: impl Iterator<Item = &'a Division> + Clone,
    ) -> PyResult<(MutexGuard<'_, State>, Vec<Vec<Size>>)> {
        loop {
            let counters = self.lock(py).counters.clone();
            let of_one = |counter: &Arc<Counter>| counter.sizes(py, items, divisions.clone());
            let sizes = counters.iter().map(of_one).collect::<PyResult<Vec<_>>>()?;
            let state = self.lock(py);
            if state.counters.len() == counters.len() {
                return Ok((state, sizes));
            }
        }
    }

    fn add(&self, py: Python<'_>, items: &Items<'_>, entries: Vec<Entry<'_>>) -> PyResult<usize> {
        let (mut state, sizes) = self.measured(py, items, entries.iter().map(|entry| &entry.division))?;
        let first = state.kernel.len();
        let mut columns: Vec<_> = sizes.into_iter().map(Vec::into_iter).collect();
        for entry in entries {
            state.kernel.append(entry, columns.iter_mut().filter_map(Iterator::next));
        }
        Ok(first)
    }

    /// What `read` finds in the kernel, once the contents that it misses up to entry `i` have been hashed.
    fn hashed(&self, i: &Any<'_>, read: impl Fn(&mut Kernel, usize) -> Result<Digest, usize>) -> PyResult<String> {
        let py = i.py();
        let i = entry(number(i, "index")?, self.len(py))?;
        loop {
            let mut state = self.lock(py);
            let from = match read(&mut state.kernel, i) {
                Ok(found) => return Ok(hex(&found)),
                Err(from) => from,
            };
            let (edits, pending) = state.kernel.pending(from, i, |content| content.clone_ref(py));
            drop(state); // hashing may let other threads run
            let (at, texts): (Vec<_>, Vec<_>) = pending.into_iter().map(|(at, text)| (at, text.into_bound(py))).unzip();
            let digests = each_text(py, &texts, digest)?;
            self.lock(py).kernel.settle(edits, at.into_iter().zip(digests));
        }
    }
}

#[pymethods]
impl Ledger {
    #[new]
    #[pyo3(signature = (columns=Given::Nothing))]
    fn new(py: Python<'_>, columns: Given<'_>) -> PyResult<Self> {
        let default = || vec![PyString::new(py, "chars4").into_any()];
        let given = columns.read(|columns| list(columns, "columns", |_, column| Ok(column)))?.unwrap_or_else(default);
        let mut state = State { counters: Vec::new(), kernel: Kernel::new(given.len()) };
        for column in &given {
            let counter = Counter::new(column)?;
            state.check(&counter)?;
            state.counters.push(counter);
        }
        if state.counters.is_empty() {
            return refuse("a ledger needs at least one column".into());
        }
        Ok(Self(Mutex::new(state)))
    }

    #[pyo3(signature = (texts, content, *, name=Given::Nothing, priority=Given::Nothing, evictable=Given::Nothing,
                        source=Given::Nothing, parts=None))]
    #[expect(clippy::too_many_arguments, reason = "the keywords of the Python method")]
    fn append(
        &self,
        py: Python<'_>,
        texts: &Any<'_>,
        content: &Any<'_>,
        name: Given<'_>,
        priority: Given<'_>,
        evictable: Given<'_>,
        source: Given<'_>,
        parts: Option<&Any<'_>>,
    ) -> PyResult<usize> {
        let items = Items::of_one(texts)?;
        let content = Content::Pending(text(content, "content")?.unbind());
        let facts = Facts::read(&name, &priority, &evictable, &source)?;
        let division = division(parts, items.items())?;
        self.add(py, &items, vec![facts.entry(content, division)?])
    }

    #[pyo3(signature = (texts, contents, *, names=None, priorities=None, evictable=None, sources=None))]
    #[expect(clippy::too_many_arguments, reason = "the keywords of the Python method")]
    fn extend(
        &self,
        py: Python<'_>,
        texts: &Any<'_>,
        contents: &Any<'_>,
        names: Option<&Any<'_>>,
        priorities: Option<&Any<'_>>,
        evictable: Option<&Any<'_>>,
        sources: Option<&Any<'_>>,
    ) -> PyResult<usize> {
        let items = Items::of_many(texts)?;
        let many = items.entries();
        let contents = same_length(text_list(contents, "contents")?, many, "contents")?;
        let names = each(names, many, "names", |names| text_list(names, "names"))?;
        let priorities = each(priorities, many, "priorities", |ranks| integers(ranks, "priorities", i64::MIN))?;
        let evictable = each(evictable, many, "evictable", |values| truths(values, "evictable"))?;
        let sources = each(sources, many, "sources", |sources| text_list(sources, "sources"))?;
        let entry = |(i, content): (usize, Text<'_>)| {
            Ok(Entry {
                content: Content::Pending(content.unbind()),
                name: bytes(names.as_ref().map(|names| &names[i]))?,
                source: bytes(sources.as_ref().map(|sources| &sources[i]))?,
                priority: priorities.as_ref().map_or(0, |priorities| priorities[i]),
                evictable: evictable.as_ref().is_none_or(|evictable| evictable[i]),
                division: None,
            })
        };
        let entries = contents.into_iter().enumerate().map(entry).collect::<PyResult<_>>()?;
        self.add(py, &items, entries)
    }

    #[pyo3(signature = (tokens, digest, *, name=Given::Nothing, priority=Given::Nothing, evictable=Given::Nothing,
                        source=Given::Nothing))]
    #[expect(clippy::too_many_arguments, reason = "the keywords of the Python method")]
    fn restore(
        &self,
        py: Python<'_>,
        tokens: &Any<'_>,
        digest: &Any<'_>,
        name: Given<'_>,
        priority: Given<'_>,
        evictable: Given<'_>,
        source: Given<'_>,
    ) -> PyResult<usize> {
        let Ok(mapping) = tokens.cast::<PyMapping>() else {
            return refuse(format!("tokens must be a mapping, not {}", type_name(tokens)?));
        };
        let digest = text(digest, "digest")?;
        let Some(digest) = digest.to_str().ok().and_then(|digest| from_hex(digest.as_bytes())) else {
            return refuse("digest must be 64 lower-case hex digits".into());
        };
        let facts = Facts::read(&name, &priority, &evictable, &source)?;
        let entry = facts.entry(Content::Known(digest), None)?;
        loop {
            let counters = self.lock(py).counters.clone();
            let size = |counter: &Arc<Counter>| {
                if !mapping.contains(&counter.key)? {
                    return refuse(format!("tokens has no value for column {}", counter.key));
                }
                let what = format_args!("tokens of column {}", counter.key);
                Ok((integer(&mapping.get_item(&counter.key)?, 0, what)?, None))
            };
            let sizes = counters.iter().map(size).collect::<PyResult<Vec<Size>>>()?;
            let mut state = self.lock(py);
            if state.counters.len() == sizes.len() {
                return Ok(state.kernel.append(entry, sizes));
            }
        }
    }

    #[pyo3(signature = (i, texts, content, *, parts=None))]
    fn set_text(
        &self,
        py: Python<'_>,
        i: &Any<'_>,
        texts: &Any<'_>,
        content: &Any<'_>,
        parts: Option<&Any<'_>>,
    ) -> PyResult<()> {
        let items = Items::of_one(texts)?;
        let content = text(content, "content")?.unbind();
        let division = division(parts, items.items())?;
        let i = entry(number(i, "index")?, self.len(py))?;
        let (mut state, sizes) = self.measured(py, &items, std::iter::once(&division))?;
        state.kernel.set_text(i, sizes.into_iter().flatten(), content, division);
        Ok(())
    }

    fn add_column(&self, py: Python<'_>, estimator: &Any<'_>, texts: &Any<'_>) -> PyResult<()> {
        let items = Items::of_many(texts)?;
        let state = self.lock(py);
        let (before, divisions) = (state.kernel.state(), state.kernel.divisions().to_vec());
        drop(state);
        same_count(items.entries(), divisions.len(), "texts")?;
        let counter = Counter::new(estimator)?;
        self.lock(py).check(&counter)?;
        for (i, (many, division)) in items.lengths().zip(&divisions).enumerate() {
            let sum = division.as_ref().map_or(many, |division| division.iter().sum());
            if sum != many {
                return refuse(format!("texts[{i}] has {many} texts, but its parts have {sum}"));
            }
        }
        let sizes = counter.sizes(py, &items, &divisions)?;
        let mut state = self.lock(py);
        if state.kernel.state() != before {
            return refuse("entries were added or changed while the column was measured: do it again".into());
        }
        state.check(&counter)?;
        state.counters.push(counter);
        state.kernel.add_column(sizes);
        Ok(())
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.len(py)
    }

    #[getter]
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let keys = self.lock(py).keys();
        PyTuple::new(py, keys)
    }

    #[pyo3(signature = (i, column=None))]
    fn tokens(&self, py: Python<'_>, i: &Any<'_>, column: Option<&Any<'_>>) -> PyResult<i64> {
        let i = number(i, "index")?;
        let state = self.lock(py);
        let column = state.column(column)?;
        Ok(state.kernel.column(column).size(entry(i, state.kernel.len())?))
    }

    #[pyo3(signature = (column=None))]
    fn total(&self, py: Python<'_>, column: Option<&Any<'_>>) -> PyResult<i128> {
        let state = self.lock(py);
        Ok(state.kernel.column(state.column(column)?).total())
    }

    #[pyo3(signature = (i, column=None))]
    fn prefix(&self, py: Python<'_>, i: &Any<'_>, column: Option<&Any<'_>>) -> PyResult<i128> {
        let i = number(i, "index")?;
        let state = self.lock(py);
        let column = state.column(column)?;
        Ok(state.kernel.column(column).prefix(entry(i, state.kernel.len() + 1)?))
    }

    #[pyo3(signature = (budget, column=None))]
    fn newest_fitting(&self, py: Python<'_>, budget: &Any<'_>, column: Option<&Any<'_>>) -> PyResult<usize> {
        let budget = number(budget, "budget")?;
        let state = self.lock(py);
        Ok(state.kernel.column(state.column(column)?).newest_fitting(budget))
    }

    fn digest(&self, i: &Any<'_>) -> PyResult<String> {
        self.hashed(i, |kernel, i| kernel.digest(i).ok_or(i))
    }

    fn chain(&self, i: &Any<'_>) -> PyResult<String> {
        self.hashed(i, |kernel, i| kernel.chain(i).ok_or_else(|| kernel.chained()))
    }

    #[pyo3(signature = (budget, column=None))]
    fn admit(&self, py: Python<'_>, budget: &Any<'_>, column: Option<&Any<'_>>) -> PyResult<Admission> {
        let budget = number(budget, "budget")?;
        let mut state = self.lock(py);
        let column = state.column(column)?;
        Ok(Admission(state.kernel.admit(budget, column)))
    }

    fn bitmap<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let found = self.lock(py).kernel.last().map(admission::Admission::bitmap);
        Ok(PyBytes::new(py, &admitted(found)?))
    }

    fn to_json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let found = py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).kernel.to_json());
        Ok(PyBytes::new(py, &admitted(found)?))
    }
}

fn admitted<T>(found: Option<T>) -> PyResult<T> {
    found.map_or_else(|| refuse("there is no admission of these entries: call admit first".into()), Ok)
}

/// An optional list of one value per entry.
fn each<'a, 'py, T>(
    values: Option<&'a Any<'py>>,
    many: usize,
    what: &str,
    read: impl FnOnce(&'a Any<'py>) -> PyResult<Vec<T>>,
) -> PyResult<Option<Vec<T>>> {
    values.map(|values| same_length(read(values)?, many, what)).transpose()
}
