//! The ledger: entries in the order in which they came, with tokens, digests, and what the last admission made of them.
//!
//! `T` is the caller's handle to a content that is still to be hashed. Hashing goes on outside, so that it needs no lock:
//! `pending` hands out what is to be hashed, `settle` takes the digests back.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::admission::{Admission, Parts, Reason, admit_in_order};
use crate::block_json::Row;
use crate::digest::{Digest, chain};

/// The tokens of all entries under one estimator.
pub struct Column {
    sizes: Vec<i64>,
    /// `sums[i]`: the tokens of the entries before `i`; the last one is the total. Wide enough never to wrap.
    sums: Vec<i128>,
    parts: Vec<Parts>,
}

/// The tokens of one entry, or why it has none.
pub type Size = (i64, Parts);

/// What an entry's digest comes from.
pub enum Content<T> {
    /// Still to be hashed.
    Pending(T),
    /// Its digest.
    Known(Digest),
}

/// Entries with tokens in one or more columns.
pub struct Ledger<T> {
    columns: Vec<Column>,
    rows: Vec<Row>,
    contents: Vec<Content<T>>,
    /// How many measured items each part has, for divisible entries.
    divisions: Vec<Option<Box<[usize]>>>,
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
    fn new() -> Self {
        Self { sizes: Vec::new(), sums: vec![0], parts: Vec::new() }
    }

    fn push(&mut self, (size, parts): Size) {
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
            rows: Vec::new(),
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

    /// How many items each part of each entry has, for divisible ones.
    pub fn divisions(&self) -> &[Option<Box<[usize]>>] {
        &self.divisions
    }

    /// Adds an entry with its tokens in every column and returns its index.
    pub fn append(
        &mut self,
        sizes: impl IntoIterator<Item = Size>,
        content: Content<T>,
        row: Row,
        (priority, evictable): (i64, bool),
        division: Option<Box<[usize]>>,
    ) -> usize {
        let i = self.len();
        self.columns.iter_mut().zip(sizes).for_each(|(column, size)| column.push(size));
        self.divisible |= division.is_some();
        self.rows.push(row);
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
    pub fn set_text(
        &mut self,
        i: usize,
        sizes: impl IntoIterator<Item = Size>,
        content: T,
        division: Option<Box<[usize]>>,
    ) {
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
        let mut out = Vec::with_capacity(self.rows.iter().map(|row| row.size() + 1).sum::<usize>() + 2);
        out.push(b'[');
        for (i, (row, reason)) in self.rows.iter().zip(&found.reasons).enumerate() {
            if i > 0 {
                out.push(b',');
            }
            row.write(&mut out, if *reason == Reason::OverBudget { sizes[i] } else { found.tokens[i] }, *reason);
        }
        out.push(b']');
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::digest;

    fn filled(sizes: &[i64]) -> Ledger<Vec<u8>> {
        let mut ledger = Ledger::new(1);
        for size in sizes {
            let content = Content::Pending(size.to_string().into_bytes());
            ledger.append([(*size, None)], content, Row::new(b"n", 0, b"", true), (0, true), None);
        }
        ledger
    }

    fn settle(ledger: &mut Ledger<Vec<u8>>) {
        let (edits, pending) = ledger.pending(0, ledger.len() - 1, Vec::clone);
        assert!(ledger.settle(edits, pending.iter().map(|(i, content)| (*i, digest(content)))));
    }

    #[test]
    fn newest_fitting_agrees_with_adding_up() {
        let sizes = [3, 0, 5, 0, 2, 7, 0];
        let ledger = filled(&sizes);
        for budget in -1..20 {
            let fits = |from: &usize| sizes[*from..].iter().sum::<i64>() <= budget;
            assert_eq!(ledger.column(0).newest_fitting(budget), (0..7).find(fits).unwrap_or(7), "{budget}");
        }
    }

    #[test]
    fn totals_never_wrap_and_follow_a_new_text() {
        let mut ledger = filled(&[i64::MAX, i64::MAX, i64::MAX]);
        assert_eq!(ledger.column(0).total(), 3 * i128::from(i64::MAX));
        ledger.set_text(1, [(1, None)], Vec::new(), None);
        assert_eq!(ledger.column(0).prefix(2), i128::from(i64::MAX) + 1);
        assert_eq!(ledger.column(0).total(), 2 * i128::from(i64::MAX) + 1);
    }

    #[test]
    fn sizes_of_parts() {
        assert_eq!(sized(&[1, 2, 3], Some(&[2, 0, 1])), Some((6, Some(Box::from([3, 0, 3])))));
        assert_eq!(sized(&[i64::MAX, 1], None), None);
    }

    #[test]
    fn a_new_text_makes_late_digests_void() {
        let mut ledger = filled(&[1, 2]);
        let (edits, _) = ledger.pending(0, 1, Vec::clone);
        ledger.set_text(0, [(9, None)], b"9".to_vec(), None);
        assert!(!ledger.settle(edits, [(0, digest(b"1"))]));
        assert_eq!(ledger.chain(1), None);
        settle(&mut ledger);
        assert_eq!(ledger.digest(0), Some(digest(b"9")));
        assert_eq!(ledger.chain(1), Some(chain(Some(&chain(None, &digest(b"9"))), &digest(b"2"))));
    }

    #[test]
    fn an_admission_is_void_once_entries_change() {
        let mut ledger = filled(&[4, 4]);
        ledger.admit(5, 0);
        assert_eq!(ledger.last().map(Admission::bitmap), Some(vec![0b10]));
        ledger.set_text(0, [(1, None)], Vec::new(), None);
        assert!(ledger.last().is_none() && ledger.to_json().is_none());
    }
}
