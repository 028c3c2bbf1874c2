"""How rows of a store become a block of context: a heading and one bullet for each item.

Stored text is data. An item is folded into one line, so that it cannot open a heading or another item of its own, and a
long one is cut in plain sight: an ellipsis and the number of characters left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["ITEM_MAX", "block", "one_line"]

ITEM_MAX = 600  # characters of one item

# White space and control characters, with the line breaks that only some readers know (U+0085, U+2028, U+2029).
_BREAKS = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def one_line(text: str, limit: int = ITEM_MAX) -> str:
    """``text`` in one line of at most ``limit`` characters and the note on what was left out."""
    plain = text.isprintable() and "  " not in text  # the usual case, many times a turn
    line = (text if plain else _BREAKS.sub(" ", text)).strip()
    if len(line) <= limit:
        return line
    kept = line[:limit].rstrip()
    return f"{kept}… [{len(line) - len(kept)} more characters]"


def block(heading: str, items: Iterable[str]) -> str | None:
    """``## heading`` and the items as bullets; None when no item says anything."""
    bullets = [f"- {line}" for line in map(one_line, items) if line]
    return "\n".join((f"## {heading}", *bullets)) if bullets else None
