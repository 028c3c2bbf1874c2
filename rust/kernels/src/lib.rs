//! The kernels of Rune without Python: estimates, admission, digests and the ledger.
//!
//! `python/rune/kernels/pure*.py` say the same in Python, to be read; both give identical results. A text comes in as *generalised
//! UTF-8*: UTF-8 in which a lone surrogate may stand as its three bytes, as Python's `surrogatepass` writes it.
#![forbid(unsafe_code)]

pub mod admission;
pub mod block_json;
pub mod digest;
pub mod estimate;
pub mod estimate_script;
pub mod json;
pub mod ledger;
mod script_table;
pub mod turn_record;
pub mod turns;
