"""The archive of compaction: the raw turns of a history, on disk for good before a summary may stand for them.

One row is one event: ``timestamp``, ``session``, ``source``, ``messages``. ``source`` names the turns and the chain digest up
to the last of them, so that an event that was written twice (the process died before it could note the first) is seen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from rune.context.turns import Turn
from rune.errors import InvalidInput, StorageError
from rune.messages import Message, compact_json
from rune.paths import history_archive
from rune.storage.log import DurableLog

__all__ = ["ArchivedEvent", "HistoryArchive", "whole_history"]

_SOURCE = re.compile(r"history_compaction turns (\d+)-(\d+) chain ([0-9a-f]{64})")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class ArchivedEvent(NamedTuple):
    """The raw messages of the turns from ``first`` to ``last`` (from 0); ``chain`` covers all turns up to the last one."""

    first: int
    last: int
    chain: str
    messages: list[Message]


class HistoryArchive:
    """The archive under a home. Never rotated; a row is on disk when ``append`` returns."""

    def __init__(self, home: Path | str | None = None, *, clock: Callable[[], str] = _now) -> None:
        self._log = DurableLog(history_archive(home), backups=None, fsync=True)
        self._clock = clock

    def append(self, session: str, turns: Sequence[Turn]) -> None:
        """Archives neighbouring turns of a session. Raises StorageError when they are not on disk; nothing is there then."""
        source = f"history_compaction turns {turns[0].number}-{turns[-1].number} chain {turns[-1].chain}"
        messages = [message for turn in turns for message in turn.uncopied]
        self._log.append({"timestamp": self._clock(), "session": session, "source": source, "messages": messages})

    def events(self, session: str) -> Iterator[ArchivedEvent]:
        """The events of a session, oldest first; those of an earlier session of the same id too."""
        for row in self._log.read():
            found = _SOURCE.fullmatch(str(row.get("source"))) if row.get("session") == session else None
            if found is not None and isinstance(row.get("messages"), list):
                yield ArchivedEvent(int(found[1]), int(found[2]), found[3], row["messages"])

    def close(self) -> None:
        self._log.close()


def whole_history(turns: Sequence[Turn], events: Sequence[ArchivedEvent], session: str) -> list[Message]:
    """All messages of a session: the archived turns out of the archive, the later ones out of the session.

    Where the session's own turns are there, only events of this very history count (by chain digest), and what the archive
    holds must equal them; without turns it is the last history of that id that was archived.

    Raises:
        InvalidInput: nothing of that session is archived and it has no turns.
        StorageError: the archive does not hold what the session says, or an event in between is missing.
    """
    if turns:
        events = [e for e in events if e.last < len(turns) and turns[e.last].chain == e.chain]
    elif not events:
        raise InvalidInput(f"there is no session {session!r}, and nothing of it in the archive")
    found: list[Message] = []
    upto = -1
    for event in _in_order(events):
        if event.first != upto + 1:
            raise StorageError(f"the archive of {session!r} has no turns {upto + 1} to {event.first - 1}")
        if turns:
            own = [message for turn in turns[event.first : event.last + 1] for message in turn.uncopied]
            if compact_json(own) != compact_json(event.messages):
                raise StorageError(
                    f"turns {event.first} to {event.last} of {session!r} are not the same in the archive and in the session"
                )
        found += event.messages
        upto = event.last
    return found + [message for turn in turns[upto + 1 :] for message in turn.uncopied]


def _in_order(events: Sequence[ArchivedEvent]) -> list[ArchivedEvent]:
    """The events of one history without those that were written again: the last one from each beginning."""
    line: list[ArchivedEvent] = []
    for event in events:
        # An event that begins where an earlier one did replaces it and what followed; at 0 a history begins anew.
        while line and line[-1].first >= event.first:
            line.pop()
        line.append(event)
    return line
