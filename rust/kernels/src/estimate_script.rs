//! The `script` estimator: tokens of a text by the class and the context of every character.
//!
//! The rules are those of the readable twin (`script_rules.py`), worked out into one table for every state and class. A
//! character's entry holds its weight and the state that follows; equal characters in a row have weights of their own.

use crate::estimate::code_points;
pub use crate::script_table::DIGEST;
use crate::script_table::{AFTER, ASCII, CLASSES, LARGE, NO_RULE, RANGES, SMALL, STATES};

/// One table of weights, in 1/128 token.
pub(crate) struct Table {
    /// By state and class.
    pub(crate) weight: [[u16; CLASSES]; STATES],
    /// By class: the weight from the second equal character in a row on.
    pub(crate) same: [u16; CLASSES],
    /// By class: the weight from the fifth equal character in a row on.
    pub(crate) same5: [u16; CLASSES],
}

/// From this many entries on, a vocabulary takes the table of the large ones.
pub const LARGE_VOCABULARY: i64 = 100_000;
const UNIT: u64 = 128;
// Both are powers of two, so that a mask stands for the check of bounds.
const ROW: usize = 64;
const ROWS: usize = 128;
const _: () = assert!(CLASSES <= ROW && STATES <= ROWS);

/// The entry of a character in a state is `entries[state * ROW + class]`: the weight above, the next state in the low 8 bits.
struct Machine {
    entries: [u32; ROWS * ROW],
    /// By the equal characters before (4: or more) and the class.
    same: [[u16; ROW]; 5],
}

#[expect(clippy::large_stack_arrays, reason = "worked out by the compiler")]
const fn machine(table: &Table) -> Machine {
    let mut built = Machine { entries: [0; ROWS * ROW], same: [[NO_RULE; ROW]; 5] };
    let mut state = 0;
    while state < STATES {
        let mut class = 0;
        while class < CLASSES {
            built.entries[state * ROW + class] = (table.weight[state][class] as u32) << 8 | AFTER[state][class] as u32;
            class += 1;
        }
        state += 1;
    }
    let mut class = 0;
    while class < CLASSES {
        built.same[1][class] = table.same[class];
        built.same[2][class] = table.same[class];
        built.same[3][class] = table.same[class];
        built.same[4][class] = table.same5[class];
        class += 1;
    }
    built
}

#[expect(clippy::large_stack_arrays, reason = "worked out by the compiler")]
const fn first_plane() -> [u8; 0x1_0000] {
    let mut classes = [0; 0x1_0000];
    let mut point = 0;
    while point < ASCII.len() {
        classes[point] = ASCII[point];
        point += 1;
    }
    let mut range = 0;
    while range < RANGES.len() {
        let (first, last, class) = RANGES[range];
        let mut point = first as usize;
        while point <= last as usize && point < classes.len() {
            classes[point] = class;
            point += 1;
        }
        range += 1;
    }
    classes
}

static LARGE_MACHINE: Machine = machine(&LARGE);
static SMALL_MACHINE: Machine = machine(&SMALL);
static FIRST_PLANE: [u8; 0x1_0000] = first_plane();

fn class_of(point: u32) -> usize {
    if let Some(&class) = FIRST_PLANE.get(point as usize) {
        return usize::from(class);
    }
    let range = RANGES.partition_point(|&(first, _, _)| first <= point);
    usize::from(RANGES[range.saturating_sub(1)].2)
}

/// Where a walk stands: what came before the next character.
struct Walk {
    state: usize,
    last: u32,
    run: usize,
    total: u64,
}

impl Walk {
    #[inline]
    fn step(&mut self, machine: &Machine, point: u32, class: usize) {
        let entry = machine.entries[(self.state * ROW + class) % (ROWS * ROW)];
        self.state = (entry & 0xFF) as usize;
        // Without a branch: whether characters repeat is hard to foretell in text.
        self.run = if point == self.last { (self.run + 1).min(4) } else { 0 };
        self.last = point;
        let again = machine.same[self.run][class % ROW];
        self.total += u64::from(if again == NO_RULE { entry >> 8 } else { u32::from(again) });
    }

    #[inline]
    fn ascii(&mut self, machine: &Machine, byte: u8) {
        self.step(machine, u32::from(byte), usize::from(ASCII[usize::from(byte & 0x7F)]));
    }
}

/// What stands at the start of a text, and just as well at the start of a line that is not empty: nothing before it counts.
const START: Walk = Walk { state: 0, last: u32::MAX, run: 0, total: 0 };

/// A place near the middle where a line begins that is not empty.
fn middle_line(plain: &[u8]) -> Option<usize> {
    let from = plain.len() / 2;
    let at = from + plain[from..].windows(2).position(|pair| pair[0] == b'\n' && pair[1] != b'\n')?;
    Some(at + 1)
}

/// Walks ASCII text. Every step waits for the one before, so two halves are walked side by side where they can be parted.
fn walk_ascii(machine: &Machine, walk: &mut Walk, plain: &[u8]) {
    let cut = if plain.len() < 256 { None } else { middle_line(plain) };
    let (first, second) = plain.split_at(cut.unwrap_or(0));
    let mut other = if cut.is_none() { std::mem::replace(walk, START) } else { START };
    let side_by_side = first.len().min(second.len());
    for (&a, &b) in first.iter().zip(second) {
        walk.ascii(machine, a);
        other.ascii(machine, b);
    }
    first[side_by_side..].iter().for_each(|&byte| walk.ascii(machine, byte));
    second[side_by_side..].iter().for_each(|&byte| other.ascii(machine, byte));
    other.total += walk.total;
    *walk = other;
}

fn tokens(machine: &Machine, text: &[u8]) -> u64 {
    let mut walk = START;
    let mut rest = text;
    while let [first, ..] = rest {
        // Runs of ASCII take no decoding.
        if *first < 0x80 {
            let length = rest.iter().position(|byte| *byte >= 0x80).unwrap_or(rest.len());
            let (plain, other) = rest.split_at(length);
            walk_ascii(machine, &mut walk, plain);
            rest = other;
        } else {
            let length = rest.iter().position(|byte| *byte < 0x80).unwrap_or(rest.len());
            let (other, plain) = rest.split_at(length);
            for point in code_points(other) {
                walk.step(machine, point, class_of(point));
            }
            rest = plain;
        }
    }
    walk.total.div_ceil(UNIT)
}

/// Tokens of a text in generalised UTF-8 for a vocabulary of 100,000 entries and more.
pub fn script_large(text: &[u8]) -> u64 {
    tokens(&LARGE_MACHINE, text)
}

/// Tokens of a text in generalised UTF-8 for a smaller vocabulary, or one of unknown size.
pub fn script_small(text: &[u8]) -> u64 {
    tokens(&SMALL_MACHINE, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_costs_nothing_and_no_text_more_than_its_bytes() {
        for text in ["", "a", "5", " 5", "\0", "\u{10FFFF}", "\u{4f60}\u{597d}", "!!!!!!!!", "aB9_ \u{301}"] {
            for estimate in [script_large(text.as_bytes()), script_small(text.as_bytes())] {
                assert!(estimate <= text.len() as u64, "{text:?}: {estimate}");
                assert_eq!(estimate == 0, text.is_empty(), "{text:?}");
            }
        }
    }

    #[test]
    fn every_code_point_has_the_class_of_its_range() {
        for (first, last, class) in RANGES {
            for point in [first, last] {
                assert_eq!(class_of(point), usize::from(class), "U+{point:04X}");
            }
        }
        assert_eq!(RANGES[0].0, 0x80);
        assert!(RANGES.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0));
        assert_eq!(RANGES[RANGES.len() - 1].1, 0x0010_FFFF);
    }

    #[test]
    fn a_run_of_letters_grows_slower_than_words() {
        let run = script_large("a".repeat(1000).as_bytes());
        assert!((100..700).contains(&run), "{run}");
        assert!(script_large("xq7zkvbw ".repeat(100).as_bytes()) > script_large("language ".repeat(100).as_bytes()));
    }

    #[test]
    fn bytes_that_are_no_text_do_not_panic() {
        for length in 0..6 {
            for byte in [0x80_u8, 0xC3, 0xE2, 0xF0, 0xFF] {
                let _ = (script_large(&vec![byte; length]), script_small(&vec![byte; length]));
            }
        }
    }
}
