"""The write transaction of an import: portions of one kind at a time, each in a few statements."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rune.memory import memory_writer, text_index
from rune.memory.abstraction import write_facts
from rune.memory.ids import free_ids
from rune.memory.names import Name, named
from rune.memory.records import EdgeLine, EntityLine, FactLine, MemoryLine, NeuronLine
from rune.memory.terms import clean
from rune.memory.warm_neuron_store import half_life, potential

__all__ = ["ImportRows", "Imported"]


@dataclass(slots=True)
class Imported:
    """What an import did: rows added, rows that were there already, and rows added under another id than theirs."""

    added: int = 0
    unchanged: int = 0
    renumbered: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)


class ImportRows:
    """Stores records of an import on one connection; call ``finish`` at the end."""

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._connection = connection
        self._now = now
        self._memories = memory_writer.Writer(connection)
        self._facts = text_index.Counts("fact")
        self._moved: dict[int, int] = {}
        self._hours = half_life(connection)
        self._report = Imported()

    def store(self, kind: str, records: list[Any]) -> None:
        """Store records of one kind."""
        stores: dict[str, Callable[[list[Any]], None]] = {
            "memory": self._store_memories,
            "persona": self._store_memories,
            "fact": self._store_facts,
            "entity": self._store_entities,
            "edge": self._store_edges,
            "neuron": self._store_neurons,
        }
        stores[kind](records)

    def finish(self) -> Imported:
        """Let questions see what was stored, and say what it was."""
        self._memories.finish()
        self._facts.flush(self._connection)
        return self._report

    def _store_memories(self, records: list[MemoryLine]) -> None:
        there = self._texts("memory", records, "kind || text")
        rows = []
        for record in records:
            if there.get(record.id or 0) == record.kind + clean(record.text):
                self._report.unchanged += 1
                continue
            created = self._created(record)
            rows.append(
                memory_writer.prepare(
                    record.text,
                    record.kind,
                    id=record.id,
                    source=clean(record.source),
                    created=created,
                    seen=created if record.seen is None else record.seen,
                    said=record.said,
                    recalls=record.recalls,
                    recalled=record.recalled,
                    superseded_by=record.superseded_by,
                )
            )
        for _, run in itertools.groupby(rows, lambda row: row.superseded_by is None):
            portion = list(run)
            for row in portion:
                if row.superseded_by is not None:  # what it points to was stored in an earlier run
                    row.superseded_by = self._moved.get(row.superseded_by, row.superseded_by)
            ids = self._memories.store(portion)
            self._moved.update(
                (row.id, new) for row, new in zip(portion, ids, strict=True) if row.id not in (None, new)
            )
            self._count(portion[0].kind, [row.id for row in portion], ids)

    def _store_facts(self, records: list[FactLine]) -> None:
        there = self._texts("fact", records, "text")
        rows = [record for record in records if there.get(record.id or 0) != clean(record.text)]
        self._report.unchanged += len(records) - len(rows)
        facts = [{"id": r.id, "text": r.text, "source": r.source, "created": self._created(r)} for r in rows]
        self._count("fact", [record.id for record in rows], write_facts(self._connection, facts, self._facts))

    def _store_entities(self, records: list[EntityLine]) -> None:
        names = [named(record.name) for record in records]
        self._insert_new(
            "entity",
            [record.id for record in records],
            "INSERT INTO entity (id, key, name, type, created) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (key) DO UPDATE SET type = excluded.type WHERE type = ''",
            [
                (name.key, clean(record.name).strip(), clean(record.type), self._created(record))
                for name, record in zip(names, records, strict=True)
            ],
        )
        ids = self._entities(name.key for name in names)
        self._insert_aliases(
            (ids[name.key], named(text), text)
            for name, record in zip(names, records, strict=True)
            for text in (record.name, *record.aliases)
        )

    def _store_edges(self, records: list[EdgeLine]) -> None:
        ends = {text: named(text) for record in records for text in (record.src, record.dst)}
        ids = self._entities_or_new(ends, {text: self._created(r) for r in records for text in (r.dst, r.src)})
        self._insert_new(
            "edge",
            [record.id for record in records],
            "INSERT INTO edge (id, src, relation, dst, weight, source, created) VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (src, dst, relation) DO NOTHING",
            [
                (
                    *(ids[ends[r.src].key], clean(r.relation).strip(), ids[ends[r.dst].key]),
                    *(r.weight, clean(r.source), self._created(r)),
                )
                for r in records
            ],
        )

    def _store_neurons(self, records: list[NeuronLine]) -> None:
        names = [named(record.name, stemmed=True) for record in records]
        self._insert_new(
            "neuron",
            [record.id for record in records],
            "INSERT INTO neuron (id, name, note, key, first, n, mentions, activation, fired, potential, created)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
            [
                (
                    *(clean(r.name).strip(), clean(r.note), name.key, name.first, name.n, r.mentions, r.activation),
                    *(r.fired, potential(r.activation, r.fired, self._hours), self._created(r)),
                )
                for name, r in zip(names, records, strict=True)
            ],
        )

    def _insert_new(
        self, table: str, wanted: Sequence[int | None], statement: str, rows: Sequence[tuple[object, ...]]
    ) -> None:
        """Insert rows behind an id for each, but for those that are there already, and count both."""
        ids = free_ids(self._connection, table, wanted)
        self._connection.executemany(statement, [(i, *row) for i, row in zip(ids, rows, strict=True)])
        found = self._connection.execute(
            f"SELECT id FROM {table} WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(ids),)
        )
        came = {row for (row,) in found}
        self._report.unchanged += len(ids) - len(came)
        pairs = [(old, new) for old, new in zip(wanted, ids, strict=True) if new in came]
        self._count(table, [old for old, _ in pairs], [new for _, new in pairs])

    def _entities(self, keys: Iterable[str]) -> dict[str, int]:
        found = self._connection.execute(
            "SELECT key, id FROM entity WHERE key IN (SELECT value FROM json_each(?))", (json.dumps(list(keys)),)
        )
        return dict(found.fetchall())

    def _entities_or_new(self, names: Mapping[str, Name], created: Mapping[str, float]) -> dict[str, int]:
        """For each key the entity of this name, else the only one with this alias, else a new one."""
        ids = self._entities(name.key for name in names.values())
        missing: dict[str, str] = {}
        for text, name in names.items():
            if name.key not in ids:
                missing.setdefault(name.key, text)
        if missing:
            rows = self._connection.execute(
                "SELECT key, entity FROM alias WHERE key IN (SELECT value FROM json_each(?))"
                " GROUP BY key HAVING count(*) = 1",
                (json.dumps(list(missing)),),
            )
            ids.update(rows.fetchall())
            new = {key: text for key, text in missing.items() if key not in ids}
            fresh = free_ids(self._connection, "entity", [None] * len(new))
            ids.update(zip(new, fresh, strict=True))
            self._connection.executemany(
                "INSERT INTO entity (id, key, name, created) VALUES (?, ?, ?, ?)",
                [(ids[key], key, clean(text).strip(), created[text]) for key, text in new.items()],
            )
            self._insert_aliases((ids[key], names[text], text) for key, text in new.items())
        return ids

    def _insert_aliases(self, rows: Iterable[tuple[int, Name, str]]) -> None:
        self._connection.executemany(
            "INSERT OR IGNORE INTO alias (key, entity, text, first, n) VALUES (?, ?, ?, ?, ?)",
            [(name.key, entity, clean(text).strip(), name.first, name.n) for entity, name, text in rows],
        )

    def _texts(self, table: str, records: list[Any], columns: str) -> dict[int, str]:
        """What is there under the ids of these records."""
        ids = json.dumps([record.id for record in records if record.id is not None])
        return dict(
            self._connection.execute(
                f"SELECT id, {columns} FROM {table} WHERE id IN (SELECT value FROM json_each(?))", (ids,)
            ).fetchall()
        )

    def _created(self, record: Any) -> float:
        return self._now if record.created is None else float(record.created)

    def _count(self, kind: str, wanted: Sequence[int | None], ids: Sequence[int]) -> None:
        if ids:
            self._report.added += len(ids)
            self._report.by_kind[kind] = self._report.by_kind.get(kind, 0) + len(ids)
            self._report.renumbered += sum(old not in (None, new) for old, new in zip(wanted, ids, strict=True))
