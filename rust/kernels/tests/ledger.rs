//! The ledger, as the binding uses it.

use std::borrow::Cow;

use rune_kernels::admission::Admission;
use rune_kernels::digest::{chain, digest};
use rune_kernels::ledger::{Content, Entry, Ledger, sized};

fn filled(sizes: &[i64]) -> Ledger<Vec<u8>> {
    let mut ledger = Ledger::new(1);
    for size in sizes {
        let entry = Entry {
            content: Content::Pending(size.to_string().into_bytes()),
            name: Cow::Borrowed(b"n"),
            source: Cow::Borrowed(b""),
            priority: 0,
            evictable: true,
            division: None,
        };
        ledger.append(entry, [(*size, None)]);
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
