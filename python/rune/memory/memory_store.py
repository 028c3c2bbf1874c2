"""Memories: short texts that are recalled when a task speaks of the same things.

Two kinds live here: ``memory`` (what was learned) and ``persona`` (who Rune is). ``cached_recall`` renders the block for a
task: chosen by BM25 (equal scores: the one said last), written in the order of ids, so that the same memories are always
the same text and the server's prefix cache survives. Rows that ``memory_consolidation`` superseded stay readable but are
not recalled.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from weakref import WeakKeyDictionary

from rune.errors import InvalidInput
from rune.memory import text_index
from rune.memory.memory_writer import PORTION, Writer, known, prepare
from rune.memory.render import block
from rune.memory.terms import clean
from rune.storage.database import Database

__all__ = [
    "HEADINGS",
    "PERSONA_QUERY",
    "RECALL_BUDGET",
    "Memory",
    "add",
    "add_many",
    "cached_recall",
    "forget",
    "get",
    "list_memories",
    "recall",
    "search",
    "sources",
]

HEADINGS = {"memory": "Context", "persona": "Identity context"}
RECALL_BUDGET = 3
PERSONA_QUERY = (
    "Rune personality: identity, name, character, voice, tone, humour, values, habits and preferences of the assistant,"
    " and how it addresses the user"
)
_CACHE_MAX = 256
_SPARE = 6  # rows looked at beyond those asked for

_Cache = OrderedDict[tuple[str, int, bytes], tuple[object, tuple["Memory", ...], str | None]]


@dataclass(frozen=True, slots=True)
class Memory:
    """One memory. ``said`` counts how often it was stored, ``recalls`` in how many turns it was recalled.

    ``created`` and ``seen`` are epoch seconds of the first and the last time it was stored, ``recalled`` of the last recall.
    ``superseded_by`` is the id of the memory that stands for this one.
    """

    id: int
    kind: str
    text: str
    source: str
    created: float
    seen: float
    said: int
    recalls: int
    recalled: float | None
    superseded_by: int | None


_COLUMNS = ", ".join(field.name for field in fields(Memory))
_lock = threading.Lock()
_caches: WeakKeyDictionary[Database, _Cache] = WeakKeyDictionary()


def cached_recall(db: Database, task: str, budget: int = RECALL_BUDGET, *, kind: str = "memory") -> str | None:
    """The block of the ``budget`` memories that speak most of ``task``, or None; written in the order of ids.

    Persona memories that the task does not name fill the rest of their budget, the latest first: all of them are about
    who Rune is. Raises StorageError.
    """
    return _recalled(db, task, budget, kind)[1]


def recall(db: Database, task: str, budget: int = RECALL_BUDGET, *, kind: str = "memory") -> tuple[Memory, ...]:
    """As ``cached_recall``, as rows and best first. Answers are kept until any process changes the store."""
    return _recalled(db, task, budget, kind)[0]


def _recalled(db: Database, task: str, budget: int, kind: str) -> tuple[tuple[Memory, ...], str | None]:
    known(kind)
    digest = hashlib.blake2b(task.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    key = (kind, budget, digest)
    with _lock:
        cache = _caches.setdefault(db, OrderedDict())
    with db.read() as connection:
        now = (db.source, text_index.generation(connection, kind))
        with _lock:
            kept = cache.get(key)
        if kept is not None and kept[0] == now:
            return kept[1:]
        found = tuple(_find(connection, kind, task, budget, fill=kind == "persona"))
    text = block(HEADINGS[kind], [memory.text for memory in sorted(found, key=lambda memory: memory.id)])
    with _lock:
        cache[key] = (now, found, text)
        cache.move_to_end(key)
        if len(cache) > _CACHE_MAX:
            cache.popitem(last=False)
    return found, text


def search(db: Database, query: str, limit: int = 20, *, kind: str = "memory") -> list[Memory]:
    """The memories that speak of ``query``, best first."""
    known(kind)
    with db.read() as connection:
        return _find(connection, kind, query, limit, fill=False)


def add(db: Database, text: str, *, kind: str = "memory", source: str = "") -> int:
    """Store one memory and return its id. Raises InvalidInput (empty, too long, unknown kind) and StorageError."""
    return add_many(db, [text], kind=kind, source=source)[0]


def add_many(db: Database, texts: Iterable[str], *, kind: str = "memory", source: str = "") -> list[int]:
    """Store memories, all or none, and return their ids in order."""
    known(kind)
    now, source = db.clock(), clean(source)
    texts = iter(texts)
    ids: list[int] = []
    with contextlib.ExitStack() as stack:
        writer: Writer | None = None
        # In portions: a hundred thousand rows at once keep the garbage collector busy.
        while portion := list(itertools.islice(texts, PORTION)):
            rows = [prepare(text, kind, created=now, seen=now, source=source) for text in portion]
            writer = writer or stack.enter_context(Writer.open(db))
            ids += writer.store(rows)
    return ids


def forget(db: Database, memory_id: int, *, kind: str = "memory") -> list[int]:
    """Remove a memory for good, with every row it stands for or that stands for it; returns the ids removed.

    No word of it stays in the database's files. Raises InvalidInput when there is none.
    """
    known(kind)
    with db.write() as connection:
        row = connection.execute(
            "SELECT coalesce(superseded_by, id) FROM memory WHERE id = ? AND kind = ?", (memory_id, kind)
        ).fetchone()
        if row is None:
            raise InvalidInput(f"there is no {kind} {memory_id}; list them to see the ids")
        group = connection.execute(
            "SELECT id, terms, superseded_by FROM memory WHERE id = ? OR superseded_by = ? ORDER BY id",
            (row[0], row[0]),
        ).fetchall()
        text_index.remove(connection, kind, [(one, terms) for one, terms, by in group if by is None])
        text_index.purge(connection, kind)
        ids = [(one,) for one, _, _ in group]
        connection.executemany("DELETE FROM memory WHERE id = ?", ids)
        connection.executemany("DELETE FROM memory_queue WHERE id = ?", ids)
    db.checkpoint()
    return [one for (one,) in ids]


def get(db: Database, memory_id: int) -> Memory | None:
    """One memory by its id, superseded or not."""
    with db.read() as connection:
        row = connection.execute(f"SELECT {_COLUMNS} FROM memory WHERE id = ?", (memory_id,)).fetchone()
    return Memory(*row) if row else None


def list_memories(
    db: Database, *, kind: str = "memory", limit: int = 50, offset: int = 0, superseded: bool = False
) -> list[Memory]:
    """Memories, the latest first; with ``superseded`` also those that another one stands for."""
    known(kind)
    live = "" if superseded else "AND superseded_by IS NULL"
    with db.read() as connection:
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM memory WHERE kind = ? {live} ORDER BY id DESC LIMIT ? OFFSET ?",
            (kind, limit, offset),
        ).fetchall()
    return [Memory(*row) for row in rows]


def sources(db: Database, memory_id: int) -> list[Memory]:
    """The memory and the originals it stands for, oldest first."""
    with db.read() as connection:
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM memory WHERE id = ? OR superseded_by = ? ORDER BY id", (memory_id, memory_id)
        ).fetchall()
    return [Memory(*row) for row in rows]


def _find(connection: sqlite3.Connection, kind: str, query: str, limit: int, *, fill: bool) -> list[Memory]:
    limit = max(0, limit)
    # A few more than asked: of equal scores the one said last comes first, and the same words are not given twice.
    scores = dict(text_index.matches(connection, kind, query, limit + _SPARE))
    rows = _rows(connection, scores)
    rows.sort(key=lambda row: (-scores[row[0].id], -row[0].seen, -row[0].id))
    if fill and len(rows) < limit:
        latest = connection.execute(
            "SELECT id FROM memory WHERE kind = ? AND superseded_by IS NULL ORDER BY id DESC LIMIT ?",
            (kind, limit + _SPARE),
        ).fetchall()
        rest = _rows(connection, [row for (row,) in latest if row not in scores])
        rows += sorted(rest, key=lambda row: -row[0].id)
    once = {key: memory for memory, key in reversed(rows)}  # not consolidated yet
    kept = [memory for memory, key in rows if once[key] is memory]
    return kept[:limit]


def _rows(connection: sqlite3.Connection, ids: Collection[int]) -> list[tuple[Memory, bytes]]:
    marks = ",".join("?" * len(ids))
    rows = connection.execute(f"SELECT {_COLUMNS}, merge_key FROM memory WHERE id IN ({marks})", list(ids))
    return [(Memory(*row[:-1]), row[-1]) for row in rows]
