//! The block ledger as compact JSON: the bytes that Python's `json` gives with `ensure_ascii=False`, lone surrogates as escapes.

use crate::admission::Reason;

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
        write_string(text, name);
        text.extend(b",\"priority\":");
        write_integer(text, priority);
        text.extend(b",\"tokens\":");
        let split = text.len();
        text.extend(b",\"source\":");
        write_string(text, source);
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

fn write_integer(out: &mut Vec<u8>, number: i64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    let mut rest = number.unsigned_abs();
    loop {
        start -= 1;
        digits[start] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend(&digits[start..]);
}

/// A JSON string. Non-ASCII text stays as it is; a lone surrogate (three bytes that UTF-8 does not have) becomes its escape.
fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let escape = |out: &mut Vec<u8>, unit: u16| {
        out.extend(b"\\u");
        out.extend([12, 8, 4, 0].map(|shift| HEX[usize::from(unit >> shift & 15)]));
    };
    out.push(b'"');
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        rest = after;
        match byte {
            b'"' | b'\\' => out.extend([b'\\', *byte]),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0x08 => out.extend(b"\\b"),
            0x0C => out.extend(b"\\f"),
            0..0x20 => escape(out, u16::from(*byte)),
            0xED => match after {
                [second @ 0xA0..=0xFF, third, behind @ ..] => {
                    escape(out, 0xD000 | u16::from(second & 0x3F) << 6 | u16::from(third & 0x3F));
                    rest = behind;
                }
                _ => out.push(*byte),
            },
            _ => out.push(*byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn integers() {
        for number in [0, 7, -1, 10, i64::MAX, i64::MIN] {
            assert_eq!(written(|out| write_integer(out, number)), number.to_string());
        }
    }

    #[test]
    fn strings() {
        for (text, json) in [
            (b"a\"b\\c".as_slice(), r#""a\"b\\c""#),
            (b"\n\r\t\x08\x0c\0\x1f\x7f", "\"\\n\\r\\t\\b\\f\\u0000\\u001f\u{7f}\""),
            ("\u{e9}\u{d7ff}\u{4f60}\u{1f600}".as_bytes(), "\"\u{e9}\u{d7ff}\u{4f60}\u{1f600}\""),
            (b"\xed\xa0\x80\xed\xbf\xbf", r#""\ud800\udfff""#),
        ] {
            assert_eq!(written(|out| write_string(out, text)), json);
        }
    }

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
