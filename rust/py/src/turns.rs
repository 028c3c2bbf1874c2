//! `rune._native.Turns`: the kernel's turns behind a lock, their messages kept as Python texts.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::MutexExt as _;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use rune_kernels::digest::{Digest, from_hex, hex};
use rune_kernels::ledger::Division;
use rune_kernels::turn_record::{self, Record};
use rune_kernels::turns::{self, Measured, Part, canonical_digest, fault};

use crate::DETACH_FROM;
use crate::columns::{Counter, Items};
use crate::convert::{Any, Given, Text, entry, number, refuse, text};
use crate::drafts::{Draft, Drafts, Message};

/// Where the messages of a turn are.
enum Kept {
    /// In `State::messages`, from one place to another.
    Here(usize, usize),
    /// In a file, where its row begins and ends.
    Away(u64, u64),
}

/// From this many bytes for each, hashing is split over cores, of which there are at most so many.
const SPLIT_FROM: usize = 1 << 20;
const CORES_MAX: usize = 4;

#[derive(Default)]
struct State {
    kernel: turns::Turns<Kept>,
    /// Those of all turns, one behind the other.
    messages: Vec<Message>,
}

/// The turns of a conversation.
#[pyclass(frozen, module = "rune._native")]
pub(crate) struct Turns {
    counter: Arc<Counter>,
    rules: Py<PyAny>,
    image_tokens: i64,
    state: Mutex<State>,
}

impl State {
    fn keep(&mut self, messages: Vec<Message>) -> Kept {
        let start = self.messages.len();
        self.messages.extend(messages);
        Kept::Here(start, self.messages.len())
    }

    /// Adds the messages of a turn; false when they are not here.
    fn collect(&self, py: Python<'_>, kept: &Kept, found: &mut Vec<Message>) -> bool {
        let &Kept::Here(start, end) = kept else { return false };
        found.extend(self.messages[start..end].iter().map(|message| message.clone_ref(py)));
        true
    }
}

fn dicts<'py>(py: Python<'py>, messages: &[Message]) -> PyResult<Vec<Bound<'py, PyDict>>> {
    messages.iter().map(|message| message.to_dict(py)).collect()
}

impl Turns {
    /// No Python code may run under the lock: it might come back for it.
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        self.state.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    /// The index of a turn, or one past the last with `more`.
    fn number(&self, i: &Any<'_>, more: usize) -> PyResult<usize> {
        let at = number(i, "index")?;
        entry(at, self.lock(i.py()).kernel.len() + more)
    }

    /// What each turn of the drafts measures.
    fn measured(&self, py: Python<'_>, drafts: &Drafts<'_>) -> PyResult<Vec<Measured>> {
        let mut faults = Vec::with_capacity(drafts.ends.len());
        let mut spoken = Vec::new();
        for turn in drafts.turns() {
            spoken.clear();
            for (at, draft) in turn.iter().enumerate() {
                spoken.push(draft.spoken(at + 1 == turn.len())?);
            }
            faults.push(fault(&spoken));
        }
        let complete = || drafts.turns().zip(&faults).map(|(turn, fault)| if fault.is_none() { turn } else { &[] });
        let tokens = match self.counter.by_length(0) {
            Some(_) => complete().map(|turn| self.tokens_by_length(turn)).collect::<PyResult<Vec<_>>>()?,
            None => self.tokens_by_text(py, complete())?,
        };
        let digests = digests(py, drafts)?.into_iter();
        let of_one = |((digest, &fault), tokens)| Measured { tokens, digest, fault };
        Ok(digests.zip(&faults).zip(tokens).map(of_one).collect())
    }

    fn tokens_by_length(&self, turn: &[Draft<'_>]) -> PyResult<i64> {
        turn.iter().try_fold(0, |sum, draft| {
            let (length, images) = draft.length()?;
            Ok(sum + self.counter.by_length(length).unwrap_or(0) + self.image_tokens * i64::try_from(images)?)
        })
    }

    fn tokens_by_text<'a, 'py: 'a>(
        &self,
        py: Python<'py>,
        turns: impl Iterator<Item = &'a [Draft<'py>]>,
    ) -> PyResult<Vec<i64>> {
        let mut items = Items::new();
        for turn in turns {
            for draft in turn {
                let (text, images) = draft.measured()?;
                items.push_text(text);
                if images > 0 {
                    items.push_fixed(self.image_tokens * i64::try_from(images)?);
                }
            }
            items.end();
        }
        let whole: Division = None;
        let sizes = self.counter.sizes(py, &items, std::iter::repeat_n(&whole, items.entries()))?;
        Ok(sizes.into_iter().map(|(tokens, _)| tokens).collect())
    }
}

/// The digest of each turn; without the interpreter, and on several cores, when there is much to hash.
fn digests(py: Python<'_>, drafts: &Drafts<'_>) -> PyResult<Vec<Digest>> {
    let contents = drafts.messages.iter().map(Draft::bytes).collect::<PyResult<Vec<Cow<'_, [u8]>>>>()?;
    let parts: Vec<_> = drafts.messages.iter().zip(&contents).map(|(draft, content)| draft.part(content)).collect();
    let size: usize = contents.iter().map(|content| content.len()).sum();
    let ends = drafts.ends.as_slice();
    if size < DETACH_FROM {
        return Ok(digests_of(ends, 0, &parts));
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from).min(size / SPLIT_FROM).clamp(1, CORES_MAX);
    let share = ends.len().div_ceil(cores).max(1);
    let mut start = 0;
    let shares: Vec<_> =
        ends.chunks(share).map(|ends| (std::mem::replace(&mut start, ends[ends.len() - 1]), ends)).collect();
    let parts = parts.as_slice();
    Ok(py.detach(|| {
        std::thread::scope(|scope| {
            let begun: Vec<_> =
                shares.iter().map(|&(start, ends)| scope.spawn(move || digests_of(ends, start, parts))).collect();
            begun
                .into_iter()
                .flat_map(|share| share.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }))
}

/// The digests of turns that begin at `start` and have these ends.
fn digests_of(ends: &[usize], mut start: usize, parts: &[Part<'_>]) -> Vec<Digest> {
    let mut buffer = Vec::new();
    ends.iter().map(|&end| canonical_digest(&parts[std::mem::replace(&mut start, end)..end], &mut buffer)).collect()
}

#[pymethods]
impl Turns {
    #[new]
    fn new(estimator: &Any<'_>, rules: &Any<'_>) -> PyResult<Self> {
        let counter = Counter::new(estimator)?;
        let image_tokens = rules.getattr("IMAGE_TOKENS")?.extract()?;
        Ok(Self { counter, rules: rules.clone().unbind(), image_tokens, state: Mutex::default() })
    }

    fn append<'py>(&self, py: Python<'py>, messages: &Any<'py>) -> PyResult<(usize, Vec<Text<'py>>)> {
        let mut drafts = Drafts::read(messages, self.rules.bind(py))?;
        let measured = self.measured(py, &drafts)?;
        let system = std::mem::take(&mut drafts.system);
        let (messages, ends) = drafts.into_kept();
        let mut state = self.lock(py);
        let (first, mut start) = (state.kernel.len(), state.messages.len());
        let before = start;
        for (end, measured) in ends.into_iter().zip(measured) {
            let kept = Kept::Here(std::mem::replace(&mut start, before + end), before + end);
            state.kernel.push(kept, measured, None);
        }
        state.messages.extend(messages);
        Ok((first, system))
    }

    #[pyo3(signature = (messages, chain=Given::Nothing))]
    fn adopt<'py>(&self, py: Python<'py>, messages: &Any<'py>, chain: Given<'py>) -> PyResult<bool> {
        let written = chain.read(|chain| text(chain, "chain"))?;
        let written = written.as_ref().map(|chain| chain.to_str().unwrap_or("?")).unwrap_or_default();
        let drafts = Drafts::read_one(messages, self.rules.bind(py))?;
        let measured = self.measured(py, &drafts)?.into_iter().next();
        let Some(measured) = measured else { return refuse("a turn has messages".into()) };
        let (messages, _) = drafts.into_kept();
        let mut state = self.lock(py);
        let next = state.kernel.next_chain(&measured.digest);
        let written = if written.is_empty() { Some(next) } else { from_hex(written.as_bytes()) };
        let kept = state.keep(messages);
        state.kernel.push(kept, measured, written);
        Ok(written == Some(next))
    }

    fn restore<'py>(&self, py: Python<'py>, records: &Bound<'py, PyBytes>) -> PyResult<Vec<(u64, u64)>> {
        let (records, rest) = records.as_bytes().as_chunks::<{ turn_record::SIZE }>();
        let found = py.detach(|| records.iter().map(turn_record::read).collect::<Option<Vec<Record>>>());
        let Some(found) = found.filter(|_| rest.is_empty()) else {
            return refuse("the records are damaged".into());
        };
        let mut others = Vec::new();
        let mut state = self.lock(py);
        for Record { span, turn } in found {
            match turn {
                Some((measured, chain)) => drop(state.kernel.push(Kept::Away(span.0, span.1), measured, Some(chain))),
                None => others.push(span),
            }
        }
        Ok(others)
    }

    fn span(&self, py: Python<'_>, i: &Any<'_>) -> PyResult<Option<(u64, u64)>> {
        let i = self.number(i, 0)?;
        Ok(match self.lock(py).kernel.kept(i) {
            Kept::Away(start, end) => Some((*start, *end)),
            Kept::Here(..) => None,
        })
    }

    fn fill<'py>(&self, py: Python<'py>, i: &Any<'py>, messages: &Any<'py>) -> PyResult<bool> {
        let i = self.number(i, 0)?;
        let drafts = Drafts::read_one(messages, self.rules.bind(py))?;
        let found = digests(py, &drafts)?;
        let (messages, _) = drafts.into_kept();
        let mut state = self.lock(py);
        if found.first() != Some(state.kernel.digest(i)) {
            drop(state); // texts may go with the messages
            return Ok(false);
        }
        let kept = state.keep(messages);
        *state.kernel.kept_mut(i) = kept;
        Ok(true)
    }

    fn messages<'py>(&self, py: Python<'py>, i: &Any<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let i = self.number(i, 0)?;
        let mut found = Vec::new();
        let state = self.lock(py);
        let here = state.collect(py, state.kernel.kept(i), &mut found);
        drop(state);
        if !here {
            return Ok(None);
        }
        PyTuple::new(py, dicts(py, &found)?).map(Some)
    }

    fn window<'py>(&self, py: Python<'py>, start: &Any<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let start = self.number(start, 1)?;
        let mut found = Vec::new();
        let state = self.lock(py);
        let here = state.kernel.offered(start).all(|kept| state.collect(py, kept, &mut found));
        drop(state);
        if !here {
            return Ok(None);
        }
        PyList::new(py, dicts(py, &found)?).map(Some)
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        self.lock(py).kernel.len()
    }

    #[getter]
    fn key(&self) -> &str {
        &self.counter.key
    }

    fn reason(&self, py: Python<'_>, i: &Any<'_>) -> PyResult<&'static str> {
        let i = self.number(i, 0)?;
        Ok(self.lock(py).kernel.fault(i).map_or("", turns::Fault::as_str))
    }

    fn tokens(&self, py: Python<'_>, i: &Any<'_>) -> PyResult<i64> {
        let i = self.number(i, 0)?;
        Ok(self.lock(py).kernel.column().size(i))
    }

    fn digest(&self, py: Python<'_>, i: &Any<'_>) -> PyResult<String> {
        let i = self.number(i, 0)?;
        Ok(hex(self.lock(py).kernel.digest(i)))
    }

    fn chain(&self, py: Python<'_>, i: &Any<'_>) -> PyResult<String> {
        let i = self.number(i, 0)?;
        Ok(hex(self.lock(py).kernel.chain(i)))
    }

    fn total(&self, py: Python<'_>) -> i128 {
        self.lock(py).kernel.column().total()
    }

    fn prefix(&self, py: Python<'_>, i: &Any<'_>) -> PyResult<i128> {
        let i = self.number(i, 1)?;
        Ok(self.lock(py).kernel.column().prefix(i))
    }

    fn newest_fitting(&self, py: Python<'_>, budget: &Any<'_>) -> PyResult<usize> {
        let budget = number(budget, "budget")?;
        Ok(self.lock(py).kernel.column().newest_fitting(budget))
    }

    #[pyo3(signature = (complete=true))]
    fn count(&self, py: Python<'_>, complete: bool) -> usize {
        self.lock(py).kernel.numbers(complete).len()
    }

    #[pyo3(signature = (start, complete=true))]
    fn numbers(&self, py: Python<'_>, start: usize, complete: bool) -> Vec<usize> {
        self.lock(py).kernel.numbers(complete).get(start..).unwrap_or_default().to_vec()
    }
}
