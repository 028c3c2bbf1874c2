"""Admission: which blocks enter a budget of tokens, and why each of the others does not.

The rules, in the order in which they apply:

1. A budget of 0 or less holds nothing: that is an overflow, whatever the blocks are.
2. Mandatory blocks enter first, in order, each whole. The first one that does not fit is an overflow: admission stops there,
   nothing behind it enters, and the result says which block it was and what had been used before it. Nothing is ever cut.
3. Evictable blocks are tried by priority, highest first; among equals, the one registered later goes first.
4. A block that fits enters whole. One that does not is left out, and the next is tried: a small block may enter after a large
   one did not.
5. A divisible block (one with ``parts``, oldest first) that does not fit whole enters with as many of its newest parts as fit,
   without gaps. If not even the newest fits, it is left out.

Reasons are a closed set: ``mandatory`` and ``fits`` (entered whole), ``older_parts`` (entered, without its older parts),
``over_budget`` (left out).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rune.errors import InvalidInput
from rune.kernels import checks

__all__ = ["FITS", "MANDATORY", "OLDER_PARTS", "OVER_BUDGET", "Admission", "admit", "admit_in_order"]

MANDATORY = "mandatory"
FITS = "fits"
OVER_BUDGET = "over_budget"
OLDER_PARTS = "older_parts"


@dataclass(frozen=True, slots=True)
class Admission:
    """What admission decided; the tuples have one value per block, in block order.

    overflow        mandatory blocks do not fit, or the budget is 0 or less
    overflow_index  the first mandatory block that did not fit; None without an overflow, or when no block is mandatory
    used_before     tokens of the mandatory blocks before it (0 without an overflow)
    total           tokens admitted
    admitted        whether the block entered, whole or in part
    tokens          tokens admitted of the block
    kept_parts      how many of its newest parts entered; None for blocks without parts
    reasons         why
    """

    overflow: bool
    overflow_index: int | None
    used_before: int
    total: int
    admitted: tuple[bool, ...]
    tokens: tuple[int, ...]
    kept_parts: tuple[int | None, ...]
    reasons: tuple[str, ...]

    def bitmap(self) -> bytes:
        """One bit per block, 1 for admitted: block ``i`` is bit ``i % 8`` (lowest first) of byte ``i // 8``."""
        bits = bytearray((len(self.admitted) + 7) // 8)
        for i, entered in enumerate(self.admitted):
            if entered:
                bits[i // 8] |= 1 << (i % 8)
        return bytes(bits)


def admit(
    tokens: Sequence[int],
    priorities: Sequence[int],
    evictable: Sequence[bool],
    parts: Sequence[Sequence[int] | None] | None,
    budget: int,
) -> Admission:
    """Admits blocks into ``budget`` tokens by the rules above.

    ``tokens`` (0 or more), ``priorities`` and ``evictable`` have one value per block. ``parts`` is None, or holds for each
    block None or the tokens of its parts, oldest first, which add up to the block's tokens.
    Raises InvalidInput for lists of different lengths and for numbers beyond 64 bits. An overflow is a result, not an error.
    """
    sizes = checks.integers(tokens, "tokens", 0)
    ranks = checks.integers(priorities, "priorities")
    checks.same_length(len(ranks), len(sizes), "priorities")
    may_go = [bool(value) for value in checks.items(evictable, "evictable")]
    checks.same_length(len(may_go), len(sizes), "evictable")
    divided = _parts(parts, sizes)
    room = checks.integer(budget, "budget")

    mandatory = [i for i in range(len(sizes)) if not may_go[i]]
    by_rank = sorted((i for i in range(len(sizes)) if may_go[i]), key=lambda i: (-ranks[i], -i))
    return admit_in_order(sizes, divided, mandatory, by_rank, room)


def _parts(parts: Sequence[Sequence[int] | None] | None, sizes: list[int]) -> list[list[int] | None]:
    if parts is None:
        return [None] * len(sizes)
    given = checks.items(parts, "parts")
    checks.same_length(len(given), len(sizes), "parts")
    divided = [None if part is None else checks.integers(part, f"parts[{i}]", 0) for i, part in enumerate(given)]
    for i, part in enumerate(divided):
        if part is not None and sum(part) != sizes[i]:
            raise InvalidInput(f"parts[{i}] must add up to tokens[{i}]")
    return divided


def admit_in_order(
    sizes: Sequence[int],
    divided: Sequence[Sequence[int] | None],
    mandatory: Iterable[int],
    by_rank: Iterable[int],
    budget: int,
) -> Admission:
    """``admit`` for values already checked and an order already known."""
    kept = [0] * len(sizes)
    reasons = [OVER_BUDGET] * len(sizes)
    kept_parts: list[int | None] = [None if part is None else 0 for part in divided]
    room = budget

    def take(i: int, reason: str, size: int, parts_kept: int) -> None:
        nonlocal room
        room -= size
        kept[i] = size
        reasons[i] = reason
        if divided[i] is not None:
            kept_parts[i] = parts_kept

    overflow = budget <= 0
    overflow_index = None
    for i in mandatory:
        if overflow or sizes[i] > room:
            overflow, overflow_index = True, i
            break
        take(i, MANDATORY, sizes[i], len(divided[i] or ()))

    used_before = budget - room if overflow else 0
    for i in () if overflow else by_rank:
        parts = divided[i]
        if sizes[i] <= room:
            take(i, FITS, sizes[i], len(parts or ()))
        elif parts is not None:
            count, size = _newest_parts(parts, room)
            if count:
                take(i, OLDER_PARTS, size, count)

    return Admission(
        overflow=overflow,
        overflow_index=overflow_index,
        used_before=used_before,
        total=budget - room,
        admitted=tuple(reason != OVER_BUDGET for reason in reasons),
        tokens=tuple(kept),
        kept_parts=tuple(kept_parts),
        reasons=tuple(reasons),
    )


def _newest_parts(parts: Sequence[int], room: int) -> tuple[int, int]:
    """How many of the newest parts fit without a gap, and their tokens."""
    count = size = 0
    for part in reversed(parts):
        if size + part > room:
            break
        count += 1
        size += part
    return count, size
