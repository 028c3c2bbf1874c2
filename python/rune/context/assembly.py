"""MEASURE and ADMIT: sizes of entries under an estimator, and which of them enter a budget. Pure; a trace replays through it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rune.context.blocks import Entry
from rune.context.layout import Section, keep_half
from rune.kernels import Admission, EstimatorLike, admit

__all__ = ["Offer", "Outcome", "admit_offers", "measure"]


class Offer(NamedTuple):
    """What admission needs to know of one block; ``parts`` are tokens, oldest first, for a divisible one."""

    tokens: int
    priority: int
    evictable: bool
    registered: int
    section: Section = "system"
    parts: Sequence[int] | None = None


class Outcome(NamedTuple):
    """What was decided about one block: tokens that entered, how many newest parts did (None undivided), and why."""

    admitted: bool
    tokens: int
    kept: int | None
    reason: str


class Decision(NamedTuple):
    """The outcomes in the order of the offers. With ``overflow``, ``failed`` is the first mandatory block without room."""

    outcomes: list[Outcome]
    total: int
    overflow: bool
    failed: int | None
    used_before: int


def measure(entries: Sequence[Entry], estimator: EstimatorLike) -> list[list[int]]:
    """Tokens of the parts of each entry (one part for an undivided one). All texts go to the estimator in one batch."""
    pieces = [entry.pieces if entry.fixed is None and entry.turns is None else None for entry in entries]
    counts = iter(estimator.many([text for texts in pieces if texts is not None for text in texts]))
    return [
        entry.sizes(estimator, None if texts is None else [next(counts) for _ in texts])
        for entry, texts in zip(entries, pieces, strict=True)
    ]


def admit_offers(offers: Sequence[Offer], budget: int, layout: str = "seed") -> Decision:
    """Admits offers, given in assembly order, into a budget of tokens.

    Mandatory blocks first, in the given order; then evictable ones by priority, the later registered first among equals.
    In the ``cache`` layout a history that does not fit whole is cut to half of its room, so that its front stays put for the
    turns that follow.
    """
    # The kernel breaks ties by position, so evictable blocks go to it in the order of their registration.
    evictable = sorted((i for i, o in enumerate(offers) if o.evictable), key=lambda i: offers[i].registered)
    order = [i for i, o in enumerate(offers) if not o.evictable] + evictable
    parts = {i: list(o.parts) for i, o in enumerate(offers) if o.parts is not None}
    admission = _admit(offers, order, parts, budget)
    cut = set()
    if layout == "cache" and not admission.overflow:
        for i, reason, size in zip(order, admission.reasons, admission.tokens, strict=True):
            if offers[i].section == "history" and reason == "older_parts":
                kept = keep_half(parts[i], size + budget - admission.total)
                parts[i] = parts[i][len(parts[i]) - kept :]
                cut.add(i)
        if cut:
            admission = _admit(offers, order, parts, budget)
    outcomes: list[Outcome | None] = [None] * len(offers)
    # Each attribute of the native result is made anew when asked for: once for all blocks.
    decided = zip(order, admission.admitted, admission.tokens, admission.kept_parts, admission.reasons, strict=True)
    for i, admitted, tokens, kept_parts, reason in decided:
        outcomes[i] = Outcome(admitted, tokens, kept_parts, "older_parts" if i in cut and admitted else reason)
    failed = None if admission.overflow_index is None else order[admission.overflow_index]
    return Decision(
        [outcome for outcome in outcomes if outcome is not None],
        admission.total,
        admission.overflow,
        failed,
        admission.used_before,
    )


def _admit(offers: Sequence[Offer], order: Sequence[int], parts: dict[int, list[int]], budget: int) -> Admission:
    return admit(
        [sum(parts[i]) if i in parts else offers[i].tokens for i in order],
        [offers[i].priority for i in order],
        [offers[i].evictable for i in order],
        [parts.get(i) for i in order] if parts else None,
        budget,
    )
