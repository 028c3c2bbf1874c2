"""Contributors: factories that make ``(task, session) -> ContributionBlock | None`` out of texts, conversations and stores.

``CONTRIBUTORS`` is the table of the operator's registration: place, priority, evictability and source of each block. A factory
for a store takes a callable, so that nothing here knows a database; the callable's failure is a T1 under the block's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rune.context.blocks import ContributionBlock
from rune.context.collect import SESSION_SYSTEM, Contributor, current_assembly
from rune.context.compaction import compacted
from rune.context.conversation import Conversation
from rune.context.turns import Turn

__all__ = [
    "CONTRIBUTORS",
    "HISTORY_TURNS",
    "ContributorSpec",
    "abstraction",
    "consolidated",
    "graphs",
    "history",
    "history_summary",
    "memory",
    "model_profile",
    "neurons",
    "persona",
    "persona_memories",
    "session_system",
    "task_text",
    "tools",
    "user",
]

HISTORY_TURNS = 8
"""How many completed turns are offered."""

_INCOMPLETE_LISTED = 8


class ContributorSpec(NamedTuple):
    """How a block is registered; ``heading`` begins its text."""

    name: str
    bucket: int
    priority: int
    evictable: bool
    source: str
    heading: str = ""
    per_model: bool = False


CONTRIBUTORS: tuple[ContributorSpec, ...] = (
    ContributorSpec("persona", 1, 100, False, "rune_operator._PERSONA_PROMPT"),
    ContributorSpec(SESSION_SYSTEM, 1, 100, False, "system messages of the session"),
    ContributorSpec("tools", 2, 90, False, "tool_executor.TOOLS", "## Available tools", True),
    ContributorSpec("memory", 3, 70, True, "memory_store.cached_recall(db, task, budget=3)", "## Context"),
    ContributorSpec(
        "persona_memories",
        4,
        68,
        True,
        'cached_recall(db, "Rune personality…", budget=3)',
        "## Identity context",
    ),
    ContributorSpec("consolidated", 5, 60, True, "MemoryConsolidation pipeline"),
    ContributorSpec("neurons", 6, 55, True, "warm_neuron_store.list_neurons()", "## My neurons (warm, firing)"),
    ContributorSpec("graphs", 7, 50, True, "graph_memory.resolve_entity", "## My graph connections"),
    ContributorSpec("abstraction", 8, 45, True, "abstraction.connect() facts LIKE", "## My learned knowledge"),
    ContributorSpec("model_profile", 9, 40, True, "model_profiles.get_prompt_context", "## Model", True),
    ContributorSpec("history_summary", 10, 35, True, "compaction of the history"),
    ContributorSpec("history", 10, 30, True, "rune_operator._conversation_messages"),
    ContributorSpec("user", 11, 100, False, "task text"),
)
"""The operator's contributors in order of registration."""

_HEADING = {spec.name: spec.heading for spec in CONTRIBUTORS}

Notes = str | Iterable[str] | None
"""What a store gives: a text, or lines of which a list is made."""


def task_text(task: Any) -> str:
    """The text of a task: itself, or its attribute ``task``."""
    text = task if isinstance(task, str) else getattr(task, "task", None)
    return text if isinstance(text, str) else ""


def _headed(name: str, notes: Notes) -> ContributionBlock | None:
    """Notes under the block's heading; nothing at all where there are none, so that no bare heading enters a prompt."""
    if notes is None:
        return None
    if not isinstance(notes, str):
        notes = "\n".join(f"- {line}" for line in notes if line.strip())
    body = notes.strip("\n")
    if not body.strip():
        return None
    heading = _HEADING[name]
    if heading and not body.startswith(heading):
        body = f"{heading}\n{body}"
    return ContributionBlock(content=body)


# Identity, tools and the task


def persona(text: str) -> Contributor:
    """The static identity, word for word."""

    def contribute(task: Any, session: Any) -> ContributionBlock | None:
        return ContributionBlock(content=text)

    return contribute


def session_system(persona: str = "") -> Contributor:
    """The system messages that came with the session, each once; not the one that is the persona already."""

    def contribute(task: Any, session: Any) -> ContributionBlock | None:
        known = {persona.strip()}
        texts = []
        for text in getattr(session, "system", ()):
            if text.strip() not in known:
                known.add(text.strip())
                texts.append(text)
        return ContributionBlock(content="\n\n".join(texts)) if texts else None

    return contribute


def tools(names: Iterable[str] | Callable[[], Iterable[str]]) -> Contributor:
    """``## Available tools``, names only; ``names`` may be a callable that says which there are now."""

    def contribute(task: Any, session: Any) -> ContributionBlock | None:
        return _headed("tools", list(names() if callable(names) else names))

    return contribute


def user(text: str | None = None, images: Sequence[str] | None = None) -> Contributor:
    """The user's text: the given one, else the task's; and images, the given ones or the task's attribute ``images``."""

    def contribute(task: Any, session: Any) -> ContributionBlock | None:
        given = images if images is not None else getattr(task, "images", None)
        return ContributionBlock(content=task_text(task) if text is None else text, images=list(given or ()))

    return contribute


# History


def history(limit: int = HISTORY_TURNS) -> Contributor:
    """The last completed turns of the session, divisible by whole turns; in the ``cache`` layout those behind a steady front.

    Incomplete turns are not offered; the trace says how many there are and why (``ext.history``).
    """

    def contribute(task: Any, session: Any) -> ContributionBlock | None:
        if session is None:
            return None
        if not isinstance(session, Conversation):
            raise TypeError(f"the session must be a Conversation, not {type(session).__name__}")
        steady = current_assembly().layout == "cache"
        turns: list[Turn] = session.offered_with_steady_front() if steady else session.completed_turns(limit)
        summary = compacted(session)
        if summary is not None:
            turns = [turn for turn in turns if turn.number >= summary.through]
        incomplete = session.incomplete_turns(_INCOMPLETE_LISTED)
        return ContributionBlock(
            parts=turns,
            extra={
                "turns": session.completed_count + session.incomplete_count,
                "completed": session.completed_count,
                "not_offered": session.completed_count - len(turns),
                "summarised": 0 if summary is None else summary.through,
                "incomplete": session.incomplete_count,
                "incomplete_turns": [{"turn": turn.number, "reason": turn.incomplete} for turn in incomplete],
            },
            on_cut=session.move_front if steady else None,
        )

    return contribute


def history_summary() -> Contributor:
    """What compaction made of the turns that history no longer offers: a pair of messages before it."""

    def contribute(task: Any, session: Any) -> ContributionBlock | None:
        found = compacted(session) if isinstance(session, Conversation) else None
        return None if found is None else ContributionBlock(messages=found.pair)

    return contribute


# Stores: what is remembered, by callables


def memory(recall: Callable[[str], Notes]) -> Contributor:
    """``## Context``: what ``recall(task text)`` remembers for the task."""

    def contribute(task: Any, session: Any) -> ContributionBlock | None:
        return _headed("memory", recall(task_text(task)))

    return contribute


def persona_memories(recall: Callable[[], Notes]) -> Contributor:
    """``## Identity context``: what is remembered of the identity."""

    def contribute(task: Any, session: Any) -> ContributionBlock | None:
        return _headed("persona_memories", recall())

    return contribute


def consolidated(consolidate: Callable[[str, Any, bool], Notes]) -> Contributor:
    """The knowledge block of ``consolidate(task text, session, dry)``, which saves what it learned unless ``dry``."""

    def contribute(task: Any, session: Any) -> ContributionBlock | None:
        return _headed("consolidated", consolidate(task_text(task), session, current_assembly().dry))

    return contribute


def neurons(listing: Callable[[], Notes]) -> Contributor:
    """``## My neurons (warm, firing)``: the warmest ones."""

    def contribute(task: Any, session: Any) -> ContributionBlock | None:
        return _headed("neurons", listing())

    return contribute


def graphs(connections: Callable[[str], Notes]) -> Contributor:
    """``## My graph connections`` of the entities in the task text."""

    def contribute(task: Any, session: Any) -> ContributionBlock | None:
        return _headed("graphs", connections(task_text(task)))

    return contribute


def abstraction(facts: Callable[[str], Notes]) -> Contributor:
    """``## My learned knowledge``: facts that the task text touches."""

    def contribute(task: Any, session: Any) -> ContributionBlock | None:
        return _headed("abstraction", facts(task_text(task)))

    return contribute


def model_profile(profile: Callable[[str], Notes]) -> Contributor:
    """``## Model``: what ``profile(model id)`` says of the model that the turn runs on; register it ``per_model``."""

    def contribute(task: Any, session: Any) -> ContributionBlock | None:
        return _headed("model_profile", profile(current_assembly().model_id))

    return contribute
