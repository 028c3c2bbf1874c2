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
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rune.errors import InvalidInput
from rune.memory import memory_writer
from rune.memory.abstraction import write_facts
from rune.memory.graph_memory import write_edge, write_entity
from rune.memory.names import named
from rune.memory.records import RECORDS, AnyLine, EdgeLine, EntityLine, FactLine, Line, MemoryLine, NeuronLine, parse
from rune.memory.terms import clean
from rune.memory.warm_neuron_store import half_life, potential
from rune.storage.database import Database

__all__ = ["Imported", "export_lines", "import_lines"]

PORTION = 2000  # lines between two calls of ``progress``
ID_KEPT_MAX = 1 << 40  # a larger id is given up, so that a file cannot use up the numbers that are left
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


@dataclass(slots=True)
class Imported:
    """What an import did: rows added, rows that were there already, and rows added under another id than theirs."""

    added: int = 0
    unchanged: int = 0
    renumbered: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)


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
            target = _Import(connection, db.clock())
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


class _Import:
    """One import's write transaction: what is there already, which ids changed, and what was counted."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._connection = connection
        self._now = now
        self._memories = memory_writer.Writer(connection)
        self._moved: dict[int, int] = {}
        self._hours = half_life(connection)
        self._report = Imported()

    def store(self, kind: str, records: list[Any]) -> None:
        """Store records of one kind."""
        if kind in memory_writer.KINDS:
            self._store_memories(kind, records)
        elif kind == "fact":
            self._store_facts(records)
        else:
            stores: dict[str, Callable[[Any], None]] = {
                "entity": self._store_entity,
                "edge": self._store_edge,
                "neuron": self._store_neuron,
            }
            one = stores[kind]
            for record in records:
                one(record)

    def finish(self) -> Imported:
        """Let questions see what was stored."""
        self._memories.finish()
        return self._report

    def _store_memories(self, kind: str, records: list[MemoryLine]) -> None:
        there = self._texts("memory", records, "kind || text")
        rows: list[memory_writer.Prepared] = []
        asked: list[int | None] = []
        for record in records:
            taken = _occupied(there, record.id)
            if taken == kind + clean(record.text):
                self._report.unchanged += 1
                continue
            created = self._now if record.created is None else record.created
            asked.append(record.id)
            rows.append(
                memory_writer.prepare(
                    record.text,
                    kind,
                    id=None if taken is not None else record.id,
                    source=clean(record.source),
                    created=created,
                    seen=created if record.seen is None else record.seen,
                    said=record.said,
                    recalls=record.recalls,
                    recalled=record.recalled,
                    superseded_by=record.superseded_by,
                )
            )
        for _, run in itertools.groupby(zip(asked, rows, strict=True), lambda pair: pair[1].superseded_by is None):
            pairs = list(run)
            for _, row in pairs:
                if row.superseded_by is not None:  # what it points to was stored in an earlier run
                    row.superseded_by = self._moved.get(row.superseded_by, row.superseded_by)
            for (old, _), new in zip(pairs, self._memories.store([row for _, row in pairs]), strict=True):
                self._added(kind, old, new)

    def _store_facts(self, records: list[FactLine]) -> None:
        there = self._texts("fact", records, "text")
        rows: list[dict[str, Any]] = []
        asked: list[int | None] = []
        for record in records:
            taken = _occupied(there, record.id)
            if taken == clean(record.text):
                self._report.unchanged += 1
                continue
            created = self._now if record.created is None else record.created
            row = {"id": None if taken is not None else record.id, "text": record.text, "source": record.source}
            rows.append({**row, "created": created})
            asked.append(record.id)
        for old, new in zip(asked, write_facts(self._connection, rows), strict=True):
            self._added("fact", old, new)

    def _store_entity(self, record: EntityLine) -> None:
        there = self._one("SELECT id FROM entity WHERE key = ?", named(record.name).key)
        wanted = None if there or self._taken("entity", record.id) else record.id
        created = self._now if record.created is None else record.created
        new = write_entity(
            self._connection,
            record.name,
            of_type=record.type,
            aliases=record.aliases,
            created=created,
            entity_id=wanted,
        )
        self._count("entity", there is not None, record.id, new)

    def _store_edge(self, record: EdgeLine) -> None:
        there = self._one(
            "SELECT e.id FROM edge e JOIN entity s ON s.id = e.src JOIN entity d ON d.id = e.dst"
            " WHERE s.key = ? AND d.key = ? AND e.relation = ?",
            *(named(record.src).key, named(record.dst).key, clean(record.relation).strip()),
        )
        if there:
            self._report.unchanged += 1
            return
        new = write_edge(
            self._connection,
            record.src,
            record.relation,
            record.dst,
            weight=record.weight,
            source=record.source,
            created=self._now if record.created is None else record.created,
            edge_id=None if self._taken("edge", record.id) else record.id,
        )
        self._count("edge", False, record.id, new)

    def _store_neuron(self, record: NeuronLine) -> None:
        name = named(record.name, stemmed=True)
        if self._one("SELECT id FROM neuron WHERE key = ?", name.key):
            self._report.unchanged += 1
            return
        cursor = self._connection.execute(
            "INSERT INTO neuron (id, name, note, key, first, n, mentions, activation, fired, potential, created)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(
                    None if self._taken("neuron", record.id) else record.id,
                    clean(record.name).strip(),
                    clean(record.note),
                ),
                *(name.key, name.first, name.n, record.mentions, record.activation, record.fired),
                potential(record.activation, record.fired, self._hours),
                self._now if record.created is None else record.created,
            ),
        )
        self._count("neuron", False, record.id, int(cursor.lastrowid or 0))

    def _texts(self, table: str, records: list[Any], columns: str) -> dict[int, str]:
        ids = [record.id for record in records if record.id is not None]
        marks = ",".join("?" * len(ids))
        return dict(
            self._connection.execute(f"SELECT id, {columns} FROM {table} WHERE id IN ({marks})", ids).fetchall()
        )

    def _taken(self, table: str, row: int | None) -> bool:
        return row is not None and (
            row > ID_KEPT_MAX or self._one(f"SELECT id FROM {table} WHERE id = ?", row) is not None
        )

    def _one(self, statement: str, *parameters: object) -> int | None:
        row = self._connection.execute(statement, parameters).fetchone()
        return row[0] if row else None

    def _count(self, kind: str, there: bool, old: int | None, new: int) -> None:
        if there:
            self._report.unchanged += 1
        else:
            self._added(kind, old, new)

    def _added(self, kind: str, old: int | None, new: int) -> None:
        self._report.added += 1
        self._report.by_kind[kind] = self._report.by_kind.get(kind, 0) + 1
        if old is not None and old != new:
            self._report.renumbered += 1
            if kind in memory_writer.KINDS:
                self._moved[old] = new


def _occupied(there: dict[int, str], row: int | None) -> str | None:
    """What has this id already; "" for an id that is too large to be kept."""
    if row is None:
        return None
    return there.get(row, "" if row > ID_KEPT_MAX else None)


def _aliases(connection: sqlite3.Connection, record: dict[str, Any]) -> list[str]:
    rows = connection.execute(
        "SELECT text FROM alias WHERE entity = ? AND key <> ? ORDER BY key", (record["id"], named(record["name"]).key)
    )
    return [text for (text,) in rows]


def _known(kind: str) -> str:
    if kind not in RECORDS:
        raise InvalidInput(f"{kind!r} is no kind of memory; known are {', '.join(RECORDS)}")
    return kind
