"""Graph memory: entities with other names (aliases) and typed connections between them.

``resolve_entity`` finds the entities that a task names, by longest match over the index of names, and renders their
strongest connections. Two entities never share a name; they may share an alias, and then both are meant.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rune.errors import InvalidInput
from rune.memory.names import named, names_in
from rune.memory.render import block, one_line
from rune.memory.terms import clean, like_pattern
from rune.storage.database import Database

__all__ = [
    "HEADING",
    "Connection",
    "Entity",
    "add_edge",
    "add_entity",
    "connections",
    "find_entities",
    "forget_edge",
    "forget_entity",
    "list_edges",
    "list_entities",
    "resolve_entity",
    "write_edge",
    "write_entity",
]

HEADING = "My graph connections"
TOP = 5
_ENTITIES_MAX = 32  # entities of one task whose connections are read


@dataclass(frozen=True, slots=True)
class Entity:
    """One entity; ``aliases`` are its other names."""

    id: int
    name: str
    type: str
    created: float
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Connection:
    """One typed connection; ``weight`` grows each time that it is added again."""

    id: int
    src: str
    relation: str
    dst: str
    weight: float
    source: str
    created: float


def resolve_entity(db: Database, task: str, limit: int = TOP) -> str | None:
    """The block of the strongest connections of the entities that ``task`` names, in the order of ids, or None.

    A connection between two of them comes before one that leads elsewhere. Raises StorageError.
    """
    found = connections(db, task, limit)
    return block(
        HEADING,
        [
            f"{one_line(edge.src)} — {one_line(edge.relation)} — {one_line(edge.dst)}"
            for edge in sorted(found, key=lambda edge: edge.id)
        ],
    )


def connections(db: Database, task: str, limit: int = TOP) -> list[Connection]:
    """As ``resolve_entity``, as rows and strongest first; equal weights: the latest first."""
    with db.read() as connection:
        ids = _entities(connection, task)
        marks = ",".join("?" * len(ids))
        edges: dict[int, Connection] = {}
        between: set[int] = set()
        for entity in ids:
            for end in ("src", "dst"):
                rows = connection.execute(
                    f"{_EDGES} INDEXED BY edge_{end} {_ENDS} WHERE e.{end} = ? {_STRONGEST}", (entity, limit)
                )
                edges.update((row[0], Connection(*row)) for row in rows)
            rows = connection.execute(
                f"{_EDGES} INDEXED BY edge_pair {_ENDS} WHERE e.src = ? AND e.dst IN ({marks}) {_STRONGEST}",
                (entity, *ids, limit),
            )
            both = {row[0]: Connection(*row) for row in rows}
            edges.update(both)
            between.update(both)
    return sorted(edges.values(), key=lambda e: (e.id not in between, -e.weight, -e.id))[:limit]


def find_entities(db: Database, text: str) -> list[Entity]:
    """The entities that ``text`` names, in the order of their mention."""
    with db.read() as connection:
        return _load(connection, _entities(connection, text))


def list_entities(db: Database, *, containing: str = "", limit: int = 50, offset: int = 0) -> list[Entity]:
    """Entities, the latest first; with ``containing`` those with a name or alias that contains it (case ignored)."""
    with db.read() as connection:
        rows = connection.execute(
            "SELECT id FROM entity WHERE id IN (SELECT entity FROM alias WHERE text LIKE ? ESCAPE '\\')"
            " ORDER BY id DESC LIMIT ? OFFSET ?",
            (like_pattern(containing), limit, offset),
        ).fetchall()
        return _load(connection, [row for (row,) in rows])


def list_edges(db: Database, *, containing: str = "", limit: int = 50, offset: int = 0) -> list[Connection]:
    """Connections, the latest first; with ``containing`` those with an end or a relation that contains it."""
    with db.read() as connection:
        rows = connection.execute(
            f"{_EDGES} {_ENDS} WHERE s.name || char(10) || e.relation || char(10) || d.name LIKE ? ESCAPE '\\'"
            " ORDER BY e.id DESC LIMIT ? OFFSET ?",
            (like_pattern(containing), limit, offset),
        ).fetchall()
    return [Connection(*row) for row in rows]


def add_entity(db: Database, name: str, *, of_type: str = "", aliases: Iterable[str] = ()) -> int:
    """Store an entity and return its id; a known name gets the new aliases and type. Raises InvalidInput, StorageError."""
    with db.write() as connection:
        return write_entity(connection, name, of_type=of_type, aliases=aliases, created=db.clock())


def add_edge(db: Database, src: str, relation: str, dst: str, *, weight: float = 1.0, source: str = "") -> int:
    """Connect two entities, which are made when there are none of these names; a known connection gains the weight."""
    with db.write() as connection:
        return write_edge(connection, src, relation, dst, weight=weight, source=source, created=db.clock())


def write_entity(
    connection: sqlite3.Connection,
    name: str,
    *,
    created: float,
    of_type: str = "",
    aliases: Iterable[str] = (),
    entity_id: int | None = None,
) -> int:
    """``add_entity`` inside a write transaction; ``entity_id`` asks for this id."""
    aliases = [aliases] if isinstance(aliases, str) else list(aliases)
    keys = [(named(alias), clean(alias).strip()) for alias in (name, *aliases)]
    row = connection.execute(
        "INSERT INTO entity (id, name, key, type, created) VALUES (?, ?, ?, ?, ?) ON CONFLICT (key)"
        " DO UPDATE SET type = CASE WHEN excluded.type = '' THEN type ELSE excluded.type END RETURNING id",
        (entity_id, keys[0][1], keys[0][0].key, clean(of_type), created),
    ).fetchone()
    connection.executemany(
        "INSERT OR IGNORE INTO alias (key, entity, text, first, n) VALUES (?, ?, ?, ?, ?)",
        [(key.key, row[0], text, key.first, key.n) for key, text in keys],
    )
    return int(row[0])


def write_edge(
    connection: sqlite3.Connection,
    src: str,
    relation: str,
    dst: str,
    *,
    created: float,
    weight: float = 1.0,
    source: str = "",
    edge_id: int | None = None,
) -> int:
    """``add_edge`` inside a write transaction; ``edge_id`` asks for this id."""
    if not relation.strip():
        raise InvalidInput(f"a connection needs a relation such as 'lives in'; got {relation!r:.80}")
    if not 0 < weight < float("inf"):
        raise InvalidInput(f"the weight of a connection is a number above 0; got {weight!r}")
    ends = [_entity_named(connection, name, created) for name in (src, dst)]
    row = connection.execute(
        "INSERT INTO edge (id, src, relation, dst, weight, source, created) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (src, dst, relation) DO UPDATE SET weight = weight + excluded.weight RETURNING id",
        (edge_id, ends[0], clean(relation).strip(), ends[1], weight, clean(source), created),
    ).fetchone()
    return int(row[0])


def forget_entity(db: Database, entity_id: int) -> list[int]:
    """Remove an entity with its aliases and connections; raises InvalidInput when there is none."""
    return _forget(db, "entity", entity_id)


def forget_edge(db: Database, edge_id: int) -> list[int]:
    """Remove one connection; raises InvalidInput when there is none."""
    return _forget(db, "edge", edge_id)


_EDGES = "SELECT e.id, s.name, e.relation, d.name, e.weight, e.source, e.created FROM edge e"
_ENDS = "JOIN entity s ON s.id = e.src JOIN entity d ON d.id = e.dst"
_STRONGEST = "ORDER BY e.weight DESC, e.id DESC LIMIT ?"


def _entities(connection: sqlite3.Connection, text: str) -> list[int]:
    keys = names_in(connection, "alias", text)[:_ENTITIES_MAX]
    ids: dict[int, None] = {}
    for key in keys:
        rows = connection.execute(
            "SELECT entity FROM alias WHERE key = ? ORDER BY entity LIMIT ?", (key, _ENTITIES_MAX)
        )
        ids.update((row[0], None) for row in rows)
    return list(ids)[:_ENTITIES_MAX]


def _load(connection: sqlite3.Connection, ids: Sequence[int]) -> list[Entity]:
    found = []
    for entity in ids:
        row = connection.execute("SELECT id, name, type, created, key FROM entity WHERE id = ?", (entity,)).fetchone()
        aliases = connection.execute(
            "SELECT text FROM alias WHERE entity = ? AND key <> ? ORDER BY key", (entity, row[4])
        )
        id_, called, of_type, created, _ = row
        found.append(Entity(id_, called, of_type, created, tuple(text for (text,) in aliases)))
    return found


def _entity_named(connection: sqlite3.Connection, name: str, created: float) -> int:
    """The entity of this name, else the only one with this alias, else a new one."""
    key = named(name).key
    row = connection.execute("SELECT id FROM entity WHERE key = ?", (key,)).fetchone()
    if row is None:
        rows = connection.execute("SELECT entity FROM alias WHERE key = ? LIMIT 2", (key,)).fetchall()
        row = rows[0] if len(rows) == 1 else None
    return int(row[0]) if row else write_entity(connection, name, created=created)


def _forget(db: Database, kind: str, row: int) -> list[int]:
    with db.write() as connection:
        if not connection.execute(f"DELETE FROM {kind} WHERE id = ?", (row,)).rowcount:
            raise InvalidInput(f"there is no {kind} {row}; list them to see the ids")
    db.checkpoint()
    return [row]
