//! Strings and integers as JSON, in the bytes that Python's `json` gives with `ensure_ascii=False`.

/// What becomes of a lone surrogate (three bytes that UTF-8 does not have).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Surrogates {
    /// Stays as its three bytes.
    Kept,
    /// Becomes its JSON escape.
    Escaped,
}

/// Writes an integer.
pub fn write_integer(out: &mut Vec<u8>, number: i64) {
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

/// Writes a string given as generalised UTF-8. Non-ASCII text stays as it is.
pub fn write_string(out: &mut Vec<u8>, text: &[u8], surrogates: Surrogates) {
    out.push(b'"');
    let mut rest = text;
    loop {
        let (clean, odd) = rest.split_at(clean_length(rest, surrogates));
        out.extend_from_slice(clean);
        let [byte, after @ ..] = odd else { break };
        rest = after;
        match byte {
            b'"' | b'\\' => out.extend([b'\\', *byte]),
            b'\n' => out.extend(b"\\n"),
            b'\r' => out.extend(b"\\r"),
            b'\t' => out.extend(b"\\t"),
            0x08 => out.extend(b"\\b"),
            0x0C => out.extend(b"\\f"),
            0..0x20 => escape(out, u16::from(*byte)),
            _ => match after {
                [second @ 0xA0..=0xFF, third, behind @ ..] => {
                    escape(out, 0xD000 | u16::from(second & 0x3F) << 6 | u16::from(third & 0x3F));
                    rest = behind;
                }
                _ => out.push(*byte),
            },
        }
    }
    out.push(b'"');
}

/// How many bytes at the front need no look: most text has few that do, so whole blocks are tested at once.
#[expect(clippy::needless_bitwise_bool, reason = "a way out would keep the compiler from comparing many bytes at once")]
fn clean_length(text: &[u8], surrogates: Surrogates) -> usize {
    let lead = if surrogates == Surrogates::Escaped { 0xED } else { b'"' };
    let odd = |byte: u8| (byte < 0x20) | (byte == b'"') | (byte == b'\\') | (byte == lead);
    let (blocks, _) = text.as_chunks::<32>();
    let any_odd = |block: &&[u8; 32]| block.iter().fold(0, |any, &byte| any | u8::from(odd(byte))) != 0;
    let clean = 32 * blocks.iter().position(|block| any_odd(&block)).unwrap_or(blocks.len());
    clean + text[clean..].iter().position(|&byte| odd(byte)).unwrap_or(text.len() - clean)
}

fn escape(out: &mut Vec<u8>, unit: u16) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.extend(b"\\u");
    out.extend([12, 8, 4, 0].map(|shift| HEX[usize::from(unit >> shift & 15)]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers() {
        for number in [0, 7, -1, 10, i64::MAX, i64::MIN] {
            let mut out = Vec::new();
            write_integer(&mut out, number);
            assert_eq!(out, number.to_string().into_bytes());
        }
    }

    fn written(text: &[u8], surrogates: Surrogates) -> Vec<u8> {
        let mut out = Vec::new();
        write_string(&mut out, text, surrogates);
        out
    }

    #[test]
    fn strings() {
        for (text, json) in [
            (b"a\"b\\c".as_slice(), r#""a\"b\\c""#),
            (b"\n\r\t\x08\x0c\0\x1f\x7f", "\"\\n\\r\\t\\b\\f\\u0000\\u001f\u{7f}\""),
            ("\u{e9}\u{d7ff}\u{4f60}\u{1f600}".as_bytes(), "\"\u{e9}\u{d7ff}\u{4f60}\u{1f600}\""),
        ] {
            assert_eq!(written(text, Surrogates::Escaped), json.as_bytes());
            assert_eq!(written(text, Surrogates::Kept), json.as_bytes());
        }
        let lone = b"\xed\xa0\x80\xed\xbf\xbf";
        assert_eq!(written(lone, Surrogates::Escaped), br#""\ud800\udfff""#);
        assert_eq!(written(lone, Surrogates::Kept), [b"\"".as_slice(), lone, b"\""].concat());
    }

    #[test]
    fn an_odd_byte_at_every_place_of_a_long_text() {
        for at in 0..100 {
            let mut text = vec![b'x'; 100];
            text[at] = b'\n';
            let wanted = format!("\"{}\\n{}\"", "x".repeat(at), "x".repeat(99 - at));
            assert_eq!(written(&text, Surrogates::Kept), wanted.into_bytes());
        }
    }
}
