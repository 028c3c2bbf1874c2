//! The block ledger as compact JSON: the bytes that Python's `json` gives with `ensure_ascii=False`, lone surrogates as escapes.

use crate::admission::Reason;
use crate::json::{Surrogates, write_integer, write_string};

/// The rows of the block ledger, with all that does not depend on an admission written already, one behind the other.
#[derive(Default)]
pub struct Rows {
    text: Vec<u8>,
    /// Where each row's tokens go in, and where the row ends.
    marks: Vec<(usize, usize)>,
}

impl Rows {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.marks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Adds a row; name and source are generalised UTF-8.
    pub fn push(&mut self, name: &[u8], priority: i64, source: &[u8], evictable: bool) {
        let text = &mut self.text;
        text.extend(b"{\"name\":");
        write_string(text, name, Surrogates::Escaped);
        text.extend(b",\"priority\":");
        write_integer(text, priority);
        text.extend(b",\"tokens\":");
        let split = text.len();
        text.extend(b",\"source\":");
        write_string(text, source, Surrogates::Escaped);
        text.extend(if evictable { b",\"evictable\":true,".as_slice() } else { b",\"evictable\":false," });
        self.marks.push((split, text.len()));
    }

    /// A JSON array of all rows with what an admission made of each: its tokens, and the reason.
    pub fn write(&self, made: impl Iterator<Item = (i64, Reason)>) -> Vec<u8> {
        const MOST: usize = 64; // of what is added to a row
        let mut out = Vec::with_capacity(self.text.len() + MOST * self.len() + 2);
        let mut start = 0;
        out.push(b'[');
        for (&(split, end), (tokens, reason)) in self.marks.iter().zip(made) {
            if start > 0 {
                out.push(b',');
            }
            out.extend(&self.text[start..split]);
            write_integer(&mut out, tokens);
            out.extend(&self.text[split..end]);
            out.extend(match reason {
                Reason::Mandatory => b"\"admitted\":true,\"reason\":\"mandatory\"}".as_slice(),
                Reason::Fits => b"\"admitted\":true,\"reason\":\"fits\"}",
                Reason::OverBudget => b"\"admitted\":false,\"reason\":\"over_budget\"}",
                Reason::OlderParts => b"\"admitted\":true,\"reason\":\"older_parts\"}",
            });
            start = end;
        }
        out.push(b']');
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows() {
        let mut rows = Rows::default();
        assert_eq!(rows.write(std::iter::empty()), b"[]");
        rows.push(b"n", -3, b"s", false);
        rows.push(b"", i64::MAX, b"", true);
        let json = rows.write([(5, Reason::OverBudget), (i64::MAX, Reason::OlderParts)].into_iter());
        let wanted = concat!(
            r#"[{"name":"n","priority":-3,"tokens":5,"source":"s","evictable":false,"#,
            r#""admitted":false,"reason":"over_budget"},"#,
            r#"{"name":"","priority":9223372036854775807,"tokens":9223372036854775807,"source":"","evictable":true,"#,
            r#""admitted":true,"reason":"older_parts"}]"#
        );
        assert_eq!(String::from_utf8(json).expect("UTF-8"), wanted);
    }
}
