"""Finding a tool by what it does: the search, and the tool that lets the model use it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from rune.errors import ToolError
from rune.runtime.tools import TOOLS, Tool, ToolContext, tool

__all__ = ["FOUND_MAX", "find_capability", "matches", "search_tools"]

FOUND_MAX = 5
_WORD = re.compile(r"[^\W_]+")
_NAMED = 1000  # the score of a tool whose name was given
_STEM = 5  # letters by which two words count as the same: "writes" and "writing"
_EMPTY = frozenset(
    "a an and any for from how i in into is it of on or that the this to tool tools use what with".split()
)


def matches(words: str, tools: Iterable[Tool]) -> list[tuple[Tool, int]]:
    """The tools that some words describe with their scores, best first, as they come among equals.

    A word of the name counts 4, of the description 2, of the parameters 1.
    """
    wanted = _stems(words)
    scored: list[tuple[Tool, int]] = []
    for one in tools:
        names = _stems(one.name)
        texts = _stems(one.description)
        parameters = {stem for name in one.parameters.get("properties", {}) for stem in _stems(name)}
        score = sum(4 * (w in names) + 2 * (w in texts) + (w in parameters) for w in wanted)
        if one.name == words.strip():
            score += _NAMED
        if score:
            scored.append((one, score))
    return sorted(scored, key=lambda found: -found[1])


def search_tools(words: str, tools: Iterable[Tool], limit: int = FOUND_MAX) -> list[Tool]:
    """The tools that some words describe, best first."""
    return [one for one, _ in matches(words, tools)[:limit]]


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
