"""COLLECT: every registered contributor is asked once, in registration order, and no failure of one stops the turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from rune.context.blocks import ContributionBlock, Entry, is_empty, make_entry
from rune.context.timebox import Outcome, TimeLimit
from rune.errors import InvalidInput
from rune.kernels import digest
from rune.messages import compact_json
from rune.subsystem_health import record_failure

__all__ = [
    "SESSION_SYSTEM",
    "Assembly",
    "Collected",
    "Contributor",
    "Registration",
    "assembling",
    "collect",
    "current_assembly",
]

Contributor = Callable[[Any, Any], ContributionBlock | None]
"""``(task, session) -> ContributionBlock | None``; a plain text counts as the content of a block."""

SESSION_SYSTEM = "session_system"


@dataclass(frozen=True, slots=True)
class Assembly:
    """What a contributor may ask about the assembly that it runs in (``current_assembly()``).

    ``dry``: nothing may be changed (stores read-only, no side effects). ``window`` and ``budget`` are tokens; ``run`` holds
    what the caller says of the run (its id, the channel, …).
    """

    model_id: str = ""
    dry: bool = False
    window: int = 0
    budget: int = 0
    layout: str = "seed"
    run: Mapping[str, Any] = field(default_factory=dict)


_NONE = Assembly()
_current: ContextVar[Assembly] = ContextVar("rune_assembly")


def current_assembly() -> Assembly:
    """The assembly that the caller is collected for; outside of one, an assembly of empty values."""
    return _current.get(_NONE)


@contextmanager
def assembling(assembly: Assembly) -> Iterator[None]:
    """Makes ``assembly`` the current one inside the block."""
    token = _current.set(assembly)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(frozen=True, slots=True)
class Registration:
    """A contributor and how its block is treated; ``position`` counts registrations from 0."""

    name: str
    contributor: Contributor
    bucket: int
    priority: int
    evictable: bool
    source: str
    per_model: bool
    inline: bool
    position: int

    @classmethod
    def checked(cls, **given: Any) -> Registration:
        """A registration of values that are what they should be. Raises InvalidInput for one that is not."""
        name = given["name"]
        if not isinstance(name, str) or not name.strip():
            raise InvalidInput("a contributor needs a name")
        if not callable(given["contributor"]):
            raise InvalidInput(f"the contributor of {name!r} must be callable as (task, session)")
        for what in ("bucket", "priority"):
            if type(given[what]) is not int:
                raise InvalidInput(f"the {what} of {name!r} must be an integer, not {type(given[what]).__name__}")
            if not -(2**31) <= given[what] < 2**31:
                raise InvalidInput(f"the {what} of {name!r} must fit 32 bits")
        for what in ("evictable", "per_model", "inline"):
            if not isinstance(given[what], bool):
                raise InvalidInput(f"{what} of {name!r} must be True or False")
        if not isinstance(given["source"], str):
            raise InvalidInput(f"the source of {name!r} must be a text")
        return cls(**given)


@dataclass(slots=True)
class Collected:
    """Entries in order of registration; facts for the trace by name, of contributors that contributed nothing too."""

    entries: list[Entry] = field(default_factory=list)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)


def collect(
    registrations: Iterable[Registration], task: Any, session: Any, limit: TimeLimit, *, lifted_position: int
) -> Collected:
    """What all contributors contributed.

    A contributor that raises, hangs or returns something else than a block is recorded as a T1 under its own name. System
    texts that came among messages become a mandatory block of their own, registered at ``lifted_position``.
    """
    collected = Collected()
    system: list[tuple[Registration, str]] = []
    for registration, outcome in _asked(registrations, task, session, limit):
        try:
            if outcome.error is not None:
                raise outcome.error
            block = _checked(registration, outcome.result)
            if block is None:
                continue
            if block.extra:
                compact_json(dict(block.extra))  # what is no JSON would cost the turn its trace
                collected.facts[registration.name] = dict(block.extra)
            entry, texts = _entry(registration, block)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # SystemExit of a contributor must not end the process either
            record_failure(registration.name, exc, tier=1)
            continue
        if entry is not None:
            collected.entries.append(entry)
        system += ((registration, text) for text in texts)
    if system:
        _lift_system(collected.entries, system, lifted_position)
    return collected


def _asked(
    registrations: Iterable[Registration], task: Any, session: Any, limit: TimeLimit
) -> Iterator[tuple[Registration, Outcome]]:
    """What each contributor gave, in order. Those with a time limit that stand beside one another are called together."""
    together: list[Registration] = []

    def limited() -> Iterator[tuple[Registration, Outcome]]:
        if together:
            outcomes = limit.call_all([(r.name, r.contributor, (task, session)) for r in together])
            yield from zip(together, outcomes, strict=True)
            together.clear()

    for registration in registrations:
        if not registration.inline:
            together.append(registration)
            continue
        yield from limited()
        try:
            outcome = Outcome(registration.contributor(task, session))
        except BaseException as exc:  # judged by the caller, like those of the others
            outcome = Outcome(error=exc)
        yield registration, outcome
    yield from limited()


def _checked(registration: Registration, block: Any) -> ContributionBlock | None:
    if isinstance(block, str):
        block = ContributionBlock(content=block)
    if block is not None and not isinstance(block, ContributionBlock):
        raise InvalidInput(
            f"contributor {registration.name!r} returned {type(block).__name__}, not a ContributionBlock"
        )
    return block


def _entry(registration: Registration, block: ContributionBlock) -> tuple[Entry | None, list[str]]:
    if is_empty(block):
        return None, []
    return make_entry(
        block,
        name=registration.name,
        priority=registration.priority,
        evictable=registration.evictable,
        bucket=registration.bucket,
        source=registration.source,
        registered=registration.position,
        per_model=registration.per_model,
    )


def _lift_system(entries: list[Entry], system: Iterable[tuple[Registration, str]], registered: int) -> None:
    """Adds system texts found among messages as one mandatory block behind the identity, each once.

    There is one system message, and it is never evicted: texts that some block holds already are left out.
    """
    known = {digest(entry.text.strip()) for entry in entries if entry.text is not None}
    texts: list[str] = []
    sources: list[str] = []
    for registration, text in system:
        key = digest(text.strip())
        if key not in known:
            known.add(key)
            texts.append(text)
            sources.append(registration.name)
    if not texts:
        return
    identity = min((entry.bucket for entry in entries if not entry.evictable), default=1)
    names = {entry.name for entry in entries}
    name = next(
        n for n in (SESSION_SYSTEM, *(f"{SESSION_SYSTEM}_{i}" for i in range(2, len(names) + 3))) if n not in names
    )
    entries.append(
        Entry(
            name=name,
            priority=100,
            evictable=False,
            bucket=identity,
            source="system messages among those of " + ", ".join(dict.fromkeys(sources)),
            registered=registered,
            section="system",
            text="\n\n".join(texts),
        )
    )
