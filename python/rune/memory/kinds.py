"""One way to add, list, search and forget, whatever the kind: what a command line or a tool calls.

Rows are plain dicts with ``kind``, ``id``, ``text`` (one line that says what the row is) and the fields of the kind.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rune.errors import InvalidInput
from rune.memory import abstraction, graph_memory, memory_store, memory_writer, warm_neuron_store
from rune.storage.database import Database

__all__ = ["KINDS", "add", "count", "forget", "list_rows", "search"]

KINDS = ("memory", "persona", "fact", "entity", "edge", "neuron")
_FIELDS = {
    "memory": ("source",),
    "persona": ("source",),
    "fact": ("source",),
    "entity": ("type", "aliases"),
    "edge": ("weight", "source"),
    "neuron": ("note",),
}
_NUMBER_MAX = 1 << 53  # within what SQLite counts with
_ENDS = re.compile(r"\s*(?:->|→|\|)\s*")


def add(db: Database, kind: str, text: str, **fields: Any) -> int:
    """Add one row and return its id.

    ``text`` is the text of a memory or fact, the name of an entity or neuron, and "Anna -> lives in -> Oslo" for an edge.
    ``fields``: ``source`` (memory, persona, fact, edge), ``type`` and ``aliases`` (entity), ``weight`` (edge), ``note``
    (neuron); None counts as not given. Raises InvalidInput and StorageError.
    """
    fields = {name: value for name, value in fields.items() if value is not None}
    unknown = sorted(set(fields) - set(_FIELDS[_known(kind)]))
    if unknown:
        raise InvalidInput(f"{', '.join(unknown)}: no field of kind {kind}, which has {', '.join(_FIELDS[kind])}")
    if kind in memory_writer.KINDS:
        return memory_store.add(db, text, kind=kind, **fields)
    if kind == "fact":
        return abstraction.connect(db).add(text, **fields)
    if kind == "entity":
        return graph_memory.add_entity(db, text, of_type=fields.pop("type", ""), **fields)
    if kind == "neuron":
        return warm_neuron_store.add(db, text, **fields)
    parts = _ENDS.split(text.strip())
    if len(parts) != 3 or not all(parts):
        raise InvalidInput(f"a connection is written 'Anna -> lives in -> Oslo'; got {text!r:.80}")
    return graph_memory.add_edge(db, *parts, **fields)


def forget(db: Database, kind: str, row: int) -> list[int]:
    """Remove a row for good and return the ids removed. Raises InvalidInput when there is none, and StorageError."""
    if not 0 < row <= _NUMBER_MAX:
        raise InvalidInput(f"there is no {_known(kind)} {row}; list them to see the ids")
    if _known(kind) in memory_writer.KINDS:
        return memory_store.forget(db, row, kind=kind)
    if kind == "fact":
        return abstraction.connect(db).forget(row)
    forgets: dict[str, Callable[[Database, int], list[int]]] = {
        "entity": graph_memory.forget_entity,
        "edge": graph_memory.forget_edge,
        "neuron": warm_neuron_store.forget,
    }
    return forgets[kind](db, row)


def list_rows(db: Database, kind: str, limit: int = 50, offset: int = 0) -> list[dict[str, Any]]:
    """Rows of a kind, the latest first."""
    limit, offset = _bounded(limit), _bounded(offset)
    if _known(kind) in memory_writer.KINDS:
        return [_row(kind, memory) for memory in memory_store.list_memories(db, kind=kind, limit=limit, offset=offset)]
    if kind == "fact":
        return [_row(kind, fact) for fact in abstraction.connect(db).list(limit, offset)]
    if kind == "entity":
        return [_row(kind, entity) for entity in graph_memory.list_entities(db, limit=limit, offset=offset)]
    if kind == "edge":
        return [_row(kind, edge) for edge in graph_memory.list_edges(db, limit=limit, offset=offset)]
    return [_row(kind, neuron) for neuron in warm_neuron_store.list_rows(db, limit=limit, offset=offset)]


def search(db: Database, kind: str, query: str, limit: int = 20) -> list[dict[str, Any]]:
    """Rows of a kind that speak of ``query``: memories and facts best first; names, connections and notes that contain it."""
    limit = _bounded(limit)
    if _known(kind) in memory_writer.KINDS:
        return [_row(kind, memory) for memory in memory_store.search(db, query, limit, kind=kind)]
    if kind == "fact":
        return [_row(kind, fact) for fact in abstraction.connect(db).search(query, limit)]
    if kind == "entity":
        return [_row(kind, entity) for entity in graph_memory.list_entities(db, containing=query, limit=limit)]
    if kind == "edge":
        return [_row(kind, edge) for edge in graph_memory.list_edges(db, containing=query, limit=limit)]
    return [_row(kind, neuron) for neuron in warm_neuron_store.list_rows(db, containing=query, limit=limit)]


def count(db: Database, kind: str) -> int:
    """How many rows of a kind there are; memories that another one stands for are not counted."""
    table = {"persona": "memory"}.get(_known(kind), kind)
    where = "WHERE kind = ? AND superseded_by IS NULL" if kind in memory_writer.KINDS else ""
    with db.read() as connection:
        row = connection.execute(f"SELECT count(*) FROM {table} {where}", (kind,) if where else ()).fetchone()
    return int(row[0])


def _row(kind: str, row: Any) -> dict[str, Any]:
    fields = asdict(row)
    text = fields.get("text") or fields.get("name") or f"{row.src} -> {row.relation} -> {row.dst}"
    return {"kind": kind, "id": row.id, "text": text, **fields}


def _bounded(number: int) -> int:
    return max(0, min(number, _NUMBER_MAX))


def _known(kind: str) -> str:
    if kind not in KINDS:
        raise InvalidInput(f"{kind!r} is no kind of memory; known are {', '.join(KINDS)}")
    return kind
