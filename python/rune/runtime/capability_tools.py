"""Finding a tool by what it does: the search, and the tool that lets the model use it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from rune.errors import ToolError
from rune.runtime.tools import TOOLS, Tool, ToolContext, tool

__all__ = ["FOUND_MAX", "find_capability", "search_tools"]

FOUND_MAX = 5
_WORD = re.compile(r"[^\W_]+")
_STEM = 5  # letters by which two words count as the same: "writes" and "writing"
_EMPTY = frozenset(
    "a an and any for from how i in into is it of on or that the this to tool tools use what with".split()
)


def search_tools(words: str, tools: Iterable[Tool], limit: int = FOUND_MAX) -> list[Tool]:
    """The tools that some words describe, best first; a word of the name counts most, then the description, then parameters."""
    wanted = _stems(words)
    scored: list[tuple[int, int, Tool]] = []
    for position, one in enumerate(tools):
        names = _stems(one.name)
        texts = _stems(one.description)
        parameters = {stem for name in one.parameters.get("properties", {}) for stem in _stems(name)}
        score = sum(4 * (w in names) + 2 * (w in texts) + (w in parameters) for w in wanted)
        if score or one.name == words.strip():
            scored.append((-score - 100 * (one.name == words.strip()), position, one))
    return [one for _, _, one in sorted(scored, key=lambda found: found[:2])[:limit]]


def _stems(text: str) -> set[str]:
    return {word[:_STEM] for word in _WORD.findall(text.lower()) if word not in _EMPTY}


@tool(default_on=False)
def find_capability(
    context: ToolContext,
    what: Annotated[str, Meta(min_length=1, max_length=500, description="what you want to do, in a few words")],
) -> str:
    """Finds further tools by what they do."""
    search = context.services.find_capability
    found = search(what) if search is not None else search_tools(what, TOOLS.values())
    found = [one for one in found if one.name != "find_capability"][:FOUND_MAX]
    if not found:
        raise ToolError(f"no tool does {what!r}; say it in other words, or do without")
    return "\n".join(_line(one) for one in found)


def _line(one: Tool) -> str:
    needs = " (needs the user's approval)" if one.approval else ""
    required = set(one.parameters.get("required", ()))
    parameters = ", ".join(name if name in required else f"{name}?" for name in one.parameters.get("properties", {}))
    return f"{one.name}({parameters}): {one.description}{needs}"
