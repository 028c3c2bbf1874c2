"""The two generated tables, ``script_table.py`` and ``script_table.rs``, as text from one set of weights."""
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "python/rune/kernels/script_table.py"
RUST = ROOT / "rust/kernels/src/script_table.rs"

_PYTHON = '''"""The weights of the ``script`` estimator in 1/128 token. Written by ``scripts/fit_script_estimator.py``; do not edit.

Names are those of ``script_rules``. A change of any number needs another VERSION. DIGEST is ``pure_script.digest()``.
"""

from __future__ import annotations

__all__ = ["DIGEST", "VERSION", "WEIGHTS"]

VERSION = {version}
DIGEST = "{digest}"

# fmt: off
WEIGHTS: dict[str, dict[str, int]] = {{
{tables}}}
'''

_RUST = """//! The `script` estimator's tables. Written by `scripts/fit_script_estimator.py`; do not edit.
//!
//! Weights are in 1/128 token. `DIGEST` is the one that the readable twin's table carries.

use crate::estimate_script::Table;

pub(crate) const VERSION: u32 = {version};
/// The digest of both tables, as the readable twin computes it.
pub const DIGEST: &str = "{digest}";
pub(crate) const CLASSES: usize = {classes};
pub(crate) const STATES: usize = {states};
/// Stands where a class has no rule for equal characters in a row.
pub(crate) const NO_RULE: u16 = 0xFFFF;

/// The class of each ASCII character.
#[rustfmt::skip]
pub(crate) const ASCII: [u8; 128] = [
{ascii}];

/// First and last code point of a range, and its class; from U+0080 on without a gap.
#[rustfmt::skip]
pub(crate) const RANGES: [(u32, u32, u8); {ranges_length}] = [
{ranges}];

/// The state after a character: a row for each state, a column for each class.
#[rustfmt::skip]
pub(crate) const AFTER: [[u8; CLASSES]; STATES] = [
{after}];

{tables}"""


def python_table(version: int, digest: str, weights: Mapping[str, Mapping[str, int]]) -> str:
    """The text of ``script_table.py``."""
    tables = ""
    for variant, table in weights.items():
        lines, line = "", ""
        for name in sorted(table):
            entry = f'"{name}": {table[name]},'
            if len(line) + len(entry) > 106:
                lines, line = f"{lines}       {line}\n", ""
            line += f" {entry}"
        tables += f'    "{variant}": {{\n{lines}       {line}\n    }},\n'
    return _PYTHON.format(version=version, digest=digest, tables=tables)


def rust_table() -> str:
    """The text of ``script_table.rs`` for the table that ``rune.kernels.script_table`` holds now."""
    from rune.kernels import pure_script, script_table
    from rune.kernels import script_rules as rules

    def row(numbers: list[int]) -> str:
        return ", ".join(map(str, numbers))

    def hexadecimal(point: int) -> str:
        return f"0x{point:04X}" if point < 0x10000 else f"0x{point >> 16:04X}_{point & 0xFFFF:04X}"

    def name(state: rules.State) -> str:
        return state.kind + (f", letters {state.letters}, consonants {state.consonants}" if state.letters else "")

    states = rules.reachable()
    built = {variant: pure_script.machine(variant) for variant in script_table.WEIGHTS}
    tables = ""
    for variant, machine in built.items():
        weights = "".join(
            f"        [{row(line)}], // {name(state)}\n" for state, line in zip(states, machine.weight, strict=True)
        )
        tables += (
            f"/// For {'vocabularies of 100,000 entries and more' if variant == 'large' else 'smaller and unknown vocabularies'}.\n"
            f"#[rustfmt::skip]\npub(crate) const {variant.upper()}: Table = Table {{\n    weight: [\n{weights}    ],\n"
            f"    same: [{row(machine.same)}],\n    same5: [{row(machine.same5)}],\n}};\n\n"
        )
    ascii_classes = [rules.CLASSES.index(rules.class_of(point)) for point in range(0x80)]
    return _RUST.format(
        version=script_table.VERSION,
        digest=script_table.DIGEST,
        classes=len(rules.CLASSES),
        states=len(states),
        ascii="".join(f"    {row(ascii_classes[i : i + 16])},\n" for i in range(0, 128, 16)),
        ranges_length=len(rules.RANGES),
        ranges="".join(
            f"    ({hexadecimal(a)}, {hexadecimal(b)}, {rules.CLASSES.index(c)}), // {c}\n" for a, b, c in rules.RANGES
        ),
        after="".join(
            f"    [{row(line)}], // {name(s)}\n" for s, line in zip(states, built["large"].after, strict=True)
        ),
        tables=tables.rstrip() + "\n",
    )


def write(version: int, weights: Mapping[str, Mapping[str, int]]) -> str:
    """Write both files; gives the digest."""
    import importlib

    PYTHON.write_text(python_table(version, "", weights), encoding="utf-8")
    from rune.kernels import pure_script, script_table

    for module in (script_table, pure_script):
        importlib.reload(module)
    digest = pure_script.digest()
    PYTHON.write_text(python_table(version, digest, weights), encoding="utf-8")
    importlib.reload(script_table)
    RUST.write_text(rust_table(), encoding="utf-8")
    return digest
