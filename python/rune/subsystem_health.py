"""What failed, where it can be seen: the process registry, the turn's ``degraded`` names, the journal, and the log.

Tier 1: a subsystem contributed nothing, and the turn went on; recorded under the subsystem's canonical name. Tier 2: something
was not kept or not done that should have been (``storage.degraded``, ``history_compaction``, ``history_archive``). Recording
never raises.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rune.storage.log import DurableLog

__all__ = [
    "ERROR_TEXT_MAX",
    "Failure",
    "TurnHealth",
    "current_degraded",
    "current_run_id",
    "error_text",
    "journal_event",
    "record_failure",
    "registry",
    "reset_registry",
    "turn",
]

logger = logging.getLogger("rune.subsystem_health")

ERROR_TEXT_MAX = 300
STORAGE = "storage.degraded"

# In front of a secret: a scheme of an Authorization header, or the name of a key.
_SECRETS = re.compile(
    r"(?i)(\bauthorization['\"]?\s*[=:]\s*['\"]?(?:(?:basic|bearer)\s+)?|\bbearer\s+|\bapi[_-]?key['\"]?\s*[=:]\s*['\"]?)"
    r"[^\s'\"&]+"
)
_USERINFO = re.compile(r"(?<=//)[^/\s]+(?=@)")


@dataclass(frozen=True, slots=True)
class Failure:
    """What the registry knows of one name: how often it failed, and the tier, text and time (ISO, UTC) of the last failure."""

    name: str
    count: int
    tier: int
    error: str
    time: str

    def as_row(self) -> dict[str, Any]:
        """The same as a plain dict."""
        return asdict(self)


class TurnHealth:
    """The health of one turn; ``degraded`` holds the names that failed in it, each once, in order."""

    def __init__(self, journal: DurableLog | None, run_id: str, outer: TurnHealth | None) -> None:
        self.degraded: list[str] = []
        self.journal = journal
        self.run_id = run_id
        self._outer = outer
        self._over = False

    def _add(self, name: str) -> None:
        """Notes a failure here and in the turns around this one, unless they are over."""
        with _lock:
            health: TurnHealth | None = self
            while health is not None:
                if not health._over and name not in health.degraded:
                    health.degraded.append(name)
                health = health._outer


_lock = threading.Lock()
_registry: dict[str, Failure] = {}
_turn: ContextVar[TurnHealth | None] = ContextVar("rune_turn_health", default=None)


@contextmanager
def turn(journal: DurableLog | None = None, run_id: str = "") -> Iterator[TurnHealth]:
    """The health of what runs inside: in this thread or task, and wherever a copy of its context runs.

    A turn within a turn is part of it: its failures are the outer one's too, and journal and run id are the outer one's
    unless given.
    """
    outer = _turn.get()
    if outer is not None:
        journal = outer.journal if journal is None else journal
        run_id = run_id or outer.run_id
    health = TurnHealth(journal, run_id, outer)
    token = _turn.set(health)
    try:
        yield health
    finally:
        with _lock:
            health._over = True  # a contributor that was left behind may still fail, but not in this turn any more
        _turn.reset(token)


def current_degraded() -> list[str]:
    """A copy of the current turn's degraded names; empty outside of a turn."""
    health = _turn.get()
    return [] if health is None else list(health.degraded)


def current_run_id() -> str:
    """The current turn's run id, or ""."""
    health = _turn.get()
    return "" if health is None else health.run_id


def record_failure(name: str, exc: BaseException | str, tier: int = 1, **details: Any) -> None:
    """Notes that the subsystem ``name`` failed, in the registry, the turn's ``degraded``, the journal and the log.

    Of the exception only its type and the first 300 characters of its message are kept. ``details`` go to the journal.
    """
    text = error_text(exc)
    health = _turn.get()
    _note(name, text, tier, health)
    if health is not None and health.journal is not None:
        _journal(health, "failure", {"subsystem": name, "tier": tier, "error": text, **details})


def _note(name: str, text: str, tier: int, health: TurnHealth | None) -> None:
    with _lock:
        before = _registry.get(name)
        _registry[name] = Failure(name, 1 if before is None else before.count + 1, tier, text, _now())
    if health is not None:
        health._add(name)
    logger.warning("%s failed (tier %s): %s", name, tier, text)


def registry() -> dict[str, Failure]:
    """Every name that failed in this process, in the order of the first failures; a snapshot."""
    with _lock:
        return dict(_registry)


def reset_registry() -> None:
    """Forgets all failures; for tests."""
    with _lock:
        _registry.clear()


def journal_event(event: str, **fields: Any) -> None:
    """Writes ``{"time", "event", "run_id", **fields}`` to the current turn's journal; nothing outside of a turn with one.

    A journal that cannot be written marks the turn ``storage.degraded``, once.
    """
    health = _turn.get()
    if health is not None and health.journal is not None:
        _journal(health, event, fields)


def _journal(health: TurnHealth, event: str, fields: dict[str, Any]) -> None:
    row: dict[str, Any] = {"time": _now(), "event": event}
    if health.run_id:
        row["run_id"] = health.run_id
    try:
        assert health.journal is not None
        health.journal.append({**row, **fields})
    except Exception as exc:  # a journal is no reason to fail: not for storage, nor for fields that are no JSON
        if STORAGE not in health.degraded:
            _note(STORAGE, error_text(exc), 2, health)


def error_text(exc: BaseException | str) -> str:
    """Type and message of an exception in at most 300 characters, without credentials, as text that can be written anywhere."""
    if isinstance(exc, str):
        text = exc
    else:
        try:
            message = str(exc)
        except Exception:
            message = ""
        text = f"{type(exc).__name__}: {message}" if message else type(exc).__name__
    text = _USERINFO.sub("***", _SECRETS.sub(r"\1***", text[: 4 * ERROR_TEXT_MAX]))
    return text.encode("utf-8", "backslashreplace").decode("utf-8")[:ERROR_TEXT_MAX]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
