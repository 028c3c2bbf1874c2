//! The ledger: entries in the order in which they came, with tokens, digests, and what the last admission made of them.
//!
//! `T` is the caller's handle to a content that is still to be hashed. Hashing goes on outside, so that it needs no lock:
//! `pending` hands out what is to be hashed, `settle` takes the digests back.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::admission::{Admission, Parts, Reason, admit_in_order};
use crate::block_json::Rows;
use crate::digest::{Digest, chain};

/// The tokens of all entries under one estimator.
pub struct Column {
    sizes: Vec<i64>,
    /// `sums[i]`: the tokens of the entries before `i`; the last one is the total. Wide enough never to wrap.
    sums: Vec<i128>,
    parts: Vec<Parts>,
}

/// The tokens of one entry and of its parts.
pub type Size = (i64, Parts);

/// How many items each part of a divisible entry has.
pub type Division = Option<Box<[usize]>>;

/// What an entry's digest comes from.
pub enum Content<T> {
    /// Still to be hashed.
    Pending(T),
    /// Its digest.
    Known(Digest),
}

/// Everything about an entry but its tokens; name and source are generalised UTF-8.
#[expect(missing_docs, reason = "the fields are those of the Python method append")]
pub struct Entry<'a, T> {
    pub content: Content<T>,
    pub name: Cow<'a, [u8]>,
    pub source: Cow<'a, [u8]>,
    pub priority: i64,
    pub evictable: bool,
    /// How many of its measured items each part has; `None` when it is not divisible.
    pub division: Division,
}

/// Entries with tokens in one or more columns.
pub struct Ledger<T> {
    columns: Vec<Column>,
    rows: Rows,
    contents: Vec<Content<T>>,
    divisions: Vec<Division>,
    divisible: bool,
    chain: Vec<Digest>,
    mandatory: Vec<usize>,
    /// Evictable entries by priority, oldest first.
    by_rank: BTreeMap<i64, Vec<usize>>,
    /// Goes up with every text that was replaced.
    edits: u64,
    /// The last admission, and the column it was made in.
    last: Option<(Arc<Admission>, usize)>,
}

impl Column {
    pub(crate) fn new() -> Self {
        Self { sizes: Vec::new(), sums: vec![0], parts: Vec::new() }
    }

    pub(crate) fn push(&mut self, (size, parts): Size) {
        self.sums.push(self.total() + i128::from(size));
        self.sizes.push(size);
        self.parts.push(parts);
    }

    fn replace(&mut self, i: usize, (size, parts): Size) {
        self.sizes[i] = size;
        self.parts[i] = parts;
        for at in i..self.sizes.len() {
            self.sums[at + 1] = self.sums[at] + i128::from(self.sizes[at]);
        }
    }

    /// Tokens of entry `i`.
    pub fn size(&self, i: usize) -> i64 {
        self.sizes[i]
    }

    /// Tokens of the entries before `i`.
    pub fn prefix(&self, i: usize) -> i128 {
        self.sums[i]
    }

    /// Tokens of all entries.
    pub fn total(&self) -> i128 {
        self.sums[self.sizes.len()]
    }

    /// The smallest index from which on all entries together fit; the length when not even the last one does.
    pub fn newest_fitting(&self, budget: i64) -> usize {
        let least = self.total() - i128::from(budget);
        self.sums.partition_point(|&sum| sum < least).min(self.sizes.len())
    }
}

/// The tokens of one entry from those of its items; `None` when they go beyond 64 bits.
pub fn sized(items: &[i64], division: Option<&[usize]>) -> Option<Size> {
    let size = i64::try_from(items.iter().map(|&item| i128::from(item)).sum::<i128>()).ok()?;
    let mut rest = items;
    let parts = division.map(|division| {
        let part = |&many: &usize| rest.split_off(..many).unwrap_or_default().iter().sum();
        division.iter().map(part).collect()
    });
    Some((size, parts))
}

impl<T> Ledger<T> {
    /// A ledger without entries.
    pub fn new(columns: usize) -> Self {
        Self {
            columns: (0..columns).map(|_| Column::new()).collect(),
            rows: Rows::default(),
            contents: Vec::new(),
            divisions: Vec::new(),
            divisible: false,
            chain: Vec::new(),
            mandatory: Vec::new(),
            by_rank: BTreeMap::new(),
            edits: 0,
            last: None,
        }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// One column.
    pub fn column(&self, column: usize) -> &Column {
        &self.columns[column]
    }

    /// How many entries there are, and how many texts were replaced: equal only while nothing has changed.
    pub fn state(&self) -> (usize, u64) {
        (self.len(), self.edits)
    }

    /// How many items each part of each entry has, for divisible ones.
    pub fn divisions(&self) -> &[Division] {
        &self.divisions
    }

    /// Adds an entry with its tokens in every column and returns its index.
    pub fn append(&mut self, entry: Entry<'_, T>, sizes: impl IntoIterator<Item = Size>) -> usize {
        let Entry { content, name, source, priority, evictable, division } = entry;
        let i = self.len();
        self.columns.iter_mut().zip(sizes).for_each(|(column, size)| column.push(size));
        self.divisible |= division.is_some();
        self.rows.push(&name, priority, &source, evictable);
        self.contents.push(content);
        self.divisions.push(division);
        if evictable {
            self.by_rank.entry(priority).or_default().push(i);
        } else {
            self.mandatory.push(i);
        }
        self.last = None;
        i
    }

    /// Gives an entry another text: its tokens, its digest, and the chain from there on are new.
    pub fn set_text(&mut self, i: usize, sizes: impl IntoIterator<Item = Size>, content: T, division: Division) {
        self.columns.iter_mut().zip(sizes).for_each(|(column, size)| column.replace(i, size));
        self.divisible |= division.is_some();
        self.divisions[i] = division;
        self.contents[i] = Content::Pending(content);
        self.chain.truncate(i);
        self.edits += 1;
        self.last = None;
    }

    /// Adds a column with the tokens of every entry.
    pub fn add_column(&mut self, sizes: impl IntoIterator<Item = Size>) {
        let mut column = Column::new();
        sizes.into_iter().for_each(|size| column.push(size));
        self.columns.push(column);
    }

    /// The contents of entries `from..=upto` that are still to be hashed, and the state to give back to `settle`.
    pub fn pending<U>(&self, from: usize, upto: usize, handle: impl Fn(&T) -> U) -> (u64, Vec<(usize, U)>) {
        let pending = |i: usize| match &self.contents[i] {
            Content::Pending(content) => Some((i, handle(content))),
            Content::Known(_) => None,
        };
        (self.edits, (from..=upto).filter_map(pending).collect())
    }

    /// Takes digests in; false when a text was replaced since, and they may be those of the old one.
    pub fn settle(&mut self, edits: u64, digests: impl IntoIterator<Item = (usize, Digest)>) -> bool {
        if edits != self.edits {
            return false;
        }
        for (i, digest) in digests {
            self.contents[i] = Content::Known(digest);
        }
        true
    }

    /// The digest of entry `i`, if it has been settled.
    pub fn digest(&self, i: usize) -> Option<Digest> {
        match &self.contents[i] {
            Content::Known(digest) => Some(*digest),
            Content::Pending(_) => None,
        }
    }

    /// How many entries the chain covers so far.
    pub fn chained(&self) -> usize {
        self.chain.len()
    }

    /// The chain digest up to entry `i`, if all digests up to there have been settled.
    pub fn chain(&mut self, i: usize) -> Option<Digest> {
        while self.chain.len() <= i {
            let link = chain(self.chain.last(), &self.digest(self.chain.len())?);
            self.chain.push(link);
        }
        Some(self.chain[i])
    }

    /// Admits the entries into a budget, and keeps the result for `last` and `to_json`.
    pub fn admit(&mut self, budget: i64, column: usize) -> Arc<Admission> {
        let Column { sizes, parts, .. } = &self.columns[column];
        let by_rank = self.by_rank.values().rev().flat_map(|entries| entries.iter().rev().copied());
        let parts = if self.divisible { parts.as_slice() } else { &[] };
        let found = Arc::new(admit_in_order(sizes, parts, self.mandatory.iter().copied(), by_rank, budget));
        self.last = Some((Arc::clone(&found), column));
        found
    }

    /// The last admission, unless entries have changed since.
    pub fn last(&self) -> Option<&Admission> {
        self.last.as_ref().map(|(found, _)| &**found)
    }

    /// The block ledger after the last admission: one row per entry, as a JSON array.
    pub fn to_json(&self) -> Option<Vec<u8>> {
        let (found, column) = self.last.as_ref()?;
        let sizes = &self.columns[*column].sizes;
        let made = found.reasons.iter().enumerate().map(|(i, &reason)| match reason {
            Reason::OverBudget => (sizes[i], reason),
            _ => (found.tokens[i], reason),
        });
        Some(self.rows.write(made))
    }
}
