//! A turn in the index beside a session's log: 96 bytes, little-endian.
//!
//! `kernels/turn_records.py` says what stands where.

use crate::digest::{Digest, digest};
use crate::turns::{Fault, Measured};

/// Bytes of a record.
pub const SIZE: usize = 96;
const CHECKED: usize = SIZE - 4;
const OTHER: usize = Fault::ALL.len() + 1;

/// A record as read.
pub struct Record {
    /// Where the row begins and ends in the log.
    pub span: (u64, u64),
    /// The turn and its chain digest; `None` for a row that is no turn.
    pub turn: Option<(Measured, Digest)>,
}

/// Reads a record; `None` when it is not one.
pub fn read(bytes: &[u8; SIZE]) -> Option<Record> {
    if bytes[CHECKED..] != digest(&bytes[..CHECKED])[..SIZE - CHECKED] {
        return None;
    }
    let span = (u64::from_le_bytes(field(bytes, 0)), u64::from_le_bytes(field(bytes, 8)));
    let kind = usize::from(bytes[88]);
    if kind > OTHER {
        return None;
    }
    let turn = (kind < OTHER).then(|| {
        let fault = kind.checked_sub(1).map(|at| Fault::ALL[at]);
        let tokens = i64::from_le_bytes(field(bytes, 16));
        (Measured { tokens, digest: field(bytes, 24), fault }, field(bytes, 56))
    });
    Some(Record { span, turn })
}

fn field<const N: usize>(bytes: &[u8; SIZE], from: usize) -> [u8; N] {
    std::array::from_fn(|at| bytes[from + at])
}
