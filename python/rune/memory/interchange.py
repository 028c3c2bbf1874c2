"""Import and export of the stores as JSON lines, without loss in either direction.

An import is all or nothing: every line is checked before the first is written, and all are written in one transaction. Ids
are kept where they are free. A row that is there already (the same id and text, name or connection) is left as it is, so
that importing a file twice changes nothing; an id that another row has gives way to a new one.
"""

from __future__ import annotations

import itertools
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from rune.errors import InvalidInput
from rune.memory import memory_writer
from rune.memory.import_rows import Imported, ImportRows
from rune.memory.names import named
from rune.memory.records import RECORDS, AnyLine, Line, MemoryLine, parse
from rune.storage.database import Database

__all__ = ["Imported", "export_lines", "import_lines"]

PORTION = 2000  # lines between two calls of ``progress``
_SPOOL = 32 << 20  # bytes of an import kept in memory while it is checked; more goes to a temporary file

_SELECT = {
    "memory": "SELECT id, created, text, source, seen, said, recalls, recalled, superseded_by FROM memory"
    " WHERE kind = 'memory' ORDER BY superseded_by IS NOT NULL, id",
    "persona": "SELECT id, created, text, source, seen, said, recalls, recalled, superseded_by FROM memory"
    " WHERE kind = 'persona' ORDER BY superseded_by IS NOT NULL, id",
    "fact": "SELECT id, created, text, source FROM fact ORDER BY id",
    "entity": "SELECT id, created, name, type FROM entity ORDER BY id",
    "edge": "SELECT e.id, e.created, s.name AS src, e.relation, d.name AS dst, e.weight, e.source FROM edge e"
    " JOIN entity s ON s.id = e.src JOIN entity d ON d.id = e.dst ORDER BY e.id",
    "neuron": "SELECT id, created, name, note, mentions, activation, fired FROM neuron ORDER BY id",
}


def export_lines(db: Database, kind: str | None = None) -> Iterator[str]:
    """The rows of one kind, or of all, as JSON objects of one line each (without the line's end), from one snapshot."""
    kinds = [_known(kind)] if kind is not None else list(RECORDS)
    with db.read() as connection:
        for name in kinds:
            cursor = connection.execute(_SELECT[name])
            columns = [column[0] for column in cursor.description]
            for row in cursor:
                record = dict(zip(columns, row, strict=True))
                if name == "entity":
                    record["aliases"] = _aliases(connection, record)
                yield msgspec.json.encode(RECORDS[name](**record)).decode()


def import_lines(
    db: Database,
    lines: Iterable[str | bytes],
    kind: str | None = None,
    progress: Callable[[int], object] | None = None,
) -> Imported:
    """Import JSON lines; with ``kind`` they need not say it. ``progress`` gets the number of lines stored so far.

    Raises InvalidInput, which names the line, before anything is written, and StorageError, after which nothing is.
    """
    if kind is not None:
        _known(kind)
    with tempfile.SpooledTemporaryFile(_SPOOL) as spool:
        anything = False
        for record in _checked(lines, kind):
            spool.write(msgspec.json.encode(record) + b"\n")
            anything = True
        if not anything:
            return Imported()
        spool.seek(0)
        with db.write() as connection:
            target = ImportRows(connection, db.clock())
            decoder = msgspec.json.Decoder(AnyLine)
            done = 0
            for portion in iter(lambda: list(itertools.islice(spool, PORTION)), []):
                for name, run in itertools.groupby(map(decoder.decode, portion), key=lambda record: record.kind):
                    target.store(name, list(run))
                done += len(portion)
                if progress is not None:
                    progress(done)
            return target.finish()


def _checked(lines: Iterable[str | bytes], kind: str | None) -> Iterator[Line]:
    seen: dict[str, set[int]] = {}
    for number, line in enumerate(lines, 1):
        record = parse(line, number, kind)
        if record is None:
            continue
        earlier = seen.setdefault("memory" if record.kind in memory_writer.KINDS else record.kind, set())
        wrong = ""
        if record.id is not None:
            wrong = f"id {record.id} is that of an earlier line" if record.id in earlier else ""
            earlier.add(record.id)
        if isinstance(record, MemoryLine) and record.superseded_by is not None and record.superseded_by not in earlier:
            wrong = f"superseded_by {record.superseded_by} is the id of no memory on an earlier line"
        if wrong:
            raise InvalidInput(f"line {number}: {wrong}. Nothing was imported.")
        yield record


def _aliases(connection: sqlite3.Connection, record: dict[str, Any]) -> list[str]:
    rows = connection.execute(
        "SELECT text FROM alias WHERE entity = ? AND key <> ? ORDER BY key", (record["id"], named(record["name"]).key)
    )
    return [text for (text,) in rows]


def _known(kind: str) -> str:
    if kind not in RECORDS:
        raise InvalidInput(f"{kind!r} is no kind of memory; known are {', '.join(RECORDS)}")
    return kind
