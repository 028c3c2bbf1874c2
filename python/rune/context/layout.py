"""The order in which blocks stand in the messages: pure functions over names and numbers, so that a trace can be replayed.

``seed``   the specified order: system text of all text blocks by bucket, history, the user's text.
``cache``  what stays the same from turn to turn comes first, so that the server's prefix cache survives: identity, tools and
           model profile; history whose front stays put; the user's text, and behind it, in the same message, the volatile notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from rune.errors import InvalidInput

__all__ = [
    "CACHE_TURNS_MAX",
    "CACHE_TURNS_MIN",
    "LAYOUTS",
    "SEPARATOR",
    "STABLE_BLOCK_NAMES",
    "USER_BLOCK",
    "Section",
    "Spans",
    "assembly_order",
    "check_layout",
    "front_of_history",
    "join",
    "keep_half",
    "section_of",
]

Section = Literal["system", "history", "user", "notes", "ledger"]
"""Where a block stands: ``notes`` is behind the user's text in the user's message, ``ledger`` is counted but not rendered."""

Spans = dict[str, list[int]]
"""Block name to [start, end) in characters of the text that the block stands in."""

LAYOUTS = ("seed", "cache")
USER_BLOCK = "user"
SEPARATOR = "\n\n"
"""Between blocks of one message; not counted."""

STABLE_BLOCK_NAMES = frozenset({"model_profile"})
"""Evictable blocks whose text is the same on every turn; mandatory blocks are taken for stable anyway."""

CACHE_TURNS_MIN = 8
CACHE_TURNS_MAX = 16

_PLACE: dict[Section, int] = {"system": 0, "history": 1, "user": 2, "notes": 3}


class Placed(Protocol):
    """What ordering needs to know of a block."""

    @property
    def section(self) -> Section: ...
    @property
    def bucket(self) -> int: ...
    @property
    def registered(self) -> int: ...


def check_layout(layout: str) -> str:
    """The layout's name. Raises InvalidInput for an unknown one."""
    if layout not in LAYOUTS:
        raise InvalidInput(f"there is no layout {layout!r}: choose one of {', '.join(LAYOUTS)}")
    return layout


def section_of(name: str, *, layout: str, has_messages: bool, evictable: bool) -> Section:
    """Where a rendered block stands."""
    if has_messages:
        return "history"
    if name == USER_BLOCK:
        return "user"
    if layout == "cache" and evictable and name not in STABLE_BLOCK_NAMES:
        return "notes"
    return "system"


def assembly_order(blocks: Sequence[Placed], layout: str) -> list[int]:
    """Indexes of the blocks in assembly order: by bucket, then registration; ``cache`` sorts by section before that."""

    def place(i: int) -> tuple[int, int, int]:
        block = blocks[i]
        # What is counted but not rendered stands in the server's template near the tools, which is in the front.
        first = _PLACE.get(block.section, 0) if layout == "cache" else 0
        return first, block.bucket, block.registered

    return sorted(range(len(blocks)), key=place)


def join(texts: Sequence[tuple[str, str]]) -> tuple[str, Spans]:
    """Named texts as one, a blank line between them, and where each stands in it."""
    spans: Spans = {}
    at = 0
    for name, text in texts:
        spans[name] = [at, at + len(text)]
        at += len(text) + len(SEPARATOR)
    return SEPARATOR.join(text for _, text in texts), spans


def front_of_history(turns: int, front: int = 0) -> int:
    """Where offered history begins in the ``cache`` layout: it grows to 16 turns, then is cut back to 8, and so on.

    ``turns`` is the number of completed turns, ``front`` where it began before. A function of these two alone.
    """
    front = max(0, min(front, turns))
    if turns - front <= CACHE_TURNS_MAX:
        return front
    # The cuts lie where single steps would have put them, whether or not every turn was assembled.
    step = CACHE_TURNS_MAX - CACHE_TURNS_MIN + 1
    return front + step * ((turns - front - CACHE_TURNS_MIN) // step)


def keep_half(parts: Sequence[int], room: int) -> int:
    """How many newest parts stay when history in the ``cache`` layout does not fit ``room``: those within half of it.

    A cut by the least that is needed would come again on the next turn, and with it a front that the server has not cached.
    The newest part stays whenever it fits the whole room.
    """
    kept = size = 0
    for part in reversed(parts):
        size += part
        if size > (room if kept == 0 else room // 2):
            break
        kept += 1
    return kept
