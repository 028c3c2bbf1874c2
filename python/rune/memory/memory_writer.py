"""Storing memories: checking them, working out what follows from their text, and writing rows and index together."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rune.errors import InvalidInput
from rune.memory import text_index
from rune.memory.ids import free_ids
from rune.memory.terms import clean, index_terms, merge_key
from rune.storage.database import Database

__all__ = ["KINDS", "PORTION", "TEXT_MAX", "Prepared", "Writer", "known", "level_of", "prepare"]

KINDS = ("memory", "persona")
TEXT_MAX = 100_000  # characters of one memory
PORTION = 2000  # rows written at once
_SAID_WORTH = 3
_PROMOTED_AT = 3


def known(kind: str) -> None:
    """Raise InvalidInput for a kind that is neither memory nor persona."""
    if kind not in KINDS:
        raise InvalidInput(f"{kind!r} is no kind of memory; known are {' and '.join(KINDS)}")


@dataclass(slots=True)
class Prepared:
    """A memory checked and ready to store, with what follows from its text; ``id`` None means the next free one."""

    kind: str
    text: str
    merge_key: bytes
    words: list[str]
    created: float
    seen: float
    id: int | None = None
    source: str = ""
    said: int = 1
    recalls: int = 0
    recalled: float | None = None
    superseded_by: int | None = None


def level_of(said: int, recalls: int) -> int:
    """How well established a memory is: 0 for a passing one, then one more each time that the evidence doubles.

    Being said again counts three times as much as being recalled once.
    """
    return ((_SAID_WORTH * (said - 1) + recalls) // _PROMOTED_AT).bit_length()


def prepare(text: object, kind: str, **columns: Any) -> Prepared:
    """Check a memory's text and work out what follows from it. Raises InvalidInput."""
    known(kind)
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"a {kind} needs some text; got {text!r:.80}")
    if len(text) > TEXT_MAX:
        raise InvalidInput(f"a {kind} holds at most {TEXT_MAX:,} characters, and this one has {len(text):,}; split it")
    text = clean(text)
    return Prepared(kind, text, merge_key(text), index_terms(text), **columns)


class Writer:
    """Stores prepared memories in one write transaction: rows, posting lists and the queue of the consolidation."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._counts = {kind: text_index.Counts(kind) for kind in KINDS}

    @classmethod
    @contextlib.contextmanager
    def open(cls, db: Database) -> Iterator[Writer]:
        """A writer in a transaction of its own, all or nothing."""
        with db.write() as connection:
            writer = cls(connection)
            yield writer
            writer.finish()

    def store(self, rows: Sequence[Prepared]) -> list[int]:
        """Insert rows and return their ids; those without an id, or with a taken one, get the next free ones."""
        ids = free_ids(self._connection, "memory", [row.id for row in rows])
        full = [(i, row, " ".join(row.words)) for i, row in zip(ids, rows, strict=True)]
        self._connection.executemany(
            "INSERT INTO memory (id, kind, text, source, created, seen, said, recalls, recalled, superseded_by, level,"
            " merge_key, terms, length) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    *(i, r.kind, r.text, r.source, r.created, r.seen, r.said, r.recalls, r.recalled, r.superseded_by),
                    *(_level(r), r.merge_key, terms, len(r.words)),
                )
                for i, r, terms in full
            ],
        )
        for kind, counts in self._counts.items():
            live = [(i, terms, r.words) for i, r, terms in full if r.kind == kind and r.superseded_by is None]
            text_index.insert(self._connection, counts, live)
            self._connection.executemany(
                "INSERT OR IGNORE INTO memory_queue (id) VALUES (?)", [row[:1] for row in live]
            )
        return ids

    def finish(self) -> None:
        """Let questions see what was stored."""
        for counts in self._counts.values():
            counts.flush(self._connection)


def _level(row: Prepared) -> int:
    return level_of(row.said, row.recalls) if row.kind == "memory" and row.superseded_by is None else 0
