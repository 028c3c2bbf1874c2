//! SHA-256 of texts in generalised UTF-8, and the chain over them.

use sha2::{Digest as _, Sha256};

/// A SHA-256.
pub type Digest = [u8; 32];

/// The digest of a text.
pub fn digest(text: &[u8]) -> Digest {
    Sha256::digest(text).into()
}

/// Covers all that came before, and one digest more: the digest of both in hex, one behind the other.
pub fn chain(before: Option<&Digest>, own: &Digest) -> Digest {
    let mut text = [0; 128];
    let (first, second) = text.split_at_mut(64);
    let Some(before) = before else {
        write_hex(own, first);
        return digest(first);
    };
    write_hex(before, first);
    write_hex(own, second);
    digest(&text)
}

/// 64 lower-case hex digits.
pub fn hex(digest: &Digest) -> String {
    let mut text = [0; 64];
    write_hex(digest, &mut text);
    text.iter().map(|&digit| char::from(digit)).collect()
}

fn write_hex(digest: &Digest, text: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, pair) in digest.iter().zip(text.chunks_exact_mut(2)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

/// The digest that 64 lower-case hex digits stand for.
pub fn from_hex(text: &[u8]) -> Option<Digest> {
    let nibble = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut found = [0; 32];
    if text.len() != 64 {
        return None;
    }
    for (byte, pair) in found.iter_mut().zip(text.chunks_exact(2)) {
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        assert_eq!(hex(&digest(b"")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(hex(&digest(b"abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn hex_there_and_back() {
        let found = digest(b"x");
        assert_eq!(from_hex(hex(&found).as_bytes()), Some(found));
        assert_eq!(from_hex(&[b'A'; 64]), None);
        assert_eq!(from_hex(&[b'a'; 63]), None);
    }

    #[test]
    fn the_chain_covers_what_came_before() {
        let (a, b) = (digest(b"a"), digest(b"b"));
        assert_eq!(chain(None, &a), digest(hex(&a).as_bytes()));
        assert_eq!(chain(Some(&a), &b), digest((hex(&a) + &hex(&b)).as_bytes()));
        assert_ne!(chain(Some(&a), &b), chain(Some(&b), &a));
    }
}
