//! Estimators: how many tokens a text is taken to have. Named, versioned, deterministic; integers only.

use crate::estimate_script::{LARGE_VOCABULARY, script_large, script_small};
use crate::script_table;

/// How an estimator looks at a text.
#[derive(Clone, Copy)]
enum Measure {
    /// By the number of its code points alone, which Python knows without looking.
    Length(fn(u64) -> u64),
    /// By every code point: the argument is generalised UTF-8.
    Text(fn(&[u8]) -> u64),
}

/// A named way to count.
#[derive(Clone, Copy)]
pub struct Estimator {
    /// What users choose by.
    pub name: &'static str,
    /// Goes up whenever any text would get another number.
    pub version: u32,
    /// Tells the tables of one estimator apart; empty where there is one.
    pub variant: &'static str,
    measure: Measure,
}

impl Estimator {
    /// `chars4/1`, `script-large/1`: the name of the column in ledgers and traces.
    pub fn key(&self) -> String {
        let Self { name, version, variant, .. } = self;
        if variant.is_empty() { format!("{name}/{version}") } else { format!("{name}-{variant}/{version}") }
    }

    /// Tokens of a text of `chars` code points, when those are all that matters.
    pub fn by_length(&self, chars: usize) -> Option<i64> {
        match self.measure {
            Measure::Length(measure) => Some(clamp(measure(chars as u64))),
            Measure::Text(_) => None,
        }
    }

    /// Tokens of a text in generalised UTF-8.
    pub fn by_text(&self, text: &[u8]) -> i64 {
        clamp(match self.measure {
            Measure::Length(measure) => measure(code_points(text).count() as u64),
            Measure::Text(measure) => measure(text),
        })
    }
}

fn clamp(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

fn chars4(chars: u64) -> u64 {
    chars / 4
}

/// Every estimator's name.
pub const NAMES: [&str; 2] = ["chars4", "script"];

/// The estimator of that name for a vocabulary of `vocab_size` entries (`None`: unknown), if there is one.
pub fn get_estimator(name: &str, vocab_size: Option<i64>) -> Option<Estimator> {
    match name {
        "chars4" => Some(Estimator { name: "chars4", version: 1, variant: "", measure: Measure::Length(chars4) }),
        "script" => {
            let large = vocab_size.is_some_and(|entries| entries >= LARGE_VOCABULARY);
            let (variant, measure): (_, fn(&[u8]) -> u64) =
                if large { ("large", script_large) } else { ("small", script_small) };
            Some(Estimator { name: "script", version: script_table::VERSION, variant, measure: Measure::Text(measure) })
        }
        _ => None,
    }
}

/// The code points of generalised UTF-8, lone surrogates among them. Bytes that are no such text give some number each, never a
/// panic.
pub fn code_points(text: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let mut rest = text.iter();
    std::iter::from_fn(move || {
        let first = u32::from(*rest.next()?);
        let (mut point, more) = match first {
            0..0xC0 => return Some(first),
            0xC0..0xE0 => (first & 0x1F, 1),
            0xE0..0xF0 => (first & 0x0F, 2),
            _ => (first & 0x07, 3),
        };
        for byte in rest.by_ref().take(more) {
            point = point << 6 | u32::from(byte & 0x3F);
        }
        Some(point)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chars4_counts_code_points() {
        let chars4 = get_estimator("chars4", None).expect("chars4");
        for (text, tokens) in
            [("", 0), ("abc", 0), ("abcd", 1), ("aaaaaaa", 1), ("\u{4f60}\u{597d}\u{4e16}\u{754c}", 1)]
        {
            assert_eq!(chars4.by_text(text.as_bytes()), tokens);
            assert_eq!(chars4.by_length(text.chars().count()), Some(tokens));
        }
        assert_eq!(chars4.key(), "chars4/1");
    }

    #[test]
    fn keys_tell_variants_apart() {
        let text =
            Estimator { name: "n", version: 2, variant: "v", measure: Measure::Text(|bytes| bytes.len() as u64) };
        assert_eq!(text.key(), "n-v/2");
        assert_eq!((text.by_length(3), text.by_text(b"abc")), (None, 3));
    }

    #[test]
    fn every_name_is_there_and_no_other() {
        assert!(NAMES.iter().all(|name| get_estimator(name, None).is_some_and(|found| found.name == *name)));
        assert!(get_estimator("", None).is_none());
    }

    #[test]
    fn code_points_are_those_of_str() {
        let every: String = (0..=0x0010_FFFF).filter_map(char::from_u32).collect();
        assert!(code_points(every.as_bytes()).eq(every.chars().map(u32::from)));
        assert_eq!(code_points(b"\xed\xa0\x80a\xed\xbf\xbf").collect::<Vec<_>>(), [0xD800, 0x61, 0xDFFF]);
    }
}
