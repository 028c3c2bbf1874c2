"""What the kernels are tried with: texts that break text handling, numbers at the edges, and an oracle for admission."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import strategies as st

from rune.errors import InvalidInput

INT_MIN, INT_MAX = -(2**63), 2**63 - 1

ODD_TEXTS = [
    "",
    "abc",
    "abcd",
    "\0",
    "\0\0\0\0",
    "\ud800",
    "\udfff\ud800",
    "\ud83d\ude00",  # two halves that are not one character
    "\U0001f600",
    "\uffff\ufffe",
    "\U0010ffff",
    'say "\\" \b\f\n\r\t\x1f\x7f\x80',
    "\u2028\u2029",
    "e\u0301 \u00e9",
    "你好，世界",
    "a" * 100_003,
    "é" * 70_001,
    "\ud800" + "x" * 40_000,
]

texts = st.one_of(
    st.sampled_from([text for text in ODD_TEXTS if len(text) < 1_000]),
    st.text(st.characters(codec=None, exclude_categories=()), max_size=40),  # surrogates too
    st.text(max_size=12),
)
small = st.integers(0, 12)
sizes = st.one_of(small, small, small, st.integers(0, INT_MAX), st.sampled_from([0, 1, INT_MAX - 1, INT_MAX]))
priorities = st.one_of(st.integers(-1, 2), st.integers(INT_MIN, INT_MAX))
budgets = st.one_of(st.integers(-3, 40), st.integers(INT_MIN, INT_MAX), st.sampled_from([0, 1, INT_MAX, INT_MIN]))


class Shouting(str):
    """A text whose own methods lie: the kernels must not ask them."""

    def __len__(self) -> int:
        return 1_000

    def __str__(self) -> str:
        return "something else"

    def encode(self, *_: Any, **__: Any) -> bytes:
        return b"something else"

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


class Index:
    """An integer that is no ``int``, such as numpy's."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


odd_values = st.one_of(
    st.sampled_from([None, 1.5, 3.0, b"bytes", "text", "\ud800", Shouting("abc"), object(), [], {}, True]),
    st.sampled_from([-1, 2**63, -(2**63) - 1, 10**30, Index(2), Index(2**70)]),
)


@dataclass(frozen=True)
class Blocks:
    """The arguments of ``admit``, in its order."""

    tokens: list[int]
    priorities: list[int]
    evictable: list[bool]
    parts: list[list[int] | None] | None
    budget: int

    def arguments(self) -> tuple[Any, ...]:
        return self.tokens, self.priorities, self.evictable, self.parts, self.budget


@st.composite
def blocks(draw: st.DrawFn) -> Blocks:
    """Blocks for ``admit``; some divisible, budgets often near a sum of sizes."""
    many = draw(st.integers(0, 9))
    divided = [draw(st.one_of(st.none(), st.none(), st.lists(small, max_size=5))) for _ in range(many)]
    tokens = [draw(sizes) if part is None else sum(part) for part in divided]
    near = sum(draw(st.lists(st.sampled_from(tokens), max_size=many))) if tokens else 0
    budget = draw(st.one_of(budgets, st.integers(-1, 1).map(lambda shift: min(near + shift, INT_MAX))))
    return Blocks(
        tokens,
        [draw(priorities) for _ in range(many)],
        draw(st.lists(st.booleans(), min_size=many, max_size=many)),
        divided if draw(st.booleans()) or any(part is not None for part in divided) else None,
        budget,
    )


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, in a form in which the two twins can be compared: a value, or the error's type and words."""
    try:
        result = call()
    except (InvalidInput, OverflowError, ValueError, TypeError) as error:
        return type(error).__name__, str(error)
    return facts(result) if hasattr(result, "overflow_index") else result


def facts(admission: Any) -> dict[str, Any]:
    """An admission as plain values."""
    names = ("overflow", "overflow_index", "used_before", "total", "admitted", "tokens", "kept_parts", "reasons")
    return {name: getattr(admission, name) for name in names} | {"bitmap": admission.bitmap()}


def oracle(given: Blocks) -> dict[str, Any]:
    """Admission by its definition, block by block, slowly and with nothing in common with the kernels' loops.

    Every block asks all others whether they come before it, adds up what those took, and looks at what is left.
    """
    many = len(given.tokens)

    def goes_before(a: int, b: int) -> bool:
        if given.evictable[a] != given.evictable[b]:
            return given.evictable[b]
        if not given.evictable[a]:
            return a < b
        if given.priorities[a] != given.priorities[b]:
            return given.priorities[a] > given.priorities[b]
        return a > b

    def parts_of(i: int) -> list[int] | None:
        return None if given.parts is None else given.parts[i]

    @cache
    def left_for(i: int) -> int:
        return given.budget - sum(taken(a)[0] for a in range(many) if goes_before(a, i))

    @cache
    def overflows(i: int) -> bool:
        """Whether mandatory block ``i`` is the first that does not fit."""
        others = any(goes_before(a, i) and overflows(a) for a in range(many) if not given.evictable[a])
        return not others and (given.budget <= 0 or given.tokens[i] > left_for(i))

    def failed_before(i: int) -> bool:
        return any(overflows(a) for a in range(many) if not given.evictable[a] and (a == i or goes_before(a, i)))

    @cache
    def taken(i: int) -> tuple[int, str, int]:
        """Tokens taken, why, and parts kept."""
        if given.budget <= 0 or failed_before(i):
            return 0, "over_budget", 0
        parts = parts_of(i)
        if given.tokens[i] <= left_for(i):
            return given.tokens[i], "fits" if given.evictable[i] else "mandatory", len(parts or ())
        kept = [count for count in range(1, len(parts or ())) if sum((parts or [])[-count:]) <= left_for(i)]
        if not kept:
            return 0, "over_budget", 0
        return sum((parts or [])[-max(kept) :]), "older_parts", max(kept)

    mandatory = [i for i in range(many) if not given.evictable[i]]
    first_fault = next((i for i in mandatory if overflows(i)), None)
    overflow = given.budget <= 0 or first_fault is not None
    admitted = tuple(taken(i)[1] != "over_budget" for i in range(many))
    total = sum(taken(i)[0] for i in range(many))
    return {
        "overflow": overflow,
        "overflow_index": first_fault,
        "used_before": total if overflow else 0,
        "total": total,
        "admitted": admitted,
        "tokens": tuple(taken(i)[0] for i in range(many)),
        "kept_parts": tuple(None if parts_of(i) is None else taken(i)[2] for i in range(many)),
        "reasons": tuple(taken(i)[1] for i in range(many)),
        "bitmap": sum(1 << i for i, entered in enumerate(admitted) if entered).to_bytes((many + 7) // 8, "little"),
    }
