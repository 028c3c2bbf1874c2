"""The tools that remember and recall. What they store can be seen and removed with ``rune memory``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from rune.errors import ToolError
from rune.runtime.services import MemoryService
from rune.runtime.tools import ToolContext, tool

__all__ = ["recall", "relate", "remember"]

REMEMBERED_MAX = 2_000  # characters of one memory
NAME_MAX = 200


@tool(needs="memory")
def remember(
    context: ToolContext,
    text: Annotated[
        str,
        Meta(
            min_length=1, max_length=REMEMBERED_MAX, description="one fact in a sentence that will be understood alone"
        ),
    ],
) -> str:
    """Remembers a fact for later conversations; use it when the user says something worth keeping."""
    return f"remembered as {_memory(context).remember(text)}"


@tool(needs="memory")
def recall(
    context: ToolContext,
    question: Annotated[str, Meta(min_length=1, max_length=1_000, description="words that the memory speaks of")],
    limit: Annotated[int, Meta(ge=1, le=20)] = 5,
) -> str:
    """Finds what was remembered in earlier conversations."""
    found = _memory(context).recall(question, limit)
    return "\n".join(f"- {line}" for line in found) or f"nothing is remembered about {question!r}"


@tool(needs="memory", default_on=False)
def relate(
    context: ToolContext,
    subject: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)],
    relation: Annotated[str, Meta(min_length=1, max_length=NAME_MAX, description="such as: lives in, works for")],
    target: Annotated[str, Meta(min_length=1, max_length=NAME_MAX)],
) -> str:
    """Remembers how two people, places or things belong together: Anna, lives in, Oslo."""
    return f"remembered as {_memory(context).relate(subject, relation, target)}"


def _memory(context: ToolContext) -> MemoryService:
    if context.services.memory is None:
        raise ToolError("memory is off; nothing was stored or looked up")
    return context.services.memory
