//! The columns of a ledger: what entries measure, and how each column counts it.

use std::fmt::Display;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyString;
use rune_kernels::estimate;
use rune_kernels::ledger::{Division, Size, sized};

use crate::convert::{Any, Text, integer, integers, list, refuse, same_length, text, type_name};
use crate::{Estimator, find_estimator, measure};

/// How one column counts: a kernel's estimator, or any Python object with `key` and `many`.
pub(crate) struct Counter {
    pub(crate) key: String,
    kind: Kind,
}

enum Kind {
    Native(estimate::Estimator),
    Python(Py<PyAny>),
}

/// A text, or the fixed cost of something else.
enum Item<'py> {
    Text(Text<'py>),
    Fixed(i64),
}

/// What many entries measure, one behind the other.
pub(crate) struct Items<'py> {
    items: Vec<Item<'py>>,
    /// Where each entry ends.
    ends: Vec<usize>,
}

impl<'py> Items<'py> {
    pub(crate) fn of_one(values: &Any<'py>) -> PyResult<Self> {
        let mut found = Self::new();
        found.read(values, "texts")?;
        Ok(found)
    }

    pub(crate) fn of_many(entries: &Any<'py>) -> PyResult<Self> {
        let mut found = Self::new();
        list(entries, "texts", |i, values| found.read(&values, format_args!("texts[{i}]")))?;
        Ok(found)
    }

    pub(crate) fn new() -> Self {
        Self { items: Vec::new(), ends: Vec::new() }
    }

    pub(crate) fn push_text(&mut self, text: Text<'py>) {
        self.items.push(Item::Text(text));
    }

    pub(crate) fn push_fixed(&mut self, cost: i64) {
        self.items.push(Item::Fixed(cost));
    }

    /// Ends an entry.
    pub(crate) fn end(&mut self) {
        self.ends.push(self.items.len());
    }

    fn read(&mut self, values: &Any<'py>, what: impl Display + Copy) -> PyResult<()> {
        list(values, what, |i, value| {
            let what = format_args!("{what}[{i}]");
            self.items.push(if value.is_instance_of::<PyString>() {
                Item::Text(text(&value, what)?)
            } else if value.hasattr("__index__")? {
                Item::Fixed(integer(&value, 0, what)?)
            } else {
                return refuse(format!("{what} must be a str or an integer, not {}", type_name(&value)?));
            });
            Ok(())
        })?;
        self.end();
        Ok(())
    }

    pub(crate) fn entries(&self) -> usize {
        self.ends.len()
    }

    /// How many items there are.
    pub(crate) fn items(&self) -> usize {
        self.items.len()
    }

    /// How many items each entry has.
    pub(crate) fn lengths(&self) -> impl Iterator<Item = usize> {
        self.ends.iter().scan(0, |start, &end| Some(end - std::mem::replace(start, end)))
    }
}

impl Counter {
    pub(crate) fn new(given: &Any<'_>) -> PyResult<Arc<Self>> {
        let native = match given.cast::<PyString>() {
            Ok(name) => Some(find_estimator(name, None)?),
            Err(_) => given.cast_exact::<Estimator>().ok().map(|native| native.get().0),
        };
        if let Some(estimator) = native {
            return Ok(Arc::new(Self { key: estimator.key(), kind: Kind::Native(estimator) }));
        }
        if !given.hasattr("key")? || !given.hasattr("many")? {
            let kind = type_name(given)?;
            return refuse(format!("a column must be an estimator's name, or have key and many, not {kind}"));
        }
        let key = text(&given.getattr("key")?, "estimator key")?.to_string();
        Ok(Arc::new(Self { key, kind: Kind::Python(given.clone().unbind()) }))
    }

    /// The tokens of a text of so many characters, where these alone count.
    pub(crate) fn by_length(&self, length: usize) -> Option<i64> {
        match &self.kind {
            Kind::Native(estimator) => estimator.by_length(length),
            Kind::Python(_) => None,
        }
    }

    /// The tokens of every entry.
    pub(crate) fn sizes<'a>(
        &self,
        py: Python<'_>,
        given: &Items<'_>,
        divisions: impl IntoIterator<Item = &'a Division>,
    ) -> PyResult<Vec<Size>> {
        let counts = self.counts(py, &given.items)?;
        let mut start = 0;
        let of_one = |(&end, division): (&usize, &'a Division)| {
            let items = &counts[std::mem::replace(&mut start, end)..end];
            sized(items, division.as_deref())
                .map_or_else(|| refuse(format!("tokens of one entry must be from 0 to {}", i64::MAX)), Ok)
        };
        given.ends.iter().zip(divisions).map(of_one).collect()
    }

    /// The tokens of every item.
    fn counts(&self, py: Python<'_>, items: &[Item<'_>]) -> PyResult<Vec<i64>> {
        let texts: Vec<_> = items.iter().filter_map(Item::text).collect();
        let many = texts.len();
        let of_texts = match &self.kind {
            _ if texts.is_empty() => Vec::new(),
            Kind::Native(estimator) => measure(*estimator, &texts)?,
            Kind::Python(estimator) => {
                let what = format_args!("estimator {}", self.key);
                same_length(integers(&estimator.bind(py).call_method1("many", (texts,))?, what, 0)?, many, what)?
            }
        };
        if many == items.len() {
            return Ok(of_texts);
        }
        let mut of_texts = of_texts.into_iter();
        let count = |item: &Item<'_>| match item {
            Item::Text(_) => of_texts.next().unwrap_or(0),
            Item::Fixed(cost) => *cost,
        };
        Ok(items.iter().map(count).collect())
    }
}

impl<'py> Item<'py> {
    fn text(&self) -> Option<&Text<'py>> {
        match self {
            Self::Text(text) => Some(text),
            Self::Fixed(_) => None,
        }
    }
}

/// How many texts each part of an entry of `many` has.
pub(crate) fn division(parts: Option<&Any<'_>>, many: usize) -> PyResult<Division> {
    let Some(parts) = parts else { return Ok(None) };
    let sizes = integers(parts, "parts", 0)?;
    let sum: i128 = sizes.iter().map(|&size| i128::from(size)).sum();
    if usize::try_from(sum).ok() != Some(many) {
        return refuse(format!("parts has {sum} texts, but the entry has {many}"));
    }
    Ok(Some(sizes.into_iter().filter_map(|size| usize::try_from(size).ok()).collect()))
}
