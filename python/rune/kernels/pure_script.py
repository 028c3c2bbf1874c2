"""The ``script`` estimator: tokens of a text by the class and the context of every character. The readable twin.

``tokens(text, "large")`` is the sum of the weights of all code points, in 1/128 token, rounded up; the empty text has none.
"large" is for vocabularies of 100,000 entries and more, "small" for the others and for unknown ones. ``script_rules`` says
what is looked at, ``script_table`` has the weights. The result never exceeds the UTF-8 bytes of the text.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import NamedTuple, TypeAlias

from rune.kernels import script_rules as rules
from rune.kernels import script_table

__all__ = ["LARGE_VOCABULARY", "Machine", "digest", "machine", "tokens", "variant_for"]

LARGE_VOCABULARY = 100_000
UNIT = 128
NO_RULE = 0xFFFF
_Row: TypeAlias = "list[tuple[int, _Row]]"


class Machine(NamedTuple):
    """The rules and one table, worked out for every state and class (both numbered in the order of ``script_rules``).

    ``weight[state][cls]`` and ``after[state][cls]`` are what a character adds and the state that follows. ``same[cls]`` and
    ``same5[cls]`` replace the weight of the second to fourth and of every later equal character in a row, unless ``NO_RULE``.
    """

    weight: list[list[int]]
    after: list[list[int]]
    same: list[int]
    same5: list[int]


def variant_for(vocab_size: int | None) -> str:
    """The table for a vocabulary of that many entries: "large" or "small" (also when unknown)."""
    return "large" if vocab_size is not None and vocab_size >= LARGE_VOCABULARY else "small"


@cache
def machine(variant: str) -> Machine:
    """The machine of the table ``variant``."""
    weights = script_table.WEIGHTS[variant]
    states = rules.reachable()
    number = {state: i for i, state in enumerate(states)}
    return Machine(
        weight=[[sum(weights[name] for name in rules.slots(state, cls)) for cls in rules.CLASSES] for state in states],
        after=[[number[rules.follow(state, cls)] for cls in rules.CLASSES] for state in states],
        same=[weights.get(f"{cls}.same", NO_RULE) for cls in rules.CLASSES],
        same5=[weights[rules.SAME5[cls]] if cls in rules.SAME5 else NO_RULE for cls in rules.CLASSES],
    )


def digest() -> str:
    """The digest of all that decides an estimate: version, classes and both machines. The written tables carry it."""
    ascii_classes = [rules.CLASSES.index(rules.class_of(point)) for point in range(0x80)]
    ranges = [[first, last, rules.CLASSES.index(name)] for first, last, name in rules.RANGES]
    content = [script_table.VERSION, ascii_classes, ranges, *(machine(variant) for variant in ("large", "small"))]
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()


class _Classes(dict[str, int]):
    """The number of each character's class, looked up once for the characters that are likely to come again."""

    def __missing__(self, char: str) -> int:
        cls = rules.CLASSES.index(rules.class_of(ord(char)))
        if char < "\U00020000":
            self[char] = cls
        return cls


_classes = _Classes()


@cache
def _start(variant: str) -> _Row:
    """The row of the state before a text. A row has, for each class, the weight and the row of the state that follows."""
    built = machine(variant)
    rows: list[_Row] = [[] for _ in built.weight]
    for row, weights, after in zip(rows, built.weight, built.after, strict=True):
        row.extend((weight, rows[state]) for weight, state in zip(weights, after, strict=True))
    return rows[0]


def tokens(text: str, variant: str) -> int:
    """Tokens of ``text`` by the table ``variant``, "large" or "small"."""
    row, (_, _, same, same5) = _start(variant), machine(variant)
    classes = _classes
    total = run = 0
    last = ""
    for char in text:
        cls = classes[char]
        weight, row = row[cls]
        if char == last:
            run += 1
            again = same5[cls] if run >= 5 else same[cls]
            if again != NO_RULE:
                weight = again
        else:
            last = char
            run = 1
        total += weight
    return -(-total // UNIT)
